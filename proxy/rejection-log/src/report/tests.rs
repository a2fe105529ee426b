//! Tests of a report: counts, filters, foreign lines, and the verdict.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use serde_json::{Value, json};

use super::advice::Readiness;
use super::*;
use pgpalisade_fence::rejection::Enforcement;

fn line(changes: &Value) -> String {
    let mut line = json!({
        "time": "2026-11-21T03:00:00.000000Z", "kind": "no_token", "sqlstate": "PF002", "scope": "default",
        "token": null, "mark": null, "raised_at": null, "raised_by": null, "user": "app", "database": "shop",
        "application_name": "worker", "client_addr": "10.0.0.1:5000", "backend_pid": 77,
        "statement_class": "INSERT", "statement": "INSERT INTO t VALUES (?)", "needs": "write", "enforced": false,
        "authenticated": true, "count": 1,
    });
    for (name, value) in changes.as_object().unwrap() {
        line[name] = value.clone();
    }
    format!("{line}\n")
}

fn log(lines: &[Value]) -> String {
    lines.iter().map(line).collect()
}

fn report(filter: Filter, text: &str) -> (Summary, Understood) {
    let mut report = Report::new(filter);
    let understood = report.read(&mut text.as_bytes()).unwrap();
    (report.summary(3), understood)
}

fn summary(text: &str) -> Summary {
    report(Filter::default(), text).0
}

#[track_caller]
fn check_answer(text: &str, answer: Readiness, headline: &str) -> Advice {
    let verdict = summary(text).verdict;
    assert_eq!(verdict.answer, answer, "{verdict:#?}");
    assert!(verdict.headline.contains(headline), "{}", verdict.headline);
    verdict
}

#[test]
fn records_are_counted_by_every_name() {
    let text = log(&[
        json!({}),
        json!({"user": "cron", "application_name": null, "scope": "jobs", "client_addr": "10.0.0.1:5001"}),
        json!({"statement": "insert into t values ($1), ($2)", "enforced": true, "time": "2026-11-21T04:00:00Z"}),
        json!({"kind": "session_ended", "sqlstate": "PF001", "statement": null, "database": "other"}),
    ]);
    let summary = summary(&text);
    let names = |section: &Top<NameKey>| -> Vec<(Option<String>, u64)> {
        let rows = section.rows.iter();
        rows.map(|row| (row.key.name.clone(), row.count.total()))
            .collect()
    };
    let some = |name: &str| Some(name.to_owned());
    assert_eq!((summary.total.refused, summary.total.observed), (1, 3));
    assert_eq!(
        names(&summary.scopes),
        [(some("default"), 3), (some("jobs"), 1)]
    );
    assert_eq!(names(&summary.users), [(some("app"), 3), (some("cron"), 1)]);
    assert_eq!(
        names(&summary.applications),
        [(some("worker"), 3), (None, 1)]
    );
    assert_eq!(
        names(&summary.databases),
        [(some("shop"), 3), (some("other"), 1)]
    );
    assert_eq!(names(&summary.clients), [(some("10.0.0.1"), 4)]);
    let kinds: Vec<_> = summary
        .kinds
        .iter()
        .map(|row| (row.key.kind.as_str(), row.key.sqlstate.as_str()))
        .collect();
    assert_eq!(kinds, [("no_token", "PF002"), ("session_ended", "PF001")]);
    let [shape] = summary.statements.top.rows.as_slice() else {
        panic!("{:#?}", summary.statements);
    };
    assert_eq!(shape.key.shape, "insert into t values (?)");
    assert_eq!((shape.count.refused, shape.count.observed), (1, 2));
    assert_eq!(shape.value.example.statement, "INSERT INTO t VALUES (?)");
    assert_eq!(
        shape.count.last.unwrap().to_string(),
        "2026-11-21T04:00:00Z"
    );
    assert_eq!(summary.statements.without_statement, 1);
}

#[test]
fn filters_leave_out_and_say_so() {
    let text = log(&[
        json!({"time": "2026-11-21T01:00:00Z"}),
        json!({"time": "2026-11-21T02:00:00Z", "scope": "jobs"}),
        json!({"time": "2026-11-21T03:00:00Z", "enforced": true}),
    ]) + "{\"time\":\"2026-11-21T02:00:00Z\",\"dropped\":5}\n";
    let time = |hour: u8| Some(format!("2026-11-21T0{hour}:00:00Z").parse().unwrap());
    let all = Filter::default;
    for (filter, records, dropped) in [
        (all(), 3, 5),
        (
            Filter {
                since: time(2),
                ..all()
            },
            2,
            5,
        ),
        (
            Filter {
                until: time(2),
                ..all()
            },
            1,
            0,
        ),
        (
            Filter {
                scope: Some("jobs".into()),
                ..all()
            },
            1,
            5,
        ),
        (
            Filter {
                enforced: Some(Enforcement::Observed),
                ..all()
            },
            2,
            5,
        ),
        (
            Filter {
                enforced: Some(Enforcement::Refused),
                ..all()
            },
            1,
            5,
        ),
    ] {
        let said = format!("{filter:?}");
        let (_, understood) = report(filter, &text);
        let counts = (
            understood.records,
            understood.filtered_out,
            understood.dropped,
        );
        assert_eq!(counts, (records, 3 - records, dropped), "{said}");
    }
}

#[test]
fn a_torn_end_and_foreign_lines_are_counted() {
    let whole = line(&json!({}));
    let torn = whole.get(..whole.len() / 2).unwrap();
    // The writer ends a torn line with a line break.
    let text = format!("{whole}{torn}\n\n{whole}LOG: something else\n{whole}{torn}");
    let (_, understood) = report(Filter::default(), &text);
    let expect = Understood {
        records: 3,
        foreign_lines: 2,
        torn_ends: 1,
        ..Understood::default()
    };
    assert_eq!(understood, expect);
    // A complete line without a line break is a record too.
    assert_eq!(report(Filter::default(), whole.trim_end()).1.records, 1);
    let (_, nothing) = report(Filter::default(), "LOG: something else\n");
    assert!(!nothing.is_a_log());
}

#[test]
fn the_verdict_says_whether_the_fence_can_be_switched_on() {
    let no_token = json!({});
    let stale = json!({"kind": "stale_token", "sqlstate": "PF001"});
    let refused_stale = json!({"kind": "stale_token", "sqlstate": "PF001", "enforced": true});
    let refused = json!({"enforced": true});
    let dropped = "{\"time\":\"2026-11-21T02:00:00Z\",\"dropped\":5}\n";

    check_answer("", Readiness::NothingRecorded, "observe mode");
    check_answer(
        &log(std::slice::from_ref(&stale)),
        Readiness::Ready,
        "can be switched on",
    );
    check_answer(
        &log(&[stale.clone(), refused.clone()]),
        Readiness::Ready,
        "can be",
    );
    check_answer(
        &log(&[stale.clone(), no_token.clone()]),
        Readiness::NotYet,
        "1 request ",
    );
    check_answer(
        &log(&[refused_stale]),
        Readiness::On,
        "only deposed leaders",
    );
    check_answer(
        &log(&[refused.clone(), refused]),
        Readiness::OnWithWork,
        "2 requests",
    );
    for before in [String::new(), log(&[stale])] {
        let verdict = check_answer(
            &format!("{before}{dropped}"),
            Readiness::Incomplete,
            "missing",
        );
        assert!(
            verdict
                .cautions
                .iter()
                .any(|words| words.starts_with("5 records"))
        );
    }
    let verdict = check_answer(&(log(&[no_token]) + dropped), Readiness::NotYet, "not yet");
    let [finding] = verdict.findings.as_slice() else {
        panic!("{verdict:#?}");
    };
    assert!(finding.advice.contains("SET fencing.token"));
    assert_eq!(
        finding.who.first().unwrap().key.application.as_deref(),
        Some("worker")
    );
}

#[test]
fn every_kind_has_its_advice_and_one_that_is_not_known_is_no_ready() {
    for kind in pgpalisade_fence::rejection::RejectionKind::ALL {
        let text = log(&[json!({"kind": kind.as_str()})]);
        let verdict = summary(&text).verdict;
        let advice = verdict.findings.first().unwrap().advice;
        assert!(!advice.contains("does not know"), "{kind:?}");
    }
    let verdict = check_answer(
        &log(&[json!({"kind": "new"})]),
        Readiness::NotYet,
        "not yet",
    );
    assert!(
        verdict
            .findings
            .first()
            .unwrap()
            .advice
            .contains("does not know")
    );
}

#[test]
fn more_names_than_rows_are_counted_as_others() {
    let lines: Vec<Value> = (0..20)
        .map(|n| json!({"user": format!("u{n}"), "statement": format!("DELETE FROM t{n}")}))
        .collect();
    let summary = summary(&log(&lines));
    assert_eq!(
        (summary.users.rows.len(), summary.users.others.total()),
        (3, 17)
    );
    assert_eq!(summary.statements.top.others.total(), 17);
    let finding = summary.verdict.findings.first().unwrap();
    assert_eq!(
        (
            finding.who.len(),
            finding.others.total(),
            finding.count.total()
        ),
        (3, 17, 20)
    );
}

/// A log with more names and shapes than are kept: the verdict must not call the others harmless.
#[test]
fn a_flood_of_names_is_bounded_and_no_ready() {
    let mut report = Report::new(Filter::default());
    let one = |user: usize, kind: &str| line(&json!({"user": user.to_string(), "kind": kind}));
    for user in 0..=NAMES {
        let kind = if user < NAMES {
            "stale_token"
        } else {
            "no_token"
        };
        report.read(&mut one(user, kind).as_bytes()).unwrap();
    }
    let summary = report.summary(3);
    assert_eq!(summary.users.others.total(), NAMES as u64 - 2);
    assert_eq!(summary.verdict.answer, Readiness::NotYet);
    assert!(
        summary
            .verdict
            .cautions
            .iter()
            .any(|words| words.contains("than are counted separately"))
    );
}

#[test]
fn a_record_stands_for_as_many_as_it_says() {
    let text = log(&[
        json!({}),
        json!({"count": 4_990}),
        json!({"count": 9, "authenticated": false}),
        json!({"count": u32::MAX, "scope": "jobs"}),
    ]);
    let (summary, understood) = report(Filter::default(), &text);
    let most = u64::from(u32::MAX);
    assert_eq!(understood.unauthenticated, 9);
    assert_eq!(understood.records, 4_991 + most);
    assert_eq!(summary.total.observed, 4_991 + most);
    let statement = &summary.statements.top.rows[0];
    assert_eq!(statement.count.observed, 4_991 + most);
    let of_default = Filter {
        scope: Some("default".into()),
        ..Filter::default()
    };
    let (_, understood) = report(of_default, &text);
    assert_eq!((understood.records, understood.filtered_out), (4_991, most));
}
