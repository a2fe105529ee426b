//! Exit codes, signals, and the demo's cleanup.
//!
//! Needs PostgreSQL's server programs. Each test's temporary directory must be empty at the end.

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Output};
use std::time::{Duration, Instant};

use crate::check;
use pgpalisade_test_servers::machine::{Signal, assert_says, signal};
use pgpalisade_test_servers::postgres::Postgres;
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(60);

fn place() -> TempDir {
    let place = tempfile::Builder::new()
        .prefix("pgpcli-")
        .tempdir_in("/tmp")
        .unwrap();
    fs::set_permissions(place.path(), Permissions::from_mode(0o711)).unwrap();
    place
}

fn pgpalisade(place: &Path, arguments: &[&str]) -> Command {
    let mut command = crate::pgpalisade(arguments);
    command.env("TMPDIR", place);
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Processes whose command line or working directory is in the place.
fn processes_of(place: &Path) -> Vec<String> {
    let place = place.to_str().unwrap();
    let mut found = Vec::new();
    for process in fs::read_dir("/proc").unwrap().flatten() {
        let command = text(&fs::read(process.path().join("cmdline")).unwrap_or_default());
        let directory = fs::read_link(process.path().join("cwd")).unwrap_or_default();
        if command.contains(place) || directory.starts_with(place) {
            found.push(command);
        }
    }
    found
}

#[track_caller]
fn check_clean(place: &Path) {
    let files = fs::read_dir(place).unwrap().flatten();
    let mut left: Vec<String> = files
        .map(|entry| entry.path().display().to_string())
        .collect();
    left.extend(processes_of(place));
    assert!(left.is_empty(), "left behind: {left:#?}");
}

/// Reads lines until one contains the part.
#[track_caller]
fn read_until(reader: &mut impl BufRead, part: &str) -> String {
    let mut all = String::new();
    loop {
        let before = all.len();
        if reader.read_line(&mut all).unwrap() == 0 {
            panic!("no {part:?} in:\n{all}");
        }
        if all.get(before..).unwrap().contains(part) {
            return all;
        }
    }
}

#[track_caller]
fn end_of(mut child: Child) -> Output {
    let start = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if start.elapsed() > LIMIT {
            let _ = child.kill();
            panic!("did not end");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.wait_with_output().unwrap()
}

#[test]
fn wrong_usage_ends_with_2_and_says_everything_at_once() {
    let place = place();
    let output = pgpalisade(
        place.path(),
        &["serve", "--workers", "0", "--upstream", "nonsense"],
    )
    .env("PGPALISADE_WITNESS", "maybe")
    .output()
    .unwrap();
    check(
        &output,
        2,
        "--workers: workers: \"0\": write a whole number",
    );
    check(&output, 2, "--upstream: upstream: is not an address");
    check(
        &output,
        2,
        "PGPALISADE_WITNESS: witness: \"maybe\": write auto or off",
    );
    check(&output, 2, "authority is not set");
    check(
        &pgpalisade(place.path(), &["serve", "--lisen", "x"])
            .output()
            .unwrap(),
        2,
        "--listen",
    );
    check(
        &pgpalisade(place.path(), &[]).output().unwrap(),
        2,
        "Usage: pgpalisade",
    );
    check(
        &pgpalisade(place.path(), &["--version"]).output().unwrap(),
        0,
        "",
    );
    check(
        &pgpalisade(place.path(), &["serve", "--help"])
            .output()
            .unwrap(),
        0,
        "",
    );
}

#[test]
fn a_rejection_log_that_cannot_be_opened_ends_with_1() {
    let place = place();
    let arguments = [
        "serve",
        "--upstream",
        "/run",
        "--authority",
        "embedded:/tmp/x",
        "--rejection-log",
        "/nowhere/r",
    ];
    let output = pgpalisade(place.path(), &arguments).output().unwrap();
    check(
        &output,
        1,
        "cannot open the rejection log /nowhere/r: No such file",
    );
}

#[test]
fn the_demo_goes_as_told_and_leaves_nothing() {
    let place = place();
    let output = pgpalisade(place.path(), &["demo"]).output().unwrap();
    check(&output, 0, "");
    let story = text(&output.stdout);
    assert!(story.contains("PF001"), "{story}");
    assert_says(&story, "DETAIL:  ");
    assert_says(&story, "HINT:  ");
    check_clean(place.path());
}

#[test]
fn the_demo_stays_up_until_it_is_told_to_end() {
    let place = place();
    let mut child = pgpalisade(place.path(), &["demo", "--keep"])
        .spawn()
        .unwrap();
    let mut story = BufReader::new(child.stdout.take().unwrap());
    let told = read_until(&mut story, "pgpalisade rejections --follow ");
    assert_says(
        &told,
        "PGOPTIONS='-c fencing.token=35' psql -h 127.0.0.1 -p ",
    );
    let log = told.lines().last().unwrap().rsplit(' ').next().unwrap();
    assert!(Path::new(log).exists(), "{log}");
    signal(child.id(), Signal::INT);
    check(&end_of(child), 0, "");
    check_clean(place.path());
}

#[test]
fn the_demo_cleans_up_when_terminated_on_the_way() {
    let place = place();
    for until in ["A private PostgreSQL", "PostgreSQL: 127.0.0.1"] {
        let mut child = pgpalisade(place.path(), &["demo"]).spawn().unwrap();
        let mut story = BufReader::new(child.stdout.take().unwrap());
        read_until(&mut story, until);
        signal(child.id(), Signal::TERM);
        // Keeps reading, so that the demo does not end on a closed pipe.
        story.read_to_string(&mut String::new()).unwrap();
        check(&end_of(child), 1, "interrupted");
        check_clean(place.path());
    }
}

#[test]
fn the_demo_cleans_up_when_nobody_reads_it() {
    let place = place();
    let mut child = pgpalisade(place.path(), &["demo"]).spawn().unwrap();
    drop(child.stdout.take());
    check(&end_of(child), 0, "");
    check_clean(place.path());
}

#[test]
fn missing_server_programs_are_an_error_that_says_what_to_install() {
    let place = place();
    let output = pgpalisade(place.path(), &["demo"])
        .env("PG_BIN", "/nowhere")
        .output()
        .unwrap();
    check(&output, 1, "apt-get install postgresql");
    check_clean(place.path());
}

#[test]
fn serve_says_when_it_is_ready_and_ends_cleanly() {
    let place = place();
    let postgres = Postgres::start();
    let upstream = format!(
        "postgres:///?host={}&port={}",
        postgres.socket_dir().display(),
        postgres.port()
    );
    let authority = format!("embedded:{}", place.path().join("authority").display());
    let (log, rotated) = (place.path().join("r"), place.path().join("r.1"));
    let mut child = pgpalisade(
        place.path(),
        &["serve", "--listen", "127.0.0.1:0", "--shutdown-grace", "0"],
    )
    .args([
        "--upstream",
        &upstream,
        "--authority",
        &authority,
        "--rejection-log",
    ])
    .arg(&log)
    .envs([("PGUSER", "postgres"), ("PGDATABASE", "postgres")])
    .spawn()
    .unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let line = read_until(&mut stdout, "listening on");
    assert!(line.starts_with("listening on 127.0.0.1:"), "{line}");
    assert!(
        !line.contains(":0,"),
        "the port that the system chose: {line}"
    );
    assert!(
        line.ends_with(&format!(
            ".s.PGSQL.{}, authority {authority}\n",
            postgres.port()
        )),
        "{line}"
    );

    fs::rename(&log, &rotated).unwrap();
    signal(child.id(), Signal::HUP);
    let start = Instant::now();
    while !log.exists() {
        assert!(
            start.elapsed() < LIMIT,
            "SIGHUP did not open the rejection log anew"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    signal(child.id(), Signal::TERM);
    check(&end_of(child), 0, "");
}
