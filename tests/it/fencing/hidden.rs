//! Sessions without a token: they read freely and write nothing, in whatever form.

use pgpalisade_test_servers::stage::Stage;
use pgpalisade_test_servers::wire::{Batch, PROTOCOL_3_0, Wire, pretty};

use super::{SETUP, assert_refused, committed};

/// Writes hidden from any parser: inside a function, and from there inside a view, an operator, a domain.
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
    let extended = wire.extended(sql);
    // PostgreSQL refuses some in Bind, before the Execute that the proxy would refuse.
    let by_server = extended.iter().any(|message| message.sqlstate() == "25006");
    assert_refused(&extended, if by_server { "25006" } else { sqlstate }, b'I');
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
    ] {
        check_refused(&mut wire, sql, "PF002");
    }
    check_refused(&mut wire, "PREPARE TRANSACTION 'x'", "PF005");
    assert!(committed(&stage).is_empty());
}

/// PostgreSQL itself refuses writes hidden from a parser, since the session is read-only.
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

/// Read-only mode cannot be left: each of these statements is a write for a session without a token.
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

/// Declaring makes the session read-write, inside and outside of a transaction; clearing the token reverts that.
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

/// After its first query a read-only transaction cannot change its mode; the error says what to do.
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
        error.is_some_and(|hint| hint.contains("right after BEGIN")),
        "{}",
        pretty(&answer)
    );
    wire.ok("ROLLBACK");
    // The refused declaration has deposed nobody: a lower token is still accepted.
    stage.plain().ok("SET fencing.token = 4");
    wire.ok("SET fencing.token = 5");
    wire.ok("INSERT INTO jobs VALUES (1)");
    // A declaration that fails in a transaction fails the transaction, whatever was prepared for it.
    wire.ok("RESET fencing.token");
    wire.ok("BEGIN");
    assert_refused(&wire.query("SET fencing.token = 3"), "PF001", b'E');
    wire.ok("ROLLBACK");
    assert_refused(&wire.query("INSERT INTO jobs VALUES (2)"), "PF002", b'I');
}

/// The token at Execute counts, not that at Parse: the verdict of a statement belongs to its name.
#[test]
fn statements_outlive_the_token_they_were_parsed_with() {
    let stage = stage();
    let mut wire = stage.plain();
    let run = Batch::new().bind("", "w", &[]).execute("", 0).sync();
    wire.run(
        &Batch::new()
            .parse("w", "INSERT INTO jobs VALUES (1)")
            .sync(),
    );
    assert_refused(&wire.run(&run), "PF002", b'I');
    wire.ok("SET fencing.token = 5");
    wire.run(&run);
    assert_eq!(committed(&stage), ["1"]);
    wire.ok("DELETE FROM jobs; PREPARE p AS INSERT INTO jobs VALUES (2)");
    wire.ok("RESET fencing.token");
    assert_refused(&wire.run(&run), "PF002", b'I');
    assert_refused(&wire.query("EXECUTE p"), "PF002", b'I');
    assert_refused(&wire.query("EXECUTE w"), "PF002", b'I');
    let of_sql = Batch::new().bind("", "p", &[]).execute("", 0).sync();
    assert_refused(&wire.run(&of_sql), "PF002", b'I');
    // The name is reused: the new statement counts.
    wire.ok("DEALLOCATE w");
    let read = Batch::new().parse("w", "SELECT 1").sync();
    wire.run(&read);
    assert_eq!(
        wire.run(&run).last().map(|last| last.body.clone()),
        Some(b"I".to_vec())
    );
    assert!(committed(&stage).is_empty());
}

/// The same bytes are one string or two statements, depending on settings of the session. A text that may hide a
/// statement that way counts as a write.
#[test]
fn lexing_that_depends_on_the_session() {
    let stage = stage();
    let hides = "SELECT 'a\\'' ; INSERT INTO jobs VALUES (1); -- '";
    let mut by_set = stage.plain();
    by_set.query("SET standard_conforming_strings = off; SET escape_string_warning = off");
    by_set.query(hides);
    let mut by_startup = Wire::login(
        &stage.proxy.endpoint(),
        &[
            ("user", "postgres"),
            ("options", "-c standard_conforming_strings=off"),
        ],
    );
    by_startup.query(hides);
    by_startup.extended("SELECT 'a\\''");
    // In SJIS 0x83 0x5C is one character, whose second byte is a backslash in other encodings.
    let mut sjis = Wire::login(
        &stage.proxy.endpoint(),
        &[("user", "postgres"), ("client_encoding", "SJIS")],
    );
    let text = [
        b"SELECT E'\x83\\' ; INSERT INTO jobs VALUES (2); --'".as_slice(),
        b"\0",
    ]
    .concat();
    sjis.run(&Batch::new().message(b'Q', &text));
    assert!(committed(&stage).is_empty());
    let _refused_by_the_proxy = stage.proxy.first_rejections(2);
}

/// A replication connection can run SQL too, and its stream is not analysed: refused by default.
#[test]
fn replication_connections() {
    let stage = stage();
    for value in ["database", "true", "on", "1"] {
        let mut wire = Wire::connect(&stage.proxy.endpoint());
        wire.startup(
            PROTOCOL_3_0,
            &[
                ("user", "postgres"),
                ("database", "postgres"),
                ("replication", value),
            ],
        );
        let answer = wire.until_ready();
        if answer.last().is_some_and(|last| last.tag == b'Z') {
            let answer = wire.query("INSERT INTO jobs VALUES (1)");
            assert!(
                answer.iter().any(|message| message.tag == b'E'),
                "{value}: {}",
                pretty(&answer)
            );
        }
        assert!(
            answer.iter().any(|message| message.sqlstate() == "PF005"),
            "{value}: {}",
            pretty(&answer)
        );
    }
    assert!(committed(&stage).is_empty());
}
