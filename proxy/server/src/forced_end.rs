//! Ends of client connections that neither side has asked for: their causes, and how a connection's task learns of
//! them.

use std::sync::OnceLock;

use tokio::sync::Notify;

/// Reason for the end of a term of leadership.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loss {
    /// The lease could not be renewed, or is gone.
    Lease,
    /// The election says that this replica no longer leads.
    Election,
    /// The election could not be read, or its holder has not renewed it, for so long that another may lead.
    Unread,
    /// A session has declared a higher token, or the scope was repaired.
    Mark,
    /// The proxy has reached no primary for a while.
    Primary,
    /// The proxy stops, or another process takes over.
    Stop,
}

impl Loss {
    pub(crate) const fn why(self) -> &'static str {
        match self {
            Self::Lease => "The lease could not be renewed in time.",
            Self::Election => "The election that the proxy follows has ended this lead.",
            Self::Unread => {
                "The election that the proxy follows could not be read, or was not renewed, in time."
            }
            Self::Mark => "The mark of the scope has risen above the token.",
            Self::Primary => "The proxy has found no primary for 15 s.",
            Self::Stop => "The proxy stops, or a new process takes over from it.",
        }
    }
}

/// Reason to end a connection, other than one of its sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Cause {
    #[error("an operator ended it with KILL")]
    Killed,
    /// The lease may soon be another session's.
    #[error("its lease could not be renewed in time")]
    LeaseLost,
    /// This proxy no longer leads with the token that it gave the connection.
    #[error("this proxy no longer leads, and the token of its listener has ended")]
    TermEnded(Loss),
    /// This proxy leads now, and the connection has no token.
    #[error("this proxy leads now, and a new connection gets the token")]
    LeadGained,
    /// Its transaction has outlasted the time that a stop leaves it.
    #[error("pgpalisade is shutting down")]
    ShuttingDown,
}

impl Cause {
    /// The message for the client.
    pub(crate) fn message(self) -> String {
        match self {
            Self::TermEnded(_) => format!("terminating connection: {self}"),
            _ => format!("terminating connection because {self}"),
        }
    }

    /// SQLSTATE, detail and hint of the message.
    pub(crate) const fn advice(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::TermEnded(loss) => (
                "PF001",
                loss.why(),
                "Drop all that was decided under this token. A new connection gets a new token once this proxy leads \
                 again.",
            ),
            Self::Killed | Self::LeaseLost | Self::LeadGained | Self::ShuttingDown => {
                ("57P01", "", "Connect again.")
            }
        }
    }
}

/// The order to a connection's task to end it.
#[derive(Debug, Default)]
pub(crate) struct ForcedEnd {
    cause: OnceLock<Cause>,
    comes: Notify,
}

impl ForcedEnd {
    /// Ends the connection. The first cause counts.
    pub(crate) fn order(&self, cause: Cause) {
        let _is_to_end_already = self.cause.set(cause);
        self.comes.notify_one();
    }

    #[inline]
    pub(crate) fn cause(&self) -> Option<Cause> {
        self.cause.get().copied()
    }

    /// Waits until the connection must end. One task waits at a time.
    pub(crate) async fn ordered(&self) -> Cause {
        loop {
            match self.cause() {
                Some(cause) => return cause,
                None => self.comes.notified().await,
            }
        }
    }
}
