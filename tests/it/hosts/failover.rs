//! A promotion with the old primary alive, killed, frozen, or shut down in order, and its return.

use std::time::{Duration, Instant};

use pgpalisade_test_servers::machine::{Signal, wait_for, wait_until};
use pgpalisade_test_servers::proxy::Proxy;
use pgpalisade_test_servers::stage::leader;
use pgpalisade_test_servers::wire::{Batch, TRUSTED, Wire, errors, pretty};

use super::{
    AT_MOST, Pair, assert_clear, assert_ended, attempt, first_write, ids, options, servers,
};

#[test]
fn a_standby_that_is_named_first() {
    let (primary, standby) = servers();
    let proxy = Proxy::start_with(options(&[&standby, &primary]));
    leader(&proxy.endpoint(), "33").ok("INSERT INTO jobs VALUES (1)");
    assert_eq!(ids(&primary), ["1"]);
}

/// Split brain: the standby is promoted, and the old primary does not know.
#[test]
fn a_promotion_beside_a_living_primary() {
    let pair = Pair::start();
    let mut old = pair.leader("33");
    old.ok("INSERT INTO jobs VALUES (1)");
    let mut open = pair.leader("33");
    open.ok("BEGIN; INSERT INTO jobs VALUES (2)");
    let mut reader = Wire::login(&pair.proxy.endpoint(), &TRUSTED);
    pair.synchronize();
    pair.standby.promote();
    let began = Instant::now();
    for wire in [&mut old, &mut open, &mut reader] {
        assert_ended(wire, "PF007");
    }
    println!(
        "sessions of the deposed primary ended after {:?}",
        began.elapsed()
    );
    assert!(began.elapsed() < AT_MOST);
    let (took, refusals) = first_write(&pair.proxy, "34", 3);
    println!("and the first write was there {took:?} later");
    assert_clear(&refusals);
    let found = attempt(&pair.proxy, "33", "INSERT INTO jobs VALUES (4)");
    assert_eq!(found, Err("PF001".to_owned()));
    assert_eq!(ids(&pair.standby), ["1", "3"]);
    assert_eq!(ids(&pair.primary), ["1"], "nobody writes there any more");
}

#[test]
fn a_primary_that_is_killed() {
    let mut pair = Pair::start();
    let mut old = pair.leader("33");
    old.ok("INSERT INTO jobs VALUES (1)");
    pair.synchronize();
    pair.primary.crash();
    let killed = Instant::now();
    // A client that connects during the failover waits.
    let endpoint = pair.proxy.endpoint();
    let patient = std::thread::spawn(move || {
        leader(&endpoint, "34").ok("INSERT INTO jobs VALUES (3)");
        killed.elapsed()
    });
    std::thread::sleep(Duration::from_secs(2));
    pair.standby.promote();
    let promoted = killed.elapsed();
    let (_, refusals) = first_write(&pair.proxy, "34", 4);
    let took = killed.elapsed();
    let waited = patient.join().unwrap();
    println!(
        "killed: promoted after {promoted:?}, the first write after {took:?}, who waited after {waited:?}"
    );
    assert!(took - promoted < AT_MOST && waited < promoted + AT_MOST);
    assert_clear(&refusals);
    assert!(!old.until_closed().is_empty());
    let found = attempt(&pair.proxy, "33", "INSERT INTO jobs VALUES (5)");
    assert_eq!(found, Err("PF001".to_owned()));
    assert_eq!(ids(&pair.standby), ["1", "3", "4"]);

    // It returns unchanged, a primary of the old timeline with a later start.
    pair.primary.start_again(&[]);
    wait_until("the old primary to be noticed", || {
        pair.proxy.output().contains("is not the primary on record")
    });
    pair.leader("34").ok("INSERT INTO jobs VALUES (6)");
    pair.proxy.terminate();
    pair.proxy.restart();
    pair.leader("34").ok("INSERT INTO jobs VALUES (7)");
    assert_eq!(ids(&pair.standby), ["1", "3", "4", "6", "7"]);
    assert_eq!(ids(&pair.primary), ["1"]);
}

/// Its connections do not break, and it does not respond.
#[test]
fn a_primary_that_hangs() {
    let pair = Pair::start();
    let mut idle = pair.leader("33");
    idle.ok("INSERT INTO jobs VALUES (1)");
    let mut open = pair.leader("33");
    open.ok("BEGIN; INSERT INTO jobs VALUES (2)");
    let mut declares = Wire::login(&pair.proxy.endpoint(), &TRUSTED);
    pair.synchronize();
    let frozen = pair.primary.freeze();
    open.send(&Batch::new().query("COMMIT"));
    declares.send(&Batch::new().query("SET fencing.token = 34"));
    // The kernel accepts the connection, and the startup packet gets no reply.
    let mut arrives = Wire::open(&pair.proxy.endpoint(), &[]);
    std::thread::sleep(Duration::from_millis(200));
    let began = Instant::now();
    pair.standby.promote();
    assert_ended(&mut arrives, "PF007");
    assert_ended(&mut idle, "PF007");
    // The COMMIT was in flight: its result is unknown.
    assert_ended(&mut open, "08007");
    let answer = declares.until_closed();
    let code = errors(&answer).into_iter().next().unwrap_or_default();
    let is_told = ["PF006", "PF007", "08007"].contains(&code.as_str());
    assert!(is_told, "{}", pretty(&answer));
    let (_, refusals) = first_write(&pair.proxy, "34", 3);
    println!(
        "hanging: the first write {:?} after the promotion",
        began.elapsed()
    );
    assert!(began.elapsed() < AT_MOST);
    assert_clear(&refusals);
    drop(frozen);
    // The old primary resumes and performs the stale leader's COMMIT, but not on the surviving timeline.
    wait_for("the old primary to go on", || {
        (ids(&pair.primary).len() == 2).then_some(())
    });
    assert_eq!(ids(&pair.standby), ["1", "3"]);
}

/// As Patroni does it: shut down, promote, let the old one follow; and back again.
#[test]
fn a_switchover_and_back() {
    let mut pair = Pair::start();
    pair.leader("33").ok("INSERT INTO jobs VALUES (1)");
    let began = Instant::now();
    pair.primary.crash_by(Signal::INT);
    pair.standby.promote();
    let (took, refusals) = first_write(&pair.proxy, "34", 2);
    println!(
        "switchover: the first write {took:?} after the promotion, {:?} after the shutdown",
        began.elapsed()
    );
    assert!(took < AT_MOST);
    assert_clear(&refusals);
    let mut old = pair.leader("34");
    pair.primary.start_as_replica_of(&pair.standby);
    pair.primary.wait_for_replay(&pair.standby);
    old.ok("INSERT INTO jobs VALUES (3)");

    pair.primary.wait_for_replay(&pair.standby);
    pair.standby.crash_by(Signal::INT);
    pair.primary.promote();
    let (took, refusals) = first_write(&pair.proxy, "35", 4);
    println!("and back: {took:?}");
    assert!(took < AT_MOST);
    assert_clear(&refusals);
    let found = attempt(&pair.proxy, "34", "INSERT INTO jobs VALUES (5)");
    assert_eq!(found, Err("PF001".to_owned()));
    assert_eq!(ids(&pair.primary), ["1", "2", "3", "4"]);
}

/// No host is the primary: a client waits for its timeout, is told why, and nothing needs a restart.
#[test]
fn all_hosts_are_down() {
    let (mut primary, mut standby) = servers();
    let proxy = Proxy::start_with(options(&[&primary, &standby]).flag("--login-timeout", "2s"));
    primary.crash();
    standby.crash();
    let began = Instant::now();
    let refused = attempt(&proxy, "33", "SELECT 1").unwrap_err();
    assert_eq!(refused, "57P03");
    let waited = began.elapsed();
    assert!(
        waited > Duration::from_secs(1) && waited < Duration::from_secs(4),
        "{waited:?}"
    );
    standby.start_again(&[]);
    assert_eq!(attempt(&proxy, "33", "SELECT 1"), Err("57P03".to_owned()));
    primary.start_again(&[]);
    let (took, refusals) = first_write(&proxy, "33", 1);
    println!("back {took:?} after the server");
    assert!(took < AT_MOST);
    assert_clear(&refusals);
}

/// A client that waits no longer than `backends.wait` is told the same, not that too many wait.
#[test]
fn all_hosts_of_a_pool_are_down() {
    let (mut primary, mut standby) = servers();
    let pool = options(&[&primary, &standby]).flag("--pool", "transaction");
    let proxy = Proxy::start_with(pool.flag("--backends-wait", "300ms"));
    let mut wire = Wire::login(&proxy.endpoint(), &TRUSTED);
    wire.ok("SELECT 1");
    primary.crash();
    standby.crash();
    // The first attempts find connections that end.
    let last = (0..20).find_map(|_| {
        let errors = errors(&wire.query("SELECT 1"));
        let ends = |error: &String| ["08006", "57P01"].contains(&error.as_str());
        errors.into_iter().find(|error| !ends(error))
    });
    assert_eq!(last.as_deref(), Some("57P03"));
    primary.start_again(&[]);
    wait_until("the pool to serve", || {
        errors(&wire.query("SELECT 1")).is_empty()
    });
}
