//! Scopes that follow elections. As soon as another leader is decided, the mark rises to its number, and the sessions
//! of the previous leader are ended. The new leader need not connect for that.
//!
//! News of an election only triggers a declaration like any other, which names the election. The step that raises the
//! mark checks that the number is still the leader's. So late or repeated news raises no outdated mark, and ends no
//! session twice.

use std::sync::Arc;
use std::time::Duration;

use pgpalisade_authority::{Claim, Declaration, Following, Mark, Scope, Token};
use pgpalisade_fence::Terms;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

use super::control_error::ControlError;
use super::error::DeclareError;
use super::plan::NOBODY;
use super::{Takeover, bounds};

/// First pause between attempts at one number. It doubles after each.
const RETRY: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(5);

/// A scope that follows the election in its terms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Elected {
    /// The scope.
    pub scope: Scope,
    /// Terms on which the number is declared.
    pub terms: Terms,
}

/// The followed elections. Dropping this follows none any more; a takeover that has begun still completes.
#[derive(Debug)]
pub struct Elections {
    takeover: Takeover,
    followed: Vec<(Elected, AbortOnDropHandle<()>)>,
}

impl Elections {
    /// Follows no election yet.
    #[must_use]
    pub const fn new(takeover: Takeover) -> Self {
        Self {
            takeover,
            followed: Vec::new(),
        }
    }

    /// Follows these from now on, and no others. Those already followed on the same terms go on.
    pub fn follow(&mut self, wanted: Vec<Elected>) {
        self.followed
            .retain(|(elected, _)| wanted.contains(elected));
        for elected in wanted {
            if !self.followed.iter().any(|(known, _)| *known == elected) {
                let following = follow(self.takeover.clone(), elected.clone());
                let task = self.takeover.inner.handle.spawn(following);
                self.followed.push((elected, AbortOnDropHandle::new(task)));
            }
        }
    }
}

/// Follows one election until the store is closed.
async fn follow(takeover: Takeover, elected: Elected) {
    let scope = &elected.scope;
    let Some(election) = elected.terms.bounds.election().cloned() else {
        return;
    };
    let Some(mut leader) = takeover.inner.driver.authority.follow(&election) else {
        return tracing::error!(%scope, %election, "the token authority holds no elections to follow");
    };
    let follower = Follower {
        takeover,
        elected,
        election,
    };
    loop {
        let number = *leader.borrow_and_update();
        // A leader that goes without a successor changes nothing: marks do not fall.
        if let Some(number) = number {
            follower.put_in_force(number, &leader).await;
        }
        if leader.changed().await.is_err() {
            return;
        }
    }
}

struct Follower {
    takeover: Takeover,
    elected: Elected,
    election: Arc<str>,
}

impl Follower {
    /// Raises the mark to this number. Repeats that until it succeeds or is impossible, or other news arrives.
    async fn put_in_force(&self, number: Token, leader: &Following) {
        let (scope, election) = (&self.elected.scope, &self.election);
        let mut pause = RETRY;
        while !leader.has_changed().unwrap_or(true) {
            match self.declare(number).await {
                Ok(_) => return,
                Err(DeclareError::Stale { mark }) => {
                    let (number, mark) = (number.get(), mark.token.get());
                    return tracing::warn!(
                        %scope, %election, number, mark,
                        "the leader's number is below the mark, so it is refused until the scope is repaired"
                    );
                }
                Err(error) if pause == RETRY => {
                    let number = number.get();
                    tracing::warn!(%scope, %election, number, %error, "the election's leader is not in force yet");
                }
                Err(error) => {
                    tracing::debug!(%scope, %election, %error, "the election's leader is still not in force")
                }
            }
            let mut told = leader.clone();
            tokio::select! {
                () = sleep(pause) => {}
                _ = told.changed() => return,
            }
            pause = RETRY_MAX.min(pause * 2);
        }
    }

    async fn declare(&self, number: Token) -> Result<Mark, DeclareError> {
        let (scope, terms) = (&self.elected.scope, self.elected.terms.clone());
        let by = format!("election {}", self.election);
        self.takeover
            .declare_for_nobody(scope, number.into(), &by, terms)
            .await
    }
}

impl Takeover {
    /// Declares a token, or takes one, for a leader that this proxy knows of itself. No session is registered for it:
    /// each that declares the token is. Sessions of lower tokens are gone after it, as after any declaration.
    ///
    /// Errors: those of [`Self::declare`].
    pub async fn declare_for_nobody(
        &self,
        scope: &Scope,
        claim: Claim,
        by: &str,
        terms: Terms,
    ) -> Result<Mark, DeclareError> {
        let declaration = self.for_nobody(scope, claim, by)?;
        self.declare(declaration, terms, self.deadline()).await
    }

    /// Without a number of the take: that of another proxy for nobody would count as the same.
    pub(super) fn for_nobody(
        &self,
        scope: &Scope,
        claim: Claim,
        by: &str,
    ) -> Result<Declaration, DeclareError> {
        let Some(cluster) = self.cluster() else {
            let why = self.why_no_primary();
            return Err(DeclareError::Control(ControlError::Down(why)));
        };
        Ok(Declaration::new(scope, claim, NOBODY, cluster, by))
    }

    /// Checks whether the token of a scope can be claimed in this way at all.
    ///
    /// Errors: [`DeclareError::NotTaken`].
    pub fn check_claim(&self, claim: Claim, terms: &Terms) -> Result<(), DeclareError> {
        bounds::check_claim(claim, &terms.bounds)
    }
}
