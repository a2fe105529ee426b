//! Repair of a scope, and reading of its mark.

use etcd_client::TxnOp;

use super::keys;
use super::scope_step::{Conflicts, Tried};
use super::store::{EtcdStore, found, page_of, touch};
use crate::{AuthorityError, Mark, RepairRequest, Repaired, Scope, rule};

impl EtcdStore {
    pub(super) async fn mark(&self, scope: &Scope) -> Result<Option<Mark>, AuthorityError> {
        let stepped = self
            .sync(vec![TxnOp::get(self.keys.mark(scope), None)])
            .await?;
        let found = found(stepped.answers.last());
        let known = self.learn(scope, stepped.revision, found)?;
        Ok(known.map(|known| known.row.mark))
    }

    pub(super) async fn repair(&self, request: &RepairRequest) -> Result<Repaired, AuthorityError> {
        let (scope, cluster) = (&request.scope, request.cluster);
        let mut known = self.marks.get(scope);
        let mut conflicts = Conflicts::default();
        loop {
            let row = known.as_ref().map(|known| known.row.clone());
            // The step compares the cluster.
            let ruling = rule::repair(Some(cluster), row, request)?;
            let mut then = vec![match &ruling.writes {
                Some(row) => TxnOp::put(self.keys.mark(scope), keys::write_mark(row), None),
                None => touch(&self.keys),
            }];
            then.push(page_of(&self.keys.sessions_of(scope)));
            let tried = self
                .step_on(scope, cluster, known.as_ref(), None, then)
                .await?;
            known = match tried {
                Tried::Taken(stepped) => {
                    let listed = self.carried_out(scope, &ruling, stepped).await?;
                    return Ok(ruling.answer(listed));
                }
                Tried::OtherCluster(recorded) => return Ok(Repaired::OtherCluster { recorded }),
                Tried::Conflict(known) => known,
            };
            conflicts.again(scope).await?;
        }
    }
}
