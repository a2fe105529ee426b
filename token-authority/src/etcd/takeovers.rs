//! History of takeovers: one key for each scope, whose value is replaced as a whole. A second key with the time finds
//! the latest scopes without reading all.

use std::collections::HashSet;

use etcd_client::{Compare, CompareOp, GetOptions, KeyValue, Txn, TxnOp};

use super::store::{Conflicts, EtcdStore, OPERATIONS_MAX, found};
use crate::record::json;
use crate::takeovers::History;
use crate::{Answer, Scope, TakeoverRecord, now_us};

impl EtcdStore {
    pub(super) async fn note_takeovers(
        &self,
        scope: &Scope,
        records: &[TakeoverRecord],
    ) -> Answer<()> {
        let key = self.keys.takeovers_of(scope);
        // The first step reads it, unless there is none.
        let mut known: Option<KeyValue> = None;
        let mut conflicts = Conflicts::default();
        loop {
            let revision = known.as_ref().map_or(0, KeyValue::mod_revision);
            let unchanged = Compare::mod_revision(key.clone(), CompareOp::Equal, revision);
            let (before, mut history) =
                known.map_or_else(Default::default, |kv| read_value(scope, &kv));
            history.note(records);
            let now = now_us();
            let value = format!("{now} {}", json(&history));
            let mut then = vec![TxnOp::put(key.clone(), value, None)];
            if before != Some(now) {
                then.push(TxnOp::put(self.keys.noted(now, scope), Vec::new(), None));
                then.extend(before.map(|at| TxnOp::delete(self.keys.noted(at, scope), None)));
            }
            let otherwise = vec![TxnOp::get(key.clone(), None)];
            let stepped = self.step(vec![unchanged], then, otherwise).await?;
            if stepped.taken {
                return Ok(());
            }
            known = found(stepped.answers.first()).cloned();
            conflicts.again("the takeovers of a scope").await?;
        }
    }

    pub(super) async fn takeovers(
        &self,
        of: Option<&Scope>,
    ) -> Answer<Vec<(Scope, TakeoverRecord)>> {
        self.history.intact()?;
        let scopes = match of {
            Some(scope) => vec![scope.clone()],
            None => self.noted_last().await?,
        };
        let mut all = Vec::new();
        for batch in scopes.chunks(OPERATIONS_MAX) {
            let each = |scope| TxnOp::get(self.keys.takeovers_of(scope), None);
            let gets: Vec<TxnOp> = batch.iter().map(each).collect();
            // A plain read: it decides nothing, so it may be old.
            let answer = self.members.txn(&Txn::new().and_then(gets)).await?;
            for (scope, answer) in batch.iter().zip(&answer.op_responses()) {
                let read = found(Some(answer)).map(|kv| read_value(scope, kv).1);
                all.extend(read.map(|history| (scope.clone(), history)));
            }
        }
        Ok(History::list(all))
    }

    async fn noted_last(&self) -> Answer<Vec<Scope>> {
        let first = GetOptions::new()
            .with_prefix()
            .with_keys_only()
            .with_limit(TakeoverRecord::LISTED as i64);
        let answer = self.members.get(&self.keys.all_noted(), &first).await?;
        let named = |kv: &KeyValue| self.keys.read_noted(kv.key());
        // After a damaged value, the previous key of this kind is unknown and stays.
        let mut seen = HashSet::new();
        let all = answer.kvs().iter().filter_map(named);
        Ok(all.filter(|scope| seen.insert(scope.clone())).collect())
    }
}

/// Time of the last record, and the takeovers.
fn read_value(scope: &Scope, kv: &KeyValue) -> (Option<i64>, History) {
    let mut parts = kv.value().splitn(2, |byte| *byte == b' ');
    let (noted, json) = (parts.next().unwrap_or_default(), parts.next());
    let noted = std::str::from_utf8(noted)
        .ok()
        .and_then(|text| text.parse().ok());
    (noted, History::read(scope, json.unwrap_or_default()))
}
