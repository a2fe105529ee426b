//! The old leader (token 33) in every state in which a takeover by 34 can find it.

use pgpalisade_test_servers::machine::{Signal, signal, wait_until};
use pgpalisade_test_servers::policy::PolicyFile;
use pgpalisade_test_servers::stage::Stage;
use pgpalisade_test_servers::wire::{Batch, Message, Wire, pretty, tags};

use super::{SETUP, assert_ended, assert_refused, committed, take_over};

/// Waits until a session of the server executes this text.
fn wait_until_active(stage: &Stage, part: &str) {
    let look = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query LIKE '{part}%'"
    );
    wait_until(part, || stage.value(&look) == "1");
}

/// Asserts that the session's last words are that its work may be committed.
#[track_caller]
fn assert_unknown(answer: &[Message]) {
    let told = answer[answer.len() - 2].sqlstate();
    assert_eq!(told, "08007", "{}", pretty(answer));
}

/// A leader deposed during its own declaration: at login and at SET, with a given token and with a taken one.
#[test]
fn deposed_while_it_declares() {
    for claim in ["33", "next"] {
        let stage = Stage::with_flags(SETUP, &[("--takeover-timeout", "15s")]);
        // Its backend does not end, so no higher token is admitted.
        let oldest = stage.leader("32");
        signal(oldest.backend_pid(), Signal::STOP);
        let mut at_set = stage.plain();
        at_set.send(&Batch::new().query(&format!("SET fencing.token = '{claim}'")));
        wait_until_registered(&stage, "33");
        let at_login = std::thread::scope(|scope| {
            let endpoint = stage.proxy.endpoint();
            let token = if claim == "next" { "next" } else { "34" };
            let login = scope.spawn(move || Wire::connect(&endpoint).start_as_leader(token));
            wait_until_registered(&stage, "34");
            let mut last = stage.plain();
            last.send(&Batch::new().query("SET fencing.token = 35"));
            wait_until_registered(&stage, "35");
            wait_until("the ends of both", || {
                let left = "SELECT count(*) FROM pg_stat_activity WHERE client_addr IS NOT NULL";
                stage.value(left) == "2"
            });
            signal(oldest.backend_pid(), Signal::CONT);
            let through = last.until_ready();
            assert_eq!(through[0].tag, b'C', "{}", pretty(&through));
            login.join().unwrap()
        });
        assert_ended(&at_set.until_closed());
        let (end, told) = at_login.split_last().unwrap();
        assert!(end.is_closed());
        assert!(!told.iter().any(|m| m.tag == b'Z'), "{}", pretty(told));
        assert_ended(&at_login);
        let records = stage.proxy.first_rejections(2);
        assert!(
            records.iter().all(|record| record["sqlstate"] == "PF001"),
            "{records:?}"
        );
    }
}

/// A leader whose declaration was incomplete is on the register all the same.
#[test]
fn deposed_after_a_declaration_that_was_not_complete() {
    let stage = Stage::with_flags(SETUP, &[("--takeover-timeout", "1s")]);
    let oldest = stage.leader("32");
    signal(oldest.backend_pid(), Signal::STOP);
    let mut old = stage.plain();
    let answer = old.query("SET fencing.token = 33");
    signal(oldest.backend_pid(), Signal::CONT);
    assert_refused(&answer, "PF006", b'I');
    let _new = take_over(&stage, "34");
    assert_ended(&old.until_closed());
    // A session ended for other reasons was not deposed, even after a refusal.
    let mut refused = stage.plain();
    assert_refused(&refused.query("SET fencing.token = 20"), "PF001", b'I');
    let end = format!("SELECT pg_terminate_backend({})", refused.backend_pid());
    stage.sql(&end);
    let told = refused.until_closed();
    assert_eq!(told[0].sqlstate(), "57P01", "{}", pretty(&told));
}

/// Waits until the proxy knows this mark.
fn wait_until_registered(stage: &Stage, mark: &str) {
    let mut look = stage.plain();
    wait_until("the mark", || look.rows("SHOW fencing.mark") == [[mark]]);
    // Its own session does not count.
    let pid = look.backend_pid();
    look.send(&Batch::new().terminate());
    wait_until("the end of a look", || !stage.postgres.has_session(pid));
}

/// Deposed at rest, outside of a transaction or inside: its next message ends it, and the new leader finds no lock.
#[test]
fn a_session_at_rest() {
    let open = "BEGIN; INSERT INTO jobs VALUES (2)";
    let chained =
        "BEGIN; INSERT INTO jobs VALUES (1); COMMIT AND CHAIN; INSERT INTO jobs VALUES (2)";
    let query = |sql: &str| Batch::new().query(sql);
    let insert = query("INSERT INTO jobs VALUES (3)");
    for (before, last, kept) in [
        ("INSERT INTO jobs VALUES (1)", &insert, &["1", "2"][..]),
        (open, &insert, &["2"]),
        (open, &query("COMMIT"), &["2"]),
        (open, &Batch::new().statement("COMMIT").sync(), &["2"]),
        (chained, &query("COMMIT AND CHAIN"), &["1", "2"]),
    ] {
        let stage = Stage::with(SETUP);
        let mut old = stage.leader("33");
        old.ok(before);
        let mut new = take_over(&stage, "34");
        new.ok("INSERT INTO jobs VALUES (2, 'the new leader')");
        assert_ended(&old.run(last));
        assert_eq!(committed(&stage), kept);
        let who = "SELECT who FROM jobs WHERE id = 2";
        assert_eq!(stage.value(who), "the new leader");
    }
}

#[test]
fn a_statement_in_flight() {
    let stage = Stage::with(SETUP);
    let mut old = stage.leader("33");
    old.send(&Batch::new().query("INSERT INTO jobs SELECT 1 FROM pg_sleep(60)"));
    wait_until_active(&stage, "INSERT INTO jobs SELECT 1");
    let _new = take_over(&stage, "34");
    assert_ended(&old.until_closed());
    assert!(committed(&stage).is_empty());
}

#[test]
fn copy_in_flight() {
    let copy = "COPY jobs (id) FROM STDIN";
    for begin in [
        Batch::new().query(copy),
        Batch::new().statement(copy).flush(),
    ] {
        let stage = Stage::with(SETUP);
        let mut old = stage.leader("33");
        old.send(&begin);
        old.until(b'G');
        old.send(&Batch::new().copy_data(b"1\n2\n"));
        let _new = take_over(&stage, "34");
        old.send(&Batch::new().copy_data(b"3\n").copy_done().sync());
        assert_ended(&old.until_closed());
        assert!(committed(&stage).is_empty());
    }
}

#[test]
fn pipeline_with_earlier_accepted_writes() {
    let stage = Stage::with(SETUP);
    let mut old = stage.leader("33");
    let insert = |id: u32| Batch::new().statement(&format!("INSERT INTO jobs VALUES ({id})"));
    old.send(&insert(1).then(&insert(2)).flush());
    old.until(b'C');
    old.until(b'C');
    let _new = take_over(&stage, "34");
    old.send(&insert(3).sync());
    assert_ended(&old.until_closed());
    assert!(committed(&stage).is_empty());
}

/// A row limit suspends an INSERT ... RETURNING after all its rows were written, without a CommandComplete.
#[test]
fn an_insert_suspended_by_a_row_limit() {
    let insert = "INSERT INTO jobs SELECT generate_series(1, 4) RETURNING id";
    let first = Batch::new()
        .parse("", insert)
        .bind("p", "", &[])
        .execute("p", 1);
    let second = Batch::new().execute("p", 0).sync();
    let stage = Stage::with(SETUP);
    // Its transaction has written: it keeps its token.
    let mut leader = stage.leader("33");
    leader.ok("BEGIN");
    let answer = leader.run(&first.clone().sync());
    assert_eq!(tags(&answer), "1 2 D s ZT");
    let answer = leader.query("SET fencing.token = 34");
    assert_eq!(tags(&answer), "E ZE", "{}", pretty(&answer));
    leader.ok("ROLLBACK");
    // A takeover between the two, in a transaction block and in the transaction of the pipeline.
    for (token, newer, batch) in [
        ("34", "35", Batch::new().query("BEGIN").then(&first).sync()),
        ("36", "37", first.clone().flush()),
    ] {
        let mut old = stage.leader(token);
        old.send(&batch);
        old.until(b's');
        let _new = take_over(&stage, newer);
        old.send(&second);
        assert_ended(&old.until_closed());
        assert!(committed(&stage).is_empty());
    }
}

/// The refused message is in the middle, and the session stays: earlier statements are rolled back.
#[test]
fn a_stale_declaration_in_the_middle_of_a_pipeline() {
    let stage = Stage::with(SETUP);
    let mut leader = stage.leader("34");
    let pipeline = Batch::new()
        .statement("INSERT INTO jobs VALUES (1)")
        .statement("SET fencing.token = 33")
        .statement("INSERT INTO jobs VALUES (2)");
    assert_refused(&leader.run(&pipeline.sync()), "PF001", b'I');
    assert!(committed(&stage).is_empty());
    leader.ok("INSERT INTO jobs VALUES (3)");
    assert_eq!(committed(&stage), ["3"]);
}

/// A session that has moved from 33 to 34 inside a savepoint and goes back: it lives, but its token is stale.
fn with_stale_token(stage: &Stage) -> Wire {
    let mut old = stage.leader("33");
    old.ok("BEGIN");
    old.ok("SAVEPOINT s");
    old.ok("SET fencing.token = 34");
    old.ok("ROLLBACK TO s");
    old
}

#[test]
fn rollback_to_a_savepoint_before_the_set() {
    let stage = Stage::with(SETUP);
    let mut old = with_stale_token(&stage);
    assert_refused(&old.query("INSERT INTO jobs VALUES (1)"), "PF001", b'E');
    assert_eq!(tags(&old.query("COMMIT")), "C ZI");
    assert_refused(&old.query("INSERT INTO jobs VALUES (2)"), "PF001", b'I');
    assert_refused(&old.extended("INSERT INTO jobs VALUES (3)"), "PF001", b'I');
    old.ok("SELECT count(*) FROM jobs");
    assert!(committed(&stage).is_empty());
    old.ok("SET fencing.token = 34");
    old.ok("INSERT INTO jobs VALUES (4)");
    assert_eq!(committed(&stage), ["4"]);
}

/// The same by SET LOCAL, which ends with the transaction, and by RESET.
#[test]
fn back_to_a_stale_startup_token() {
    let stage = Stage::with(SETUP);
    let mut old = stage.leader("33");
    old.ok("BEGIN; SET LOCAL fencing.token = 34; INSERT INTO jobs VALUES (1); COMMIT");
    assert_refused(&old.query("INSERT INTO jobs VALUES (2)"), "PF001", b'I');
    old.ok("SET fencing.token = 34; INSERT INTO jobs VALUES (3)");
    old.ok("RESET fencing.token");
    assert_refused(&old.query("INSERT INTO jobs VALUES (4)"), "PF001", b'I');
    assert_eq!(committed(&stage), ["1", "3"]);
    // Its backend is registered all the same: the next takeover ends it.
    let _new = take_over(&stage, "35");
    assert_ended(&old.query("SELECT 1"));
}

/// A session may clear its startup token and set it again without a declaration, so it must stay on the register
/// meanwhile.
#[test]
fn a_startup_token_laid_down_and_taken_up_again() {
    let stage = Stage::with(SETUP);
    let mut old = stage.leader("33");
    old.ok("SET fencing.token = ''");
    assert_refused(&old.query("INSERT INTO jobs VALUES (1)"), "PF002", b'I');
    old.ok("RESET ALL");
    old.ok("BEGIN; INSERT INTO jobs VALUES (2)");
    let _new = take_over(&stage, "34");
    assert_ended(&old.query("COMMIT"));
    assert!(committed(&stage).is_empty());
}

/// The proxy limits requests in flight, and continues when replies have made room.
#[test]
fn a_pipeline_longer_than_the_proxy_keeps_in_flight() {
    const STATEMENTS: usize = 9_000;
    let stage = Stage::with(SETUP);
    let mut wire = stage.leader("33");
    let batch = (0..STATEMENTS).fold(Batch::new(), |batch, _| batch.statement("SELECT"));
    let answer = wire.run(&batch.sync());
    let completed = answer.iter().filter(|message| message.tag == b'C').count();
    assert_eq!(completed, STATEMENTS);
}

#[test]
fn several_statements_with_one_stale_write() {
    let stage = Stage::with(SETUP);
    let mut old = with_stale_token(&stage);
    old.ok("ROLLBACK");
    let text = "CREATE TEMP TABLE first (); SELECT 1; INSERT INTO jobs VALUES (1); SELECT 2";
    assert_eq!(tags(&old.query(text)), "E ZI", "nothing of it is executed");
    assert_refused(
        &old.query("SELECT 1; INSERT INTO jobs VALUES (2)"),
        "PF001",
        b'I',
    );
    assert_eq!(old.rows("SELECT to_regclass('first')"), [["NULL"]]);
    // In flight at the takeover.
    let stage = Stage::with(SETUP);
    let mut old = stage.leader("33");
    old.send(
        &Batch::new()
            .query("INSERT INTO jobs VALUES (1); SELECT pg_sleep(60); INSERT INTO jobs VALUES (2)"),
    );
    wait_until_active(&stage, "INSERT INTO jobs VALUES (1)");
    let _new = take_over(&stage, "34");
    assert_ended(&old.until_closed());
    assert!(committed(&stage).is_empty());
}

#[test]
fn call_with_inner_commits() {
    let procedure = "CREATE PROCEDURE fill() LANGUAGE plpgsql AS $$ BEGIN
        FOR i IN 1..100000 LOOP INSERT INTO jobs VALUES (i); COMMIT; PERFORM pg_sleep(0.001); END LOOP; END $$";
    let stage = Stage::with(&format!("{SETUP}; {procedure}"));
    let mut old = stage.leader("33");
    old.send(&Batch::new().query("CALL fill()"));
    wait_until("some inner commits", || committed(&stage).len() > 5);
    let mut new = take_over(&stage, "34");
    let seen = new.rows("SELECT count(*) FROM jobs");
    // Part of it was committed before the takeover, so "fenced" would be wrong (G4).
    assert_unknown(&old.until_closed());
    assert_eq!(
        seen,
        [[committed(&stage).len().to_string()]],
        "nothing came after the acknowledgement"
    );
}

/// A prepared transaction outlives its session; ending it needs the current token.
#[test]
fn commit_of_a_prepared_transaction() {
    let policy = PolicyFile::new("[defaults]\nallow = [\"prepare-transaction\"]\n");
    let stage = Stage::governed(SETUP, &policy);
    let mut old = stage.leader("33");
    old.ok("BEGIN; INSERT INTO jobs VALUES (1); PREPARE TRANSACTION 'two'");
    let mut new = take_over(&stage, "34");
    let mut plain = stage.plain();
    assert_refused(&plain.query("COMMIT PREPARED 'two'"), "PF002", b'I');
    assert_refused(&plain.extended("ROLLBACK PREPARED 'two'"), "PF002", b'I');
    assert!(committed(&stage).is_empty());
    wait_until("the log to name it", || {
        let output = stage.proxy.output();
        let mut lines = output.lines();
        lines.any(|line| line.contains("outlives this takeover") && line.contains("two"))
    });
    new.ok("ROLLBACK PREPARED 'two'");
}

/// Outside a transaction block PREPARE TRANSACTION says ROLLBACK, and commits what came before it.
#[test]
fn prepare_transaction_that_commits() {
    let policy = PolicyFile::new("[defaults]\nallow = [\"prepare-transaction\"]\n");
    let stage = Stage::governed(SETUP, &policy);
    let mut old = stage.leader("33");
    let texts = [
        "INSERT INTO jobs VALUES (1)",
        "PREPARE TRANSACTION 'one'",
        "SELECT pg_sleep(60)",
    ];
    let batch = texts
        .iter()
        .fold(Batch::new(), |all, sql| all.statement(sql));
    old.send(&batch.sync());
    wait_until_active(&stage, "SELECT pg_sleep");
    let _new = take_over(&stage, "34");
    assert_unknown(&old.until_closed());
    // In PostgreSQL 18 a pipeline is a block, and the transaction is prepared.
    let prepared = stage.sql("SELECT gid FROM pg_prepared_xacts");
    assert_eq!(committed(&stage).len() + prepared.len(), 1);
}

#[test]
fn declaring_a_stale_token() {
    let stage = Stage::with(SETUP);
    let _new = take_over(&stage, "34");
    for (name, value) in [
        ("fencing.token", "33"),
        ("options", "-c fencing.token=33"),
        ("options", "--fencing.token=default=33"),
    ] {
        let mut wire = Wire::open(&stage.proxy.endpoint(), &[(name, value)]);
        assert_ended(&wire.until_ready());
    }
    let mut plain = stage.plain();
    for text in [
        "SET fencing.token = 33",
        "SET fencing.token = 'default=33'",
        "BEGIN; SET LOCAL fencing.token = 33",
        "SELECT set_config('fencing.token', '33', false)",
        "SELECT 1; SET fencing.token = 33; SELECT 2",
    ] {
        assert_refused(&plain.query(text), "PF001", b'I');
    }
    assert_refused(&plain.extended("SET fencing.token = 33"), "PF001", b'I');
    plain.ok("BEGIN");
    assert_refused(&plain.query("SET fencing.token = 33"), "PF001", b'E');
    plain.ok("ROLLBACK");
    // Refused, so no row exists.
    assert_refused(&plain.query("INSERT INTO jobs VALUES (1)"), "PF002", b'I');
    assert!(committed(&stage).is_empty());
}

/// G5: any number of sessions with the token of the mark.
#[test]
fn equal_tokens_are_never_refused() {
    let stage = Stage::with(SETUP);
    let mut sessions: Vec<Wire> = (0..5).map(|_| stage.leader("33")).collect();
    sessions.push(take_over(&stage, "33"));
    for (id, wire) in sessions.iter_mut().enumerate() {
        wire.ok(&format!("INSERT INTO jobs VALUES ({id})"));
        wire.ok(&format!(
            "BEGIN; UPDATE jobs SET who = 'x' WHERE id = {id}; COMMIT"
        ));
    }
    assert_eq!(committed(&stage).len(), 6);
}

/// The error names the scope, both tokens, and the remedy.
#[test]
fn the_error_says_what_to_do_and_the_log_has_it() {
    let stage = Stage::with(SETUP);
    let _new = take_over(&stage, "34");
    let mut plain = stage.plain();
    plain.ok("SET fencing.token = 'other=5'");
    let answer = plain.query("SET fencing.token = 33");
    let error = &answer[0];
    let message = error.field(b'M').unwrap_or_default();
    assert!(message.contains("token 33 is stale"), "{message}");
    let detail = error.field(b'D').unwrap_or_default();
    // The session holds another token, of another scope.
    assert!(!detail.contains("session's token"), "{detail}");
    for part in ["default", "34", "raised"] {
        assert!(
            detail.contains(part),
            "{part} is not in the DETAIL: {detail}"
        );
    }
    assert!(
        error.field(b'H').is_some_and(|hint| !hint.is_empty()),
        "a HINT"
    );
    let _refused = plain.query("INSERT INTO jobs VALUES (1, 'a secret')");
    let records = stage.proxy.first_rejections(2);
    let text = |record: usize, key: &str| match &records[record][key] {
        serde_json::Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    assert_eq!(
        [
            text(0, "sqlstate"),
            text(0, "scope"),
            text(0, "token"),
            text(0, "mark")
        ],
        ["PF001", "default", "33", "34"]
    );
    assert_eq!(
        [text(1, "sqlstate"), text(1, "user"), text(1, "database")],
        ["PF002", "postgres", "postgres"]
    );
    assert!(
        !records[1].to_string().contains("a secret"),
        "literals are removed: {}",
        records[1]
    );
}
