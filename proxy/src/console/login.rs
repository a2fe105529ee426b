//! Who is let in: whoever runs the proxy and root by the credentials of their unix socket, and the users of the file by
//! SCRAM.

use std::sync::Arc;

use bytes::BytesMut;
use pgpalisade_logins::kind;
use pgpalisade_logins::scram::server::{LoginRefusal, Offered, mechanisms};
use pgpalisade_logins::scram::{Leg, nonce};

use super::{DATABASE, Failure};
use crate::fence::readable::readable;
use crate::server::accounts::Accounts;
use crate::server::message_socket::{Message, MessageError, MessageSocket};
use crate::wire::backend::TransactionStatus;
use crate::wire::encode;
use crate::wire::startup::{self, StartupMessage, StartupPacket};

/// Encryption requests in front of a startup packet: each of both kinds once.
const REQUESTS: usize = 2;

/// What a client is told of how it is spoken to. The version makes clients ask for nothing that is newer.
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

/// What an operator may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rights {
    Read,
    Admin,
}

/// Who has logged in.
#[derive(Debug, Clone)]
pub(super) struct Operator {
    /// Fit to be read by others.
    pub(super) user: String,
    pub(super) rights: Rights,
}

/// Whom the console lets in.
#[derive(Debug, Clone, Default)]
pub(crate) struct Users {
    /// Users with verifiers, where there are any.
    pub(crate) accounts: Option<Arc<Accounts>>,
    /// Those who may do more than read.
    pub(crate) admins: Vec<String>,
}

/// Why somebody is not let in.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refused {
    /// It has left, or sent what is no startup packet: PostgreSQL says nothing to it either.
    #[error("no startup packet was received")]
    NoStartup,
    #[error(transparent)]
    Link(#[from] MessageError),
    #[error("{}", .0.message)]
    Told(Failure),
}

impl From<Failure> for Refused {
    fn from(failure: Failure) -> Self {
        Self::Told(failure)
    }
}

/// What the startup packet asks for.
struct Request {
    user: String,
    database: String,
}

impl Users {
    /// Finds out who a client is, or says why it may not come in.
    pub(super) async fn identify(&self, link: &mut MessageSocket) -> Result<Operator, Refused> {
        let request = startup(link).await?;
        let operator = Operator {
            user: readable(&request.user),
            rights: self.rights(link, &request).await?,
        };
        if request.database != DATABASE {
            return Err(Refused::Told(Failure::new(
                "3D000",
                "this is the console of pgpalisade, which has one database only",
                "Connect to the database pgpalisade.",
            )));
        }
        Ok(operator)
    }

    async fn rights(&self, link: &mut MessageSocket, request: &Request) -> Result<Rights, Refused> {
        let ours = rustix::process::geteuid().as_raw();
        if link.peer_uid().is_some_and(|uid| uid == ours || uid == 0) {
            return Ok(Rights::Admin);
        }
        let Some(accounts) = &self.accounts else {
            return Err(Refused::Told(Failure::new(
                "28000",
                "only the user that runs pgpalisade and root can log in here",
                "With console_auth_file, other users can log in with a password.",
            )));
        };
        prove(link, accounts, &request.user).await?;
        Ok(match self.admins.contains(&request.user) {
            true => Rights::Admin,
            false => Rights::Read,
        })
    }
}

/// Tells a client that it is in.
pub(super) async fn welcome(link: &mut MessageSocket) -> Result<(), MessageError> {
    let out = &mut link.out;
    encode::authentication(out, kind::OK, b"");
    for (name, value) in PARAMETERS {
        encode::parameter_status(out, name, value);
    }
    // No statement of the console is worth a cancel request, but clients expect a key.
    encode::backend_key_data(out, std::process::id(), rand::random());
    encode::ready_for_query(out, TransactionStatus::Idle);
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
                negotiate(message, &mut link.out);
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
                return Err(Refused::Told(Failure::new("0A000", message, "")));
            }
            Ok(StartupPacket::CancelRequest) | Err(_) => return Err(Refused::NoStartup),
        }
    }
    Err(Refused::NoStartup)
}

/// A client that asks for more than protocol 3.0 is told what there is.
fn negotiate(message: StartupMessage<'_>, out: &mut BytesMut) {
    let names = message.pairs().map(|(name, _)| name);
    let options: Vec<&[u8]> = names.filter(|name| name.starts_with(b"_pq_.")).collect();
    let is_newer = message
        .packet()
        .get(6..8)
        .is_some_and(|minor| minor != [0, 0]);
    if is_newer || !options.is_empty() {
        encode::negotiate_protocol_version(out, &options);
    }
}

/// Has a client prove that it knows the password.
async fn prove(link: &mut MessageSocket, accounts: &Accounts, user: &str) -> Result<(), Refused> {
    let leg = Leg::Clear;
    let names = mechanisms(&leg).iter().flat_map(|name| [name, "\0"]);
    let names: String = names.chain(["\0"]).collect();
    let account = accounts.of(user.as_bytes()).await;
    let account = account.map_err(|error| Failure::new("08006", error.to_string(), ""))?;
    let answer = ask(link, kind::SASL, names.as_bytes()).await?;
    let offered = Offered::new(account, leg, nonce(&rand::random()));
    let (challenged, challenge) = offered
        .challenge(&answer)
        .map_err(|why| refused(&why, user))?;
    let proof = ask(link, kind::SASL_CONTINUE, challenge.as_bytes()).await?;
    let proven = challenged
        .prove(&proof)
        .map_err(|why| refused(&why, user))?;
    encode::authentication(&mut link.out, kind::SASL_FINAL, proven.last.as_bytes());
    Ok(())
}

fn refused(why: &LoginRefusal, user: &str) -> Failure {
    let message = match why {
        LoginRefusal::Proof => format!("{why} for user \"{}\"", readable(user)),
        _ => why.to_string(),
    };
    Failure::new(why.sqlstate(), message, "")
}

async fn ask(link: &mut MessageSocket, kind: i32, data: &[u8]) -> Result<BytesMut, Refused> {
    encode::authentication(&mut link.out, kind, data);
    link.flush().await.map_err(MessageError::Io)?;
    match link.message().await? {
        Some(Message { tag: b'p', body }) => Ok(body),
        Some(_) => Err(Refused::Told(Failure::new(
            "08P01",
            "expected SASL response",
            "",
        ))),
        None => Err(Refused::NoStartup),
    }
}
