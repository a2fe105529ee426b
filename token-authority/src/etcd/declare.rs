//! Declarations: one step that compares, writes, and reads the remaining lower sessions.

use etcd_client::{Compare, CompareOp, GetResponse, Txn, TxnOp, TxnOpResponse};

use super::follow::ElectionLeader;
use super::keys::{self, Keys};
use super::scope_step::{Conflicts, Tried};
use super::store::{EtcdStore, Stepped, page_of, touch, unexpected};
use crate::rule::{self, Ruling};
use crate::{
    AuthorityError, Backend, Declaration, Declared, Rank, Registered, Scope, Token, now_us,
};

/// Operations of a declaration's step, for an unchanged mark.
fn operations(ruling: &Ruling<Declared>, keys: &Keys, scope: &Scope) -> Vec<TxnOp> {
    let mut operations = Vec::new();
    if let Some(row) = &ruling.writes {
        operations.push(TxnOp::put(keys.mark(scope), keys::write_mark(row), None));
    }
    match (ruling.registers, &ruling.answer) {
        (None, _) => operations.push(touch(keys)),
        // No session is registered above the mark.
        (Some(session), Declared::Accepted { .. }) => operations.extend(puts(session, keys, scope)),
        (Some(session), _) => operations.extend([touch(keys), register(session, keys, scope)]),
    }
    // Must come last.
    if ruling.lists.is_some() {
        operations.push(page_of(&keys.sessions_of(scope)));
    }
    operations
}

fn puts(session: Registered, keys: &Keys, scope: &Scope) -> [TxnOp; 2] {
    let value = keys::write_session(session.rank(), session.since);
    [
        TxnOp::put(keys.session(scope, session.backend), value, None),
        TxnOp::put(keys.backend(session.backend, scope), Vec::new(), None),
    ]
}

/// Registers a session, unless it is registered higher.
fn register(session: Registered, keys: &Keys, scope: &Scope) -> TxnOp {
    let (key, rank) = (keys.session(scope, session.backend), session.rank());
    let puts = puts(session, keys, scope);
    let lower = Compare::value(key.clone(), CompareOp::Less, keys::rank_text(rank));
    // A comparison of values is false if the key is missing.
    let absent = Compare::version(key, CompareOp::Equal, 0);
    let move_up = Txn::new().when(vec![lower]).and_then(puts.clone());
    let register = Txn::new()
        .when(vec![absent])
        .and_then(puts)
        .or_else(vec![TxnOp::txn(move_up)]);
    TxnOp::txn(register)
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
    pub(super) async fn declare(
        &self,
        declaration: &Declaration,
    ) -> Result<Declared, AuthorityError> {
        let Declaration { scope, cluster, .. } = declaration;
        let cluster = *cluster;
        let mut known = self.marks.get(scope);
        let mut conflicts = Conflicts::default();
        loop {
            let row = known.as_ref().map(|known| known.row.clone());
            // The step compares the cluster.
            let ruling = rule::declare(Some(cluster), row, declaration, now_us());
            let elected = self.elected(declaration, &ruling).await?;
            let then = match &elected {
                Elected::LeadsNot(_) => vec![touch(&self.keys)],
                _ => operations(&ruling, &self.keys, scope),
            };
            let condition = match &elected {
                Elected::Leads(leader) => Some(leader.leads()),
                _ => None,
            };
            let tried = self
                .step_on(scope, cluster, known.as_ref(), condition, then)
                .await?;
            known = match (tried, elected) {
                (Tried::Taken(_), Elected::LeadsNot(leader)) => {
                    let mark = known.map(|known| known.row.mark);
                    return Ok(Declared::NotElected { leader, mark });
                }
                (Tried::Taken(stepped), _) => {
                    let listed = self.carried_out(scope, &ruling, stepped).await?;
                    return Ok(ruling.answer(listed));
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
        ruling: &Ruling<Declared>,
    ) -> Result<Elected, AuthorityError> {
        let (Some(election), Declared::Accepted { mark, .. }) =
            (&declaration.election, &ruling.answer)
        else {
            return Ok(Elected::NotAsked);
        };
        Ok(match self.leader(election).await?.1 {
            Some(leader) if leader.number() == mark.token => Elected::Leads(leader),
            other => Elected::LeadsNot(other.map(|leader| leader.number())),
        })
    }

    /// Sessions that the ruling lists, from the step that was taken.
    pub(super) async fn carried_out<A>(
        &self,
        scope: &Scope,
        ruling: &Ruling<A>,
        stepped: Stepped,
    ) -> Result<Vec<Registered>, AuthorityError> {
        if let Some(row) = &ruling.writes {
            self.marks.put(scope, stepped.revision, row.clone());
        }
        match (ruling.lists, stepped.answers.last()) {
            (None, _) => Ok(Vec::new()),
            (Some(rank), Some(TxnOpResponse::Get(page))) => {
                self.lower(scope, rank, page, stepped.revision).await
            }
            _ => Err(unexpected()),
        }
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
        let (scope, backend) = self.keys.read_session(kv.key())?;
        Ok((scope, keys::read_session(backend, kv.value())?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::MarkRow;
    use crate::{Cluster, Mark};

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
        let row = MarkRow::raised(mark).with_drained(drained);
        let ruling = rule::declare(Some(cluster), Some(row), &declaration, 0);
        let operations = operations(&ruling, &Keys::new("/p/"), &scope);
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
