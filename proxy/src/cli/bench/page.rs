//! The measurement as a page for people. Pure.

use std::fmt::Write as _;

use crate::bench::{Estimate, Interval, Latencies, Proof, Report, Row, Verdict, Way};
use crate::cli::text::{plain, table};
use crate::config::show_time;
use std::time::Duration;

/// Columns that prose may take.
const WIDTH: usize = 100;

pub(super) fn page(report: &Report) -> String {
    let mut text = head(report);
    let throughput = &report.throughput;
    section(
        &mut text,
        &format!("throughput, statements/s ({})", rounds(throughput.rounds)),
        &[&throughput.row],
    );
    match &report.latency {
        Some(latency) => {
            let title = format!(
                "latency in us at {:.0} statements/s ({})",
                latency.rate,
                rounds(latency.rounds)
            );
            section(&mut text, &title, &latency.rows.iter().collect::<Vec<_>>());
            let (direct, proxied) = latency.longest;
            line(
                &mut text,
                &format!("slowest of all: direct {direct:.0}, proxied {proxied:.0}"),
            );
        }
        None => text
            .push_str("\nlatency\nnot measured: interrupted before its first round was complete\n"),
    }
    text.push('\n');
    text.push_str(&wrapped(&conclusion(report), ""));
    text.push_str("In brackets: the 95 % confidence interval of the median over rounds.\n");
    if report.interrupted {
        text.push_str("Interrupted: these are the rounds that were complete.\n");
    }
    for warning in &report.warnings {
        text.push_str(&wrapped(&format!("Note: {warning}"), "  "));
    }
    text
}

fn head(report: &Report) -> String {
    let load = &report.load;
    let way = |way: &Way| {
        format!(
            "{}, PostgreSQL {}",
            plain(&way.address),
            plain(&way.server_version)
        )
    };
    let status = report.proxied.fencing_status.as_deref().unwrap_or_default();
    let same = match report.same_server {
        Proof::IdentifierAndStart => "the same, by system identifier and time of start",
        Proof::Start => "the same, by time of start only",
    };
    let count = |number: usize, what: &str| match number {
        1 => format!("1 {what}"),
        n => format!("{n} {what}s"),
    };
    let mut text = String::new();
    line(&mut text, &format!("direct   {}", way(&report.direct)));
    line(&mut text, &format!("proxied  {}", way(&report.proxied)));
    line(&mut text, &format!("         {}", plain(status)));
    line(&mut text, &format!("server   {same}"));
    line(
        &mut text,
        &format!(
            "load     {}, {}, {}, {}, rounds of {} for each",
            name(&load.workload),
            name(&load.protocol),
            count(load.clients, "client"),
            count(load.threads, "thread"),
            show_time(Duration::from_millis(load.round_ms))
        ),
    );
    text
}

/// As the flag has it.
fn name(value: &impl clap::ValueEnum) -> String {
    let name = value.to_possible_value();
    name.map_or_else(String::new, |value| value.get_name().to_owned())
}

fn rounds(rounds: usize) -> String {
    match rounds {
        1 => "1 round".to_owned(),
        n => format!("{n} rounds"),
    }
}

fn section(text: &mut String, title: &str, rows: &[&Row]) {
    let cells = |row: &&Row| {
        [
            match row.name {
                "throughput" => String::new(),
                name => name.to_owned(),
            },
            estimate(&row.direct, unsigned),
            estimate(&row.proxied, unsigned),
            difference(row),
        ]
    };
    let rows: Vec<_> = rows.iter().map(cells).collect();
    let _ = write!(
        text,
        "\n{title}\n{}",
        table(["", "DIRECT", "PROXIED", "DIFFERENCE"], &rows)
    );
}

fn difference(row: &Row) -> String {
    let figure = estimate(&row.difference, signed);
    match row.verdict {
        Verdict::Measured => format!("{figure}, {} %", signed(row.percent.median)),
        Verdict::NoneMeasurable => format!("{figure}: no measurable difference"),
        Verdict::TooFewRounds => format!("{figure}, {} %, no interval", signed(row.percent.median)),
    }
}

/// The median, and in brackets its interval.
fn estimate(estimate: &Estimate, show: fn(f64) -> String) -> String {
    let median = show(estimate.median);
    match estimate.interval {
        Some(Interval { low, high }) => format!("{median} [{}, {}]", show(low), show(high)),
        None => median,
    }
}

/// No more digits than mean something.
fn unsigned(value: f64) -> String {
    match value.abs() {
        small if small < 99.95 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

fn signed(value: f64) -> String {
    match unsigned(value) {
        zero if zero == "0.0" || zero == "-0.0" => "0.0".to_owned(),
        text if value > 0.0 => format!("+{text}"),
        text => text,
    }
}

/// The answer in words.
fn conclusion(report: &Report) -> String {
    let throughput = &report.throughput.row;
    let first = match throughput.verdict {
        Verdict::NoneMeasurable => {
            "The proxy changes the throughput by no measurable amount".to_owned()
        }
        _ => format!(
            "The proxy changes the throughput by {} %",
            signed(throughput.percent.median)
        ),
    };
    let latency = report.latency.as_ref().map(added);
    let second = latency.unwrap_or_default();
    format!("{first}{second}.")
}

fn added(latency: &Latencies) -> String {
    let of = |name: &str| {
        let row = latency.rows.iter().find(|row| row.name == name)?;
        Some(match row.verdict {
            Verdict::NoneMeasurable => format!("no measurable time at {name}"),
            _ => format!("{} us at {name}", signed(row.difference.median)),
        })
    };
    let all: Vec<String> = ["p50", "p99"].iter().filter_map(|name| of(name)).collect();
    match all.as_slice() {
        [] => String::new(),
        all => format!(", and adds {}", all.join(" and ")),
    }
}

fn line(text: &mut String, line: &str) {
    // Writing to a String does not fail.
    let _ = writeln!(text, "{line}");
}

/// The text in lines of `WIDTH`; those behind the first begin with `indent`.
fn wrapped(text: &str, indent: &str) -> String {
    let mut lines = String::new();
    let mut width = 0;
    for word in text.split(' ') {
        let long = word.chars().count();
        if width > 0 && width + 1 + long > WIDTH {
            let _ = write!(lines, "\n{indent}");
            width = indent.len();
        } else if width > 0 {
            lines.push(' ');
            width += 1;
        }
        lines.push_str(word);
        width += long;
    }
    lines.push('\n');
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{Load, Protocol, Throughput, Workload};

    fn of(median: f64, interval: Option<(f64, f64)>) -> Estimate {
        let interval = interval.map(|(low, high)| Interval { low, high });
        Estimate { median, interval }
    }

    fn row(name: &'static str, direct: f64, proxied: f64, verdict: Verdict) -> Row {
        let around = |median: f64| match verdict {
            Verdict::TooFewRounds => of(median, None),
            _ => of(median, Some((median - 2.0, median + 2.0))),
        };
        Row {
            name,
            direct: around(direct),
            proxied: around(proxied),
            difference: around(proxied - direct),
            percent: around((proxied - direct) / direct * 100.0),
            verdict,
        }
    }

    fn report() -> Report {
        let way = |address: &str, status: Option<&str>| Way {
            address: address.to_owned(),
            server_version: "15.20".to_owned(),
            fencing_status: status.map(str::to_owned),
        };
        Report {
            interrupted: false,
            direct: way("db:5432", None),
            proxied: way(
                "db:6432",
                Some("token=34 scope=default mark=34 state=current"),
            ),
            same_server: Proof::IdentifierAndStart,
            load: Load {
                workload: Workload::Select,
                protocol: Protocol::Prepared,
                clients: 8,
                threads: 1,
                round_ms: 1_000,
            },
            throughput: Throughput {
                rounds: 12,
                row: row("throughput", 40_000.0, 36_000.0, Verdict::Measured),
            },
            latency: Some(Latencies {
                rounds: 12,
                rate: 18_000.4,
                rows: vec![
                    row("p50", 80.5, 120.5, Verdict::Measured),
                    row("p99", 400.0, 401.0, Verdict::NoneMeasurable),
                ],
                longest: (4_000.4, 5_000.0),
            }),
            warnings: vec!["This machine was busy.".to_owned()],
        }
    }

    #[test]
    fn the_page() {
        let expect = "\
direct   db:5432, PostgreSQL 15.20
proxied  db:6432, PostgreSQL 15.20
         token=34 scope=default mark=34 state=current
server   the same, by system identifier and time of start
load     select, prepared, 8 clients, 1 thread, rounds of 1s for each

throughput, statements/s (12 rounds)
  DIRECT                PROXIED               DIFFERENCE
  40000 [39998, 40002]  36000 [35998, 36002]  -4000 [-4002, -3998], -10.0 %

latency in us at 18000 statements/s (12 rounds)
     DIRECT             PROXIED         DIFFERENCE
p50  80.5 [78.5, 82.5]  120 [118, 122]  +40.0 [+38.0, +42.0], +49.7 %
p99  400 [398, 402]     401 [399, 403]  +1.0 [-1.0, +3.0]: no measurable difference
slowest of all: direct 4000, proxied 5000

The proxy changes the throughput by -10.0 %, and adds +40.0 us at p50 and no measurable time at p99.
In brackets: the 95 % confidence interval of the median over rounds.
Note: This machine was busy.
";
        assert_eq!(page(&report()), expect);
    }

    #[test]
    fn what_was_not_measured_is_said() {
        let mut report = report();
        report.interrupted = true;
        report.latency = None;
        report.throughput.rounds = 1;
        report.throughput.row = row("throughput", 40_000.0, 36_000.0, Verdict::TooFewRounds);
        let page = page(&report);
        for part in [
            "(1 round)\n",
            "40000   36000    -4000, -10.0 %, no interval\n",
            "latency\nnot measured",
            "by -10.0 %.\nIn brackets",
            "Interrupted",
        ] {
            assert!(page.contains(part), "{part:?} is not in:\n{page}");
        }
    }

    #[test]
    fn digits() {
        for (value, plain, with_sign) in [
            (0.0, "0.0", "0.0"),
            (-0.01, "-0.0", "0.0"),
            (1.26, "1.3", "+1.3"),
            (-42.0, "-42.0", "-42.0"),
            (99.96, "100", "+100"),
            (12_345.6, "12346", "+12346"),
        ] {
            assert_eq!(
                (unsigned(value).as_str(), signed(value).as_str()),
                (plain, with_sign)
            );
        }
    }

    #[test]
    fn prose_is_wrapped() {
        assert_eq!(wrapped("a b", ""), "a b\n");
        let long = vec!["word"; 21].join(" ");
        let lines = wrapped(&long, "  ");
        let lines: Vec<&str> = lines.lines().collect();
        assert_eq!(lines, [vec!["word"; 20].join(" "), "  word".to_owned()]);
    }
}
