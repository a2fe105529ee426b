//! Every way out of read-only mode, tried by a session without a token. Afterwards PostgreSQL must still refuse a
//! write that no parser sees.

use pgpalisade_test_servers::stage::Stage;
use pgpalisade_test_servers::wire::{Batch, Message, Wire, pretty, tags};

use super::world::stage;

/// Asserts that no hidden write passes, in any form, and that the log table is empty.
#[track_caller]
fn assert_closed(stage: &Stage, wire: &mut Wire, after: &str) {
    for shape in [
        "SELECT writes()",
        "BEGIN; SELECT writes(); COMMIT",
        "SELECT 1; SELECT writes()",
        "TABLE peek",
    ] {
        let answer = wire.query(shape);
        assert!(
            answer.iter().any(|message| message.sqlstate() == "25006"),
            "after {after}: {shape}:\n{}",
            pretty(&answer)
        );
        wire.query("ROLLBACK");
    }
    let found = stage.value("SELECT count(*) FROM log");
    assert_eq!(found, "0", "after {after}");
}

/// Sends texts one by one, then a hidden write into any open transaction, then checks the log table.
#[track_caller]
fn attempt(stage: &Stage, script: &str) -> Vec<Message> {
    let mut wire = stage.plain();
    let mut answers = Vec::new();
    for text in script.split(" ;; ") {
        answers.extend(wire.query(text));
    }
    wire.query("SELECT writes()");
    wire.query("COMMIT");
    assert_closed(stage, &mut wire, script);
    answers
}

#[track_caller]
fn assert_refused(stage: &Stage, script: &str) {
    let answers = attempt(stage, script);
    assert!(
        answers.iter().any(|message| message.sqlstate() == "PF002"),
        "{script}:\n{}",
        pretty(&answers)
    );
}

#[test]
fn every_spelling_of_set() {
    let stage = stage();
    let mut wire = stage.plain();
    let mut tried = 0;
    for name in [
        "default_transaction_read_only",
        "DEFAULT_Transaction_Read_ONLY",
        "\"default_transaction_read_only\"",
        "\"Default_Transaction_Read_Only\"",
        "U&\"default_transaction_read_\\006fnly\"",
        "transaction_read_only",
        "\"TRANSACTION_READ_ONLY\"",
        "U&\"transaction!005fread_only\" UESCAPE '!'",
    ] {
        for value in [
            "off", "false", "0", "'of'", "'OFF'", "no", "'n'", "'f'", "fals",
        ] {
            for form in [
                "SET {n} = {v}",
                "SET SESSION {n} TO {v}",
                "set/**/{n}\n=\t{v}",
                "BEGIN ;; SET LOCAL {n} = {v}",
                "BEGIN ;; SET {n} TO {v}",
                "SELECT 1; SET {n} = {v}",
                "BEGIN; SET {n} = {v}; SELECT writes(); COMMIT",
            ] {
                let script = form.replace("{n}", name).replace("{v}", value);
                let mut answers = Vec::new();
                for text in script.split(" ;; ") {
                    answers.extend(wire.query(text));
                }
                assert!(
                    answers.iter().any(|message| message.sqlstate() == "PF002"),
                    "{script}:\n{}",
                    pretty(&answers)
                );
                wire.query("SELECT writes()");
                wire.query("COMMIT");
                tried += 1;
            }
        }
    }
    println!("{tried} spellings");
    assert_closed(&stage, &mut wire, "every spelling of SET");
}

#[test]
fn statements_that_would_lift_it() {
    let stage = stage();
    let set = "set_config('default_transaction_read_only', 'off', false)";
    for script in [
        "BEGIN; SET TRANSACTION READ WRITE",
        "/* */ BEGIN READ WRITE",
        "BEGIN ;; SET TRANSACTION READ WRITE",
        "BEGIN ;; SET TRANSACTION ISOLATION LEVEL SERIALIZABLE, READ WRITE",
        "BEGIN ;; SAVEPOINT s ;; SET TRANSACTION READ WRITE ;; RELEASE s",
        "BEGIN ;; SAVEPOINT s ;; SET TRANSACTION READ WRITE ;; ROLLBACK TO s",
        "BEGIN READ ONLY ;; COMMIT AND CHAIN ;; SET TRANSACTION READ WRITE",
        "BEGIN ;; SELECT 1; SET TRANSACTION READ WRITE; SELECT writes()",
        "SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE",
        "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE",
        "RESET transaction_read_only",
        "BEGIN ;; RESET transaction_read_only",
        "BEGIN ;; SET LOCAL transaction_read_only TO DEFAULT",
        "SET default_transaction_read_only FROM CURRENT",
        "BEGIN ;; SET transaction_read_only FROM CURRENT",
        "SELECT set_config('default_transaction_read_only', 'off', false)",
        "SELECT set_config('DEFAULT_transaction_read_only', 'off', false)",
        "SELECT pg_catalog.set_config('transaction_read_only', 'off', true)",
        "SELECT set_config('default_' || 'transaction_read_only', 'off', false)",
        "SELECT set_config(n, 'off', false) FROM (VALUES ('default_transaction_read_only')) v (n)",
        "UPDATE pg_settings SET setting = 'off' WHERE name = 'default_transaction_read_only'",
        "ALTER ROLE postgres SET default_transaction_read_only = off",
        "ALTER ROLE ALL SET default_transaction_read_only = off",
        "ALTER DATABASE postgres SET default_transaction_read_only = off",
        "ALTER SYSTEM SET default_transaction_read_only = off",
        "DO $$ BEGIN SET default_transaction_read_only = off; END $$",
        "DO $$ BEGIN PERFORM set_config('default_transaction_read_only', 'off', false); END $$",
        "SELECT 1; SET default_transaction_read_only = off; SELECT writes()",
        "SELECT 1; COMMIT; BEGIN READ WRITE; SELECT writes(); COMMIT",
        "CREATE FUNCTION pg_temp.lifts() RETURNS void LANGUAGE sql SET transaction_read_only = off AS ''",
        "SET SESSION AUTHORIZATION app ;; SET default_transaction_read_only = off",
        "PREPARE lift (text) AS SELECT set_config($1, 'off', false) ;; EXECUTE lift ('default_transaction_read_only')",
        "BEGIN ;; ABORT; SET default_transaction_read_only = off",
    ] {
        assert_refused(&stage, script);
    }
    for place in [
        "SELECT {}",
        "SELECT 1, {}",
        "SELECT 1 WHERE {} = 'off'",
        "WITH x AS (SELECT {}) SELECT * FROM x",
        "SELECT * FROM {}",
        "SELECT (SELECT {})",
        "VALUES ({})",
        "SELECT 1 ORDER BY {}",
        "COPY (SELECT {}) TO STDOUT",
        "EXPLAIN ANALYZE SELECT {}",
        "PREPARE lift AS SELECT {} ;; EXECUTE lift",
        "BEGIN ;; DECLARE c CURSOR FOR SELECT {} ;; FETCH c ;; COMMIT",
        "DECLARE c CURSOR WITH HOLD FOR SELECT {}",
    ] {
        assert_refused(&stage, &place.replace("{}", set));
    }
}

/// It begins without, and is read-only.
#[test]
fn a_begin_with_read_write() {
    let stage = stage();
    let mut wire = stage.plain();
    for row in [
        "BEGIN READ WRITE => read committed",
        " begin\twork read  write ; => read committed",
        "BEGIN ISOLATION LEVEL SERIALIZABLE, READ WRITE => serializable",
        "BEGIN READ WRITE, ISOLATION LEVEL READ UNCOMMITTED => read uncommitted",
        "START TRANSACTION READ WRITE ISOLATION LEVEL REPEATABLE READ => repeatable read",
        "BEGIN READ ONLY, READ WRITE => read committed",
        "BEGIN READ WRITE, READ ONLY => read committed",
    ] {
        let (begin, isolation) = row.split_once(" => ").unwrap();
        for end in ["COMMIT", "ROLLBACK"] {
            assert_eq!(tags(&wire.query(begin)), "C ZT", "{begin}");
            assert_eq!(wire.rows("SHOW transaction_isolation"), [[isolation]]);
            wire.fails("SELECT writes()", "25006");
            wire.ok(end);
        }
    }
    // Inside a transaction it changes nothing.
    wire.ok("BEGIN");
    wire.query("BEGIN READ WRITE");
    wire.fails("SELECT writes()", "25006");
    wire.ok("ROLLBACK");
    assert_closed(&stage, &mut wire, "BEGIN READ WRITE");
}

/// With the setting's name as a parameter or in a prepared statement.
#[test]
fn by_the_extended_protocol() {
    let stage = stage();
    let computed = "SELECT set_config($1, $2, false)";
    let values = "default_transaction_read_only off";
    for batch in [
        &format!("parse . {computed} + bind . . {values} + execute . + sync"),
        &format!("parse lift {computed} + bind portal lift {values} + execute portal 1 + sync"),
        "> SET default_transaction_read_only = off + > SELECT writes() + sync",
        "> BEGIN READ WRITE + > SELECT writes() + > COMMIT + sync",
        "> BEGIN + > SET TRANSACTION READ WRITE + > SELECT writes() + > COMMIT + sync",
        // Again and again, without waiting.
        "SET default_transaction_read_only = off + BEGIN READ WRITE + SELECT writes() + COMMIT",
    ] {
        let mut wire = stage.plain();
        let answer = run_all(&mut wire, &Batch::told(batch).0);
        assert!(
            answer.iter().any(|message| message.sqlstate() == "PF002"),
            "{}",
            pretty(&answer)
        );
        assert_closed(&stage, &mut wire, "a batch");
    }
}

/// Sends a batch in one write, reads all replies, and rolls back any open transaction.
#[track_caller]
pub(super) fn run_all(wire: &mut Wire, batch: &Batch) -> Vec<Message> {
    wire.run_all(&batch.clone().query("ROLLBACK"))
}

/// Switch read-only mode off where no text shows it.
pub(super) const LIFTING: &str = "
    CREATE FUNCTION lifts() RETURNS text LANGUAGE sql AS $$ SELECT set_config('transaction_read_only', 'off', true) $$;
    CREATE FUNCTION lifts_default() RETURNS text LANGUAGE sql
        AS $$ SELECT set_config('default_transaction_read_only', 'off', false) $$;
    CREATE FUNCTION sets_default() RETURNS int LANGUAGE plpgsql
        AS $$ BEGIN SET default_transaction_read_only = off; RETURN 1; END $$;
    CREATE FUNCTION sets_characteristics() RETURNS int LANGUAGE plpgsql
        AS $$ BEGIN SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE; RETURN 1; END $$;
    CREATE FUNCTION sets_and_writes() RETURNS int LANGUAGE plpgsql
        AS $$ BEGIN SET transaction_read_only = off; RETURN writes(); END $$;
    DO $do$ BEGIN
        CREATE FUNCTION by_clause() RETURNS int LANGUAGE plpgsql SET transaction_read_only = off
            AS $$ BEGIN RETURN writes(); END $$;
    EXCEPTION WHEN feature_not_supported THEN -- PostgreSQL 16 and later
    END $do$;
    CREATE FUNCTION by_default_clause() RETURNS int LANGUAGE plpgsql SET default_transaction_read_only = off
        AS $$ BEGIN RETURN writes(); END $$;
    CREATE VIEW lifting AS SELECT lifts_default()";

/// A statement cannot switch read-only mode off for itself. PostgreSQL reports a changed default, and the proxy
/// resets it before the next statement.
#[test]
fn functions_that_lift_it() {
    let stage = stage();
    stage.sql(LIFTING);
    for script in [
        "SELECT lifts()",
        "SELECT lifts_default()",
        "SELECT sets_default()",
        "SELECT sets_characteristics()",
        "SELECT sets_and_writes()",
        "SELECT by_clause()",
        "SELECT by_default_clause()",
        "TABLE lifting",
        "BEGIN ;; SELECT lifts()",
        "BEGIN ;; SELECT lifts_default() ;; COMMIT",
        "BEGIN ;; SELECT lifts_default() ;; COMMIT AND CHAIN",
        "BEGIN ;; SELECT lifts_default() ;; SAVEPOINT s ;; ROLLBACK TO s",
        "SELECT lifts_default(); SELECT writes()",
        "SELECT lifts_default() ;; BEGIN ;; SELECT 1",
        "SELECT lifts_default() ;; PREPARE w AS SELECT writes() ;; EXECUTE w",
        "COPY (SELECT lifts_default()) TO STDOUT",
        "BEGIN ;; DECLARE c CURSOR WITH HOLD FOR TABLE lifting ;; COMMIT ;; FETCH c",
    ] {
        println!("{script}");
        attempt(&stage, script);
    }
    let mut wire = stage.plain();
    wire.extended("SELECT lifts_default()");
    wire.extended("SELECT writes()");
    assert_closed(&stage, &mut wire, "lifts_default by the extended protocol");
}

/// Pools' reset queries keep working and leave the session read-only.
#[test]
fn what_pools_send() {
    let stage = stage();
    let mut wire = stage.plain();
    for text in [
        "RESET ALL",
        "DISCARD ALL",
        "UNLISTEN *",
        "CLOSE ALL",
        "DEALLOCATE ALL",
        "ABORT",
        "ROLLBACK",
        "DISCARD TEMP",
        "DISCARD PLANS",
        "DISCARD SEQUENCES",
        "RESET SESSION AUTHORIZATION",
        "SET SESSION AUTHORIZATION DEFAULT",
        "RESET ROLE",
        "RESET default_transaction_read_only",
        "SET default_transaction_read_only TO DEFAULT",
        "SELECT pg_advisory_unlock_all()",
        "SELECT pg_advisory_unlock_all(); CLOSE ALL; UNLISTEN *; RESET ALL",
        "ROLLBACK; RESET ALL; SET SESSION AUTHORIZATION DEFAULT",
        "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY",
        "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED",
        "BEGIN; COMMIT AND CHAIN; ROLLBACK",
        "SELECT 1",
        "",
    ] {
        for round in ["simple", "extended"] {
            let single = !text.contains("; ");
            let answer = match round {
                "extended" if single => wire.extended(text),
                _ => wire.query(text),
            };
            assert!(
                !answer.iter().any(|message| message.tag == b'E'),
                "{round} {text}:\n{}",
                pretty(&answer)
            );
            assert_closed(&stage, &mut wire, text);
        }
    }
    // A session with a token gives it back.
    wire.ok("DISCARD ALL");
    wire.ok("SET fencing.token = 5");
    wire.ok("SELECT writes()");
    stage.sql("TRUNCATE log");
    for text in ["RESET ALL", "DISCARD ALL"] {
        wire.ok("SET fencing.token = 5");
        wire.ok(text);
        assert_closed(&stage, &mut wire, text);
    }
}
