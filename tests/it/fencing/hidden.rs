//! Sessions without a token: they read freely and write nothing, however the write is dressed.

use pgpalisade_tests::stage::Stage;
use pgpalisade_tests::wire::{Wire, pretty};

use super::{SETUP, assert_refused, committed};

/// Writes that no parser sees: inside a function, and from there inside a view, an operator, a domain.
const HIDDEN: &str = "
    CREATE FUNCTION writes() RETURNS int LANGUAGE sql VOLATILE AS $$ INSERT INTO jobs VALUES (99) RETURNING id $$;
    CREATE FUNCTION writes_too(int, int) RETURNS bool LANGUAGE plpgsql
        AS $$ BEGIN PERFORM writes(); RETURN true; END $$;
    CREATE OPERATOR #=# (LEFTARG = int, RIGHTARG = int, FUNCTION = writes_too);
    CREATE FUNCTION checks(int) RETURNS bool LANGUAGE plpgsql AS $$ BEGIN PERFORM writes(); RETURN true; END $$;
    CREATE DOMAIN checked AS int CHECK (checks(VALUE));
    CREATE VIEW peek AS SELECT writes() AS id;";

fn stage() -> Stage {
    Stage::with(&format!("{SETUP}; {HIDDEN}"))
}

#[track_caller]
fn check_refused(wire: &mut Wire, sql: &str, sqlstate: &str) {
    println!("{sql}");
    assert_refused(&wire.query(sql), sqlstate, b'I');
    assert_refused(&wire.extended(sql), sqlstate, b'I');
    wire.ok("BEGIN");
    assert_refused(&wire.query(sql), sqlstate, b'E');
    wire.ok("ROLLBACK");
}

#[test]
fn reads_are_free() {
    let stage = stage();
    let mut wire = stage.plain();
    for sql in [
        "SELECT count(*) FROM jobs",
        "WITH x AS (SELECT 1) SELECT * FROM x JOIN jobs ON true",
        "VALUES (1), (2)",
        "TABLE jobs",
        "EXPLAIN INSERT INTO jobs VALUES (1)",
        "EXPLAIN ANALYZE SELECT 1",
        "SHOW server_version",
        "COPY jobs TO STDOUT",
        "BEGIN; SELECT 1; COMMIT",
        "BEGIN READ ONLY; SELECT 1; ROLLBACK",
        "BEGIN; DECLARE c CURSOR FOR TABLE jobs; FETCH ALL FROM c; COMMIT",
        "SET application_name = 'x'",
        "SELECT 'INSERT INTO jobs'",
    ] {
        wire.ok(sql);
    }
}

#[test]
fn every_write_is_refused() {
    let stage = stage();
    let mut wire = stage.plain();
    for sql in [
        "INSERT INTO jobs VALUES (1)",
        "insert into jobs values (1) -- in small letters",
        "/* a /* nested */ comment */ INSERT INTO jobs VALUES (1)",
        "UPDATE jobs SET id = 1",
        "DELETE FROM jobs",
        "MERGE INTO jobs USING (SELECT 1 AS n) s ON id = n WHEN NOT MATCHED THEN INSERT VALUES (1)",
        "TRUNCATE jobs",
        "WITH x AS (INSERT INTO jobs VALUES (1) RETURNING id) SELECT * FROM x",
        "SELECT 1 AS n INTO copied",
        "CREATE TABLE copied AS SELECT 1",
        "SELECT * FROM jobs FOR UPDATE",
        "SELECT * FROM jobs FOR KEY SHARE",
        "EXPLAIN ANALYZE INSERT INTO jobs VALUES (1)",
        "EXPLAIN (ANALYZE, COSTS OFF) DELETE FROM jobs",
        "COPY jobs FROM STDIN",
        "COPY (WITH x AS (INSERT INTO jobs VALUES (1) RETURNING id) SELECT * FROM x) TO STDOUT",
        "DO $$ BEGIN INSERT INTO jobs VALUES (1); END $$",
        "CREATE TABLE other ()",
        "DROP TABLE jobs",
        "ALTER TABLE jobs ADD COLUMN more int",
        "GRANT SELECT ON jobs TO public",
        "COMMENT ON TABLE jobs IS 'x'",
        "PREPARE TRANSACTION 'x'",
    ] {
        check_refused(&mut wire, sql, "PF002");
    }
    assert!(committed(&stage).is_empty());
}

/// What a parser does not see PostgreSQL refuses itself, since the session is read-only.
#[test]
fn hidden_writes_are_refused_by_postgresql() {
    let stage = stage();
    let mut wire = stage.plain();
    for round in [
        "SELECT 1",
        "RESET ALL",
        "DISCARD ALL",
        "RESET default_transaction_read_only",
        "RESET SESSION AUTHORIZATION",
    ] {
        wire.query(round);
        for sql in [
            "SELECT writes()",
            "SELECT * FROM peek",
            "SELECT 1 #=# 2",
            "SELECT 5::checked",
            "COPY (SELECT writes()) TO STDOUT",
        ] {
            check_refused(&mut wire, sql, "25006");
        }
    }
    assert!(committed(&stage).is_empty());
}

/// The way out of read-only is closed: each of these is a write for a session without a token.
#[test]
fn read_only_cannot_be_lifted() {
    let stage = stage();
    let mut wire = stage.plain();
    for sql in [
        "SET default_transaction_read_only = off",
        "SET \"default_transaction_read_only\" TO false",
        "SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE",
        "SELECT set_config('default_transaction_read_only', 'off', false)",
        "SELECT pg_catalog.set_config('transaction_read_only', 'off', true)",
    ] {
        check_refused(&mut wire, sql, "PF002");
    }
    for sql in [
        "BEGIN READ WRITE",
        "START TRANSACTION READ WRITE",
        "BEGIN; SET TRANSACTION READ WRITE",
        "BEGIN; SET transaction_read_only = off",
    ] {
        let answer = wire.query(sql);
        assert!(
            answer.iter().any(|message| message.sqlstate() == "PF002"),
            "{sql}:\n{}",
            pretty(&answer)
        );
        wire.query("ROLLBACK");
    }
    for step in ["BEGIN", "SET TRANSACTION READ WRITE"] {
        wire.query(step);
    }
    let answer = wire.query("SELECT writes()");
    assert!(
        !answer.iter().any(|message| message.tag == b'D'),
        "{}",
        pretty(&answer)
    );
    wire.query("ROLLBACK");
    assert!(committed(&stage).is_empty());
}

/// Declaring lifts it, in and outside of a transaction, and giving the token back restores it.
#[test]
fn a_token_opens_and_its_loss_closes() {
    let stage = stage();
    let mut wire = stage.plain();
    wire.ok("SET fencing.token = 5");
    assert_eq!(wire.rows("SELECT writes()"), [["99"]]);
    wire.ok("DELETE FROM jobs");
    wire.ok("RESET fencing.token");
    assert_refused(&wire.query("SELECT writes()"), "25006", b'I');
    assert_refused(&wire.query("INSERT INTO jobs VALUES (1)"), "PF002", b'I');
    wire.ok("BEGIN");
    wire.ok("SET fencing.token = 5");
    wire.ok("SELECT writes()");
    wire.ok("COMMIT");
    wire.ok("DISCARD ALL");
    assert_refused(&wire.query("SELECT writes()"), "25006", b'I');
    wire.ok("BEGIN; SET LOCAL fencing.token = 5; INSERT INTO jobs VALUES (7); COMMIT");
    assert_refused(&wire.query("SELECT writes()"), "25006", b'I');
    assert_eq!(committed(&stage), ["7", "99"]);
}

/// After its first query a read-only transaction can no longer become another; the error says what to do.
#[test]
fn declaring_after_the_first_query_of_a_transaction() {
    let stage = stage();
    let mut wire = stage.plain();
    wire.ok("BEGIN");
    wire.ok("SELECT count(*) FROM jobs");
    let answer = wire.query("SET fencing.token = 5");
    let error = answer
        .iter()
        .find(|message| message.tag == b'E')
        .map(|error| error.field(b'H').unwrap_or_default());
    assert!(
        error.is_some_and(|hint| hint.contains("before")),
        "{}",
        pretty(&answer)
    );
    wire.ok("ROLLBACK");
    wire.ok("SET fencing.token = 5");
    wire.ok("INSERT INTO jobs VALUES (1)");
}
