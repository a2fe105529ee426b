//! `pool = "transaction"`: few server connections serve many clients, and a token belongs to the transactions of its
//! client.

mod held_back;
mod lending;
mod lost_server;
mod resets;
mod settings;
mod statements;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pgpalisade_test_servers::machine::{Signal, wait_until};
use pgpalisade_test_servers::policy::PolicyFile;
use pgpalisade_test_servers::stage::Stage;
use pgpalisade_test_servers::wire::{
    Batch, PROTOCOL_3_0, PROTOCOL_3_2, Wire, assert_error, cancel_request, errors, tags, trusted,
};

/// Time in which a message arrives.
const MOMENT: Duration = Duration::from_millis(200);

const JOBS: &str = "CREATE TABLE jobs (id int PRIMARY KEY)";

/// A proxy that shares `max` server connections, one of them for leaders.
fn stage(max: &str) -> Stage {
    with(&[("--backends-max", max), ("--backends-leaders", "1")])
}

/// A proxy with one server connection, for which clients wait as long.
fn scarce(wait: &str) -> Stage {
    let max = [("--backends-max", "1"), ("--backends-leaders", "0")];
    with(&[&max[..], &[("--backends-wait", wait)]].concat())
}

fn with(flags: &[(&str, &str)]) -> Stage {
    Stage::with_flags(JOBS, &[&[("--pool", "transaction")], flags].concat())
}

fn backend(wire: &mut Wire) -> String {
    wire.rows("SELECT pg_backend_pid()").concat().concat()
}

/// Server connections of clients.
fn connections(stage: &Stage) -> usize {
    let all = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND \
               application_name NOT LIKE 'pgpalisade%' AND pid <> pg_backend_pid()";
    stage.value(all).parse().unwrap()
}

#[test]
fn many_clients_share_few_connections() {
    let stage = stage("3");
    let mut clients: Vec<Wire> = (0..20).map(|_| stage.plain()).collect();
    for round in 0..3 {
        for client in &mut clients {
            assert_eq!(client.rows("SELECT 1"), [["1"]], "{round}");
            client.ok("BEGIN; SELECT 2; COMMIT");
        }
    }
    assert!(connections(&stage) <= 3);
    // Without a token nobody writes.
    clients[0].fails("INSERT INTO jobs VALUES (1)", "PF002");
}

#[test]
fn a_transaction_keeps_its_connection() {
    let stage = stage("3");
    let (mut one, mut other) = (stage.plain(), stage.plain());
    one.ok("BEGIN");
    let pid = backend(&mut one);
    assert_ne!(backend(&mut other), pid);
    assert_eq!(backend(&mut one), pid);
    one.ok("COMMIT");
}

#[test]
fn a_leader_writes_and_web_transactions_go_on_through_a_takeover() {
    let stage = stage("4");
    let mut web = stage.plain();
    let [mut leader, mut begins, mut parses] = [(); 3].map(|()| stage.leader("34"));
    leader.ok("INSERT INTO jobs VALUES (1)");
    leader.ok("BEGIN; INSERT INTO jobs VALUES (2); COMMIT");
    assert_eq!(web.rows("SELECT count(*) FROM jobs"), [["2"]]);
    web.fails("INSERT INTO jobs VALUES (3)", "PF002");
    let mut next = stage.plain();
    next.ok("SET fencing.token = 35");
    next.ok("INSERT INTO jobs VALUES (4)");
    assert_eq!(web.rows("SELECT count(*) FROM jobs"), [["3"]]);
    // A deposed leader is told once, whatever it says first, and stays connected.
    leader.fails("SELECT 1", "PF001");
    begins.fails("BEGIN", "PF001");
    assert_error(&parses.extended("SELECT 1"), "PF001");
    for other in [&mut begins, &mut parses] {
        other.ok("SELECT 1");
        other.fails("INSERT INTO jobs VALUES (5)", "PF001");
    }
    assert_eq!(leader.rows("SELECT 1"), [["1"]]);
    leader.fails("INSERT INTO jobs VALUES (5)", "PF001");
    leader.fails("BEGIN; INSERT INTO jobs VALUES (5); COMMIT", "PF001");
    next.ok("INSERT INTO jobs VALUES (6)");
    assert_eq!(web.rows("SELECT count(*) FROM jobs"), [["4"]]);
}

/// However many others, of another login too, are in a transaction.
#[test]
fn leaders_find_a_connection() {
    let stage = stage("3");
    stage.sql("CREATE ROLE app LOGIN");
    let mut leader = stage.leader("33");
    leader.ok("INSERT INTO jobs VALUES (1)");
    let mut others = [(); 3].map(|()| stage.user("app"));
    for other in &mut others {
        other.send(&Batch::new().query("BEGIN; SELECT 1"));
    }
    let [first, second, third] = &mut others;
    first.until_ready();
    second.until_ready();
    leader.ok("INSERT INTO jobs VALUES (2)");
    stage.leader("34").ok("INSERT INTO jobs VALUES (3)");
    first.ok("COMMIT");
    assert_eq!(tags(&third.until_ready()), "C T D C ZT");
}

#[test]
fn the_token_of_one_client_is_not_that_of_another() {
    let stage = stage("2");
    let mut leader = stage.leader("34");
    let mut others: Vec<Wire> = (0..4).map(|_| stage.plain()).collect();
    for id in 0..20 {
        leader.ok(&format!("INSERT INTO jobs VALUES ({id})"));
        for other in &mut others {
            other.fails("INSERT INTO jobs VALUES (100)", "PF002");
            assert_eq!(other.rows("SHOW fencing.token"), [[""]]);
        }
        assert_eq!(leader.rows("SHOW fencing.token"), [["34"]]);
    }
}

/// What a client has left, also by a function, is gone for the next.
#[test]
fn nothing_of_a_client_is_left_for_the_next() {
    let stage = stage("3");
    stage.sql(
        "CREATE FUNCTION leaves() RETURNS void LANGUAGE plpgsql AS $$ BEGIN
             PERFORM set_config('work_mem', '123kB', false);
             PERFORM set_config('role', 'pg_monitor', false);
             PERFORM pg_advisory_lock(7);
             PERFORM setseed(0.25);
             LISTEN channel;
         END $$",
    );
    let (mut one, mut other) = (stage.plain(), stage.plain());
    let default = other.rows("SHOW work_mem");
    let mut randoms = std::collections::BTreeSet::new();
    for _ in 0..6 {
        one.ok("SELECT leaves()");
        assert_eq!(other.rows("SHOW work_mem"), default);
        assert_eq!(other.rows("SELECT current_user"), [["postgres"]]);
        assert_eq!(other.rows("SELECT pg_listening_channels()"), [[""; 1]; 0]);
        let locks =
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()";
        assert_eq!(other.rows(locks), [["0"]]);
        assert!(randoms.insert(other.rows("SELECT random()")));
    }
}

/// What a client has left by a text stays, and the client keeps its connection for it.
#[test]
fn a_client_keeps_what_it_has_left() {
    let stage = stage("3");
    let (mut one, mut other) = (stage.plain(), stage.plain());
    one.ok("PREPARE s AS SELECT 7");
    let pid = backend(&mut one);
    for _ in 0..4 {
        assert_ne!(backend(&mut other), pid);
        assert_eq!(one.rows("EXECUTE s"), [["7"]]);
        assert_eq!(backend(&mut one), pid);
    }
    one.ok("DISCARD ALL");
    let left = one.rows("SELECT count(*) FROM pg_prepared_statements");
    assert_eq!(left, [["0"]]);
}

/// What a reset removes costs no server process, and nobody finds it; libraries end with theirs.
#[test]
fn a_client_that_leaves_gives_back_what_it_kept() {
    let stage = scarce("5s");
    let left = "SELECT (SELECT count(*) FROM pg_prepared_statements), (SELECT count(*) FROM pg_cursors), \
                (SELECT count(*) FROM pg_listening_channels()), pg_my_temp_schema()::regnamespace, \
                (SELECT count(*) FROM pg_class WHERE relnamespace = pg_my_temp_schema()), \
                (SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory'), \
                current_setting('work_mem'), current_setting('fencing.token', true)";
    let nothing = stage.plain().rows(left);
    let leavings = [
        "PREPARE s AS SELECT 7",
        "DECLARE c CURSOR WITH HOLD FOR SELECT 1",
        "LISTEN c",
        "SELECT pg_advisory_lock(7)",
        "SELECT set_config('work_' || 'mem', '123kB', false)",
        "DO 'BEGIN PERFORM set_config(''TimeZone'', ''UTC-3'', false); END'",
        "CREATE TEMP TABLE t (n int)",
    ];
    for (text, says_goodbye) in leavings
        .into_iter()
        .flat_map(|text| [(text, true), (text, false)])
    {
        let mut leader = stage.leader("1");
        leader.query(text);
        let pid = backend(&mut leader);
        if says_goodbye {
            leader.send(&Batch::new().terminate());
        }
        drop(leader);
        let mut next = stage.leader("1");
        let found = next.rows(left);
        assert_eq!(backend(&mut next), pid, "{text} {says_goodbye}");
        // A process keeps the schema of its temporary tables.
        let schema = found[0][3].clone();
        let mut expected = nothing.clone();
        expected[0][3] = schema;
        expected[0][7] = "1".to_owned();
        assert_eq!(found, expected, "{text}");
    }
    let load = "LOAD 'auto_explain'";
    // Too long to be read.
    for text in [load, &format!("/*{}*/ {load}", "x".repeat(2 << 20))] {
        let mut leader = stage.leader("1");
        leader.ok(text);
        let pid = backend(&mut leader);
        drop(leader);
        assert_ne!(backend(&mut stage.leader("1")), pid, "{} bytes", text.len());
    }
}

/// A replication origin, which would mark the writes of others, with something lesser or behind a name.
#[test]
fn what_outlives_resets_is_not_hidden() {
    let stage = scarce("5s");
    stage.sql("SELECT pg_replication_origin_create('o')");
    const TAKES: &str = "SELECT 1 AS n FROM pg_replication_origin_session_setup('o')";
    let parsed = |name: &str| Batch::new().parse(name, TAKES).sync();
    let query = |sql: String| Batch::new().query(&sql);
    let comment = "x".repeat(2 << 20);
    let ways = [
        vec![query(format!("/*{comment}*/ {TAKES}"))],
        vec![query(TAKES.replace("1 AS n", "pg_advisory_lock(1)"))],
        vec![query(format!("CREATE TEMP TABLE t AS {TAKES}"))],
        vec![query(format!("DECLARE c CURSOR WITH HOLD FOR {TAKES}"))],
        vec![
            query(format!("PREPARE s AS {TAKES}")),
            query("EXECUTE s".to_owned()),
        ],
        vec![parsed("s"), query("EXECUTE s".to_owned())],
        vec![
            parsed("é"),
            Batch::new().bind("", "é", &[]).execute("", 0).sync(),
        ],
        vec![query(format!(
            "DO $$BEGIN PERFORM n FROM ({TAKES}) AS t; END$$"
        ))],
        vec![query(
            "SELECT ('o'::text).pg_replication_origin_session_setup".to_owned(),
        )],
        vec![Batch::new().function_call(6006, &["o"])],
        vec![
            query("BEGIN; SELECT 1/0".to_owned()),
            query(format!("ROLLBACK; {TAKES}; SELECT 'C:\\'")),
        ],
        vec![query(format!(
            "{TAKES}; SELECT 2 FROM (SELECT 1) system_user"
        ))],
        vec![query(format!(
            "SELECT 1 / (n - 1) FROM ({TAKES}) AS t, (SELECT 1) system_user"
        ))],
    ];
    // As long as system_user is no keyword of PostgreSQL's.
    let count = ways.len() - 2 * usize::from(stage.postgres.version() >= 16);
    for (nth, way) in ways.iter().take(count).enumerate() {
        for discards in [false, true] {
            let mut leader = stage.leader("1");
            let pid = backend(&mut leader);
            for batch in way {
                let errors = errors(&leader.run(batch));
                let is_divided = |error: &String| error == "22012";
                assert!(errors.iter().all(is_divided), "{nth}: {errors:?}");
            }
            if discards {
                leader.ok("DISCARD ALL");
                // Another client would get it now.
                leader.ok("SELECT 1");
            }
            let has = format!("SELECT pid FROM pg_stat_activity WHERE pid = {pid}");
            drop(leader);
            assert_ne!(backend(&mut stage.leader("1")), pid, "{nth} {discards}");
            wait_until("the process to end", || stage.value(&has).is_empty());
        }
    }
}

/// Of what PostgreSQL's grammar refuses, by whatever code, nothing has run.
#[test]
fn a_text_that_the_grammar_refuses_keeps_no_connection() {
    let stage = scarce("500ms");
    let (mut leader, mut other) = (stage.leader("1"), stage.plain());
    for (text, sqlstate) in [
        ("SELEC 1", "42601"),
        ("CREATE ROLE public", "42939"),
        (
            "SELECT count(*) OVER (ROWS BETWEEN CURRENT ROW AND UNBOUNDED PRECEDING)",
            "42P20",
        ),
    ] {
        leader.fails(text, sqlstate);
        other.ok("SELECT 1");
    }
}

/// With a token, which makes long texts need no examination.
#[test]
fn what_a_long_text_leaves_is_kept_too() {
    let stage = stage("2");
    let mut other = stage.plain();
    // Examined, and too long for that.
    for len in [200 << 10, 2 << 20] {
        let mut leader = stage.leader("1");
        let lock = format!("/*{}*/ SELECT pg_advisory_lock(78)", "x".repeat(len));
        leader.ok(&lock);
        for _ in 0..4 {
            other.ok("BEGIN; SELECT 1");
            leader.ok("SELECT 1");
            other.ok("ROLLBACK");
            let locked = other.rows("SELECT pg_try_advisory_xact_lock(78)");
            assert_eq!(locked, [["f"]], "{len}");
        }
        leader.ok("SELECT pg_advisory_unlock(78)");
    }
}

#[test]
fn who_finds_no_connection_in_time_is_told() {
    let stage = scarce("500ms");
    let (mut one, mut other) = (stage.plain(), stage.plain());
    one.ok("BEGIN; SELECT 1");
    other.fails("SELECT 1", "53300");
    let pipeline = Batch::new().statement("SELECT 1").statement("SELECT 2");
    let answer = other.run(&pipeline.sync());
    assert_eq!(tags(&answer), "E ZI");
    assert_error(&answer, "53300");
    // A login with a token needs one, too.
    let mut leader = Wire::connect(&stage.proxy.endpoint());
    let answer = leader.start_as_leader("34");
    let error = answer.iter().find(|message| message.tag == b'E');
    assert_eq!(error.unwrap().sqlstate(), "53300");
    one.ok("COMMIT");
    other.ok("SELECT 1");
}

/// The statement does not begin, and the next in the queue is served.
#[test]
fn a_client_that_leaves_the_queue_is_in_nobodys_way() {
    let stage = scarce("2s");
    let (mut one, mut leaving, mut other) = (stage.plain(), stage.plain(), stage.plain());
    one.ok("BEGIN; SELECT 1");
    leaving.send(&Batch::new().query("SELECT pg_sleep(100)"));
    std::thread::sleep(MOMENT);
    drop(leaving);
    std::thread::sleep(MOMENT);
    one.ok("COMMIT");
    other.ok("SELECT 1");
}

/// Also one that has sent much.
#[test]
fn a_client_that_leaves_with_a_long_text_runs_nothing() {
    let stage = scarce("15s");
    let mut busy = stage.plain();
    busy.ok("BEGIN; SELECT 1");
    let long = format!(
        "SET fencing.token = 5; INSERT INTO jobs VALUES (1) /* {} */",
        "x".repeat(100_000)
    );
    let mut leaving = stage.plain();
    leaving.send(&Batch::new().query(&long));
    std::thread::sleep(MOMENT);
    drop(leaving);
    std::thread::sleep(Duration::from_secs(2));
    busy.ok("COMMIT");
    busy.ok("SELECT 1");
    assert_eq!(stage.value("SELECT count(*) FROM jobs"), "0");
}

/// A long text that was answered without the server takes no more room from others.
#[test]
fn long_texts_that_were_refused_leave_room() {
    let stage = with(&[("--workers", "1")]);
    let mut holder = stage.plain();
    holder.ok("SET fencing.token = 'lease'");
    let padding = "x".repeat(900_000);
    let refused = format!("SET fencing.token = 'lease:nowait' /* {padding} */");
    let mut clients: Vec<Wire> = (0..40).map(|_| stage.plain()).collect();
    for client in &mut clients {
        client.fails(&refused, "55P03");
    }
    stage.plain().ok(&format!("SELECT length('{padding}')"));
}

/// A primary that is away for a while costs its clients errors, not their connections.
#[test]
fn a_client_outlives_a_server_that_is_away() {
    let mut stage = scarce("500ms");
    let mut client = stage.plain();
    client.ok("SELECT 1");
    stage.postgres.crash_by(Signal::QUIT);
    for _ in 0..3 {
        let answer = client.query("SELECT 1");
        assert_eq!(tags(&answer), "E ZI");
        assert_eq!(answer[0].severity(), "ERROR");
    }
    stage.postgres.start_again(&[]);
    wait_until("the primary", || client.query("SELECT 1")[0].tag != b'E');
}

#[test]
fn a_part_of_a_message_keeps_no_connection() {
    let stage = scarce("500ms");
    let (mut one, mut other) = (stage.plain(), stage.plain());
    let query = Batch::new().query("SELECT 7");
    let (front, rest) = query.bytes().split_at(3);
    one.send_bytes(front);
    for _ in 0..3 {
        assert_eq!(other.rows("SELECT 1"), [["1"]]);
    }
    one.send_bytes(rest);
    assert!(one.until_ready().iter().any(|message| message.tag == b'D'));
}

/// As some drivers do: they describe it first.
#[test]
fn an_unnamed_statement_is_there_for_its_bind() {
    let stage = stage("3");
    let (mut one, mut other) = (stage.plain(), stage.plain());
    let parse = Batch::new().parse("", "SELECT 7").describe_statement("");
    one.run(&parse.sync());
    for _ in 0..3 {
        other.ok("SELECT 1");
    }
    let answer = one.run(&Batch::new().bind("", "", &[]).execute("", 0).sync());
    assert!(answer.iter().any(|message| message.tag == b'D'));
    // Then its connection is free again.
    let parse = Batch::new().parse("", "SELECT 8").bind("", "", &[]);
    one.run(&parse.execute("", 0).sync());
    assert!(connections(&stage) <= 3);
}

/// Its statement is cancelled, and the place is free again.
#[test]
fn a_client_that_dies_in_a_statement_leaves_nothing_running() {
    let stage = stage("3");
    let mut dying = stage.plain();
    dying.send(&Batch::new().query("SELECT pg_sleep(100)"));
    let sleeping = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%' AND \
                    state = 'active'";
    wait_until("the statement", || stage.value(sleeping) == "1");
    drop(dying);
    wait_until("its end", || stage.value(sleeping) == "0");
    assert!(connections(&stage) <= 3);
    stage.plain().ok("SELECT 1");
}

/// Idle connections of one worker make room for the clients of another.
#[test]
fn workers_share_the_places() {
    let flags = [("--backends-max", "2"), ("--backends-leaders", "0")];
    let stage = with(&[&flags[..], &[("--workers", "2"), ("--backends-wait", "3s")]].concat());
    let mut clients: Vec<Wire> = (0..6).map(|_| stage.plain()).collect();
    // Every second one is served by the same worker, which gets all places.
    for text in ["BEGIN; SELECT 1", "COMMIT"] {
        clients[0].ok(text);
        clients[2].ok(text);
    }
    for client in &mut clients {
        client.ok("SELECT 1");
    }
}

/// Clients of one worker keep all places busy, and those of another get some.
#[test]
fn a_busy_worker_leaves_places_to_others() {
    let flags = [("--backends-max", "2"), ("--backends-leaders", "0")];
    let stage = with(&[&flags[..], &[("--workers", "2"), ("--backends-wait", "3s")]].concat());
    // The workers get them in turns.
    let clients: Vec<_> = (0..5).map(|_| (stage.plain(), stage.plain())).collect();
    let (mut busy, mut others): (Vec<_>, Vec<_>) = clients.into_iter().unzip();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for client in &mut busy {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    client.ok("SELECT pg_sleep(0.01)");
                }
            });
        }
        std::thread::sleep(MOMENT);
        let answers: Vec<_> = others.iter_mut().map(|of| of.query("SELECT 1")).collect();
        is_over.store(true, Ordering::Relaxed);
        for answer in answers {
            assert!(errors(&answer).is_empty());
        }
    });
}

/// Whichever worker has them.
#[test]
fn clients_of_all_workers_keep_as_many_connections_as_the_limit() {
    let flags = [("--backends-max", "4"), ("--backends-pinned", "1")];
    let stage = with(&[&flags[..], &[("--workers", "2")]].concat());
    let mut clients: Vec<Wire> = (0..4).map(|_| stage.plain()).collect();
    let mut ends = clients.iter_mut().map(|client| {
        client.ok("PREPARE s AS SELECT 1");
        errors(&client.query("EXECUTE s")).concat()
    });
    assert_eq!(ends.next().unwrap(), "");
    ends.for_each(|end| assert_eq!(end, "53400"));
}

#[test]
fn a_cancel_request_reaches_only_its_own_client() {
    let stage = scarce("500ms");
    let (one, mut other) = (stage.plain(), stage.plain());
    for _ in 0..20 {
        let mut cancel = Wire::connect(&stage.proxy.endpoint());
        cancel.send_bytes(&cancel_request(one.backend_key()));
        other.ok("SELECT pg_sleep(0.01)");
    }
    let mut sleeping = stage.plain();
    sleeping.send(&Batch::new().query("SELECT pg_sleep(100)"));
    std::thread::sleep(MOMENT);
    let mut cancel = Wire::connect(&stage.proxy.endpoint());
    cancel.send_bytes(&cancel_request(sleeping.backend_key()));
    assert_eq!(sleeping.until_ready()[1].sqlstate(), "57014");
    other.ok("SELECT 1");
}

/// The proxy speaks protocol 3.2 here, whichever PostgreSQL does.
#[test]
fn a_client_of_protocol_3_2_has_a_long_key() {
    let stage = scarce("500ms");
    let mut client = Wire::connect(&stage.proxy.endpoint());
    client.startup(PROTOCOL_3_2, &trusted(&[]));
    assert!(!tags(&client.until_ready()).contains('v'));
    assert_eq!(client.backend_key().len(), 4 + 32);
    client.send(&Batch::new().query("SELECT pg_sleep(100)"));
    std::thread::sleep(MOMENT);
    let mut cancel = Wire::connect(&stage.proxy.endpoint());
    cancel.send_bytes(&cancel_request(client.backend_key()));
    assert_eq!(client.until_ready()[1].sqlstate(), "57014");
}

/// The policy gives some clients a connection of their own, as many as `backends.sessions`.
#[test]
fn a_rule_gives_a_client_its_own_connection() {
    let policy = PolicyFile::new(
        "[[session]]\nmatch = { application_name = \"own\" }\npool = \"session\"\n",
    );
    let path = policy.path().display().to_string();
    let flags = [("--policy", &*path), ("--backends-max", "1")];
    let more = [("--backends-leaders", "0"), ("--backends-sessions", "1")];
    let stage = with(&[flags, more].concat());
    let own = trusted(&[("application_name", "own")]);
    let mut one = Wire::login(&stage.proxy.endpoint(), &own);
    let pid = one.backend_pid();
    let mut other = stage.plain();
    // Its settings and its process stay, whatever others do, and no place of the pool is taken.
    one.ok("SET work_mem = '123kB'");
    for _ in 0..3 {
        other.ok("BEGIN; SELECT 1; COMMIT");
        assert_eq!(one.rows("SHOW work_mem"), [["123kB"]]);
        assert_eq!(backend(&mut one), pid.to_string());
    }
    let mut late = Wire::connect(&stage.proxy.endpoint());
    late.startup(PROTOCOL_3_0, &own);
    assert_eq!(late.until_closed()[0].sqlstate(), "53300");
    // Its place is free again.
    drop(one);
    wait_until("the place", || {
        let mut next = Wire::connect(&stage.proxy.endpoint());
        next.startup(PROTOCOL_3_0, &own);
        next.read().tag == b'R'
    });
}
