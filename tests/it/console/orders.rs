//! Operators' commands to the proxy, and the right to give them.

use std::time::{Duration, Instant};

use pgpalisade_test_servers::machine::{Signal, assert_within, signal, wait_for, wait_until};
use pgpalisade_test_servers::policy::PolicyFile;
use pgpalisade_test_servers::proxy::Options;
use pgpalisade_test_servers::wire::{Batch, Wire, assert_error, pretty, trusted};

use super::{Scene, on_a_port, on_a_socket, show};

/// Id of the only client.
fn id(scene: &Scene) -> String {
    let clients = scene.show("CLIENTS");
    assert_eq!(clients.len(), 1, "{clients:?}");
    clients[0]["id"].as_str().unwrap().to_owned()
}

fn kill(scene: &Scene, id: &str) {
    scene.operator().ok(&format!("KILL {id}"));
    wait_until("the client to be gone", || scene.show("CLIENTS").is_empty());
}

#[test]
fn who_may_only_read_gives_no_orders() {
    let scene = Scene::new(on_a_port);
    let mut session = scene.stage.plain();
    for order in [
        "RELOAD",
        "KILL 1",
        "KILL_CLIENT 1",
        "PAUSE",
        "RESUME",
        "SHUTDOWN",
        "SHUTDOWN WAIT_FOR_CLIENTS",
    ] {
        let said = scene.refused("bob", "pencil", order);
        assert!(said.contains("42501: permission denied"), "{said}");
    }
    session.ok("SELECT 1");
    assert_eq!(scene.printed("ann", &["RELOAD", "KILL 1"]), "");
    assert_error(&session.until_closed(), "57P01");
}

#[test]
fn a_kill_says_whether_anything_may_have_been_committed() {
    let scene = Scene::new(on_a_socket);
    let mut operator = scene.operator();
    assert_error(&operator.query("KILL 77"), "42704");
    // Nothing is in flight: the open transaction is rolled back.
    let mut leader = scene.stage.leader("1");
    leader.ok("BEGIN");
    leader.ok("INSERT INTO jobs VALUES (1)");
    kill(&scene, &id(&scene));
    assert_error(&leader.until_closed(), "57P01");
    // A statement is in flight: its result is unknown.
    let mut leader = scene.stage.leader("1");
    leader.send(&Batch::new().query("INSERT INTO jobs SELECT 2 FROM pg_sleep(3)"));
    wait_until("the statement", || {
        scene.show("SESSIONS")[0]["state"] == "active"
    });
    kill(&scene, &id(&scene));
    assert_error(&leader.until_closed(), "08007");
    // The data of a COPY stops in the middle.
    let mut leader = scene.stage.leader("1");
    leader.send(&Batch::new().query("COPY jobs FROM STDIN"));
    leader.until(b'G');
    leader.send(&Batch::new().copy_data(b"3\n"));
    kill(&scene, &id(&scene));
    assert_error(&leader.until_closed(), "08007");
    let postgres = &scene.stage.postgres;
    wait_until("the servers to be gone", || {
        let left = "SELECT count(*) FROM pg_stat_activity WHERE query ~ 'jobs' AND pid <> pg_backend_pid()";
        postgres.value(left) == "0"
    });
    let found = postgres.value("SELECT count(*) FROM jobs WHERE id IN (1, 3)");
    assert_eq!(found, "0");
    // No session delays a takeover.
    scene.stage.leader("2").ok("INSERT INTO jobs VALUES (4)");
}

/// Neither a client that reads nothing nor one that has not logged in can stay.
#[test]
fn a_client_that_does_not_cooperate_is_killed() {
    let scene = Scene::new(on_a_socket);
    let mut reader = scene.stage.plain();
    reader.send(&Batch::new().query("SELECT repeat('x', 1000) FROM generate_series(1, 100000)"));
    let stuck = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'ClientWrite'";
    wait_until("all buffers to be full", || scene.stage.value(stuck) == "1");
    // Permanently.
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(scene.stage.value(stuck), "1");
    let begun = Instant::now();
    kill(&scene, &id(&scene));
    assert_within(begun, Duration::from_secs(5));
    let mut stranger = Wire::connect(&scene.stage.proxy.endpoint());
    wait_until("it to be there", || scene.show("CLIENTS").len() == 1);
    kill(&scene, &id(&scene));
    assert_error(&stranger.until_closed(), "57P01");
}

#[test]
fn a_replication_connection_is_shown_and_killed() {
    let policy = PolicyFile::new("[defaults]\nallow = [\"replication\"]\n");
    let scene = Scene::with(on_a_socket, |options| options.policy(&policy));
    let parameters = trusted(&[("replication", "database")]);
    let mut stream = Wire::login(&scene.stage.proxy.endpoint(), &parameters);
    stream.ok("SELECT 1");
    let row = &scene.show("SESSIONS")[0];
    assert_eq!(row["state"], "streaming");
    assert_ne!(row["backend_pid"], serde_json::Value::Null);
    kill(&scene, &id(&scene));
    // The proxy does not parse its bytes, so it cannot insert an error.
    assert!(stream.try_read().is_ok_and(|message| message.is_closed()));
}

#[test]
fn a_reload_says_what_is_wrong() {
    let policy = PolicyFile::new("[defaults]\nwrites = \"token\"\n");
    let scene = Scene::with(on_a_socket, |options| options.policy(&policy));
    let mut operator = scene.operator();
    let names = |operator: &mut Wire| show(operator, "POLICY").len();
    assert_eq!(names(&mut operator), 1);
    policy.write("[scope.scheduler]\ntables = [\"*.jobs\"]\n");
    operator.ok("RELOAD");
    assert_eq!(names(&mut operator), 2);
    policy.write("[scope.scheduler]\ntables = 7\n");
    let answer = operator.query("RELOAD");
    assert_error(&answer, "F0000");
    assert!(
        answer[0].field(b'M').unwrap().contains("policy.toml:2"),
        "{}",
        pretty(&answer)
    );
    assert_eq!(names(&mut operator), 2);
    // A RELOAD that others wait for too.
    signal(scene.stage.proxy.pid(), Signal::HUP);
    policy.write("");
    wait_until("the empty policy", || {
        operator.ok("RELOAD");
        names(&mut operator) == 1
    });
}

fn with_grace(options: Options) -> Options {
    options.flag("--shutdown-grace", "20s")
}

#[test]
fn a_shutdown_lets_transactions_end_and_is_seen() {
    let scene = Scene::with(on_a_socket, with_grace);
    let (mut idle, mut leader) = (scene.stage.plain(), scene.stage.leader("1"));
    leader.ok("BEGIN");
    leader.ok("INSERT INTO jobs VALUES (1)");
    scene.operator().ok("SHUTDOWN");
    assert_error(&idle.until_closed(), "57P01");
    // The console stays open to the end. The idle session leaves its list shortly after its socket is closed.
    wait_for("the leader alone", || {
        (scene.show("SESSIONS").len() == 1).then_some(())
    });
    leader.ok("COMMIT");
    assert_error(&leader.until_closed(), "57P01");
    wait_until("its end", || scene.stage.proxy.output().contains("stopped"));
    assert!(Wire::try_connect(&scene.console).is_err());
    assert_eq!(scene.stage.value("SELECT count(*) FROM jobs"), "1");
}

#[test]
fn a_shutdown_can_wait_for_the_last_client() {
    let scene = Scene::with(on_a_socket, with_grace);
    let mut session = scene.stage.plain();
    let mut operator = scene.operator();
    operator.ok("SHUTDOWN WAIT_FOR_CLIENTS");
    wait_until("no more clients to be taken", || {
        Wire::try_connect(&scene.stage.proxy.endpoint()).is_err()
    });
    std::thread::sleep(Duration::from_millis(500));
    // The session is idle, and is not ended for that.
    session.ok("SELECT 1");
    assert_eq!(show(&mut operator, "SESSIONS").len(), 1);
    session.send(&Batch::new().terminate());
    wait_until("its end", || scene.stage.proxy.output().contains("stopped"));
}

#[test]
fn a_shutdown_that_waits_can_be_hurried() {
    let scene = Scene::with(on_a_socket, with_grace);
    let mut session = scene.stage.plain();
    let mut operator = scene.operator();
    operator.ok("SHUTDOWN WAIT_FOR_CLIENTS");
    operator.ok("SHUTDOWN");
    assert_error(&session.until_closed(), "57P01");
    wait_until("its end", || scene.stage.proxy.output().contains("stopped"));
}
