//! Synthetic histories: a good one, and one for each kind of violation.

use crate::proof::history::{Answer, BESIDE, Event, Exemption, FaultKind, Row, Tally, Target};

use super::{Rule, check};

const MS: u64 = 1_000_000;

fn row(id: u64, token: u64) -> Row {
    Row {
        id,
        scope: "alpha".to_owned(),
        token,
    }
}

fn snapshot(id: u64, seen: &[u64]) -> Event {
    let (at, seen) = (75 * MS, tally(seen));
    Event::Snapshot { id, at, seen }
}

fn position(id: u64, lsn: u64) -> Event {
    let timeline = None;
    Event::Position { id, lsn, timeline }
}

fn tally(ids: &[u64]) -> Tally {
    let mut tally = Tally::default();
    ids.iter().for_each(|id| tally.add(*id));
    tally
}

fn leader(leader: u32, token: u64) -> Event {
    Event::Leader {
        leader,
        scope: "alpha".to_owned(),
        token,
    }
}

fn declare(at: u64, id: u64, leader: u32) -> Event {
    Event::Declare {
        at: at * MS,
        id,
        leader,
        proxy: 0,
        pid: None,
    }
}

fn declared(at: u64, id: u64, answer: Answer) -> Event {
    Event::Declared {
        at: at * MS,
        id,
        answer,
    }
}

fn write(at: u64, id: u64, leader: u32, rows: &[u64]) -> Event {
    Event::Write {
        at: at * MS,
        id,
        leader,
        shape: "autocommit".to_owned(),
        rows: rows.to_vec(),
    }
}

fn written(at: u64, id: u64, answer: Answer) -> Event {
    Event::Written {
        at: at * MS,
        id,
        answer,
    }
}

fn commit(lsn: u64, rows: &[Row]) -> Event {
    Event::Commit {
        lsn,
        rows: rows.to_vec(),
    }
}

fn error(code: &str) -> Answer {
    Answer::Error(code.to_owned())
}

/// Leader 1 with token 1 writes, leader 2 with token 2 takes over and writes, leader 1 is refused. The writers of the
/// shared row are 8 and 9.
fn good() -> Vec<Event> {
    let append = |writer, number| Event::Append { writer, number };
    let appended = |writer, number, answer| Event::Appended {
        writer,
        number,
        answer,
    };
    vec![
        Event::Run {
            seed: 1,
            route: "made up".to_owned(),
            takeover_timeout_ms: 2_000,
            slack_ms: 1_000,
            shares: false,
            pooled: false,
        },
        leader(1, 1),
        leader(2, 2),
        declare(10, 100, 1),
        declared(20, 100, Answer::Ok),
        position(100, 1_000),
        snapshot(100, &[]),
        write(30, 101, 1, &[11, 12]),
        written(40, 101, Answer::Ok),
        commit(1_100, &[row(11, 1), row(12, 1)]),
        // Its answer was lost.
        write(50, 102, 1, &[13]),
        commit(1_200, &[row(13, 1)]),
        declare(60, 200, 2),
        declared(70, 200, Answer::Ok),
        position(200, 2_000),
        snapshot(200, &[11, 12, 13]),
        write(80, 103, 1, &[14]),
        written(90, 103, error("PF001")),
        declare(95, 104, 1),
        declared(96, 104, error("PF001")),
        write(80, 201, 2, &[21]),
        written(90, 201, Answer::Ok),
        commit(2_100, &[row(21, 2)]),
        Event::Table {
            rows: tally(&[11, 12, 13, 21]),
        },
        append(8, 1),
        appended(8, 1, Answer::Ok),
        append(9, 1),
        appended(9, 1, Answer::Ok),
        append(8, 2),
        appended(8, 2, Answer::Lost),
        append(8, 2),
        appended(8, 2, Answer::Ok),
        Event::SharedRow {
            entries: vec![(8, 1), (9, 1), (8, 2)],
        },
    ]
}

/// From 300 ms to 400 ms, and from position 3,000 to 4,000.
fn exempt() -> Event {
    Event::Exempt {
        scope: "alpha".to_owned(),
        why: Exemption::Observed,
        begin: 300 * MS,
        end: 400 * MS,
        first: 3_000,
        last: 4_000,
    }
}

/// Each once.
fn violated(events: &[Event]) -> Vec<Rule> {
    let mut rules: Vec<Rule> = check(events)
        .violations
        .into_iter()
        .map(|violation| violation.rule)
        .collect();
    rules.sort_unstable();
    rules.dedup();
    rules
}

/// The good history, with each event replaced for which `change` returns another.
fn with(change: impl Fn(&Event) -> Option<Event>) -> Vec<Event> {
    let mut changed = 0;
    let events = good()
        .into_iter()
        .map(|event| match change(&event) {
            Some(other) => {
                changed += 1;
                other
            }
            None => event,
        })
        .collect();
    assert!(changed > 0, "nothing was planted");
    events
}

fn plus(more: impl IntoIterator<Item = Event>) -> Vec<Event> {
    good().into_iter().chain(more).collect()
}

/// A committed row that every event knows, so that only its position is wrong.
fn committed_row(id: u64, token: u64, lsn: u64, everything: &[u64]) -> Vec<Event> {
    let leader = u32::try_from(token).expect("a small token");
    let mut events = with(|event| {
        matches!(event, Event::Table { .. }).then(|| Event::Table {
            rows: tally(everything),
        })
    });
    events.push(write(85, 900, leader, &[id]));
    events.push(commit(lsn, &[row(id, token)]));
    events
}

#[test]
fn a_good_history() {
    let report = check(&good());
    assert_eq!(report.violations, [], "{report}");
    let counts = &report.counts;
    assert_eq!(
        (counts.declarations, counts.acknowledged, counts.takeovers),
        (3, 2, 2)
    );
    assert_eq!((counts.writes, counts.confirmed), (4, 2));
    assert_eq!((counts.refused, counts.unknown, counts.commits), (1, 1, 3));
    assert_eq!(counts.answers["PF001"], 2);
    let mut reversed = good();
    reversed.reverse();
    assert_eq!(
        check(&reversed),
        report,
        "the order of files does not matter"
    );
}

#[test]
fn a_commit_behind_the_acknowledgement() {
    let events = committed_row(15, 1, 2_001, &[11, 12, 13, 15, 21]);
    assert_eq!(violated(&events), [Rule::G1, Rule::G2]);
    // The snapshot contains it: it was committed between the answer and the snapshot.
    let events: Vec<Event> = events
        .into_iter()
        .map(|event| match event {
            Event::Snapshot { id: 200, .. } => snapshot(200, &[11, 12, 13, 15]),
            other => other,
        })
        .collect();
    assert_eq!(violated(&events), [Rule::G1]);
}

#[test]
fn a_commit_in_front_of_the_acknowledgement_is_none() {
    let mut events = committed_row(15, 1, 2_000, &[11, 12, 13, 15, 21]);
    events.push(snapshot(200, &[11, 12, 13, 15]));
    assert_eq!(violated(&events), []);
}

#[test]
fn a_commit_of_a_lower_token_in_another_scope_is_none() {
    let mut events = good();
    events.retain(|event| !matches!(event, Event::Table { .. }));
    let scope = "beta".to_owned();
    events.push(Event::Leader {
        leader: 3,
        scope: scope.clone(),
        token: 1,
    });
    events.push(write(85, 900, 3, &[31]));
    events.push(commit(
        3_000,
        &[Row {
            id: 31,
            scope,
            token: 1,
        }],
    ));
    assert_eq!(violated(&events), []);
}

#[test]
fn a_snapshot_that_lacks_a_row_or_has_one_too_many() {
    for seen in [&[11, 12][..], &[11, 12, 13, 16], &[11, 12, 16]] {
        let events = with(|event| {
            matches!(event, Event::Snapshot { id: 200, .. }).then(|| snapshot(200, seen))
        });
        assert_eq!(violated(&events), [Rule::G2], "{seen:?}");
    }
}

#[test]
fn a_lower_token_that_is_accepted_later() {
    let events = plus([declare(200, 105, 1), declared(210, 105, Answer::Ok)]);
    assert_eq!(violated(&events), [Rule::G3]);
    // Another store has its own marks.
    let beside = with(|event| match event.clone() {
        Event::Declare {
            at,
            id,
            leader: 2,
            pid,
            ..
        } => Some(Event::Declare {
            at,
            id,
            leader: 2,
            proxy: BESIDE,
            pid,
        }),
        _ => None,
    });
    let later = [declare(200, 105, 1), declared(210, 105, Answer::Ok)];
    assert_eq!(violated(&[beside, later.to_vec()].concat()), []);
    // It overlaps the takeover: either order is possible.
    let events = plus([declare(65, 105, 1), declared(75, 105, Answer::Ok)]);
    assert_eq!(violated(&events), []);
}

#[test]
fn a_refused_write_that_is_there() {
    for code in ["PF001", "PF006"] {
        let events = with(|event| {
            matches!(event, Event::Written { id: 101, .. }).then(|| written(65, 101, error(code)))
        });
        assert!(violated(&events).contains(&Rule::G4), "{code}");
    }
    let events = with(|event| {
        matches!(event, Event::Written { id: 101, .. }).then(|| written(65, 101, error("08007")))
    });
    assert_eq!(violated(&events), [], "unknown may be there");
}

#[test]
fn half_of_a_refused_transaction() {
    let events = plus([
        write(61, 106, 1, &[17, 18]),
        written(75, 106, error("PF001")),
        commit(1_900, &[row(18, 1)]),
        Event::Table {
            rows: tally(&[11, 12, 13, 18, 21]),
        },
        snapshot(200, &[11, 12, 13, 18]),
    ]);
    assert_eq!(violated(&events), [Rule::G4]);
}

#[test]
fn a_confirmed_write_that_is_not_there() {
    let events = plus([write(85, 202, 2, &[22]), written(90, 202, Answer::Ok)]);
    assert_eq!(violated(&events), [Rule::G4]);
    let events = plus([write(85, 202, 2, &[22]), written(90, 202, Answer::Lost)]);
    assert_eq!(violated(&events), [], "unknown may be absent");
}

#[test]
fn the_holder_is_refused() {
    let refused = |code| plus([write(85, 202, 2, &[22]), written(90, 202, error(code))]);
    assert_eq!(violated(&refused("PF001")), [Rule::G5]);
    assert_eq!(violated(&refused("PF002")), [Rule::G5]);
    assert_eq!(violated(&refused("25006")), [Rule::G5]);
    assert_eq!(violated(&refused("40001")), []);
    let declaration = plus([declare(85, 202, 2), declared(90, 202, error("PF001"))]);
    assert_eq!(violated(&declaration), [Rule::G5]);
}

#[test]
fn an_attempt_may_raise_the_mark_and_an_attempt_that_comes_later_did_not() {
    let refused = |begun| {
        let attempt = [
            leader(3, 3),
            declare(begun, 300, 3),
            declared(99, 300, error("PF006")),
        ];
        let events = plus([write(85, 202, 2, &[22]), written(90, 202, error("PF001"))]);
        violated(&[events, attempt.to_vec()].concat())
    };
    assert_eq!(refused(89), []);
    assert_eq!(refused(91), [Rule::G5]);
}

#[test]
fn a_declaration_that_takes_too_long() {
    let slow = |answer: Answer| vec![declare(1_000, 202, 2), declared(4_001, 202, answer)];
    assert_eq!(violated(&plus(slow(Answer::Ok))), [Rule::G6]);
    assert_eq!(violated(&plus(slow(error("PF006")))), [Rule::G6]);
    assert_eq!(violated(&plus(slow(Answer::Silent))), [Rule::G6]);
    let in_time = [declare(1_000, 202, 2), declared(4_000, 202, Answer::Ok)];
    assert_eq!(violated(&plus(in_time)), []);
    // Without an answer the client was killed.
    assert_eq!(violated(&plus([declare(1_000, 202, 2)])), []);
}

#[test]
fn only_what_stands_in_the_way_excuses() {
    let with_fault = |target, begin, end| {
        let fault = Event::Fault {
            kind: FaultKind::Pause,
            target,
            begin: begin * MS,
            end: end * MS,
        };
        let slow = [declare(3_000, 202, 2), declared(7_000, 202, Answer::Ok)];
        violated(&plus(slow.into_iter().chain([fault])))
    };
    for target in [
        Target::Proxy(0),
        Target::Leader(2),
        Target::ClientLink(0),
        Target::UpstreamLink(0),
        Target::Backend(77),
    ] {
        assert_eq!(with_fault(target, 3_500, 4_200), [], "{target:?}");
        assert_eq!(with_fault(target, 2_500, 3_700), [], "{target:?}");
        // It took 4 s and may take 3 s; a fault counts for 0.3 s more than it lasts.
        assert_eq!(with_fault(target, 1_000, 3_699), [Rule::G6], "{target:?}");
        assert_eq!(with_fault(target, 6_001, 9_000), [Rule::G6], "{target:?}");
        assert_eq!(with_fault(target, 7_001, 7_002), [Rule::G6], "{target:?}");
    }
    for target in [
        Target::Proxy(1),
        Target::Leader(1),
        Target::StoreLink(0),
        Target::ControlLink(0),
        Target::Member(0),
        Target::Postgres,
    ] {
        assert_eq!(with_fault(target, 3_500, 4_000), [Rule::G6], "{target:?}");
    }
}

#[test]
fn a_declaration_that_fails_in_its_own_way() {
    let fails = |code| violated(&plus([declare(85, 202, 2), declared(90, 202, error(code))]));
    for code in ["PF002", "PF003", "XX000", "58000"] {
        assert_eq!(fails(code), [Rule::G6], "{code}");
    }
    for code in ["PF004", "PF006", "08006", "57P03"] {
        assert_eq!(fails(code), [], "{code}");
    }
    // A server is replaced or restarted, or PF007 has no reason.
    let deposed = |target, begin, end| {
        let fault = Event::Fault {
            kind: FaultKind::Kill,
            target,
            begin: begin * MS,
            end: end * MS,
        };
        let declaration = [declare(85, 202, 2), declared(90, 202, error("PF007"))];
        let refused = [write(85, 203, 2, &[22]), written(90, 203, error("PF007"))];
        let events = declaration.into_iter().chain(refused);
        violated(&plus(events.chain([fault])))
    };
    assert_eq!(deposed(Target::Postgres, 80, 89), []);
    assert_eq!(deposed(Target::Postgres, 91, 95), [Rule::G5, Rule::G6]);
    assert_eq!(deposed(Target::Proxy(0), 80, 89), [Rule::G5, Rule::G6]);
}

#[test]
fn the_shared_row() {
    let shared = |entries: &[(u32, u64)]| {
        let entries = entries.to_vec();
        let row = Event::SharedRow { entries };
        violated(&with(|event| {
            matches!(event, Event::SharedRow { .. }).then(|| row.clone())
        }))
    };
    assert_eq!(shared(&[(9, 1), (8, 1), (8, 2)]), []);
    assert_eq!(shared(&[(8, 1), (8, 2)]), [Rule::Row], "all of 9 is lost");
    assert_eq!(shared(&[(8, 1), (9, 1)]), [Rule::Row], "the last is lost");
    assert_eq!(shared(&[(9, 1), (8, 2)]), [Rule::Row], "a gap");
    let found = shared(&[(9, 1), (8, 2), (8, 1)]);
    assert_eq!(found, [Rule::Row], "a late write");
    let seen = shared(&[(8, 1), (8, 1), (9, 1), (8, 2)]);
    assert_eq!(seen, [Rule::Row], "twice");
    assert_eq!(shared(&[(8, 1), (9, 1), (8, 2), (8, 3)]), [Rule::History]);
}

#[test]
fn a_history_that_contradicts_itself() {
    let table = with(|event| {
        matches!(event, Event::Table { .. }).then(|| Event::Table {
            rows: tally(&[11, 12, 13]),
        })
    });
    let nobody = plus([commit(3_000, &[row(99, 2)])]);
    let twice = plus([commit(3_000, &[row(21, 2)])]);
    let other = plus([write(85, 202, 1, &[22]), commit(3_000, &[row(22, 2)])]);
    let unasked = plus([declared(85, 202, Answer::Ok)]);
    let unknown = plus([declare(85, 202, 7)]);
    let without_a_head = good().split_off(1);
    for events in [
        table,
        nobody,
        twice,
        other,
        unasked,
        unknown,
        without_a_head,
    ] {
        assert!(violated(&events).contains(&Rule::History), "{events:?}");
    }
}

/// The good history with a late row of leader 1 at this position.
fn with_a_late_row(lsn: u64) -> Vec<Event> {
    let mut events: Vec<Event> = good()
        .into_iter()
        .filter(|event| !matches!(event, Event::Table { .. }))
        .collect();
    events.extend([
        exempt(),
        write(290, 105, 1, &[15]),
        commit(lsn, &[row(15, 1)]),
    ]);
    events
}

#[test]
fn what_was_exempt_counts_for_nothing() {
    for allowed in [3_001, 4_000, 4_500] {
        assert_eq!(violated(&with_a_late_row(allowed)), [], "{allowed}");
    }
    assert_eq!(violated(&with_a_late_row(2_900)), [Rule::G1, Rule::G2]);
    // The new holder then declares again.
    let again = |at| {
        let mut events = with_a_late_row(4_500);
        let lsn = 4_200;
        events.extend([
            declare(at, 202, 2),
            declared(at + 10, 202, Answer::Ok),
            position(202, lsn),
        ]);
        violated(&events)
    };
    assert_eq!(again(410), [Rule::G1]);
    assert_eq!(again(395), []);
}

/// The new holder has seen a row that a failover has lost.
#[test]
fn what_was_seen_on_a_lost_timeline_counts_for_nothing() {
    let seen = |lsn, timelines: &[(u32, u64)]| {
        let mut events = with(|event| match event {
            Event::Position { id: 200, .. } => Some(Event::Position {
                id: 200,
                lsn,
                timeline: Some(1),
            }),
            Event::Snapshot { id: 200, at, .. } => Some(Event::Snapshot {
                id: 200,
                at: *at,
                seen: tally(&[11, 12, 13, 19]),
            }),
            _ => None,
        });
        let timelines = timelines.to_vec();
        events.push(Event::Survived { timelines });
        violated(&events)
    };
    assert_eq!(seen(2_000, &[(1, 1_999), (2, u64::MAX)]), []);
    assert_eq!(seen(2_000, &[(2, u64::MAX)]), []);
    assert_eq!(seen(2_000, &[(1, 2_000), (2, u64::MAX)]), [Rule::G2]);
    let found = seen(1_150, &[(1, 2_000), (2, u64::MAX)]);
    assert_eq!(found, [Rule::G1, Rule::G2]);
}

/// Takes 1 to 3 in a separate scope; the answer to the second was lost, and the last was refused.
fn takes() -> Vec<Event> {
    let take = |at, id, after| Event::Take {
        id,
        at: at * MS,
        scope: "taken".to_owned(),
        after,
    };
    let taken = |id, token| Event::Taken { id, token };
    let mut events = good();
    events.extend([
        take(10, 500, Some(0)),
        taken(500, Some(1)),
        take(20, 501, None),
        take(30, 502, Some(2)),
        taken(502, Some(3)),
        take(40, 503, Some(2)),
        taken(503, None),
    ]);
    events
}

#[test]
fn takes_that_share_a_token_or_follow_another_mark() {
    assert_eq!(violated(&takes()), []);
    for (id, token, found) in [
        (501, Some(1), 1),
        (501, Some(3), 1),
        (501, Some(2), 0),
        (503, Some(4), 1),
        (503, Some(3), 1),
    ] {
        let mut events = takes();
        events.push(Event::Taken { id, token });
        assert_eq!(check(&events).of(Rule::Take), found, "{id} {token:?}");
    }
}

#[test]
fn a_refusal_for_a_take_that_had_no_answer() {
    let mut events = takes();
    events.push(Event::Leader {
        leader: 5,
        scope: "taken".to_owned(),
        token: 1,
    });
    events.push(declare(10, 500, 5));
    events.push(declared(12, 500, Answer::Ok));
    events.push(declare(24, 510, 5));
    events.push(declared(25, 510, error("PF001")));
    assert_eq!(violated(&events), []);
    // No refusal before the attempt can be due to it.
    events.pop();
    events.push(declared(19, 510, error("PF001")));
    assert_eq!(violated(&events), [Rule::G5]);
}

#[test]
fn a_connection_outlives_its_term() {
    // Token 2 is given at 70 ms.
    let open = |id, at| Event::Open { id, at: at * MS };
    assert_eq!(violated(&plus([open(100, 69), open(200, 90)])), []);
    assert_eq!(violated(&plus([open(100, 71)])), [Rule::Term]);
    assert_eq!(violated(&plus([open(999, 71)])), [Rule::History]);
    let lost = Event::Fault {
        kind: FaultKind::LeadLost,
        target: Target::Election,
        begin: 50 * MS,
        end: 55 * MS,
    };
    assert_eq!(violated(&plus([open(100, 71), lost.clone()])), []);
    assert_eq!(violated(&plus([open(100, 12_056), lost])), [Rule::Term]);
    let mut events = plus([open(100, 71)]);
    events.push(Event::Exempt {
        scope: "alpha".to_owned(),
        why: Exemption::TwoAuthorities,
        begin: 65 * MS,
        end: 66 * MS,
        first: 1_500,
        last: 1_600,
    });
    assert_eq!(violated(&events), []);
}
