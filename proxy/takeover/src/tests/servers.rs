//! The servers: processes, their commits, and the copies of the marks.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use pgpalisade_authority::{Backend, Cluster, Mark, Rank, Scope};

use super::guards::Guard;
use super::machine::tests::OURS;
use super::promises::{CURRENT_ENDED, LATE_COMMIT, LATE_SIGHT, STRANGER_AWAITED, STRANGER_ENDED};
use super::world::{Delivery, World};

/// Pause before a process that commits looks again whether it was told to end.
const COMMITS: Duration = Duration::from_millis(5);

/// The same of one whose client has left.
const NOTICES: Duration = Duration::from_millis(50);

/// A write of a session, by the scope that it needs and the rank that it was permitted for.
#[derive(Clone, Debug)]
pub(super) struct Write {
    pub(super) scope: Scope,
    pub(super) rank: Rank,
}

#[derive(Debug)]
pub(super) enum Work {
    Idle,
    Running(Write),
    /// The commit is on disk, and not yet visible to snapshots.
    Durable(Write),
}

/// A living server process.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) session: u64,
    pub(super) server: Cluster,
    pub(super) work: Work,
    /// Its end is under way.
    pub(super) ends: bool,
    /// It misses the next signal.
    pub(super) is_deaf: bool,
    /// Its proxy waits for its end, to release the record: the proxy, and its life.
    pub(super) parted: Option<(usize, u64)>,
}

pub(super) struct Servers {
    pub(super) known: Vec<Cluster>,
    pub(super) processes: BTreeMap<Backend, Process>,
    pub(super) witnesses: BTreeMap<i64, HashMap<Scope, Mark>>,
}

impl Default for Servers {
    fn default() -> Self {
        Self {
            known: vec![OURS],
            processes: BTreeMap::new(),
            witnesses: BTreeMap::new(),
        }
    }
}

impl Servers {
    /// A server that starts later with the storage of this one.
    pub(super) fn start_after(&mut self, of: Cluster) -> Cluster {
        let last = self.known.iter().map(|known| known.postmaster_us).max();
        let next = Cluster {
            postmaster_us: 1 + last.unwrap_or_default(),
            ..of
        };
        let witness = self.witness(of).clone();
        self.witnesses.insert(next.postmaster_us, witness);
        self.known.push(next);
        next
    }

    pub(super) fn witness(&mut self, of: Cluster) -> &mut HashMap<Scope, Mark> {
        self.witnesses.entry(of.postmaster_us).or_default()
    }

    pub(super) fn raise_witness(&mut self, of: Cluster, scope: &Scope, mark: &Mark) {
        let witness = self.witness(of);
        if witness.get(scope).map(Mark::rank) < Some(mark.rank()) {
            witness.insert(scope.clone(), mark.clone());
        }
    }

    pub(super) fn on(&self, server: Cluster) -> impl Iterator<Item = (&Backend, &Process)> {
        let all = self.processes.iter();
        all.filter(move |(_, process)| process.server == server)
    }
}

impl World {
    /// A process id that no process of this server has.
    pub(super) fn fork(&mut self, server: Cluster, session: u64) -> Option<Backend> {
        let is_free = |pid: &i32| !self.servers.on(server).any(|(b, _)| b.pid == *pid);
        let pid = (1..=self.limits.pids).find(is_free)?;
        let started_us = self.number().cast_signed();
        let backend = Backend { pid, started_us };
        let is_deaf = self.random.percent(self.limits.deaf);
        let process = Process {
            session,
            server,
            work: Work::Idle,
            ends: false,
            is_deaf,
            parted: None,
        };
        self.servers.processes.insert(backend, process);
        Some(backend)
    }

    pub(super) fn execute(&mut self, backend: Backend, write: Write) {
        if let Some(process) = self.servers.processes.get_mut(&backend) {
            process.work = Work::Running(write);
            let after = self.random.delay(self.limits.statement);
            self.later(after, Delivery::Commit(backend));
        }
    }

    pub(super) fn commit(&mut self, backend: Backend) {
        let Some(process) = self.servers.processes.get_mut(&backend) else {
            return;
        };
        let Work::Running(write) = std::mem::replace(&mut process.work, Work::Idle) else {
            return;
        };
        let server = process.server.postmaster_us;
        let is_late = self.truth.is_late(&write.scope, server, write.rank);
        process.work = Work::Durable(write);
        if is_late {
            return self.breaks(LATE_COMMIT);
        }
        self.soon(Delivery::Show(backend));
    }

    /// The commit is visible, and the client has its answer.
    pub(super) fn show(&mut self, backend: Backend) {
        let Some(process) = self.servers.processes.get_mut(&backend) else {
            return;
        };
        let Work::Durable(write) = std::mem::replace(&mut process.work, Work::Idle) else {
            return;
        };
        let (server, session) = (process.server.postmaster_us, process.session);
        if self.truth.is_late(&write.scope, server, write.rank) {
            return self.breaks(LATE_SIGHT);
        }
        if let Some(session) = self.sessions.get_mut(&session) {
            session.is_busy = false;
        }
    }

    /// The process of a closed connection goes on until it notices.
    pub(super) fn abandon(&mut self, backend: Backend) {
        let after = self.random.delay(3 * self.limits.death);
        self.later(after, Delivery::Dies(backend));
    }

    /// The process ends soon, unless it commits first.
    pub(super) fn end_process(&mut self, backend: Backend) {
        if let Some(process) = self.servers.processes.get_mut(&backend)
            && !std::mem::replace(&mut process.ends, true)
        {
            let after = self.random.delay(self.limits.death);
            self.later(after, Delivery::Dies(backend));
        }
    }

    pub(super) fn die(&mut self, backend: Backend) {
        let Some(process) = self.servers.processes.get(&backend) else {
            return;
        };
        let waits = match process.work {
            Work::Durable(_) => Some(COMMITS),
            // Nobody has told it. It notices after its statement.
            Work::Running(_) if !process.ends => Some(NOTICES),
            _ => None,
        };
        if let Some(after) = waits {
            return self.later(after, Delivery::Dies(backend));
        }
        let (session, parted) = (process.session, process.parted);
        self.servers.processes.remove(&backend);
        // Its proxy may look at something else.
        let is_busy = self.sessions.get(&session).is_some_and(|s| s.is_busy);
        let most = if is_busy { 1000 } else { self.limits.delay };
        let after = self.random.delay(most);
        self.later(after, Delivery::Notice(session));
        if let Some((proxy, life)) = parted {
            self.soon(Delivery::Release(proxy, life, backend));
        }
    }

    /// `pg_terminate_backend` for each that matches.
    pub(super) fn terminate(&mut self, server: Cluster, old: &[Backend]) {
        let is_old = |backend: &Backend| match self.out {
            Some(Guard::TerminateByStart) => old.iter().any(|o| o.pid == backend.pid),
            _ => old.contains(backend),
        };
        let all = self.servers.on(server).map(|(backend, _)| *backend);
        let told: Vec<Backend> = all.filter(is_old).collect();
        for backend in told {
            self.tells_to_end(backend);
            if !old.contains(&backend) {
                self.breaks(STRANGER_ENDED);
            }
            if self.out == Some(Guard::EndedMovers) && self.is_current(backend) {
                self.breaks(CURRENT_ENDED);
            }
            let process = self.servers.processes.get_mut(&backend);
            if process.is_some_and(|process| !std::mem::take(&mut process.is_deaf)) {
                self.end_process(backend);
            }
        }
    }

    /// Whether all tokens that the session holds are the marks.
    fn is_current(&self, backend: Backend) -> bool {
        let process = self.servers.processes.get(&backend);
        let session = process.and_then(|process| self.sessions.get(&process.session));
        session.is_some_and(|session| {
            let mut bound = session.bound().peekable();
            let is_mark =
                |(scope, rank): (&Scope, Rank)| self.authority.now.rank(scope) == Some(rank);
            bound.peek().is_some() && bound.all(is_mark)
        })
    }

    pub(super) fn alive(&mut self, server: Cluster, old: &[Backend]) -> BTreeSet<Backend> {
        let by_start = self.keeps(Guard::LookByStart);
        let mut alive = BTreeSet::new();
        for backend in old {
            let is_there = |(b, _): (&Backend, &Process)| match by_start {
                true => b == backend,
                false => b.pid == backend.pid,
            };
            if self.servers.on(server).any(is_there) {
                alive.insert(*backend);
            }
        }
        if alive
            .iter()
            .any(|b| !self.servers.processes.contains_key(b))
        {
            self.breaks(STRANGER_AWAITED);
        }
        alive
    }
}
