//! Logins of clients that share connections.

use std::num::NonZeroUsize;
use std::rc::Rc;
use std::time::Duration;

use pgpalisade_logins::{Credentials, Password};
use pgpalisade_tls::SslSettings;
use pgpalisade_wire::encode::ParameterStatus;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

use super::*;
use crate::accounts::OwnRoles;
use crate::certificates::{Certificates, ClientTls};
use crate::pending_logins::PendingLogins;
use crate::timers::Timers;
use crate::transport::{Batching, SendBatch, Socket};

fn packet(minor: u8, parameters: &[(&str, &str)]) -> Vec<u8> {
    let pairs = parameters
        .iter()
        .flat_map(|(name, value)| [*name, "\0", *value, "\0"]);
    let list = pairs.collect::<String>() + "\0";
    let len = u32::try_from(list.len() + 8).unwrap().to_be_bytes();
    [&len[..], &[0, 3, 0, minor], list.as_bytes()].concat()
}

fn shared(parameters: &[(&str, &str)]) -> Bytes {
    let packet = packet(2, parameters);
    match parse(&packet) {
        Ok(StartupPacket::Startup(message)) => shared_packet(message),
        other => unreachable!("{other:?}"),
    }
}

#[test]
fn clients_share_what_is_not_their_own() {
    for (given, kept) in [
        (("application_name", "web 1"), Some("web 1")),
        (("fencing.token", "34"), None),
        (("Fencing.Scope", "jobs"), None),
        (("_pq_.option", "on"), None),
        (("options", "-c work_mem=1MB"), Some("-c work_mem=1MB")),
        (("options", "-c fencing.token=34"), None),
        (("options", ""), None),
        (
            (
                "options",
                "-c fencing.token=34 -c work_mem=1MB --Fencing.Scope=jobs",
            ),
            Some("-c work_mem=1MB"),
        ),
        (("fencing", "1"), Some("1")),
    ] {
        let user = ("user", "app");
        let kept = kept.map(|value| (given.0, value));
        let expect: Vec<_> = [user].into_iter().chain(kept).collect();
        assert_eq!(shared(&[user, given]), packet(0, &expect), "{given:?}");
    }
}

struct Client(UnixStream);

impl Client {
    async fn hear(&mut self) -> (u8, Vec<u8>) {
        let mut head = [0; 5];
        self.0.read_exact(&mut head).await.unwrap();
        let len = u32::from_be_bytes([head[1], head[2], head[3], head[4]]);
        let mut body = vec![0; usize::try_from(len).unwrap() - 4];
        self.0.read_exact(&mut body).await.unwrap();
        (head[0], body)
    }

    async fn password(&mut self, password: &str) {
        assert_eq!(self.hear().await, (b'R', vec![0, 0, 0, 3]));
        let mut out = BytesMut::new();
        encode::put_raw(&mut out, b'p', format!("{password}\0").as_bytes());
        self.0.write_all(&out).await.unwrap();
    }

    /// All messages up to the key.
    async fn until_key(mut self) -> Vec<(u8, Vec<u8>)> {
        let mut heard = Vec::new();
        while heard.last().is_none_or(|(tag, _)| *tag != b'K') {
            heard.push(self.hear().await);
        }
        heard
    }
}

const PARAMETERS: [(&str, &str); 2] = [("user", "app"), ("application_name", "web")];

/// PostgreSQL, which admits one password or asks for nothing.
struct Postgres<'a> {
    pooling: &'a Pooling,
    admits: fn(&SharedLogin) -> bool,
}

impl Postgres<'_> {
    async fn open(&self, login: SharedLogin) -> Result<Admitted, OpenError> {
        assert_eq!(login.packet, packet(0, &PARAMETERS));
        if !(self.admits)(&login) {
            return Err(OpenError::Refused(Bytes::from_static(b"E\0\0\0\x05\0")));
        }
        let (mut greeting, mut report) = (Greeting::default(), BytesMut::new());
        let of = |name: &str| ParameterStatus::new(name.into(), "psql".into());
        for name in ["application_name", "TimeZone"] {
            encode::put(&mut report, &of(name));
            greeting.note(report.split().freeze());
        }
        let greeting = Arc::new(greeting);
        let admissions = &self.pooling.admissions;
        admissions.note(&login, &greeting, Instant::now());
        Ok((login, greeting))
    }
}

/// Logs a client in; `None`: PostgreSQL must not be asked.
async fn logged_in<T>(
    logins: &Logins,
    pooling: &Pooling,
    postgres: Option<&Postgres<'_>>,
    behaves: impl AsyncFnOnce(Client) -> T,
) -> (Result<PooledLogin, LoginError>, T) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let sends = Rc::new(SendBatch::new(Batching::Off));
    let certificates = Certificates::load(ClientTls::Off, None, SslSettings::default()).unwrap();
    let limit = Duration::from_secs(10);
    let pending = PendingLogins::new(1, limit, Timers::of_this_runtime());
    let mut client = Exchange {
        client: &mut Socket::unix(ours, &sends).unwrap(),
        carry: BytesMut::new(),
        shown: &certificates.current(),
        user: b"app",
        pending: &mut pending.enter(),
    };
    let startup = packet(9, &PARAMETERS);
    let obtain = async |login: SharedLogin| postgres.unwrap().open(login).await;
    let serving = authenticate(&mut client, logins, &startup, pooling, obtain);
    tokio::join!(serving, behaves(Client(theirs)))
}

#[tokio::test]
async fn postgres_is_asked_once_a_minute_for_the_same_login() {
    let pooling = Pooling::new(crate::pooling::Pool::Session, NonZeroUsize::MIN);
    let right = |login: &SharedLogin| {
        let Some(Credentials::Password(shown)) = login.credentials.as_deref() else {
            return false;
        };
        *shown == Password::take(&mut b"right\0".to_vec()).unwrap()
    };
    let postgres = Postgres {
        pooling: &pooling,
        admits: right,
    };
    let with = |password: &'static str| {
        async move |mut client: Client| {
            let limits = client.hear().await;
            assert_eq!(limits, (b'v', vec![0, 3, 0, 2, 0, 0, 0, 0]));
            client.password(password).await;
            client
        }
    };
    let mut kept = Vec::new();
    for asked in [Some(&postgres), None] {
        let (login, client) = logged_in(
            &Logins::Password(OwnRoles::default()),
            &pooling,
            asked,
            with("right"),
        )
        .await;
        let login = login.unwrap();
        let mut heard = client.until_key().await;
        let (_, key) = heard.pop().unwrap();
        assert_eq!(key.len(), 4 + 32);
        let report = |name: &str, value: &str| (b'S', format!("{name}\0{value}\0").into_bytes());
        let expect = [
            (b'R', vec![0; 4]),
            report("application_name", "psql"),
            report("TimeZone", "psql"),
        ];
        assert_eq!(heard, expect);
        kept.push((login, key));
    }
    assert_ne!(kept[0].1, kept[1].1, "each client has a key of its own");
    let (login, _) = logged_in(
        &Logins::Password(OwnRoles::default()),
        &pooling,
        Some(&postgres),
        with("wrong"),
    )
    .await;
    assert!(matches!(
        login,
        Err(LoginError::Server(OpenError::Refused(_)))
    ));
}

#[tokio::test]
async fn without_a_password_only_postgres_decides() {
    for admits in [true, false] {
        let pooling = Pooling::new(crate::pooling::Pool::Session, NonZeroUsize::MIN);
        let postgres = Postgres {
            pooling: &pooling,
            admits: if admits {
                |login| login.credentials.is_none()
            } else {
                |_| false
            },
        };
        let relayed = Logins::Relayed(OwnRoles::default());
        let logging_in = logged_in(&relayed, &pooling, Some(&postgres), async |client| client);
        let (login, _client) = logging_in.await;
        assert_eq!(login.is_ok(), admits);
    }
}
