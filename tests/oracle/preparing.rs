//! Code that PostgreSQL runs before any Execute: parsing and planning a text and reading its parameters call
//! functions of the database. So Parse, Bind, Describe and PREPARE can hide a write too.

use pgpalisade_test_servers::wire::{Batch, pretty};

use super::read_only_guard::{LIFTING, run_all};
use super::world::stage;

const SETUP: &str = "
    CREATE FUNCTION stable_writes() RETURNS int STABLE LANGUAGE plpgsql AS $$ BEGIN RETURN writes(); END $$;
    CREATE DOMAIN writing AS text CHECK (writes() > 0);
    CREATE SCHEMA calm;
    CREATE DOMAIN calm.kind AS text;
    CREATE SCHEMA wild;
    CREATE DOMAIN wild.kind AS text CHECK (public.writes() > 0)";

const PLANNED: &str = "SELECT * FROM generate_series(1, stable_writes())";
/// Elements of an array literal are read and checked along with the text.
const READ: &str = "SELECT '{x}'::writing[]";

/// Parse and Bind of a text without parameters, with a Parse that declares one.
fn undeclared_parameter(text: &str, oid: &str) -> Batch {
    let oid: u32 = oid.parse().unwrap();
    let oid = oid.to_be_bytes();
    let parse = [&b"\0"[..], text.as_bytes(), b"\0\0\x01", &oid].concat();
    Batch::new()
        .message(b'P', &parse)
        .bind("", "", &[Some("x")])
}

/// Shapes that run `writes()`, all but the first without an Execute. The statements of [`before`] exist.
fn shapes(oid: &str) -> Vec<(&'static str, Batch)> {
    let new = Batch::new;
    vec![
        ("an Execute", new().statement("SELECT writes()")),
        (
            "a stable function",
            new().parse("", PLANNED).bind("", "", &[]),
        ),
        ("a literal", new().parse("", READ)),
        (
            "a literal in a write",
            new().parse("", "INSERT INTO log SELECT FROM unnest('{x}'::writing[])"),
        ),
        (
            "a parameter",
            new()
                .parse("", "SELECT $1::writing")
                .bind("", "", &[Some("x")]),
        ),
        (
            "a parameter of a COMMIT",
            undeclared_parameter("COMMIT", oid),
        ),
        ("a parameter of nothing", undeclared_parameter("", oid)),
        ("PREPARE", new().statement(&format!("PREPARE p AS {READ}"))),
        ("a Bind alone", new().bind("", "planned", &[])),
        (
            "a text that is read again",
            new()
                .statement("SET search_path = wild, public")
                .describe_statement("looks"),
        ),
    ]
}

fn before() -> Batch {
    Batch::new()
        .query("SET search_path = calm, public")
        .parse("looks", "SELECT 1 FROM unnest('{x}'::kind[])")
        .parse("planned", PLANNED)
        .sync()
}

/// Without protection they write, and read-only mode refuses them.
#[test]
fn each_of_them_writes_where_nothing_stops_it() {
    let stage = stage();
    stage.postgres.sql(SETUP);
    let oid = stage.postgres.value("SELECT 'writing'::regtype::oid");
    for (what, shape) in shapes(&oid) {
        for (mode, written) in [("off", "1"), ("on", "0")] {
            let mut wire = stage.postgres.admin();
            wire.ok(&format!("SET default_transaction_read_only = {mode}"));
            let answers = run_all(&mut wire, &before().then(&shape).sync());
            let found = stage.postgres.value("SELECT least(count(*), 1) FROM log");
            assert_eq!(found, written, "{what}, {mode}:\n{}", pretty(&answers));
            stage.postgres.sql("TRUNCATE log");
        }
    }
}

/// After a function that makes the next transaction read-write, sent without waiting for the report of it.
#[test]
fn they_are_refused_behind_what_lifts_read_only_mode() {
    let stage = stage();
    stage.postgres.sql(SETUP);
    stage.postgres.sql(LIFTING);
    stage
        .postgres
        .sql("CREATE DOMAIN lifts_kind AS text CHECK (lifts_default() = 'off')");
    let oid = stage.postgres.value("SELECT 'writing'::regtype::oid");
    let lifts = "SELECT lifts_default()";
    let lifting_literal = "SELECT '{x}'::lifts_kind[]";
    let mut open = Vec::new();
    for (what, shape) in shapes(&oid) {
        for (behind, lift) in [
            ("a string", Batch::new().query(lifts)),
            ("a pipeline", Batch::new().statement(lifts).sync()),
            (
                "a COMMIT in the same pipeline",
                Batch::new()
                    .statement("BEGIN")
                    .statement(lifts)
                    .statement("COMMIT"),
            ),
            (
                "a Parse that lifts it",
                Batch::new().parse("", lifting_literal).sync(),
            ),
            (
                "a Parse that lifts it, and a COMMIT in the same pipeline",
                Batch::new().parse("", lifting_literal).statement("COMMIT"),
            ),
        ] {
            // Only the change of the mode is in flight.
            let mut wire = stage.plain();
            run_all(&mut wire, &before());
            let answers = run_all(&mut wire, &lift.then(&shape).sync());
            let refused = answers.iter().any(|answer| answer.tag == b'E');
            if !refused || stage.postgres.value("SELECT count(*) FROM log") != "0" {
                open.push((what, behind));
                println!("{what} behind {behind}:\n{}", pretty(&answers));
                stage.postgres.sql("TRUNCATE log");
            }
        }
    }
    assert!(open.is_empty(), "wrote without a token: {open:#?}");
}

/// Within one string the server reports nothing.
#[test]
fn a_prepare_behind_the_end_of_a_transaction() {
    let stage = stage();
    stage.postgres.sql(SETUP);
    stage.postgres.sql(LIFTING);
    let mut wire = stage.plain();
    let text = format!("SELECT lifts_default(); COMMIT; PREPARE p AS {READ}");
    let answer = wire.query(&text);
    assert_eq!(answer[0].sqlstate(), "PF002", "{}", pretty(&answer));
    assert_eq!(stage.postgres.value("SELECT count(*) FROM log"), "0");
}

/// Messages that run no such code pass, and so does everything of a session with a token.
#[test]
fn what_runs_nothing_passes() {
    let stage = stage();
    stage.postgres.sql(LIFTING);
    let block = Batch::new()
        .statement("BEGIN")
        .statement("SELECT lifts_default()")
        .statement("COMMIT");
    let next = Batch::new()
        .statement("BEGIN")
        .statement("SHOW transaction_isolation")
        .statement("ROLLBACK");
    let mut plain = stage.plain();
    let answers = run_all(&mut plain, &block.clone().then(&next).sync());
    assert!(
        answers.iter().all(|answer| answer.tag != b'E'),
        "{}",
        pretty(&answers)
    );
    let mut leader = stage.leader("5");
    let read = Batch::new()
        .parse("", "SELECT $1::int")
        .bind("", "", &[Some("1")]);
    let answers = run_all(&mut leader, &block.then(&read).sync());
    assert!(
        answers.iter().all(|answer| answer.tag != b'E'),
        "{}",
        pretty(&answers)
    );
}
