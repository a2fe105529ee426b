//! Errors of takeovers, by who is at fault.

use std::fmt;
use std::sync::Arc;

use pgpalisade_authority::{
    AuthorityError, AuthorityId, Backend, Cluster, Mark, Rank, Scope, Token,
};
use pgpalisade_fence::readable::counted;

use super::Bound;
use super::control_error::ControlError;

/// Reason why takeovers cannot be served at all.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StartError {
    /// No connection to the cluster.
    #[error("the control connection to {at} failed: {error}")]
    Connect {
        /// The server.
        at: String,
        /// The error.
        error: ControlError,
    },
    /// The role lacks rights that a takeover needs.
    #[error("the control role {role:?} lacks {missing}; run as an administrator: {grant}")]
    Rights {
        /// Role of the control connection.
        role: String,
        /// The missing memberships.
        missing: String,
        /// Statement that grants them.
        grant: String,
    },
    /// The server takes no writes, so there is nothing to fence.
    #[error("the control connection leads to a standby; it must lead to the primary")]
    Standby,
    /// None of the named hosts takes writes.
    #[error("no host is known to be the primary: {seen}")]
    NoPrimary {
        /// State of each host.
        seen: String,
    },
    /// Proxies with another store are on this cluster: it would have two marks.
    #[error(
        "this proxy uses authority {ours}, but the cluster is already served with authority \
             {theirs:08x}... by {holder}; all proxies of a cluster must share one authority"
    )]
    OtherAuthority {
        /// Authority of this proxy.
        ours: AuthorityId,
        /// The first 32 bits of the other's identity.
        theirs: u32,
        /// Session that serves with it.
        holder: LockHolder,
    },
    /// Another proxy with this authority has its witness in another database.
    #[error(
        "the cluster is served by {holder}, whose control connection leads to another database: all proxies of a \
            cluster must name the same database in \"control\", because each keeps a copy of its marks there"
    )]
    OtherDatabase {
        /// Session that serves there.
        holder: LockHolder,
    },
    /// The store is for one proxy, or none is to serve, and another one serves with it.
    #[error(
        "the cluster is already served with authority {ours} by {holder}: stop that proxy. A store in a directory is \
            for one proxy, and \"pgpalisade recover\" runs only while none serves"
    )]
    Taken {
        /// Authority of this proxy.
        ours: AuthorityId,
        /// Session that serves with it.
        holder: LockHolder,
    },
    /// The authority's marks are for another cluster. Or a failover has deposed this one, or a copy of its storage
    /// was started later.
    #[error(
        "the control connection leads to cluster {ours}, but the authority's marks are for cluster {recorded}; {}",
        wrong_cluster_advice(ours, recorded)
    )]
    WrongCluster {
        /// Cluster of the control connection.
        ours: Cluster,
        /// Cluster on record.
        recorded: Cluster,
    },
    /// The cluster has seen higher marks than the authority knows.
    #[error(
        "the authority has forgotten marks: scope {scope} {} there, but {witnessed} was accepted before{}; \
         this is not the store that was used before, or that one was lost or restored from an older snapshot. In the \
         first case correct \"authority\"; in the second stop all proxies of this cluster and run \"pgpalisade \
         recover\" with the same configuration, which raises the marks again",
        kept.map_or("has no mark".to_owned(), |rank| format!("is at {rank}")),
        match others { 0 => String::new(), n => format!(" (and {})", counted(*n, "more scope")) }
    )]
    AuthorityWentBack {
        /// One of the scopes.
        scope: Scope,
        /// Its mark in the cluster's witness.
        witnessed: Rank,
        /// Its mark in the authority.
        kept: Option<Rank>,
        /// Number of other scopes with forgotten marks.
        others: usize,
    },
    /// The copy of the marks cannot be read or written.
    #[error(
        "the witness (pgpalisade.mark in the control connection's database) cannot be used: {0}"
    )]
    Witness(ControlError),
    /// A statement of the preparation failed.
    #[error("the control connection cannot be prepared: {0}")]
    Control(ControlError),
    /// The authority did not answer.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
}

impl StartError {
    /// Whether another attempt may succeed soon: PostgreSQL is starting, a failover is under way, or a killed proxy
    /// still has its server process.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            Self::OtherAuthority { .. }
            | Self::OtherDatabase { .. }
            | Self::Taken { .. }
            | Self::NoPrimary { .. }
            | Self::Standby => true,
            Self::Connect { error, .. } => error.may_pass(),
            _ => false,
        }
    }
}

/// No source: Display includes it.
impl From<ControlError> for StartError {
    fn from(error: ControlError) -> Self {
        Self::Control(error)
    }
}

impl From<tokio_postgres::Error> for StartError {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Control(error.into())
    }
}

impl From<DeclareError> for StartError {
    fn from(error: DeclareError) -> Self {
        match error {
            DeclareError::Authority(error) => Self::Authority(error),
            DeclareError::Control(error) => Self::Control(error),
            other => Self::Control(ControlError::Down(other.to_string().into())),
        }
    }
}

/// Advice if the control connection leads to another cluster than the one on record.
pub fn wrong_cluster_advice(ours: &Cluster, recorded: &Cluster) -> &'static str {
    if (ours.system_identifier, ours.timeline) == (recorded.system_identifier, recorded.timeline) {
        "a server with the same storage was started later. If that is a copy, and this server is the right one, stop \
            the copy and restart this server; if the clock was set back, stop all proxies and run \
         \"pgpalisade recover\""
    } else if ours.system_identifier == recorded.system_identifier {
        "this server was deposed by a failover: point upstream and control to the new primary. If this server is the \
            right one after all, stop all proxies and run \"pgpalisade recover\""
    } else {
        "every cluster needs an authority of its own. If this cluster replaces the old one (a major upgrade, a \
            restored dump), stop all proxies and run \"pgpalisade recover\""
    }
}

/// A session that holds the cluster's lock.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Deserialize)]
pub struct LockHolder {
    /// Its server process.
    pub pid: Option<i32>,
    /// Its application_name.
    pub application_name: Option<String>,
    /// Client address; `None` for a unix socket.
    pub client_addr: Option<String>,
    pub(crate) database: Option<String>,
}

impl fmt::Display for LockHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(pid) = self.pid else {
            return f.write_str("a session that is just ending");
        };
        let name = self.application_name.as_deref().unwrap_or_default();
        let addr = self.client_addr.as_deref().unwrap_or("a local socket");
        let database = self.database.as_deref().unwrap_or("?");
        write!(
            f,
            "server process {pid} ({name:?} from {addr}, database {database:?})"
        )
    }
}

/// The sessions that a takeover waits for, as subject and verb.
fn old_sessions(left: usize) -> String {
    let verb = if left == 1 { "remains" } else { "remain" };
    format!("{} {verb}", counted(left, "old session"))
}

/// Reason why a declaration was not accepted. The session must not write with its token.
#[derive(Debug, Clone, thiserror::Error)]
pub enum DeclareError {
    /// A higher token was accepted before.
    #[error("the token is stale: the mark is {}, raised by {}", mark.token, mark.raised_by)]
    Stale {
        /// The mark above it.
        mark: Mark,
    },
    /// The mark is below the one that a take names. Nothing was registered, and no mark was raised.
    #[error("the mark is below the one to be followed")]
    MarkIsLower {
        /// The mark, if there is one.
        mark: Option<Mark>,
    },
    /// The policy does not allow the token. Nothing was registered, and no mark was raised.
    #[error("the token is out of bounds: {bound}")]
    OutOfBounds {
        /// The mark of the scope, if there is one and it is known.
        mark: Option<Mark>,
        /// The bound that was exceeded.
        bound: Bound,
    },
    /// The lease was not free within the waiting time. Nothing was registered, and no mark was raised.
    #[error("the lease of the scope could not be obtained")]
    LeaseHeld {
        /// The authority's last error, if it did not answer.
        unanswered: Option<String>,
    },
    /// The token is not the number of the election's leader. Nothing was registered, and no mark was raised.
    #[error("the token is not the number of the leader of election {election:?}")]
    NotElected {
        /// The election.
        election: Arc<str>,
        /// The leader's number, if there is a leader.
        leader: Option<Token>,
        /// The mark, if there is one.
        mark: Option<Mark>,
    },
    /// The token is the number of an election, which cannot be taken. Nothing has changed.
    #[error("the token is the number of election {election:?}, and cannot be taken")]
    NotTaken {
        /// The election.
        election: Arc<str>,
    },
    /// The authority did not answer.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// The token is stored, but old sessions could not be confirmed gone in time. Declaring it again continues the
    /// takeover.
    #[error("the takeover of scope {scope} with token {token} is not complete, {}: {why}", old_sessions(left.len()))]
    Incomplete {
        /// The scope.
        scope: Scope,
        /// The declared token.
        token: Token,
        /// Old sessions that were not seen to be gone.
        left: Vec<Backend>,
        /// Description of what stood in the way.
        why: String,
    },
    /// The session is on another cluster, timeline or start of the server than the one on record.
    #[error(
        "the session is on cluster {ours}, but the authority's marks are for cluster {recorded}"
    )]
    WrongCluster {
        /// Cluster of the session.
        ours: Cluster,
        /// Cluster on record.
        recorded: Cluster,
    },
    /// Prepared transactions of earlier tokens are left.
    #[error("prepared transactions older than the mark of scope {scope} remain: {}; {why}", left.join(", "))]
    Prepared {
        /// The scope.
        scope: Scope,
        /// Each with its owner and database.
        left: Vec<String>,
        /// Reason why they are left.
        why: String,
    },
    /// The mark could not be copied into the cluster.
    #[error("the mark of scope {scope} could not be written to the cluster's witness: {why}")]
    Witness {
        /// The scope.
        scope: Scope,
        /// Error of the control connection.
        why: ControlError,
    },
    /// The server session cannot be identified, so no takeover could end it.
    #[error("server process {pid} cannot be identified: {why}")]
    Backend {
        /// Process id that the server reported at login.
        pid: i32,
        /// The problem.
        why: &'static str,
    },
    /// The control connection gave no answer.
    #[error(transparent)]
    Control(#[from] ControlError),
}
