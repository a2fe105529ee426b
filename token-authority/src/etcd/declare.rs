//! Declarations and repairs: one step that compares, writes, and reads the remaining lower sessions.

use etcd_client::{Compare, CompareOp, GetResponse, KeyValue, Txn, TxnOp, TxnOpResponse};

use super::keys::{self, Keys, Range};
use super::marks::Known;
use super::store::{Conflicts, EtcdStore, Stepped, found, next_key, page_of, touch, unexpected};
use crate::record::json;
use crate::rule::{self, Ruling};
use crate::{
    Answer, Cluster, Declaration, Declared, Rank, Registered, RepairRequest, Repaired, Scope,
    now_us,
};

/// Operations of a declaration's step, for an unchanged mark.
fn operations(ruling: &Ruling<Declared>, keys: &Keys, scope: &Scope) -> Vec<TxnOp> {
    let mut operations = Vec::new();
    if let Some(row) = &ruling.writes {
        operations.push(TxnOp::put(keys.mark(scope), json(row), None));
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

enum Tried {
    Taken(Stepped),
    /// Not taken: another cluster is recorded.
    OtherCluster(Option<Cluster>),
    /// Not taken: this is the mark now, or the condition does not hold.
    Conflict(Option<Known>),
}

impl EtcdStore {
    pub(super) async fn declare(&self, declaration: &Declaration) -> Answer<Declared> {
        let Declaration { scope, cluster, .. } = declaration;
        let mut known = self.marks.get(scope);
        let mut conflicts = Conflicts::default();
        loop {
            let row = known.as_ref().map(|known| known.row.clone());
            // The step compares the cluster.
            let ruling = rule::declare(Some(*cluster), row, declaration, now_us());
            let mut then = operations(&ruling, &self.keys, scope);
            let (mut condition, mut refused) = (None, None);
            if let (Some(election), Declared::Accepted { mark, .. }) =
                (&declaration.election, &ruling.answer)
            {
                match self.leader(election).await?.1 {
                    Some(leader) if leader.number == mark.token => condition = Some(leader.leads()),
                    other => {
                        refused = Some(other.map(|leader| leader.number));
                        then = vec![touch(&self.keys)];
                    }
                }
            }
            let tried = self
                .step_on(scope, *cluster, known.as_ref(), condition, then)
                .await?;
            known = match (tried, refused) {
                (Tried::Taken(_), Some(leader)) => {
                    let mark = known.map(|known| known.row.mark);
                    return Ok(Declared::NotElected { leader, mark });
                }
                (Tried::Taken(stepped), None) => {
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

    pub(super) async fn repair(&self, request: &RepairRequest) -> Answer<Repaired> {
        let (scope, cluster) = (&request.scope, request.cluster);
        let mut known = self.marks.get(scope);
        let mut conflicts = Conflicts::default();
        loop {
            let row = known.as_ref().map(|known| known.row.clone());
            // The step compares the cluster.
            let ruling = rule::repair(Some(cluster), row, request)?;
            let mut then = vec![match &ruling.writes {
                Some(row) => TxnOp::put(self.keys.mark(scope), json(row), None),
                None => touch(&self.keys),
            }];
            then.push(page_of(&self.keys.sessions_of(scope)));
            let tried = self
                .step_on(scope, cluster, known.as_ref(), None, then)
                .await?;
            known = match tried {
                Tried::Taken(stepped) => {
                    let listed = self.carried_out(scope, &ruling, stepped).await?;
                    return Ok(ruling.answer(listed));
                }
                Tried::OtherCluster(recorded) => return Ok(Repaired::OtherCluster { recorded }),
                Tried::Conflict(known) => known,
            };
            conflicts.again(scope).await?;
        }
    }

    /// Takes a step if the recorded cluster and the scope's mark are still these, and the extra condition holds.
    async fn step_on(
        &self,
        scope: &Scope,
        cluster: Cluster,
        known: Option<&Known>,
        condition: Option<Compare>,
        then: Vec<TxnOp>,
    ) -> Answer<Tried> {
        let written = json(&cluster);
        let mut when = vec![
            Compare::value(self.keys.cluster(), CompareOp::Equal, written),
            self.mark_is(scope, known),
        ];
        when.extend(condition);
        let otherwise = vec![
            TxnOp::get(self.keys.cluster(), None),
            TxnOp::get(self.keys.mark(scope), None),
        ];
        let stepped = self.step(when, then, otherwise).await?;
        if stepped.taken {
            return Ok(Tried::Taken(stepped));
        }
        let [recorded, mark] = stepped.answers.as_slice() else {
            return Err(unexpected());
        };
        let recorded = found(Some(recorded)).map(|kv| keys::read_cluster(kv.value()));
        let recorded = recorded.transpose()?;
        if recorded != Some(cluster) {
            return Ok(Tried::OtherCluster(recorded));
        }
        let known = self.learn(scope, stepped.revision, found(Some(mark)))?;
        Ok(Tried::Conflict(known))
    }

    /// Sessions that the ruling lists, from the step that was taken.
    async fn carried_out<A>(
        &self,
        scope: &Scope,
        ruling: &Ruling<A>,
        stepped: Stepped,
    ) -> Answer<Vec<Registered>> {
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
    ) -> Answer<Vec<Registered>> {
        let read = |kv: &KeyValue| self.read_session(kv).map(|(_, session)| session);
        let mut all: Vec<Registered> = page.kvs().iter().map(read).collect::<Answer<_>>()?;
        if let Some(last) = page.kvs().last()
            && page.more()
        {
            let rest = Range {
                from: next_key(last.key()),
                ..self.keys.sessions_of(scope)
            };
            self.pages(&rest, revision, &read, &mut all).await?;
        }
        all.retain(|session| session.rank() < rank);
        all.sort_unstable_by_key(|session| session.backend);
        Ok(all)
    }

    pub(super) fn read_session(&self, kv: &KeyValue) -> Answer<(Scope, Registered)> {
        let (scope, backend) = self.keys.read_session(kv.key())?;
        Ok((scope, keys::read_session(backend, kv.value())?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::MarkRow;
    use crate::{Backend, Mark, Token};

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
