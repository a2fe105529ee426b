//! How takeovers went: one key for each scope, whose value is replaced as a whole.

use etcd_client::{Compare, CompareOp, GetOptions, KeyValue, SortOrder, SortTarget, TxnOp};

use super::scope_step::Conflicts;
use super::store::{Path, Store, found};
use crate::takeovers::History;
use crate::{AuthorityError, Scope, TakeoverRecord};

impl Store {
    /// See [`crate::Authority::note_takeover`].
    pub(super) async fn note_takeover(
        &self,
        scope: &Scope,
        record: &TakeoverRecord,
    ) -> Result<(), AuthorityError> {
        let key = self.keys.takeovers_of(scope);
        let read = || TxnOp::get(key.clone(), None);
        let mut known = self.sync(vec![read()]).await?;
        let mut conflicts = Conflicts::default();
        loop {
            let seen = found(known.answers.last());
            let mut history =
                seen.map_or_else(History::default, |kv| History::read(scope, kv.value()));
            history.note(record);
            let revision = seen.map_or(0, KeyValue::mod_revision);
            let unchanged = Compare::mod_revision(key.clone(), CompareOp::Equal, revision);
            let write = TxnOp::put(key.clone(), history.write(), None);
            known = self
                .step(vec![unchanged], vec![write], vec![read()])
                .await?;
            if known.path == Path::Then {
                return Ok(());
            }
            conflicts.again("the takeovers of a scope").await?;
        }
    }

    /// See [`crate::Authority::takeovers`].
    pub(super) async fn takeovers(
        &self,
        of: Option<&Scope>,
    ) -> Result<Vec<(Scope, TakeoverRecord)>, AuthorityError> {
        let (key, options) = match of {
            Some(scope) => (self.keys.takeovers_of(scope), GetOptions::new()),
            None => {
                let last = GetOptions::new()
                    .with_prefix()
                    .with_sort(SortTarget::Mod, SortOrder::Descend)
                    .with_limit(TakeoverRecord::LISTED as i64);
                (self.keys.takeovers(), last)
            }
        };
        self.history.intact()?;
        let answer = self.members.call(|client| {
            let (key, options) = (key.clone(), options.clone());
            async move { client.kv_client().get(key, Some(options)).await }
        });
        let answer = answer.await?;
        let named = |kv: &KeyValue| {
            let scope = self.keys.read_takeovers(kv.key())?;
            let history = History::read(&scope, kv.value());
            Some((scope, history))
        };
        Ok(History::list(answer.kvs().iter().filter_map(named)))
    }
}
