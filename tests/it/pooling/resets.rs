//! `backends.reset = "auto"`: a server connection in which clients have only read is not reset between them.

use pgpalisade_test_servers::machine::wait_until;
use pgpalisade_test_servers::policy::PolicyFile;
use pgpalisade_test_servers::stage::Stage;
use pgpalisade_test_servers::wire::{Batch, Wire, assert_error, errors};

use super::JOBS;

/// Two clients that share a server connection.
struct Pair {
    stage: Stage,
    one: Wire,
    other: Wire,
}

fn pair(setup: &str) -> Pair {
    let flags = [
        ("--pool", "transaction"),
        ("--backends-max", "1"),
        ("--backends-leaders", "0"),
        ("--backends-reset", "auto"),
    ];
    let stage = Stage::with_flags(&format!("{JOBS}; {setup}"), &flags);
    let (mut one, mut other) = (stage.plain(), stage.plain());
    // With the first reset the functions of the database are looked at.
    for _ in 0..2 {
        one.ok("SELECT 1");
        other.ok("SELECT 1");
    }
    Pair { stage, one, other }
}

impl Pair {
    /// Whether the connection is reset after `sql` of the one and before the other.
    fn is_reset_after(&mut self, sql: &str) -> bool {
        self.is_reset_after_batch(&Batch::new().query(sql))
    }

    fn is_reset_after_batch(&mut self, batch: &Batch) -> bool {
        let mark = Batch::new()
            .close_statement("mark")
            .parse("mark", "SELECT 1");
        for batch in [&mark.sync(), batch] {
            assert_eq!(errors(&self.one.run(batch)), [""; 0]);
        }
        // Only a reset removes it.
        let all = "SELECT count(*) FROM pg_prepared_statements WHERE name = 'mark'";
        self.other.rows(all) != [["1"]]
    }
}

#[test]
fn reads_need_no_reset() {
    let mut pair = pair(
        "CREATE VIEW harmless AS SELECT id, now() FROM jobs;
         CREATE FUNCTION harmless() RETURNS int LANGUAGE plpgsql AS $$
             DECLARE found int; BEGIN
             IF false THEN UPDATE jobs SET id = 2; END IF;
             SELECT count(*) INTO found FROM jobs; RETURN found; END $$;
         CREATE EXTENSION pgcrypto; CREATE EXTENSION citext; CREATE TYPE span AS RANGE (subtype = int);
         CREATE AGGREGATE total(int) (sfunc = int4pl, stype = int)",
    );
    for (sql, is_reset) in [
        ("SELECT * FROM jobs", false),
        ("SELECT harmless(), digest('a', 'md5') FROM harmless", false),
        ("BEGIN; SELECT 1; SAVEPOINT s; ROLLBACK TO s; COMMIT", false),
        ("COPY jobs TO STDOUT", false),
        ("SHOW work_mem", false),
        ("UNLISTEN *", false),
        ("BEGIN; SET LOCAL work_mem = '1MB'; COMMIT", true),
        ("SELECT set_config('work_mem', '1MB', true)", true),
        ("EXECUTE mark", true),
    ] {
        assert_eq!(pair.is_reset_after(sql), is_reset, "{sql}");
    }
    // A portal, whose text is known from its Parse.
    for (sql, is_reset) in [("SELECT 1", false), ("SET LOCAL work_mem = '1MB'", true)] {
        let batch = Batch::new().statement(sql).sync();
        assert_eq!(pair.is_reset_after_batch(&batch), is_reset, "{sql}");
    }
    // Statements with the names of other clients.
    for at in 0..300 {
        let name = format!("s{at}");
        pair.one.run(&Batch::new().parse(&name, "SELECT 1").sync());
        pair.other.ok("SELECT 1");
    }
    let left = pair
        .other
        .rows("SELECT count(*) FROM pg_prepared_statements");
    assert!(left[0][0].parse::<usize>().unwrap() < 250, "{left:?}");
}

/// A text that is not read could run them by their names.
#[test]
fn a_token_is_declared_where_no_statement_of_another_is() {
    let mut pair = pair("");
    let long = format!("/*{}*/ EXECUTE s", "x".repeat(1024 * 1024));
    let block = "DO $$ BEGIN EXECUTE 'EXECUTE s'; END $$";
    let late = format!("/*{}*/ SET fencing.token = 34", "x".repeat(300));
    for (declares, runs) in [
        (&["SET fencing.token = 34"][..], block),
        (&[&late], block),
        (&["SHOW work_mem; SET fencing.token = 34"], block),
        (
            &[
                "BEGIN",
                "SET LOCAL work_mem = '1MB'",
                "SET LOCAL fencing.token = 34",
            ],
            block,
        ),
        (&["BEGIN", "SET fencing.token = 'after:34'"], block),
        // Its client keeps the connection.
        (&["SET fencing.token = 35"], &long),
    ] {
        let insert = Batch::new()
            .close_statement("s")
            .parse("s", "INSERT INTO jobs VALUES (1)");
        assert_eq!(errors(&pair.one.run(&insert.sync())), [""; 0]);
        pair.one.ok("SELECT 1");
        for declare in declares {
            pair.other.ok(declare);
        }
        assert_error(&pair.other.query(runs), "26000");
        let _ = pair.other.query("ROLLBACK");
        pair.other.ok("SET fencing.token = ''");
    }
}

/// Whatever a function, view, operator, type or policy leaves is gone for the next client.
#[test]
fn where_a_function_may_leave_something_each_client_is_followed_by_a_reset() {
    let leaves = "PERFORM set_config('work_mem', '123kB', false)";
    let plpgsql = |body: &str| {
        let begin = "CREATE FUNCTION leaves() RETURNS int LANGUAGE plpgsql";
        format!("{begin} AS $$ BEGIN {body}; RETURN 1; END $$")
    };
    let nested = leaves.replace('\'', "''''");
    let functions = [
        plpgsql(leaves),
        plpgsql("FOR at IN 1..2 LOOP SET work_mem = '123kB'; END LOOP"),
        plpgsql(&format!(
            "EXECUTE replace('DO ''BEGIN {nested}; END''', '123', '123')"
        )),
        plpgsql("-- now update the\n SET work_mem = '123kB'"),
        plpgsql("RAISE DEBUG 'no update needed'; SET work_mem = '123kB'"),
        plpgsql("IF update THEN SET work_mem = '123kB'; END IF")
            .replace("leaves()", "leaves(update bool DEFAULT true)"),
        "CREATE EXTENSION pg_trgm; ".to_owned() + &plpgsql("PERFORM set_limit(0.1)"),
        plpgsql(r#"PERFORM U&"\0073et_config"('work_mem', '123kB', false)"#),
    ];
    let functions = functions.map(|setup| (setup, "SELECT leaves()"));
    let others = [
        "SELECT leaves() => CREATE FUNCTION leaves() RETURNS text LANGUAGE sql BEGIN ATOMIC \
         SELECT set_config('work_mem', '123kB', false); END",
        "SELECT leaves() => CREATE FUNCTION leaves(a text DEFAULT set_config('work_mem', '123kB', false)) \
         RETURNS int LANGUAGE sql AS 'SELECT 1'",
        "SELECT leaves('work_mem', '123kB', false) => CREATE FUNCTION leaves(text, text, bool) RETURNS text \
         LANGUAGE internal AS 'set_config_by_name'",
        "SELECT 77::bigint::boolean => CREATE CAST (bigint AS boolean) WITH FUNCTION pg_try_advisory_lock(bigint)",
        "SELECT * FROM leaves => CREATE VIEW leaves AS SELECT set_config('work_mem', '123kB', false)",
        "SELECT '123kB'::leaves => CREATE DOMAIN leaves AS text \
         CHECK (set_config('work_mem', VALUE, false) <> '')",
        "SELECT * FROM jobs => INSERT INTO jobs VALUES (1); ALTER TABLE jobs ENABLE ROW LEVEL SECURITY; \
         ALTER TABLE jobs FORCE ROW LEVEL SECURITY; \
         CREATE POLICY leaves ON jobs USING (set_config('work_mem', '123kB', false) <> ''); \
         CREATE ROLE reader LOGIN; GRANT SELECT ON jobs TO reader",
    ];
    let others = others.map(|row| {
        let (uses, setup) = row.split_once(" => ").unwrap();
        (setup.to_owned(), uses)
    });
    for (setup, uses) in functions.into_iter().chain(others) {
        let mut pair = pair(&setup);
        if setup.contains("POLICY") {
            let reader = [("user", "reader"), ("database", "postgres")];
            let proxy = pair.stage.proxy.endpoint();
            (pair.one, pair.other) = (Wire::login(&proxy, &reader), Wire::login(&proxy, &reader));
        }
        let default = pair.other.rows("SHOW work_mem");
        let answer = pair
            .one
            .run(&Batch::new().query(uses).query("SHOW work_mem"));
        assert_eq!(errors(&answer), [""; 0], "{setup}");
        assert_eq!(pair.other.rows("SHOW work_mem"), default, "{setup}");
        assert!(pair.is_reset_after(uses), "{setup}");
    }
}

/// A policy that lets every session write lets a function write, too.
/// It would hold up whoever wants it, and its own client in another connection.
#[test]
fn a_lock_that_a_function_has_left_goes_soon() {
    let Pair { stage, mut one, .. } = pair(
        "CREATE FUNCTION locks() RETURNS int LANGUAGE plpgsql AS
         $$ BEGIN PERFORM pg_advisory_lock(7); RETURN 1; END $$",
    );
    one.ok("SELECT locks()");
    let held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 7";
    assert_eq!(stage.value(held), "1");
    wait_until("the lock to go", || stage.value(held) == "0");
}

#[test]
fn what_a_function_writes_is_nobody_elses() {
    let policy = PolicyFile::new("[defaults]\nwrites = \"allow\"\n");
    let setup = "CREATE TABLE written (id serial, x int);
        CREATE FUNCTION writes() RETURNS void LANGUAGE sql AS 'INSERT INTO written (x) VALUES (1)'";
    let flags = [
        ("--pool", "transaction"),
        ("--backends-max", "1"),
        ("--backends-leaders", "0"),
        ("--backends-reset", "auto"),
    ];
    let stage = Stage::with_options(setup, |options| options.flags(&flags).policy(&policy));
    let (mut one, mut other) = (stage.plain(), stage.plain());
    for _ in 0..3 {
        one.ok("SELECT writes()");
        other.fails("SELECT lastval()", "55000");
    }
}
