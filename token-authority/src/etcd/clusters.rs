//! Cluster on record, and recovery by an operator.

use std::collections::BTreeMap;

use etcd_client::{Compare, CompareOp, KeyValue, TxnOp};

use super::keys;
use super::marks::Known;
use super::scope_step::Conflicts;
use super::store::{EtcdStore, OPERATIONS_MAX, Path, found, touch};
use crate::record::MarkRow;
use crate::{AuthorityError, Cluster, Enrolled, Mark, Scope};

#[derive(Clone, Copy)]
struct OnRecord {
    cluster: Option<Cluster>,
    mod_revision: i64,
}

impl EtcdStore {
    pub(super) async fn enrol(&self, cluster: Cluster) -> Result<Enrolled, AuthorityError> {
        let accepts = |recorded: Cluster| cluster.follows(&recorded);
        self.replace(cluster, &[], accepts).await
    }

    pub(super) async fn recover(
        &self,
        seen: Option<Cluster>,
        cluster: Cluster,
        marks: &[(Scope, Mark)],
    ) -> Result<Enrolled, AuthorityError> {
        let accepts = |recorded| cluster.recovers(seen, recorded);
        self.replace(cluster, marks, accepts).await
    }

    pub(super) async fn cluster(&self) -> Result<Option<Cluster>, AuthorityError> {
        Ok(self.on_record().await?.cluster)
    }

    /// Raises lower marks to these and records the cluster, unless what is on record forbids it. The cluster is written
    /// last: until then no session can declare for it.
    async fn replace(
        &self,
        cluster: Cluster,
        marks: &[(Scope, Mark)],
        accepts: impl Fn(Cluster) -> bool,
    ) -> Result<Enrolled, AuthorityError> {
        let mut conflicts = Conflicts::default();
        loop {
            let on_record = self.on_record().await?;
            if let Some(recorded) = on_record.cluster
                && !accepts(recorded)
            {
                return Ok(Enrolled::Refused { recorded });
            }
            self.bring_up(marks).await?;
            if self.record(cluster, on_record).await? == Path::Then {
                return Ok(Enrolled::Accepted);
            }
            conflicts.again("the cluster on record").await?;
        }
    }

    /// Raises lower marks to these, in as many steps as necessary.
    async fn bring_up(&self, marks: &[(Scope, Mark)]) -> Result<(), AuthorityError> {
        // The highest mark of each scope: a step may write a key only once.
        let mut wanted: BTreeMap<&Scope, &Mark> = BTreeMap::new();
        for (scope, mark) in marks {
            let highest = wanted.entry(scope).or_insert(mark);
            if highest.rank() < mark.rank() {
                *highest = mark;
            }
        }
        let wanted: Vec<(&Scope, &Mark)> = wanted.into_iter().collect();
        for batch in wanted.chunks(OPERATIONS_MAX) {
            self.raise(batch).await?;
        }
        Ok(())
    }

    /// Writes the cluster if the record is still the one seen.
    async fn record(&self, cluster: Cluster, seen: OnRecord) -> Result<Path, AuthorityError> {
        let key = self.keys.cluster();
        let when = Compare::mod_revision(key.clone(), CompareOp::Equal, seen.mod_revision);
        let write = if seen.cluster == Some(cluster) {
            // Watchers need no report without a change.
            touch(&self.keys)
        } else {
            TxnOp::put(key, keys::write_cluster(cluster), None)
        };
        let stepped = self.step(vec![when], vec![write], Vec::new()).await?;
        Ok(stepped.path)
    }

    async fn on_record(&self) -> Result<OnRecord, AuthorityError> {
        let stepped = self
            .sync(vec![TxnOp::get(self.keys.cluster(), None)])
            .await?;
        let Some(kv) = found(stepped.answers.last()) else {
            return Ok(OnRecord {
                cluster: None,
                mod_revision: 0,
            });
        };
        let cluster = keys::read_cluster(kv.value())?;
        Ok(OnRecord {
            cluster: Some(cluster),
            mod_revision: kv.mod_revision(),
        })
    }

    /// Raises lower or missing marks to these, all in one step.
    async fn raise(&self, wanted: &[(&Scope, &Mark)]) -> Result<(), AuthorityError> {
        let mut conflicts = Conflicts::default();
        loop {
            let gets = wanted
                .iter()
                .map(|(scope, _)| TxnOp::get(self.keys.mark(scope), None));
            let stepped = self.sync(gets.collect()).await?;
            let mut when = Vec::new();
            let mut then = Vec::new();
            for ((scope, mark), answer) in wanted.iter().zip(stepped.answers.iter().skip(1)) {
                let known = self.learn(scope, stepped.revision, found(Some(answer)))?;
                if MarkRow::is_below(known.as_ref().map(|known| &known.row), mark) {
                    when.push(self.mark_is(scope, known.as_ref()));
                    let value = keys::write_mark(&MarkRow::raised(Mark::clone(mark)));
                    then.push(TxnOp::put(self.keys.mark(scope), value, None));
                }
            }
            if then.is_empty() {
                return Ok(());
            }
            if self.step(when, then, Vec::new()).await?.path == Path::Then {
                return Ok(());
            }
            conflicts.again("a mark").await?;
        }
    }

    pub(super) async fn read_marks(&self) -> Result<(i64, Vec<(Scope, Known)>), AuthorityError> {
        self.read_all(&self.keys.marks(), |kv| self.read_mark(kv))
            .await
    }

    fn read_mark(&self, kv: &KeyValue) -> Result<(Scope, Known), AuthorityError> {
        let scope = self.keys.read_mark(kv.key())?;
        let row = keys::read_mark(&scope, kv.value())?;
        let mod_revision = kv.mod_revision();
        Ok((scope, Known { mod_revision, row }))
    }
}
