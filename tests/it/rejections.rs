//! The rejection log of a real proxy: rotated, and flooded by endless retries.

use pgpalisade_test_servers::machine::{Signal, assert_says, signal, wait_until};
use pgpalisade_test_servers::programs::feed;
use pgpalisade_test_servers::proxy::subcommand;
use pgpalisade_test_servers::stage::Stage;
use pgpalisade_test_servers::wire::{Batch, Wire};
use serde_json::Value;

const SETUP: &str = "CREATE TABLE jobs (id int)";
const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// As logrotate does it: a rename, then SIGHUP. No record is lost.
#[test]
fn a_log_that_is_rotated_loses_nothing() {
    const ROUNDS: usize = 3;
    const EACH: usize = 8;
    let stage = Stage::with(SETUP);
    let log = stage.proxy.rejection_log();
    let mut wire = stage.plain();
    let mut numbers = 0..;
    let mut refuse = || {
        for number in numbers.by_ref().take(EACH) {
            wire.fails(&format!("INSERT INTO jobs_{number} VALUES (1)"), "PF002");
        }
    };
    let old = |round: usize| log.with_extension(round.to_string());
    for round in 0..ROUNDS {
        refuse();
        std::fs::rename(&log, old(round)).unwrap();
        // These may go to the old file or the new one.
        refuse();
        signal(stage.proxy.pid(), Signal::HUP);
        wait_until("the new file", || log.exists());
    }
    let mut written = Vec::new();
    for round in 0..ROUNDS {
        let text = std::fs::read_to_string(old(round)).unwrap();
        written.extend(text.lines().map(|line| serde_json::from_str(line).unwrap()));
    }
    written.extend(
        stage
            .proxy
            .first_rejections(ROUNDS * EACH * 2 - written.len()),
    );
    let name = |line: &Value| line["statement"].as_str().unwrap().to_owned();
    let expect = |number| format!("INSERT INTO jobs_{number} VALUES (?)");
    let names: Vec<String> = written.iter().map(name).collect();
    assert_eq!(
        names,
        (0..ROUNDS * EACH * 2).map(expect).collect::<Vec<_>>()
    );
}

/// A deposed leader that retries as fast as it can.
#[test]
fn a_storm_is_a_few_records_and_a_count() {
    const STORM: u64 = 20_000;
    let mut stage = Stage::with(SETUP);
    let mut zombie = stage.plain();
    let batch = Batch::new().query("INSERT INTO jobs VALUES (1)");
    for _ in 0..STORM {
        zombie.run(&batch);
    }
    stage
        .user("postgres")
        .fails("INSERT INTO jobs SELECT 2", "PF002");
    stage.proxy.terminate();
    let records = stage.proxy.rejections();
    let of = |text: &str| {
        let records = records.iter().filter(|record| record["statement"] == text);
        let counts: Vec<u64> = records.map(|r| r["count"].as_u64().unwrap()).collect();
        (counts.len(), counts.iter().sum::<u64>())
    };
    let (lines, refusals) = of("INSERT INTO jobs VALUES (?)");
    assert!((2..=200).contains(&lines), "{lines} lines");
    assert_eq!(refusals, STORM);
    assert_eq!(of("INSERT INTO jobs SELECT ?"), (1, 1));
    assert!(records.iter().all(|record| record["dropped"].is_null()));
    let mut report = subcommand("report");
    report.arg(stage.proxy.rejection_log()).arg("--json");
    let report: Value = serde_json::from_slice(&report.output().unwrap().stdout).unwrap();
    assert_eq!(report["read"]["foreign_lines"], 0);
    assert_eq!(report["total"]["refused"], STORM + 1);
    let mut rejections = subcommand("rejections");
    rejections.args(["--json", "-"]);
    let damaged = feed(
        rejections,
        "{\"time\":\"2026-11-21T02:00:00Z\",\"dropped\":5}\ngarbage\n",
    );
    assert!(damaged.status.success(), "{damaged:?}");
    assert_says(
        &String::from_utf8(damaged.stderr).unwrap(),
        "1 line could not be read",
    );
    // The log has the first ones and a count.
    let output = stage.proxy.output();
    let told = output.lines().filter(|line| line.contains("\"rejected\""));
    let told = told.count();
    assert!((1..=500).contains(&told), "{told} lines");
    assert!(
        output.contains("\"count\":"),
        "nobody has counted the others"
    );
}

/// The trace is kept, of a simple query and of a prepared statement, and nothing else of a comment.
#[test]
fn the_trace_of_a_statement_is_kept() {
    let stage = Stage::with(SETUP);
    let mut wire = stage.plain();
    let traced = format!("INSERT INTO jobs VALUES (1) /*action='secret',traceparent='{TRACE}'*/");
    let long = format!(
        "INSERT INTO jobs VALUES ({}1) /*traceparent='{TRACE}'*/",
        "1+".repeat(5_000)
    );
    let forged = "INSERT INTO jobs VALUES (1) /*traceparent='00-secret'*/";
    for sql in [&traced, &long] {
        wire.fails(sql, "PF002");
    }
    let refused = wire.extended(&traced);
    assert!(refused.iter().any(|message| message.tag == b'E'));
    wire.fails(forged, "PF002");
    let records = stage.proxy.first_rejections(4);
    let traces: Vec<&Value> = records
        .iter()
        .map(|record| &record["traceparent"])
        .collect();
    assert_eq!(
        traces,
        [TRACE, TRACE, TRACE]
            .map(Value::from)
            .iter()
            .chain([&Value::Null])
            .collect::<Vec<_>>()
    );
    let text = std::fs::read_to_string(stage.proxy.rejection_log()).unwrap();
    assert!(!text.contains("secret"), "{text}");
}

/// Names, SQL and application_name of a client that tries to forge log lines, or to control a reader's terminal.
#[test]
fn nobody_writes_lines_or_steers_terminals_through_the_logs() {
    const HOSTILE: &str =
        "x\r\n{\"level\":\"forged\"}\u{1b}[2J\u{7f}\u{9b}2J\u{202e}\u{2028}\u{feff}";
    let visible = |c: char| c == '\n' || c == ' ' || c.is_ascii_graphic();
    for format in ["json", "text"] {
        let mut stage = Stage::with_flags(
            &format!("{SETUP}; CREATE ROLE {HOSTILE:?} LOGIN SUPERUSER").replace(
                &format!("{HOSTILE:?}"),
                &format!("\"{}\"", HOSTILE.replace('"', "\"\"")),
            ),
            &[
                ("--log-format", format),
                ("--log", "debug"),
                ("--rejection-literals", "keep"),
            ],
        );
        let who = [
            ("user", HOSTILE),
            ("database", "postgres"),
            ("application_name", HOSTILE),
        ];
        let mut wire = Wire::login(&stage.proxy.endpoint(), &who);
        let sql = format!("INSERT INTO jobs VALUES (1) -- {HOSTILE}");
        wire.fails(&sql, "PF002");
        let setting = format!("SET fencing.token = '{HOSTILE}'");
        wire.fails(&setting, "PF003");
        let scope = format!("SET fencing.scope = '{HOSTILE}'");
        wire.fails(&scope, "PF003");
        let mut unknown = Wire::connect(&stage.proxy.endpoint());
        unknown.startup(196_608, &[("user", HOSTILE), ("database", HOSTILE)]);
        let refused = unknown.until_closed();
        assert!(refused.iter().any(|message| message.sqlstate() == "3D000"));
        let records = stage.proxy.first_rejections(3);
        assert_eq!(records[0]["user"], HOSTILE);
        assert_eq!(records[0]["application_name"], HOSTILE);
        let log = std::fs::read_to_string(stage.proxy.rejection_log()).unwrap();
        assert!(log.chars().all(visible), "{log:?}");
        assert_eq!(log.lines().count(), records.len(), "{log}");
        assert!(records[0]["statement"].as_str().unwrap().contains("forged"));
        drop(wire);
        stage.proxy.terminate();
        let output = stage.proxy.output();
        assert!(output.chars().all(visible), "{output:?}");
        assert!(output.contains("forged"), "{output}");
        for line in output.lines() {
            assert!(!line.starts_with("{\"level\":\"forged"), "{line}");
            if format == "json" && !line.starts_with("listening on ") {
                let parsed: Value =
                    serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
                assert!(parsed["level"].is_string(), "{line}");
            }
        }
    }
}
