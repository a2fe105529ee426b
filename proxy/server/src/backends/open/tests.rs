//! Logins without a client, at a server of a few lines.

use std::rc::Rc;

use pgpalisade_logins::scram::Leg;
use pgpalisade_logins::scram::server::Offered;
use pgpalisade_logins::{Account, Credentials, Password, ServerLoginError};
use pgpalisade_tls::SslSettings;
use pgpalisade_wire::encode::{self, Authentication, Message, ParameterStatus, ReadyForQuery};
use pgpalisade_wire::{backend::TransactionStatus, header};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

use super::*;
use crate::transport::{Batching, SendBatch};

const PACKET: &[u8] = b"\0\0\0\x12\0\x03\0\0user\0app\0\0";

/// Password `pencil`: <https://www.rfc-editor.org/rfc/rfc7677#section-3>.
const VERIFIER: &str = "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:\
                        wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=";

struct Server(UnixStream);

impl Server {
    async fn begin(&mut self) {
        let mut packet = [0; PACKET.len()];
        self.0.read_exact(&mut packet).await.unwrap();
        assert_eq!(packet, PACKET);
    }

    async fn say(&mut self, message: &impl Message) {
        let mut out = BytesMut::new();
        encode::put(&mut out, message);
        self.0.write_all(&out).await.unwrap();
    }

    async fn hear(&mut self) -> Vec<u8> {
        let mut head = [0; HEADER_LEN];
        self.0.read_exact(&mut head).await.unwrap();
        let header = header::parse(&head, backend::body_max).unwrap().unwrap();
        assert_eq!(header.tag, b'p');
        let mut body = vec![0; header.frame_len() - HEADER_LEN];
        self.0.read_exact(&mut body).await.unwrap();
        body
    }

    /// Admits a client that proves the password, and returns the keys that its proof has shown.
    async fn scram(&mut self) -> Credentials {
        self.say(&Authentication::SASL(vec!["SCRAM-SHA-256".into()]))
            .await;
        let account = Account::Known(VERIFIER.parse().unwrap());
        let offered = Offered::new(account, Leg::Clear, "ours".to_owned());
        let (challenged, challenge) = offered.challenge(&self.hear().await).unwrap();
        self.say(&Authentication::SASLContinue(challenge.into()))
            .await;
        let proven = challenged.prove(&self.hear().await).unwrap();
        self.say(&Authentication::SASLFinal(proven.last.into()))
            .await;
        Credentials::Keys(proven.keys)
    }

    async fn end(&mut self) {
        self.say(&Authentication::Ok).await;
        for (name, value) in [
            ("TimeZone", "UTC"),
            ("client_encoding", "UTF8"),
            ("TimeZone", "CET"),
        ] {
            self.say(&ParameterStatus::new(name.into(), value.into()))
                .await;
        }
        self.0.write_all(b"N\0\0\0\x05\0").await.unwrap();
        self.0
            .write_all(b"K\0\0\0\x0c\0\0\0\x07keys")
            .await
            .unwrap();
        self.say(&ReadyForQuery::new(TransactionStatus::Idle.into()))
            .await;
        self.0.write_all(b"later").await.unwrap();
    }
}

/// Logs in at a server that behaves as `serve` does.
async fn opened<T>(
    credentials: Option<Credentials>,
    serve: impl AsyncFnOnce(Server) -> T,
) -> (Result<LoggedIn, OpenError>, T) {
    opened_beside("another", credentials, serve).await
}

/// Does so with a proxy that has this role of its own.
async fn opened_beside<T>(
    own: &str,
    credentials: Option<Credentials>,
    serve: impl AsyncFnOnce(Server) -> T,
) -> (Result<LoggedIn, OpenError>, T) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let sends = Rc::new(SendBatch::new(Batching::Off));
    let mut socket = Socket::unix(ours, &sends).unwrap();
    let login = SharedLogin {
        packet: Bytes::from_static(PACKET),
        credentials: credentials.map(Arc::new),
    };
    let hashing = Aside::new(1);
    let own = OwnRoles::new([own.to_owned()], &SslSettings::default());
    let serving = async {
        let mut server = Server(theirs);
        server.begin().await;
        serve(server).await
    };
    tokio::join!(log_in(&mut socket, &login, &hashing, Some(&own)), serving)
}

fn password(text: &str) -> Option<Credentials> {
    let mut body = format!("{text}\0").into_bytes();
    Some(Credentials::Password(Password::take(&mut body).unwrap()))
}

#[tokio::test]
async fn a_server_that_asks_for_nothing() {
    for credentials in [None, password("pencil")] {
        let (opened, ()) = opened(credentials, async |mut server: Server| server.end().await).await;
        let opened = opened.unwrap();
        assert_eq!(opened.key, &b"\0\0\0\x07keys"[..]);
        assert_eq!(opened.server_bytes, &b"later"[..]);
        let mut said = BytesMut::new();
        opened.greeting.put(&mut said);
        assert_eq!(
            said,
            &b"S\0\0\0\x11TimeZone\0CET\0S\0\0\0\x19client_encoding\0UTF8\0"[..]
        );
    }
}

/// PostgreSQL has authenticated the process of the proxy.
#[tokio::test]
async fn a_role_of_the_proxy_s_own_must_be_asked() {
    for credentials in [None, password("pencil")] {
        let end = async |mut server: Server| server.end().await;
        let (opened, ()) = opened_beside("app", credentials, end).await;
        assert!(matches!(opened, Err(OpenError::OwnRole(own)) if own == "app"));
    }
    let serve = async |mut server: Server| {
        server.scram().await;
        server.end().await;
    };
    let (opened, ()) = opened_beside("app", password("pencil"), serve).await;
    assert!(opened.is_ok());
}

#[tokio::test]
async fn a_password_opens_a_connection_and_so_do_the_keys_of_its_proof() {
    let serve = async |mut server: Server| {
        let keys = server.scram().await;
        server.end().await;
        keys
    };
    let (by_password, keys) = opened(password("pencil"), serve).await;
    by_password.unwrap();
    let (by_keys, again) = opened(Some(keys.clone()), serve).await;
    by_keys.unwrap();
    assert_eq!(keys, again);
}

#[tokio::test]
async fn a_server_that_asks_for_more_than_is_known() {
    let ask = async |mut server: Server| server.say(&Authentication::CleartextPassword).await;
    let (opened, ()) = opened(None, ask).await;
    assert!(matches!(opened, Err(OpenError::NoCredentials(user)) if user == "app"));
}

/// Only a refusal of the login ends an admission: a full or stopping server says nothing of it.
#[tokio::test]
async fn a_refusal_is_the_servers_own_whenever_it_comes() {
    for (sqlstate, is_about_login) in [
        ("53300", false),
        ("57P03", false),
        ("28P01", true),
        ("3D000", true),
    ] {
        let fatal = format!("E\0\0\0\x13SFATAL\0C{sqlstate}\0\0");
        for admitted in [None, Some(&Authentication::Ok)] {
            let serve = async |mut server: Server| {
                if let Some(message) = admitted {
                    server.say(message).await;
                }
                server.0.write_all(fatal.as_bytes()).await.unwrap();
            };
            let (opened, ()) = opened(None, serve).await;
            let error = opened.unwrap_err();
            assert_eq!(error.is_about_login(), is_about_login, "{sqlstate}");
            assert!(matches!(error, OpenError::Refused(response) if response == fatal.as_bytes()));
        }
    }
}

#[tokio::test]
async fn a_server_that_leaves_or_cannot_prove_itself() {
    let (left, ()) = opened(None, async |_: Server| ()).await;
    assert!(matches!(left, Err(OpenError::Closed)));
    let lie = async |mut server: Server| {
        server
            .say(&Authentication::SASL(vec!["SCRAM-SHA-256".into()]))
            .await;
        server.hear().await;
        server
            .say(&Authentication::SASLFinal(Bytes::from_static(b"v=bGll")))
            .await;
    };
    let (opened, ()) = opened(password("pencil"), lie).await;
    let unexpected = ServerLoginError::Unexpected(12);
    assert!(matches!(opened, Err(OpenError::NotLetIn(_, why)) if why == unexpected));
}
