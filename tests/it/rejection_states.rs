//! After a rejection the client sees PostgreSQL's real transaction status.
//!
//! PostgreSQL is the oracle. The proxy refuses a write of a session without a token; in its place the direct session
//! runs a write that fails at execution (a duplicate key). The message types and the ReadyForQuery states must be the
//! same, before and after; only the error differs.

use pgpalisade_test_servers::stage::Stage;
use pgpalisade_test_servers::wire::{Batch, Message, TRUSTED, Wire, pretty, tags};

const SETUP: &str = "CREATE TABLE taken (id int PRIMARY KEY); INSERT INTO taken VALUES (1)";
const WRITE: &str = "INSERT INTO taken VALUES (1)";

/// Runs `place` on PostgreSQL and through the proxy. `refusals` is the expected number of refused writes.
#[track_caller]
fn check(stage: &Stage, refusals: usize, place: impl Fn(&mut Wire, &mut Vec<Message>)) {
    let transcript = |endpoint| {
        let mut wire = Wire::login(&endpoint, &TRUSTED);
        let mut log = Vec::new();
        place(&mut wire, &mut log);
        // The connection still works.
        log.extend(wire.query("ROLLBACK"));
        log.extend(wire.query("SELECT 'works on'"));
        log.extend(wire.extended("SELECT 'works on'"));
        log
    };
    let (direct, proxied) = (
        transcript(stage.postgres.tcp()),
        transcript(stage.proxy.endpoint()),
    );
    assert_eq!(
        tags(&direct),
        tags(&proxied),
        "\ndirect:\n{}proxied:\n{}",
        pretty(&direct),
        pretty(&proxied)
    );
    assert_eq!(
        count(&direct, "23505"),
        refusals,
        "the oracle failed elsewhere:\n{}",
        pretty(&direct)
    );
    assert_eq!(count(&proxied, "PF002"), refusals, "{}", pretty(&proxied));
    assert_eq!(stage.value("SELECT count(*) FROM taken"), "1");
}

fn count(log: &[Message], sqlstate: &str) -> usize {
    let errors = log
        .iter()
        .filter(|message| message.tag == b'E' && message.severity() == "ERROR");
    errors
        .filter(|message| message.sqlstate() == sqlstate)
        .count()
}

fn write() -> Batch {
    Batch::new().statement(WRITE)
}

/// Checks places in words, divided by empty lines, each below its number of refusals. Nothing is written, so they
/// share a server.
#[track_caller]
fn check_said(places: &str) {
    let stage = Stage::with(SETUP);
    for place in places.trim().split("\n\n") {
        println!("{place}");
        let mut lines = place.lines();
        let refusals = lines.next().unwrap().parse().unwrap();
        check(&stage, refusals, |wire, log| {
            for line in lines.clone() {
                log.extend(wire.say(&line.replace("WRITE", WRITE)));
            }
        });
    }
}

/// Idle, in a transaction, after a savepoint, and in a failed transaction, where PostgreSQL has its own reply to every
/// statement (25P02).
#[test]
fn in_each_state() {
    check_said(
        "
2
WRITE
SELECT 1
WRITE

3
> WRITE + sync
parse . WRITE + bind . . + execute . + sync
E: > WRITE + flush
sync

2
BEGIN
SELECT 1
WRITE
SELECT 'in a failed transaction'
COMMIT
BEGIN
WRITE
COMMIT AND CHAIN

2
> BEGIN + sync
> WRITE + sync
> SELECT 'in a failed transaction' + sync
> COMMIT + sync
BEGIN
E: > WRITE + flush
> SELECT 'skipped' + sync

2
BEGIN
SAVEPOINT s
WRITE
ROLLBACK TO s
SELECT 1
WRITE
ROLLBACK TO s
COMMIT

0
BEGIN
SELECT 1/0
> WRITE + sync
SELECT 1
COMMIT

0
BEGIN
SELECT 1/0
WRITE
SELECT 1
COMMIT
",
    );
}

/// In a pipeline, and further simple queries in the same write, while the reply to the first is in flight.
#[test]
fn in_a_pipeline() {
    check_said(
        "
1
> SELECT 1 + > WRITE + > SELECT 1 + sync

1
> BEGIN + > SELECT 1 + > WRITE + > SELECT 1 + sync
SELECT 1

2
> WRITE + > SELECT 1 + sync + > SELECT 1 + > WRITE + sync + > SELECT 1 + sync + SELECT 2

1
BEGIN
> SELECT 1 + flush + > WRITE + flush + > SELECT 1 + flush + sync + ROLLBACK

1
SELECT pg_sleep(0.1) + WRITE + SELECT 2

2
BEGIN + WRITE + SELECT 2 + ROLLBACK + WRITE
",
    );
}

#[test]
fn prepared_statements() {
    check_said(
        "
3
parse w WRITE + describe w + sync
show w + sync
show w + sync
EXECUTE w

2
PREPARE w AS WRITE
EXECUTE w
run w + sync
",
    );
}

/// The data after a refused COPY is discarded, as after any COPY that fails.
#[test]
fn copy_with_its_data_behind_it() {
    for in_transaction in ["SELECT 'idle'", "BEGIN"] {
        let stage = Stage::with(SETUP);
        let transcript = |endpoint, table: &str| {
            let mut wire = Wire::login(&endpoint, &TRUSTED);
            let copy = format!("COPY {table} FROM STDIN");
            let steps = [
                in_transaction,
                &format!("{copy} + data 7\\n + data 8\\n + done"),
                "ROLLBACK",
                &format!("> {copy} + data 7\\n + done + sync"),
                "SELECT 1",
            ];
            let log: Vec<Message> = steps.iter().flat_map(|step| wire.say(step)).collect();
            log
        };
        let direct = transcript(stage.postgres.tcp(), "no_such_table");
        let proxied = transcript(stage.proxy.endpoint(), "taken");
        assert_eq!(
            tags(&direct),
            tags(&proxied),
            "\ndirect:\n{}proxied:\n{}",
            pretty(&direct),
            pretty(&proxied)
        );
        assert_eq!(count(&proxied, "PF002"), 2, "{}", pretty(&proxied));
    }
}

/// A string with one refused statement is refused as a whole, so its first statements give no reply.
#[test]
fn several_statements_in_one_string() {
    let stage = Stage::with(SETUP);
    let mut wire = stage.plain();
    let text = "SELECT 1; INSERT INTO taken VALUES (2); SELECT 3";
    assert_eq!(tags(&wire.query(text)), "E ZI");
    wire.ok("BEGIN");
    assert_eq!(tags(&wire.query(text)), "E ZE");
    assert_eq!(tags(&wire.query("SELECT 1")), "E ZE");
    wire.ok("ROLLBACK");
    let found = tags(&wire.query("BEGIN; INSERT INTO taken VALUES (2)"));
    assert_eq!(found, "E ZI");
    assert_eq!(stage.value("SELECT count(*) FROM taken"), "1");
}

/// FunctionCall has an error and its own ReadyForQuery, without Sync.
#[test]
fn function_call() {
    let stage = Stage::with(SETUP);
    let mut wire = stage.plain();
    let call = Batch::new().function_call(154, &["7", "2"]);
    assert_eq!(tags(&wire.run(&call)), "E ZI");
    wire.ok("BEGIN");
    assert_eq!(tags(&wire.run(&call)), "E ZE");
    assert_eq!(tags(&wire.query("ROLLBACK")), "C ZI");
    let mut leader = stage.leader("1");
    assert_eq!(tags(&leader.run(&call)), "V ZI");
}

/// In an idle session refused statements do not reach PostgreSQL, in either protocol.
#[test]
fn an_idle_server_is_not_touched() {
    let stage = Stage::with(SETUP);
    let mut wire = stage.plain();
    let state = format!(
        "SELECT state_change FROM pg_stat_activity WHERE pid = {}",
        wire.backend_pid()
    );
    // The first statement makes the session read-only.
    wire.ok("SELECT 1");
    let before = stage.value(&state);
    assert_eq!(tags(&wire.run(&Batch::new().query(WRITE))), "E ZI");
    assert_eq!(stage.value(&state), before);
    assert_eq!(wire.rows("SELECT 'works on'"), [["works on"]]);
}

/// The reply to a refused message comes after the replies in flight.
#[test]
fn a_refusal_waits_for_the_answers_before_it() {
    let stage = Stage::with(SETUP);
    let mut wire = stage.plain();
    let busy = || Batch::new().query("SELECT pg_sleep(0.2)");
    wire.run(&Batch::new().parse("w", WRITE).sync());
    let bound = Batch::new().bind("", "w", &[]).execute("", 0).sync();
    for (refused, answer) in [(write().sync(), "1 2 n E ZI"), (bound, "2 E ZI")] {
        wire.send(&busy().then(&refused));
        assert_eq!(tags(&wire.until_ready()), "T D C ZI");
        assert_eq!(tags(&wire.until_ready()), answer);
    }
}

/// PostgreSQL has prepared the statement of a refused Execute, as with any that fails at execution.
#[test]
fn a_refused_statement_stays_prepared() {
    let stage = Stage::with(SETUP);
    let mut wire = stage.plain();
    assert_eq!(tags(&wire.extended("SELECT 'older'")), "1 2 T D C ZI");
    assert_eq!(tags(&wire.run(&write().sync())), "1 2 n E ZI");
    let run = Batch::new().bind("", "", &[]).execute("", 0).sync();
    let answer = wire.run(&run);
    assert_eq!(tags(&answer), "2 E ZI");
    assert_eq!(answer[1].sqlstate(), "PF002");
    assert_eq!(tags(&wire.extended("SELECT 'newer'")), "1 2 T D C ZI");
    assert_eq!(tags(&wire.run(&run)), "2 D C ZI");
}

/// A series sent in pieces gets the same replies as in one write.
#[test]
fn in_pieces() {
    let (stage, series) = (Stage::with(SETUP), write().sync());
    check(&stage, series.bytes().len().div_ceil(7), |wire, log| {
        for at in (1..=series.bytes().len()).step_by(7) {
            let (front, rest) = series.bytes().split_at(at);
            wire.send_bytes(front);
            std::thread::sleep(std::time::Duration::from_millis(5));
            wire.send_bytes(rest);
            log.extend(wire.until_ready());
        }
    });
}
