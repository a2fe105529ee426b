//! Step that depends on the known state of a scope, and what follows if that has changed.

use std::fmt::Display;
use std::time::Duration;

use etcd_client::{Compare, CompareOp, TxnOp};

use super::keys;
use super::marks::Known;
use super::store::{EtcdStore, Path, Stepped, found, unexpected};
use crate::{AuthorityError, Cluster, Scope};

/// Attempts of a step while the state it depends on keeps changing.
const CONFLICTS_MAX: u32 = 64;

#[derive(Default)]
pub(super) struct Conflicts(u32);

impl Conflicts {
    /// Counts a failed attempt. The first ones are normal races. After many the next one waits a moment, and finally
    /// the step gives up.
    pub(super) async fn again(&mut self, what: impl Display) -> Result<(), AuthorityError> {
        if self.0 > 2 {
            let most = 1_u64 << self.0.min(6);
            let pause = rand::random_range(0..=most);
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
        self.0 += 1;
        if self.0 >= CONFLICTS_MAX {
            return Err(AuthorityError::Unavailable(format!(
                "{what} was changed by another client {CONFLICTS_MAX} times in a row; try again"
            )));
        }
        Ok(())
    }
}

pub(super) enum Tried {
    Taken(Stepped),
    /// Not taken: another cluster is recorded.
    OtherCluster(Option<Cluster>),
    /// Not taken: this is the mark now, or the condition does not hold.
    Conflict(Option<Known>),
}

impl EtcdStore {
    /// Takes a step if the recorded cluster and the scope's mark are still these, and the extra condition holds.
    pub(super) async fn step_on(
        &self,
        scope: &Scope,
        cluster: Cluster,
        known: Option<&Known>,
        condition: Option<Compare>,
        then: Vec<TxnOp>,
    ) -> Result<Tried, AuthorityError> {
        let written = keys::write_cluster(cluster);
        let mut when = vec![
            Compare::value(self.keys.cluster(), CompareOp::Equal, written),
            self.mark_is(scope, known),
        ];
        when.extend(condition);
        let otherwise = vec![
            TxnOp::get(self.keys.cluster(), None),
            TxnOp::get(self.keys.mark(scope), None),
        ];
        let stepped = self.step(when, then, otherwise).await?;
        if stepped.path == Path::Then {
            return Ok(Tried::Taken(stepped));
        }
        let [recorded, mark] = stepped.answers.as_slice() else {
            return Err(unexpected());
        };
        let recorded = found(Some(recorded)).map(|kv| keys::read_cluster(kv.value()));
        let recorded = recorded.transpose()?;
        if recorded != Some(cluster) {
            return Ok(Tried::OtherCluster(recorded));
        }
        let known = self.learn(scope, stepped.revision, found(Some(mark)))?;
        Ok(Tried::Conflict(known))
    }

    /// Condition that the mark of a scope is the known one, or missing.
    pub(super) fn mark_is(&self, scope: &Scope, known: Option<&Known>) -> Compare {
        let revision = known.map_or(0, |known| known.mod_revision);
        Compare::mod_revision(self.keys.mark(scope), CompareOp::Equal, revision)
    }
}
