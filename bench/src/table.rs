//! Table: a row for each figure, a column for each target, medians over the rounds.

use pgpalisade_fence::readable::counted;
use pgpalisade_load::median;
use strum::VariantArray as _;

use crate::record::{ComparedTarget, Figure, Measurement, Record};

type Key<'a> = (Measurement, &'a str, u32, Figure);

pub(crate) fn markdown(records: &[Record]) -> String {
    let mut keys: Vec<Key<'_>> = Vec::new();
    for key in records.iter().map(key) {
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    let targets = ComparedTarget::VARIANTS;
    let across = |cells: Vec<String>| cells.join(" | ");
    let head = across(targets.iter().map(ToString::to_string).collect());
    let rule = " ---: |".repeat(targets.len());
    let row = |wanted: &Key<'_>| {
        let cells = targets.iter().map(|target| cell(records, *wanted, *target));
        format!("| {} | {} |\n", label(*wanted), across(cells.collect()))
    };
    let rows: String = keys.iter().map(row).collect();
    format!("| | {head} |\n| --- |{rule}\n{rows}")
}

fn key(record: &Record) -> Key<'_> {
    (
        record.measurement,
        &record.variant,
        record.number,
        record.figure,
    )
}

fn label((measurement, variant, number, figure): Key<'_>) -> String {
    let of = |what| counted(number, what);
    let what = match measurement {
        Measurement::Transactions | Measurement::Tls => format!("{}, {variant}", of("client")),
        Measurement::Pooling => format!("{} that share, {variant}", of("client")),
        Measurement::Copy => format!("COPY {variant}, {number} MB"),
        Measurement::Refusals => format!("refused writes, {}", of("session")),
        Measurement::Sessions => of("idle session"),
        Measurement::Scopes => format!("writes with {}", of("scope")),
        Measurement::Takeover => format!("takeover over {}, {variant}", of("session")),
        Measurement::Handover => format!("lease to the next leader's first write, {variant}"),
        Measurement::Fences => format!("write, {variant}, {}", of("client")),
        Measurement::LostMachine => format!("wait for a machine that is gone, {variant}"),
    };
    format!("{what}: {figure}")
}

/// Median of the rounds, followed in brackets by the median of its ratios, round by round. CPU time is compared with
/// haproxy's, with TLS and shared connections with pgbouncer's; values that depend on PostgreSQL with the
/// direct target's.
fn cell(records: &[Record], wanted: Key<'_>, target: ComparedTarget) -> String {
    let of = |target: ComparedTarget| {
        records
            .iter()
            .filter(move |record| record.target == target && key(record) == wanted)
    };
    let values: Vec<f64> = of(target).map(|record| record.value).collect();
    let Some(middle) = median(&values).map(number) else {
        return "-".to_owned();
    };
    let base = match (wanted.0, wanted.3) {
        // haproxy does not encrypt here, and shares nothing.
        (Measurement::Tls, Figure::Cpu) | (Measurement::Pooling, _) => ComparedTarget::Pgbouncer,
        (_, Figure::Cpu) => ComparedTarget::Haproxy,
        _ => ComparedTarget::Direct,
    };
    let ratios = of(target).filter_map(|record| {
        let base = of(base).find(|base| base.round == record.round)?;
        Some(record.value / base.value)
    });
    let ratios: Vec<f64> = ratios.filter(|_| target != base).collect();
    match (wanted.3, median(&ratios)) {
        (Figure::Median | Figure::Tail | Figure::Memory | Figure::Multixacts, _) => middle,
        (_, Some(ratio)) => format!("{middle} ({ratio:.2})"),
        _ => middle,
    }
}

/// Only significant digits.
fn number(value: f64) -> String {
    match value {
        small if small < 99.95 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::plan::Cell;

    fn records(target: ComparedTarget, figure: Figure, values: &[f64]) -> Vec<Record> {
        let rounds = (1..).zip(values);
        let record = |(round, value): (u32, &f64)| {
            let cell = Cell {
                measurement: Measurement::Transactions,
                variant: "simple",
                number: 16,
                round,
            };
            cell.records(target, [(figure, *value)]).collect::<Vec<_>>()
        };
        rounds.flat_map(record).collect()
    }

    #[test]
    fn targets_are_compared_round_by_round() {
        let all = [
            records(
                ComparedTarget::Direct,
                Figure::Rate,
                &[100.0, 1000.0, 200.0],
            ),
            records(
                ComparedTarget::Pgpalisade,
                Figure::Rate,
                &[50.0, 800.0, 120.0],
            ),
            records(ComparedTarget::Pgpalisade, Figure::Cpu, &[21.0, 20.0, 25.0]),
            records(ComparedTarget::Pgbouncer, Figure::Cpu, &[50.0, 30.0, 30.0]),
            records(ComparedTarget::Haproxy, Figure::Cpu, &[25.0, 40.0, 20.0]),
        ];
        let expect = "\
| | direct | pgpalisade | pgbouncer | haproxy |
| --- | ---: | ---: | ---: | ---: |
| 16 clients, simple: per second | 200 | 120 (0.60) | - | - |
| 16 clients, simple: CPU us | - | 21.0 (0.84) | 30.0 (1.50) | 25.0 |
";
        assert_eq!(markdown(&all.concat()), expect);
    }

    /// Records of the CSV file that the page shows: the deciding figure, and takeovers over none, one and many.
    fn is_shown(record: &Record) -> bool {
        match record.measurement {
            Measurement::Transactions | Measurement::Copy => record.figure == Figure::Cpu,
            Measurement::Tls => record.figure == Figure::Cpu && !record.variant.ends_with("no TLS"),
            Measurement::Takeover => record.number != 20,
            _ => false,
        }
    }

    #[test]
    fn the_table_of_the_docs_is_that_of_its_rounds() {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
        let page = std::fs::read_to_string(docs.join("overhead.md")).unwrap();
        let rounds = csv::Reader::from_path(docs.join("overhead.csv")).unwrap();
        let rounds: Result<Vec<Record>, _> = rounds.into_deserialize().collect();
        let mut rounds = rounds.unwrap();
        rounds.retain(is_shown);
        let table = markdown(&rounds);
        assert!(
            page.contains(&table),
            "docs/overhead.md is to have this table:\n{table}"
        );
        assert!(
            table.lines().all(|line| line.chars().count() <= 120),
            "{table}"
        );
    }
}
