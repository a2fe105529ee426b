//! Walks over a client's text take time in proportion to its length. Each thing that a worker does with a text, or with
//! its replies, is timed for every list of the grammar: on a text and on one 16 times as long.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use pgpalisade_policies::scan::needs_parse;
use pgpalisade_policies::{Analysis, Control, TextEncoding, VerdictCache, classify, weigh};

use rustix::time::{ClockId, clock_gettime};

use super::super::in_flight::{InFlight, Request};
use super::super::judgement::Judged;
use super::super::name_change::NameChange;
use super::frames::strings;
use super::subject::{Holds, Subject};
use crate::fence::{Leave, Name, PreparedText};
use crate::wire::header::Header;

const UTF8: TextEncoding = TextEncoding::Utf8;

/// Message of a text; only the text matters.
const MESSAGE: Header = Header {
    tag: b'Q',
    body_len: 9,
};

/// Factor between the lengths of the two texts.
const LONGER: usize = 16;

/// Factor that is allowed for the time. It is midway between linear (16) and quadratic (256): a tree that no longer
/// fits into the caches costs twice as much for each part, and more where other tests use them, too.
const GROWTH_MAX: f64 = 64.0;

/// Parts of the shorter text.
const PARTS: usize = 250;

/// Shorter times are not significant.
const NOISE: Duration = Duration::from_micros(100);

/// Number of runs, of which the fastest counts, because other work runs on the machine.
const ROUNDS_MAX: usize = 40;

/// Rows of statements, or of parts of one: beginning, repeated part, separator and end, with `#` for a different number
/// in each part.
const ROWS: [&str; 74] = [
    "SELECT ¦1¦,¦",
    "SELECT ¦a#¦, ¦ FROM t",
    "SELECT ¦a#.b¦, ¦ FROM t",
    "SELECT ¦a#::s.t#¦, ¦",
    "SELECT ¦CAST(a AS int)¦, ¦",
    "SELECT 1¦::int¦¦",
    "SELECT 1 WHERE a IN (¦#¦, ¦)",
    "SELECT 1 WHERE a NOT IN (¦'#'¦, ¦)",
    "¦SELECT #¦ UNION ¦",
    "¦(SELECT #¦ UNION ALL ¦)",
    "SELECT ¦(¦¦1",
    "SELECT ¦(1)¦, ¦",
    "WITH ¦c# AS (SELECT * FROM c)¦, ¦ SELECT * FROM c",
    "WITH RECURSIVE ¦c# AS (SELECT * FROM c#, c1)¦, ¦ TABLE c1",
    "WITH ¦c# AS (DELETE FROM t# RETURNING *)¦, ¦ TABLE c1",
    "¦WITH c# AS (¦¦SELECT 1",
    "SELECT ¦set_config('a.b#', 'c', true)¦, ¦",
    "SELECT ¦set_config('fencing.token', '5', false)¦, ¦",
    "SELECT ¦set_config(¦¦'a', 'b', true)",
    "SELECT ¦nextval('s#')¦, ¦",
    "SELECT ¦f#()¦, ¦",
    "SELECT ¦f(¦¦1)",
    "SELECT 1 FROM ¦t#¦, ¦",
    "SELECT 1 FROM ¦s#.t AS a#¦, ¦",
    "SELECT 1 FROM t¦ JOIN t# ON true¦¦",
    "SELECT 1 FROM ¦(SELECT 1 FROM t#) a#¦, ¦",
    "SELECT 1 FROM ¦(SELECT 1 FROM ¦¦t",
    "SELECT 1 FROM t1, t2 FOR UPDATE OF ¦t#¦, ¦",
    "SELECT 1 FROM t¦ FOR SHARE OF t¦¦",
    "SELECT ¦(SELECT 1)¦, ¦",
    "SELECT ARRAY[¦#¦, ¦]",
    "SELECT ¦ARRAY[¦¦1",
    "SELECT '{¦#¦,¦}'::int[]",
    "SELECT $a$¦$b$ $¦ ¦$a$",
    "SELECT ¦$a#$x$a#$¦, ¦",
    "SELECT 1 ¦/* # */¦ ¦",
    "SELECT 1 ¦/* ¦¦",
    "SELECT 1 ¦-- #¦\n¦",
    "SELECT ¦'#'¦\n¦",
    "SELECT ¦'#'¦ || ¦",
    "SELECT ¦E'\\x41#'¦, ¦",
    "SELECT ¦U&'\\0041#'¦, ¦",
    "SELECT CASE ¦WHEN a = # THEN b¦ ¦ END",
    "SELECT ¦CASE WHEN a THEN ¦¦1",
    "SELECT 1 WHERE ¦a#¦ AND ¦",
    "SELECT 1 WHERE ¦a#¦ OR ¦",
    "SELECT 1 WHERE ¦NOT ¦¦a",
    "SELECT 1 GROUP BY ¦a#¦, ¦",
    "VALUES ¦(#, 'x')¦, ¦",
    "INSERT INTO t VALUES ¦(#, 'x')¦, ¦",
    "UPDATE t SET ¦a# = 1¦, ¦",
    "TRUNCATE ¦t#¦, ¦",
    "LOCK ¦t#¦, ¦ IN SHARE MODE",
    "DROP TABLE ¦s.t#¦, ¦",
    "GRANT SELECT ON ¦t#¦, ¦ TO a",
    "CREATE TABLE t (¦a# int REFERENCES u#¦, ¦)",
    "ALTER TABLE t ¦ADD COLUMN a# int¦, ¦",
    "DO '¦BEGIN SET fencing.a# = 1; END;¦ ¦'",
    "¦SAVEPOINT a#¦; ¦",
    "BEGIN; ¦SAVEPOINT a#; RELEASE a#¦; ¦",
    "¦SAVEPOINT a#; RELEASE b¦; ¦",
    "¦SAVEPOINT a#; ROLLBACK TO b¦; ¦",
    "¦SAVEPOINT a#; SET fencing.token = 5; ROLLBACK TO a1¦; ¦",
    "¦PREPARE a# AS SELECT 1; EXECUTE b¦; ¦",
    "¦PREPARE a# AS SELECT 1; DEALLOCATE b#; EXECUTE a1¦; ¦",
    "¦PREPARE \"\u{e9}#\" AS SELECT 1; EXECUTE \"\u{e9}1\"¦; ¦",
    "¦DEALLOCATE ALL¦; ¦",
    "¦BEGIN; COMMIT AND CHAIN; ROLLBACK¦; ¦",
    "¦SET fencing.token = 'default=5'; RESET fencing.token¦; ¦",
    "¦SET fencing.scope = 'a#'¦; ¦",
    "¦SHOW fencing.mark; SHOW transaction_read_only¦; ¦",
    "¦SET LOCAL a.b# = 1; RESET ALL¦; ¦",
    "¦FETCH 1 FROM c#; CLOSE c#; DISCARD ALL¦; ¦",
    "¦SELECT a FROM s#.t; INSERT INTO t# VALUES (1)¦; ¦",
];

fn text(row: &str, length: usize) -> String {
    let parts: Vec<_> = row.split('¦').collect();
    let [head, part, between, tail] = parts[..] else {
        panic!("{row}");
    };
    let parts = (1..=length).map(|at| part.replace('#', &at.to_string()));
    let closing = match part.chars().next_back() {
        _ if part.starts_with("/* ") && !part.ends_with('/') => "*/",
        _ if part.starts_with("ARRAY[") => "]",
        _ if part.starts_with("CASE") => " END",
        _ if part.contains('(') && !part.contains(')') && !part.ends_with("#") => ")",
        _ => "",
    };
    let row = parts.collect::<Vec<_>>().join(between);
    format!("{head}{row}{tail}{}", closing.repeat(length))
}

/// CPU time of the thread alone: other tests run beside it.
fn now() -> Duration {
    clock_gettime(ClockId::ThreadCPUTime).try_into().unwrap()
}

fn timed(work: impl FnOnce()) -> Duration {
    let start = now();
    work();
    now() - start
}

/// Checks that something does not take too long on the longer of two.
#[track_caller]
fn check<T>(what: &str, few: &T, many: &T, time: impl Fn(&T) -> Duration) {
    let (mut short, mut long) = (Duration::MAX, Duration::MAX);
    for _ in 0..ROUNDS_MAX {
        short = short.min(time(few));
        long = long.min(time(many));
        if long <= short.mul_f64(GROWTH_MAX) + NOISE {
            return;
        }
    }
    panic!("{what}: {short:?}, and {long:?} for {LONGER} times the length");
}

/// Work on a text before it is known what it does.
fn look(text: &str) -> Duration {
    let mut cache = VerdictCache::new(64 << 20);
    let verdict = Arc::new(Analysis::opaque(pgpalisade_policies::Opaque::Parser, b""));
    timed(|| {
        black_box((weigh(text.as_bytes()), needs_parse(text.as_bytes())));
        cache.keep(text.as_bytes(), UTF8, &verdict);
        black_box(cache.find(text.as_bytes(), UTF8));
        black_box(cache.find(&text.as_bytes()[1..], UTF8));
    })
}

fn read(text: &str) -> Analysis {
    classify(text.as_bytes(), UTF8)
}

#[test]
fn reading_a_text() {
    for row in ROWS {
        let (few, many) = (text(row, PARTS), text(row, LONGER * PARTS));
        check(row, &few, &many, |text| look(text));
        check(row, &few, &many, |text| {
            timed(|| drop(black_box(read(text))))
        });
    }
}

/// A text and its verdict.
type Known = (String, Arc<Analysis>);

/// Both texts of each row, judged.
fn judged() -> Vec<(&'static str, [Known; 2])> {
    let of = |row, length| {
        let text = text(row, length);
        let verdict = Arc::new(read(&text));
        (text, verdict)
    };
    let rows = ROWS.map(|row| {
        let both = [of(row, PARTS), of(row, LONGER * PARTS)];
        (row, both)
    });
    let known = rows.into_iter();
    let known: Vec<_> = known
        .filter(|(_, [_, (_, verdict)])| verdict.kind() != "unparsed")
        .collect();
    assert!(known.len() > 50, "{}", known.len());
    known
}

#[test]
fn judging_a_text() {
    for (what, [few, many]) in judged() {
        for holds in [Holds::Current, Holds::None] {
            check(what, &few, &many, |(text, verdict)| {
                let mut subject = Subject::new(holds);
                subject.begin();
                let text = text.as_bytes();
                let judged = Judged { verdict, text };
                timed(|| {
                    drop(black_box(subject.session.decide(
                        MESSAGE,
                        &judged,
                        Request::Query,
                    )))
                })
            });
        }
    }
}

#[test]
fn following_the_replies_to_a_text() {
    for (what, [few, many]) in judged() {
        check(what, &few, &many, |(_, verdict)| {
            let mut subject = in_flight(verdict);
            timed(|| follow(&mut subject, verdict))
        });
    }
}

/// A session in a transaction, with a text in flight.
fn in_flight(verdict: &Arc<Analysis>) -> Subject {
    let mut subject = Subject::new(Holds::Current);
    subject.begin();
    let mut request = InFlight::client(Request::Query, Some(Arc::clone(verdict)));
    request.leave = Leave::Write;
    subject.session.server.ledger.push(request);
    subject
}

fn follow(subject: &mut Subject, verdict: &Analysis) {
    let (splits, other) = (strings(&["SAVEPOINT"]), strings(&["SET"]));
    for statement in &verdict.statements {
        let is_transaction = statement.controls.iter().any(Control::is_transaction);
        let tag = if is_transaction { &splits } else { &other };
        let _ = subject.reply(b'C', tag);
    }
    let _ = subject.reply(b'Z', b"I");
}

/// The state of a session makes no statement slower.
#[test]
fn a_session_with_many_portals_and_savepoints() {
    let text = "DEALLOCATE ALL; SAVEPOINT x; RELEASE y; ROLLBACK TO z; EXECUTE q";
    let verdict = Arc::new(read(&[text; 50].join("; ")));
    let full = |length: &usize| {
        let mut subject = in_flight(&verdict);
        for at in 0..*length {
            let name = at.to_string();
            let portal = NameChange::set(Name::portal(name.as_bytes()), PreparedText::Plain);
            subject.session.server.names.confirm(portal);
            let client = &mut subject.session.client;
            let savepoint = Control::Savepoint(name.into());
            client.state.apply(&client.fence, &[], &savepoint);
        }
        timed(|| {
            for _ in 0..50 {
                black_box(subject.session.client.state.clone());
            }
            follow(&mut subject, &verdict);
        })
    };
    check("a full session", &PARTS, &(LONGER * PARTS), full);
}
