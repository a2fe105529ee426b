//! Tests of a report: counts, filters, foreign lines, and the verdict.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use serde_json::{Value, json};

use super::advice::{Readiness, WhoCount};
use super::*;

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

fn report(filter: Filter, text: &str) -> Summary {
    let mut report = Report::new(filter);
    assert!(report.read(&mut text.as_bytes()).unwrap());
    report.summary(3)
}

fn summary(text: &str) -> Summary {
    report(Filter::default(), text)
}

#[track_caller]
fn check_answer(text: &str, answer: Readiness, headline: &str) -> Advice {
    let verdict = summary(text).verdict;
    assert_eq!(verdict.answer, answer, "{verdict:#?}");
    assert!(verdict.headline.contains(headline), "{}", verdict.headline);
    verdict
}

#[test]
fn records_are_counted_by_kind_and_who() {
    let text = log(&[
        json!({}),
        json!({"user": "cron", "application_name": null, "scope": "jobs", "client_addr": "10.0.0.1:5001"}),
        json!({"client_addr": "10.0.0.2:5000", "enforced": true, "time": "2026-11-21T04:00:00Z"}),
        json!({"kind": "session_ended", "sqlstate": "PF001", "statement": null, "database": "other"}),
    ]);
    let summary = summary(&text);
    assert_eq!((summary.total.refused, summary.total.observed), (1, 3));
    let [no_token, ended] = summary.verdict.findings.as_slice() else {
        panic!("{:#?}", summary.verdict);
    };
    assert_eq!(
        (&*no_token.kind, &*ended.kind),
        ("no_token", "session_ended")
    );
    assert_eq!((no_token.count.refused, no_token.count.observed), (1, 2));
    let who = |finding: &Finding| -> Vec<String> {
        let row = |row: &WhoCount| {
            let Who {
                user,
                application,
                database,
                scope,
                ..
            } = &row.who;
            let application = application.as_deref().unwrap_or("-");
            let scope = scope.as_deref().unwrap_or("-");
            let count = row.count.total();
            format!("{count} {user} {application} {database} {scope}")
        };
        finding.who.iter().map(row).collect()
    };
    let found = who(no_token);
    assert_eq!(found, ["2 app worker shop default", "1 cron - shop jobs"]);
    assert_eq!(who(ended), ["1 app worker other default"]);
    let last = no_token.who[0].count.last.unwrap();
    assert_eq!(last.to_string(), "2026-11-21T04:00:00Z");
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
    let since = Filter {
        since: time(2),
        ..all()
    };
    let of_jobs = Filter {
        scope: Some("jobs".into()),
        ..all()
    };
    for (filter, records) in [(all(), 3), (since, 2), (of_jobs, 1)] {
        let said = format!("{filter:?}");
        let understood = report(filter, &text).understood;
        let counts = (understood.records, understood.filtered_out);
        assert_eq!(counts, (records, 3 - records), "{said}");
        assert_eq!(understood.dropped, 5, "{said}");
    }
}

#[test]
fn a_torn_end_and_foreign_lines_are_counted() {
    let whole = line(&json!({}));
    let torn = whole.get(..whole.len() / 2).unwrap();
    // The writer ends a torn line with a line break.
    let text = format!("{whole}{torn}\n\n{whole}LOG: something else\n{whole}{torn}");
    let understood = summary(&text).understood;
    let expect = Understood {
        records: 3,
        foreign_lines: 2,
        torn_ends: 1,
        ..Understood::default()
    };
    assert_eq!(understood, expect);
    // A complete line without a line break is a record too.
    assert_eq!(summary(whole.trim_end()).understood.records, 1);
    for (text, is_log) in [("LOG: something else\n", false), ("", true), (torn, true)] {
        let read = Report::new(Filter::default()).read(&mut text.as_bytes());
        assert_eq!(read.unwrap(), is_log, "{text}");
    }
}

#[test]
fn the_verdict_says_whether_the_fence_can_be_switched_on() {
    let no_token = json!({});
    let stale = json!({"kind": "stale_token", "sqlstate": "PF001"});
    let refused_stale = json!({"kind": "stale_token", "sqlstate": "PF001", "enforced": true});
    let refused = json!({"enforced": true});
    let dropped = "{\"time\":\"2026-11-21T02:00:00Z\",\"dropped\":5}\n";

    use Readiness::{Incomplete, NotYet, NothingRecorded, On, OnWithWork, Ready};
    let can = "can be switched on";
    let of = |lines: &[&Value]| lines.iter().copied().map(line).collect::<String>();
    check_answer("", NothingRecorded, "observe mode");
    check_answer(&of(&[&stale]), Ready, can);
    check_answer(&of(&[&stale, &refused]), Ready, can);
    check_answer(&of(&[&stale, &no_token]), NotYet, "1 request ");
    check_answer(&of(&[&refused_stale]), On, "only deposed leaders");
    check_answer(&of(&[&refused, &refused]), OnWithWork, "2 requests");
    for before in [String::new(), log(&[stale])] {
        let verdict = check_answer(&format!("{before}{dropped}"), Incomplete, "missing");
        let mut cautions = verdict.cautions.iter();
        assert!(cautions.any(|words| words.starts_with("5 records")));
    }
    let verdict = check_answer(&(log(&[no_token]) + dropped), NotYet, "not yet");
    let [finding] = verdict.findings.as_slice() else {
        panic!("{verdict:#?}");
    };
    assert!(finding.advice.contains("SET fencing.token"));
    let who = &finding.who.first().unwrap().who;
    assert_eq!(who.application.as_deref(), Some("worker"));
}

#[test]
fn every_kind_has_its_advice_and_one_that_is_not_known_is_no_ready() {
    for kind in pgpalisade_fence::rejection::RejectionKind::ALL {
        let text = log(&[json!({"kind": kind.as_str()})]);
        let verdict = summary(&text).verdict;
        let advice = verdict.findings.first().unwrap().advice;
        assert!(!advice.contains("does not know"), "{kind:?}");
    }
    let new = log(&[json!({"kind": "new"})]);
    let verdict = check_answer(&new, Readiness::NotYet, "not yet");
    let advice = verdict.findings.first().unwrap().advice;
    assert!(advice.contains("does not know"), "{advice}");
}

#[test]
fn more_names_than_rows_are_counted_as_others() {
    let lines: Vec<Value> = (0..20).map(|n| json!({"user": format!("u{n}")})).collect();
    let summary = summary(&log(&lines));
    let finding = summary.verdict.findings.first().unwrap();
    let counts = (finding.others.total(), finding.count.total());
    assert_eq!((finding.who.len(), counts), (3, (17, 20)));
}

/// A log with more names than are kept: the verdict must not call the others harmless.
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
    let summary = summary(&text);
    let most = u64::from(u32::MAX);
    assert_eq!(summary.understood.unauthenticated, 9);
    assert_eq!(summary.understood.records, 4_991 + most);
    assert_eq!(summary.total.observed, 4_991 + most);
    let [all] = summary.verdict.findings.as_slice() else {
        panic!("{:#?}", summary.verdict);
    };
    assert_eq!(all.count.observed, 4_991 + most);
    let of_default = Filter {
        scope: Some("default".into()),
        ..Filter::default()
    };
    let understood = report(of_default, &text).understood;
    assert_eq!((understood.records, understood.filtered_out), (4_991, most));
}
