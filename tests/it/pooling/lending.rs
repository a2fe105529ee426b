//! What happens at the edges of a lend: the tokens of a connection, a login that waits, half of a message.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pgpalisade_test_servers::held_relay::{Direction, HeldRelay};
use pgpalisade_test_servers::machine::{PATIENCE, Signal, assert_says, pause, signal, wait_until};
use pgpalisade_test_servers::postgres::Postgres;
use pgpalisade_test_servers::proxy::{Options, Proxy};
use pgpalisade_test_servers::stage::Stage;
use pgpalisade_test_servers::wire::{
    Batch, Endpoint, PROTOCOL_3_0, Wire, assert_error, errors, pretty, tags, trusted,
};

use super::{MOMENT, backend, connections, scarce, stage, with};

/// A connection that is registered in another scope, too, is not lent on.
#[test]
fn a_takeover_of_another_scope_ends_no_transaction() {
    let stage = stage("3");
    let both = [
        ["billing=1", "1"],
        ["billing=3,default=3", "3"],
        ["5,billing=5", "5"],
    ];
    for (round, [first, last]) in both.into_iter().enumerate() {
        let mut leader = stage.plain();
        leader.ok("BEGIN");
        leader.ok(&format!("SET fencing.token = '{first}'"));
        leader.ok(&format!("SET fencing.token = '{last}'"));
        leader.ok(&format!("INSERT INTO jobs VALUES ({round})"));
        leader.ok("COMMIT");
        let mut next = stage.leader(last);
        next.ok("BEGIN");
        next.ok(&format!("INSERT INTO jobs VALUES (-1 - {round})"));
        let taker = format!("billing={}", 2 * round + 2);
        stage.leader(&taker).ok("SELECT 1");
        next.ok("COMMIT");
    }
}

/// Nobody is deposed for a client that is gone.
#[test]
fn a_login_that_is_given_up_declares_nothing() {
    let stage = scarce("15s");
    let mut busy = stage.plain();
    busy.ok("BEGIN; SELECT 1");
    let leaving = Wire::open(&stage.proxy.endpoint(), &[("fencing.token", "34")]);
    std::thread::sleep(MOMENT);
    drop(leaving);
    std::thread::sleep(MOMENT);
    busy.ok("COMMIT");
    drop(busy);
    stage.leader("33").ok("SELECT 1");
}

/// Also while a connection of an earlier login is idle.
#[test]
fn postgresql_decides_on_a_login() {
    let stage = stage("3");
    stage.sql("CREATE ROLE app LOGIN");
    let (mut one, mut other) = (stage.user("app"), stage.user("app"));
    one.ok("BEGIN; SELECT 1");
    stage.sql("ALTER ROLE app NOLOGIN");
    // No connection can be opened any more, so it waits for the other's.
    other.send(&Batch::new().query("SELECT 1"));
    std::thread::sleep(MOMENT);
    one.ok("COMMIT");
    assert_eq!(tags(&other.until_ready()), "T D C ZI");
    let mut next = Wire::connect(&stage.proxy.endpoint());
    next.startup(PROTOCOL_3_0, &[("user", "app"), ("database", "postgres")]);
    let answer = next.until_closed();
    assert_eq!(answer[0].sqlstate(), "28000");
    one.ok("SELECT 1");
}

/// Between two of its transactions, others are served.
#[test]
fn a_client_that_always_sends_ahead_keeps_no_connection() {
    let stage = scarce("2s");
    let (mut ahead, mut other) = (stage.plain(), stage.plain());
    let query = Batch::new().query("SELECT pg_sleep(0.02)");
    ahead.send(&query);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                ahead.send(&query);
                assert_eq!(tags(&ahead.until_ready()), "T D C ZI");
            }
        });
        std::thread::sleep(MOMENT);
        let answers = [(); 3].map(|()| other.query("SELECT 1"));
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(answers.map(|answer| tags(&answer)), ["T D C ZI"; 3]);
    });
}

/// A notification, of which one half comes with the reply to the client's statement.
#[test]
fn a_message_of_the_server_is_passed_on_whole() {
    let postgres = Postgres::start();
    let listens = "BEGIN EXECUTE replace('LISTEN_c', '_', ' '); END";
    postgres.sql(&format!(
        "CREATE FUNCTION listens() RETURNS void LANGUAGE plpgsql AS $${listens}$$"
    ));
    let Endpoint::Tcp(server) = postgres.tcp() else {
        unreachable!("tcp is tcp")
    };
    let relay = HeldRelay::start(server);
    let mut options = Options::new(&postgres).flag("--pool", "transaction");
    options = options
        .flag("--backends-max", "1")
        .flag("--backends-leaders", "0");
    options.upstream = format!("postgres://{}", relay.address());
    let proxy = Proxy::start_with(options);
    let stage = Stage { proxy, postgres };
    let mut client = stage.plain();
    client.ok("SELECT 1");
    relay.hold(Direction::ToClient);
    client.send(&Batch::new().query("SELECT listens()"));
    wait_until("the reply", || relay.held_bytes(Direction::ToClient) > 0);
    stage.sql("NOTIFY c");
    relay.release_in_two(Direction::ToClient, 3);
    assert_eq!(tags(&client.until_ready()), "T D C ZI");
    let notification = client.read();
    assert_eq!(
        (notification.tag, &notification.body[4..]),
        (b'A', &b"c\0\0"[..])
    );
    assert_eq!(client.rows("SELECT 1"), [["1"]]);
}

/// PostgreSQL may have refused the data before, and then answers the Sync, too.
#[test]
fn a_sync_among_the_data_of_a_copy_that_fails_ends_the_client() {
    let stage = scarce("5s");
    for end in [
        Batch::new().copy_done(),
        Batch::new().copy_fail("no"),
        Batch::new(),
    ] {
        let mut leader = stage.leader("34");
        let copy = "COPY jobs FROM STDIN";
        leader.send(&Batch::new().query(copy));
        leader.until(b'G');
        leader.send(&Batch::new().copy_data(b"no number\n").sync().then(&end));
        if end.bytes().is_empty() {
            leader.send(&Batch::new().copy_done());
        }
        let told = leader.until_closed();
        let fatal = told
            .iter()
            .any(|told| told.severity() == "FATAL" && told.sqlstate() == "08P01");
        assert!(fatal, "{}", pretty(&told));
        let mut next = stage.leader("34");
        next.fails("SELECT 1/0", "22012");
        assert_eq!(next.rows("SELECT 7"), [["7"]]);
    }
    // If it succeeds, PostgreSQL has ignored the Sync.
    let mut leader = stage.leader("34");
    leader.send(&Batch::new().query("COPY jobs FROM STDIN"));
    leader.until(b'G');
    leader.send(&Batch::new().copy_data(b"7\n").sync().copy_done());
    assert_eq!(tags(&leader.until_ready()), "C ZI");
    assert_eq!(leader.rows("SELECT id FROM jobs"), [["7"]]);
}

#[test]
fn a_function_call_that_is_refused_leaves_nothing() {
    let stage = scarce("500ms");
    let (mut one, mut other) = (stage.plain(), stage.plain());
    // lo_creat
    let answer = one.run(&Batch::new().function_call(957, &["1"]));
    assert_eq!(errors(&answer), ["PF002"]);
    other.ok("SELECT 1");
}

/// Neither bytes that can be no message, nor messages without end keep others from their turn.
#[test]
fn a_client_that_sends_nonsense_stops_nobody() {
    let stage = with(&[("--workers", "1")]);
    let mut other = stage.plain();
    let pid = backend(&mut other);
    for bytes in [b"d\0\0\0\0", b"c\xff\xff\xff\xff", b"f\0\0\0\x03"] {
        let mut wire = stage.plain();
        wire.send(&Batch::new().raw(bytes));
        assert_error(&wire.until_ready(), "08P01");
        assert_eq!(backend(&mut other), pid);
    }
    let is_over = AtomicBool::new(false);
    let mut flooding = stage.plain();
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let copy_done = Batch::new().raw(&b"c\0\0\0\x04".repeat(100_000));
            while !is_over.load(Ordering::Relaxed) {
                flooding.send(&copy_done);
            }
        });
        std::thread::sleep(MOMENT);
        for _ in 0..10 {
            other.ok("SELECT 1");
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

/// Logins on which PostgreSQL has not decided take no connection away from others.
#[test]
fn logins_without_end_leave_room() {
    let max = [("--backends-max", "4"), ("--backends-leaders", "0")];
    let stage = with(&[&max[..], &[("--backends-wait", "1s")]].concat());
    let (mut one, mut two) = (stage.plain(), stage.plain());
    let undecided = (0..8).map(|nth| {
        let mut wire = Wire::connect(&stage.proxy.endpoint());
        let name = format!("undecided {nth}");
        let slow = [
            ("application_name", &*name),
            ("options", "-c post_auth_delay=3"),
        ];
        wire.startup(PROTOCOL_3_0, &trusted(&slow));
        wire
    });
    let _undecided: Vec<_> = undecided.collect();
    std::thread::sleep(MOMENT);
    for _ in 0..3 {
        one.ok("BEGIN; SELECT 1");
        two.ok("BEGIN; SELECT 1");
        one.ok("COMMIT");
        two.ok("COMMIT");
    }
}

/// Also if more of it waits for the answer.
#[test]
fn a_client_that_has_left_gives_its_connection_back() {
    let stage = scarce("30s");
    let mut other = stage.plain();
    for more in ["SELECT 1", "INSERT INTO jobs VALUES (1)"] {
        let mut leaving = stage.plain();
        leaving.send(&Batch::new().query("SELECT pg_sleep(600)").query(more));
        std::thread::sleep(MOMENT);
        drop(leaving);
        other.ok("SELECT 1");
    }
}

/// Those of a database that is gone, and that try again and again, hold up no others.
#[test]
fn logins_that_are_refused_hold_up_no_others() {
    let max = [("--backends-max", "8"), ("--backends-leaders", "0")];
    let stage = with(&max);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for nth in 0..24 {
            let (stage, is_over) = (&stage, &is_over);
            scope.spawn(move || {
                let name = format!("gone {}", nth % 6);
                while !is_over.load(Ordering::Relaxed) {
                    let mut wire = Wire::connect(&stage.proxy.endpoint());
                    let user = ("user", "postgres");
                    let gone = [user, ("database", "gone"), ("application_name", &*name)];
                    wire.startup(PROTOCOL_3_0, &gone);
                    wire.until_closed();
                }
            });
        }
        std::thread::sleep(Duration::from_secs(3));
        let begun = Instant::now();
        for name in ["one", "two", "three"] {
            let mut wire = Wire::open(&stage.proxy.endpoint(), &[("application_name", name)]);
            wire.until_ready();
            wire.ok("SELECT 1");
        }
        let took = begun.elapsed();
        is_over.store(true, Ordering::Relaxed);
        assert!(took < Duration::from_secs(3), "{took:?}");
    });
}

/// Server processes that hang do not do so one after the other, each for the time of a reset.
#[test]
fn a_client_waits_no_longer_for_those_that_hang() {
    let max = [("--backends-max", "3"), ("--backends-leaders", "0")];
    let stage = with(&[&max[..], &[("--backends-wait", "1s")]].concat());
    let mut client = stage.plain();
    client.ok("SET work_mem = '5MB'");
    let mut others = [(); 3].map(|()| stage.plain());
    let pids: [u32; 3] = others.each_mut().map(|other| {
        other.ok("BEGIN");
        backend(other).parse().unwrap()
    });
    for other in &mut others {
        other.ok("COMMIT");
    }
    for pid in pids {
        pause(pid);
    }
    let begun = Instant::now();
    client.fails("SELECT 1", "53300");
    assert!(begun.elapsed() < Duration::from_secs(9));
    for pid in pids {
        signal(pid, Signal::CONT);
    }
}

/// One login at the server that hangs is not waited for while another would succeed.
#[test]
fn a_connection_that_is_never_opened_is_given_up() {
    let stage = with(&[]);
    let [mut busy, mut client] = [stage.plain(), stage.plain()];
    busy.ok("BEGIN; SELECT 1");
    wait_until("only the busy one's connection is open", || {
        let ends = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
            WHERE state = 'idle' AND backend_type = 'client backend' AND application_name = ''";
        stage.sql(ends);
        connections(&stage) == 1
    });
    // A new session of it would be delayed, too.
    let mut admin = stage.postgres.admin();
    let mut delay = |seconds: u32| {
        admin.ok(&format!("ALTER SYSTEM SET pre_auth_delay = {seconds}"));
        admin.ok("SELECT pg_reload_conf()");
        wait_until("the server to have read it", || {
            let mut login = Wire::open(&stage.postgres.tcp(), &[]);
            is_answered(&mut login) == (seconds == 0)
        });
    };
    delay(50);
    client.send(&Batch::new().query("SELECT 1"));
    assert!(!is_answered(&mut client), "its connection opens at once");
    delay(0);
    assert_eq!(errors(&client.until_ready()), [""; 0]);
}

/// Whether a message comes soon. It is dropped.
fn is_answered(wire: &mut Wire) -> bool {
    wire.set_patience(Duration::from_secs(1));
    let answer = wire.try_read();
    wire.set_patience(PATIENCE);
    answer.is_ok()
}

/// The leader does not wait behind those that want its lease.
#[test]
fn those_that_wait_for_a_lease_leave_connections() {
    let stage = with(&[("--backends-max", "4"), ("--backends-leaders", "0")]);
    let lease = "SET fencing.token = 'lease'";
    let (mut leader, mut reader) = (stage.plain(), stage.plain());
    leader.ok(lease);
    let mut waits = [stage.plain(), stage.plain()];
    for wire in &mut waits {
        wire.send(&Batch::new().query(lease));
    }
    wait_until("the lease to be waited for", || connections(&stage) >= 2);
    std::thread::sleep(MOMENT);
    let mut others: Vec<Wire> = (0..4).map(|_| stage.plain()).collect();
    let begun = Instant::now();
    for other in &mut others {
        other.fails(lease, "55P03");
        reader.ok("SELECT 1");
        leader.ok("INSERT INTO jobs VALUES (1) ON CONFLICT DO NOTHING");
    }
    assert!(begun.elapsed() < Duration::from_secs(5));
    leader.ok("RESET fencing.token");
    wait_until("the next to have it", || {
        reader.rows("SHOW fencing.mark") == [["2"]]
    });
}

/// Not that all of backends.max are in use.
#[test]
fn who_waits_in_vain_is_told_what_postgresql_said() {
    let max = [("--backends-max", "4"), ("--backends-leaders", "0")];
    let stage = with(&[&max[..], &[("--backends-wait", "2s")]].concat());
    stage
        .postgres
        .sql("CREATE ROLE narrow LOGIN CONNECTION LIMIT 1");
    let [mut one, mut other] = [(); 2].map(|()| stage.user("narrow"));
    one.ok("BEGIN; SELECT 1");
    // The second wait may begin and end within a pause between two attempts.
    for _ in 0..2 {
        let answer = other.fails("SELECT 1", "53300");
        assert_says(&pretty(&answer), "too many connections for role");
    }
    let output = stage.proxy.output();
    let lines = output.matches("cannot open a server connection").count();
    assert_eq!(lines, 1, "{output}");
    one.ok("COMMIT");
    other.ok("SELECT 1");
}

/// The declaration has the rest of the time, not all of it again.
#[test]
fn a_login_with_a_token_takes_no_longer_than_others() {
    let stage = with(&[("--login-timeout", "3s"), ("--takeover-timeout", "30s")]);
    let mut old = stage.leader("1");
    let process = backend(&mut old).parse().unwrap();
    // The takeover does not end.
    signal(process, Signal::STOP);
    let begun = Instant::now();
    let mut wire = Wire::connect(&stage.proxy.endpoint());
    let slow = [("options", "-c post_auth_delay=2"), ("fencing.token", "2")];
    wire.startup(PROTOCOL_3_0, &trusted(&slow));
    let answer = wire.until_closed();
    let took = begun.elapsed();
    signal(process, Signal::CONT);
    assert_eq!(errors(&answer), ["57014"], "{}", pretty(&answer));
    assert!(took < Duration::from_millis(4500), "{took:?}");
}

#[test]
fn who_does_not_wait_for_an_opening_is_told_so() {
    let stage = with(&[("--backends-wait", "0s")]);
    let mut wire = Wire::connect(&stage.proxy.endpoint());
    let slow = [("options", "-c post_auth_delay=2")];
    wire.startup(PROTOCOL_3_0, &trusted(&slow));
    let answer = wire.until_closed();
    assert_eq!(errors(&answer), ["53300"], "{}", pretty(&answer));
    assert_says(&pretty(&answer), "Opening one took longer");
}

/// Nobody else can use them, and the next process may need them.
#[test]
fn a_proxy_that_stops_closes_what_is_idle() {
    let mut stage = with(&[("--shutdown-grace", "30s")]);
    let mut clients = [(); 3].map(|()| stage.plain());
    for client in &mut clients {
        client.ok("BEGIN; SELECT 1");
    }
    let [last, others @ ..] = &mut clients;
    for client in others {
        client.ok("COMMIT");
    }
    signal(stage.proxy.pid(), Signal::TERM);
    wait_until("idle connections to close", || connections(&stage) == 1);
    last.ok("COMMIT");
    stage.proxy.terminate();
}

/// Whatever its message is.
#[test]
fn the_front_of_a_long_message_gets_no_connection() {
    let stage = scarce("500ms");
    let (mut one, mut other) = (stage.plain(), stage.plain());
    for (tag, len) in [
        (b'B', 20_000),
        (b'D', 20_000),
        (b'P', 2 << 20),
        (b'Q', 100_000),
    ] {
        let len: i32 = len;
        one.send_bytes(&[&[tag][..], &len.to_be_bytes()].concat());
        std::thread::sleep(MOMENT);
        assert_eq!(other.rows("SELECT 1"), [["1"]], "{}", char::from(tag));
        one = stage.plain();
    }
}

/// Not what it has left in a connection before that, and has discarded since.
#[test]
fn a_client_comes_back_to_what_it_had_last() {
    let stage = stage("3");
    stage.sql(
        "CREATE FUNCTION leaves() RETURNS void LANGUAGE plpgsql AS
         $$BEGIN PERFORM set_config('app.left', 'by a function', false); END$$",
    );
    let left =
        "SELECT concat(current_setting('app.left', true), current_setting('fencing.token', true))";
    let mut client = stage.plain();
    client.ok("SELECT leaves()");
    client.ok("SET fencing.token = 1");
    client.ok("DISCARD ALL");
    assert_eq!(client.rows(left).concat().concat(), "");
    client.ok("SET fencing.token = 1");
    client.ok("SELECT 1");
    stage.leader("2").ok("SELECT 1");
    assert_error(&client.query("SELECT 1"), "PF001");
    client.ok("SELECT 1");
    client.ok("SET fencing.token = 2");
    client.ok("SELECT 1");
    client.ok("SET fencing.token = ''");
    assert_eq!(client.rows(left).concat().concat(), "");
    // It has discarded nothing, so nothing is reset.
    client.ok("SELECT leaves()");
    client.ok("BEGIN; SET LOCAL fencing.token = 2; SELECT 1; COMMIT");
    assert_eq!(client.rows(left).concat().concat(), "by a function");
}
