//! Smallest possible run of everything: each measurement has figures for each target.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a helper of tests that cannot go on fails them"
)]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// Rounds of a target, by measurement and figure.
type Found = BTreeMap<(String, String, String), usize>;

/// Values of one target in one round, by figure.
type Shown = BTreeMap<String, f64>;

const ALL: [&str; 4] = ["direct", "haproxy", "pgbouncer", "pgpalisade"];
const PROXIES: [&str; 3] = ["haproxy", "pgbouncer", "pgpalisade"];

fn run(out: &Path, flags: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_pgpalisade-bench"))
        .args(["--size", "smoke", "--out"])
        .arg(out)
        .args(flags)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    String::from_utf8(output.stdout).unwrap()
}

fn read(csv: &Path) -> Found {
    let mut found = Found::new();
    let mut rounds: BTreeMap<[String; 5], Shown> = BTreeMap::new();
    for line in csv::Reader::from_path(csv).unwrap().records() {
        let line = line.unwrap();
        let value: f64 = line[6].parse().unwrap();
        let key = [0, 5, 1].map(|column| line[column].to_owned());
        *found.entry(key.into()).or_default() += 1;
        let round = [0, 1, 2, 3, 4].map(|column| line[column].to_owned());
        let shown = rounds.entry(round).or_default();
        assert!(
            shown.insert(line[5].to_owned(), value).is_none(),
            "{line:?}"
        );
    }
    for (round, shown) in &rounds {
        plausible(round, shown);
    }
    found
}

/// Checks that the figures can be true together.
#[track_caller]
fn plausible(round: &[String; 5], shown: &Shown) {
    for (figure, value) in shown {
        // A few idle sessions may fit into the process's present memory, a window may have no CPU time, and not every
        // write meets another one. pgbench reads its clock only when it waits: on a busy machine the answers may
        // arrive before.
        let may_be_none = ["KiB", "CPU us", "multixacts", "p50 us"].contains(&figure.as_str());
        let least = if may_be_none { 0.0 } else { f64::MIN_POSITIVE };
        assert!(
            (least..1e9).contains(value),
            "{figure}: {round:?} {shown:?}"
        );
    }
    let of = |figure: &str| shown.get(figure).copied();
    if let Some((rate, p50)) = of("per second").zip(of("p50 us")) {
        // Little's law: each client waits for one answer. Half of them take no longer than twice the mean.
        let clients: f64 = round[3].parse().unwrap();
        let waiting = rate * p50 / 1e6 / clients;
        assert!(waiting < 2.5, "{round:?} {shown:?}");
        assert!(
            of("p99 us").is_none_or(|p99| p50 <= p99),
            "{round:?} {shown:?}"
        );
    }
    let work = of("per second").or_else(|| of("MB/s"));
    if let Some((work, cpu)) = work.zip(of("CPU us")) {
        let cores = std::thread::available_parallelism().unwrap().get() as f64;
        assert!(work * cpu / 1e6 < cores * 1.5, "{round:?} {shown:?}");
    }
}

#[track_caller]
fn check(found: &Found, measurement: &str, figure: &str, targets: &[&str]) {
    let of = |key: &&(String, String, String)| key.0 == measurement && key.1 == figure;
    let there: Vec<&str> = found.keys().filter(of).map(|key| key.2.as_str()).collect();
    assert_eq!(there, targets, "{measurement}, {figure}: {found:#?}");
}

#[test]
fn everything() {
    let dir = tempfile::tempdir().unwrap();
    let printed = run(dir.path(), &[]);
    let found = read(&dir.path().join("overhead.csv"));
    for figure in ["per second", "p50 us", "p99 us"] {
        check(&found, "transactions", figure, &ALL);
    }
    check(&found, "transactions", "CPU us", &PROXIES);
    // Two numbers of clients in three protocols, one round.
    let key = ["transactions", "CPU us", "haproxy"].map(str::to_owned);
    assert_eq!(found.get(&key.into()), Some(&6));
    check(&found, "copy", "MB/s", &ALL);
    check(&found, "copy", "CPU us", &PROXIES);
    check(&found, "refusals", "CPU us", &["pgpalisade"]);
    check(&found, "sessions", "KiB", &PROXIES);
    check(&found, "sessions", "CPU us", &["pgpalisade"]);
    check(&found, "scopes", "CPU us", &["pgpalisade"]);
    check(&found, "takeover", "ms", &["direct", "pgpalisade"]);
    check(&found, "handover", "ms", &["pgpalisade"]);
    check(&found, "lost-machine", "ms", &["direct", "pgpalisade"]);
    check(&found, "tls", "per second", &ALL);
    check(&found, "tls", "CPU us", &PROXIES);
    // Two protocols with TLS on no leg, on one, and on both; haproxy has no such TLS of its own.
    for (target, cells) in [("pgpalisade", 6), ("haproxy", 4)] {
        let key = ["tls", "CPU us", target].map(str::to_owned);
        assert_eq!(found.get(&key.into()), Some(&cells), "{target}");
    }
    for figure in ["servers' CPU us", "WAL bytes", "multixacts"] {
        check(&found, "fences", figure, &["direct", "pgpalisade"]);
    }

    let table = std::fs::read_to_string(dir.path().join("overhead-table.md")).unwrap();
    assert!(printed.ends_with(&table), "{printed}");
    for part in [
        "| 2 clients, prepared: CPU us",
        "takeover over 1 session, etcd of three: ms",
    ] {
        assert!(table.contains(part), "{part:?} is not in:\n{table}");
    }
}

#[test]
fn one_measurement_alone() {
    let dir = tempfile::tempdir().unwrap();
    run(dir.path(), &["--only", "refusals"]);
    let found = read(&dir.path().join("overhead.csv"));
    assert!(found.keys().all(|key| key.0 == "refusals"), "{found:#?}");
}
