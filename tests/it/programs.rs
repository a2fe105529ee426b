//! Programs of users: pgbench in its three protocols, psql at a terminal, pg_dump.

use std::process::{Command, Output};

use pgpalisade_test_servers::machine::{assert_says, wait_for};
use pgpalisade_test_servers::postgres::bin;
use pgpalisade_test_servers::programs::{connect_by_environment, feed, program, stdout};
use pgpalisade_test_servers::stage::Stage;

const TOKEN: &str = "-c fencing.token=1";

fn run(stage: &Stage, name: &str, arguments: &[&str], options: &str) -> Output {
    let mut command = program(name, &stage.proxy.endpoint());
    command.args(arguments).env("PGOPTIONS", options);
    feed(command, "")
}

#[test]
fn pgbench() {
    let stage = Stage::start();
    stdout(&run(&stage, "pgbench", &["-i", "-s", "1"], TOKEN));
    assert_eq!(
        stage.value("SELECT count(*) FROM pgbench_accounts"),
        "100000"
    );
    for protocol in ["simple", "extended", "prepared"] {
        let arguments = ["-n", "-M", protocol, "-c", "4", "-j", "2", "-t", "100"];
        let report = stdout(&run(&stage, "pgbench", &arguments, TOKEN));
        assert_says(
            &report,
            "number of transactions actually processed: 400/400",
        );
        assert_says(&report, "number of failed transactions: 0");
        // Reads need no token, and a new connection for each transaction works too.
        stdout(&run(
            &stage,
            "pgbench",
            &["-n", "-S", "-M", protocol, "-C", "-c", "2", "-t", "20"],
            "",
        ));
    }
    let found = stage.value("SELECT count(*) FROM pgbench_history");
    assert_eq!(found, "1200");
}

/// pgbench without a token is refused, with the reason.
#[test]
fn pgbench_without_a_token() {
    let stage = Stage::start();
    let output = run(&stage, "pgbench", &["-i", "-s", "1"], "");
    assert!(!output.status.success());
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(told.contains("token"), "{told}");
    wait_for("the rejection to be logged", || {
        let mut records = stage.proxy.rejections().into_iter();
        records.find(|record| record["sqlstate"] == "PF002")
    });
}

/// Runs psql in a terminal, fed with keystrokes.
fn terminal(stage: &Stage, keys: &str) -> String {
    let mut command = Command::new("script");
    // `script` gives psql its own terminal; it is part of Debian's base system.
    command.args([
        "-q",
        "-e",
        "-c",
        &format!("{} -X", bin("psql").display()),
        "/dev/null",
    ]);
    connect_by_environment(&mut command, &stage.proxy.endpoint());
    command.env("PAGER", "cat").env("TERM", "dumb");
    stdout(&feed(command, keys)).replace('\r', "")
}

#[test]
fn psql_at_a_terminal() {
    let stage = Stage::with("CREATE TABLE jobs (id int PRIMARY KEY, who text)");
    let screen = terminal(
        &stage,
        "SET fencing.token = 7;\n\
         SHOW fencing.token;\n\
         \\d jobs\n\
         INSERT INTO jobs VALUES (1, 'typed');\n\
         SELECT * FROM jobs \\gx\n\
         BEGIN;\nSELECT 1/0;\nROLLBACK;\n\
         \\l\n\\du\n\\df\n\
         \\q\n",
    );
    for part in [
        "jobs_pkey",
        "INSERT 0 1",
        "typed",
        "division by zero",
        "ROLLBACK",
        "template1",
    ] {
        assert!(
            screen.contains(part),
            "{part} is not on the screen:\n{screen}"
        );
    }
    assert_eq!(stage.value("SELECT who FROM jobs"), "typed");
}

/// The error for a user who forgot the token, or has an old one.
#[test]
fn psql_shows_the_error_with_its_detail_and_hint() {
    let stage = Stage::with("CREATE TABLE jobs (id int PRIMARY KEY, who text)");
    let screen = terminal(
        &stage,
        "INSERT INTO jobs VALUES (1);\n\
         SET fencing.token = 34;\n\
         INSERT INTO jobs VALUES (2);\n\
         SET fencing.token = 33;\n\
         \\q\n",
    );
    for part in ["ERROR:", "DETAIL:", "HINT:", "INSERT 0 1"] {
        assert!(
            screen.contains(part),
            "{part} is not on the screen:\n{screen}"
        );
    }
    assert_eq!(stage.sql("SELECT id FROM jobs"), [["2"]]);
}

#[test]
fn psql_copies_from_and_to_files() {
    let stage = Stage::with("CREATE TABLE jobs (id int PRIMARY KEY, who text)");
    let dir = tempfile::tempdir().unwrap();
    let (rows, copy) = (dir.path().join("rows"), dir.path().join("copy"));
    let lines: String = (1..=20_000)
        .map(|id| format!("{id}\tsomebody {id}\n"))
        .collect();
    std::fs::write(&rows, &lines).unwrap();
    let mut psql = program("psql", &stage.proxy.endpoint());
    psql.args(["-X", "-v", "ON_ERROR_STOP=1"])
        .env("PGOPTIONS", TOKEN);
    let script = format!(
        "\\copy jobs FROM '{}'\n\\copy (SELECT * FROM jobs ORDER BY id) TO '{}'\n",
        rows.display(),
        copy.display()
    );
    let out = stdout(&feed(psql, &script));
    assert_eq!(out, "COPY 20000\nCOPY 20000\n");
    assert_eq!(std::fs::read_to_string(&copy).unwrap(), lines);
}

/// pg_dump only reads, so it needs no token. It reads large objects by the protocol's FunctionCall.
#[test]
fn dump_without_a_token() {
    let stage = Stage::with(
        "CREATE TABLE jobs (id serial PRIMARY KEY, who text, at timestamptz DEFAULT now(), raw bytea);
         INSERT INTO jobs (who, raw) SELECT 'worker ' || n, decode(md5(n::text), 'hex') FROM generate_series(1, 500) n;
         CREATE VIEW busy AS SELECT who, count(*) FROM jobs GROUP BY who;
         CREATE FUNCTION twice(n int) RETURNS int LANGUAGE sql AS 'SELECT 2 * n';
         CREATE DOMAIN positive AS int CHECK (value > 0);
         CREATE INDEX ON jobs (who); COMMENT ON TABLE jobs IS 'work'; GRANT SELECT ON jobs TO public;
         SELECT lo_from_bytea(4711, 'large')",
    );
    let dump = |arguments: &[&str]| {
        let text = stdout(&run(&stage, "pg_dump", arguments, ""));
        assert!(
            text.contains("worker 500")
                && text.contains("6c61726765")
                && text.contains("PostgreSQL database dump complete")
        );
    };
    dump(&["postgres"]);
    dump(&["--inserts", "--serializable-deferrable", "postgres"]);
    assert_eq!(stage.proxy.rejections(), Vec::<serde_json::Value>::new());
}

/// A dump through the proxy, restored through the proxy, is the same dump.
#[test]
fn dump_and_restore() {
    let stage = Stage::with(
        "CREATE TABLE jobs (id serial PRIMARY KEY, who text, at timestamptz DEFAULT '2026-01-01', raw bytea);
         INSERT INTO jobs (who, raw) SELECT 'worker ' || n, decode(md5(n::text), 'hex') FROM generate_series(1, 5000) n;
         CREATE VIEW busy AS SELECT who, count(*) FROM jobs GROUP BY who;
         CREATE FUNCTION twice(n int) RETURNS int LANGUAGE sql AS 'SELECT 2 * n';
         CREATE INDEX ON jobs (who);
         SELECT lo_from_bytea(4711, 'a large object');",
    );
    let dump = |database: &str| {
        let text = stdout(&run(&stage, "pg_dump", &["--no-owner", database], TOKEN));
        // Newer versions put a random word into each dump, and set what an older server does not know.
        let left_out = ["\\restrict", "\\unrestrict", "SET transaction_timeout"];
        let lines = text
            .lines()
            .filter(|line| !left_out.iter().any(|begin| line.starts_with(begin)));
        lines.map(|line| format!("{line}\n")).collect::<String>()
    };
    let first = dump("postgres");
    stdout(&run(&stage, "createdb", &["copy"], TOKEN));
    let mut psql = program("psql", &stage.proxy.endpoint());
    psql.args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", "copy"])
        .env("PGOPTIONS", TOKEN);
    stdout(&feed(psql, &first));
    assert_eq!(dump("copy"), first);
}
