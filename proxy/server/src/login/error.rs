//! Why there is no session.

use std::io;
use std::sync::Arc;

use pgpalisade_logins::scram::server::Refusal;
use pgpalisade_logins::{PasswordError, ServerLoginError};

use super::encryption::Unmet;
use crate::accounts::LookupError;
use crate::rejection::Rejection;
use crate::wire::WireError;
use crate::wire::startup::Version;

/// Why there is no session.
#[derive(Debug, thiserror::Error)]
pub(super) enum LoginError {
    /// The client closed before it was one: a health check, say.
    #[error("the client left before the login was complete")]
    ClientLeft,
    /// Nothing more is to be done: the server has refused and said why.
    #[error("the connection was answered")]
    Answered,
    /// What came is no startup packet, or none came in time: PostgreSQL closes without a word.
    #[error("no startup packet was received: {0}")]
    NoStartup(Silence),
    /// The client did not answer PostgreSQL in time.
    #[error("canceling authentication due to timeout")]
    Unanswered,
    /// An operator has ended it.
    #[error("terminating connection because an operator ended it with KILL")]
    Killed,
    /// As many sessions as there may be.
    #[error("sorry, too many clients already")]
    Full,
    /// The client broke the protocol.
    #[error("{0}")]
    Protocol(#[from] WireError),
    /// A startup packet whose parameters do not end where it does. PostgreSQL's own words.
    #[error("invalid startup packet layout: expected terminator as last byte")]
    Layout,
    /// A protocol that PostgreSQL does not speak, or an encryption request where none is expected any more.
    #[error("unsupported frontend protocol {0}: server supports 3.0 to 3.0")]
    NoProtocol(Version),
    /// There is no TLS with the client. As by PostgreSQL, it is told nothing but what TLS itself says.
    #[error("could not accept SSL connection: {0}")]
    Handshake(io::Error),
    /// The session is not encrypted, or has no certificate of the client.
    #[error("{}", .0.message())]
    Insecure(Insecure),
    /// SCRAM is bound to a certificate that PostgreSQL does not know.
    #[error("a login with SCRAM and channel binding cannot be relayed")]
    ChannelBinding,
    /// The client has broken the rules of SCRAM, or its channel binding is to something else.
    #[error("{0}")]
    Scram(Refusal),
    /// The client does not know the password, or there is none. The user does not show which.
    #[error("{0}")]
    Unproved(Unproved),
    /// The client has sent something else than an answer.
    #[error("expected {0}, got message type {1}")]
    OutOfTurn(&'static str, u8),
    /// A password would be readable on its way from the client.
    #[error("pgpalisade asks for the password over TLS only")]
    ReadablePassword,
    /// Nobody knows who the client has to be.
    #[error("pgpalisade cannot look up how clients log in")]
    Lookup(LookupError),
    /// The client is who it says to be, and there is no login at PostgreSQL for it.
    #[error("pgpalisade cannot log in to PostgreSQL as user \"{0}\"")]
    AtServer(String, ServerLoginError),
    /// Bytes followed an encryption request: a person in the middle could have put them there.
    #[error("received unencrypted data after {0} request")]
    EarlyData(&'static str),
    /// Refused by the fence.
    #[error("{}", .0.message)]
    Refused(Box<Rejection>),
    /// None of the hosts is known to be the primary.
    #[error("no primary of the cluster is known")]
    NoPrimary(Arc<str>),
    /// PostgreSQL cannot be reached.
    #[error("cannot connect to PostgreSQL at {0}")]
    Unreachable(String),
    /// There is no TLS with PostgreSQL.
    #[error("cannot connect to PostgreSQL at {0} with TLS")]
    NoTlsToServer(String),
    /// A socket failed.
    #[error("the connection failed: {0}")]
    Io(#[from] io::Error),
}

impl LoginError {
    /// A client's socket may fail because it has left.
    pub(super) fn of_client(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Self::ClientLeft,
            _ => Self::Io(error),
        }
    }

    /// Whether PostgreSQL would say the same, in the same words.
    pub(super) const fn is_in_postgres_words(&self) -> bool {
        match self {
            Self::Insecure(Insecure { lacks, .. }) => matches!(lacks, Unmet::Certificate),
            Self::Refused(_)
            | Self::ChannelBinding
            | Self::ReadablePassword
            | Self::Lookup(_)
            | Self::AtServer(..)
            | Self::NoPrimary(_)
            | Self::Killed
            | Self::Unreachable(_)
            | Self::NoTlsToServer(_) => false,
            Self::ClientLeft
            | Self::Answered
            | Self::NoStartup(_)
            | Self::Unanswered
            | Self::Full
            | Self::Protocol(_)
            | Self::Layout
            | Self::NoProtocol(_)
            | Self::Handshake(_)
            | Self::Scram(_)
            | Self::Unproved(_)
            | Self::OutOfTurn(..)
            | Self::EarlyData(_)
            | Self::Io(_) => true,
        }
    }
}

/// A session that may not begin on its connection.
#[derive(Debug)]
pub(super) struct Insecure {
    pub(super) lacks: Unmet,
    /// Host, user and database, as PostgreSQL names them.
    pub(super) who: String,
}

impl Insecure {
    fn message(&self) -> String {
        match self.lacks {
            Unmet::Encryption => {
                format!("pgpalisade accepts TLS only: {}, no encryption", self.who)
            }
            // PostgreSQL's own words.
            Unmet::Certificate => String::from("connection requires a valid client certificate"),
        }
    }
}

/// A password that was not proved, in PostgreSQL's words.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unproved {
    /// Another one, or one of nobody.
    #[error("password authentication failed for user \"{0}\"")]
    Wrong(String),
    /// None at all.
    #[error(transparent)]
    Form(PasswordError),
}

impl Unproved {
    pub(super) const fn sqlstate(&self) -> &'static str {
        match self {
            Self::Wrong(_) | Self::Form(PasswordError::Empty) => "28P01",
            Self::Form(PasswordError::Size) => "08P01",
        }
    }
}

/// What came instead of a startup packet.
#[derive(Debug, thiserror::Error)]
pub(super) enum Silence {
    #[error(transparent)]
    Nonsense(WireError),
    #[error("none in time, or too many other packets")]
    Nothing,
    /// From a network whose clients are said to come through a load balancer.
    #[error(
        "no valid PROXY protocol header, which proxy_protocol expects from this address: let the load balancer send \
         one, or remove its network from proxy_protocol"
    )]
    NoProxyHeader,
    /// From elsewhere, or after another one.
    #[error(
        "a PROXY protocol header, which proxy_protocol does not expect from this address: add the load balancer's \
         network to proxy_protocol, or let it send no header, or only one"
    )]
    StrayProxyHeader,
}
