//! What operators do while leaders lead. Nothing but clients fails meanwhile, for that is what the runbooks ask for; but
//! writes may be on their way.

use std::ops::Range;
use std::sync::PoisonError;

use rand::Rng;

use super::Lane;
use crate::proof::cutter::{Flow, Link};
use crate::proof::history::{Event, Exemption, FaultKind, Target, now};
use crate::proof::plan::Faults;

/// Between two actions, in milliseconds.
const GAP: Range<u64> = 8_000..20_000;
/// The same where nothing else fails.
const SHORT_GAP: Range<u64> = 1_500..4_000;

impl<'a> Lane<'a> {
    /// One action after the other.
    pub(super) fn operate(mut self) {
        let gap = match self.all.plan.faults {
            Faults::Operators => SHORT_GAP,
            _ => GAP,
        };
        while self.waits(gap.clone()) {
            let whole = self.all.whole.write();
            let whole = whole.unwrap_or_else(PoisonError::into_inner);
            self.observe();
            drop(whole);
        }
    }

    /// Every proxy observes for a while, and then enforces again, with stale writes on their way to PostgreSQL.
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
        let (last, end) = (self.position(), now());
        for scope in plan.scope_names() {
            self.all.recorder.record(&Event::Exempt {
                scope: (*scope).to_owned(),
                why: Exemption::Observed,
                begin,
                end,
                first,
                last,
            });
        }
        // Meanwhile somebody takes over, through another proxy.
        let pause = self.milliseconds(0..3_500);
        self.all.stop.sleep(pause);
        link.set(Flow::Open);
        self.record(FaultKind::Hold, target, held);
        for number in 0..cluster.proxies().len() {
            self.record(FaultKind::Observe, Target::Proxy(number), begin);
        }
    }

    fn one_upstream(&mut self) -> Option<(Target, &'a Link)> {
        let links = self.all.cluster.links().iter();
        let upstream = links.filter(|(target, _)| matches!(target, Target::UpstreamLink(_)));
        let upstream: Vec<_> = upstream.collect();
        let choice = self.random.random_range(0..upstream.len().max(1));
        upstream.get(choice).map(|(target, link)| (*target, link))
    }

    /// Where PostgreSQL's log stands, while the server is whole.
    fn position(&self) -> u64 {
        let lsn = "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn";
        let lsn = self.all.cluster.postgres().value(lsn);
        lsn.parse().expect("a position")
    }
}
