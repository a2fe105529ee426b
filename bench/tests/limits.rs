//! Every measurement of `limits` runs, in a small size, so that none of them rots. The times of a debug build say
//! nothing, but what must be equal is equal in every build.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]
#![allow(clippy::allow_attributes, reason = "a whole file of tests")]

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use pgpalisade_bench::csv::Table;
use pgpalisade_tests::machine::{Signal, reap, signal, wait_for};
use pgpalisade_tests::proxy;

/// With the workspace's proxy, and a directory that must be empty in the end.
fn limits(arguments: &[&str], directory: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_limits"));
    command
        .args(arguments)
        .env("TMPDIR", directory)
        .env("PGPALISADE_BIN", proxy::subcommand("serve").get_program())
        .stdin(Stdio::null());
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn left_in(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    entries
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect()
}

/// Processes that have the directory in their arguments.
fn processes_of(directory: &Path) -> Vec<String> {
    let name = directory.display().to_string();
    let commands = std::fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let line = std::fs::read(entry.ok()?.path().join("cmdline")).ok()?;
        Some(text(&line).replace('\0', " "))
    });
    commands.filter(|line| line.contains(&name)).collect()
}

#[test]
fn every_measurement_runs() {
    let scratch = tempfile::tempdir().unwrap();
    let files = tempfile::tempdir().unwrap();
    let (csv, svg) = (files.path().join("l.csv"), files.path().join("l.svg"));
    let arguments = [
        "--quick",
        "--csv",
        csv.to_str().unwrap(),
        "--svg",
        svg.to_str().unwrap(),
    ];
    let output: Output = limits(&arguments, scratch.path()).output().unwrap();
    let (told, said) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{told}\n{said}");
    assert_eq!(
        left_in(scratch.path()),
        Vec::<String>::new(),
        "files are left behind"
    );

    let table = Table::parse(&std::fs::read_to_string(&csv).unwrap()).unwrap();
    let names = [
        "logins", "copy", "pipeline", "sessions", "scopes", "refusals", "server",
    ];
    for name in names {
        assert!(
            told.contains(&format!("\n{name}: ")) || told.starts_with(&format!("{name}: ")),
            "{told}"
        );
        let mut rows = table
            .rows
            .iter()
            .filter(|row| row[0] == name && row[1] != "goal");
        assert!(rows.clone().count() >= 4, "{name}:\n{told}");
        assert!(
            rows.all(|row| row[4].parse::<f64>().unwrap().is_finite()),
            "{name}:\n{told}"
        );
    }
    assert!(table.note("cpu").is_some());
    let svg = std::fs::read_to_string(&svg).unwrap();
    assert!(
        svg.contains("<polyline") && svg.contains("scopes, marks, bound, reads"),
        "{svg}"
    );

    // What is not a matter of speed holds in every build.
    let goal = |part: &str| {
        let goals = table
            .rows
            .iter()
            .filter(|row| row[1] == "goal" && row[3].contains(part));
        let reached: Vec<bool> = goals.map(|row| row[4] == "1").collect();
        assert!(
            !reached.is_empty() && reached.iter().all(|it| *it),
            "{part}:\n{told}"
        );
    };
    goal("as much WAL as direct");
    goal("the same locks as direct");
    goal("PostgreSQL is not touched, simple");
    let value = |name: &str, x: &str, figure: &str| {
        let mut rows = table.rows.iter();
        let row = rows.find(|row| row[0] == name && row[2] == x && row[3] == figure);
        row.unwrap()[4].clone()
    };
    assert_eq!(
        value("refusals", "simple", "records"),
        "200",
        "a record for each refusal:\n{told}"
    );
    assert_eq!(
        value("server", "simple", "WAL bytes/txn"),
        value("server", "extended", "WAL bytes/txn")
    );
}

#[test]
fn a_signal_ends_a_run_in_order() {
    let scratch = tempfile::tempdir().unwrap();
    let arguments = ["--only", "copy", "--megabytes", "100000"];
    let mut child = limits(&arguments, scratch.path())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_for("a COPY to run", || {
        processes_of(scratch.path())
            .iter()
            .any(|line| line.contains("haproxy"))
            .then_some(())
    });
    std::thread::sleep(Duration::from_millis(500));
    signal(child.id(), Signal::TERM);
    let status = reap(&mut child, Duration::from_secs(20));
    let mut said = String::new();
    std::io::Read::read_to_string(&mut child.stderr.take().unwrap(), &mut said).unwrap();
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(said.contains("interrupted"), "{said}");
    assert_eq!(
        processes_of(scratch.path()),
        Vec::<String>::new(),
        "processes are left behind"
    );
    assert_eq!(
        left_in(scratch.path()),
        Vec::<String>::new(),
        "files are left behind"
    );
}
