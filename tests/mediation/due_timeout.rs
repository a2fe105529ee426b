//! A `statement_timeout` that falls due between two messages of a pipeline. PostgreSQL raises it after it has read the
//! next one, whatever that is, and drops it (`ProcessInterrupts` and `PostgresMain` in `tcop/postgres.c`).

use std::time::Duration;

use pgpalisade_test_servers::stage::Stage;
use pgpalisade_test_servers::wire::{Batch, Wire, pretty, tags};

/// A session whose timeout is due.
fn overdue(stage: &Stage) -> Wire {
    let mut wire = stage.plain();
    wire.ok("SET statement_timeout = '30ms'");
    wire.send(&Batch::new().parse("x", "SELECT 1").flush());
    assert_eq!(wire.read().tag, b'1');
    std::thread::sleep(Duration::from_millis(150));
    wire
}

/// The proxy sends no data outside of a COPY, so that the error is the next message's.
#[test]
fn the_error_answers_what_was_sent() {
    let stage = Stage::start();
    let new = Batch::new;
    let pipeline = || new().statement("SELECT 1").sync();
    let data = || new().copy_data(b"x\n");
    for (sent, expect) in [
        (data().then(&pipeline()), "E ZI"),
        (new().copy_done().then(&pipeline()), "E ZI"),
        (new().copy_fail("x").sync(), "E ZI"),
        (new().sync(), "E ZI"),
        (new().flush().sync(), "E ZI"),
        (new().flush().then(&pipeline()), "E ZI"),
        (
            new().flush().flush().then(&pipeline()).then(&pipeline()),
            "E ZI 1 2 T D C ZI",
        ),
        // It may be the Query's own, or skip the Query.
        (data().query("SELECT 1"), "E E"),
        (new().flush().query("SELECT 1").sync(), "E E"),
    ] {
        let mut wire = overdue(&stage);
        let answer = wire.run_all(&sent);
        let rest = if expect.ends_with("ZI") {
            " T D C ZI"
        } else {
            " closed"
        };
        assert_eq!(
            tags(&answer),
            format!("{expect}{rest}"),
            "{}",
            pretty(&answer)
        );
    }
}

/// A query that has answered something runs, and one in front of the pipeline ends no pipeline.
#[test]
fn a_query_that_surely_runs_is_cancelled_as_ever() {
    let stage = Stage::start();
    let mut wire = stage.leader("1");
    wire.ok("SET statement_timeout = '200ms'");
    let open = || Batch::new().parse("", "SELECT 1");
    for (sent, expect) in [
        (open().query("SELECT pg_sleep(9)"), "1 T E ZI T D C ZI"),
        (
            Batch::new()
                .query("SELECT pg_sleep(9)")
                .then(&open())
                .query("SELECT 2"),
            "T E ZI 1 T D C ZI T D C ZI",
        ),
    ] {
        assert_eq!(tags(&wire.run_all(&sent)), expect);
    }
}

/// The proxy closes the unnamed statement of another client first.
#[test]
fn the_error_of_a_close_is_the_clients() {
    let shared = [
        ("--pool", "transaction"),
        ("--backends-max", "1"),
        ("--backends-leaders", "0"),
        ("--backends-reset", "auto"),
    ];
    let stage = Stage::with_flags("SELECT 1", &shared);
    let mut other = stage.plain();
    other.ok("SELECT 1");
    stage.plain().ok("SELECT 1");
    other.run(&Batch::new().parse("", "SELECT 1").sync());
    let mut wire = overdue(&stage);
    let answer = wire.run_all(&Batch::new().bind("", "", &[]).sync());
    assert_eq!(tags(&answer), "E ZI T D C ZI", "{}", pretty(&answer));
    assert_eq!(answer[0].sqlstate(), "57014");
}

/// Neither name is replaced by a message that was dropped.
#[test]
fn no_name_stands_for_another_statement() {
    let stage = Stage::with("CREATE TABLE log (what text)");
    let mut wire = stage.plain();
    wire.run(
        &Batch::new()
            .parse("a", "SELECT 1")
            .parse("b", "SELECT 1")
            .sync(),
    );
    wire.ok("SET statement_timeout = '30ms'");
    wire.send(&Batch::new().parse("x", "SELECT 1").flush());
    std::thread::sleep(Duration::from_millis(150));
    let replace = Batch::new()
        .copy_data(b"x")
        .close_statement("a")
        .close_statement("b");
    let replace = replace.parse("a", "SET TRANSACTION READ WRITE");
    let replace = replace.parse("b", "INSERT INTO log VALUES ('x')").sync();
    wire.run_all(&replace);
    let run = Batch::new().bind("", "a", &[]).execute("", 0);
    wire.run_all(&run.bind("", "b", &[]).execute("", 0).sync());
    assert_eq!(stage.value("SELECT count(*) FROM log"), "0");
}
