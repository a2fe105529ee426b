//! Texts that the proxy cannot read: they count as the worst case, even if the server would not run most others.

use pgpalisade_test_servers::machine::wait_until;
use pgpalisade_test_servers::policy::PolicyFile;
use pgpalisade_test_servers::stage::Stage;
use pgpalisade_test_servers::wire::{Batch, Message, Wire, errors, pretty, trusted};

const SETUP: &str = "CREATE TABLE log (what text); CREATE SCHEMA jobs; CREATE TABLE jobs.queue (id int); \
    CREATE FUNCTION w() RETURNS int LANGUAGE sql AS $$INSERT INTO log VALUES ('w') RETURNING 1$$";

/// Ends of a text that make it unreadable.
fn ends() -> [String; 3] {
    [
        "SELECT 'C:\\'".to_owned(),
        format!("SELECT 1{}", "+1".repeat(1000)),
        format!("SELECT '{}'", "x".repeat(1 << 20)),
    ]
}

#[track_caller]
fn sqlstate(answer: &[Message]) -> String {
    let error = answer.iter().find(|message| message.tag == b'E');
    error.map_or_else(|| pretty(answer), Message::sqlstate)
}

/// PostgreSQL 14 and 15 take this for the name of a table, and the grammar of the proxy for a function.
const OLDER_SQL: &str = "SELECT 1 FROM (SELECT 1) system_user";

/// A failed transaction runs only ROLLBACK and the statements after it in the text.
#[test]
fn in_a_failed_transaction() {
    let stage = Stage::with(SETUP);
    let begins = [
        "ROLLBACK; BEGIN READ WRITE; INSERT INTO log VALUES ('x'); COMMIT",
        "COMMIT; SET transaction_read_only TO DEFAULT; INSERT INTO log VALUES ('x')",
        "ROLLBACK TO s; RESET transaction_read_only; INSERT INTO log VALUES ('x'); COMMIT",
        "ROLLBACK",
    ];
    let reads_it = stage.postgres.version() < 16;
    for begin in begins {
        for end in ends().into_iter().chain([OLDER_SQL.to_owned()]) {
            let mut wire = stage.plain();
            wire.ok("BEGIN; SAVEPOINT s");
            assert_eq!(sqlstate(&wire.query("SELECT 1/0")), "22012");
            let text = format!("{begin}; {end}");
            assert_eq!(sqlstate(&wire.query(&text)), "PF002", "{begin}");
            wire.ok("ROLLBACK");
            // A holder may send it.
            let mut leader = stage.leader("1");
            leader.ok("BEGIN");
            assert_eq!(sqlstate(&leader.query("SELECT 1/0")), "22012");
            let text = format!("ROLLBACK; {end}");
            if reads_it || end != OLDER_SQL {
                leader.ok(&text);
            } else {
                leader.fails(&text, "42601");
            }
        }
    }
    assert_eq!(stage.postgres.value("SELECT count(*) FROM log"), "0");
}

/// A text that may prepare a transaction is refused for that.
#[test]
fn a_transaction_that_is_prepared() {
    let stage = Stage::with(SETUP);
    let mut leader = stage.leader("1");
    for text in [
        "PREPARE TRANSACTION 'job\\'",
        "SELECT '\\'; prepare /* */ Transaction 'job'",
    ] {
        leader.ok("BEGIN; INSERT INTO log VALUES ('x')");
        assert_eq!(sqlstate(&leader.query(text)), "PF005", "{text}");
        leader.ok("ROLLBACK");
    }
}

/// A name that such a text may have redefined is judged like any text.
#[test]
fn a_name_with_another_meaning() {
    let policy = "[defaults]\nwrites = \"allow\"\n[scope.jobs]\ntables = \"jobs.*\"\n";
    let stage = Stage::governed(SETUP, &PolicyFile::new(policy));
    let write = "WITH w AS (INSERT INTO jobs.queue SELECT 1 WHERE 'x' <> '\\' RETURNING 1) SELECT count(*) FROM w";
    let long = format!("/*{}*/", "x".repeat(2 << 20));
    let parsed = |sql: &str| Batch::new().statement(sql).sync();
    let (drops, takes) = (
        format!("DEALLOCATE {long} p"),
        format!("PREPARE {long} p AS {write}"),
    );
    let ways = [
        vec![Batch::new().query(&format!("DEALLOCATE p; PREPARE p AS {write}"))],
        vec![Batch::new().query(&format!("DEALLOCATE p; {takes}"))],
        vec![Batch::new().query(&format!("SELECT 1 {long}; DEALLOCATE p; {takes}"))],
        vec![parsed(&drops), parsed(&takes)],
        vec![parsed(&format!(" ; {drops}")), parsed(&format!(";{takes}"))],
        vec![
            parsed(&format!("{long} {drops}")),
            parsed(&format!(" \n{long} {takes}")),
        ],
    ];
    for (nth, way) in ways.iter().enumerate() {
        let mut wire = stage.plain();
        wire.ok("SET fencing.token = 'jobs=1'");
        wire.ok("PREPARE p AS SELECT 1");
        for batch in way {
            assert_eq!(errors(&wire.run_all(batch)), [""; 0], "{nth}");
        }
        wire.ok("SET fencing.token = ''");
        assert_eq!(sqlstate(&wire.query("EXECUTE p")), "PF002", "{nth}");
        let bound = Batch::new().bind("", "p", &[]).execute("", 0);
        assert_eq!(sqlstate(&wire.run(&bound.sync())), "PF002", "{nth}");
    }
    assert_eq!(stage.postgres.value("SELECT count(*) FROM jobs.queue"), "0");
}

/// The protocol's prepared statements keep their meaning while long texts of other kinds run, and none that could not
/// be read runs by EXECUTE or FETCH, where nothing of it would be noticed.
#[test]
fn a_long_statement_of_the_protocol() {
    let stage = Stage::with(SETUP);
    let mut leader = stage.leader("1");
    let long = "x".repeat(2 << 20);
    let prepare = Batch::new()
        .parse("begin", "BEGIN")
        .parse("finish", "COMMIT")
        .parse("long", &format!("SELECT '{long}'"))
        .parse("drops", &format!("DEALLOCATE /*{long}*/ finish"));
    leader.run_all(&prepare.sync());
    // A comment of a framework in front, and texts that a holder does not wait for.
    let note = format!("/* a job */ SELECT '{long}'");
    leader.run_all(&Batch::new().parse("note", &note).sync());
    leader.ok(&format!("SELECT '{}'", &long[..200 << 10]));
    let run = |name: &str| Batch::new().bind("", name, &[]).execute("", 0).sync();
    for name in ["begin", "long", "note", "finish", "begin", "finish"] {
        assert_eq!(errors(&leader.run(&run(name))), [""; 0], "{name}");
    }
    for name in ["long", "drops"] {
        leader.fails(&format!("EXECUTE {name}"), "PF005");
    }
    let bound = Batch::new().bind("portal", "long", &[]).flush();
    leader.send(&bound);
    assert_eq!(sqlstate(&leader.query("FETCH ALL FROM portal")), "PF005");
}

/// It would be answered with SET, and declare nothing.
#[test]
fn a_declaration_beside_another_sql() {
    let stage = Stage::with(SETUP);
    let mut leader = stage.leader("1");
    let text = format!("SET fencing.token = 2; {OLDER_SQL}");
    let older = stage.postgres.version() < 16;
    leader.fails(&text, if older { "58000" } else { "42601" });
}

/// The server's own files: RESET restores their value, which a reload changes before the server reports anything.
#[test]
fn a_reload_behind_a_reset() {
    let stage = Stage::with(SETUP);
    let reload = |sql: &str, value: &str| {
        stage.postgres.sql(sql);
        stage.postgres.sql("SELECT pg_reload_conf()");
        wait_until("the server to read its files", || {
            let shown = stage.postgres.value("SHOW default_transaction_read_only");
            shown == value
        });
    };
    for reset in [
        "DISCARD ALL",
        "RESET ALL",
        "RESET default_transaction_read_only",
        "BEGIN; SET LOCAL fencing.token = 1; RESET default_transaction_read_only; COMMIT",
    ] {
        let mut wire = stage.plain();
        reload("ALTER SYSTEM SET default_transaction_read_only = on", "on");
        wire.ok("SELECT 1");
        wire.ok(reset);
        wire.ok("SELECT 1");
        reload("ALTER SYSTEM RESET default_transaction_read_only", "off");
        assert_eq!(sqlstate(&wire.query("SELECT w()")), "25006", "{reset}");
    }
    assert_eq!(stage.postgres.value("SELECT count(*) FROM log"), "0");
}

/// The proxy's own query waits for no transaction, especially not for the former leader's.
#[test]
fn a_session_that_waits_for_safe_snapshots() {
    let stage = Stage::with(SETUP);
    let mut old = stage.leader("1");
    old.ok("BEGIN ISOLATION LEVEL SERIALIZABLE; INSERT INTO log VALUES ('old')");
    let options =
        "-c default_transaction_isolation=serializable -c default_transaction_deferrable=on";
    let parameters = trusted(&[("options", options)]);
    let mut new = Wire::login(&stage.proxy.endpoint(), &parameters);
    new.ok("SET fencing.token = 2");
    assert_eq!(stage.postgres.value("SELECT count(*) FROM log"), "0");
}
