//! Fails over between Patroni's two servers, in each way in turn.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rand::Rng;

use crate::proof::history::{FaultKind, Target, now};
use pgpalisade_test_servers::patroni::{LOOP_WAIT, Patroni};

use super::Lane;

const WAYS: [FaultKind; 4] = [
    FaultKind::Switchover,
    FaultKind::Kill,
    FaultKind::Pause,
    FaultKind::KillPostmaster,
];

impl Lane<'_> {
    /// Begins each failover with both servers healthy, and waits until they are again.
    pub(super) fn fail_over(mut self, servers: &Mutex<Box<Patroni>>) {
        let first = self.random.random_range(0..WAYS.len());
        let mut ways = WAYS.iter().cycle().skip(first);
        while self.waits(1_000..8_000) {
            let Some(kind) = ways.next() else { return };
            let mut servers = servers.lock().unwrap_or_else(PoisonError::into_inner);
            let primary = servers.wait_until_whole();
            let begin = now();
            self.depose(&mut servers, primary, *kind);
            servers.wait_until_whole();
            drop(servers);
            self.record(*kind, Target::Postgres, begin);
        }
    }

    fn depose(&mut self, servers: &mut Patroni, primary: usize, kind: FaultKind) {
        let other = 1 - primary;
        let pause = self.milliseconds(0..3_000);
        match kind {
            FaultKind::Switchover => servers.switchover(),
            FaultKind::Kill => {
                servers.kill(primary);
                servers.wait_for_promotion(other);
                self.all.stop.sleep(pause);
                servers.revive(primary);
            }
            FaultKind::Pause => {
                let frozen = servers.freeze(primary);
                servers.wait_for_promotion(other);
                self.all.stop.sleep(pause);
                // A Patroni that wakes during its renewal writes its key over the new leader's (3.0.2,
                // `_update_leader`), and takes both back to the old timeline. A watchdog would reset its machine
                // before that; here its Patroni is killed.
                servers.end_patroni(primary);
                drop(frozen);
                self.all.stop.sleep(pause);
                servers.revive(primary);
            }
            _ => {
                servers.kill_postmaster(primary);
                // Everything looks healthy until its Patroni has polled.
                std::thread::sleep(Duration::from_secs(u64::from(2 * LOOP_WAIT)));
            }
        }
    }
}
