//! Declarations: one step that compares, writes, and reads the remaining lower sessions.

use etcd_client::{Compare, CompareOp, GetResponse, Txn, TxnOp, TxnOpResponse};

use super::follow::ElectionLeader;
use super::keys::{self, Keys};
use super::scope_step::{Conflicts, Tried};
use super::store::{EtcdStore, Stepped, page_of, touch, unexpected};
use crate::record::{Judged, MarkRow};
use crate::{
    AuthorityError, Backend, Declaration, DeclareOutcome, Declared, Rank, Registered, Scope, Token,
    now_us,
};

/// Operations of a declaration's step, for an unchanged mark.
fn operations(judged: &Judged, keys: &Keys, declaration: &Declaration) -> Vec<TxnOp> {
    let Declaration { scope, backend, .. } = declaration;
    let (mut operations, row) = match judged {
        Judged::Raise(row) => {
            let put = TxnOp::put(keys.mark(scope), keys::write_mark(row), None);
            (vec![put], row)
        }
        Judged::Join(row) => (Vec::new(), row),
        Judged::Stale(row) => match declaration.stale_token() {
            Some(token) => return register_stale(row, token, keys, declaration),
            None => return vec![touch(keys)],
        },
        Judged::Refused(_) => return vec![touch(keys)],
    };
    let value = keys::write_session(row.rank(), now_us());
    operations.push(TxnOp::put(keys.session(scope, *backend), value, None));
    let record = keys.backend(*backend, scope);
    operations.push(TxnOp::put(record, Vec::new(), None));
    // A drained scope may have thousands of sessions, all at this token.
    if !row.drained {
        operations.push(page_of(&keys.sessions_of(scope)));
    }
    operations
}

/// Registers a session below the mark, unless it is registered higher, and marks the scope as not drained.
fn register_stale(
    row: &MarkRow,
    token: Token,
    keys: &Keys,
    declaration: &Declaration,
) -> Vec<TxnOp> {
    let Declaration { scope, backend, .. } = declaration;
    let rank = row.rank_of(token);
    let session = keys.session(scope, *backend);
    let puts = vec![
        TxnOp::put(session.clone(), keys::write_session(rank, now_us()), None),
        TxnOp::put(keys.backend(*backend, scope), Vec::new(), None),
    ];
    let lower = Compare::value(session.clone(), CompareOp::Less, keys::rank_text(rank));
    // A comparison of values is false if the key is missing.
    let absent = Compare::version(session, CompareOp::Equal, 0);
    let move_up = Txn::new().when(vec![lower]).and_then(puts.clone());
    let register = Txn::new()
        .when(vec![absent])
        .and_then(puts)
        .or_else(vec![TxnOp::txn(move_up)]);
    let mut operations = vec![touch(keys), TxnOp::txn(register)];
    if row.drained {
        let mark = keys::write_mark(&not_drained(row));
        operations.push(TxnOp::put(keys.mark(scope), mark, None));
    }
    operations
}

fn not_drained(row: &MarkRow) -> MarkRow {
    MarkRow {
        drained: false,
        ..row.clone()
    }
}

/// Standing of a declaration in its election.
enum Elected {
    /// The declaration names no election, or is refused anyway.
    NotAsked,
    Leads(ElectionLeader),
    /// Another candidate leads, or none.
    LeadsNot(Option<Token>),
}

impl EtcdStore {
    /// See [`crate::Authority::declare`].
    pub(super) async fn declare(
        &self,
        declaration: &Declaration,
    ) -> Result<Declared, AuthorityError> {
        let scope = &declaration.scope;
        let mut known = self.marks.get(scope);
        let mut conflicts = Conflicts::default();
        loop {
            let row = known.as_ref().map(|known| known.row.clone());
            let judged = MarkRow::judge(row, declaration, now_us());
            let elected = self.elected(declaration, &judged).await?;
            let (condition, then) = match &elected {
                Elected::NotAsked => (None, operations(&judged, &self.keys, declaration)),
                Elected::Leads(leader) => {
                    let then = operations(&judged, &self.keys, declaration);
                    (Some(leader.leads()), then)
                }
                Elected::LeadsNot(_) => (None, vec![touch(&self.keys)]),
            };
            let (cluster, before) = (declaration.cluster, known.as_ref());
            let tried = self
                .step_on(scope, cluster, before, condition, then)
                .await?;
            known = match (tried, elected) {
                (Tried::Taken(_), Elected::LeadsNot(leader)) => {
                    let mark = known.map(|known| known.row.mark);
                    return Ok(Declared::NotElected { leader, mark });
                }
                (Tried::Taken(stepped), _) => {
                    return self.declared(declaration, judged, stepped).await;
                }
                (Tried::OtherCluster(recorded), _) => {
                    return Ok(Declared::OtherCluster { recorded });
                }
                (Tried::Conflict(known), _) => known,
            };
            conflicts.again(scope).await?;
        }
    }

    /// Whether a declaration that the mark accepts is from the leader of its election.
    async fn elected(
        &self,
        declaration: &Declaration,
        judged: &Judged,
    ) -> Result<Elected, AuthorityError> {
        let (Some(election), Judged::Raise(row) | Judged::Join(row)) =
            (&declaration.election, judged)
        else {
            return Ok(Elected::NotAsked);
        };
        Ok(match self.leader(election).await?.1 {
            Some(leader) if leader.number() == row.mark.token => Elected::Leads(leader),
            other => Elected::LeadsNot(other.map(|leader| leader.number())),
        })
    }

    /// Answer to a declaration whose step was taken.
    async fn declared(
        &self,
        declaration: &Declaration,
        judged: Judged,
        stepped: Stepped,
    ) -> Result<Declared, AuthorityError> {
        let (row, outcome) = match judged {
            Judged::Stale(row) => {
                if declaration.stale_token().is_some() && row.drained {
                    let row = not_drained(&row);
                    self.marks.put(&declaration.scope, stepped.revision, row);
                }
                return Ok(Declared::Stale { mark: row.mark });
            }
            Judged::Refused(declared) => return Ok(declared),
            Judged::Join(row) => (row, DeclareOutcome::Current),
            Judged::Raise(row) => {
                let raised = row.clone();
                self.marks.put(&declaration.scope, stepped.revision, raised);
                (row, DeclareOutcome::Raised)
            }
        };
        let lower = match stepped.answers.last() {
            Some(TxnOpResponse::Get(page)) => {
                self.lower(&declaration.scope, row.rank(), page, stepped.revision)
                    .await?
            }
            _ if row.drained => Vec::new(),
            _ => return Err(unexpected()),
        };
        Ok(Declared::Accepted {
            mark: row.mark,
            outcome,
            lower,
        })
    }

    /// Sessions of a scope below a rank, in the order of [`Backend`], at the revision of the step that read their
    /// first page.
    pub(super) async fn lower(
        &self,
        scope: &Scope,
        rank: Rank,
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
        all.retain(|session| session.rank() < rank);
        all.sort_unstable_by_key(|session: &Registered| -> Backend { session.backend });
        Ok(all)
    }

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cluster, Mark};

    /// Operations of a declaration for a mark with this token, as etcd-client formats them.
    fn shown(value: u64, drained: bool) -> Vec<String> {
        let (scope, token) = (Scope::default(), Token::new(5).unwrap());
        let backend = Backend {
            pid: 1,
            started_us: 2,
        };
        let cluster = Cluster {
            system_identifier: 1,
            timeline: 1,
            postmaster_us: 1_700_000_000_000_000,
        };
        let declaration = Declaration::new(&scope, token, backend, cluster, "test");
        let mark = Mark::new(Token::new(value).unwrap(), 0, String::new());
        let row = MarkRow {
            drained,
            ..MarkRow::raised(mark)
        };
        let judged = MarkRow::judge(Some(row), &declaration, 0);
        let operations = operations(&judged, &Keys::new("/p/"), &declaration);
        operations
            .iter()
            .map(|operation| format!("{operation:?}"))
            .collect()
    }

    #[test]
    fn only_a_scope_that_is_not_drained_is_read() {
        for (value, drained, writes, reads) in [
            (5, true, 2, 0),
            (5, false, 2, 1),
            (4, true, 3, 1),
            (4, false, 3, 1),
            (6, true, 1, 0),
        ] {
            let shown = shown(value, drained);
            let count = |kind| shown.iter().filter(|text| text.contains(kind)).count();
            let found = (count("RequestPut"), count("RequestRange"));
            assert_eq!(found, (writes, reads), "mark {value}: {shown:?}");
        }
    }
}
