//! The right of one connection to reach PostgreSQL without a look at what it sends.

use pgpalisade_policies::{Category, Mode};

use super::{SessionFence, TokenValue};
use crate::rejection::Rejection;

/// Says that a connection is exempt as a whole: nothing that it sends needs a [`Permit`](super::Permit). Only this
/// module makes them, for replication connections that the policy allows, and only
/// `PassthroughUpstream::new` takes them.
#[must_use = "a passage is to be spent on the connection that it was made for"]
#[derive(Debug)]
pub struct ReplicationPermit(());

impl SessionFence {
    /// Decides a replication connection, with the tokens that its startup packet has brought. Where it would be
    /// refused were that not only observed, the first rejection comes with the passage.
    ///
    /// # Errors
    ///
    /// Why it is refused.
    pub fn admit_replication(
        &self,
        declared: Option<&TokenValue>,
    ) -> Result<(ReplicationPermit, Option<Box<Rejection>>), Box<Rejection>> {
        let allowed = self.rules().allows(Category::Replication);
        let rejection = match (allowed, declared) {
            (Ok(()), None) => return Ok((ReplicationPermit(()), None)),
            // Whoever declares a token is promised that a takeover ends the session. This one it would not end.
            (Ok(()), Some(_)) => Rejection::token_for_replication(),
            (Err(reason), _) => Rejection::replication(&reason),
        };
        match self.mode_of(&rejection) {
            Mode::Observe if !self.is_anything_enforced() => {
                Ok((ReplicationPermit(()), Some(Box::new(rejection))))
            }
            Mode::Observe | Mode::Enforce => Err(Box::new(rejection)),
        }
    }

    /// Whether any scope is enforced for the session. Such a connection can write to every table, so a refusal of it
    /// that is only observed must not open that scope.
    fn is_anything_enforced(&self) -> bool {
        let mut scopes = self.scopes();
        scopes.any(|scope| self.mode(Some(scope)) == Mode::Enforce)
    }
}
