//! Elections during an outage of etcd, and after changes that the proxy has missed.

use pgpalisade_test_servers::machine::wait_until;
use pgpalisade_test_servers::stage::leader;
use pgpalisade_test_servers::wire::pretty;

use super::{POLICY, Scene, assert_ended, assert_refused};

/// Bound sessions go on, no other is admitted; afterwards the proxy follows the election again.
#[test]
fn etcd_is_away_and_comes_back() {
    let mut scene = Scene::start(POLICY);
    let a = scene.stands("a");
    let mut old = scene.writing(a);
    old.ok("COMMIT");
    scene.etcd.kill(0);
    assert_refused(
        &mut scene.plain(),
        &a.to_string(),
        "PF004",
        "the token authority is not available",
    );
    old.ok("INSERT INTO jobs VALUES (2)");
    scene.etcd.restart(0);
    scene.etcd.wait_until_ready();
    old.ok("BEGIN; INSERT INTO jobs VALUES (3)");
    let b = scene.stands("b");
    scene.leaves("a");
    let now = scene.etcd.revision(&[0]).to_string();
    scene.etcd.ctl(&["compact", &now]);
    assert_ended(old);
    assert_eq!(scene.rows(), "2");
    leader(&scene.proxy.endpoint(), &format!("jobs={b}")).ok("INSERT INTO jobs VALUES (4)");
}

/// The proxy slept while another leader was elected, and the changes that it missed are compacted.
#[test]
fn a_proxy_that_slept_makes_up_for_it() {
    let scene = Scene::start(POLICY);
    let a = scene.stands("a");
    let old = scene.writing(a);
    scene.proxy.pause();
    scene.leaves("a");
    let b = scene.stands("b");
    let now = scene.etcd.revision(&[0]).to_string();
    scene.etcd.ctl(&["compact", &now]);
    scene.proxy.resume();
    assert_ended(old);
    scene.reaches(b);
}

/// A starting proxy has seen no changes, and ends the sessions that it finds.
#[test]
fn a_proxy_that_starts_later_ends_the_old_leader() {
    let scene = Scene::start(POLICY);
    let (a, b) = (scene.stands("a"), scene.stands("b"));
    let mut old = scene.writing(a);
    let pid = old.backend_pid();
    // The backend of a stopped proxy lives on.
    scene.proxy.pause();
    assert!(scene.postgres.has_session(pid));
    scene.leaves("a");
    let second = Scene::proxy(&scene.postgres, &scene.etcd, &scene.policy);
    wait_until("the old leader's process to end", || {
        !scene.postgres.has_session(pid)
    });
    leader(&second.endpoint(), &format!("jobs={b}")).ok("INSERT INTO jobs VALUES (1)");
    scene.proxy.resume();
    // The proxy had not heard of the new mark: the error is PostgreSQL's own.
    let told = pretty(&old.until_closed());
    assert!(told.contains("FATAL"), "{told}");
}

/// After a restore an election may be below the mark: its leader is refused, so that no wrong one is admitted.
#[test]
fn a_number_below_the_mark_raises_nothing() {
    let scene = Scene::start("[scope.jobs]\ntables = [\"*.jobs\"]\n");
    let mut wire = scene.plain();
    wire.ok("SET fencing.token = 'jobs=1000000'");
    let a = scene.stands("a");
    scene.policy.reload(&scene.proxy, POLICY);
    wait_until("a word about it", || {
        let output = scene.proxy.output();
        output.contains("the leader's number is below the mark")
    });
    assert_refused(
        &mut scene.plain(),
        &a.to_string(),
        "PF001",
        "scope \"jobs\" is at 1000000",
    );
    // The holder of the mark itself is not the election's leader either, but its bound session goes on.
    assert_refused(&mut scene.plain(), "1000000", "PF003", "has not won");
    wire.ok("INSERT INTO jobs VALUES (1)");
}

/// The log says that an old leader would not be ended now.
#[test]
fn what_cannot_be_followed_is_said() {
    let mut scene = Scene::start(POLICY);
    scene.stands("a");
    scene.etcd.kill(0);
    let says = |scene: &Scene, words: &str| {
        wait_until(words, || scene.proxy.output().contains(words));
    };
    says(&scene, "cannot follow the election");
    scene.etcd.restart(0);
    says(&scene, "following the election again");
}
