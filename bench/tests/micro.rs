//! The micro-benchmarks run, so that they do not rot. What they measure in a debug build says nothing.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]
#![allow(clippy::allow_attributes, reason = "a whole file of tests")]

use std::process::{Command, Output};

fn micro(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_micro"));
    command.args(arguments).output().unwrap()
}

/// What it prints where all goes well.
#[track_caller]
fn printed(arguments: &[&str]) -> String {
    let output = micro(arguments);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
fn refused(arguments: &[&str]) -> String {
    let output = micro(arguments);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// First words of the lines between the head and the first empty line.
fn cases_of(table: &str) -> Vec<&str> {
    let lines = table.lines().skip(1).take_while(|line| !line.is_empty());
    lines.map(|line| line.split(' ').next().unwrap()).collect()
}

#[test]
fn every_case_runs_and_the_cache_keeps_its_bounds() {
    let table = printed(&["--quick"]);
    let cases = cases_of(&table);
    for part in [
        "framing-",
        "classify-",
        "require-",
        "admit-",
        "refuse-",
        "ledger-",
    ] {
        assert!(
            cases.iter().any(|case| case.starts_with(part)),
            "{part}\n{table}"
        );
    }
    for name in ["admit-token", "cached", "classify-select"] {
        let line = table
            .lines()
            .find(|line| line.split(' ').next() == Some(name));
        assert!(line.unwrap().contains("< "), "{name} has no goal:\n{table}");
    }
    let cache = table.lines().find(|line| line.starts_with("cache of"));
    assert!(cache.unwrap().contains("(within its capacity)"), "{table}");
}

/// Of a case that does the same each time, and so has the same count each time.
#[test]
fn instructions_are_counted_where_valgrind_is() {
    let has_valgrind = Command::new("valgrind").arg("--version").output().is_ok();
    if !has_valgrind {
        let told = refused(&["--instructions", "--case", "framing-bind"]);
        assert!(told.contains("install valgrind"), "{told}");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let csv = directory.path().join("micro.csv");
    let csv = csv.to_str().unwrap();
    printed(&["--instructions", "--case", "framing-", "--csv", csv]);
    let text = std::fs::read_to_string(csv).unwrap();
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("case,instructions,ns,ns_min,ns_max"));
    for line in lines {
        let fields: Vec<&str> = line.split(',').collect();
        let instructions: f64 = fields[1].parse().unwrap();
        assert!(instructions > 1.0 && fields[2].is_empty(), "{line}");
    }
    let same = printed(&["--case", "framing-", "--compare", csv]);
    assert!(
        same.ends_with("0 of 6 changed by 1 % or more, or are new\n"),
        "{same}"
    );
}

#[test]
fn what_it_cannot_use_is_refused() {
    let told = refused(&["--case", "nothing", "--quick"]);
    assert!(
        told.contains("no case whose name begins with \"nothing\""),
        "{told}"
    );
    let told = refused(&["--compare", "/nowhere/micro.csv"]);
    assert!(told.contains("cannot use /nowhere/micro.csv: "), "{told}");
    let told = refused(&[
        "--compare",
        concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"),
    ]);
    assert!(told.contains("its first line is not \"case,"), "{told}");
}
