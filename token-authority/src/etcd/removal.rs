//! Removes records of ended sessions, in batches, and marks a scope as drained.

use std::collections::BTreeSet;

use etcd_client::{Compare, CompareOp, GetOptions, Txn, TxnOp, TxnOpResponse};

use super::keys;
use super::marks::Known;
use super::store::{Conflicts, EtcdStore, OPERATIONS_MAX, found, page_of, touch, unexpected};
use crate::record::json;
use crate::{Answer, Backend, Drained, Rank, Registered, Scope};

impl EtcdStore {
    pub(super) async fn drained(
        &self,
        scope: &Scope,
        rank: Rank,
        gone: &[Backend],
    ) -> Answer<Drained> {
        let gone: BTreeSet<Backend> = gone.iter().copied().collect();
        let gone: Vec<Backend> = gone.into_iter().collect();
        for batch in gone.chunks(OPERATIONS_MAX) {
            let remove = |backend: &_| TxnOp::txn(self.remove_if_lower(scope, rank, *backend));
            self.sync(batch.iter().map(remove).collect()).await?;
        }
        self.mark_drained(scope, rank).await
    }

    /// Nested step: removes the session's record only while its rank is lower.
    fn remove_if_lower(&self, scope: &Scope, rank: Rank, backend: Backend) -> Txn {
        let session = self.keys.session(scope, backend);
        let lower = Compare::value(session.clone(), CompareOp::Less, keys::rank_text(rank));
        Txn::new().when(vec![lower]).and_then(vec![
            TxnOp::delete(session, None),
            TxnOp::delete(self.keys.backend(backend, scope), None),
        ])
    }

    async fn mark_drained(&self, scope: &Scope, rank: Rank) -> Answer<Drained> {
        let mut known = self.marks.get(scope);
        let mut conflicts = Conflicts::default();
        loop {
            let current = known.as_ref().filter(|known| known.row.rank() == rank);
            let Some(left) = self.try_mark_drained(scope, rank, current).await? else {
                return Ok(Drained::Complete);
            };
            if !left.is_empty() {
                return Ok(Drained::Left(left));
            }
            known = self.marks.get(scope);
            // No lower session is left. There is something to write only if the rank is the mark's.
            match &known {
                Some(known) if known.row.rank() == rank && !known.row.drained => {}
                _ => return Ok(Drained::Complete),
            }
            conflicts.again(scope).await?;
        }
    }

    /// Marks the scope as drained if the mark is `current` and no lower session is left. Otherwise returns the sessions
    /// that are left; none, if only the mark was not the expected one.
    ///
    /// etcd's comparison over a range is true if it is true for every key, but a comparison of values is false for a
    /// range without keys. So a second comparison, in the first one's other path, handles a scope without sessions.
    async fn try_mark_drained(
        &self,
        scope: &Scope,
        rank: Rank,
        current: Option<&Known>,
    ) -> Answer<Option<Vec<Registered>>> {
        let sessions = self.keys.sessions_of(scope);
        let (from, to, bar) = (&sessions.from, &sessions.to, keys::rank_text(rank));
        let none_lower = Compare::value(from.clone(), CompareOp::Greater, bar);
        let none_lower = none_lower.with_range(to.clone());
        let none_at_all = Compare::version(from.clone(), CompareOp::Equal, 0);
        let none_at_all = none_at_all.with_range(to.clone());
        let mark_is = match current {
            Some(known) => self.mark_is(scope, Some(known)),
            // Another or unknown mark: nothing is written. No key has a revision below 0.
            None => Compare::mod_revision(self.keys.mark(scope), CompareOp::Less, 0),
        };
        let row = current.map(|known| known.row.clone().with_drained(true));
        let write = match &row {
            Some(row) => TxnOp::put(self.keys.mark(scope), json(row), None),
            None => touch(&self.keys),
        };
        let look = vec![TxnOp::get(self.keys.mark(scope), None), page_of(&sessions)];
        let second = Txn::new()
            .when(vec![mark_is.clone(), none_at_all])
            .and_then(vec![write.clone()])
            .or_else(look);
        let (when, otherwise) = (vec![mark_is, none_lower], vec![TxnOp::txn(second)]);
        let stepped = self.step(when, vec![write], otherwise).await?;
        let left = match (stepped.taken, stepped.answers.as_slice()) {
            (true, _) => None,
            (false, [TxnOpResponse::Txn(second)]) if second.succeeded() => None,
            (false, [TxnOpResponse::Txn(second)]) => Some(second.op_responses()),
            _ => return Err(unexpected()),
        };
        match left.as_deref() {
            None => {
                if let Some(row) = row {
                    self.marks.put(scope, stepped.revision, row);
                }
                Ok(None)
            }
            Some([mark, TxnOpResponse::Get(page)]) => {
                self.learn(scope, stepped.revision, found(Some(mark)))?;
                let left = self.lower(scope, rank, page, stepped.revision).await?;
                Ok(Some(left))
            }
            Some(_) => Err(unexpected()),
        }
    }

    pub(super) async fn forget(&self, gone: &[Backend]) -> Answer<()> {
        let mut removals = Vec::new();
        for batch in gone.chunks(OPERATIONS_MAX) {
            for (backend, scope) in self.records_of(batch).await? {
                removals.push(TxnOp::delete(self.keys.session(&scope, backend), None));
                removals.push(TxnOp::delete(self.keys.backend(backend, &scope), None));
            }
        }
        // An even number: the two keys of a record go in one step.
        for batch in removals.chunks(OPERATIONS_MAX) {
            self.step(Vec::new(), batch.to_vec(), Vec::new()).await?;
        }
        Ok(())
    }

    /// Scopes with records of these sessions. A plain read is enough, since nothing depends on completeness: a missed
    /// record stays, and the reaper finds it again.
    async fn records_of(&self, gone: &[Backend]) -> Answer<Vec<(Backend, Scope)>> {
        self.history.intact()?;
        let gets = gone.iter().map(|backend| {
            let range = self.keys.records_of(*backend);
            let options = GetOptions::new().with_range(range.to).with_keys_only();
            TxnOp::get(range.from, Some(options))
        });
        let txn = Txn::new().and_then(gets.collect::<Vec<_>>());
        let answer = self.members.txn(&txn).await?;
        self.history.check(answer.header(), 0)?;
        let mut records = Vec::new();
        for (backend, found) in gone.iter().zip(answer.op_responses()) {
            let TxnOpResponse::Get(found) = found else {
                return Err(unexpected());
            };
            for kv in found.kvs() {
                records.push((*backend, self.keys.read_record(kv.key())?));
            }
        }
        Ok(records)
    }
}
