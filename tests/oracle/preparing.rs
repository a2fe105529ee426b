//! Code that PostgreSQL runs before any Execute: parsing and planning a text and reading its parameters call
//! functions of the database. So Parse, Bind, Describe and PREPARE can hide a write too.

use pgpalisade_test_servers::wire::{Batch, Wire, pretty};

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
    let told = |what: &'static str, text: &str| (what, Batch::told(text).0);
    let again = "> SET search_path = wild, public + describe looks";
    let write = "parse . INSERT INTO log SELECT FROM unnest('{x}'::writing[])";
    let of_commit = undeclared_parameter("COMMIT", oid);
    vec![
        told("an Execute", "> SELECT writes()"),
        told(
            "a stable function",
            &format!("parse . {PLANNED} + bind . ."),
        ),
        told("a literal", &format!("parse . {READ}")),
        told("a literal in a write", write),
        told("a parameter", "parse . SELECT $1::writing + bind . . x"),
        ("a parameter of a COMMIT", of_commit),
        ("a parameter of nothing", undeclared_parameter("", oid)),
        told("PREPARE", &format!("> PREPARE p AS {READ}")),
        told("a Bind alone", "bind . planned"),
        told("a text that is read again", again),
    ]
}

fn before() -> Batch {
    let looks = "parse looks SELECT 1 FROM unnest('{x}'::kind[])";
    let text = format!("SET search_path = calm, public + {looks} + parse planned {PLANNED} + sync");
    Batch::told(&text).0
}

/// Without protection they write, and read-only mode refuses them.
#[test]
fn each_of_them_writes_where_nothing_stops_it() {
    let stage = stage();
    stage.sql(SETUP);
    let oid = stage.value("SELECT 'writing'::regtype::oid");
    for (what, shape) in shapes(&oid) {
        for (mode, written) in [("off", "1"), ("on", "0")] {
            let mut wire = stage.postgres.admin();
            wire.ok(&format!("SET default_transaction_read_only = {mode}"));
            let answers = run_all(&mut wire, &before().then(&shape).sync());
            let found = stage.value("SELECT least(count(*), 1) FROM log");
            assert_eq!(found, written, "{what}, {mode}:\n{}", pretty(&answers));
            stage.sql("TRUNCATE log");
        }
    }
}

/// After a function that makes the next transaction read-write, sent without waiting for the report of it.
#[test]
fn they_are_refused_behind_what_lifts_read_only_mode() {
    let stage = stage();
    stage.sql(SETUP);
    stage.sql(LIFTING);
    stage.sql("CREATE DOMAIN lifts_kind AS text CHECK (lifts_default() = 'off')");
    let oid = stage.value("SELECT 'writing'::regtype::oid");
    let mut open = Vec::new();
    for (what, shape) in shapes(&oid) {
        for lift in [
            "SELECT lifts_default()",
            "> SELECT lifts_default() + sync",
            "> BEGIN + > SELECT lifts_default() + > COMMIT",
            "parse . SELECT '{x}'::lifts_kind[] + sync",
            "parse . SELECT '{x}'::lifts_kind[] + > COMMIT",
        ] {
            // Only the change of the mode is in flight.
            let mut wire = stage.plain();
            run_all(&mut wire, &before());
            let answers = run_all(&mut wire, &Batch::told(lift).0.then(&shape).sync());
            let refused = answers.iter().any(|answer| answer.tag == b'E');
            if !refused || stage.value("SELECT count(*) FROM log") != "0" {
                open.push((what, lift));
                println!("{what} behind {lift}:\n{}", pretty(&answers));
                stage.sql("TRUNCATE log");
            }
        }
    }
    assert!(open.is_empty(), "wrote without a token: {open:#?}");
}

/// Within one string the server reports nothing.
#[test]
fn a_prepare_behind_the_end_of_a_transaction() {
    let stage = stage();
    stage.sql(SETUP);
    stage.sql(LIFTING);
    let mut wire = stage.plain();
    let text = format!("SELECT lifts_default(); COMMIT; PREPARE p AS {READ}");
    wire.fails(&text, "PF002");
    assert_eq!(stage.value("SELECT count(*) FROM log"), "0");
}

/// Messages that run no such code pass, and so does everything of a session with a token.
#[test]
fn what_runs_nothing_passes() {
    let stage = stage();
    stage.sql(LIFTING);
    let block = "> BEGIN + > SELECT lifts_default() + > COMMIT";
    let next = "> BEGIN + > SHOW transaction_isolation + > ROLLBACK + sync";
    let read = "parse . SELECT $1::int + bind . . 1 + sync";
    let passes = |wire: &mut Wire, rest: &str| {
        let answers = run_all(wire, &Batch::told(&format!("{block} + {rest}")).0);
        let is_fine = answers.iter().all(|answer| answer.tag != b'E');
        assert!(is_fine, "{}", pretty(&answers));
    };
    passes(&mut stage.plain(), next);
    passes(&mut stage.leader("5"), read);
}
