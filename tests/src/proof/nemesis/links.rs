//! What happens to the connections of a link: they are cut, bytes wait or are lost, and bytes are late.

use std::ops::Range;
use std::time::{Duration, Instant};

use rand::Rng;

use super::{LONG, Lane, SHORT};
use crate::proof::cutter::{Flow, Link};
use crate::proof::history::{FaultKind, Target, now};
use crate::proof::plan::Faults;

/// Bytes of answers that a connection has on a link that flaps. A session with PostgreSQL begins with some hundred.
const ANSWERS: Range<usize> = 50..1_500;

impl<'a> Lane<'a> {
    pub(super) fn break_link(mut self, target: Target, link: &Link) {
        // What is on its way to a session and back is where a write can be late and an answer can be lost. What a
        // takeover needs is away for longer than it may take.
        let (gap, length) = match target {
            Target::StoreLink(_) if self.all.plan.faults == Faults::Store => {
                (200..1_500, 1_000..3_500)
            }
            Target::UpstreamLink(_) => (1_500..7_000, SHORT),
            Target::ControlLink(_) | Target::StoreLink(_) => (4_000..14_000, LONG),
            _ => (4_000..15_000, SHORT),
        };
        while self.waits(gap.clone()) {
            let is_of_clients = matches!(target, Target::ClientLink(_));
            let _broken = (!is_of_clients).then(|| self.breaks());
            if let Target::StoreLink(proxy) = target
                && self.all.plan.faults == Faults::Store
                && self.random.random_bool(0.7)
            {
                self.make_late_under_writes(target, link, proxy);
                continue;
            }
            let begin = now();
            let pause = self.milliseconds(length.clone());
            let kinds = match (self.all.plan.faults, target) {
                (Faults::Store, Target::StoreLink(_)) => 4..5,
                _ => 0..5,
            };
            let kind = self.break_once(link, kinds, pause);
            self.record(kind, target, begin);
        }
    }

    fn break_once(&mut self, link: &Link, kinds: Range<u32>, pause: Duration) -> FaultKind {
        let flow = [Flow::HoldToServer, Flow::HoldToClient, Flow::HoldBoth];
        let flow = flow[self.random.random_range(0..flow.len())];
        match self.random.random_range(kinds) {
            0 => {
                link.cut();
                FaultKind::Cut
            }
            1 => {
                link.set(flow);
                self.all.stop.sleep(pause);
                link.set(Flow::Open);
                FaultKind::Hold
            }
            2 => {
                self.make_late(link, pause);
                FaultKind::Late
            }
            3 => {
                link.set(flow);
                self.all.stop.sleep(pause);
                link.cut();
                link.set(Flow::Open);
                FaultKind::Partition
            }
            _ => {
                self.flap(link, pause);
                FaultKind::Flap
            }
        }
    }

    /// What was sent is sent again on a new connection, where the sender does so, and arrives behind that.
    fn make_late(&mut self, link: &Link, pause: Duration) {
        let before = pause.mul_f64(self.random.random_range(0.0..0.7));
        link.strand(0);
        self.all.stop.sleep(before);
        if self.random.random_bool(0.7) {
            link.abandon();
        }
        self.all.stop.sleep(pause - before);
        link.release();
    }

    /// What was told to the store about sessions arrives once more while they write, and their writes are on their way
    /// until somebody has taken over through another proxy.
    fn make_late_under_writes(&mut self, target: Target, link: &Link, proxy: usize) {
        let begin = now();
        // Which step of the store is the late one is as random.
        link.strand(self.random.random_range(0..2_000));
        // Whoever waits for an answer does so for a second at most.
        let before = self.milliseconds(10..150);
        self.all.stop.sleep(before);
        link.abandon();
        // What failed is sent again after half a second, and then sessions go on.
        let again = self.milliseconds(520..700);
        self.all.stop.sleep(again);
        let mut links = self.all.cluster.links().iter();
        let upstream = links.find(|(other, _)| *other == Target::UpstreamLink(proxy));
        let held = now();
        if let Some((_, link)) = upstream {
            link.set(Flow::HoldToServer);
        }
        let filling = self.milliseconds(20..150);
        self.all.stop.sleep(filling);
        link.release();
        self.record(FaultKind::Late, target, begin);
        let pause = self.milliseconds(1_000..3_500);
        self.all.stop.sleep(pause);
        if let Some((upstream, link)) = upstream {
            link.set(Flow::Open);
            self.record(FaultKind::Hold, *upstream, held);
        }
    }

    /// Connections end, and those that are made anew end behind some bytes of their answers.
    fn flap(&mut self, link: &Link, pause: Duration) {
        let end = Instant::now() + pause;
        link.cut();
        while Instant::now() < end {
            let bytes = self.random.random_range(ANSWERS);
            link.limit(Some(bytes));
            let pause = self.milliseconds(10..100);
            self.all.stop.sleep(pause);
        }
        link.limit(None);
    }
}
