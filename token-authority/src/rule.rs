//! The rule of every step: what a store answers and writes.
//!
//! A store of [`Records`] takes its steps from here. Etcd writes a [`Ruling`] if what it has read is unchanged. The
//! PostgreSQL store has the same rule in `postgres/functions.sql`; generated cases compare the two.

use std::cmp::Ordering;
use std::ops::Add;
use std::time::Duration;

use crate::record::cut_by;
use crate::{
    Backend, Claim, Cluster, Declaration, DeclareOutcome, Declared, Drained, Enrolled, LeaseId,
    LeaseStep, Mark, NoIncarnation, Rank, Registered, RepairRequest, Repaired, Scope, Token,
};

pub use crate::record::MarkRow;

/// Effect of a step on a scope.
#[derive(Debug)]
pub struct Ruling<A> {
    /// The mark to write, if it changes.
    pub writes: Option<MarkRow>,
    /// The registration to write, unless the session is registered at this rank or higher.
    pub registers: Option<Registered>,
    /// The answer lists the sessions below this rank.
    pub lists: Option<Rank>,
    /// The answer, without that list.
    pub answer: A,
}

impl<A> Ruling<A> {
    const fn refused(answer: A) -> Self {
        Self {
            writes: None,
            registers: None,
            lists: None,
            answer,
        }
    }
}

impl Ruling<Declared> {
    /// The answer with the listed sessions.
    #[must_use]
    pub fn answer(mut self, listed: Vec<Registered>) -> Declared {
        if let Declared::Accepted { lower, .. } = &mut self.answer {
            *lower = listed;
        }
        self.answer
    }
}

impl Ruling<Repaired> {
    /// The answer with the listed sessions.
    #[must_use]
    pub fn answer(mut self, listed: Vec<Registered>) -> Repaired {
        if let Repaired::Done { lower, .. } = &mut self.answer {
            *lower = listed;
        }
        self.answer
    }
}

/// Rules on a declaration, from the cluster on record and the scope's mark. See [`crate::Authority::declare`].
///
/// The token belongs to the scope's present incarnation, because clients do not know of incarnations.
#[must_use]
pub fn declare(
    recorded: Option<Cluster>,
    known: Option<MarkRow>,
    asked: &Declaration,
    now: i64,
) -> Ruling<Declared> {
    if recorded != Some(asked.cluster) {
        return Ruling::refused(Declared::OtherCluster { recorded });
    }
    let Some(row) = known else {
        return match asked.claim {
            Claim::After(Some(_)) => Ruling::refused(Declared::MarkIsLower { mark: None }),
            claim => raise(claim.token().unwrap_or(Token::MIN), None, asked, now),
        };
    };
    let mark = row.mark.token;
    let token = match asked.claim {
        Claim::Token(token) => token,
        _ if is_taken_by(&row, asked) => mark,
        Claim::After(read) if read < Some(mark) => return stale(row, asked, now),
        Claim::After(read) if read > Some(mark) => {
            return Ruling::refused(Declared::MarkIsLower {
                mark: Some(row.mark),
            });
        }
        Claim::After(_) | Claim::Next | Claim::Lease(_) => match mark.next() {
            Some(next) => next,
            None => return Ruling::refused(Declared::TooFar { mark: row.mark }),
        },
    };
    match token.cmp(&mark) {
        Ordering::Less => stale(row, asked, now),
        Ordering::Equal => accept(row, DeclareOutcome::Current, asked, now),
        Ordering::Greater if is_too_far(mark, token, asked) => {
            Ruling::refused(Declared::TooFar { mark: row.mark })
        }
        Ordering::Greater => raise(token, Some(row.mark), asked, now),
    }
}

/// Raises the mark to this token.
fn raise(token: Token, before: Option<Mark>, asked: &Declaration, now: i64) -> Ruling<Declared> {
    let mut mark = Mark::new(token, now, cut_by(&asked.by).to_owned());
    if let Some(before) = before {
        (mark.incarnation, mark.repair) = (before.incarnation, before.repair);
    }
    let mut row = MarkRow::raised(mark);
    row.taken = asked.take.filter(|_| asked.claim.is_take());
    let mut ruling = accept(row.clone(), DeclareOutcome::Raised, asked, now);
    ruling.writes = Some(row);
    ruling
}

/// Registers the session at the mark.
fn accept(
    row: MarkRow,
    outcome: DeclareOutcome,
    asked: &Declaration,
    now: i64,
) -> Ruling<Declared> {
    Ruling {
        writes: None,
        registers: Some(registration(&row, row.mark.token, asked, now)),
        // A drained scope may have thousands of sessions, all at this token.
        lists: (!row.drained).then_some(row.rank()),
        answer: Declared::Accepted {
            mark: row.mark,
            outcome,
            lower: Vec::new(),
        },
    }
}

/// Whether this very take raised the mark, and is repeated because its answer was lost.
fn is_taken_by(row: &MarkRow, asked: &Declaration) -> bool {
    let is_own = asked.take.is_some() && row.taken == asked.take;
    let named = asked.claim.token();
    is_own && named.is_none_or(|token| token == row.mark.token)
}

fn is_too_far(mark: Token, token: Token, asked: &Declaration) -> bool {
    let step = token.get().saturating_sub(mark.get());
    let is_high = asked.max_token.is_some_and(|most| token.get() > most);
    asked.max_step.is_some_and(|most| step > most) || (is_high && asked.claim.is_take())
}

/// Refuses a declaration below the mark. If the session is registered all the same, the scope is no longer drained.
fn stale(row: MarkRow, asked: &Declaration, now: i64) -> Ruling<Declared> {
    let token = asked.stale_token();
    let undrains = token.is_some() && row.drained;
    Ruling {
        writes: undrains.then(|| row.clone().with_drained(false)),
        registers: token.map(|token| registration(&row, token, asked, now)),
        lists: None,
        answer: Declared::Stale { mark: row.mark },
    }
}

/// Registration at a token of the scope's present incarnation, never at a lower rank than before.
const fn registration(row: &MarkRow, token: Token, asked: &Declaration, now: i64) -> Registered {
    Registered {
        backend: asked.backend,
        token,
        incarnation: row.mark.incarnation,
        since: now,
    }
}

/// Rules on a repair, from the cluster on record and the scope's mark. See [`crate::Authority::repair`].
pub fn repair(
    recorded: Option<Cluster>,
    known: Option<MarkRow>,
    request: &RepairRequest,
) -> Result<Ruling<Repaired>, NoIncarnation> {
    if recorded != Some(request.cluster) {
        return Ok(Ruling::refused(Repaired::OtherCluster { recorded }));
    }
    let (writes, mark) = match known {
        Some(row) if row.mark.is_after(request) => (None, row.mark),
        Some(row) if row.rank() == request.expected => {
            let mark = Mark::repaired(request)?;
            (Some(MarkRow::raised(mark.clone())), mark)
        }
        other => {
            let mark = other.map(|row| row.mark);
            return Ok(Ruling::refused(Repaired::Changed { mark }));
        }
    };
    Ok(Ruling {
        writes,
        registers: None,
        lists: Some(mark.rank()),
        answer: Repaired::Done {
            mark,
            lower: Vec::new(),
        },
    })
}

/// Effect of a step on a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseRuling<T> {
    /// Nothing changes: the candidate does not hold the lease.
    NotHeld,
    /// The candidate holds it until then.
    Held(T),
    /// Nobody holds it any more.
    Released,
}

/// Rules on a step with a lease, from its holder and end. See [`crate::Authority::lease`].
pub fn lease<T: Copy + Ord + Add<Duration, Output = T>>(
    held: Option<(LeaseId, T)>,
    candidate: LeaseId,
    step: LeaseStep,
    now: T,
) -> LeaseRuling<T> {
    let is_own = held.is_some_and(|(holder, _)| holder == candidate);
    let is_free = held.is_none_or(|(_, until)| until <= now);
    match step {
        LeaseStep::Acquire(time) if is_own || is_free => LeaseRuling::Held(now + time),
        // Also after its end, until another candidate has acquired it.
        LeaseStep::Renew(time) if is_own => LeaseRuling::Held(now + time),
        LeaseStep::Release if is_own => LeaseRuling::Released,
        _ => LeaseRuling::NotHeld,
    }
}

/// The records of a store while a step has them to itself, and the steps on them.
pub trait Records {
    /// Failure to read or write.
    type Error: From<NoIncarnation>;

    /// See [`crate::Authority::cluster`].
    fn cluster(&self) -> Result<Option<Cluster>, Self::Error>;
    /// Writes the cluster.
    fn put_cluster(&mut self, cluster: Cluster) -> Result<(), Self::Error>;
    /// Mark of a scope.
    fn mark_row(&self, scope: &Scope) -> Result<Option<MarkRow>, Self::Error>;
    /// Writes the mark of a scope.
    fn put_mark(&mut self, scope: &Scope, row: &MarkRow) -> Result<(), Self::Error>;
    /// Registration of a session in a scope.
    fn registered(&self, scope: &Scope, of: Backend) -> Result<Option<Registered>, Self::Error>;
    /// Writes a registration.
    fn put_session(&mut self, scope: &Scope, session: Registered) -> Result<(), Self::Error>;
    /// Removes a registration, if there is one.
    fn remove(&mut self, scope: &Scope, backend: Backend) -> Result<(), Self::Error>;
    /// Every registration of a scope, in the order of [`Backend`].
    fn sessions_of(&self, scope: &Scope) -> Result<Vec<Registered>, Self::Error>;
    /// Scopes in which a session is registered.
    fn scopes_of(&self, backend: Backend) -> Result<Vec<Scope>, Self::Error>;

    /// See [`crate::Authority::enrol`].
    fn enrol(&mut self, cluster: Cluster) -> Result<Enrolled, Self::Error> {
        match self.cluster()? {
            Some(recorded) if !cluster.follows(&recorded) => {
                return Ok(Enrolled::Refused { recorded });
            }
            Some(recorded) if recorded == cluster => {}
            _ => self.put_cluster(cluster)?,
        }
        Ok(Enrolled::Accepted)
    }

    /// See [`crate::Authority::recover`].
    fn recover(
        &mut self,
        seen: Option<Cluster>,
        cluster: Cluster,
        marks: &[(Scope, Mark)],
    ) -> Result<Enrolled, Self::Error> {
        if let Some(recorded) = self.cluster()?
            && !cluster.recovers(seen, recorded)
        {
            return Ok(Enrolled::Refused { recorded });
        }
        self.put_cluster(cluster)?;
        for (scope, mark) in marks {
            if MarkRow::is_below(self.mark_row(scope)?.as_ref(), mark) {
                self.put_mark(scope, &MarkRow::raised(mark.clone()))?;
            }
        }
        Ok(Enrolled::Accepted)
    }

    /// See [`crate::Authority::declare`].
    fn declare(&mut self, asked: &Declaration, now: i64) -> Result<Declared, Self::Error> {
        let scope = &asked.scope;
        let ruling = declare(self.cluster()?, self.mark_row(scope)?, asked, now);
        let listed = self.carry_out(scope, &ruling)?;
        Ok(ruling.answer(listed))
    }

    /// See [`crate::Authority::drained`].
    fn drained(
        &mut self,
        scope: &Scope,
        rank: Rank,
        gone: &[Backend],
    ) -> Result<Drained, Self::Error> {
        for backend in gone {
            let registered = self.registered(scope, *backend)?;
            if registered.is_some_and(|session| session.rank() < rank) {
                self.remove(scope, *backend)?;
            }
        }
        self.lower(scope, rank).map(Drained::of)
    }

    /// See [`crate::Authority::repair`].
    fn repair(&mut self, request: &RepairRequest) -> Result<Repaired, Self::Error> {
        let scope = &request.scope;
        let ruling = repair(self.cluster()?, self.mark_row(scope)?, request)?;
        let listed = self.carry_out(scope, &ruling)?;
        Ok(ruling.answer(listed))
    }

    /// See [`crate::Authority::forget`].
    fn forget(&mut self, gone: &[Backend]) -> Result<(), Self::Error> {
        for backend in gone {
            for scope in self.scopes_of(*backend)? {
                self.remove(&scope, *backend)?;
            }
        }
        Ok(())
    }

    /// Writes what the ruling says, and returns the sessions that it lists.
    fn carry_out<A>(
        &mut self,
        scope: &Scope,
        ruling: &Ruling<A>,
    ) -> Result<Vec<Registered>, Self::Error> {
        if let Some(row) = &ruling.writes {
            self.put_mark(scope, row)?;
        }
        if let Some(session) = ruling.registers {
            let before = self.registered(scope, session.backend)?;
            if before.is_none_or(|before| before.rank() < session.rank()) {
                self.put_session(scope, session)?;
            }
        }
        match ruling.lists {
            Some(rank) => self.lower(scope, rank),
            None => Ok(Vec::new()),
        }
    }

    /// Sessions below a rank. If there are none and the rank is the mark's, the scope is drained, so that later
    /// declarations skip the scan.
    fn lower(&mut self, scope: &Scope, rank: Rank) -> Result<Vec<Registered>, Self::Error> {
        let mut lower = self.sessions_of(scope)?;
        lower.retain(|session| session.rank() < rank);
        if lower.is_empty()
            && let Some(row) = self.mark_row(scope)?
            && row.rank() == rank
            && !row.drained
        {
            self.put_mark(scope, &row.with_drained(true))?;
        }
        Ok(lower)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::IfStale;

    const CLUSTER: Cluster = Cluster {
        system_identifier: 1,
        timeline: 1,
        postmaster_us: 1,
    };

    fn row(mark: u64) -> Option<MarkRow> {
        let mark = Mark::new(Token::new(mark).ok()?, 0, String::new());
        Some(MarkRow::raised(mark).with_drained(true))
    }

    /// In a drained scope, for an observed session, by at most 3, and up to 7 for a take.
    #[test]
    fn declarations_are_judged_by_the_mark() {
        let max = Token::MAX;
        for (mark, claim, answer, (writes, registers, lists)) in [
            (0, "5", "Accepted", (5, 5, 5)),
            (5, "5", "Accepted", (0, 5, 0)),
            (5, "8", "Accepted", (8, 8, 8)),
            (5, "9", "TooFar", (0, 0, 0)),
            (5, "4", "Stale", (5, 4, 0)),
            (0, "after:0", "Accepted", (1, 1, 1)),
            (0, "after:1", "MarkIsLower", (0, 0, 0)),
            (5, "after:5", "Accepted", (6, 6, 6)),
            (5, "after:4", "Stale", (0, 0, 0)),
            (5, "after:6", "MarkIsLower", (0, 0, 0)),
            (5, "next", "Accepted", (6, 6, 6)),
            (7, "next", "TooFar", (0, 0, 0)),
            (max, "next", "TooFar", (0, 0, 0)),
        ] {
            let backend = Backend {
                pid: 1,
                started_us: 2,
            };
            let claim: Claim = claim.parse().unwrap();
            let asked = Declaration {
                max_step: Some(3),
                max_token: Some(7),
                if_stale: IfStale::Register,
                ..Declaration::new(&Scope::default(), claim, backend, CLUSTER, "test")
            };
            let ruling = declare(Some(CLUSTER), row(mark), &asked, 0);
            let number = |token: Option<Token>| token.map_or(0, Token::get);
            let found = (
                number(ruling.writes.as_ref().map(|row| row.mark.token)),
                number(ruling.registers.map(|session| session.token)),
                number(ruling.lists.map(|rank| rank.token)),
            );
            let text = format!("{:?}", ruling.answer);
            assert!(text.starts_with(answer), "{mark} {claim}: {text}");
            assert_eq!(found, (writes, registers, lists), "{mark} {claim}");
            assert!(ruling.writes.is_none_or(|row| !row.drained));
            let elsewhere = declare(None, row(mark), &asked, 0);
            assert_eq!(
                elsewhere.answer,
                Declared::OtherCluster { recorded: None },
                "{claim}"
            );
        }
    }
}
