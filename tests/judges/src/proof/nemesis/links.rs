//! Faults of a link's connections.

use std::ops::Range;
use std::time::{Duration, Instant};

use rand::Rng;

use super::{LONG, Lane, SHORT};
use crate::proof::cutter::{Flow, Link};
use crate::proof::history::{FaultKind, Target, now};
use crate::proof::plan::Faults;

/// Bytes of replies before a flapping link closes a connection. A PostgreSQL session starts with some hundred.
const ANSWERS: Range<usize> = 50..1_500;

impl<'a> Lane<'a> {
    pub(super) fn break_link(mut self, target: Target, link: &Link) {
        // Links that a takeover needs are broken for longer than it may take.
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

    /// The sender repeats its bytes on a new connection, and the old ones arrive after them.
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

    /// Messages to the store about sessions arrive again while these write, and their writes stay in flight until
    /// another leader has taken over through another proxy.
    fn make_late_under_writes(&mut self, target: Target, link: &Link, proxy: usize) {
        let begin = now();
        // The late step of the store is random too.
        link.strand(self.random.random_range(0..2_000));
        // Requests to the store wait at most a second for a reply.
        let before = self.milliseconds(10..150);
        self.all.stop.sleep(before);
        link.abandon();
        // Failed requests are repeated after half a second.
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

    /// Closes connections, and new ones after some bytes of their replies.
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
