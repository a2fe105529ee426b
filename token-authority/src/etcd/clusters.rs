//! Cluster on record, and recovery by an operator.

use std::collections::BTreeMap;

use etcd_client::{Compare, CompareOp, KeyValue, TxnOp};

use super::keys;
use super::marks::Known;
use super::store::{Conflicts, EtcdStore, OPERATIONS_MAX, found, touch};
use crate::record::{MarkRow, json};
use crate::{Answer, Cluster, Enrolled, Mark, Scope};

impl EtcdStore {
    /// Raises lower marks to these and records the cluster, unless what is on record forbids it. The cluster is written
    /// last: until then no session can declare for it.
    pub(super) async fn record(
        &self,
        cluster: Cluster,
        marks: &[(Scope, Mark)],
        accepts: impl Fn(Cluster) -> bool,
    ) -> Answer<Enrolled> {
        let key = self.keys.cluster();
        let mut conflicts = Conflicts::default();
        loop {
            let (on_record, revision) = self.on_record().await?;
            if let Some(recorded) = on_record
                && !accepts(recorded)
            {
                return Ok(Enrolled::Refused { recorded });
            }
            self.bring_up(marks).await?;
            let unchanged = Compare::mod_revision(key.clone(), CompareOp::Equal, revision);
            let write = if on_record == Some(cluster) {
                // Watchers need no report without a change.
                touch(&self.keys)
            } else {
                TxnOp::put(key.clone(), json(&cluster), None)
            };
            let stepped = self.step(vec![unchanged], vec![write], Vec::new()).await?;
            if stepped.taken {
                return Ok(Enrolled::Accepted);
            }
            conflicts.again("the cluster on record").await?;
        }
    }

    /// Raises lower marks to these, in as many steps as necessary.
    async fn bring_up(&self, marks: &[(Scope, Mark)]) -> Answer<()> {
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

    /// The cluster on record, and the revision of its last change: 0 if there is none.
    pub(super) async fn on_record(&self) -> Answer<(Option<Cluster>, i64)> {
        let read = vec![TxnOp::get(self.keys.cluster(), None)];
        let stepped = self.sync(read).await?;
        Ok(match found(stepped.answers.last()) {
            Some(kv) => (Some(keys::read_cluster(kv.value())?), kv.mod_revision()),
            None => (None, 0),
        })
    }

    /// Raises lower or missing marks to these, all in one step.
    async fn raise(&self, wanted: &[(&Scope, &Mark)]) -> Answer<()> {
        let mut conflicts = Conflicts::default();
        loop {
            let get = |(scope, _): &(&Scope, &Mark)| TxnOp::get(self.keys.mark(scope), None);
            let stepped = self.sync(wanted.iter().map(get).collect()).await?;
            let (mut when, mut then) = (Vec::new(), Vec::new());
            for ((scope, mark), answer) in wanted.iter().zip(stepped.answers.iter().skip(1)) {
                let known = self.learn(scope, stepped.revision, found(Some(answer)))?;
                if MarkRow::is_below(known.as_ref().map(|known| &known.row), mark) {
                    when.push(self.mark_is(scope, known.as_ref()));
                    let value = json(&MarkRow::raised(Mark::clone(mark)));
                    then.push(TxnOp::put(self.keys.mark(scope), value, None));
                }
            }
            if then.is_empty() || self.step(when, then, Vec::new()).await?.taken {
                return Ok(());
            }
            conflicts.again("a mark").await?;
        }
    }

    pub(super) async fn read_marks(&self) -> Answer<(i64, Vec<(Scope, Known)>)> {
        let read = |kv: &KeyValue| {
            let scope = self.keys.read_mark(kv.key())?;
            let known = Known::read(&scope, kv)?;
            Ok((scope, known))
        };
        self.read_all(&self.keys.marks(), read).await
    }
}
