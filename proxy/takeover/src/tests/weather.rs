//! What happens to proxies, servers and authority, and what operators do.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use pgpalisade_authority::rule::Records;
use pgpalisade_authority::{
    Cluster, Enrolled, Mark, Repair, RepairRequest, Repaired, Scope, Token,
};
use pgpalisade_fence::mark_cache::MarkCache;

use super::calls::Work;
use super::epoch::Raise;
use super::guards::Guard;
use super::reaper::Round;
use super::splitmix::Random;
use super::witness;
use super::world::{Delivery, World};

/// Pause before a proxy that could not start tries again, and before an operator looks again.
const AGAIN: Duration = Duration::from_millis(200);

/// Scopes of a round that looks up what the cache has refused.
const SCOPES: usize = 100;

/// A kind of trouble.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Weather {
    /// A proxy is killed, and starts again.
    Crash,
    /// The authority goes away, or comes back.
    Outage,
    /// A proxy is led to another server: one that has started later, or one of before.
    Move,
    /// The policy of all proxies begins to observe, or to enforce.
    Reload,
    /// The authority is backed up, and later restored.
    Restore,
    Repair,
    /// Somebody else ends a session.
    Outsider,
}

impl Weather {
    /// A restore while servers move is another story; so is an observed declaration that is not answered.
    pub(super) fn draw(random: &mut Random) -> Vec<Self> {
        let mut all = Vec::new();
        let one_of = |random: &mut Random, kinds: [Self; 2]| kinds[random.index(2)];
        let moves = one_of(random, [Self::Move, Self::Restore]);
        let observes = one_of(random, [Self::Reload, Self::Outage]);
        for kind in [Self::Crash, Self::Repair, Self::Outsider, moves, observes] {
            if random.percent(40) {
                all.push(kind);
            }
        }
        all
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Down,
    Starting,
    Serving,
}

pub(super) struct Proxy {
    /// Number of its present life.
    pub(super) life: u64,
    pub(super) stage: Stage,
    /// Server that its address leads to.
    leads_to: Cluster,
    pub(super) control: Option<Cluster>,
    pub(super) marks: Arc<MarkCache>,
    pub(super) barriers: HashMap<super::barrier::Barrier, u64>,
    /// The epoch must rise.
    pub(super) is_due: bool,
}

impl Proxy {
    pub(super) fn new(leads_to: Cluster) -> Self {
        Self {
            life: 0,
            stage: Stage::Down,
            leads_to,
            control: None,
            marks: Arc::default(),
            barriers: HashMap::new(),
            is_due: true,
        }
    }

    /// Server of a new session.
    pub(super) fn server(&self) -> Option<Cluster> {
        self.control.filter(|_| self.stage == Stage::Serving)
    }
}

/// Number of the policy: an even one enforces, an odd one observes.
#[derive(Clone, Copy, Default)]
pub(super) struct Policy(pub(super) u64);

impl Policy {
    pub(super) const fn is_enforced(self) -> bool {
        self.0.is_multiple_of(2)
    }

    pub(super) const fn purpose(self) -> pgpalisade_fence::Purpose {
        if self.is_enforced() {
            pgpalisade_fence::Purpose::Admit
        } else {
            pgpalisade_fence::Purpose::Observe
        }
    }
}

impl World {
    pub(super) fn weather(&mut self) {
        let kinds = self.limits.weather.len();
        if self.out == Some(Guard::NoExpiry) {
            self.expire();
        }
        if kinds > 0 {
            let kind = self.limits.weather[self.random.index(kinds)];
            let proxy = self.random.index(self.limits.proxies);
            match kind {
                Weather::Crash => self.crash(proxy),
                Weather::Outage => self.authority.is_away ^= true,
                Weather::Move => self.lead_elsewhere(proxy),
                Weather::Reload => self.reload(),
                Weather::Restore => self.back_up_or_restore(),
                Weather::Repair => self.repair(),
                Weather::Outsider => {
                    let at = self.random.index(self.servers.processes.len());
                    let ended = self.servers.processes.keys().nth(at).copied();
                    ended
                        .into_iter()
                        .for_each(|backend| self.end_process(backend));
                }
            }
        }
        if self.out == Some(Guard::DecideByWriting) {
            self.authority.lagging = Some(self.authority.now.clone());
        }
        let after = self.random.delay(1000);
        self.later(after, Delivery::Weather);
    }

    fn expire(&mut self) {
        let at = self.random.index(self.authority.now.sessions.len());
        if let Some(key) = self.authority.now.sessions.keys().nth(at).cloned() {
            self.authority.now.sessions.remove(&key);
        }
    }

    pub(super) fn reload(&mut self) {
        self.policy.0 += 1;
        if !self.policy.is_enforced() {
            self.truth.waive();
        }
    }

    /// Its connections close, and what it waits for is forgotten. What it has sent is on its way.
    fn crash(&mut self, proxy: usize) {
        self.proxies[proxy] = Proxy::new(self.proxies[proxy].leads_to);
        self.calls.retain(|_, call| call.proxy != proxy);
        let its = self
            .sessions
            .iter()
            .filter(|(_, session)| session.proxy == proxy);
        let its: Vec<u64> = its.map(|(id, _)| *id).collect();
        its.into_iter().for_each(|id| self.close(id));
        self.lose_pool(proxy);
        self.start_again(proxy);
    }

    pub(super) fn start_again(&mut self, proxy: usize) {
        let life = self.number();
        self.proxies[proxy].stage = Stage::Down;
        self.proxies[proxy].life = life;
        let after = AGAIN + self.random.delay(500);
        self.later(after, Delivery::Start(proxy, life));
    }

    /// A start, or a new control connection of a proxy that serves.
    pub(super) fn start(&mut self, proxy: usize, life: u64) {
        if self.proxies[proxy].life != life {
            return;
        }
        let is_connected = self.connect_control(proxy);
        match (self.proxies[proxy].stage, is_connected) {
            (Stage::Serving, true) | (Stage::Starting, _) => {}
            (Stage::Serving, false) => self.later(AGAIN, Delivery::Start(proxy, life)),
            (Stage::Down, false) => self.start_again(proxy),
            (Stage::Down, true) => {
                self.proxies[proxy].stage = Stage::Starting;
                for (scope, mark) in self.authority.now.marks() {
                    self.proxies[proxy].marks.note(&scope, &mark);
                }
                self.call(proxy, Work::Raise(Raise::new("")));
                self.later(AGAIN, Delivery::Upkeep(proxy, life));
            }
        }
    }

    /// `prepare::enrol` and `witness::compare`.
    fn connect_control(&mut self, proxy: usize) -> bool {
        let server = self.proxies[proxy].leads_to;
        self.proxies[proxy].control = None;
        if self.authority.is_away {
            return false;
        }
        let store = &mut self.authority.now;
        if self.out == Some(Guard::PostmasterOnlyRises) {
            store.cluster = Some(server);
        } else if let Enrolled::Refused { recorded } = store.enrol(server).unwrap() {
            if self.random.percent(30) {
                self.proxies[proxy].leads_to = recorded;
            }
            return false;
        }
        if !self.forgotten(server).is_empty() {
            if !self.is_recovering {
                self.is_recovering = true;
                self.later(AGAIN, Delivery::Recover(server));
            }
            return false;
        }
        for (scope, mark) in self.authority.now.marks() {
            self.servers.raise_witness(server, &scope, &mark);
        }
        self.proxies[proxy].control = Some(server);
        true
    }

    /// Marks that the witness has, and the authority has forgotten.
    fn forgotten(&mut self, server: Cluster) -> Vec<(Scope, Mark)> {
        let mut seen = self.servers.witness(server).clone();
        if self.out == Some(Guard::EpochCompared) {
            seen.retain(|scope, _| !scope.is_epoch());
        }
        let marks = self.authority.now.marks().into_iter().collect();
        let forgotten = witness::forgotten(&seen, &marks).into_iter();
        forgotten
            .map(|(scope, ..)| (scope.clone(), seen[scope].clone()))
            .collect()
    }

    /// Regular work.
    pub(super) fn upkeep(&mut self, proxy: usize, life: u64) {
        let proxy_now = &mut self.proxies[proxy];
        if proxy_now.life != life {
            return;
        }
        if self.out != Some(Guard::RefusalsConfirmed) {
            for scope in proxy_now.marks.take_refusing(SCOPES) {
                self.call(proxy, Work::Confirm(scope));
            }
        }
        let proxy_now = &mut self.proxies[proxy];
        if proxy_now.server().is_some() {
            if std::mem::take(&mut proxy_now.is_due) {
                self.call(proxy, Work::Raise(Raise::new("")));
            } else {
                self.call(proxy, Work::Reap(Round::default()));
            }
        }
        let after = AGAIN + self.random.delay(2000);
        self.later(after, Delivery::Upkeep(proxy, life));
    }

    /// The watch of the authority, of which little is expected.
    pub(super) fn tell_all(&mut self, scope: &Scope, mark: &Mark) {
        for proxy in 0..self.limits.proxies {
            if !self.random.percent(4 * self.limits.lost) {
                let life = self.proxies[proxy].life;
                self.soon(Delivery::Note(proxy, life, scope.clone(), mark.clone()));
            }
        }
    }

    /// Another server is on record.
    pub(super) fn on_cluster(&mut self, proxy: usize, recorded: Cluster) {
        self.proxies[proxy].leads_to = recorded;
        let life = self.proxies[proxy].life;
        self.soon(Delivery::Start(proxy, life));
    }

    /// Its control connection stays where it is until it breaks.
    fn lead_elsewhere(&mut self, proxy: usize) {
        let at = self.random.index(2 * self.servers.known.len());
        let other = self.servers.known.get(at).copied();
        let current = self
            .authority
            .now
            .cluster
            .unwrap_or(self.proxies[proxy].leads_to);
        let other = other.unwrap_or_else(|| self.servers.start_after(current));
        self.proxies[proxy].leads_to = other;
        let (life, after) = (self.proxies[proxy].life, self.random.delay(2000));
        self.later(after, Delivery::Start(proxy, life));
    }

    /// A restore is noticed if an epoch was raised since the backup, or if a mark is missing. A recovery needs every
    /// mark that was answered in the witness, where who joins a mark writes it after the answer.
    fn back_up_or_restore(&mut self) {
        let Some((store, at)) = self.authority.backup.take() else {
            self.authority.backup = Some((self.authority.now.clone(), self.now));
            self.authority.is_joined = false;
            return;
        };
        let is_noticed = self.raised_at > at || self.truth.is_forgotten(|scope| store.rank(scope));
        let is_noticed = is_noticed || !self.authority.is_joined;
        if self.authority.is_away || !is_noticed || !self.truth.is_witnessed() {
            return;
        }
        self.authority.now = store;
        self.forget_requests();
        // A running proxy has seen more than the store has, and accepts nothing.
        self.calls.clear();
        for proxy in 0..self.limits.proxies {
            self.crash(proxy);
        }
    }

    /// `Recovery::perform`.
    pub(super) fn recover(&mut self, server: Cluster) {
        let ends_all = self.keeps(Guard::RecoverEndsAll);
        let left: Vec<_> = self
            .servers
            .on(server)
            .map(|(backend, _)| *backend)
            .collect();
        if ends_all && !left.is_empty() {
            left.into_iter()
                .for_each(|backend| self.end_process(backend));
            return self.later(AGAIN, Delivery::Recover(server));
        }
        let marks = self.forgotten(server);
        let store = &mut self.authority.now;
        let seen = store.cluster;
        let _accepted = store.recover(seen, server, &marks).unwrap();
        self.is_recovering = false;
    }

    fn repair(&mut self) {
        let scope = self.scopes[self.random.index(self.scopes.len())].clone();
        let Some(cluster) = self
            .authority
            .now
            .cluster
            .filter(|_| !self.authority.is_away)
        else {
            return;
        };
        let Some(expected) = self.authority.now.rank(&scope) else {
            return;
        };
        if !self.forgotten(cluster).is_empty() {
            return;
        }
        let to = 1 + self.random.below(expected.token.get() + 1);
        let at = i64::try_from(self.now.as_micros()).unwrap();
        let repair = Repair::new(at, "", "", expected.token, Token::new(to).unwrap());
        let request = RepairRequest {
            scope: scope.clone(),
            expected,
            cluster,
            repair,
        };
        let repaired = self.authority.now.repair(&request).unwrap();
        if let Repaired::Done { mark, lower } = repaired {
            self.tell_all(&scope, &mark);
            self.proxies[self.limits.proxies].control = Some(cluster);
            self.end_for_repair(cluster, &scope, mark, &lower);
        }
    }

    /// Every proxy is led to the server on record.
    pub(super) fn settle(&mut self) {
        self.authority.is_away = false;
        let recorded = self.authority.now.cluster;
        for proxy in 0..self.limits.proxies {
            recorded
                .into_iter()
                .for_each(|recorded| self.on_cluster(proxy, recorded));
        }
    }
}
