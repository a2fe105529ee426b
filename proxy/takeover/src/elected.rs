//! Scopes that follow elections: as soon as another leader is decided, the mark rises to its number, and the sessions
//! of the one before are ended, whether or not the new one ever connects.
//!
//! What is told of an election only sets this off. The declaration that raises the mark is one like any other, and it
//! names the election: the step that raises the mark compares that the number is still the leader's. So what is told
//! late, or by several proxies at once, raises nothing that is over, and ends nobody twice.

use std::sync::Arc;
use std::time::Duration;

use pgpalisade_authority::{Claim, Declaration, Following, Mark, Scope, Token};
use pgpalisade_fence::Terms;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

use super::declare::NOBODY;
use super::error::{ControlError, DeclareError};
use super::{Takeover, bounds};

/// Between two attempts at one number: this long at first, twice as long after each.
const RETRY: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(5);

/// A scope that follows an election, which is in its terms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Elected {
    /// The scope.
    pub scope: Scope,
    /// How the number is to be accepted.
    pub terms: Terms,
}

/// The elections that are followed. Dropped, it follows none any more; a takeover that has begun goes on to its end.
#[derive(Debug)]
pub struct Elections {
    takeover: Takeover,
    followed: Vec<(Elected, AbortOnDropHandle<()>)>,
}

impl Elections {
    /// None yet.
    #[must_use]
    pub const fn new(takeover: Takeover) -> Self {
        Self {
            takeover,
            followed: Vec::new(),
        }
    }

    /// Follows these from now on, and no others. Those that were followed before on the same terms go on.
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

/// Follows one until the store is closed.
async fn follow(takeover: Takeover, Elected { scope, terms }: Elected) {
    let Some(election) = terms.bounds.election().cloned() else {
        return;
    };
    let Some(mut leader) = takeover.inner.authority.follow(&election) else {
        return tracing::error!(%scope, %election, "the token authority holds no elections to follow");
    };
    let follower = Follower {
        takeover,
        scope,
        terms,
        election,
    };
    loop {
        let number = *leader.borrow_and_update();
        // A leader that is gone without a successor changes nothing: marks do not fall.
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
    scope: Scope,
    terms: Terms,
    election: Arc<str>,
}

impl Follower {
    /// Raises the mark to this number, until that has succeeded, or is in vain, or something else is told.
    async fn put_in_force(&self, number: Token, leader: &Following) {
        let (scope, election) = (&self.scope, &self.election);
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
        let takeover = &self.takeover;
        let Some(cluster) = takeover.cluster() else {
            let why = takeover.why_no_primary();
            return Err(DeclareError::Control(ControlError::Down(why)));
        };
        let by = format!("election {}", self.election);
        let declaration = Declaration::new(&self.scope, number, NOBODY, cluster, &by);
        let deadline = takeover.deadline();
        takeover
            .declare(declaration, self.terms.clone(), deadline)
            .await
    }
}

impl Takeover {
    /// Whether a scope's token can be claimed like this at all.
    ///
    /// Errors: [`DeclareError::NotTaken`].
    pub fn check_claim(&self, claim: Claim, terms: &Terms) -> Result<(), DeclareError> {
        bounds::check_claim(claim, &terms.bounds)
    }
}
