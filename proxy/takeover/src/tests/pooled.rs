//! The shipped pool over the sessions of the simulation: each is a server connection that clients of its proxy share.
//! A client wants a token for its transaction, or none. The driver follows the rules of `proxy/server`.

use std::collections::BTreeMap;
use std::time::Duration;

use pgpalisade_authority::{Backend, Token};
use pgpalisade_pool::{Access, BackendId, Budget, ClientId, Debt, Limits, Order, Pool, Residue};

use super::promises::{Broken, READER_ENDED, STUCK, WRONG_KEY};
use super::world::{Delivery, World};

const CLIENTS: u64 = 4;
const TICK: Duration = Duration::from_millis(100);
/// Pause before a client looks again whether its session has an answer.
const LOOK: Duration = Duration::from_millis(10);

/// A rule of the driver that a run can do without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flaw {
    /// A connection that was registered is given back as one that was not.
    RegistrationHidden,
    /// One that may be registered, because its declaration has failed, is given back.
    DoubtKept,
    /// The pool is not told that a takeover has ended one.
    EndUntold,
}

impl Flaw {
    pub(super) const ALL: [(Self, Broken); 3] = [
        (Self::RegistrationHidden, WRONG_KEY),
        (Self::DoubtKept, READER_ENDED),
        (Self::EndUntold, STUCK),
    ];
}

/// Scope and token.
type Key = (usize, u64);

struct Places(usize);

impl Budget for Places {
    fn take(&mut self) -> bool {
        let is_free = self.0 > 0;
        self.0 -= usize::from(is_free);
        is_free
    }

    fn give_back(&mut self) {
        self.0 += 1;
    }

    fn forgo(&mut self) {}

    fn urge(&mut self) {}

    fn debt(&self) -> Debt {
        Debt::Nothing
    }

    fn read(&mut self) -> bool {
        true
    }

    fn may_read(&self) -> bool {
        true
    }

    fn end_read(&mut self) {}

    fn urge_read(&mut self) {}

    fn forgo_read(&mut self) {}

    fn owes_read(&self) -> bool {
        false
    }

    fn pin(&mut self) -> bool {
        false
    }

    fn unpin(&mut self) {}
}

#[derive(Debug)]
pub(super) enum PoolEvent {
    Tick,
    Turn(ClientId),
    Open(BackendId),
    ResetDone(BackendId),
    Close(BackendId),
}

struct Client {
    access: Access<Key>,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Thinks,
    Waits,
    Has(BackendId, Work),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Work {
    Begins,
    Declares,
    Runs,
}

/// The pool of a proxy in one of its lives.
struct Worker {
    life: u64,
    pool: Pool<(), Key, Places>,
    /// Session of each server connection.
    sessions: BTreeMap<BackendId, u64>,
    clients: BTreeMap<ClientId, Client>,
}

impl Worker {
    fn lost(&mut self, backend: BackendId) -> Option<ClientId> {
        self.sessions.remove(&backend);
        let has = |client: &Client| matches!(client.stage, Stage::Has(of, _) if of == backend);
        let owner = self.clients.iter_mut().find(|(_, client)| has(client));
        owner.map(|(id, client)| {
            client.stage = Stage::Thinks;
            *id
        })
    }
}

pub(super) struct Pools {
    out: Option<Flaw>,
    /// By proxy.
    workers: Vec<Worker>,
}

impl World {
    pub(super) fn with_pools(mut self, out: Option<Flaw>) -> Self {
        self.pools = Some(Pools {
            out,
            workers: Vec::new(),
        });
        for proxy in 0..self.limits.proxies {
            let worker = self.worker(proxy);
            self.pools.as_mut().unwrap().workers.push(worker);
        }
        self
    }

    fn worker(&mut self, proxy: usize) -> Worker {
        let life = self.number();
        let limits = Limits {
            login: usize::MAX,
            undecided: usize::MAX,
            wait: Duration::from_secs(2),
            idle: Duration::from_secs(3),
            lifetime: Duration::from_secs(20),
        };
        let clients = (0..CLIENTS).map(|id| {
            let client = Client {
                access: Access::ReadOnly,
                stage: Stage::Thinks,
            };
            self.pool_event(proxy, life, 500, PoolEvent::Turn(ClientId(id)));
            (ClientId(id), client)
        });
        let clients = clients.collect();
        self.pool_event(proxy, life, 100, PoolEvent::Tick);
        let places = Places(1 + self.random.index(3));
        Worker {
            life,
            pool: Pool::new(limits, places),
            sessions: BTreeMap::new(),
            clients,
        }
    }

    fn pool_event(&mut self, proxy: usize, life: u64, most: u64, event: PoolEvent) {
        let after = self.random.delay(most);
        self.later(after, Delivery::Pool(proxy, life, event));
    }

    fn soon_for(&mut self, proxy: usize, most: u64, event: PoolEvent) {
        let life = self.at(proxy).life;
        self.pool_event(proxy, life, most, event);
    }

    fn at(&mut self, proxy: usize) -> &mut Worker {
        &mut self.pools.as_mut().unwrap().workers[proxy]
    }

    fn has(&self, flaw: Flaw) -> bool {
        self.pools
            .as_ref()
            .is_some_and(|pools| pools.out == Some(flaw))
    }

    pub(super) fn pool(&mut self, proxy: usize, life: u64, event: PoolEvent) {
        if self.at(proxy).life != life {
            return;
        }
        let now = self.now;
        match event {
            PoolEvent::Tick => {
                self.at(proxy).pool.tick(now);
                self.later(TICK, Delivery::Pool(proxy, life, PoolEvent::Tick));
            }
            PoolEvent::Turn(client) => self.turn(proxy, client),
            PoolEvent::Open(backend) => {
                let server = self.proxies[proxy].server();
                match server.and_then(|server| self.connect_to(proxy, server)) {
                    Some(session) => {
                        self.at(proxy).sessions.insert(backend, session);
                        self.at(proxy).pool.opened(now, backend, session);
                    }
                    None => self.at(proxy).pool.ended(now, backend),
                }
            }
            PoolEvent::ResetDone(backend) => self.at(proxy).pool.reset_done(now, backend),
            PoolEvent::Close(backend) => self.close_backend(proxy, backend),
        }
        self.obey(proxy);
    }

    fn obey(&mut self, proxy: usize) {
        while let Some(order) = self.at(proxy).pool.next_order() {
            match order {
                Order::Open { backend, .. } => self.soon_for(proxy, 20, PoolEvent::Open(backend)),
                Order::Reset(backend) => self.soon_for(proxy, 20, PoolEvent::ResetDone(backend)),
                Order::Close(backend) => self.soon_for(proxy, 20, PoolEvent::Close(backend)),
                Order::Refuse(client, _) => self.think(proxy, client),
                Order::Lend {
                    client, backend, ..
                } => {
                    let session = self.at(proxy).sessions.get(&backend).copied();
                    let Some(asks) = self.at(proxy).clients.get_mut(&client) else {
                        continue;
                    };
                    asks.stage = Stage::Has(backend, Work::Begins);
                    let access = asks.access.clone();
                    if session.is_some_and(|session| self.is_of_other_key(session, &access)) {
                        self.breaks(WRONG_KEY);
                    }
                    self.soon_for(proxy, 20, PoolEvent::Turn(client));
                }
            }
        }
    }

    /// Whether a session is bound to another token than this.
    fn is_of_other_key(&self, session: u64, access: &Access<Key>) -> bool {
        let session = self.sessions.get(&session);
        let mut keys = session.into_iter().flat_map(|session| session.keys());
        keys.any(|key| *access != Access::Tokens(key))
    }

    fn think(&mut self, proxy: usize, client: ClientId) {
        if let Some(client) = self.at(proxy).clients.get_mut(&client) {
            client.stage = Stage::Thinks;
        }
        self.soon_for(proxy, 500, PoolEvent::Turn(client));
    }

    /// One step of a client.
    fn turn(&mut self, proxy: usize, id: ClientId) {
        let Some(stage) = self.at(proxy).clients.get(&id).map(|client| client.stage) else {
            return;
        };
        match stage {
            Stage::Thinks if !self.is_calm => self.want(proxy, id),
            Stage::Thinks | Stage::Waits => {}
            Stage::Has(backend, work) => self.work(proxy, id, backend, work),
        }
    }

    fn want(&mut self, proxy: usize, id: ClientId) {
        let at = self.random.index(self.scopes.len());
        let access = if self.random.percent(50) {
            Access::ReadOnly
        } else {
            let mark = self.authority.now.rank(&self.scopes[at]);
            let mark = mark.map_or(1, |mark| mark.token.get());
            let is_next = self.random.percent(self.limits.raises);
            Access::Tokens((at, mark + u64::from(is_next)))
        };
        let now = self.now;
        let worker = self.at(proxy);
        if let Some(client) = worker.clients.get_mut(&id) {
            (client.access, client.stage) = (access.clone(), Stage::Waits);
        }
        worker.pool.wanted(now, id, &(), access);
    }

    fn work(&mut self, proxy: usize, id: ClientId, backend: BackendId, work: Work) {
        let worker = self.at(proxy);
        let Some(session) = worker.sessions.get(&backend).copied() else {
            return;
        };
        let access = worker.clients[&id].access.clone();
        let Some(of) = self.sessions.get(&session) else {
            return;
        };
        if of.is_busy {
            let life = self.at(proxy).life;
            return self.later(LOOK, Delivery::Pool(proxy, life, PoolEvent::Turn(id)));
        }
        let next = match (access, work) {
            (Access::Tokens(key), Work::Begins | Work::Declares)
                if of.keys().any(|has| has == key) =>
            {
                self.write(session, key.0);
                Work::Runs
            }
            (Access::Tokens((at, token)), Work::Begins) => {
                self.declare(session, at, Token::new(token).unwrap().into());
                Work::Declares
            }
            (Access::New | Access::ReadOnly, Work::Begins) => Work::Runs,
            (_, Work::Declares | Work::Runs) => {
                return self.give_back(proxy, id, backend, session);
            }
        };
        // The declaration may have closed the session.
        if let Some(client) = self.at(proxy).clients.get_mut(&id)
            && client.stage == Stage::Has(backend, work)
        {
            client.stage = Stage::Has(backend, next);
            self.soon_for(proxy, 20, PoolEvent::Turn(id));
        }
    }

    fn give_back(&mut self, proxy: usize, id: ClientId, backend: BackendId, session: u64) {
        let of = &self.sessions[&session];
        let is_in_doubt = of.is_in_doubt() && !self.has(Flaw::DoubtKept);
        let key = of
            .keys()
            .next()
            .filter(|_| !self.has(Flaw::RegistrationHidden));
        if is_in_doubt {
            return self.close_backend(proxy, backend);
        }
        let access = key.map_or(Access::ReadOnly, Access::Tokens);
        let residue = if self.random.percent(50) {
            Residue::Perhaps
        } else {
            Residue::None
        };
        let now = self.now;
        self.think(proxy, id);
        self.at(proxy)
            .pool
            .given_back(now, backend, access, residue);
    }

    fn close_backend(&mut self, proxy: usize, backend: BackendId) {
        match self.at(proxy).sessions.get(&backend).copied() {
            Some(session) => self.leave(session),
            None => {
                let now = self.now;
                self.at(proxy).pool.ended(now, backend);
            }
        }
    }

    /// The connections of a session are gone.
    pub(super) fn lost(&mut self, session: u64, proxy: usize) {
        let untold = self.has(Flaw::EndUntold);
        let Some(worker) = self
            .pools
            .as_mut()
            .and_then(|pools| pools.workers.get_mut(proxy))
        else {
            return;
        };
        let found = worker.sessions.iter().find(|(_, of)| **of == session);
        let Some(backend) = found.map(|(backend, _)| *backend) else {
            return;
        };
        let client = worker.lost(backend);
        if let Some(client) = client {
            self.think(proxy, client);
        }
        if !untold {
            let now = self.now;
            self.at(proxy).pool.ended(now, backend);
            self.obey(proxy);
        }
    }

    /// A proxy has lost its pool and clients.
    pub(super) fn lose_pool(&mut self, proxy: usize) {
        if self.pools.is_some() {
            let worker = self.worker(proxy);
            *self.at(proxy) = worker;
        }
    }

    /// Checks who a takeover ends.
    pub(super) fn tells_to_end(&mut self, backend: Backend) {
        let process = self.servers.processes.get(&backend);
        let session = process.map(|process| process.session);
        let workers = self.pools.iter().flat_map(|pools| &pools.workers);
        let mut clients =
            workers.flat_map(|worker| worker.clients.values().map(move |c| (worker, c)));
        let reads = clients.any(|(worker, client)| match client.stage {
            Stage::Has(of, _) if client.access == Access::ReadOnly => {
                worker.sessions.get(&of).copied() == session
            }
            _ => false,
        });
        if reads {
            self.breaks(READER_ENDED);
        }
    }

    /// Without faults and new transactions, nobody waits, and no connection is left.
    pub(super) fn pools_rest(&mut self) {
        let workers = self.pools.iter().flat_map(|pools| &pools.workers);
        let mut workers = workers.filter(|worker| {
            let mut clients = worker.clients.values();
            clients.any(|client| client.stage != Stage::Thinks) || !worker.pool.is_empty()
        });
        if workers.next().is_some() {
            self.breaks(STUCK);
        }
    }
}
