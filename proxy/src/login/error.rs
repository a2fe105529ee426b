//! Why there is no session.

use std::io;

use super::encryption::Unmet;
use crate::rejection::Rejection;
use crate::wire::WireError;

/// Why there is no session.
#[derive(Debug, thiserror::Error)]
pub(super) enum LoginError {
    /// The client closed before it was one: a health check, say.
    #[error("the client left before the login was complete")]
    ClientLeft,
    /// Nothing more is to be done: a cancel request was forwarded, or the server refused and said why.
    #[error("the connection was answered")]
    Answered,
    /// What came is no startup packet, or none came in time: PostgreSQL closes without a word.
    #[error("no startup packet came: {0}")]
    NoStartup(Silence),
    /// The client did not answer PostgreSQL in time.
    #[error("canceling authentication due to timeout")]
    Unanswered,
    /// As many sessions as there may be.
    #[error("sorry, too many clients already")]
    Full,
    /// The client broke the protocol.
    #[error("{0}")]
    Protocol(#[from] WireError),
    /// An encryption request where none is expected any more: to PostgreSQL it is a protocol that it does not speak.
    #[error("unsupported frontend protocol {0}: server supports 3.0 to 3.0")]
    NoProtocol(&'static str),
    /// There is no TLS with the client. As by PostgreSQL, it is told nothing but what TLS itself says.
    #[error("could not accept SSL connection: {0}")]
    Handshake(io::Error),
    /// The session is not encrypted, or has no certificate of the client.
    #[error("{}", .0.message())]
    Insecure(Insecure),
    /// SCRAM is bound to a certificate that PostgreSQL does not know.
    #[error("a login with SCRAM and channel binding cannot be relayed")]
    ChannelBinding,
    /// Bytes followed an encryption request: a person in the middle could have put them there.
    #[error("received unencrypted data after {0} request")]
    EarlyData(&'static str),
    /// Refused by the fence.
    #[error("{}", .0.message)]
    Refused(Box<Rejection>),
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

/// What came instead of a startup packet.
#[derive(Debug, thiserror::Error)]
pub(super) enum Silence {
    #[error(transparent)]
    Nonsense(WireError),
    #[error("none in time, or too many others came")]
    Nothing,
}
