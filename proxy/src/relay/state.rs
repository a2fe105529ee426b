//! What a connection is made of: how it begins, how it ends, and what it waits for in between.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;

use bytes::BytesMut;
use pgpalisade_policies::Verdict;
use tokio::time::Instant;

use super::declaration::{Declared, Wanted};
use crate::fence::{Holding, SessionFence};
use crate::rejection::Rejection;
use crate::rejection_log::SessionLabel;
use crate::session::access::AccessMode;
use crate::session::settings::Settings;
use crate::session::text_settings::TextSettings;
use crate::takeover::Identified;
use crate::transport::{Socket, Unsent};
use crate::upstream::Upstream;

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum End {
    /// The client said goodbye, or closed its socket.
    #[error("the client left")]
    ClientLeft,
    /// The server closed its socket.
    #[error("the server closed the connection")]
    ServerClosed,
    /// The proxy has told the client why it ends the session.
    #[error("the session was ended: {0}")]
    Ended(&'static str),
    /// The client's socket failed.
    #[error("the client's connection failed: {0}")]
    ClientSocket(io::Error),
    /// The client has taken no byte for too long.
    #[error("the client does not read")]
    ClientStalled,
    /// The server's socket failed.
    #[error("the server's connection failed: {0}")]
    ServerSocket(io::Error),
}

impl From<Unsent> for End {
    fn from(unsent: Unsent) -> Self {
        match unsent {
            Unsent::Socket(error) => Self::ClientSocket(error),
            Unsent::Stalled => Self::ClientStalled,
        }
    }
}

/// The search for the session's server process.
pub(super) type Identifying = Pin<Box<dyn Future<Output = Result<Identified, Box<Rejection>>>>>;

/// A declaration on its way.
pub(super) type Declaring = Pin<Box<dyn Future<Output = Declared>>>;

/// A text that is classified on another thread.
pub(super) type Classifying = Pin<Box<dyn Future<Output = Arc<Verdict>>>>;

/// What is known of the session's server process.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Process {
    /// Its process id, as told at login.
    Unknown,
    /// A server process was found under that id. It may be another one that got the id after ours had ended, so a
    /// request is sent behind the search: once it is answered, ours was there at the time.
    /// Until when the declaration that it was found for has to be answered.
    Found(Identified, Instant),
    /// It is this one, and the session may be registered.
    Known(Identified),
}

/// Whether the client's messages are looked at, and if not, what they wait for.
pub(super) enum Gate {
    Open,
    /// Everything that was sent must be answered first.
    Replies,
    /// The server process must be found first.
    Identification(Wanted, Instant, Identifying),
    /// The tokens must be accepted first.
    Declaration(Wanted, Identified, Declaring),
    /// The message's text is being classified.
    Classification(Classifying),
    /// The open transaction must be made read-write first.
    Lift,
    /// Nothing is read any more; what waits for the client is sent, and then the connection ends.
    Closing(&'static str),
}

/// What is known of the message at the front of the client's bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Front {
    Unknown,
    /// It binds a token that was accepted: the session is made ready to write for it.
    Binds,
}

/// Whether something was committed since the last ReadyForQuery: a COMMIT in the middle of a pipeline
/// or text. What follows may fail, but not all of the request is undone then.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum CommittedMidway {
    No,
    Yes,
}

/// What a session brings from its login.
pub(crate) struct LoggedIn {
    /// The client's socket.
    pub client: Socket,
    /// Bytes that the client has sent already.
    pub client_carry: BytesMut,
    /// The server.
    pub upstream: Upstream,
    /// Bytes that the server has sent already, to be looked at.
    pub server_carry: BytesMut,
    /// Who it is.
    pub label: SessionLabel,
    /// Its server process id, as told at login.
    pub backend_pid: i32,
    /// The token of the startup packet, accepted, and the scope.
    pub settings: Settings<Arc<Holding>>,
    /// The server process, where it was registered.
    pub identified: Option<Identified>,
    /// What its transactions may do.
    pub access: AccessMode,
    /// How the server reads its texts.
    pub text_settings: TextSettings,
    /// What of the policy holds for it.
    pub fence: SessionFence,
}
