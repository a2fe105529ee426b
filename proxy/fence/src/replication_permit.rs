//! The right of one connection to reach PostgreSQL without a check of what it sends.

use pgpalisade_policies::{Category, Mode};

use super::{SessionFence, TokenValue};
use crate::rejection::Rejection;

/// Proof that a connection is exempt as a whole: nothing that it sends needs a [`Permit`](super::Permit). Only this
/// module makes them, for replication connections that the policy allows. Only `Upstream::forward_exempt` asks for
/// them.
#[must_use = "a permit is to be spent on the connection that it was made for"]
#[derive(Debug)]
pub struct ReplicationPermit(());

impl SessionFence {
    /// Decides a replication connection with the tokens in its startup packet. The permit comes with the first
    /// rejection that was only observed.
    ///
    /// # Errors
    ///
    /// The rejection, if it is refused.
    pub fn admit_replication(
        &self,
        declared: Option<&TokenValue>,
    ) -> Result<(ReplicationPermit, Option<Box<Rejection>>), Box<Rejection>> {
        let allowed = self.rules().allows(Category::Replication);
        let rejection = match (allowed, declared) {
            (Ok(()), None) => return Ok((ReplicationPermit(()), None)),
            // With a token comes the promise that a takeover ends the session, which it cannot here.
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

    /// Whether any scope is enforced for the session. A replication connection can write to every table, so a refusal
    /// that is only observed must not open such a scope.
    fn is_anything_enforced(&self) -> bool {
        let mut scopes = self.scopes();
        scopes.any(|scope| self.mode(Some(scope)) == Mode::Enforce)
    }
}
