//! The measurement as a page for people. Pure.

use std::time::Duration;

use pgpalisade_load::{BenchReport, Comparison, Survey, Way};

use crate::cli::text::{counted, name, plain, table};
use crate::config::show_time;

pub(super) fn page(report: &BenchReport) -> String {
    let head = ["", "DIRECT", "PROXIED", "DIFFERENCE"];
    let table = table(head, report.rows.iter().map(cells));
    let mut text = format!(
        "{}\n{table}\nMedians of {}. In brackets: the smallest and the largest difference of any round.\n",
        survey(report),
        counted(report.rounds, "round")
    );
    if report.interrupted {
        text.push_str("Interrupted: only the complete rounds are shown.\n");
    }
    text
}

fn survey(report: &BenchReport) -> String {
    let way = |way: &Way| {
        format!(
            "{}, PostgreSQL {}",
            plain(&way.address),
            plain(&way.server_version)
        )
    };
    let Survey { direct, proxied } = &report.survey;
    let status = proxied.fencing_status.as_deref().unwrap_or_default();
    format!(
        "direct   {}\nproxied  {}\n         {}\nload     {}, {}, {}, turns of {}\n",
        way(direct),
        way(proxied),
        plain(status),
        name(&report.workload),
        name(&report.protocol),
        counted(report.clients, "client"),
        show_time(Duration::from_millis(report.round_ms))
    )
}

fn cells(row: &Comparison) -> [String; 4] {
    let (least, most) = row.spread;
    let doubt = if row.significant {
        ""
    } else {
        ", not significant"
    };
    let difference = format!(
        "{} [{}, {}], {} %{doubt}",
        signed(row.difference),
        signed(least),
        signed(most),
        signed(row.percent)
    );
    [
        row.name.to_owned(),
        unsigned(row.direct),
        unsigned(row.proxied),
        difference,
    ]
}

fn unsigned(value: f64) -> String {
    let places = usize::from(value.abs() < 99.95);
    format!("{value:.places$}")
}

fn signed(value: f64) -> String {
    match unsigned(value) {
        zero if zero == "0.0" || zero == "-0.0" => "0.0".to_owned(),
        text if value > 0.0 => format!("+{text}"),
        text => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pgpalisade_load::{Protocol, Workload};

    fn row(name: &'static str, direct: f64, proxied: f64, spread: (f64, f64)) -> Comparison {
        Comparison {
            name,
            direct,
            proxied,
            difference: proxied - direct,
            spread,
            percent: (proxied - direct) / direct * 100.0,
            significant: spread.0 * spread.1 > 0.0,
        }
    }

    #[test]
    fn the_page() {
        let way = |address: &str, status: Option<&str>| Way {
            address: address.to_owned(),
            server_version: "15.20".to_owned(),
            fencing_status: status.map(str::to_owned),
        };
        let mut report = BenchReport {
            survey: Survey {
                direct: way("db:5432", None),
                proxied: way(
                    "db:6432",
                    Some("token=34 scope=default mark=34 state=current"),
                ),
            },
            workload: Workload::Select,
            protocol: Protocol::Prepared,
            clients: 8,
            rounds: 12,
            interrupted: false,
            round_ms: 1_000,
            rows: vec![
                row("statements/s", 40_000.0, 36_000.0, (-4_100.0, -3_800.0)),
                row("p50 us", 80.5, 120.5, (38.0, 42.0)),
                row("p99 us", 400.0, 401.0, (-1.0, 3.0)),
            ],
        };
        let expect = "\
direct   db:5432, PostgreSQL 15.20
proxied  db:6432, PostgreSQL 15.20
         token=34 scope=default mark=34 state=current
load     select, prepared, 8 clients, turns of 1s

              DIRECT  PROXIED  DIFFERENCE
statements/s  40000   36000    -4000 [-4100, -3800], -10.0 %
p50 us        80.5    120      +40.0 [+38.0, +42.0], +49.7 %
p99 us        400     401      +1.0 [-1.0, +3.0], +0.2 %, not significant

Medians of 12 rounds. In brackets: the smallest and the largest difference of any round.
";
        assert_eq!(page(&report), expect);
        (report.interrupted, report.rounds) = (true, 1);
        assert!(page(&report).contains("Medians of 1 round. "));
        assert!(page(&report).ends_with("Interrupted: only the complete rounds are shown.\n"));
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
}
