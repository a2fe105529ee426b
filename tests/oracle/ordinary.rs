//! Read-only texts of applications, drivers, psql and pg_dump: how many of them count as writes.

use pgpalisade_policies::Class;

use super::corpus::{self, cases};
use super::world::{Around, Protocol, Runner, class_of, stage, why};

/// With the reason. Everything else must be a read.
const REFUSED: &[(&str, &str)] = &[
    (
        "SELECT set_config(name, 'view, foreign-table', false) FROM pg_settings",
        "pg_dump sets what it first looks up: the name could be that of read-only mode",
    ),
    (
        "lo_open(",
        "its mode is a number that may be computed, and one of them is for writing",
    ),
    (
        "U&'d",
        "its meaning depends on standard_conforming_strings: U& is an error where that is off",
    ),
];

#[test]
fn few_ordinary_reads_are_called_writes() {
    let (mut all, mut strict, mut wrong) = (0, Vec::new(), Vec::new());
    for (source, file) in corpus::ORDINARY {
        let of_source = cases(file);
        for case in &of_source {
            all += 1;
            if class_of(&case.script) == Class::Read {
                continue;
            }
            let text = case.text();
            let why = why(&text);
            strict.push(format!("{source}: {why}: {text:.90}"));
            if !REFUSED.iter().any(|(part, _)| text.contains(part)) {
                wrong.push(format!("{source}: {why}: {text}"));
            }
        }
    }
    let share = f64::from(u32::try_from(strict.len()).unwrap()) / f64::from(all) * 100.0;
    println!(
        "{all} ordinary reads; {} are called writes, {share:.1} %:\n  {}",
        strict.len(),
        strict.join("\n  ")
    );
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(all > 400, "only {all} queries: the files are read wrongly");
    assert!(share < 1.5, "{share:.1} % of ordinary reads are refused");
}

/// Validates the cases: PostgreSQL refuses none of them in a read-only session.
#[test]
fn they_are_reads() {
    let stage = stage();
    let mut oracle = Runner::oracle(&stage);
    let mut wrong = Vec::new();
    for (_, file) in corpus::ORDINARY {
        for case in cases(file) {
            let outcome = oracle.run(&case.script, Around::Nothing, Protocol::Simple);
            // Missing tables do not matter here, only the grammar.
            if outcome.is("25006") || outcome.is("42601") {
                wrong.push(format!("{outcome:?}: {}", case.text()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
