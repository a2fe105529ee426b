//! Repairing a scope, and reading the mark of one.

use etcd_client::{Compare, CompareOp, TxnOp, TxnOpResponse};

use super::declare::{back_off, contended};
use super::keys;
use super::marks::Known;
use super::store::{Path, Stepped, Store, found, page_of, touch, unexpected};
use crate::record::MarkRow;
use crate::{AuthorityError, Mark, RepairRequest, Repaired, Scope};

/// How often a repair is tried again because the scope has changed in between.
const CONFLICTS_MAX: u32 = 64;

/// What a repair does if the mark is still the one that is known.
enum Plan {
    /// Writes this mark.
    Write(MarkRow),
    /// Nothing: this repair was taken, and its answer lost.
    Taken(MarkRow),
    /// Nothing: it is another mark than the operator has seen.
    Leave(Option<MarkRow>),
}

impl Plan {
    fn new(known: Option<&Known>, request: &RepairRequest<'_>) -> Result<Self, AuthorityError> {
        Ok(match known.map(|known| &known.row) {
            Some(row) if row.is_after(request) => Self::Taken(row.clone()),
            Some(row) if row.rank() == request.expected => {
                let full = || AuthorityError::Storage("no incarnation is left".to_owned());
                Self::Write(MarkRow::repaired(request).ok_or_else(full)?)
            }
            other => Self::Leave(other.cloned()),
        })
    }
}

impl Store {
    /// See [`crate::Authority::mark`].
    pub(super) async fn mark(&self, scope: &Scope) -> Result<Option<Mark>, AuthorityError> {
        let stepped = self
            .sync(vec![TxnOp::get(self.keys.mark(scope), None)])
            .await?;
        let found = found(stepped.answers.last());
        let known = self.learn(scope, stepped.revision, found)?;
        Ok(known.map(|known| known.row.mark()))
    }

    /// See [`crate::Authority::repair`].
    pub(super) async fn repair(
        &self,
        request: &RepairRequest<'_>,
    ) -> Result<Repaired, AuthorityError> {
        let scope = request.scope;
        let mut known = self.marks.get(scope);
        for conflicts in 0..CONFLICTS_MAX {
            let plan = Plan::new(known.as_ref(), request)?;
            let stepped = self.try_repair(request, known.as_ref(), &plan).await?;
            if stepped.path == Path::Then {
                return self.repaired(scope, plan, stepped).await;
            }
            let [cluster, mark] = stepped.answers.as_slice() else {
                return Err(unexpected());
            };
            let recorded = found(Some(cluster)).map(|kv| keys::read_cluster(kv.value()));
            let recorded = recorded.transpose().map_err(AuthorityError::Damaged)?;
            if recorded != Some(request.cluster) {
                return Ok(Repaired::OtherCluster { recorded });
            }
            known = self.learn(scope, stepped.revision, found(Some(mark)))?;
            back_off(conflicts).await;
        }
        Err(contended(scope))
    }

    async fn try_repair(
        &self,
        request: &RepairRequest<'_>,
        known: Option<&Known>,
        plan: &Plan,
    ) -> Result<Stepped, AuthorityError> {
        let scope = request.scope;
        let cluster = keys::write_cluster(request.cluster);
        let when = vec![
            Compare::value(self.keys.cluster(), CompareOp::Equal, cluster),
            self.mark_is(scope, known),
        ];
        let mut then = match plan {
            Plan::Write(row) => {
                let put = TxnOp::put(self.keys.mark(scope), keys::write_mark(row), None);
                let mut writes = vec![put];
                writes.extend(self.put_format());
                writes
            }
            Plan::Taken(_) | Plan::Leave(_) => vec![touch(&self.keys)],
        };
        then.push(page_of(&self.keys.sessions_of(scope)));
        let otherwise = vec![
            TxnOp::get(self.keys.cluster(), None),
            TxnOp::get(self.keys.mark(scope), None),
        ];
        self.step(when, then, otherwise).await
    }

    /// The answer to a repair whose step was taken.
    async fn repaired(
        &self,
        scope: &Scope,
        plan: Plan,
        stepped: Stepped,
    ) -> Result<Repaired, AuthorityError> {
        let row = match plan {
            Plan::Leave(row) => {
                let mark = row.map(|row| row.mark());
                return Ok(Repaired::Changed { mark });
            }
            Plan::Taken(row) => row,
            Plan::Write(row) => {
                let known = Known {
                    mod_revision: stepped.revision,
                    row: row.clone(),
                };
                self.marks.put(scope, known);
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
            mark: row.mark(),
        })
    }
}
