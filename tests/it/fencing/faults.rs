//! Late writes: held on the wire, or in a backend that does not end.

use std::time::{Duration, Instant};

use pgpalisade_test_servers::held_relay::{Direction, HeldRelay};
use pgpalisade_test_servers::machine::{Signal, signal, wait_at_most, wait_until};
use pgpalisade_test_servers::postgres::Postgres;
use pgpalisade_test_servers::proxy::{Options, Proxy};
use pgpalisade_test_servers::stage::Stage;
use pgpalisade_test_servers::wire::{Batch, Endpoint, Wire, assert_error, pretty};

use super::{SETUP, assert_ended, committed, take_over};

/// A stage with a relay between the proxy and the server; the control connection bypasses it.
fn held_stage() -> (Stage, HeldRelay) {
    let postgres = Postgres::start();
    postgres.sql(SETUP);
    let Endpoint::Tcp(server) = postgres.tcp() else {
        unreachable!("tcp is tcp")
    };
    let relay = HeldRelay::start(server);
    let mut options = Options::new(&postgres);
    options.upstream = format!("postgres://{}", relay.address());
    let proxy = Proxy::start_with(options);
    (Stage { proxy, postgres }, relay)
}

/// The proxy has checked and sent the write, which is then delayed until after the takeover. To PostgreSQL it looks
/// like a proxy that is paused between its check and its write.
#[test]
fn a_write_that_arrives_after_the_takeover() {
    for (before, write) in [
        (
            "SELECT 1",
            Batch::new().query("INSERT INTO jobs VALUES (1)"),
        ),
        (
            "BEGIN; INSERT INTO jobs VALUES (1)",
            Batch::new().query("COMMIT"),
        ),
        (
            "SELECT 1",
            Batch::new().statement("INSERT INTO jobs VALUES (1)").sync(),
        ),
    ] {
        let (stage, relay) = held_stage();
        let mut old = stage.leader("33");
        old.ok(before);
        relay.hold(Direction::ToServer);
        old.send(&write);
        wait_until("the write to be in the relay", || {
            relay.held_bytes(Direction::ToServer) > 0
        });
        let mut new = take_over(&stage, "34");
        new.ok("SELECT 1");
        relay.release(Direction::ToServer);
        let answer = old.until_closed();
        let error = &answer[answer.len() - 2];
        // The server's last message confirms the rollback; without it the proxy cannot know.
        assert!(
            ["PF001", "08007"].contains(&error.sqlstate().as_str()),
            "{}",
            pretty(&answer)
        );
        assert!(committed(&stage).is_empty());
    }
}

/// The backend is looked up by the pid from the login. Another process may have that pid by then, so nothing is
/// declared before the session's own connection has answered.
#[test]
fn a_server_process_that_does_not_answer_is_not_declared() {
    let (stage, relay) = held_stage();
    let mut session = stage.plain();
    relay.hold(Direction::ToServer);
    session.send(&Batch::new().query("SET fencing.token = 33"));
    wait_until("the question to be in the relay", || {
        relay.held_bytes(Direction::ToServer) > 0
    });
    // Ten times as long as a declaration takes.
    std::thread::sleep(Duration::from_millis(300));
    let marks = "SELECT count(*) FROM pgpalisade.mark WHERE scope = 'default'";
    assert_eq!(stage.value(marks), "0");
    relay.release(Direction::ToServer);
    session.until_ready();
    assert_eq!(stage.value(marks), "1");
    session.ok("INSERT INTO jobs VALUES (1)");
}

/// G4: the COMMIT succeeded, and only its reply was lost. The error must not say "fenced".
#[test]
fn a_commit_whose_answer_is_lost() {
    let (stage, relay) = held_stage();
    let mut old = stage.leader("33");
    old.ok("BEGIN; INSERT INTO jobs VALUES (1)");
    relay.hold(Direction::ToClient);
    old.send(&Batch::new().query("COMMIT"));
    wait_until("the answer to be in the relay", || {
        relay.held_bytes(Direction::ToClient) > 0
    });
    let _new = take_over(&stage, "34");
    assert_eq!(committed(&stage), ["1"]);
    relay.cut();
    assert_error(&old.until_closed(), "08007");
}

/// The server connection is cut with a write in flight, without a takeover: the result is unknown as well.
#[test]
fn a_server_connection_that_dies_in_flight() {
    let (stage, relay) = held_stage();
    let mut leader = stage.leader("33");
    relay.hold(Direction::ToClient);
    leader.send(&Batch::new().query("INSERT INTO jobs VALUES (1)"));
    wait_until("the answer to be in the relay", || {
        relay.held_bytes(Direction::ToClient) > 0
    });
    relay.cut();
    let answer = leader.until_closed();
    assert!(
        !answer
            .iter()
            .any(|message| message.sqlstate().starts_with("PF")),
        "{}",
        pretty(&answer)
    );
    assert_eq!(committed(&stage), ["1"]);
}

/// A firewall resets the connection after the goodbye, of which PostgreSQL hears nothing: its session is not known to
/// be gone.
#[test]
fn a_session_whose_connection_is_reset_is_ended_by_the_takeover() {
    let (stage, relay) = held_stage();
    let mut old = stage.leader("33");
    old.ok("BEGIN; INSERT INTO jobs VALUES (1)");
    let pid = old.backend_pid();
    relay.hold(Direction::ToServer);
    old.send(&Batch::new().terminate());
    wait_until("the goodbye to be in the relay", || {
        relay.held_bytes(Direction::ToServer) > 0
    });
    relay.forget_clients();
    std::thread::sleep(Duration::from_millis(300));
    let _new = take_over(&stage, "34");
    let alive = format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {pid}");
    assert_eq!(stage.postgres.value(&alive), "0");
}

/// G6: if a backend does not end in time, the takeover fails and the new holder is not admitted.
#[test]
fn a_backend_that_cannot_be_ended() {
    let stage = Stage::with_flags(SETUP, &[("--takeover-timeout", "1s")]);
    let mut old = stage.leader("33");
    old.ok("BEGIN; INSERT INTO jobs VALUES (1)");
    let pid = old.backend_pid();
    signal(pid, Signal::STOP);
    let mut new = stage.plain();
    let begin = Instant::now();
    let answer = new.query("SET fencing.token = 34");
    let took = begin.elapsed();
    let refused = answer.iter().any(|message| message.sqlstate() == "PF006");
    let write = new.query("INSERT INTO jobs VALUES (2)");
    // Resumes it first, so that a failure below leaves no stopped process.
    signal(pid, Signal::CONT);
    assert!(refused, "{}", pretty(&answer));
    assert!(took.as_secs() < 4, "bounded by takeover.timeout: {took:?}");
    assert_eq!(write[0].sqlstate(), "PF002", "{}", pretty(&write));
    wait_at_most(pgpalisade_test_servers::machine::PATIENCE, || {
        (!stage.postgres.has_session(pid)).then_some(())
    })
    .unwrap();
    new.ok("SET fencing.token = 34");
    new.ok("INSERT INTO jobs VALUES (2)");
    assert_ended(&old.query("COMMIT"));
    assert_eq!(committed(&stage), ["2"]);
}

/// Nor is it admitted if its own backend does not answer, in a transaction that is to become read-write first.
#[test]
fn a_backend_that_does_not_answer() {
    let stage = Stage::with_flags(SETUP, &[("--takeover-timeout", "1s")]);
    let mut new = stage.plain();
    let pid = new.backend_pid();
    new.ok("BEGIN");
    signal(pid, Signal::STOP);
    let answer = new.query("SET LOCAL fencing.token = 34");
    signal(pid, Signal::CONT);
    assert_error(&answer, "PF006");
    stage.leader("33").ok("SELECT 1");
}

/// G6 limits a declaration, not each of its scopes: the first one takes most of the time, and the second gets the
/// rest.
#[test]
fn scopes_that_take_their_time_share_one_timeout() {
    let stage = Stage::with_flags(SETUP, &[("--takeover-timeout", "6s")]);
    let first = stage.leader("a=1");
    let second = stage.leader("b=1");
    let pids = [first.backend_pid(), second.backend_pid()];
    pids.iter().for_each(|&pid| signal(pid, Signal::STOP));
    let mut new = stage.plain();
    let begin = Instant::now();
    let answer = std::thread::scope(|threads| {
        threads.spawn(|| {
            std::thread::sleep(Duration::from_millis(4500));
            signal(pids[0], Signal::CONT);
        });
        new.query("SET fencing.token = 'a=2,b=2'")
    });
    let took = begin.elapsed();
    signal(pids[1], Signal::CONT);
    let refused = answer.iter().any(|message| message.sqlstate() == "PF006");
    assert!(refused, "{}", pretty(&answer));
    assert!(
        took < Duration::from_secs(9),
        "bounded by takeover.timeout: {took:?}"
    );
}

/// Marks only rise, even across a restart of the proxy.
#[test]
fn marks_survive_a_restart() {
    let mut stage = Stage::with(SETUP);
    drop(take_over(&stage, "34"));
    for kill in [true, false] {
        if kill {
            stage.proxy.kill();
        } else {
            assert!(stage.proxy.terminate().success());
        }
        stage.proxy.restart();
        let mut wire = Wire::connect(&stage.proxy.endpoint());
        wire.startup(
            0x0003_0000,
            &[("user", "postgres"), ("fencing.token", "33")],
        );
        assert_ended(&wire.until_ready());
        let mut equal = stage.leader("34");
        equal.ok("DELETE FROM jobs; INSERT INTO jobs VALUES (1)");
    }
}
