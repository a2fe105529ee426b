//! Logins to the console. A unix socket admits the user that runs the proxy and root, by peer credentials; users of
//! the file log in by SCRAM.

use std::sync::Arc;

use bytes::BytesMut;
use pgpalisade_fence::readable::readable;
use pgpalisade_logins::scram::server::{LoginRefusal, Offered, mechanisms};
use pgpalisade_logins::scram::{Leg, nonce};
use pgpalisade_server::accounts::Accounts;
use pgpalisade_server::message_socket::{Message, MessageError, MessageSocket};
use pgpalisade_wire::backend::TransactionStatus;
use pgpalisade_wire::encode::{
    self, Authentication, BackendKeyData, ParameterStatus, ReadyForQuery, SecretKey,
};
use pgpalisade_wire::startup::{self, StartupPacket};

use super::{ConsoleError, DATABASE};

/// Encryption requests before a startup packet: one of each kind.
const REQUESTS: usize = 2;

/// Parameters for the client. The version makes clients ask for nothing newer.
const PARAMETERS: [(&str, &str); 6] = [
    (
        "server_version",
        concat!(env!("CARGO_PKG_VERSION"), "/pgpalisade"),
    ),
    ("server_encoding", "UTF8"),
    ("client_encoding", "UTF8"),
    ("DateStyle", "ISO"),
    ("integer_datetimes", "on"),
    ("standard_conforming_strings", "on"),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OperatorRole {
    Read,
    Admin,
}

/// A client that has logged in.
#[derive(Debug, Clone)]
pub(super) struct Operator {
    /// Without control characters.
    pub(super) user: String,
    pub(super) rights: OperatorRole,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Users {
    pub(crate) accounts: Option<Arc<Accounts>>,
    pub(crate) admins: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum Refused {
    /// The client left, or sent no startup packet. PostgreSQL does not answer either.
    #[error("no startup packet was received")]
    NoStartup,
    #[error(transparent)]
    Link(#[from] MessageError),
    #[error(transparent)]
    Told(#[from] ConsoleError),
}

struct Request {
    user: String,
    database: String,
}

impl Users {
    pub(super) async fn identify(&self, link: &mut MessageSocket) -> Result<Operator, Refused> {
        let request = startup(link).await?;
        let operator = Operator {
            user: readable(&request.user),
            rights: self.rights(link, &request).await?,
        };
        if request.database != DATABASE {
            let message = "this is the console of pgpalisade, which has one database only";
            let other = ConsoleError::new("3D000", message);
            return Err(other.hint("Connect to the database pgpalisade.").into());
        }
        Ok(operator)
    }

    async fn rights(
        &self,
        link: &mut MessageSocket,
        request: &Request,
    ) -> Result<OperatorRole, Refused> {
        let ours = rustix::process::geteuid().as_raw();
        if link.peer_uid().is_some_and(|uid| uid == ours || uid == 0) {
            return Ok(OperatorRole::Admin);
        }
        let Some(accounts) = &self.accounts else {
            let message = "only the user that runs pgpalisade and root can log in here";
            let hint = "With console_auth_file, other users can log in with a password.";
            return Err(ConsoleError::new("28000", message).hint(hint).into());
        };
        prove(link, accounts, &request.user).await?;
        Ok(if self.admins.contains(&request.user) {
            OperatorRole::Admin
        } else {
            OperatorRole::Read
        })
    }
}

pub(super) async fn welcome(link: &mut MessageSocket) -> Result<(), MessageError> {
    let out = &mut link.out;
    encode::put(out, &Authentication::Ok);
    for (name, value) in PARAMETERS {
        encode::put(out, &ParameterStatus::new(name.into(), value.into()));
    }
    // Clients expect a key; cancel requests have no effect.
    let key = BackendKeyData::new(
        std::process::id().cast_signed(),
        SecretKey::I32(rand::random()),
    );
    encode::put(out, &key);
    encode::put(out, &ReadyForQuery::new(TransactionStatus::Idle.into()));
    Ok(link.flush().await?)
}

async fn startup(link: &mut MessageSocket) -> Result<Request, Refused> {
    for _ in 0..=REQUESTS {
        let packet = match link.packet().await {
            Ok(Some(packet)) => packet,
            Ok(None) | Err(MessageError::Wire(_)) => return Err(Refused::NoStartup),
            Err(error) => return Err(error.into()),
        };
        match startup::parse(&packet) {
            Ok(StartupPacket::SslRequest | StartupPacket::GssEncRequest) => {
                if !link.is_drained() {
                    return Err(Refused::NoStartup);
                }
                link.out.extend_from_slice(b"N");
                link.flush().await.map_err(MessageError::Io)?;
            }
            Ok(StartupPacket::Startup(message)) => {
                if let Some(limits) = encode::negotiated(message) {
                    encode::put(&mut link.out, &limits);
                }
                let text = |name| {
                    let value = message.get(name).unwrap_or_default();
                    String::from_utf8_lossy(value).into_owned()
                };
                return Ok(Request {
                    user: text("user"),
                    // PostgreSQL's own default.
                    database: match message.get("database") {
                        None | Some(b"") => text("user"),
                        Some(_) => text("database"),
                    },
                });
            }
            Ok(StartupPacket::OtherVersion(_)) => {
                let message = "unsupported frontend protocol: the console supports 3.0";
                return Err(ConsoleError::new("0A000", message).into());
            }
            Ok(StartupPacket::CancelRequest) | Err(_) => return Err(Refused::NoStartup),
        }
    }
    Err(Refused::NoStartup)
}

async fn prove(link: &mut MessageSocket, accounts: &Accounts, user: &str) -> Result<(), Refused> {
    let leg = Leg::Clear;
    let names = mechanisms(&leg).iter().map(ToString::to_string);
    let offer = Authentication::SASL(names.collect());
    let account = accounts.of(user.as_bytes()).await;
    let account = account.map_err(|error| ConsoleError::new("08006", error.to_string()))?;
    let answer = ask(link, &offer).await?;
    let offered = Offered::new(account, leg, nonce(&rand::random()));
    let refused = |why| refused(&why, user);
    let (challenged, challenge) = offered.challenge(&answer).map_err(refused)?;
    let proof = ask(link, &Authentication::SASLContinue(challenge.into())).await?;
    let last = challenged.prove(&proof).map_err(refused)?.last;
    encode::put(&mut link.out, &Authentication::SASLFinal(last.into()));
    Ok(())
}

fn refused(why: &LoginRefusal, user: &str) -> ConsoleError {
    let message = match why {
        LoginRefusal::Proof => format!("{why} for user \"{}\"", readable(user)),
        _ => why.to_string(),
    };
    ConsoleError::new(why.sqlstate(), message)
}

async fn ask(link: &mut MessageSocket, request: &Authentication) -> Result<BytesMut, Refused> {
    encode::put(&mut link.out, request);
    link.flush().await.map_err(MessageError::Io)?;
    match link.message().await? {
        Some(Message { tag: b'p', body }) => Ok(body),
        Some(_) => Err(ConsoleError::new("08P01", "expected SASL response").into()),
        None => Err(Refused::NoStartup),
    }
}
