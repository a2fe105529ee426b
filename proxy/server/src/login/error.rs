//! Reasons why there is no session.

use std::io;

use pgpalisade_authority::Scope;
use pgpalisade_fence::rejection::Rejection;
use pgpalisade_logins::scram::client::ServerFault;
use pgpalisade_logins::scram::server::LoginRefusal;
use pgpalisade_logins::{PasswordError, ServerLoginError};
use pgpalisade_wire::WireError;
use pgpalisade_wire::startup::Version;

use crate::accounts::LookupError;
use crate::backends::OpenError;
use crate::forced_end::Cause;

#[derive(Debug, thiserror::Error)]
pub(super) enum LoginError {
    #[error("the client left before the login was complete")]
    ClientLeft,
    /// The server's refusal was passed on.
    #[error("the connection was answered")]
    Answered,
    #[error("no startup packet was received: {0}")]
    NoStartup(Silence),
    #[error("canceling authentication due to timeout")]
    Unanswered,
    #[error("{}", .0.message())]
    Ended(Cause),
    /// Its listener admits nobody without a token.
    #[error("this proxy does not lead scope \"{0}\"")]
    NotLeading(Scope),
    #[error("sorry, too many clients already")]
    Full,
    #[error("too many clients have server connections of their own")]
    NoOwnPlace,
    #[error("{0}")]
    Protocol(#[from] WireError),
    /// PostgreSQL's words for a startup packet of another length than its parameters.
    #[error("invalid startup packet layout: expected terminator as last byte")]
    Layout,
    /// Neither the proxy nor PostgreSQL speaks the protocol, or an encryption request came too late.
    #[error("unsupported frontend protocol {0}: server supports 3.0 to 3.2")]
    NoProtocol(Version),
    /// The TLS handshake with the client failed. As with PostgreSQL, only TLS tells the client why.
    #[error("could not accept SSL connection: {0}")]
    Handshake(io::Error),
    /// The client has begun without TLS. Host, user and database, as PostgreSQL names them.
    #[error("pgpalisade accepts TLS only: {0}, no encryption")]
    Unencrypted(String),
    #[error("connection requires a valid client certificate")]
    NoCertificate,
    /// SCRAM is bound to a certificate that PostgreSQL does not know.
    #[error("a login with SCRAM and channel binding cannot be relayed")]
    ChannelBinding,
    #[error("{0}")]
    Scram(LoginRefusal),
    /// A wrong password, or no such user or verifier. The client is not told which.
    #[error("password authentication failed for user \"{0}\"")]
    WrongPassword(String),
    #[error("{0}")]
    Password(PasswordError),
    #[error("expected {0}, got message type {1}")]
    OutOfTurn(&'static str, u8),
    #[error("pgpalisade asks for the password over TLS only")]
    ReadablePassword,
    #[error("pgpalisade cannot look up how clients log in")]
    Lookup(LookupError),
    /// Bytes followed an encryption request: they may be injected.
    #[error("received unencrypted data after {0} request")]
    EarlyData(&'static str),
    #[error("{}", .0.message)]
    Refused(Box<Rejection>),
    #[error("{0}")]
    Server(OpenError),
    #[error("the connection failed: {0}")]
    Io(#[from] io::Error),
}

impl From<OpenError> for LoginError {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Deposed(rejection) => Self::Refused(rejection),
            // Hides that the verifier is out of date, or the login expired. PostgreSQL itself shows a mock verifier
            // for expired logins.
            OpenError::NotLetIn(user, ServerLoginError::Scram(ServerFault::OtherVerifier)) => {
                Self::WrongPassword(user)
            }
            OpenError::Protocol(error) => Self::Protocol(error),
            error => Self::Server(error),
        }
    }
}

impl LoginError {
    /// A client's socket may fail because it has left.
    pub(super) fn of_client(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Self::ClientLeft,
            _ => Self::Io(error),
        }
    }

    /// Whether PostgreSQL would say the same words.
    pub(super) const fn is_in_postgres_words(&self) -> bool {
        !matches!(
            self,
            Self::Unencrypted(_)
                | Self::Refused(_)
                | Self::ChannelBinding
                | Self::ReadablePassword
                | Self::Lookup(_)
                | Self::Server(_)
                | Self::NotLeading(_)
                | Self::Ended(_)
        )
    }
}

#[derive(Debug, thiserror::Error)]
pub(super) enum Silence {
    #[error(transparent)]
    Nonsense(WireError),
    #[error("none in time, or too many other packets")]
    Nothing,
    /// The client's network is said to be a load balancer's.
    #[error(
        "no valid PROXY protocol header, which proxy_protocol expects from this address: let the load balancer send \
         one, or remove its network from proxy_protocol"
    )]
    NoProxyHeader,
    /// A header from another network, or after a first header.
    #[error(
        "a PROXY protocol header, which proxy_protocol does not expect from this address: add the load balancer's \
         network to proxy_protocol, or let it send no header, or only one"
    )]
    StrayProxyHeader,
}
