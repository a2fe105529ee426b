//! A simulation of declarations, barriers and reapers: the machines, the authority's rule, and a virtual server. Each
//! seed decides all delays and faults: lost, late and repeated requests, lost answers, crashed proxies, reused process
//! ids, and a control connection that leads to a server which was started later.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use pgpalisade_authority::rule::{MarkRow, Records};
use pgpalisade_authority::{
    AuthorityError, Backend, Cluster, Declaration, NoIncarnation, Registered, Scope, Token,
};
use pgpalisade_fence::{Purpose, Terms};
use pgpalisade_policies::TokenBounds;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::barrier::Drain;
use super::error::{ControlError, DeclareError};
use super::machine::tests::{LATER, OURS, token};
use super::machine::{Event, Request, Step};
use super::plan::{self, Task};
use super::reaper::Round;

const SEEDS: u64 = 200;
const PROXIES: usize = 3;
/// Process ids are reused at once.
const PIDS: i32 = 8;
const WITHIN: Duration = Duration::from_secs(5);

/// Records of the authority.
#[derive(Default)]
struct Store {
    cluster: Option<Cluster>,
    mark: Option<MarkRow>,
    sessions: BTreeMap<Backend, Registered>,
}

type Answer<T> = Result<T, NoIncarnation>;

/// With one scope.
impl Records for Store {
    type Error = NoIncarnation;

    fn cluster(&self) -> Answer<Option<Cluster>> {
        Ok(self.cluster)
    }

    fn put_cluster(&mut self, cluster: Cluster) -> Answer<()> {
        self.cluster = Some(cluster);
        Ok(())
    }

    fn mark_row(&self, _: &Scope) -> Answer<Option<MarkRow>> {
        Ok(self.mark.clone())
    }

    fn put_mark(&mut self, _: &Scope, row: &MarkRow) -> Answer<()> {
        self.mark = Some(row.clone());
        Ok(())
    }

    fn registered(&self, _: &Scope, of: Backend) -> Answer<Option<Registered>> {
        Ok(self.sessions.get(&of).copied())
    }

    fn put_session(&mut self, _: &Scope, session: Registered) -> Answer<()> {
        self.sessions.insert(session.backend, session);
        Ok(())
    }

    fn remove(&mut self, _: &Scope, backend: Backend) -> Answer<()> {
        self.sessions.remove(&backend);
        Ok(())
    }

    fn sessions_of(&self, _: &Scope) -> Answer<Vec<Registered>> {
        Ok(self.sessions.values().copied().collect())
    }

    fn scopes_of(&self, backend: Backend) -> Answer<Vec<Scope>> {
        let is_known = self.sessions.contains_key(&backend);
        Ok(is_known.then(Scope::default).into_iter().collect())
    }
}

/// A living server process.
struct Process {
    cluster: Cluster,
    /// Highest token that was declared, answered or not.
    declared: u64,
    /// Token that it may write with.
    bound: u64,
    /// Waits for an answer, which never comes if its proxy has crashed.
    waits: bool,
}

/// A declaration or a reaper's round of a proxy.
struct Call {
    proxy: usize,
    /// Number of the request whose answer it waits for.
    asked: u64,
    work: Work,
}

#[expect(clippy::large_enum_variant, reason = "few calls run at a time")]
enum Work {
    Reap(Round),
    Declare {
        declaration: Declaration,
        tasks: VecDeque<Task>,
        drain: Option<(Duration, Drain)>,
    },
}

enum Delivery {
    /// A call sends a request.
    Send(u64, Request),
    /// A request arrives, for this call and request number, or as a repetition.
    Arrive(usize, Request, Option<(u64, u64)>),
    Answer(u64, u64, Event),
    Dies(Backend),
}

struct World {
    rng: StdRng,
    now: Duration,
    queue: BTreeMap<(Duration, u64), Delivery>,
    count: u64,
    has_faults: bool,
    store: Store,
    processes: BTreeMap<Backend, Process>,
    calls: BTreeMap<u64, Call>,
    /// Where each proxy's control connection leads.
    control: [Cluster; PROXIES],
    /// Highest token that was answered with success, by the cluster's start.
    fence: BTreeMap<i64, u64>,
    granted: u64,
}

fn ms(from: u64) -> Duration {
    Duration::from_millis(from)
}

fn terms() -> Terms {
    let (purpose, bounds) = (Purpose::Admit, TokenBounds::default());
    Terms { purpose, bounds }
}

impl World {
    fn new(seed: u64) -> Self {
        let store = Store {
            cluster: Some(OURS),
            ..Store::default()
        };
        Self {
            rng: StdRng::seed_from_u64(seed),
            now: Duration::ZERO,
            queue: BTreeMap::new(),
            count: 0,
            has_faults: true,
            store,
            processes: BTreeMap::new(),
            calls: BTreeMap::new(),
            control: [OURS; PROXIES],
            fence: BTreeMap::new(),
            granted: 0,
        }
    }

    fn number(&mut self) -> u64 {
        self.count += 1;
        self.count
    }

    fn is_faulty(&mut self, percent: u32) -> bool {
        self.has_faults && self.rng.random_range(0..100) < percent
    }

    fn later(&mut self, after: Duration, delivery: Delivery) {
        let number = self.number();
        self.queue.insert((self.now + after, number), delivery);
    }

    /// A delay of up to so many milliseconds; most are far shorter.
    fn delay(&mut self, most: u64) -> Duration {
        let most = self.rng.random_range(1..=most);
        ms(self.rng.random_range(0..=most))
    }

    /// One step of the clients and proxies.
    fn act(&mut self) {
        let proxy = self.rng.random_range(0..PROXIES);
        match self.rng.random_range(0..100) {
            0..30 => drop(self.open()),
            30..70 => self.declare_for_any(proxy),
            70..80 => self.close_any(proxy),
            80..95 => self.call(proxy, Work::Reap(Round::default())),
            95..98 => self.calls.retain(|_, call| call.proxy != proxy),
            _ if self.is_faulty(20) => {
                self.control[proxy] = LATER;
                self.store.enrol(LATER).unwrap();
            }
            _ => {}
        }
    }

    fn open(&mut self) -> Option<Backend> {
        let is_free = |pid: &i32| !self.processes.keys().any(|b| b.pid == *pid);
        let pid = (1..=PIDS).find(is_free)?;
        let started_us = self.number().cast_signed();
        let backend = Backend { pid, started_us };
        let process = Process {
            cluster: self.store.cluster?,
            declared: 0,
            bound: 0,
            waits: false,
        };
        self.processes.insert(backend, process);
        Some(backend)
    }

    fn any(&mut self) -> Option<Backend> {
        let all: Vec<Backend> = self.processes.keys().copied().collect();
        let at = self.rng.random_range(0..all.len().max(1));
        all.get(at).copied()
    }

    fn declare_for_any(&mut self, proxy: usize) {
        let Some(backend) = self.any() else { return };
        let mark = self.mark().max(1);
        let value = mark + self.rng.random_range(0..=1) - u64::from(mark > 1 && self.is_faulty(30));
        self.declare(proxy, backend, value);
    }

    fn mark(&self) -> u64 {
        let row = self.store.mark.as_ref();
        row.map_or(0, |row| row.mark.token.get())
    }

    /// Never below what the session has declared before.
    fn declare(&mut self, proxy: usize, backend: Backend, value: u64) {
        let Some(process) = self.processes.get_mut(&backend) else {
            return;
        };
        if std::mem::replace(&mut process.waits, true) {
            return;
        }
        if process.declared < value {
            // It waits for the answer. If that is an error, its proxy's cache refuses the lower token.
            process.bound = 0;
            process.declared = value;
        }
        let (token, cluster) = (token(process.declared), process.cluster);
        let declaration = Declaration::new(&Scope::default(), token, backend, cluster, "sim");
        let work = Work::Declare {
            declaration: plan::on_terms(declaration, &terms(), "sim"),
            tasks: VecDeque::new(),
            drain: None,
        };
        self.call(proxy, work);
    }

    fn call(&mut self, proxy: usize, work: Work) {
        let (call, asked) = (self.number(), 0);
        self.calls.insert(call, Call { proxy, asked, work });
        self.feed(call, Event::Begin);
    }

    /// A session ends, and its proxy may release it.
    fn close_any(&mut self, proxy: usize) {
        if let Some(backend) = self.any() {
            self.processes.remove(&backend);
            let delay = self.delay(3000);
            let release = Request::Forget(vec![backend]);
            self.later(delay, Delivery::Arrive(proxy, release, None));
        }
    }

    /// Gives an event to a call.
    fn feed(&mut self, id: u64, event: Event) {
        let Some(mut call) = self.calls.remove(&id) else {
            return;
        };
        let step = match &mut call.work {
            Work::Reap(round) => round.handle(event),
            Work::Declare {
                declaration,
                tasks,
                drain,
            } => match (event, drain.as_mut()) {
                (event, Some((began, drain))) => drain.handle(self.now - *began, event),
                (Event::Begin, None) => Step::ask(Request::Declare(declaration.clone())),
                (Event::Declared(declared), None) => {
                    let plan = plan::after(declared, declaration, &terms(), None);
                    *tasks = plan.tasks.into();
                    plan.answer
                        .map_or_else(|e| Step::End(Err(e)), |_| Step::End(Ok(())))
                }
                (event, None) => Step::End(Err(event.into_error())),
            },
        };
        self.follow(id, call, step);
    }

    fn follow(&mut self, id: u64, mut call: Call, step: Step) {
        match step {
            Step::Ask(pause, request) => {
                self.calls.insert(id, call);
                self.later(pause, Delivery::Send(id, request));
            }
            Step::End(end) => {
                let Work::Declare {
                    declaration,
                    tasks,
                    drain,
                } = &mut call.work
                else {
                    return;
                };
                while let (Ok(()), Some(task)) = (&end, tasks.pop_front()) {
                    if let Task::Pass(barrier, lower, _) = task {
                        *drain = Some((self.now, Drain::new(&barrier, &lower, WITHIN)));
                        self.calls.insert(id, call);
                        return self.feed(id, Event::Begin);
                    }
                }
                if let Some(process) = self.processes.get_mut(&declaration.backend) {
                    process.waits = false;
                }
                if end.is_ok() {
                    let declaration = declaration.clone();
                    self.grant(&declaration);
                }
            }
        }
    }

    /// The session is told that it may write.
    fn grant(&mut self, declaration: &Declaration) {
        self.granted += 1;
        let value = declaration.claim.token().map_or(0, Token::get);
        let Some(process) = self.processes.get_mut(&declaration.backend) else {
            return;
        };
        process.bound = process.bound.max(value);
        let at = declaration.cluster;
        let fence = self.fence.entry(at.postmaster_us).or_default();
        assert!(value >= *fence, "G1: {value} after {fence}");
        *fence = value;
        let is_lower = |p: &Process| p.cluster == at && (1..value).contains(&p.bound);
        let stale = self.processes.iter().find(|(_, process)| is_lower(process));
        assert!(
            stale.is_none(),
            "G1, G2: {:?} lives beside {value}",
            stale.map(|(b, _)| b)
        );
    }

    fn deliver(&mut self, delivery: Delivery) {
        match delivery {
            Delivery::Send(id, request) => {
                let asked = self.number();
                let Some(call) = self.calls.get_mut(&id) else {
                    return;
                };
                call.asked = asked;
                let proxy = call.proxy;
                // The caller gives up in the end.
                let failed = Delivery::Answer(id, asked, Event::Failed(failure(&request)));
                self.later(ms(1500), failed);
                if self.is_faulty(5) {
                    let delay = self.delay(4000);
                    let again = Delivery::Arrive(proxy, copy(&request), None);
                    self.later(delay, again);
                }
                if !self.is_faulty(5) {
                    let delay = self.delay(40);
                    let arrive = Delivery::Arrive(proxy, request, Some((id, asked)));
                    self.later(delay, arrive);
                }
            }
            Delivery::Arrive(proxy, request, from) => {
                let event = self.carry_out(proxy, request);
                if let Some((id, asked)) = from
                    && !self.is_faulty(5)
                {
                    let delay = self.delay(40);
                    self.later(delay, Delivery::Answer(id, asked, event));
                }
            }
            Delivery::Answer(id, asked, event) => {
                let waits = self.calls.get(&id).is_some_and(|call| call.asked == asked);
                if waits {
                    self.calls.entry(id).and_modify(|call| call.asked = 0);
                    self.feed(id, event);
                }
            }
            Delivery::Dies(backend) => drop(self.processes.remove(&backend)),
        }
    }

    fn carry_out(&mut self, proxy: usize, request: Request) -> Event {
        let (scope, at) = (Scope::default(), self.control[proxy]);
        let is_there = |processes: &BTreeMap<Backend, Process>, backend: &Backend| {
            processes
                .get(backend)
                .is_some_and(|process| process.cluster == at)
        };
        match request {
            Request::Declare(declaration) => {
                Event::Declared(self.store.declare(&declaration, 1).unwrap())
            }
            Request::Sessions => {
                let all = self.store.sessions.values();
                Event::Sessions(all.map(|session| (scope.clone(), *session)).collect())
            }
            Request::Recorded => Event::Recorded(self.store.cluster),
            Request::Drained(scope, rank, gone) => {
                Event::Drained(self.store.drained(&scope, rank, &gone).unwrap())
            }
            Request::Forget(gone) => {
                self.store.forget(&gone).unwrap();
                Event::Done
            }
            Request::Terminate(old) => {
                for backend in old {
                    if is_there(&self.processes, &backend) {
                        let delay = self.delay(1000);
                        self.later(delay, Delivery::Dies(backend));
                    }
                }
                Event::Terminated(0)
            }
            Request::Alive(old) => {
                let old = old.into_iter();
                let alive = old.filter(|backend| is_there(&self.processes, backend));
                Event::Alive(alive.collect(), at)
            }
            Request::Holdouts(_) => Event::Holdouts(Vec::new()),
            other => panic!("{other:?}"),
        }
    }

    /// Delivers until this time.
    fn run(&mut self, until: Duration) {
        while let Some(next) = self.queue.first_entry() {
            let at = next.key().0;
            if at > until {
                break;
            }
            let delivery = next.remove();
            self.now = at;
            self.deliver(delivery);
            self.check_register();
        }
        self.now = until;
    }

    /// A session that may write stays on the register, at its token or a higher one.
    fn check_register(&self) {
        for (backend, process) in &self.processes {
            if Some(process.cluster) != self.store.cluster {
                continue;
            }
            let registered = self
                .store
                .sessions
                .get(backend)
                .map_or(0, |r| r.token.get());
            assert!(registered >= process.bound, "{backend} is not registered");
        }
    }
}

/// Error of a request without an answer.
fn failure(request: &Request) -> DeclareError {
    match request {
        Request::Terminate(_) | Request::Alive(_) | Request::Holdouts(_) => {
            ControlError::Timeout.into()
        }
        _ => AuthorityError::Unavailable("no answer".to_owned()).into(),
    }
}

/// A request that the network repeats.
fn copy(request: &Request) -> Request {
    match request {
        Request::Declare(declaration) => Request::Declare(declaration.clone()),
        Request::Drained(scope, rank, gone) => Request::Drained(scope.clone(), *rank, gone.clone()),
        Request::Forget(gone) => Request::Forget(gone.clone()),
        Request::Terminate(old) => Request::Terminate(old.clone()),
        _ => Request::Recorded,
    }
}

#[test]
fn no_session_writes_beside_a_holder_of_a_higher_token() {
    let mut granted = 0;
    for seed in 0..SEEDS {
        let mut world = World::new(seed);
        let played = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| play(&mut world)));
        assert!(played.is_ok(), "seed {seed}");
        granted += world.granted;
    }
    assert!(
        granted > SEEDS * 10,
        "{granted} declarations are too few to show anything"
    );
}

fn play(world: &mut World) {
    for _ in 0..200 {
        let pause = world.delay(300);
        world.act();
        world.run(world.now + pause);
    }
    // Without faults a takeover succeeds in time.
    world.has_faults = false;
    world.run(world.now + WITHIN);
    world.processes.clear();
    let cluster = world.store.cluster.unwrap();
    world.control = [cluster; PROXIES];
    let backend = world.open().unwrap();
    let next = 1 + world.mark();
    world.declare(0, backend, next);
    world.run(world.now + WITHIN);
    let bound = world.processes.get(&backend).map(|process| process.bound);
    assert_eq!(bound, Some(next), "G6");
    world.call(0, Work::Reap(Round::default()));
    world.run(world.now + WITHIN);
    let registered: Vec<&Backend> = world.store.sessions.keys().collect();
    assert_eq!(registered, [&backend]);
}
