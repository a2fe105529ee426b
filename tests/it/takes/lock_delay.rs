//! A lock delay: after its holder has vanished, a lease stays vacant for a while.

use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use pgpalisade_test_servers::machine::{assert_within, wait_until};
use pgpalisade_test_servers::policy::PolicyFile;
use pgpalisade_test_servers::proxy::Proxy;
use pgpalisade_test_servers::wire::{Batch, Wire};

use super::lease::{Pair, SOON};
use super::{assert_refused, value};

const POLICY: &str = "[tokens]\nlock_delay = \"5s\"\n";
/// Without a delay even an unreleased lease would be free by then.
const LEAST: Duration = Duration::from_secs(16);
/// Its lifetime without renewal, its delay, and a busy machine's overhead.
const MOST: Duration = Duration::from_secs(15 + 5 + 8);

fn start() -> (Pair, PolicyFile) {
    let policy = PolicyFile::new(POLICY);
    let path = policy.path().display().to_string();
    (Pair::with_flags(&[("--policy", &path)]), policy)
}

fn holder(proxy: &Proxy, value: &str) -> Wire {
    let mut wire = Pair::plain(proxy);
    wire.ok(&format!("SET fencing.token = '{value}'"));
    wire
}

/// Time until a session without waiting gets the lease.
fn until_it_is_had(proxy: &Proxy, scope: &str) -> Duration {
    let begun = Instant::now();
    let mut wire = Pair::plain(proxy);
    while begun.elapsed() < 2 * MOST {
        let answer = wire.query(&format!("SET fencing.token = '{scope}=lease:nowait'"));
        if answer.iter().all(|message| message.tag != b'E') {
            break;
        }
        assert_refused(&answer, "55P03");
        sleep(Duration::from_millis(250));
    }
    begun.elapsed()
}

/// Its socket is closed abruptly, its time expires, another one deposes it, its proxy is killed.
#[test]
fn nobody_has_the_lease_of_who_has_vanished() {
    let (mut pair, _policy) = start();
    let mut silent = holder(&pair.first, "silent=lease:3s");
    let deposed = holder(&pair.first, "deposed=lease");
    let closed = holder(&pair.first, "closed=lease");
    let _killed = holder(&pair.first, "killed=lease");
    sleep(Duration::from_secs(3));
    drop(closed);
    let leader = holder(&pair.second, "deposed=50");
    assert_eq!(value(&mut silent, "SHOW fencing.token"), "silent=1");
    pair.first.kill();
    scope(|threads| {
        let second = &pair.second;
        let had = ["silent", "deposed", "closed", "killed"].map(|scope| {
            let waiting = threads.spawn(move || until_it_is_had(second, scope));
            (scope, waiting)
        });
        for (scope, waiting) in had {
            let took = waiting.join().unwrap();
            assert!((LEAST..MOST).contains(&took), "{scope}: {took:?}");
        }
    });
    drop((leader, deposed));
}

/// A holder that leaves in order, clears its token, or had no token under the lease delays nobody.
#[test]
fn who_gives_it_back_keeps_nobody_waiting() {
    let (pair, _policy) = start();
    let proxy = &pair.first;
    let mut said = holder(proxy, "jobs=lease");
    said.ok("RESET fencing.token");
    let mut late = holder(proxy, "jobs=lease:3s");
    sleep(Duration::from_secs(4));
    // Nor itself.
    late.ok("SET fencing.token = 'jobs=lease:3s'");
    sleep(Duration::from_secs(4));
    late.ok("RESET fencing.token");
    let mut goodbye = holder(proxy, "jobs=lease");
    let mut waits = Pair::plain(proxy);
    waits.send(&Batch::new().query("SET fencing.token = 'jobs=lease'"));
    sleep(Duration::from_secs(1));
    drop(waits);
    goodbye.send(&Batch::new().terminate());
    let begun = Instant::now();
    let _busy = holder(proxy, "busy=lease");
    let refused = Pair::plain(proxy).query("SET fencing.token = 'beside=lease,busy=lease:nowait'");
    assert_refused(&refused, "55P03");
    let _beside = holder(proxy, "beside=lease");
    drop(holder(proxy, "jobs=lease"));
    assert_within(begun, SOON);
    // That one has vanished.
    let mut next = Pair::plain(proxy);
    wait_until("its connection to end", || {
        let refused = next.query("SET fencing.token = 'jobs=lease:nowait'");
        refused.iter().any(|message| message.tag == b'E')
    });
}
