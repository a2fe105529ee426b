//! Operators' actions on the store.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rand::Rng;

use super::{Backup, LONG, Lane, RESTART_WITHIN, start_again};
use crate::proof::cutter::{Flow, Link};
use crate::proof::history::{BESIDE, Event, Exemption, FaultKind, Target, now};
use crate::proof::listeners::Source;
use crate::proof::plan::{ELECTED, LED, TAKEN};
use crate::proof::store::RunningStore;
use pgpalisade_test_servers::machine;
use pgpalisade_test_servers::proxy::{Options, Proxy};
use pgpalisade_test_servers::wire::Endpoint;

/// Log message of a proxy that has found a second authority and has reacted to it.
const FOUND: &str = "the cluster is already served with authority";

/// Of the Lease that listeners follow.
const RENEW_EVERY: Duration = Duration::from_millis(300);

impl<'a> Lane<'a> {
    pub(super) fn store(&self) -> MutexGuard<'a, RunningStore> {
        let store = self.all.cluster.store().expect("a store");
        store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn proxies(&self) -> Vec<MutexGuard<'a, Proxy>> {
        let proxies = self.all.cluster.proxies().iter();
        let lock = |proxy: &'a std::sync::Mutex<Proxy>| {
            proxy.lock().unwrap_or_else(PoisonError::into_inner)
        };
        proxies.map(lock).collect()
    }

    /// Ends leads of the listeners, and tells no leader: elects another, deletes what says who leads, or lets the
    /// election hang or the clock of the lease jump.
    pub(super) fn take_leads_away(mut self) {
        let (election, proxies) = (
            self.all.cluster.election(),
            self.all.cluster.proxies().len(),
        );
        let follows = self.all.plan.listener != Some(Source::Hold);
        for term in 1.. {
            let gap = self.milliseconds(if follows { 1_000..8_000 } else { 8_000..25_000 });
            let next = Instant::now() + gap;
            while Instant::now() < next {
                if self.all.stop.sleep(RENEW_EVERY.min(gap)) {
                    return;
                }
                election.renew();
            }
            let _broken = self.breaks();
            let begin = now();
            match self.random.random_range(0..10) {
                0..6 if follows => {
                    let proxy = self.random.random_range(0..proxies);
                    election.elect(proxy, term, &self.store());
                }
                0..8 => election.delete(&self.store()),
                _ => {
                    let ahead = self.random.random_range(-3_600..3_600);
                    self.store().set_clock(ahead);
                    election.pause();
                    let pause = self.milliseconds(LONG);
                    self.all.stop.sleep(pause);
                    election.resume();
                    self.store().set_clock(0);
                }
            }
            self.record(FaultKind::LeadLost, Target::Election, begin);
        }
    }

    /// With a recovery if they ask for it.
    pub(super) fn begin_anew(&self) {
        let mut proxies = self.proxies();
        proxies.iter_mut().for_each(|proxy| proxy.kill());
        start_or_recover(&mut proxies);
    }

    /// Follows the runbook: stops all proxies first, and runs `recover` after every restore.
    pub(super) fn back_up_or_restore(&mut self) {
        if self.backup == Backup::None || self.random.random_bool(0.3) {
            self.store().back_up();
            self.backup = Backup::Kept;
            return;
        }
        let Some((_, link)) = self.one_upstream() else {
            return;
        };
        let begin = now();
        link.set(Flow::HoldToServer);
        let pause = self.milliseconds(50..1_000);
        self.all.stop.sleep(pause);
        let mut proxies = self.proxies();
        proxies.iter_mut().for_each(|proxy| proxy.kill());
        self.store().restore();
        recover(&proxies[0]);
        proxies.iter_mut().for_each(|proxy| start_again(proxy));
        drop(proxies);
        let pause = self.milliseconds(0..2_000);
        self.all.stop.sleep(pause);
        link.set(Flow::Open);
        for number in 0..self.all.cluster.proxies().len() {
            self.record(FaultKind::Restore, Target::Proxy(number), begin);
        }
    }

    /// Restores a state that has every mark but lacks the sessions that have joined since. A proxy was started in
    /// between, so the epoch has risen; `recover` runs if a proxy asks for it.
    pub(super) fn restore_in_a_quiet_spell(&mut self) {
        let quiet = self.all.quiet.write();
        let quiet = quiet.unwrap_or_else(PoisonError::into_inner);
        let begin = now();
        // The last elected leader takes over meanwhile.
        let pause = self.milliseconds(300..1_000);
        self.all.stop.sleep(pause);
        self.store().back_up();
        self.backup = Backup::Kept;
        let mut proxies = self.proxies();
        let number = self.random.random_range(0..proxies.len());
        proxies[number].kill();
        start_again(&mut proxies[number]);
        let joining = self.milliseconds(300..900);
        self.all.stop.sleep(joining);
        let mut links = self.all.cluster.links().iter();
        let upstream = links.find(|(target, _)| *target == Target::UpstreamLink(number));
        let link = upstream.map(|(_, link)| link);
        link.into_iter()
            .for_each(|link| link.set(Flow::HoldToServer));
        let filling = self.milliseconds(20..150);
        self.all.stop.sleep(filling);
        proxies.iter_mut().for_each(|proxy| proxy.kill());
        self.store().restore();
        start_or_recover(&mut proxies);
        drop(proxies);
        drop(quiet);
        // A new leader is elected and takes over through the other proxy.
        let pause = self.milliseconds(1_500..4_500);
        self.all.stop.sleep(pause);
        link.into_iter().for_each(|link| link.set(Flow::Open));
        for number in 0..self.all.cluster.proxies().len() {
            self.record(FaultKind::QuietRestore, Target::Proxy(number), begin);
        }
    }

    /// A standby replaces the store's server while leaders lead. It is synchronous; otherwise confirmed marks may be
    /// lost. The old primary is dead, or continues for its existing connections.
    pub(super) fn fail_the_store_over(&mut self) {
        let mut store = self.store();
        let RunningStore::Postgres(primary) = &mut *store else {
            return;
        };
        let standby = primary.replica();
        primary.wait_for_synchronous(&standby);
        let pause = self.milliseconds(100..1_000);
        self.all.stop.sleep(pause);
        let begin = now();
        if self.random.random_bool(0.5) {
            primary.crash();
        }
        let away = self.milliseconds(0..1_500);
        self.all.stop.sleep(away);
        standby.promote();
        let links = self.all.cluster.links().iter();
        for (_, link) in links.filter(|(target, _)| matches!(target, Target::StoreLink(_))) {
            link.lead_to(standby.tcp());
        }
        let pause = self.milliseconds(0..1_500);
        self.all.stop.sleep(pause);
        *store = RunningStore::Postgres(standby);
        drop(store);
        self.backup = Backup::None;
        self.record(FaultKind::Failover, Target::Member(0), begin);
    }

    /// A proxy with its own store starts while the control connections are down, which the guarantee does not cover.
    /// Once the others have noticed, only the new proxy's leader writes.
    pub(super) fn bring_a_second_authority(&mut self) {
        let names = self.all.plan.scope_names();
        let choice = self.random.random_range(0..names.len().max(1));
        let Some(scope) = names.get(choice).copied() else {
            return;
        };
        let (begin, first) = (now(), self.position());
        let found = self.found();
        for link in self.control_links() {
            link.set(Flow::HoldBoth);
            link.cut();
        }
        // Running declarations are answered by then.
        self.all.stop.sleep(Duration::from_millis(1_200));
        let options = Options::new(&self.all.cluster.postgres()).flag("--witness", "off");
        let beside = Proxy::start_with(options);
        self.control_links().for_each(|link| link.set(Flow::Open));
        machine::wait_until("the proxies to find the second authority", || {
            let all = self.found().into_iter().zip(&found);
            all.into_iter().all(|(now, before)| now > *before)
        });
        self.all.stop.sleep(Duration::from_secs(1));
        self.exempt_all((begin, first));
        self.lead_beside(scope, &beside);
        let (begin_of_end, first) = (now(), self.position());
        drop(beside);
        self.exempt_all((begin_of_end, first));
        self.record(FaultKind::SecondAuthority, Target::Postgres, begin);
    }

    fn exempt_all(&self, since: (u64, u64)) {
        let names = self
            .all
            .plan
            .scope_names()
            .iter()
            .chain([&TAKEN, &ELECTED, &LED]);
        names.for_each(|name| self.exempt(name, Exemption::TwoAuthorities, since));
    }

    /// Leads with a token of the other store, and gives others time to write under lower tokens.
    fn lead_beside(&mut self, scope: &str, beside: &Proxy) {
        let Endpoint::Tcp(address) = beside.endpoint() else {
            return;
        };
        let token = self.all.elected[scope].fetch_add(1, Ordering::Relaxed) + 1;
        let (addresses, ids) = ([address], AtomicU64::new(1));
        let declarer = self.script((scope, token), &addresses, BESIDE, &ids);
        let Ok(accepted) = declarer.declare(&mut self.random) else {
            return;
        };
        let (id, lsn) = (accepted.id, self.position());
        let timeline = None;
        self.all
            .recorder
            .record(&Event::Position { id, lsn, timeline });
        let pause = self.milliseconds(500..2_500);
        self.all.stop.sleep(pause);
    }

    fn control_links(&self) -> impl Iterator<Item = &'a Link> + use<'a> {
        let links = self.all.cluster.links().iter();
        links.filter_map(|(target, link)| matches!(target, Target::ControlLink(_)).then_some(link))
    }

    fn found(&self) -> Vec<usize> {
        let said = |proxy: MutexGuard<'_, Proxy>| proxy.output().matches(FOUND).count();
        self.proxies().into_iter().map(said).collect()
    }
}

fn recover(proxy: &Proxy) {
    let mut command = proxy.subcommand("recover");
    let output = command.arg("--end-all-sessions").output();
    let output = output.expect("run pgpalisade");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "pgpalisade recover: {said}");
}

/// Follows only the proxies' own instructions, as an operator.
fn start_or_recover(proxies: &mut [MutexGuard<'_, Proxy>]) {
    let end = Instant::now() + RESTART_WITHIN;
    for proxy in proxies {
        while let Err(said) = proxy.try_restart(Duration::from_secs(15)) {
            if said.contains("pgpalisade recover") {
                recover(proxy);
            }
            assert!(
                Instant::now() < end,
                "the proxy does not start again:\n{said}"
            );
        }
    }
}
