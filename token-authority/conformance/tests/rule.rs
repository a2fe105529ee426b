//! The rule of every step by example, on maps.
//!
//! A step begins with what it does, and a declaration with the session's letter and its claim: `a 5`, `b after:5
//! take:1`. `A` has the process id of `a`. A rank is `incarnation.token`, a cluster `timeline.start`. Answers list
//! sessions with their tokens: `a1`.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use pgpalisade_authority::rule::Records as _;
use pgpalisade_authority::{
    Backend, Claim, Cluster, Declaration, Declared, Drained, Enrolled, IfStale, Incarnation, Mark,
    Rank, Registered, Repair, RepairRequest, Repaired, Scope, TakeId, Token,
};
use pgpalisade_conformance::MemoryStore;

fn backend(letter: &str) -> Backend {
    let byte = letter.bytes().next().unwrap();
    Backend {
        pid: byte.to_ascii_lowercase().into(),
        started_us: byte.is_ascii_uppercase().into(),
    }
}

fn sessions(all: Vec<Registered>) -> String {
    let letter = |of: Backend| match (u8::try_from(of.pid).map(char::from), of.started_us) {
        (Ok(letter @ 'a'..='z'), 0) => letter,
        (letter, _) => letter.unwrap_or('?').to_ascii_uppercase(),
    };
    let all = all.into_iter();
    all.map(|session| format!(" {}{}", letter(session.backend), session.token))
        .collect()
}

fn rank(text: &str) -> Rank {
    let (incarnation, token) = text.split_once('.').unwrap();
    Rank {
        incarnation: Incarnation::new(incarnation.parse().unwrap()),
        token: Token::new(token.parse().unwrap()).unwrap(),
    }
}

fn shown(mark: Option<&Mark>) -> String {
    let rank = mark.map(Mark::rank);
    rank.map_or("none".to_owned(), |r| {
        format!("{}.{}", r.incarnation, r.token)
    })
}

fn cluster(text: &str) -> Cluster {
    let (timeline, start) = text.split_once('.').unwrap();
    let start: i64 = start.parse().unwrap();
    Cluster {
        // A start below zero is another cluster.
        system_identifier: u64::from(start < 0),
        timeline: timeline.parse().unwrap(),
        postmaster_us: start,
    }
}

fn scope(text: &str) -> Scope {
    Scope::new(text).unwrap()
}

fn declare(store: &mut MemoryStore, session: &str, rest: &[&str]) -> String {
    let mut scope = scope("s");
    let recorded = store.cluster().unwrap().unwrap();
    let claim: Claim = rest.first().unwrap().parse().unwrap();
    let mut asked = Declaration::new(&scope, claim, backend(session), recorded, "test");
    for option in rest.iter().skip(1) {
        let (name, value) = option.split_once(':').unwrap();
        match name {
            "take" => asked.take = Some(TakeId::new(asked.backend, value.parse().unwrap())),
            "max_step" => asked.max_step = Some(value.parse().unwrap()),
            "max_token" => asked.max_token = Some(value.parse().unwrap()),
            "observed" => asked.if_stale = IfStale::Register,
            "on" => asked.cluster = cluster(value),
            _ => scope = Scope::new(value).unwrap(),
        }
    }
    asked.scope = scope;
    match store.declare(&asked, 0).unwrap() {
        Declared::Accepted {
            mark,
            outcome,
            lower,
        } => {
            format!("{outcome:?} {}{}", shown(Some(&mark)), sessions(lower))
        }
        Declared::Stale { mark } => format!("Stale {}", shown(Some(&mark))),
        Declared::TooFar { mark } => format!("TooFar {}", shown(Some(&mark))),
        Declared::MarkIsLower { mark } => format!("MarkIsLower {}", shown(mark.as_ref())),
        Declared::OtherCluster { .. } => "OtherCluster".to_owned(),
        Declared::NotElected { .. } => "NotElected".to_owned(),
    }
}

fn repair(store: &mut MemoryStore, expected: Rank, to: &str, on: Option<&&str>) -> String {
    let to = Token::new(to.parse().unwrap()).unwrap();
    let recorded = store.cluster().unwrap().unwrap();
    let request = RepairRequest {
        scope: scope("s"),
        expected,
        cluster: on.map_or(recorded, |on| cluster(on)),
        repair: Repair::new(1, "alice", "a typing error", expected.token, to),
    };
    match store.repair(&request).unwrap() {
        Repaired::Done { mark, lower } => format!("Done {}{}", shown(Some(&mark)), sessions(lower)),
        Repaired::Changed { mark } => format!("Changed {}", shown(mark.as_ref())),
        Repaired::OtherCluster { .. } => "OtherCluster".to_owned(),
    }
}

fn step(store: &mut MemoryStore, text: &str) -> String {
    let words: Vec<&str> = text.split(' ').collect();
    let (what, rest) = words.split_first().unwrap();
    let backends = |names: &[&str]| names.iter().map(|name| backend(name)).collect::<Vec<_>>();
    let enrolled = |answer| match answer {
        Enrolled::Accepted => "Accepted".to_owned(),
        Enrolled::Refused { .. } => "Refused".to_owned(),
    };
    match (*what, rest) {
        ("drained", [at, gone @ ..]) => {
            match store
                .drained(&scope("s"), rank(at), &backends(gone))
                .unwrap()
            {
                Drained::Complete => "Complete".to_owned(),
                Drained::Left(left) => format!("Left{}", sessions(left)),
            }
        }
        ("forget", gone) => {
            store.forget(&backends(gone)).unwrap();
            format!("now{}", sessions(store.sessions_of(&scope("s")).unwrap()))
        }
        ("repair", [expected, to, on @ ..]) => repair(store, rank(expected), to, on.first()),
        ("enrol", [to]) => enrolled(store.enrol(cluster(to)).unwrap()),
        ("recover", [seen, to, marks @ ..]) => {
            let marks = marks.iter().map(|mark| {
                let Rank { incarnation, token } = rank(mark);
                let mark = Mark::new(token, 0, String::new());
                (
                    scope("s"),
                    Mark {
                        incarnation,
                        ..mark
                    },
                )
            });
            let marks: Vec<_> = marks.collect();
            enrolled(
                store
                    .recover(Some(cluster(seen)), cluster(to), &marks)
                    .unwrap(),
            )
        }
        ("mark", _) => shown(
            store
                .mark_row(&scope("s"))
                .unwrap()
                .map(|row| row.mark)
                .as_ref(),
        ),
        (session, rest) => declare(store, session, rest),
    }
}

/// Takes the steps in a new store, where cluster `3.1` is on record.
#[track_caller]
fn check(steps: &[(&str, &str)]) {
    let mut store = MemoryStore::default();
    store.enrol(cluster("3.1")).unwrap();
    let top = |text: &str| text.replace("MAX", &Token::MAX.to_string());
    for (text, answer) in steps {
        let found = step(&mut store, &top(text));
        assert_eq!(found, top(answer), "{text}, of {steps:#?}");
    }
}

#[test]
fn marks_rise_and_lower_sessions_are_listed_until_drained() {
    check(&[
        ("mark", "none"),
        ("drained 0.7", "Complete"),
        ("mark", "none"),
        ("a 1", "Raised 0.1"),
        ("b 2", "Raised 0.2 a1"),
        ("c 3", "Raised 0.3 a1 b2"),
        ("d 3", "Current 0.3 a1 b2"),
        ("d 2", "Stale 0.3"),
        ("e 2", "Stale 0.3"),
        ("drained 0.2 a", "Complete"),
        ("drained 0.9", "Left b2 c3 d3"),
        ("d 3", "Current 0.3 b2"),
        ("drained 0.3 B c", "Left b2"),
        ("drained 0.3 b", "Complete"),
        ("d 3", "Current 0.3"),
        ("c 4", "Raised 0.4 d3"),
        ("d 4", "Current 0.4"),
        ("a 1 in:s/x", "Raised 0.1"),
        ("mark", "0.4"),
    ]);
}

#[test]
fn ended_sessions_are_removed_and_no_others() {
    check(&[
        ("a 1", "Raised 0.1"),
        ("b 1", "Current 0.1"),
        ("a 1 in:s/x", "Raised 0.1"),
        ("forget a", "now b1"),
        ("b 2 in:s/x", "Raised 0.2"),
        ("A 1", "Current 0.1"),
        ("forget a z", "now A1 b1"),
        ("c 2", "Raised 0.2 A1 b1"),
        ("drained 0.2 a", "Left A1 b1"),
        ("drained 0.2 A b", "Complete"),
    ]);
}

#[test]
fn observed_sessions_are_registered_below_the_mark() {
    check(&[
        ("a 5", "Raised 0.5"),
        ("b 5", "Current 0.5"),
        ("drained 0.5", "Complete"),
        ("c 3 observed:", "Stale 0.5"),
        ("c 4 observed:", "Stale 0.5"),
        ("c 2 observed:", "Stale 0.5"),
        ("b 4 observed:", "Stale 0.5"),
        ("d after:4 observed:", "Stale 0.5"),
        ("a 5", "Current 0.5 c4"),
        ("e 4", "Stale 0.5"),
        ("drained 0.5 c", "Complete"),
        ("e 6", "Raised 0.6 a5 b5"),
    ]);
}

#[test]
fn takes_follow_the_mark_and_are_recognized() {
    check(&[
        ("a after:7 take:0", "MarkIsLower none"),
        ("a after:0 take:1", "Raised 0.1"),
        ("a after:0 take:1", "Current 0.1"),
        ("a after:0 take:2", "Stale 0.1"),
        ("b after:0 take:1", "Stale 0.1"),
        ("a after:0", "Stale 0.1"),
        ("b after:2 take:1", "MarkIsLower 0.1"),
        ("b after:1 take:1", "Raised 0.2 a1"),
        ("b next take:1", "Current 0.2 a1"),
        ("b after:2 take:1", "Raised 0.3 a1"),
        ("a next take:2", "Raised 0.4 b3"),
        ("b 5", "Raised 0.5 a4"),
        ("a after:3 take:2", "Stale 0.5"),
        // A number raised the mark since, which no take did.
        ("a next take:2", "Raised 0.6 b5"),
    ]);
}

#[test]
fn steps_are_bounded() {
    check(&[
        ("a 1000 max_step:10 max_token:9", "Raised 0.1000"),
        ("b 1011 max_step:10", "TooFar 0.1000"),
        ("b 1010 max_step:10 max_token:9", "Raised 0.1010 a1000"),
        ("b 1010 max_step:0", "Current 0.1010 a1000"),
        ("b after:1010 max_step:0", "TooFar 0.1010"),
        ("b next max_token:1010", "TooFar 0.1010"),
        ("b next max_token:1011 max_step:1", "Raised 0.1011 a1000"),
        ("b MAX max_step:18446744073709551615", "Raised 0.MAX a1000"),
        ("b next", "TooFar 0.MAX"),
    ]);
}

#[test]
fn repairs_begin_an_incarnation() {
    check(&[
        ("repair 0.9 5", "Changed none"),
        ("mark", "none"),
        ("a 8", "Raised 0.8"),
        ("b 9", "Raised 0.9 a8"),
        ("repair 0.8 5", "Changed 0.9"),
        ("repair 1.9 5", "Changed 0.9"),
        ("repair 0.9 5 4.1", "OtherCluster"),
        ("repair 0.9 5", "Done 1.5 a8 b9"),
        ("a 4", "Stale 1.5"),
        ("drained 0.9", "Left a8"),
        ("b 5", "Current 1.5 a8"),
        ("repair 0.9 5", "Done 1.5 a8"),
        ("drained 1.5 a", "Complete"),
        ("c 6", "Raised 1.6 b5"),
        ("repair 0.9 5", "Changed 1.6"),
        ("repair 1.6 100", "Done 2.100 b5 c6"),
        ("repair 2.100 1", "Done 3.1 b5 c6"),
        ("drained 3.1 b c", "Complete"),
        ("a 1", "Current 3.1"),
    ]);
}

#[test]
fn one_cluster_is_on_record() {
    check(&[
        ("enrol 3.1", "Accepted"),
        ("enrol 2.9", "Refused"),
        ("enrol 9.-1", "Refused"),
        ("a 1 on:2.1", "OtherCluster"),
        ("a 1 on:4.1", "OtherCluster"),
        ("a 1 on:3.-1", "OtherCluster"),
        ("mark", "none"),
        ("enrol 3.10", "Accepted"),
        ("enrol 3.1", "Refused"),
        ("a 1 on:3.1", "OtherCluster"),
        ("enrol 3.20", "Accepted"),
        ("enrol 4.2", "Accepted"),
        ("enrol 3.20", "Refused"),
        ("a 1 on:4.2", "Raised 0.1"),
        ("recover 3.1 3.1", "Refused"),
        ("recover 4.2 3.1", "Accepted"),
        ("recover 4.2 3.1", "Accepted"),
        ("a 1", "Current 0.1"),
    ]);
}

#[test]
fn recovery_lets_no_mark_fall() {
    check(&[
        ("a 5", "Raised 0.5"),
        ("drained 0.5", "Complete"),
        ("recover 3.1 3.1 0.2", "Accepted"),
        ("mark", "0.5"),
        ("recover 9.9 4.1 0.9", "Refused"),
        ("mark", "0.5"),
        ("recover 3.1 3.1 0.9", "Accepted"),
        ("b 9", "Current 0.9 a5"),
        ("recover 3.1 3.1 0.4 1.3 0.99", "Accepted"),
        ("mark", "1.3"),
        ("b 3", "Current 1.3 a5"),
    ]);
}
