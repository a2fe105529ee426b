//! Repair of a scope, and reading of its mark.

use etcd_client::{TxnOp, TxnOpResponse};

use super::keys;
use super::marks::Known;
use super::scope_step::{Conflicts, Tried};
use super::store::{EtcdStore, Stepped, found, page_of, touch, unexpected};
use crate::record::MarkRow;
use crate::{AuthorityError, Mark, RepairRequest, Repaired, Scope};

/// Step of a repair if the mark is still the known one.
enum RepairStep {
    /// Writes this mark.
    Write(MarkRow),
    /// Writes nothing: this repair was taken, and its answer lost.
    Taken(MarkRow),
    /// Writes nothing: the mark is not the one that the operator has seen.
    Leave(Option<MarkRow>),
}

impl RepairStep {
    fn new(known: Option<&Known>, request: &RepairRequest) -> Result<Self, AuthorityError> {
        Ok(match known.map(|known| &known.row) {
            Some(row) if row.mark.is_after(request) => Self::Taken(row.clone()),
            Some(row) if row.rank() == request.expected => {
                let full = || AuthorityError::Storage("no incarnation is left".to_owned());
                Self::Write(MarkRow::raised(Mark::repaired(request).ok_or_else(full)?))
            }
            other => Self::Leave(other.cloned()),
        })
    }
}

impl EtcdStore {
    /// See [`crate::Authority::mark`].
    pub(super) async fn mark(&self, scope: &Scope) -> Result<Option<Mark>, AuthorityError> {
        let stepped = self
            .sync(vec![TxnOp::get(self.keys.mark(scope), None)])
            .await?;
        let found = found(stepped.answers.last());
        let known = self.learn(scope, stepped.revision, found)?;
        Ok(known.map(|known| known.row.mark))
    }

    /// See [`crate::Authority::repair`].
    pub(super) async fn repair(&self, request: &RepairRequest) -> Result<Repaired, AuthorityError> {
        let scope = &request.scope;
        let mut known = self.marks.get(scope);
        let mut conflicts = Conflicts::default();
        loop {
            let plan = RepairStep::new(known.as_ref(), request)?;
            let mut then = match &plan {
                RepairStep::Write(row) => {
                    let value = keys::write_mark(row);
                    vec![TxnOp::put(self.keys.mark(scope), value, None)]
                }
                RepairStep::Taken(_) | RepairStep::Leave(_) => vec![touch(&self.keys)],
            };
            then.push(page_of(&self.keys.sessions_of(scope)));
            let cluster = request.cluster;
            let tried = self
                .step_on(scope, cluster, known.as_ref(), None, then)
                .await?;
            known = match tried {
                Tried::Taken(stepped) => return self.repaired(scope, plan, stepped).await,
                Tried::OtherCluster(recorded) => return Ok(Repaired::OtherCluster { recorded }),
                Tried::Conflict(known) => known,
            };
            conflicts.again(scope).await?;
        }
    }

    /// Answer to a repair whose step was taken.
    async fn repaired(
        &self,
        scope: &Scope,
        plan: RepairStep,
        stepped: Stepped,
    ) -> Result<Repaired, AuthorityError> {
        let row = match plan {
            RepairStep::Leave(row) => {
                let mark = row.map(|row| row.mark);
                return Ok(Repaired::Changed { mark });
            }
            RepairStep::Taken(row) => row,
            RepairStep::Write(row) => {
                self.marks.put(scope, stepped.revision, row.clone());
                row
            }
        };
        let Some(TxnOpResponse::Get(page)) = stepped.answers.last() else {
            return Err(unexpected());
        };
        Ok(Repaired::Done {
            lower: self
                .lower(scope, row.rank(), page, stepped.revision)
                .await?,
            mark: row.mark,
        })
    }
}
