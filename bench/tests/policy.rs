//! The benchmarks of verdicts run, so that they do not rot. What they measure in a debug build says nothing.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]
#![allow(clippy::allow_attributes, reason = "a whole file of tests")]

use std::process::{Command, Output};

fn policy(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_policy"));
    command.args(arguments).output().unwrap()
}

fn table() -> Vec<String> {
    let output = policy(&["--quick"]);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn every_case_runs_and_the_cache_keeps_its_bounds() {
    let table = table();
    let goals = ["fast-path", "cached", "first-parse"];
    for name in goals {
        let line = table
            .iter()
            .find(|line| line.split(' ').next() == Some(name));
        assert!(
            line.unwrap().contains("< "),
            "{name} has no goal:\n{table:#?}"
        );
    }
    let cache = table
        .iter()
        .find(|line| line.starts_with("cache of"))
        .unwrap();
    assert!(cache.contains("(within its capacity)"), "{cache}");
}

#[test]
fn a_case_runs_by_itself_for_valgrind() {
    let output = policy(&["--case", "fast-path", "--calls", "10"]);
    assert!(
        output.status.success() && output.stdout.is_empty(),
        "{output:?}"
    );
    let output = policy(&["--case", "nothing", "--calls", "10"]);
    assert_eq!(output.status.code(), Some(1));
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(told.contains("there is no case \"nothing\""), "{told}");
}
