//! The run: what there is, and what is on its way.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use pgpalisade_authority::{Backend, Claim, Cluster, Mark, Scope};

use super::calls::Call;
use super::guards::{Guard, Without};
use super::machine::tests::OURS;
use super::machine::{Event, Request};
use super::pooled::{PoolEvent, Pools};
use super::promises::{Broken, Truth};
use super::random::Limits;
use super::requests::Target;
use super::servers::{Servers, Write};
use super::sessions::Session;
use super::splitmix::Random;
use super::store::Authority;
use super::weather::{Policy, Proxy};

/// Sessions at a time.
const SESSIONS: usize = 6;
/// Most milliseconds of a pause. With two of them a declaration is still answered in time.
const PAUSE: u64 = 900;

#[derive(Debug)]
pub(super) enum Delivery {
    Connect,
    Act(u64),
    Identify(u64, usize, Claim),
    /// The proxy sees that the process of a session is gone.
    Notice(u64),
    Execute(Backend, Write),
    Commit(Backend),
    Show(Backend),
    Dies(Backend),
    /// A call sends a request.
    Send(u64, Request),
    /// A request arrives, with its call, number and chance to be lost; or as a repetition.
    Arrive(usize, Request, Option<(u64, u64, u64)>),
    Answer(u64, u64, Event),
    Deadline(u64),
    /// To a proxy in one of its lives.
    Note(usize, u64, Scope, Mark),
    Release(usize, u64, Backend),
    Start(usize, u64),
    Upkeep(usize, u64),
    Weather,
    Recover(Cluster),
    /// To the pool of a proxy in one of its lives.
    Pool(usize, u64, PoolEvent),
}

pub(super) struct World {
    pub(super) random: Random,
    pub(super) limits: Limits,
    pub(super) out: Option<Guard>,
    /// The only promise that counts, if there is one.
    only: Option<Broken>,
    pub(super) now: Duration,
    queue: BTreeMap<(Duration, u64), Delivery>,
    /// Numbers everything.
    pub(super) count: u64,
    pub(super) steps: u64,
    pub(super) scopes: Vec<Scope>,
    pub(super) policy: Policy,
    pub(super) authority: Authority,
    pub(super) servers: Servers,
    /// The last is the operator.
    pub(super) proxies: Vec<Proxy>,
    pub(super) sessions: BTreeMap<u64, Session>,
    pub(super) calls: HashMap<u64, Call>,
    pub(super) truth: Truth,
    /// Whether clients share the sessions of each proxy.
    pub(super) pools: Option<Pools>,
    /// Begin of the last raise of the epoch that has succeeded.
    pub(super) raised_at: Duration,
    pub(super) is_recovering: bool,
    pub(super) is_calm: bool,
    pub(super) broken: Option<Broken>,
}

impl World {
    pub(super) fn new(seed: u64, out: Option<&Without>) -> Self {
        let mut random = Random::new(seed);
        let mut limits = Limits::draw(&mut random);
        if let Some(out) = out {
            limits.weather = out.weather.to_vec();
        }
        let scopes = ["default", "other"].into_iter().take(limits.scopes);
        let mut world = Self {
            random,
            out: out.map(|out| out.guard),
            only: out.map(|out| out.breaks),
            now: Duration::ZERO,
            queue: BTreeMap::new(),
            count: 0,
            steps: 0,
            scopes: scopes.map(|name| Scope::new(name).unwrap()).collect(),
            policy: Policy::default(),
            authority: Authority::default(),
            servers: Servers::default(),
            proxies: (0..=limits.proxies).map(|_| Proxy::new(OURS)).collect(),
            sessions: BTreeMap::new(),
            calls: HashMap::new(),
            truth: Truth::default(),
            pools: None,
            raised_at: Duration::ZERO,
            is_recovering: false,
            is_calm: false,
            broken: None,
            limits,
        };
        for proxy in 0..world.limits.proxies {
            world.soon(Delivery::Start(proxy, 0));
        }
        world.soon(Delivery::Connect);
        world.soon(Delivery::Weather);
        world
    }

    pub(super) fn keeps(&self, guard: Guard) -> bool {
        self.out != Some(guard)
    }

    /// Keeps the first. A run without a guard is only after one promise.
    pub(super) fn breaks(&mut self, promise: Broken) {
        if self.only.is_none_or(|only| only == promise) {
            self.broken.get_or_insert(promise);
        }
    }

    pub(super) const fn number(&mut self) -> u64 {
        self.count += 1;
        self.count
    }

    pub(super) fn later(&mut self, after: Duration, delivery: Delivery) {
        let number = self.number();
        self.queue.insert((self.now + after, number), delivery);
    }

    /// After a delay of the network. Rarely, a link or a proxy pauses.
    pub(super) fn soon(&mut self, delivery: Delivery) {
        let pauses = !self.is_calm && self.random.percent(2);
        let most = if pauses { PAUSE } else { self.limits.delay };
        let after = self.random.delay(most);
        self.later(after, delivery);
    }

    /// Delivers for so long, or until a promise is broken.
    pub(super) fn run(&mut self, time: Duration, mut tell: impl FnMut(Duration, &Delivery)) {
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
        }
        self.now = until;
    }

    fn deliver(&mut self, delivery: Delivery) {
        match delivery {
            Delivery::Connect if self.is_calm || self.pools.is_some() => {}
            Delivery::Connect => {
                if self.sessions.len() < SESSIONS {
                    self.connect();
                }
                let after = self.random.delay(100);
                self.later(after, Delivery::Connect);
            }
            Delivery::Act(id) if !self.is_calm && self.pools.is_none() => self.act(id),
            Delivery::Act(_) => {}
            Delivery::Identify(id, at, claim) => self.identify(id, at, claim),
            Delivery::Notice(id) => self.close(id),
            Delivery::Execute(backend, write) => self.execute(backend, write),
            Delivery::Commit(backend) => self.commit(backend),
            Delivery::Show(backend) => self.show(backend),
            Delivery::Dies(backend) => self.die(backend),
            Delivery::Send(id, request) => self.send(id, request),
            Delivery::Arrive(proxy, request, from) => self.arrive(proxy, request, from),
            Delivery::Answer(id, asked, event) => self.answer(id, asked, event),
            Delivery::Deadline(id) => self.deadline(id),
            Delivery::Note(proxy, life, scope, mark) => {
                if self.proxies[proxy].life == life {
                    self.proxies[proxy].marks.note(&scope, &mark);
                }
            }
            Delivery::Release(proxy, life, backend) => self.release(proxy, life, backend),
            Delivery::Start(proxy, life) => self.start(proxy, life),
            Delivery::Upkeep(proxy, life) => self.upkeep(proxy, life),
            Delivery::Weather if self.is_calm => {}
            Delivery::Weather => self.weather(),
            Delivery::Recover(server) => self.recover(server),
            Delivery::Pool(proxy, life, event) => self.pool(proxy, life, event),
        }
    }

    /// A restored authority is another one: what was on its way to the old one is lost.
    pub(super) fn forget_requests(&mut self) {
        let is_for_it = |delivery: &Delivery| match delivery {
            Delivery::Arrive(_, request, _) => Target::of(request) == Target::Authority,
            _ => false,
        };
        self.queue.retain(|_, delivery| !is_for_it(delivery));
    }
}
