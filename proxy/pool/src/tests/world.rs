//! The run: a driver with its servers and clients, and what is on its way.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use super::guards::{Guard, Without};
use super::promises::*;
use super::random::{Draw, LEAST};
use super::splitmix::Random;
use super::weather::{CALM, STORM};
use crate::{Access, BackendId, Budget, ClientId, Debt, Order, Pool, Refusal, Residue};

const TICK: Duration = Duration::from_millis(100);
/// A wait may end this much later than its limit.
const LATE: Duration = Duration::from_millis(150);

#[derive(Clone, Copy, Debug)]
pub(super) enum Delivery {
    Act(ClientId),
    Leave(ClientId),
    Done(ClientId, BackendId),
    Opened(BackendId),
    ResetDone(BackendId),
    Closed(BackendId),
    /// The end of an idle backend is seen.
    Noticed(BackendId),
    /// A late event of a backend that has gone.
    Late(BackendId),
    Tick,
    Weather,
}

/// Places that several pools share.
pub(super) struct Places {
    siblings: Rc<Siblings>,
    max: usize,
    pins: usize,
    /// Backends that clients without tokens may have.
    reads: usize,
}

/// What this pool and the others say to each other.
#[derive(Default)]
pub(super) struct Siblings {
    pub(super) taken: Cell<usize>,
    pub(super) debt: Cell<Option<Debt>>,
    pub(super) claim: Cell<&'static str>,
    pub(super) reader: Cell<&'static str>,
}

impl Places {
    pub(super) const fn new(siblings: Rc<Siblings>, max: usize, pins: usize, reads: usize) -> Self {
        Self {
            siblings,
            max,
            pins,
            reads,
        }
    }
}

impl Budget for Places {
    fn take(&mut self) -> bool {
        let taken = &self.siblings.taken;
        let is_free = taken.get() < self.max;
        taken.set(taken.get() + usize::from(is_free));
        self.siblings.claim.set(if is_free { "" } else { "waits" });
        is_free
    }

    fn give_back(&mut self) {
        self.siblings.taken.set(self.siblings.taken.get() - 1);
    }

    fn forgo(&mut self) {
        self.siblings.claim.set("");
    }

    fn urge(&mut self) {
        if self.siblings.claim.get() == "waits" {
            self.siblings.claim.set("urges");
        }
    }

    fn debt(&self) -> Debt {
        self.siblings.debt.get().unwrap_or(Debt::Nothing)
    }

    fn read(&mut self) -> bool {
        let may_read = self.may_read();
        self.reads -= usize::from(may_read);
        may_read
    }

    fn may_read(&self) -> bool {
        self.reads > 0
    }

    fn owes_read(&self) -> bool {
        false
    }

    fn end_read(&mut self) {
        self.reads += 1;
    }

    fn urge_read(&mut self) {
        self.siblings.reader.set("urges");
    }

    fn forgo_read(&mut self) {
        self.siblings.reader.set("");
    }

    fn pin(&mut self) -> bool {
        let is_free = self.pins > 0;
        self.pins -= usize::from(is_free);
        is_free
    }

    fn unpin(&mut self) {
        self.pins += 1;
    }
}

pub(super) struct World {
    pub(super) random: Random,
    pub(super) draw: Draw,
    out: Option<Guard>,
    /// The only promise that counts, if there is one.
    only: Option<Broken>,
    pub(super) now: Duration,
    queue: BTreeMap<(Duration, u64), Delivery>,
    /// Numbers everything.
    count: u64,
    pub(super) pool: Pool<u8, u8, Places>,
    pub(super) truth: Truth,
    pub(super) clients: BTreeMap<ClientId, Client>,
    pub(super) places: Rc<Siblings>,
    /// Places that another pool has.
    pub(super) others: usize,
    /// No opening succeeds.
    pub(super) is_away: bool,
    pub(super) calm_since: Option<Duration>,
    /// Last opening of each login that failed.
    failed: [Option<Duration>; LOGINS],
    pub(super) steps: u64,
    pub(super) lent: u64,
    pub(super) broken: Option<Broken>,
}

impl World {
    pub(super) fn new(seed: u64, out: Option<&Without>) -> Self {
        let mut random = Random::new(seed);
        let draw = Draw::new(&mut random);
        let places: Rc<Siblings> = Rc::default();
        let guard = out.map(|out| out.guard);
        let mut limits = draw.limits.clone();
        match guard {
            Some(Guard::LoginLimit) => limits.login = usize::MAX,
            Some(Guard::Patience) => limits.wait = Duration::MAX,
            _ => {}
        }
        let is_asked = guard != Some(Guard::BudgetAsked);
        let max = if is_asked { draw.max } else { usize::MAX };
        let reads = match guard {
            Some(Guard::Leaders) => usize::MAX,
            _ => draw.reads,
        };
        let budget = Places::new(places.clone(), max, draw.pinned, reads);
        let mut world = Self {
            random,
            out: guard,
            only: out.map(|out| out.breaks),
            now: Duration::ZERO,
            queue: BTreeMap::new(),
            count: 0,
            pool: Pool::new(limits, budget),
            truth: Truth::default(),
            clients: BTreeMap::new(),
            places,
            others: 0,
            is_away: false,
            calm_since: None,
            failed: [None; LOGINS],
            steps: 0,
            lent: 0,
            broken: None,
            draw,
        };
        for _ in 0..world.draw.clients {
            world.connect();
        }
        world.later(TICK, Delivery::Tick);
        world.later(TICK, Delivery::Weather);
        world
    }

    pub(super) fn keeps(&self, guard: Guard) -> bool {
        self.out != Some(guard)
    }

    /// Keeps the first. A run without a guard is only after one promise.
    fn breaks(&mut self, promise: Broken) {
        if self.only.is_none_or(|only| only == promise) {
            self.broken.get_or_insert(promise);
        }
    }

    const fn number(&mut self) -> u64 {
        self.count += 1;
        self.count
    }

    pub(super) fn later(&mut self, after: Duration, delivery: Delivery) {
        let number = self.number();
        self.queue.insert((self.now + after, number), delivery);
    }

    fn soon(&mut self, most: u64, delivery: Delivery) {
        let after = self.random.delay(most) + LEAST;
        self.later(after, delivery);
    }

    /// Plays the storm, the calm, and the end.
    pub(super) fn play(&mut self, mut tell: impl FnMut(Duration, &Delivery)) {
        self.run(STORM, &mut tell);
        self.calm();
        self.run(CALM, &mut tell);
        if self.broken.is_some() {
            return;
        }
        let all: Vec<ClientId> = self.clients.keys().copied().collect();
        for client in all {
            self.disconnect(client);
        }
        let servers: Vec<_> = self.truth.servers.keys().copied().collect();
        servers.into_iter().for_each(|id| self.kill(id));
        self.obey();
        self.run(CALM, &mut tell);
        let is_known = |login: &crate::login::Login<u8>| !login.lines.is_empty();
        let is_empty = self.truth.is_empty() && self.pool.is_empty();
        if !is_empty || self.places.taken.get() > 0 || self.pool.logins.values().any(is_known) {
            self.breaks(NOT_DRAINED);
        }
    }

    fn run(&mut self, time: Duration, mut tell: impl FnMut(Duration, &Delivery)) {
        let until = self.now + time;
        while let Some(next) = self.queue.first_entry() {
            let at = next.key().0;
            if at > until || self.broken.is_some() {
                break;
            }
            let delivery = next.remove();
            self.now = at;
            self.steps += 1;
            tell(at, &delivery);
            self.deliver(delivery);
            self.obey();
        }
        self.now = until;
    }

    fn deliver(&mut self, delivery: Delivery) {
        match delivery {
            Delivery::Act(client) => self.act(client),
            Delivery::Leave(client) => {
                if self.clients.get(&client).is_some_and(|c| c.has.is_none()) {
                    self.disconnect(client);
                    self.connect();
                }
            }
            Delivery::Done(client, id) => self.done(client, id),
            Delivery::Opened(id) => self.opened(id),
            Delivery::ResetDone(id) => self.reset_done(id),
            Delivery::Closed(id) => self.end(id),
            Delivery::Noticed(id) => self.notice(id),
            Delivery::Late(id) => self.late(id),
            Delivery::Tick => self.tick(),
            Delivery::Weather => self.weather(),
        }
    }

    /// Carries out all orders.
    pub(super) fn obey(&mut self) {
        while let Some(order) = self.pool.next_order() {
            match order {
                Order::Lend {
                    client,
                    backend,
                    residue,
                } => self.lend(client, backend, residue),
                Order::Open { backend, login } => self.open(backend, login),
                Order::Reset(id) => self.reset(id),
                Order::Close(id) => {
                    self.truth.does(id, Doing::Closing);
                    self.soon(5, Delivery::Closed(id));
                }
                Order::Refuse(client, refusal) => self.refuse(client, refusal),
            }
        }
        if self.truth.servers.len() + self.others > self.draw.max {
            self.breaks(OVER_BUDGET);
        }
        if self.truth.pinned > self.draw.pinned {
            self.breaks(OVER_PINNED);
        }
        if let Some(promise) = self.truth.at_rest(&self.draw) {
            self.breaks(promise);
        }
    }

    fn connect(&mut self) {
        let client = Client {
            login: u8::try_from(self.random.below(self.draw.logins)).unwrap(),
            access: Access::ReadOnly,
            waits: None,
            has: None,
        };
        let id = ClientId(self.number());
        self.clients.insert(id, client);
        self.soon(self.draw.think, Delivery::Act(id));
    }

    /// A backend that it has is closed.
    fn disconnect(&mut self, id: ClientId) {
        let Some(client) = self.clients.remove(&id) else {
            return;
        };
        if client.waits.is_some() {
            self.truth.counts[usize::from(client.login)].waiting[column(&client.access)] -= 1;
        }
        if let Some(backend) = client.has {
            self.soon(5, Delivery::Closed(backend));
        }
        let guard = if client.waits.is_some() {
            Guard::WaiterLeftTold
        } else {
            Guard::LeftTold
        };
        if self.keeps(guard) {
            self.pool.left(id);
        }
    }

    fn act(&mut self, id: ClientId) {
        let number = self.number();
        let draw = self.random.below(100);
        let token = u8::try_from(self.random.below(2)).unwrap();
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        client.access = if draw < self.draw.tokens {
            Access::Tokens(token)
        } else if draw < self.draw.tokens + self.draw.new {
            Access::New
        } else {
            Access::ReadOnly
        };
        client.waits = Some((number, self.now));
        let (login, access) = (client.login, client.access.clone());
        self.truth.counts[usize::from(login)].waiting[column(&access)] += 1;
        let told_login = if self.keeps(Guard::LoginTold) {
            login
        } else {
            0
        };
        let told = match access {
            Access::Tokens(_) if !self.keeps(Guard::TokensTold) => Access::Tokens(0),
            Access::New if !self.keeps(Guard::NewTold) => Access::ReadOnly,
            access => access,
        };
        self.pool.wanted(self.now, id, &told_login, told);
        if self.random.percent(self.draw.dies) {
            self.soon(500, Delivery::Leave(id));
        }
    }

    fn think(&mut self, id: ClientId) {
        if let Some(client) = self.clients.get_mut(&id) {
            if client.waits.take().is_some() {
                let counts = &mut self.truth.counts[usize::from(client.login)];
                counts.waiting[column(&client.access)] -= 1;
            }
            client.has = None;
            self.soon(self.draw.think, Delivery::Act(id));
        }
    }

    fn refuse(&mut self, id: ClientId, refusal: Refusal) {
        let client = self.clients.get(&id);
        let Some((client, (_, since))) = client.and_then(|client| Some((client, client.waits?)))
        else {
            return self.breaks(NOT_WAITING);
        };
        let login = client.login;
        let is_early = match refusal {
            Refusal::Timeout => self.now - since < self.draw.limits.wait,
            Refusal::OpenFailed => self.truth.servers.values().any(|server| {
                let is_open = matches!(
                    server.doing,
                    Doing::Idle | Doing::Lent(..) | Doing::Resetting
                );
                server.login == login && is_open && client.access != Access::New
            }),
        };
        if is_early {
            self.breaks(TOO_EARLY);
        }
        if refusal == Refusal::Timeout {
            self.starves(since);
        }
        self.think(id);
    }

    /// Judges a wait that was long.
    fn starves(&mut self, since: Duration) {
        let is_ample = self.draw.limits.wait > Duration::from_secs(1);
        let since = self.calm_since.map(|calm| calm.max(since));
        if is_ample && since.is_some_and(|since| self.now - since >= self.draw.limits.wait) {
            self.breaks(STARVED);
        }
    }

    fn lend(&mut self, id: ClientId, backend: BackendId, residue: Residue) {
        let client = self.clients.get(&id);
        let Some((client, (number, _))) = client.and_then(|client| Some((client, client.waits?)))
        else {
            return self.breaks(NOT_WAITING);
        };
        let is_reset = residue == Residue::Perhaps && self.keeps(Guard::ResetFirst);
        let Some(server) = self.truth.servers.get(&backend) else {
            return self.breaks(DEAD);
        };
        let (login, access) = (client.login, client.access.clone());
        let may_become =
            matches!(access, Access::Tokens(_) | Access::New) && server.access == Access::ReadOnly;
        let mut others = self.clients.values().filter(|other| {
            let is_same = other.login == login && other.access == access;
            is_same && other.waits.is_some_and(|(other, _)| other < number)
        });
        let is_other = |of: Option<ClientId>| of.is_some_and(|of| of != id);
        let is_over = access == Access::ReadOnly && self.truth.readers() >= self.draw.reads;
        let broken = [
            (server.doing != Doing::Idle, TWO_OWNERS),
            (server.login != login, OTHER_LOGIN),
            (server.access != access && !may_become, OTHER_ACCESS),
            (access == Access::New && !server.is_new, USED),
            (server.is_unclear, UNCLEAR),
            (is_other(server.residue) && !is_reset, LEAK),
            (server.is_known_dead, DEAD),
            (others.next().is_some(), OUT_OF_TURN),
            (is_over, RESERVE),
        ];
        for (is_broken, promise) in broken {
            if is_broken {
                self.breaks(promise);
            }
        }
        self.lent += 1;
        self.truth.counts[usize::from(login)].waiting[column(&access)] -= 1;
        self.truth.does(backend, Doing::Lent(id, column(&access)));
        if let Some(server) = self.truth.servers.get_mut(&backend) {
            server.is_new = false;
            server.residue = server.residue.filter(|_| !is_reset);
        }
        if let Some(client) = self.clients.get_mut(&id) {
            (client.waits, client.has) = (None, Some(backend));
        }
        self.soon(self.draw.transaction, Delivery::Done(id, backend));
    }

    /// The end of a transaction.
    fn done(&mut self, id: ClientId, backend: BackendId) {
        let client = self.clients.get(&id);
        let Some(client) = client.filter(|client| client.has == Some(backend)) else {
            return;
        };
        let Some(server) = self.truth.servers.get_mut(&backend) else {
            return self.think(id);
        };
        if self.random.percent(50) {
            server.residue = Some(id);
        }
        let registers =
            matches!(client.access, Access::Tokens(_)) && server.access != client.access;
        let fails = self.random.percent(self.draw.fails);
        let is_clear = !(registers && fails);
        server.is_unclear |= !is_clear;
        if registers && is_clear {
            server.access = client.access.clone();
        }
        let mut access = server.access.clone();
        let (was_pinned, is_dead) = (server.is_pinned, server.is_dead);
        if !self.keeps(Guard::RegistrationTold) && registers {
            access = Access::ReadOnly;
        }
        if !self.keeps(Guard::TokensTold) && matches!(access, Access::Tokens(_)) {
            access = Access::Tokens(0);
        }
        if is_dead {
            self.end(backend);
            return self.think(id);
        }
        if was_pinned {
            self.truth.pin(backend, false);
        } else if is_clear
            && self.random.percent(self.draw.pins)
            && (self.pool.pin(backend) || !self.keeps(Guard::PinAsked))
        {
            self.truth.pin(backend, true);
            return self.soon(500, Delivery::Done(id, backend));
        }
        let dies = self.random.percent(self.draw.dies);
        if !is_clear && self.keeps(Guard::UnclearClosed) || dies && self.random.percent(50) {
            self.soon(5, Delivery::Closed(backend));
        } else {
            self.give_back(backend, access);
        }
        self.think(id);
        if dies {
            self.disconnect(id);
            self.connect();
        }
    }

    fn give_back(&mut self, id: BackendId, access: Access<u8>) {
        self.truth.does(id, Doing::Idle);
        let left = self
            .truth
            .servers
            .get(&id)
            .and_then(|server| server.residue);
        let residue = match left {
            Some(_) if self.keeps(Guard::ResidueTold) => Residue::Perhaps,
            _ => Residue::None,
        };
        self.pool.given_back(self.now, id, access, residue);
        if self.random.percent(5) {
            self.soon(50, Delivery::Late(id));
        }
    }

    fn open(&mut self, id: BackendId, login: u8) {
        let pause = Duration::from_millis(100);
        let failed = self.failed[usize::from(login)];
        if failed.is_some_and(|at| self.now < at + pause) {
            self.breaks(HAMMERS);
        }
        let server = Server {
            login,
            access: Access::ReadOnly,
            doing: Doing::Opening,
            residue: None,
            is_new: true,
            is_unclear: false,
            is_pinned: false,
            is_dead: false,
            is_known_dead: false,
        };
        self.truth.add(id, server);
        self.soon(self.draw.opening, Delivery::Opened(id));
    }

    fn opened(&mut self, id: BackendId) {
        let Some(server) = self.truth.servers.get(&id) else {
            return;
        };
        let (doing, failed) = (server.doing, usize::from(server.login));
        let seed = self.random.next();
        if doing != Doing::Opening {
            return self.pool.opened(self.now, id, seed);
        }
        if !self.is_away && !self.random.percent(self.draw.fails) {
            self.failed[failed] = None;
            self.truth.does(id, Doing::Idle);
            return self.pool.opened(self.now, id, seed);
        }
        if !self.keeps(Guard::FailureTold) {
            self.pool.opened(self.now, id, seed);
        }
        self.end(id);
    }

    fn reset(&mut self, id: BackendId) {
        self.truth.does(id, Doing::Resetting);
        self.soon(2, Delivery::ResetDone(id));
        if !self.keeps(Guard::ResetAwaited) {
            self.truth.does(id, Doing::Idle);
            self.pool.reset_done(self.now, id);
        }
    }

    fn reset_done(&mut self, id: BackendId) {
        let fails = self.random.percent(self.draw.fails);
        let Some(server) = self.truth.servers.get_mut(&id) else {
            return;
        };
        if server.doing == Doing::Resetting {
            if server.is_dead || fails {
                return self.end(id);
            }
            server.residue = None;
            self.truth.does(id, Doing::Idle);
        }
        if server_is_told(&self.truth, id) {
            self.pool.reset_done(self.now, id);
        }
    }

    fn end(&mut self, id: BackendId) {
        if let Some(server) = self.truth.remove(id) {
            if server.doing == Doing::Opening {
                self.failed[usize::from(server.login)] = Some(self.now);
            }
            self.pool.ended(self.now, id);
            self.soon(50, Delivery::Late(id));
        }
    }

    fn notice(&mut self, id: BackendId) {
        let Some(server) = self.truth.servers.get_mut(&id) else {
            return;
        };
        server.is_known_dead = true;
        let is_lent = matches!(server.doing, Doing::Lent(..));
        if !is_lent && self.keeps(Guard::EndedTold) {
            self.end(id);
        }
    }

    fn late(&mut self, id: BackendId) {
        let mut to = id;
        if self.truth.servers.contains_key(&id) {
            return;
        }
        if !self.keeps(Guard::NumbersNew) {
            // The number was given to another.
            let at = self.random.index(self.truth.servers.len());
            to = self.truth.servers.keys().nth(at).copied().unwrap_or(id);
        }
        let seed = self.random.next();
        match self.random.below(4) {
            0 => self.pool.opened(self.now, to, seed),
            1 => self.pool.reset_done(self.now, to),
            2 => self
                .pool
                .given_back(self.now, to, Access::ReadOnly, Residue::None),
            _ => self.pool.ended(self.now, to),
        }
    }

    fn tick(&mut self) {
        if self.keeps(Guard::TickTold) {
            self.pool.tick(self.now);
        }
        self.obey();
        let waits: Vec<_> = self
            .clients
            .values()
            .filter_map(|client| client.waits)
            .collect();
        for (_, since) in waits {
            if self.now - since > self.draw.limits.wait + LATE {
                self.breaks(ENDLESS);
            }
            self.starves(since);
        }
        let idle = self
            .truth
            .servers
            .values()
            .filter(|server| server.doing == Doing::Idle);
        let mut left = idle.filter_map(|server| server.residue);
        if left.any(|client| !self.clients.contains_key(&client)) {
            self.breaks(LINGERS);
        }
        self.later(TICK, Delivery::Tick);
    }
}

/// Whether an answer to a reset is one to the present state.
fn server_is_told(truth: &Truth, id: BackendId) -> bool {
    let doing = truth.servers.get(&id).map(|server| server.doing);
    matches!(doing, Some(Doing::Idle | Doing::Closing))
}
