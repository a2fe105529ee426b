//! The check of login methods, by PostgreSQL's own method and TLS on both legs.

use std::time::Duration;

use bytes::BytesMut;
use pgpalisade_logins::kind;
use pgpalisade_server::accounts::{Auth, Logins, LookupError};
use pgpalisade_server::certificates::ClientTls;
use pgpalisade_server::client_table::Encryption;
use pgpalisade_server::pooling::Pool;
use pgpalisade_tls::{ALPN, Acceptor, Connector};
use pgpalisade_wire::{backend, header};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use super::super::finding::CheckResult;
use super::super::probe::{self, ProbeError};
use crate::config::Config;
use crate::local;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Legs {
    /// PostgreSQL's code for what it asks for.
    method: i32,
    client: Encryption,
    server: Encryption,
    /// Both legs show one certificate.
    is_one_certificate: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Works {
    Yes,
    /// With advice.
    Limited(&'static str, &'static str),
    No(&'static str),
}

impl Works {
    fn shown(self, name: &str) -> String {
        match self {
            Self::Yes => format!("{name} works"),
            Self::Limited(why, _) | Self::No(why) => format!("{name} {why}"),
        }
    }
}

impl Legs {
    const fn relay(self, pool: &Pool) -> Works {
        use Encryption::Tls;
        match (pool, self.method, self.client, self.server) {
            (Pool::Transaction(_), kind::OK, ..) => Works::Yes,
            (Pool::Transaction(_), ..) => Works::Limited(
                "works with pool = session, or for users that PostgreSQL asks for nothing",
                "set auth = \"scram\" or \"password\", or pool = \"session\", or let pg_hba.conf trust pgpalisade",
            ),
            (Pool::Session, kind::SASL, Tls, Tls) if !self.is_one_certificate => Works::Limited(
                "works for clients without TLS or with channel_binding=disable only",
                "set auth = \"scram\" or \"password\", or give pgpalisade the certificate and the key of PostgreSQL",
            ),
            _ => Works::Yes,
        }
    }

    const fn scram(self) -> Works {
        match self.method {
            kind::SASL | kind::OK => Works::Yes,
            _ => Works::No("does not work: pg_hba.conf must ask for scram-sha-256"),
        }
    }

    const fn password(self) -> Works {
        match (self.client, self.method, self.server) {
            (Encryption::None, ..) => Works::No("does not work: tls.mode is off"),
            (_, kind::CLEARTEXT_PASSWORD, Encryption::None) => {
                Works::No("does not work: the password would go to PostgreSQL unencrypted")
            }
            (_, kind::OK | kind::CLEARTEXT_PASSWORD | kind::MD5_PASSWORD | kind::SASL, _) => {
                Works::Yes
            }
            _ => Works::No("does not work: PostgreSQL asks for no password"),
        }
    }
}

pub(super) async fn check(config: &Config, within: Duration) -> CheckResult {
    let login = &config.control.expose().config;
    let user = login.get_user().unwrap_or("postgres");
    let database = login.get_dbname().unwrap_or(user);
    let legs = match timeout(within, look(config, user, database)).await {
        Ok(Ok(legs)) => legs,
        Ok(Err(why)) => return CheckResult::skip(format!("not checked: {why}")),
        Err(_) => return CheckResult::skip("not checked: PostgreSQL did not answer in time"),
    };
    if let Err(why) = verifiers(config, user).await {
        return CheckResult::fail(why, "correct auth_file or auth_query");
    }
    judge(&config.clients.auth, &config.clients.pool, user, legs)
}

fn judge(auth: &Auth, pool: &Pool, user: &str, legs: Legs) -> CheckResult {
    let asked = match legs.method {
        kind::OK => "nothing".to_owned(),
        kind::CLEARTEXT_PASSWORD => "a clear-text password".to_owned(),
        kind::MD5_PASSWORD => "md5".to_owned(),
        kind::SASL => "SCRAM".to_owned(),
        code => format!("a method with code {code}"),
    };
    let (relay, scram, password) = (legs.relay(pool), legs.scram(), legs.password());
    let seen = format!(
        "PostgreSQL asks role {user} for {asked}: {}, {}, {}",
        relay.shown("auth = relay"),
        scram.shown("scram"),
        password.shown("password")
    );
    let in_force = match auth {
        Auth::Relay => relay,
        Auth::Scram(_) => scram,
        Auth::Password => password,
    };
    match in_force {
        Works::Yes => CheckResult::ok(seen),
        Works::Limited(_, advice) => CheckResult::warn(seen, advice),
        Works::No(_) => CheckResult::fail(seen, "change auth, or remove the obstacle"),
    }
}

/// Whether verifiers can be read, if the method needs them.
async fn verifiers(config: &Config, user: &str) -> Result<(), String> {
    match local::logins(config).map_err(|error| error.to_string())? {
        Logins::Scram(accounts) => accounts
            .of(user.as_bytes())
            .await
            .map(drop)
            .map_err(|error: LookupError| error.to_string()),
        Logins::Relayed(_) | Logins::Password(_) => Ok(()),
    }
}

async fn look(config: &Config, user: &str, database: &str) -> Result<Legs, String> {
    let connector = Connector::load(&config.upstream.ssl).map_err(|error| error.to_string())?;
    let failed = |error: ProbeError| error.to_string();
    // All hosts are one cluster, with the same roles.
    let mut opened = Err("no host is named".to_owned());
    for host in config.upstream.hosts.all() {
        opened = probe::open(host, &connector).await.map_err(failed);
        if opened.is_ok() {
            break;
        }
    }
    let opened = opened?;
    let (mut stream, certificate) = (opened.stream, opened.certificate);
    let mut packet = BytesMut::new();
    let parameters = [("user", user), ("database", database)];
    postgres_protocol::message::frontend::startup_message(parameters, &mut packet)
        .map_err(|error| error.to_string())?;
    let mut answer = BytesMut::new();
    let io = |error: std::io::Error| error.to_string();
    stream.write_all(&packet).await.map_err(io)?;
    let method = loop {
        if stream.read_buf(&mut answer).await.map_err(io)? == 0 {
            return Err("PostgreSQL has closed the connection".to_owned());
        }
        if let Some(method) = method(&answer)? {
            break method;
        }
    };
    let shown = match &config.clients.tls {
        ClientTls::Off => None,
        ClientTls::On { files, .. } => {
            let acceptor = Acceptor::load(files, ALPN).map_err(|error| error.to_string())?;
            Some(acceptor.certificate().to_vec())
        }
    };
    let encryption = |certificate: &Option<Vec<u8>>| match certificate {
        Some(_) => Encryption::Tls,
        None => Encryption::None,
    };
    Ok(Legs {
        method,
        client: encryption(&shown),
        server: encryption(&certificate),
        is_one_certificate: shown == certificate,
    })
}

fn method(answer: &[u8]) -> Result<Option<i32>, String> {
    let Some(header) = header::parse(answer, |_| 64 * 1024).map_err(|error| error.to_string())?
    else {
        return Ok(None);
    };
    let Some(body) = answer.get(header::HEADER_LEN..header.frame_len()) else {
        return Ok(None);
    };
    match (header.tag, backend::authentication_kind(body)) {
        (b'R', Some(method)) => Ok(Some(method)),
        _ => Err("PostgreSQL refuses the login".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::finding::CheckOutcome;
    use super::*;
    use pgpalisade_server::accounts::VerifierSource;
    use pgpalisade_server::pooling::{BackendLimits, Reset};
    use std::num::NonZeroUsize;

    #[track_caller]
    fn outcomes(legs: Legs, expect: [CheckOutcome; 3]) {
        let scram = Auth::Scram(VerifierSource::File("/f".into()));
        let outcome = |auth: &Auth, pool: &Pool| judge(auth, pool, "app", legs).outcome;
        let ways = [Auth::Relay, scram, Auth::Password];
        let found = ways.each_ref().map(|auth| outcome(auth, &Pool::Session));
        assert_eq!(found, expect, "{legs:?}");
        let [relay, others @ ..] = ways.each_ref().map(|auth| outcome(auth, &transaction()));
        let is_asked = legs.method != kind::OK;
        let expected = if is_asked {
            CheckOutcome::Warn
        } else {
            CheckOutcome::Ok
        };
        assert_eq!(
            (relay, others),
            (expected, [expect[1], expect[2]]),
            "{legs:?}"
        );
    }

    fn transaction() -> Pool {
        Pool::Transaction(BackendLimits {
            max: NonZeroUsize::MIN,
            leaders: 0,
            wait: Duration::ZERO,
            idle: Duration::ZERO,
            lifetime: Duration::ZERO,
            pinned: 0,
            sessions: 0,
            reset: Reset::Always,
        })
    }

    #[test]
    fn which_of_the_three_works() {
        use CheckOutcome::{Fail, Ok, Warn};
        let legs = |method, client, server, is_one_certificate| Legs {
            method,
            client,
            server,
            is_one_certificate,
        };
        let (tls, none) = (Encryption::Tls, Encryption::None);
        let (same, other) = (true, false);
        outcomes(legs(kind::SASL, tls, tls, other), [Warn, Ok, Ok]);
        outcomes(legs(kind::SASL, tls, tls, same), [Ok, Ok, Ok]);
        outcomes(legs(kind::SASL, none, tls, other), [Ok, Ok, Fail]);
        outcomes(legs(kind::SASL, tls, none, other), [Ok, Ok, Ok]);
        outcomes(legs(kind::MD5_PASSWORD, tls, tls, other), [Ok, Fail, Ok]);
        outcomes(
            legs(kind::CLEARTEXT_PASSWORD, tls, tls, other),
            [Ok, Fail, Ok],
        );
        outcomes(
            legs(kind::CLEARTEXT_PASSWORD, tls, none, other),
            [Ok, Fail, Fail],
        );
        outcomes(legs(kind::OK, tls, none, other), [Ok, Ok, Ok]);
        outcomes(legs(7, tls, none, other), [Ok, Fail, Fail]);
    }

    #[test]
    fn the_first_message() {
        assert_eq!(method(b"R\0\0\0\x08\0\0"), Ok(None));
        assert_eq!(method(b"R\0\0\0\x08\0\0\0\x0a"), Ok(Some(kind::SASL)));
        assert_eq!(method(b"R\0\0\0\x08\0\0\0\x07"), Ok(Some(7)));
        assert!(method(b"E\0\0\0\x08\0\0\0\0").is_err());
        assert!(method(b"R\0\0\0\x05\0").is_err());
        assert!(method(b"R\xff\0\0\x05\0").is_err());
    }
}
