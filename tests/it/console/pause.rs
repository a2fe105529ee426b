//! PAUSE and RESUME: which requests start, continue or wait.

use std::thread::{self, JoinHandle};
use std::time::Duration;

use pgpalisade_test_servers::http::Http;
use pgpalisade_test_servers::machine::{Signal, signal, wait_until};
use pgpalisade_test_servers::stage::leader;
use pgpalisade_test_servers::wire::{Batch, Message, TRUSTED, Wire, pretty, tags};

use super::{Scene, on_a_socket};

/// Far longer than a reply takes.
const SILENCE: Duration = Duration::from_millis(300);

fn paused(scene: &Scene) -> bool {
    let databases = scene.show("DATABASES");
    databases.first().is_some_and(|row| row["paused"] == "1")
}

/// PAUSE by a separate operator, until it is in force.
fn pause(scene: &Scene) -> JoinHandle<Vec<Message>> {
    let mut operator = scene.operator();
    let answer = thread::spawn(move || operator.query("PAUSE"));
    wait_until("the pause", || paused(scene));
    answer
}

#[track_caller]
fn assert_done(answer: JoinHandle<Vec<Message>>) {
    let answer = answer.join().unwrap();
    assert_eq!(answer[0].tag, b'C', "{}", pretty(&answer));
}

/// Asserts that nothing has arrived.
#[track_caller]
fn assert_silent(session: &mut Wire) {
    session.set_patience(SILENCE);
    let came = session.try_read();
    assert!(came.is_err(), "{came:?}");
    session.set_patience(Duration::from_secs(30));
}

fn insert(number: u32) -> Batch {
    Batch::new().query(&format!("INSERT INTO jobs VALUES ({number})"))
}

fn jobs(scene: &Scene) -> String {
    let all = "SELECT string_agg(id::text, ',' ORDER BY id) FROM jobs";
    scene.stage.value(all)
}

#[test]
fn nothing_begins_and_what_has_begun_goes_on() {
    let http = Http::free();
    let scene = Scene::with(on_a_socket, |options| {
        let address = format!("127.0.0.1:{}", http.port());
        options.flag("--http", &address)
    });
    let mut idle = scene.stage.leader("1");
    let mut busy = scene.stage.leader("1");
    busy.ok("BEGIN; INSERT INTO jobs VALUES (1)");
    let answer = pause(&scene);
    idle.send(&insert(3));
    let endpoint = scene.stage.proxy.endpoint();
    let session = TRUSTED;
    let login = thread::spawn(move || drop(Wire::login(&endpoint, &session)));
    busy.ok("INSERT INTO jobs VALUES (2)");
    assert_silent(&mut idle);
    assert!(!answer.is_finished(), "a transaction is open");
    busy.ok("COMMIT");
    assert_done(answer);
    busy.send(&insert(4));
    assert_silent(&mut busy);
    assert!(!login.is_finished());
    assert_eq!(http.metrics().of("pgpalisade_paused"), 1.0);
    assert_eq!(jobs(&scene), "1,2");
    let active = "SELECT count(*) FROM pg_stat_activity \
                  WHERE backend_type = 'client backend' AND state <> 'idle' AND pid <> pg_backend_pid()";
    assert_eq!(scene.stage.value(active), "0");
    scene.operator().ok("RESUME");
    for session in [&mut idle, &mut busy] {
        assert_eq!(session.until_ready()[0].tag, b'C');
    }
    login.join().unwrap();
    assert_eq!(jobs(&scene), "1,2,3,4");
    assert!(!paused(&scene));
    assert_eq!(http.metrics().of("pgpalisade_paused"), 0.0);
}

/// A client that sends ahead is idle only once everything was answered.
#[test]
fn what_was_sent_ahead_is_answered() {
    let scene = Scene::new(on_a_socket);
    let mut leader = scene.stage.leader("1");
    leader.send(&Batch::new().query("SELECT pg_sleep(0.5)").then(&insert(1)));
    wait_until("the statement", || {
        scene.show("SESSIONS")[0]["state"] == "active"
    });
    assert_done(pause(&scene));
    assert_eq!(jobs(&scene), "1");
    leader.until_ready();
    leader.until_ready();
}

#[test]
fn another_operator_resumes() {
    let scene = Scene::new(on_a_socket);
    let mut leader = scene.stage.leader("1");
    leader.ok("BEGIN");
    let answer = pause(&scene);
    scene.operator().ok("RESUME");
    let answer = answer.join().unwrap();
    assert_eq!(answer[0].sqlstate(), "57014", "{}", pretty(&answer));
    leader.ok("COMMIT");
    leader.ok("INSERT INTO jobs VALUES (1)");
}

/// Neither a takeover, nor an operator, nor the end of the proxy waits for waiting clients.
#[test]
fn who_waits_can_be_ended() {
    let mut scene = Scene::new(on_a_socket);
    let mut killed = scene.stage.leader("1");
    let id = scene.show("CLIENTS")[0]["id"].clone();
    let mut left = scene.stage.leader("1");
    assert_done(pause(&scene));
    for session in [&mut killed, &mut left] {
        session.send(&insert(1));
    }
    let ended = |mut session: Wire| {
        let answer = session.until_closed();
        assert_eq!(answer[0].sqlstate(), "57P01", "{}", pretty(&answer));
    };
    scene
        .operator()
        .ok(&format!("KILL {}", id.as_str().unwrap()));
    ended(killed);
    // Even one that waits for its login.
    let _waits = Wire::open(&scene.stage.proxy.endpoint(), &[]);
    assert!(scene.stage.proxy.terminate().success());
    ended(left);
    assert_eq!(jobs(&scene), "NULL");
}

/// A session ended by another proxy's takeover while it waits is told so.
#[test]
fn a_deposed_session_does_not_write_behind_the_pause() {
    let scene = Scene::new(on_a_socket);
    let mut old = scene.stage.leader("1");
    assert_done(pause(&scene));
    old.send(&insert(1));
    assert_silent(&mut old);
    let pid = old.backend_pid();
    let terminated = format!("SELECT pg_terminate_backend({pid})");
    assert_eq!(scene.stage.value(&terminated), "t");
    let answer = old.until_closed();
    assert_eq!(answer[0].sqlstate(), "57P01", "{}", pretty(&answer));
    scene.operator().ok("RESUME");
    scene.stage.leader("2").ok("INSERT INTO jobs VALUES (2)");
    assert_eq!(jobs(&scene), "2");
}

/// A client that leaves keeps neither its place nor its lease, and the proxy ends with the last one.
#[test]
fn who_leaves_meanwhile_is_let_go() {
    let scene = Scene::new(on_a_socket);
    let mut holder = scene.stage.plain();
    holder.ok("SET fencing.token = 'lease'");
    let clients = [scene.stage.plain(), scene.stage.plain()];
    assert_done(pause(&scene));
    let endpoint = scene.stage.proxy.endpoint();
    let waits = Wire::open(&endpoint, &[]);
    holder.send(&insert(1).terminate());
    drop((holder, clients, waits));
    wait_until("all to be gone", || scene.show("CLIENTS").is_empty());
    assert_eq!(jobs(&scene), "NULL", "it had begun nothing");
    let next = thread::spawn(move || {
        Wire::login(&endpoint, &TRUSTED).ok("SET fencing.token = 'lease'");
    });
    scene.operator().ok("RESUME");
    next.join().unwrap();
    let last = scene.stage.plain();
    assert_done(pause(&scene));
    scene.operator().ok("SHUTDOWN WAIT_FOR_CLIENTS");
    drop(last);
    wait_until("its end", || scene.stage.proxy.output().contains("stopped"));
}

/// The timeout of an incomplete message starts again after a pause.
#[test]
fn half_a_message_waits_too() {
    let scene = Scene::new(on_a_socket);
    let mut session = scene.stage.plain();
    let text = format!("SELECT length('{}')", "x".repeat(300_000));
    let message = Batch::new().query(&text);
    let (front, rest) = message.bytes().split_at(150_000);
    session.send_bytes(front);
    assert_done(pause(&scene));
    session.send_bytes(rest);
    assert_silent(&mut session);
    scene.operator().ok("RESUME");
    assert_eq!(session.until_ready()[1].row(), ["300000"]);
}

/// Both wait for the workers, whichever of them asked first.
#[test]
fn two_operators_pause() {
    let scene = Scene::new(on_a_socket);
    let mut leader = scene.stage.leader("1");
    leader.ok("BEGIN");
    let answers = [pause(&scene), pause(&scene)];
    thread::sleep(SILENCE);
    assert!(!answers.iter().any(JoinHandle::is_finished));
    leader.ok("COMMIT");
    answers.into_iter().for_each(assert_done);
}

/// The BEGIN is held back, and the transaction has begun all the same.
#[test]
fn a_client_that_shares_connections_ends_its_transaction() {
    let scene = Scene::with(on_a_socket, |options| options.flag("--pool", "transaction"));
    let [mut idle, mut later, mut begun] = [(); 3].map(|()| scene.stage.plain());
    begun.ok("BEGIN");
    let answer = pause(&scene);
    idle.send(&Batch::new().query("SELECT 1"));
    later.send(&Batch::new().query("BEGIN"));
    begun.ok("SELECT 1");
    assert_silent(&mut idle);
    assert_silent(&mut later);
    assert!(!answer.is_finished(), "a transaction is open");
    begun.ok("COMMIT");
    assert_done(answer);
    scene.operator().ok("RESUME");
    idle.until_ready();
    assert_eq!(tags(&later.until_ready()), "C ZT");
}

/// As one by SET: it ends sessions.
#[test]
fn a_declaration_at_login_is_waited_for() {
    for pool in ["session", "transaction"] {
        let scene = Scene::with(on_a_socket, |options| {
            options.flags(&[("--pool", pool), ("--takeover-timeout", "30s")])
        });
        let mut old = scene.stage.leader("1");
        let process = old.rows("SELECT pg_backend_pid()")[0][0].parse().unwrap();
        // It cannot be ended.
        signal(process, Signal::STOP);
        let endpoint = scene.stage.proxy.endpoint();
        let login = thread::spawn(move || drop(leader(&endpoint, "2")));
        wait_until("the mark", || scene.show("SCOPES")[0]["mark"] == "2");
        let answer = pause(&scene);
        thread::sleep(SILENCE);
        let is_paused = answer.is_finished();
        signal(process, Signal::CONT);
        assert!(!is_paused, "{pool}: a declaration is under way");
        assert_done(answer);
        login.join().unwrap();
        // The next one waits.
        let endpoint = scene.stage.proxy.endpoint();
        let next = thread::spawn(move || drop(leader(&endpoint, "3")));
        thread::sleep(SILENCE);
        assert!(!next.is_finished(), "{pool}");
        scene.operator().ok("RESUME");
        next.join().unwrap();
    }
}

/// Nor does the wait of such a client end, or its connection.
#[test]
fn who_waits_for_a_connection_waits_for_the_resume() {
    let scene = Scene::with(on_a_socket, |options| {
        let options = options.flag("--pool", "transaction");
        let options = options.flag("--backends-max", "1");
        options.flags(&[("--backends-leaders", "0"), ("--backends-wait", "1s")])
    });
    let mut busy = scene.stage.plain();
    let mut waiting = [(); 2].map(|()| scene.stage.plain());
    busy.ok("BEGIN; SELECT 1");
    for client in &mut waiting {
        client.send(&Batch::new().query("SELECT 7"));
    }
    wait_until("the queue", || {
        scene
            .show("POOLS")
            .iter()
            .any(|row| row["cl_waiting"] == "2")
    });
    let answer = pause(&scene);
    busy.ok("COMMIT");
    assert_done(answer);
    thread::sleep(Duration::from_millis(1500));
    let ends = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'client backend' AND \
                application_name NOT LIKE 'pgpalisade%' AND pid <> pg_backend_pid()";
    scene.stage.sql(ends);
    waiting.iter_mut().for_each(assert_silent);
    scene.operator().ok("RESUME");
    for client in &mut waiting {
        assert_eq!(tags(&client.until_ready()), "T D C ZI");
    }
}
