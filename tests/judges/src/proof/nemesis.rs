//! Random faults. Every target has its own lane: a thread that waits, breaks it, waits, and repairs it. The seed
//! decides what a lane does; timing decides how lanes overlap. During an operator's actions only clients fail.

mod failover;
mod links;
mod operator;
mod store;

use std::collections::BTreeMap;
use std::ops::Range;
use std::os::unix::process::ExitStatusExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::thread::Scope;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use pgpalisade_test_servers::machine::{self, Signal};
use pgpalisade_test_servers::proxy::Proxy;

use super::client::Client;
use super::cluster::Cluster;
use super::history::{Event, FaultKind, Recorder, Target, now};
use super::leaders::Leaders;
use super::listeners::Source;
use super::plan::{Faults, Plan};
use super::stop::Stop;
use super::store::RunningStore;

const RESTART_WITHIN: Duration = Duration::from_secs(90);

/// Milliseconds.
const SHORT: Range<u64> = 50..3_500;
/// Milliseconds, for faults that a takeover waits for: also longer than a declaration may take.
const LONG: Range<u64> = 50..7_000;

#[derive(Clone, Copy, Debug)]
pub struct Nemesis<'a> {
    pub cluster: &'a Cluster,
    pub leaders: &'a Leaders,
    pub recorder: &'a Recorder,
    pub plan: &'a Plan,
    /// Read-locked by many during faults; write-locked by an operator alone.
    pub whole: &'a RwLock<()>,
    pub count: &'a AtomicU64,
    /// By scope.
    pub elected: &'a BTreeMap<&'static str, AtomicU64>,
    /// Read-locked by elections; write-locked by an operator to prevent them.
    pub quiet: &'a RwLock<()>,
    pub stop: &'a Stop,
}

impl<'a> Nemesis<'a> {
    /// Starts the lanes. Each repairs its own faults before it ends.
    pub fn start<'scope>(self, scope: &'scope Scope<'scope, '_>)
    where
        'a: 'scope,
    {
        let plan = self.plan;
        let mut number = 0;
        let mut lane = |run: Box<dyn FnOnce(Lane<'a>) + Send + 'scope>| {
            number += 1;
            let random = StdRng::seed_from_u64(plan.seed ^ (number << 32));
            let lane = Lane {
                all: self,
                random,
                backup: Backup::None,
            };
            scope.spawn(move || run(lane));
        };
        for (number, proxy) in self.cluster.proxies().iter().enumerate() {
            if plan.faults.breaks(Target::Proxy(number)) {
                lane(Box::new(move |lane| lane.break_proxy(number, proxy)));
            }
        }
        for (target, link) in self.cluster.links() {
            if plan.faults.breaks(*target) {
                lane(Box::new(move |lane| lane.break_link(*target, link)));
            }
        }
        if plan.faults.breaks(Target::Leader(0)) {
            lane(Box::new(Lane::break_leaders));
            lane(Box::new(Lane::break_leaders));
        }
        let is_operated = matches!(plan.faults, Faults::All | Faults::Operators);
        if is_operated && self.cluster.store().is_some() {
            lane(Box::new(Lane::operate));
        }
        let is_given_back = plan.faults == Faults::Handovers && plan.listener == Some(Source::Hold);
        if plan.listener.is_some() && !is_given_back {
            lane(Box::new(Lane::take_leads_away));
        }
        if let Some(servers) = self.cluster.pair() {
            lane(Box::new(move |lane| lane.fail_over(servers)));
        }
        if plan.faults != Faults::All {
            return;
        }
        if let Some(store) = self.cluster.store() {
            let members = store
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .members();
            for member in 0..members {
                lane(Box::new(move |lane| lane.break_member(member, store)));
            }
        }
        lane(Box::new(Lane::break_backends));
        lane(Box::new(Lane::break_postgres));
        lane(Box::new(Lane::take_connections));
    }
}

struct Lane<'a> {
    all: Nemesis<'a>,
    random: StdRng,
    backup: Backup,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Backup {
    None,
    Kept,
}

impl<'a> Lane<'a> {
    /// False at the end of the run.
    fn waits(&mut self, milliseconds: Range<u64>) -> bool {
        let pause = self.milliseconds(milliseconds);
        !self.all.stop.sleep(pause)
    }

    /// Guard that keeps operators from acting.
    fn breaks(&self) -> RwLockReadGuard<'a, ()> {
        self.all
            .whole
            .read()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn milliseconds(&mut self, range: Range<u64>) -> Duration {
        Duration::from_millis(self.random.random_range(range))
    }

    fn record(&self, kind: FaultKind, target: Target, begin: u64) {
        self.all.count.fetch_add(1, Ordering::Relaxed);
        self.all.recorder.record(&Event::Fault {
            kind,
            target,
            begin,
            end: now(),
        });
    }

    fn break_proxy(mut self, number: usize, proxy: &Mutex<Proxy>) {
        while self.waits(2_500..9_000) {
            let _broken = self.breaks();
            let mut proxy = proxy.lock().unwrap_or_else(PoisonError::into_inner);
            let begin = now();
            let kind = self.kind_for_a_proxy();
            match kind {
                FaultKind::Pause => proxy.pause(),
                FaultKind::Kill => proxy.kill(),
                _ => {
                    let status = proxy.terminate();
                    assert_eq!(status.signal(), None, "a proxy did not end on SIGTERM");
                }
            }
            let pause = self.milliseconds(match kind {
                FaultKind::Pause => SHORT,
                _ => 0..1_500,
            });
            self.all.stop.sleep(pause);
            match kind {
                FaultKind::Pause => proxy.resume(),
                _ => start_again(&mut proxy),
            }
            drop(proxy);
            self.record(kind, Target::Proxy(number), begin);
        }
    }

    /// An orderly end matters for a lease.
    fn kind_for_a_proxy(&mut self) -> FaultKind {
        let plan = self.all.plan;
        if plan.faults == Faults::Handovers {
            FaultKind::Stop
        } else if self.random.random_bool(0.6) {
            FaultKind::Pause
        } else if plan.listener.is_some() && self.random.random_bool(0.6) {
            FaultKind::Stop
        } else {
            FaultKind::Kill
        }
    }

    /// Leaves the store unlocked while the member is broken: others may fail at the same time.
    fn break_member(mut self, member: usize, store: &Mutex<RunningStore>) {
        let store = || store.lock().unwrap_or_else(PoisonError::into_inner);
        while self.waits(3_000..12_000) {
            let pause = self.milliseconds(LONG);
            let _broken = self.breaks();
            let begin = now();
            let kind = if self.random.random_bool(0.5) {
                store().pause(member);
                self.all.stop.sleep(pause);
                store().resume(member);
                FaultKind::Pause
            } else {
                store().kill(member);
                self.all.stop.sleep(pause);
                store().start_again(member);
                FaultKind::Kill
            };
            self.record(kind, Target::Member(member), begin);
        }
    }

    fn break_leaders(mut self) {
        while self.waits(100..700) {
            let choice = self.random.random_range(0..1_000_usize);
            let pause = self.milliseconds(SHORT);
            let (signal, kind) = if self.random.random_bool(0.3) {
                (Signal::KILL, FaultKind::Kill)
            } else {
                (Signal::STOP, FaultKind::Pause)
            };
            let begin = now();
            let Some(leader) = self.all.leaders.signal_one(choice, signal) else {
                continue;
            };
            if kind == FaultKind::Pause {
                self.all.stop.sleep(pause);
                self.all.leaders.resume(leader);
            }
            self.record(kind, Target::Leader(leader), begin);
        }
    }

    /// Stops a backend that waits for its client: it holds no lock that others need, and cannot be ended until it is
    /// resumed.
    fn break_backends(mut self) {
        while self.waits(800..4_000) {
            let pause = self.milliseconds(LONG);
            let offset = self.random.random_range(0..50);
            let _broken = self.breaks();
            let Some(pid) = self.waiting_backend(offset) else {
                continue;
            };
            let begin = now();
            machine::signal(pid, Signal::STOP);
            // It may have received work meanwhile, and may then hold a lock.
            if self.is_waiting(pid) {
                self.all.stop.sleep(pause);
            }
            machine::signal(pid, Signal::CONT);
            self.record(FaultKind::Pause, Target::Backend(pid), begin);
        }
    }

    fn ask(&self, sql: &str) -> Option<String> {
        let patience = Duration::from_millis(500);
        let mut client = Client::login(self.all.cluster.socket(), &[], patience).ok()?;
        client.query(sql).value().map(str::to_owned)
    }

    fn waiting_backend(&self, offset: u64) -> Option<u32> {
        let sql = format!(
            "WITH waiting AS (SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' \
             AND state LIKE 'idle%' AND pid <> pg_backend_pid()) \
             SELECT pid FROM waiting ORDER BY pid OFFSET {offset} % greatest(1, (SELECT count(*) FROM waiting)) LIMIT 1"
        );
        self.ask(&sql)?.parse().ok()
    }

    fn is_waiting(&self, pid: u32) -> bool {
        let sql = format!("SELECT state LIKE 'idle%' FROM pg_stat_activity WHERE pid = {pid}");
        self.ask(&sql).as_deref() == Some("t")
    }

    /// Takes every free connection of PostgreSQL, as a pool without limits does, and each one freed later.
    fn take_connections(mut self) {
        let (cluster, patience) = (self.all.cluster, Duration::from_millis(500));
        let another = || Client::login(cluster.socket(), &[], patience).ok();
        while self.waits(8_000..25_000) {
            let pause = self.milliseconds(LONG);
            let _broken = self.breaks();
            let (begin, end) = (now(), Instant::now() + pause);
            let mut taken = Vec::new();
            while Instant::now() < end && !self.all.stop.sleep(Duration::from_millis(20)) {
                taken.extend(std::iter::from_fn(another));
            }
            drop(taken);
            self.record(FaultKind::Exhaust, Target::Postgres, begin);
        }
    }

    fn break_postgres(mut self) {
        while self.waits(6_000..18_000) {
            let (signal, kind) = if self.random.random_bool(0.5) {
                (Signal::QUIT, FaultKind::Quit)
            } else {
                (Signal::KILL, FaultKind::Kill)
            };
            let pause = self.milliseconds(0..1_000);
            let _broken = self.breaks();
            let begin = now();
            let mut postgres = self.all.cluster.postgres();
            postgres.crash_by(signal);
            self.all.stop.sleep(pause);
            postgres.start_again(&[]);
            drop(postgres);
            self.record(kind, Target::Postgres, begin);
        }
    }
}

/// Retries, as a service manager would: a proxy does not start while PostgreSQL or the store is unreachable.
fn start_again(proxy: &mut Proxy) {
    let end = Instant::now() + RESTART_WITHIN;
    while let Err(output) = proxy.try_restart(Duration::from_secs(15)) {
        assert!(
            Instant::now() < end,
            "the proxy does not start again:\n{output}"
        );
        std::thread::sleep(Duration::from_millis(100));
    }
}
