//! After a rejection the client sees PostgreSQL's real transaction status.
//!
//! PostgreSQL is the oracle. The proxy refuses a write of a session without a token; in its place the direct session
//! runs a write that fails at execution (a duplicate key). The message types and the ReadyForQuery states must be the
//! same, before and after; only the error differs.

use pgpalisade_test_servers::stage::Stage;
use pgpalisade_test_servers::wire::{Message, TRUSTED, Wire, pretty, tags};

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

told! {
    check_said;

    /// Idle, in a transaction, after a savepoint, and in a failed transaction, where PostgreSQL has its own reply to
    /// every statement (25P02).
    in_each_state: "
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
COMMIT";

    /// In a pipeline, and further simple queries in the same write, while the reply to the first is in flight.
    in_a_pipeline: "
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
BEGIN + WRITE + SELECT 2 + ROLLBACK + WRITE";

    prepared_statements: "
3
parse w WRITE + describe w + sync
show w + sync
show w + sync
EXECUTE w

2
PREPARE w AS WRITE
EXECUTE w
run w + sync";
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
