//! The decision: may this message reach PostgreSQL? Pure, and the only maker of [`Permit`].

mod holding;
mod permit;
mod plan;
pub mod scope_cell;
mod token_value;

pub use holding::{Binding, Holding, Standing};
pub use permit::{Basis, Permit};
pub use plan::{Plan, Situation, Wrote};
pub use token_value::{SCOPES_MAX, TokenValue, TokenValueError};

use std::sync::Arc;

use pgpalisade_authority::Scope;
use pgpalisade_policies::{Policy, SessionPolicy, Who};

use crate::rejection::Rejection;
use crate::wire::frontend::FrontendTag;
use scope_cell::{ScopeCell, ScopeCells};

/// Everything that a decision rests on besides the session.
#[derive(Debug)]
pub struct Fence {
    policy: SessionPolicy,
    cells: Arc<ScopeCells>,
    default_scope: Scope,
    default_cell: Arc<ScopeCell>,
}

impl Fence {
    /// A fence for one policy, with the marks that this proxy knows.
    #[must_use]
    pub fn new(policy: Policy, cells: Arc<ScopeCells>, default_scope: Scope) -> Self {
        let default_cell = cells.cell(&default_scope);
        let who = Who {
            user: "",
            database: "",
            application_name: None,
            client: None,
        };
        Self {
            policy: Arc::new(policy).for_session(&who),
            cells,
            default_scope,
            default_cell,
        }
    }

    /// The scope of a session that names none.
    #[must_use]
    pub const fn default_scope(&self) -> &Scope {
        &self.default_scope
    }

    /// What this proxy knows of a scope's mark.
    #[must_use]
    pub fn cell(&self, scope: &Scope) -> Arc<ScopeCell> {
        self.cells.cell(scope)
    }

    /// A permit for whatever a session with these tokens sends: it holds the current token of the
    /// scope that writes need. `None` says nothing; ask [`Fence::plan`].
    #[inline]
    #[must_use]
    pub fn admit_any(&self, holding: Option<&Arc<Holding>>) -> Option<Permit> {
        holding
            .is_some_and(|holding| holding.admits_write(self.default_cell.newest()))
            .then(|| Permit::new(Basis::Token))
    }

    /// A permit for a message that can change no data by its type alone.
    #[inline]
    #[must_use]
    pub const fn admit_harmless(&self, tag: FrontendTag) -> Option<Permit> {
        match tag {
            FrontendTag::Parse
            | FrontendTag::Bind
            | FrontendTag::Describe
            | FrontendTag::Close
            | FrontendTag::Flush
            | FrontendTag::Sync
            | FrontendTag::CopyFail
            | FrontendTag::Terminate => Some(Permit::new(Basis::NotRequired)),
            FrontendTag::Query
            | FrontendTag::Execute
            | FrontendTag::FunctionCall
            | FrontendTag::CopyData
            | FrontendTag::CopyDone
            | FrontendTag::Password => None,
        }
    }

    /// A permit for data, or the end of data, of a COPY.
    ///
    /// # Errors
    ///
    /// The rejection where the token has become stale since the COPY began.
    pub fn admit_copy_data(
        &self,
        holding: Option<&Arc<Holding>>,
    ) -> Result<Permit, Box<Rejection>> {
        self.check_write(holding, None)
            .map(|()| Permit::new(Basis::Token))
    }

    /// A permit for data that the server will throw away, since no COPY is going on.
    pub const fn admit_ignored_data(&self) -> Permit {
        Permit::new(Basis::NotRequired)
    }
}
