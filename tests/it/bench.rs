//! `pgpalisade bench` on a real server and a real proxy, with the shortest possible rounds.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use pgpalisade_test_servers::machine::{self, Signal, assert_says, assert_within, wait_until};
use pgpalisade_test_servers::postgres::{Auth, Postgres};
use pgpalisade_test_servers::proxy::subcommand;
use pgpalisade_test_servers::stage::{Stage, leader};
use pgpalisade_test_servers::wire::Endpoint;
use serde_json::Value;

/// Default flags. A run takes two seconds.
const SHORT: [(&str, &str); 3] = [
    ("--rounds=", "--rounds=6"),
    ("--round=", "--round=100ms"),
    ("--clients=", "--clients=3"),
];

fn dsn(endpoint: &Endpoint) -> String {
    let (host, port) = (endpoint.host(), endpoint.port());
    format!("host={host} port={port} user=postgres dbname=postgres")
}

fn bench(direct: &str, proxied: &str, flags: &[&str]) -> Command {
    let mut command = subcommand("bench");
    command
        .args(["--direct", direct, "--proxied", proxied])
        .args(
            SHORT
                .iter()
                .filter(|(name, _)| !flags.iter().any(|flag| flag.starts_with(name)))
                .map(|(_, flag)| flag),
        )
        .args(flags)
        .env_remove("PGHOST")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn of_stage(stage: &Stage, flags: &[&str]) -> Command {
    let (direct, proxied) = (stage.postgres.tcp(), stage.proxy.endpoint());
    bench(&dsn(&direct), &dsn(&proxied), flags)
}

fn said(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!said.contains("panicked"), "{said}");
    said
}

#[track_caller]
fn json(output: &Output) -> Value {
    assert_eq!(output.status.code(), Some(0), "{}", said(output));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Compares the exit code and parts of what is said, divided by ` & `.
#[track_caller]
fn refused(mut command: Command, expect: &str) {
    let output = command.output().unwrap();
    let said = said(&output);
    let (code, parts) = expect.split_once(' ').unwrap();
    assert_eq!(output.status.code(), code.parse().ok(), "{said}");
    assert!(output.stdout.is_empty(), "{output:?}");
    for part in parts.split(" & ") {
        assert_says(&said, part);
    }
}

/// Asserts that no table or session of the bench is left in the cluster.
#[track_caller]
fn nothing_is_left(postgres: &Postgres) {
    let look = "SELECT (SELECT count(*) FROM pg_class WHERE relname LIKE 'pgpalisade_bench%'), \
                (SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgpalisade bench'), \
                (SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
                 WHERE n.nspname NOT LIKE 'pg\\_%' AND n.nspname NOT IN ('information_schema', 'pgpalisade'))";
    wait_until("the bench's sessions to be gone", || {
        postgres.sql(look) == [["0", "0", "0"]]
    });
}

/// Asserts that the report has all rows and figures, with plausible values.
#[track_caller]
fn complete(report: &Value) {
    assert_eq!(report["interrupted"], false);
    assert_eq!(report["rounds"], 6);
    let rows = report["rows"].as_array().unwrap();
    let names: Vec<&str> = rows
        .iter()
        .map(|row| row["name"].as_str().unwrap())
        .collect();
    assert_eq!(
        names,
        [
            "statements/s",
            "mean us",
            "p50 us",
            "p90 us",
            "p99 us",
            "max us"
        ]
    );
    for row in rows {
        let figure = |name: &str| row[name].as_f64().unwrap();
        let [least, most] = [0, 1].map(|end| row["spread"][end].as_f64().unwrap());
        assert!((least..=most).contains(&figure("difference")), "{row:#}");
        assert!(figure("percent") > -100.0, "{row:#}");
        assert_eq!(row["significant"], least > 0.0 || most < 0.0, "{row:#}");
    }
    for path in ["direct", "proxied"] {
        let figures: Vec<f64> = rows.iter().map(|row| row[path].as_f64().unwrap()).collect();
        let [throughput, mean, percentiles @ ..] = figures.as_slice() else {
            panic!("{report:#}");
        };
        // Little's law: each client always waits for one reply. A round is short, and a busy machine stalls within
        // it.
        let waiting = throughput * mean / 1e6 / report["clients"].as_f64().unwrap();
        assert!((0.2..10.0).contains(&waiting), "{waiting}: {report:#}");
        // A reply from another process takes more than a microsecond.
        assert!(
            percentiles[0] > 1.0 && percentiles.is_sorted(),
            "{report:#}"
        );
        assert!(
            (percentiles[0] / 2.0..percentiles[3]).contains(mean),
            "{report:#}"
        );
    }
}

/// Compares the report's counts with those of the server since `before`, which include the warm-up.
#[track_caller]
fn agrees_with_the_server(report: &Value, postgres: &Postgres, before: f64) {
    let row = &report["rows"][0];
    let throughput = row["direct"].as_f64().unwrap() + row["proxied"].as_f64().unwrap();
    let said = throughput * report["round_ms"].as_f64().unwrap() / 1e3;
    wait_until("the server's count to be that of the bench", || {
        let rounds = (transactions(postgres) - before) / said;
        (1.0..40.0).contains(&rounds)
    });
}

fn transactions(postgres: &Postgres) -> f64 {
    let sql = "SELECT xact_commit FROM pg_stat_database WHERE datname = 'postgres'";
    postgres.value(sql).parse().unwrap()
}

#[test]
fn reads_in_every_protocol() {
    let stage = Stage::start();
    for protocol in ["simple", "extended", "prepared"] {
        let flags = ["--json", "--protocol", protocol];
        let before = transactions(&stage.postgres);
        let report = json(&of_stage(&stage, &flags).output().unwrap());
        complete(&report);
        agrees_with_the_server(&report, &stage.postgres, before);
        assert_eq!(report["protocol"], protocol);
        assert_eq!(report["workload"], "select");
        let status = report["proxied"]["fencing_status"].as_str().unwrap();
        assert!(status.contains("state=none"), "{status}");
    }
    // A read needs no token, and nothing was refused.
    assert!(stage.proxy.rejections().is_empty());
    nothing_is_left(&stage.postgres);
}

#[test]
fn writes_with_the_current_token() {
    let stage = Stage::start();
    let mut other = leader(&stage.proxy.endpoint(), "34");
    other.ok("SELECT 1");
    for protocol in ["simple", "extended", "prepared"] {
        let flags = [
            "--json",
            "--workload=write",
            "--token=34",
            "--protocol",
            protocol,
        ];
        let report = json(&of_stage(&stage, &flags).output().unwrap());
        complete(&report);
        let status = report["proxied"]["fencing_status"].as_str().unwrap();
        assert_says(status, "token=34");
        assert_says(status, "state=current");
    }
    // The token may also be in the DSN, even one for several scopes.
    let proxied = format!(
        "{} options='-c fencing.token=default=34'",
        dsn(&stage.proxy.endpoint())
    );
    let command = &mut bench(
        &dsn(&stage.postgres.socket()),
        &proxied,
        &["--json", "--workload=write"],
    );
    json(&command.output().unwrap());
    // The leader whose token was shared goes on.
    other.ok("CREATE TABLE mine (n int); DROP TABLE mine");
    nothing_is_left(&stage.postgres);
}

#[test]
fn the_table() {
    let stage = Stage::start();
    let output = of_stage(&stage, &[]).output().unwrap();
    let page = String::from_utf8(output.stdout.clone()).unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    for part in [
        "direct   127.0.0.1:",
        "load     select, prepared, 3 clients, turns of 100ms\n",
        "DIRECT",
        "DIFFERENCE",
        "\nstatements/s",
        "Medians of 6 rounds.",
    ] {
        assert!(page.contains(part), "{part:?} is not in:\n{page}");
    }
    // A latency, its unit, and both figures.
    let rows = page.lines().filter(|line| line.contains(" us "));
    for row in rows.clone() {
        let cells = row.split_whitespace().skip(2).take(2);
        let figures = cells.map(|cell| cell.parse::<f64>().unwrap());
        assert!(figures.min_by(f64::total_cmp) > Some(1.0), "{page}");
    }
    assert_eq!(rows.count(), 5, "{page}");
    let progress = said(&output);
    assert!(progress.contains("round 6 of 6: direct "), "{progress}");
}

#[test]
fn paths_that_cannot_be_compared() {
    let stage = Stage::start();
    let (direct, proxied) = (dsn(&stage.postgres.tcp()), dsn(&stage.proxy.endpoint()));
    let nowhere = format!("host=127.0.0.1 port={} user=postgres", machine::free_port());
    let other = Stage::start();
    let (elsewhere, through) = (dsn(&other.postgres.tcp()), dsn(&other.proxy.endpoint()));
    let socket = dsn(&stage.postgres.socket());
    for (direct, proxied, expect) in [
        (&*direct, &*socket, "1 is not pgpalisade"),
        ("port=x", &proxied, "2 --direct"),
        (&direct, "user=postgres", "2 --proxied names no host"),
        (&nowhere, &proxied, "1 cannot log in at the direct address"),
        (&direct, &nowhere, "1 cannot log in at the proxied address"),
        (
            &elsewhere,
            &proxied,
            "1 lead to different servers & a primary, started at",
        ),
        (&through, &proxied, "1 also leads through pgpalisade"),
        (&proxied, &proxied, "1 also leads through pgpalisade"),
    ] {
        refused(bench(direct, proxied, &[]), expect);
    }
}

#[test]
fn a_write_without_a_token_says_what_to_add() {
    let stage = Stage::start();
    let write = of_stage(&stage, &["--workload=write"]);
    refused(write, "1 PF002 & add --token & fencing.mark");
    nothing_is_left(&stage.postgres);
}

/// The bench ends no session, and is never a scope's first leader.
#[test]
fn no_token_but_the_current_one() {
    let stage = Stage::start();
    let with = |token: &str| of_stage(&stage, &["--token", token]);
    refused(
        with("34"),
        "1 no token has been declared in scope \"default\"",
    );
    let mut leader = stage.leader("34,jobs=7");
    for (token, expect) in [
        ("35", "1 would be a takeover & is 34 & --token 34"),
        ("jobs=8", "1 would be a takeover & is 7 & --token jobs=7"),
        ("34,jobs=8", "1 would be a takeover & is 7"),
        (
            "34,cron=1",
            "1 no token has been declared in scope \"cron\"",
        ),
        ("33", "1 PF001 & is at 34"),
        ("x", "2 --token"),
    ] {
        refused(with(token), expect);
    }
    leader.ok("CREATE TABLE t (n int); DROP TABLE t");
    let proxied = format!(
        "{} options='-c fencing.token=35'",
        dsn(&stage.proxy.endpoint())
    );
    let command = bench(&dsn(&stage.postgres.tcp()), &proxied, &[]);
    refused(command, "1 would be a takeover");
    leader.ok("CREATE TABLE t (n int); DROP TABLE t");
}

#[test]
fn a_takeover_in_the_middle_is_told() {
    let stage = Stage::start();
    stage.leader("34").ok("SELECT 1");
    let mut command = of_stage(&stage, &["--token=34", "--workload=write", "--rounds=1000"]);
    let mut running = Running::until(command.spawn().unwrap(), "round 2 of 1000");
    stage.leader("35").ok("SELECT 1");
    let output = running.end();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let told = said(&output);
    assert!(told.contains("the proxied path failed: FATAL"), "{told}");
    assert!(told.contains("PF001") || told.contains("08007"), "{told}");
    nothing_is_left(&stage.postgres);
}

#[test]
fn passwords_are_not_printed() {
    let postgres = Postgres::start_with(Auth::Scram, &[]);
    postgres.sql("CREATE ROLE app LOGIN PASSWORD 'hunter2'");
    let proxy = pgpalisade_test_servers::proxy::Proxy::start(&postgres);
    let with = |endpoint: &Endpoint, more: &str| {
        format!(
            "{} {more}",
            dsn(endpoint).replace("user=postgres", "user=app")
        )
    };
    let wrong = with(&postgres.tcp(), "password=hunter3");
    let right = with(&proxy.endpoint(), "");
    let mut command = bench(&wrong, &right, &[]);
    command.env("PGPASSWORD", "hunter2");
    let output = command.output().unwrap();
    let told = said(&output);
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert_says(&told, "password authentication failed");
    assert!(!told.contains("hunter"), "{told}");
    let mut command = bench(&with(&postgres.tcp(), ""), &right, &["--json"]);
    command.env("PGPASSWORD", "hunter2");
    let output = command.output().unwrap();
    json(&output);
    let all = format!(
        "{}{}",
        said(&output),
        String::from_utf8_lossy(&output.stdout)
    );
    assert!(!all.contains("hunter"), "{all}");
}

#[test]
fn a_role_without_rights() {
    let stage = Stage::with("CREATE ROLE app LOGIN");
    let app = |endpoint: &Endpoint| dsn(endpoint).replace("user=postgres", "user=app");
    let (direct, proxied) = (app(&stage.postgres.tcp()), app(&stage.proxy.endpoint()));
    json(&bench(&direct, &proxied, &["--json"]).output().unwrap());
    let other = Postgres::start();
    refused(
        bench(&dsn(&other.tcp()), &proxied, &[]),
        "1 lead to different servers",
    );
}

/// A running bench, with its output so far.
struct Running {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStderr>>,
    said: String,
}

impl Running {
    /// Reads its progress up to a line that contains `part`.
    #[track_caller]
    fn until(mut child: Child, part: &str) -> Self {
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut running = Self {
            child,
            lines,
            said: String::new(),
        };
        running.wait_for(part);
        running
    }

    #[track_caller]
    fn wait_for(&mut self, part: &str) {
        for line in self.lines.by_ref() {
            let line = line.unwrap();
            self.said.push_str(&line);
            self.said.push('\n');
            if line.contains(part) {
                return;
            }
        }
        panic!("it never said {part:?}:\n{}", self.said);
    }

    fn signal(&self, signal: Signal) {
        machine::signal(self.child.id(), signal);
    }

    /// Its output, once it has ended.
    fn end(&mut self) -> Output {
        for line in self.lines.by_ref() {
            self.said.push_str(&line.unwrap());
            self.said.push('\n');
        }
        let mut stdout = Vec::new();
        std::io::Read::read_to_end(&mut self.child.stdout.take().unwrap(), &mut stdout).unwrap();
        let status = machine::reap(&mut self.child, Duration::from_secs(10));
        Output {
            status,
            stdout,
            stderr: self.said.clone().into_bytes(),
        }
    }
}

#[test]
fn ctrl_c_ends_it_with_what_was_measured() {
    let stage = Stage::start();
    stage.leader("34").ok("SELECT 1");
    for signal in [Signal::INT, Signal::TERM] {
        let flags = ["--rounds=1000", "--workload=write", "--token=34"];
        let running = of_stage(&stage, &flags).spawn().unwrap();
        let mut running = Running::until(running, "round 7 of 1000");
        running.signal(signal);
        let output = running.end();
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        let page = String::from_utf8(output.stdout).unwrap();
        assert!(page.contains("Interrupted"), "{page}");
        nothing_is_left(&stage.postgres);
    }

    // Before the first round it does not wait for the end of a turn, and has nothing to print.
    let flags = ["--round=10s", "--workload=write", "--token=34"];
    let running = of_stage(&stage, &flags).spawn().unwrap();
    let mut running = Running::until(running, "both paths lead to the same server");
    let began = Instant::now();
    running.signal(Signal::INT);
    let output = running.end();
    assert_within(began, Duration::from_secs(6));
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_says(&said(&output), "interrupted before the first round");
    nothing_is_left(&stage.postgres);
}
