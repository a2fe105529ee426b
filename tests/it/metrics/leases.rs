//! Elections: leases that are held, renewed late, or vacant; leaders that change often.

use std::time::Duration;

use pgpalisade_test_servers::machine::repository;
use pgpalisade_test_servers::postgres::scratch_dir;
use pgpalisade_test_servers::wire::Batch;
use serde_json::{Value, json};

use super::{promtool, stage, wait_until};

const LEASE: &str = "SET fencing.token = 'lease'";
const HELD: &str = "pgpalisade_leases_held";
const RENEWED: &str = "pgpalisade_lease_renewal_seconds";
const VACANT: &str = "pgpalisade_lease_vacant_seconds";

#[test]
fn leases_and_the_time_without_one_are_measured() {
    let (http, stage) = stage();
    let of = |name: &str, part: &str| http.metrics().of(&format!("{name}_{part}"));
    let mut first = stage.plain();
    first.ok(LEASE);
    wait_until(http, HELD, 1.0);
    // The beginning of the first vacancy is unknown.
    assert_eq!(of(VACANT, "count"), 0.0);
    wait_until(http, &format!("{RENEWED}_count"), 1.0);
    let late = of(RENEWED, "sum");
    assert!((0.0..2.5).contains(&late), "{late}");
    first.ok("RESET fencing.token");
    wait_until(http, HELD, 0.0);
    std::thread::sleep(Duration::from_secs(2));
    let mut second = stage.plain();
    second.ok(LEASE);
    assert_eq!(of(VACANT, "count"), 1.0);
    let vacant = of(VACANT, "sum");
    assert!((2.0..10.0).contains(&vacant), "{vacant}");
    // Handed on.
    let mut third = stage.plain();
    third.send(&Batch::new().query(LEASE));
    std::thread::sleep(Duration::from_secs(2));
    drop(second);
    third.until_ready();
    wait_until(http, HELD, 1.0);
    assert_eq!(of(VACANT, "count"), 2.0);
    let handed_on = of(VACANT, "sum") - vacant;
    assert!(handed_on < 2.0, "{handed_on}");
    // Another leads meanwhile, without a lease.
    third.ok("RESET fencing.token");
    wait_until(http, HELD, 0.0);
    stage.plain().ok("SET fencing.token = next");
    stage.plain().ok(LEASE);
    assert_eq!(of(VACANT, "count"), 2.0);
}

/// Prometheus' own tool evaluates the shipped rules.
#[test]
fn alarms_are_raised_where_they_should_be() {
    const MARK: &str = "pgpalisade_mark_raised_timestamp_seconds{job=\"j\",scope=\"s\"}";
    const RENEWALS: &str = "pgpalisade_lease_renewal_seconds_count{job=\"j\"}";
    const IN_TIME: &str = "pgpalisade_lease_renewal_seconds_bucket{job=\"j\",le=\"2.5\"}";
    let often = |values| {
        (
            "PgpalisadeMarksRaisedOften",
            json!([{"series": MARK, "values": values}]),
        )
    };
    let late = |values| {
        let in_time = json!({"series": IN_TIME, "values": "0+2x40"});
        let series = json!([{"series": RENEWALS, "values": values}, in_time]);
        ("PgpalisadeLeaseRenewedLate", series)
    };
    let quiet = json!([]);
    let fires = |labels: &str| json!([{"labels": labels, "value": 1}]);
    let firing = "alertstate=\"firing\",job=\"j\",severity=\"warning\"";
    let flaps = format!("ALERTS{{alertname=\"PgpalisadeMarksRaisedOften\",{firing},scope=\"s\"}}");
    let lags = format!("ALERTS{{alertname=\"PgpalisadeLeaseRenewedLate\",{firing}}}");
    // A value every half minute, for twelve minutes and more.
    let cases = [
        (
            often("1 1 1 1 2 2 2 2 3 3 3 3 4 4 4 4 5 5 5 5 6 6 6 6 7 7 7 7"),
            quiet.clone(),
        ),
        (often("1+1x40"), fires(&flaps)),
        // Prometheus asks once a minute, and sees one of many.
        (
            often("1 1 2 2 3 3 4 4 5 5 6 6 7 7 8 8 9 9 10 10 11 11 12 12 13 13"),
            fires(&flaps),
        ),
        (late("0+2x40"), quiet),
        (late("0+2x10 23+2x29"), fires(&lags)),
    ];
    let test = |((alarm, series), expected): ((&str, Value), Value)| {
        let expr = format!("ALERTS{{alertname=\"{alarm}\"}}");
        let seen = json!([{"expr": expr, "eval_time": "12m", "exp_samples": expected}]);
        json!({"interval": "30s", "input_series": series, "promql_expr_test": seen})
    };
    let rules = repository().join("packaging/prometheus-rules.yml");
    let tests: Vec<Value> = cases.into_iter().map(test).collect();
    let tests = json!({"rule_files": [rules], "evaluation_interval": "30s", "tests": tests});
    let dir = scratch_dir();
    let file = dir.path().join("tests.yml");
    std::fs::write(&file, tests.to_string()).unwrap();
    promtool(&["test", "rules", &file.display().to_string()], "");
}
