//! Operators' actions while leaders lead. Only clients fail meanwhile, as the runbooks require; but writes may be in
//! flight.

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rand::Rng;

use super::Lane;
use crate::proof::cutter::{Flow, Link};
use crate::proof::declaration::{Declarer, Reach};
use crate::proof::history::{Event, Exemption, FaultKind, POISON, Target, now};
use crate::proof::plan::{Faults, Route};
use crate::proof::store::StoreKind;
use pgpalisade_test_servers::machine::{self, Signal};
use pgpalisade_test_servers::postgres::Postgres;
use pgpalisade_test_servers::proxy::{Options, Proxy};

/// Milliseconds between two actions.
const GAP: Range<u64> = 8_000..20_000;
/// The same if nothing else fails.
const SHORT_GAP: Range<u64> = 1_500..4_000;
const SCRIPT: u32 = 1 << 28;

impl<'a> Lane<'a> {
    pub(super) fn operate(mut self) {
        let gap = match self.all.plan.faults {
            Faults::Operators => SHORT_GAP,
            _ => GAP,
        };
        while self.waits(gap.clone()) {
            let whole = self.all.whole.write();
            let whole = whole.unwrap_or_else(PoisonError::into_inner);
            let actions = match self.all.plan.route {
                // The others need a store that the proxy does not lock for itself.
                Route::Proxied(StoreKind::Embedded) => 0..3,
                Route::Proxied(StoreKind::Postgres) => 0..8,
                _ => 0..7,
            };
            match self.random.random_range(actions) {
                0 => self.observe(),
                1 => self.bring_a_second_authority(),
                2 => self.step_the_clock(),
                3 => self.repair(),
                4 => self.serve_a_copy(),
                5 => self.back_up_or_restore(),
                6 => self.restore_in_a_quiet_spell(),
                _ => self.fail_the_store_over(),
            }
            drop(whole);
        }
    }

    /// Every proxy observes for a while and then enforces again, with stale writes in flight to PostgreSQL.
    fn observe(&mut self) {
        let plan = self.all.plan;
        let cluster = self.all.cluster;
        let (begin, first) = (now(), self.position());
        cluster.reload(&plan.policy("observe"));
        let observed = self.milliseconds(300..3_000);
        self.all.stop.sleep(observed);
        let Some((target, link)) = self.one_upstream() else {
            return;
        };
        let held = now();
        link.set(Flow::HoldToServer);
        let pause = self.milliseconds(50..800);
        self.all.stop.sleep(pause);
        cluster.reload(&plan.policy("enforce"));
        for scope in plan.scope_names() {
            self.exempt(scope, Exemption::Observed, (begin, first));
        }
        // Another leader takes over meanwhile, through another proxy.
        let pause = self.milliseconds(0..3_500);
        self.all.stop.sleep(pause);
        link.set(Flow::Open);
        self.record(FaultKind::Hold, target, held);
        for number in 0..cluster.proxies().len() {
            self.record(FaultKind::Observe, Target::Proxy(number), begin);
        }
    }

    pub(super) fn exempt(&self, scope: &str, why: Exemption, (begin, first): (u64, u64)) {
        let (last, end) = (self.position(), now());
        self.all.recorder.record(&Event::Exempt {
            scope: scope.to_owned(),
            why,
            begin,
            end,
            first,
            last,
        });
    }

    /// A script declares a number beyond any election, and an operator sets the mark back to the last elected one.
    fn repair(&mut self) {
        let names = self.all.plan.scope_names();
        let choice = self.random.random_range(0..names.len().max(1));
        let Some(scope) = names.get(choice).copied() else {
            return;
        };
        let (begin, first) = (now(), self.position());
        self.poison(scope);
        let pause = self.milliseconds(100..1_500);
        self.all.stop.sleep(pause);
        machine::wait_for("a repair that no leader has forestalled", || {
            let mark = self.all.elected[scope].load(Ordering::Relaxed).max(1);
            self.try_repair(scope, mark)
        });
        // The other proxies notice within two seconds, after they have refused a leader.
        self.all.stop.sleep(Duration::from_secs(4));
        self.exempt(scope, Exemption::Repaired, (begin, first));
        self.record(FaultKind::Repair, Target::Proxy(0), begin);
    }

    fn poison(&mut self, scope: &str) {
        let token = POISON + self.all.count.load(Ordering::Relaxed);
        let (addresses, ids) = (self.all.cluster.addresses(), AtomicU64::new(1));
        let declarer = self.script((scope, token), addresses, 0, &ids);
        // If it fails there is less to repair.
        let _declared = declarer.declare(&mut self.random);
    }

    /// A script that declares a token through some of the proxies.
    pub(super) fn script<'b>(
        &self,
        token: (&'b str, u64),
        proxies: &'b [SocketAddr],
        first: usize,
        ids: &'b AtomicU64,
    ) -> Declarer<'b>
    where
        'a: 'b,
    {
        let number = self.all.count.fetch_add(1, Ordering::Relaxed);
        let leader = SCRIPT + u32::try_from(number).expect("few faults");
        let reach = Reach {
            proxies,
            first,
            pooler: self.all.plan.pooler,
            patience: self.all.plan.patience(),
            recorder: self.all.recorder,
            ids,
        };
        Declarer::announced(leader, token, "postgres", reach)
    }

    /// `None` if a leader was faster: the operator then looks again.
    fn try_repair(&self, scope: &str, mark: u64) -> Option<()> {
        let proxy = self.all.cluster.proxies().first()?;
        let proxy = proxy.lock().unwrap_or_else(PoisonError::into_inner);
        let output = proxy
            .subcommand("scope repair")
            .args(["--scope", scope, "--mark", &mark.to_string()])
            .args(["--reason", "proof", "--yes"])
            .output()
            .expect("run pgpalisade");
        let said = String::from_utf8_lossy(&output.stderr);
        let is_late = said.contains("has changed since");
        assert!(output.status.success() || is_late, "scope repair: {said}");
        output.status.success().then_some(())
    }

    /// A proxy with the same store serves a copy of the cluster while leaders continue.
    fn serve_a_copy(&mut self) {
        let Some((target, link)) = self.one_upstream() else {
            return;
        };
        let begin = now();
        // All test servers are copies of one, and share its identifier.
        let copy = Postgres::start();
        let mut options = Options::new(&copy);
        options.store = self.store().direct();
        let beside = Proxy::start_with(options);
        // It may now remove the cluster's sessions from the register, and then one of them is late.
        let pause = self.milliseconds(100..1_000);
        self.all.stop.sleep(pause);
        let held = now();
        link.set(Flow::HoldToServer);
        let pause = self.milliseconds(2_000..6_000);
        self.all.stop.sleep(pause);
        link.set(Flow::Open);
        self.record(FaultKind::Hold, target, held);
        let pause = self.milliseconds(0..1_000);
        self.all.stop.sleep(pause);
        drop((beside, copy));
        self.restart_postgres();
        self.record(FaultKind::Copy, Target::Postgres, begin);
    }

    /// Steps the server's clock. Start times decide which of two servers is the later one: after a start with a clock
    /// that was or is set back, an operator decides.
    fn step_the_clock(&mut self) {
        let begin = now();
        let step = Duration::from_secs(self.random.random_range(5..3_600));
        let ahead = i64::try_from(step.as_secs()).expect("an hour");
        let ahead = if self.random.random_bool(0.5) {
            ahead
        } else {
            -ahead
        };
        let restarts = self.random.random_bool(0.5);
        self.all.cluster.postgres().set_clock(ahead);
        let pause = self.milliseconds(300..2_000);
        self.all.stop.sleep(pause);
        if restarts {
            self.restart_postgres();
        }
        if restarts && ahead < 0 {
            self.begin_anew();
        }
        let pause = self.milliseconds(300..2_000);
        self.all.stop.sleep(pause);
        self.all.cluster.postgres().set_clock(0);
        let pause = self.milliseconds(300..2_000);
        self.all.stop.sleep(pause);
        if restarts && ahead > 0 {
            self.restart_postgres();
            self.begin_anew();
        }
        self.record(FaultKind::ClockStep, Target::Postgres, begin);
    }

    fn restart_postgres(&self) {
        let mut postgres = self.all.cluster.postgres();
        postgres.crash_by(Signal::QUIT);
        postgres.start_again(&[]);
    }

    pub(super) fn one_upstream(&mut self) -> Option<(Target, &'a Link)> {
        let links = self.all.cluster.links().iter();
        let upstream = links.filter(|(target, _)| matches!(target, Target::UpstreamLink(_)));
        let upstream: Vec<_> = upstream.collect();
        let choice = self.random.random_range(0..upstream.len().max(1));
        upstream.get(choice).map(|(target, link)| (*target, link))
    }

    /// While the server is healthy.
    pub(super) fn position(&self) -> u64 {
        let lsn = "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn";
        let lsn = self.all.cluster.postgres().value(lsn);
        lsn.parse().expect("a position")
    }
}
