//! Declaring: one step that compares, writes, and reads who is left.

use std::time::Duration;

use etcd_client::{Compare, CompareOp, GetResponse, TxnOp, TxnOpResponse};

use super::keys;
use super::marks::Known;
use super::store::{Path, Stepped, Store, found, page_of, unexpected};
use crate::record::{MarkRow, cut};
use crate::{
    AuthorityError, Backend, Declaration, Declared, Outcome, Registered, Scope, Token, now_us,
};

/// How often a declaration is tried again because the scope has changed in between.
const CONFLICTS_MAX: u32 = 64;

/// What a declaration would do if the mark is still the one that is known.
enum Plan {
    Raise(MarkRow),
    Join(MarkRow),
    Refuse(MarkRow),
}

impl Plan {
    fn new(known: Option<&Known>, declaration: &Declaration<'_>, now: i64) -> Self {
        let token = declaration.token;
        match known {
            Some(known) if known.row.token > token => Self::Refuse(known.row.clone()),
            Some(known) if known.row.token == token => Self::Join(known.row.clone()),
            _ => Self::Raise(MarkRow {
                token,
                raised_at: now,
                raised_by: cut(declaration.by).to_owned(),
                drained: false,
            }),
        }
    }
}

impl Store {
    /// See [`crate::Authority::declare`].
    pub(super) async fn declare(
        &self,
        declaration: &Declaration<'_>,
    ) -> Result<Declared, AuthorityError> {
        let scope = declaration.scope;
        let mut known = self.marks.get(scope);
        for conflicts in 0..CONFLICTS_MAX {
            let plan = Plan::new(known.as_ref(), declaration, now_us());
            let stepped = self.try_declare(declaration, known.as_ref(), &plan).await?;
            if stepped.path == Path::Then {
                return self.declared(declaration, plan, stepped).await;
            }
            let [cluster, mark] = stepped.answers.as_slice() else {
                return Err(unexpected());
            };
            let recorded = found(Some(cluster)).map(|kv| keys::read_cluster(kv.value()));
            let recorded = recorded.transpose().map_err(AuthorityError::Damaged)?;
            if recorded != Some(declaration.cluster) {
                return Ok(Declared::OtherCluster { recorded });
            }
            known = self.learn(scope, stepped.revision, found(Some(mark)))?;
            back_off(conflicts).await;
        }
        Err(contended(scope))
    }

    async fn try_declare(
        &self,
        declaration: &Declaration<'_>,
        known: Option<&Known>,
        plan: &Plan,
    ) -> Result<Stepped, AuthorityError> {
        let Declaration {
            scope,
            token,
            backend,
            cluster,
            ..
        } = *declaration;
        let when = vec![
            Compare::value(
                self.keys.cluster(),
                CompareOp::Equal,
                keys::write_cluster(cluster),
            ),
            self.mark_is(scope, known),
        ];
        let mut then = Vec::new();
        if let Plan::Raise(row) = plan {
            let value = keys::write_mark(row);
            then.push(TxnOp::put(self.keys.mark(scope), value, None));
        }
        if let Plan::Raise(row) | Plan::Join(row) = plan {
            let value = keys::write_session(token, now_us());
            then.push(TxnOp::put(self.keys.session(scope, backend), value, None));
            let record = self.keys.backend(backend, scope);
            then.push(TxnOp::put(record, Vec::new(), None));
            // A drained scope may have thousands of sessions, all of them at this token.
            if !row.drained {
                then.push(page_of(&self.keys.sessions_of(scope)));
            }
        } else {
            then.push(self.touch());
        }
        let otherwise = vec![
            TxnOp::get(self.keys.cluster(), None),
            TxnOp::get(self.keys.mark(scope), None),
        ];
        self.step(when, then, otherwise).await
    }

    /// The answer to a declaration whose step was taken.
    async fn declared(
        &self,
        declaration: &Declaration<'_>,
        plan: Plan,
        stepped: Stepped,
    ) -> Result<Declared, AuthorityError> {
        let (row, outcome) = match plan {
            Plan::Refuse(row) => return Ok(Declared::Stale { mark: row.mark() }),
            Plan::Join(row) => (row, Outcome::Current),
            Plan::Raise(row) => {
                let mod_revision = stepped.revision;
                let known = Known {
                    mod_revision,
                    row: row.clone(),
                };
                self.marks.put(declaration.scope, known);
                (row, Outcome::Raised)
            }
        };
        let lower = match stepped.answers.last() {
            Some(TxnOpResponse::Get(page)) => {
                self.lower(declaration.scope, declaration.token, page, stepped.revision)
                    .await?
            }
            _ if row.drained => Vec::new(),
            _ => return Err(unexpected()),
        };
        Ok(Declared::Accepted {
            mark: row.mark(),
            outcome,
            lower,
        })
    }

    /// The mark of a scope is the known one, or there is none.
    pub(super) fn mark_is(&self, scope: &Scope, known: Option<&Known>) -> Compare {
        let revision = known.map_or(0, |known| known.mod_revision);
        Compare::mod_revision(self.keys.mark(scope), CompareOp::Equal, revision)
    }

    /// The sessions of a scope below a token, in the order of [`Backend`], at the revision of the step that has read
    /// their first page.
    pub(super) async fn lower(
        &self,
        scope: &Scope,
        token: Token,
        page: &GetResponse,
        revision: i64,
    ) -> Result<Vec<Registered>, AuthorityError> {
        let mut all = Vec::new();
        for kv in page.kvs() {
            all.push(self.read_session(kv)?.1);
        }
        if let Some(last) = page.kvs().last()
            && page.more()
        {
            let range = self.keys.sessions_of(scope);
            let read = |kv: &_| self.read_session(kv).map(|(_, session)| session);
            self.rest(&range, last.key(), revision, read, &mut all)
                .await?;
        }
        all.retain(|session| session.token < token);
        all.sort_unstable_by_key(|session: &Registered| -> Backend { session.backend });
        Ok(all)
    }

    /// A session's record.
    pub(super) fn read_session(
        &self,
        kv: &etcd_client::KeyValue,
    ) -> Result<(Scope, Registered), AuthorityError> {
        let (scope, backend) = self.keys.read_session(kv.key()).ok_or_else(|| {
            let key = String::from_utf8_lossy(kv.key());
            AuthorityError::Damaged(format!("{key:?} is not the key of a session"))
        })?;
        let session = keys::read_session(backend, kv.value()).map_err(AuthorityError::Damaged)?;
        Ok((scope, session))
    }
}

/// The first conflicts are those of a healthy race, where the next attempt knows more. Many mean many rivals.
pub(super) async fn back_off(conflicts: u32) {
    if conflicts > 2 {
        let most = 1_u64 << conflicts.min(6);
        let pause = rand::random_range(0..=most);
        tokio::time::sleep(Duration::from_millis(pause)).await;
    }
}

pub(super) fn contended(what: impl std::fmt::Display) -> AuthorityError {
    AuthorityError::Unavailable(format!(
        "{what} was changed by others {CONFLICTS_MAX} times in a row; try again"
    ))
}
