//! `overhead` runs, so that it does not rot: one cell of everything that is installed, for a moment. What it measures
//! in a debug build says nothing.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]
#![allow(clippy::allow_attributes, reason = "a whole file of tests")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use pgpalisade_bench::csv::Table;
use pgpalisade_bench::programs;
use pgpalisade_bench::targets::Kind;
use pgpalisade_tests::machine::{self, Signal};

fn overhead(directory: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_overhead"));
    command.current_dir(directory).args(arguments);
    command.env("PGPALISADE_BIN", proxy());
    command
}

/// Built by the same cargo, beside the program.
fn proxy() -> std::path::PathBuf {
    static BUILT: std::sync::OnceLock<std::path::PathBuf> = std::sync::OnceLock::new();
    let built = BUILT.get_or_init(|| {
        let command = pgpalisade_tests::proxy::subcommand("--version");
        Path::new(command.get_program()).to_path_buf()
    });
    built.clone()
}

fn said(output: &Output) -> String {
    let both = [output.stdout.clone(), output.stderr.clone()].concat();
    String::from_utf8_lossy(&both).into_owned()
}

#[test]
fn every_target_runs_and_the_files_are_whole() {
    let directory = tempfile::tempdir().unwrap();
    let arguments = [
        "--workloads=select,tpcb",
        "--clients=1,4",
        "--protocols=prepared",
        "--rounds=1",
        "--seconds=0.2",
        "--scale=1",
        "--scale-writes=4",
        "--csv=run.csv",
        "--svg=plot.svg",
        "--page=page.md",
    ];
    let output = overhead(directory.path(), &arguments).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let read = |name: &str| fs::read_to_string(directory.path().join(name)).unwrap();

    let table = Table::parse(&read("run.csv")).unwrap();
    assert!(
        table.note("cpu").is_some() && table.note("postgres").is_some(),
        "{table:?}"
    );
    let missing = [programs::pgbouncer(), programs::haproxy()];
    let missing = missing.iter().filter(|found| found.is_err()).count();
    // Reads of one client, the same on one core, and of four: seven over TCP and five over unix sockets; writes of one
    // and of four: six. The head is a row too.
    assert_eq!(
        table.rows.len(),
        1 + 3 * 12 + 2 * 6 - 8 * missing,
        "{table:?}"
    );
    for row in &table.rows[1..] {
        let [transactions, cpu, resident] = [7, 13, 15].map(|column| row[column].parse::<u64>());
        assert!(transactions.unwrap() > 0, "{row:?}");
        if row[4] == Kind::Direct.name() {
            assert!(cpu.is_err() && resident.is_err(), "{row:?}");
        } else {
            assert!(cpu.unwrap() > 0 && resident.unwrap() > 0, "{row:?}");
        }
    }

    let svg = read("plot.svg");
    assert!(
        svg.starts_with("<svg ") && svg.ends_with("</svg>\n"),
        "{svg}"
    );
    let page = read("page.md");
    for part in [
        "![CPU",
        "(plot.svg)",
        "debug: these figures say nothing",
        "### select: 1 client on one core, prepared",
        "### tpcb: 4 clients, prepared",
    ] {
        assert!(page.contains(part), "{part}:\n{page}");
    }

    // The same once more, from the file alone.
    let again = [
        "page",
        "--from=run.csv",
        "--svg=plot.svg",
        "--page=again.md",
    ];
    let output = overhead(directory.path(), &again).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(read("again.md"), page);
    assert_eq!(read("plot.svg"), svg);
}

#[test]
fn a_signal_ends_it_and_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let scratch = directory.path().join("tmp");
    fs::create_dir(&scratch).unwrap();
    // PostgreSQL's user has to get through.
    for path in [directory.path(), &scratch] {
        let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o711);
        fs::set_permissions(path, permissions).unwrap();
    }
    let arguments = [
        "--targets=pgpalisade",
        "--clients=2",
        "--seconds=60",
        "--scale=1",
        "--csv=run.csv",
    ];
    let mut command = overhead(directory.path(), &arguments);
    command
        .env("TMPDIR", &scratch)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    // In its first round: the log of pgbench is there.
    machine::wait_for("the first round", || {
        let runs = fs::read_dir(&scratch).unwrap().flatten();
        let mut files = runs.flat_map(|run| fs::read_dir(run.path()).unwrap().flatten());
        let is_log = |name: String| name.starts_with("pgbench.") && name != "pgbench.err";
        files
            .any(|file| is_log(file.file_name().to_string_lossy().into_owned()))
            .then_some(())
    });
    let start = Instant::now();
    machine::signal(child.id(), Signal::TERM);
    let status = machine::reap(&mut child, Duration::from_secs(20));
    assert_eq!(status.code(), Some(1), "after {:?}", start.elapsed());
    let left = fs::read_dir(&scratch).unwrap().count();
    assert_eq!(left, 0, "directories of servers are left");
}

/// The figures would be of something else.
#[test]
fn a_proxy_that_does_not_fence_is_not_measured() {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("pgpalisade");
    let script = format!(
        "#!/bin/sh\nexec '{}' \"$@\" --observe=on\n",
        proxy().display()
    );
    fs::write(&program, script).unwrap();
    let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(&program, permissions).unwrap();
    let arguments = [
        "--targets=pgpalisade-no-token",
        "--workloads=select",
        "--links=tcp",
        "--scale=1",
    ];
    let mut command = overhead(directory.path(), &arguments);
    let output = command.env("PGPALISADE_BIN", program).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let told = said(&output);
    assert!(
        told.contains("let a session without a token write"),
        "{told}"
    );
}

#[test]
fn what_is_no_file_of_a_run_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("other.csv"), "a,b\n1,2\n").unwrap();
    let arguments = ["page", "--from=other.csv", "--page=page.md"];
    let output = overhead(directory.path(), &arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let told = said(&output);
    assert!(told.contains("columns are of another version"), "{told}");
}
