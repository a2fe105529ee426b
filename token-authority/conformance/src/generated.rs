//! Generated sequences of steps: a store answers them as the rule does, and holds the same in the end.

use std::fmt::Debug;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use pgpalisade_authority::rule::Records as _;
use pgpalisade_authority::{
    Answer, Authority, Backend, Claim, Cluster, Declaration, IfStale, Incarnation, LeaseId,
    LeaseStep, LeaseTime, Mark, NoIncarnation, Rank, Repair, RepairRequest, Scope, TakeId, Token,
};

use super::memory::MemoryStore;
use super::{fresh_backend, fresh_scope, token};

const STEPS: usize = 60;
const HOUR: Duration = Duration::from_secs(3600);

/// Runs generated cases. The steps of a case go to the handles in turn, so that none knows what the others wrote.
pub async fn follows_the_rule(handles: &[&dyn Authority], cases: usize, seed: u64) {
    println!("generated cases from seed {seed}");
    for seed in (seed..).take(cases) {
        let mut case = Case::new(seed);
        let mut memory = MemoryStore::default();
        let begin = handles.first().expect("a handle").cluster().await;
        let mut step = Step::Recover(
            begin.expect("cluster answers"),
            cluster(7, 1, 1),
            Vec::new(),
        );
        let mut taken: Vec<Step> = Vec::new();
        for store in handles.iter().cycle().take(STEPS) {
            let expect = step.by_the_rule(&mut memory).expect("few repairs");
            let found = step.on(*store).await.expect("the step is answered");
            taken.push(step);
            assert_eq!(found, expect, "seed {seed}, after {taken:#?}");
            step = case.next(&memory, &taken);
        }
        let expect = shown(&(
            memory.cluster().ok().flatten(),
            memory.marks(),
            memory.sessions(),
        ));
        let store = handles.last().expect("a handle");
        let found = case.contents(*store).await.expect("contents are read");
        assert_eq!(found, expect, "seed {seed}, after {taken:#?}");
        store.forget(&case.backends).await.expect("forget answers");
    }
}

#[derive(Debug, Clone)]
enum Step {
    Enrol(Cluster),
    Recover(Option<Cluster>, Cluster, Vec<(Scope, Mark)>),
    Declare(Declaration),
    Drained(Scope, Rank, Vec<Backend>),
    Forget(Vec<Backend>),
    Repair(RepairRequest),
    Lease(Scope, LeaseId, LeaseStep),
}

impl Step {
    fn by_the_rule(&self, memory: &mut MemoryStore) -> Result<String, NoIncarnation> {
        Ok(match self {
            Self::Enrol(cluster) => shown(&memory.enrol(*cluster)?),
            Self::Recover(seen, cluster, marks) => shown(&memory.recover(*seen, *cluster, marks)?),
            Self::Declare(asked) => shown(&memory.declare(asked, 0)?),
            Self::Drained(scope, rank, gone) => shown(&memory.drained(scope, *rank, gone)?),
            Self::Forget(gone) => shown(&memory.forget(gone)?),
            Self::Repair(request) => shown(&memory.repair(request)?),
            Self::Lease(scope, holder, step) => shown(&memory.lease(scope, *holder, *step)),
        })
    }

    async fn on(&self, store: &dyn Authority) -> Answer<String> {
        Ok(match self {
            Self::Enrol(cluster) => shown(&store.enrol(*cluster).await?),
            Self::Recover(seen, cluster, marks) => {
                shown(&store.recover(*seen, *cluster, marks).await?)
            }
            Self::Declare(asked) => shown(&store.declare(asked).await?),
            Self::Drained(scope, rank, gone) => shown(&store.drained(scope, *rank, gone).await?),
            Self::Forget(gone) => shown(&store.forget(gone).await?),
            Self::Repair(request) => shown(&store.repair(request).await?),
            Self::Lease(scope, holder, step) => shown(&store.lease(scope, *holder, *step).await?),
        })
    }
}

/// An answer as text, without the times of the store.
fn shown(answer: &impl Debug) -> String {
    let text = format!("{answer:?}");
    let is_time = |part: &&str| part.contains("raised_at: ") || part.contains("since: ");
    let parts: Vec<&str> = text.split(", ").filter(|part| !is_time(part)).collect();
    parts.join(", ")
}

fn cluster(system_identifier: u64, timeline: u32, postmaster_us: i64) -> Cluster {
    Cluster {
        system_identifier,
        timeline,
        postmaster_us,
    }
}

fn one_of<T: Clone>(rng: &mut StdRng, all: &[T]) -> T {
    all.choose(rng).expect("some").clone()
}

/// Subjects of a case's steps: few of each kind, so that they meet.
struct Case {
    rng: StdRng,
    scopes: [Scope; 2],
    backends: [Backend; 4],
    holders: [LeaseId; 2],
}

impl Case {
    fn new(seed: u64) -> Self {
        let first = fresh_scope();
        let second = Scope::new(&format!("{first}/x")).expect("a valid scope");
        let [a, b, c] = [fresh_backend(), fresh_backend(), fresh_backend()];
        let started_us = a.started_us + 1;
        Self {
            rng: StdRng::seed_from_u64(seed),
            scopes: [first, second],
            // The last one has the pid of the first.
            backends: [a, b, c, Backend { started_us, ..a }],
            holders: [LeaseId::random(), LeaseId::random()],
        }
    }

    async fn contents(&self, store: &dyn Authority) -> Answer<String> {
        let (mut marks, mut sessions) = (store.marks().await?, store.sessions().await?);
        for scope in &self.scopes {
            let listed = marks.iter().find(|(of, _)| of == scope);
            assert_eq!(
                store.mark(scope).await?.as_ref(),
                listed.map(|(_, mark)| mark)
            );
        }
        marks.retain(|(scope, _)| self.scopes.contains(scope));
        marks.sort_by(|(a, _), (b, _)| a.cmp(b));
        sessions.retain(|(scope, _)| self.scopes.contains(scope));
        sessions.sort_unstable();
        Ok(shown(&(store.cluster().await?, marks, sessions)))
    }

    fn next(&mut self, memory: &MemoryStore, taken: &[Step]) -> Step {
        if self.one_in(8) {
            // A message may be repeated, and come late.
            let late = taken.rchunks(4).next().expect("the first step");
            return one_of(&mut self.rng, late);
        }
        let scope = one_of(&mut self.rng, &self.scopes);
        match self.rng.random_range(0..100) {
            0..=5 => Step::Enrol(self.any_cluster()),
            6..=10 => self.recover(memory),
            11..=23 => Step::Drained(
                scope.clone(),
                self.rank(memory, &scope),
                self.some_backends(),
            ),
            24..=29 => Step::Forget(self.some_backends()),
            30..=39 => Step::Repair(self.repair(memory, scope)),
            40..=47 => self.lease(scope),
            _ => Step::Declare(self.declaration(memory, scope)),
        }
    }

    fn one_in(&mut self, count: u32) -> bool {
        self.rng.random_ratio(1, count)
    }

    fn token(&mut self) -> Token {
        match self.rng.random_range(0..40) {
            0 => token(Token::MAX),
            1 => token(Token::MAX - 1),
            _ => token(self.rng.random_range(1..=6)),
        }
    }

    fn some_backends(&mut self) -> Vec<Backend> {
        let count = self.rng.random_range(0..=2);
        self.backends
            .choose_multiple(&mut self.rng, count)
            .copied()
            .collect()
    }

    fn any_cluster(&mut self) -> Cluster {
        let mut number = || self.rng.random_range(1..=3_u32);
        cluster(6 + u64::from(number()) / 2, number(), number().into())
    }

    /// Mostly the recorded one.
    fn cluster(&mut self, memory: &MemoryStore) -> Cluster {
        match memory.cluster() {
            Ok(Some(recorded)) if !self.one_in(10) => recorded,
            _ => self.any_cluster(),
        }
    }

    /// Mostly the mark's, or one of its incarnation.
    fn rank(&mut self, memory: &MemoryStore, scope: &Scope) -> Rank {
        let row = memory.mark_row(scope).ok().flatten();
        let mark = row.map_or(token(1).into(), |row| row.mark.rank());
        let incarnation = Incarnation::new(self.rng.random_range(0..=2));
        match self.rng.random_range(0..6) {
            0 => Rank {
                incarnation,
                token: self.token(),
            },
            1 | 2 => Rank {
                token: self.token(),
                ..mark
            },
            _ => mark,
        }
    }

    fn declaration(&mut self, memory: &MemoryStore, scope: Scope) -> Declaration {
        let claim = match self.rng.random_range(0..10) {
            0 => Claim::After(None),
            1 => Claim::After(Some(self.token())),
            2 => Claim::After(Some(self.rank(memory, &scope).token)),
            3 => Claim::Next,
            4 => Claim::Lease(LeaseTime::WhileHeld),
            5 | 6 => Claim::Token(self.rank(memory, &scope).token),
            _ => Claim::Token(self.token()),
        };
        let backend = one_of(&mut self.rng, &self.backends);
        let mut number = |most: u64| self.one_in(3).then(|| self.rng.random_range(0..=most));
        let no_limit = Some(u64::MAX);
        Declaration {
            max_step: number(4).or(number(1).and(no_limit)),
            max_token: number(7).or(number(1).and(no_limit)),
            take: number(1)
                .or(number(1))
                .map(|number| TakeId::new(backend, number)),
            if_stale: one_of(&mut self.rng, &[IfStale::Register, IfStale::Refuse]),
            by: "é".repeat(self.rng.random_range(99..=101)),
            ..Declaration::new(&scope, claim, backend, self.cluster(memory), "")
        }
    }

    fn new_repair(&mut self, from: Token) -> Repair {
        let reason = one_of(&mut self.rng, &["one", "other"]);
        Repair::new(1, "case", reason, from, self.token())
    }

    fn repair(&mut self, memory: &MemoryStore, scope: Scope) -> RepairRequest {
        let expected = self.rank(memory, &scope);
        RepairRequest {
            expected,
            cluster: self.cluster(memory),
            repair: self.new_repair(expected.token),
            scope,
        }
    }

    fn recover(&mut self, memory: &MemoryStore) -> Step {
        let mut marks = Vec::new();
        // A scope may come more than once.
        for _ in 0..self.rng.random_range(0..=4) {
            let scope = one_of(&mut self.rng, &self.scopes);
            let Rank { incarnation, token } = self.rank(memory, &scope);
            let repair = self.one_in(2).then(|| Box::new(self.new_repair(token)));
            let mark = Mark {
                incarnation,
                repair,
                ..Mark::new(token, 0, "recovery".to_owned())
            };
            marks.push((scope, mark));
        }
        let seen = Some(self.cluster(memory));
        Step::Recover(seen, self.any_cluster(), marks)
    }

    fn lease(&mut self, scope: Scope) -> Step {
        let steps = [
            LeaseStep::Acquire(HOUR),
            // Shorter than the lease of another may still be.
            LeaseStep::Acquire(HOUR / 12),
            LeaseStep::Renew(HOUR),
            LeaseStep::Release,
        ];
        let holder = one_of(&mut self.rng, &self.holders);
        Step::Lease(scope, holder, one_of(&mut self.rng, &steps))
    }
}
