//! A client's prepared statements in a server connection that does not have them.

use std::cell::RefCell;

use pgpalisade_policies::{Leftover, VerdictCache};

use super::super::action::Action;
use super::super::frame::Frame;
use super::super::token_request::Obtained;
use super::super::{Met, Session, statements};
use super::frames::{bind, execute, parse, query, strings, target};
use super::subject::{Holds, Subject, ahead, fresh, sync, wanted};
use crate::wire::{frontend, header};

/// A client that has run these messages, each with its own Sync, and was then lent another server connection.
fn moved(holds: Holds, messages: &[&[u8]]) -> Subject {
    let mut subject = Subject::new(holds);
    subject.lend(fresh());
    for message in messages {
        subject.synced(message);
    }
    assert_eq!(subject.session.leftover(), None);
    subject.lend(fresh());
    // So that its access mode is set.
    subject.synced(&target(b'C', b'S', "none"));
    subject.to_server.clear();
    subject.to_client.clear();
    subject
}

fn describe(name: &str) -> Vec<u8> {
    target(b'D', b'S', name)
}

const PARSED: &str = r"C(Ss\x00) P(s\x00SELECT 1\x00\x00\x00) ";

#[test]
fn a_statement_is_parsed_where_it_is_missing() {
    let table: &[(&[u8], &[u8], &str)] = &[
        (&parse("s", "SELECT 1"), &bind("", "s"), PARSED),
        (&parse("s", "SELECT 1"), &describe("s"), PARSED),
        (&parse("s", "SELECT 1"), &parse("s", "SELECT 2"), PARSED),
        (&parse("s", "SELECT 1"), &target(b'C', b'S', "s"), ""),
        (&parse("s", "SELECT 1"), &parse("t", "SELECT 2"), ""),
        (&parse("s", "SELECT 1"), &bind("", "t"), ""),
        (&parse("s", "SELECT 1"), &query("SELECT 1"), ""),
        (
            &parse("", "SELECT 1"),
            &bind("", ""),
            r"P(\x00SELECT 1\x00\x00\x00) ",
        ),
        (&parse("", "SELECT 1"), &parse("", "SELECT 2"), ""),
    ];
    for (before, now, expect) in table {
        let mut subject = moved(Holds::None, &[before]);
        assert_eq!(ahead(&mut subject, now), format!("{expect}free"), "{now:?}");
        // Not again in the same server connection, in flight or answered.
        if now[0] == b'B' {
            assert_eq!(ahead(&mut subject, now), "free");
            subject.run(&sync(), "", b'I');
            assert_eq!(ahead(&mut subject, now), "free");
        }
    }
}

/// Both texts want settings sent first: those of the one must not be taken for replies that the other waits for.
#[test]
fn a_name_that_shows_what_only_the_proxy_knows() {
    let show = parse("s", "SHOW fencing.history");
    let mut subject = moved(Holds::None, &[&show]);
    subject.send(&show);
}

const REFUSED: &str = concat!(
    "P(pgpalisade\\x00REFUSED BY PGPALISADE /* stands for a statement that the fence refused */",
    "\\x00\\x00\\x00) S() drop"
);

/// A client that has moved, and holds a token.
fn leader() -> Subject {
    let mut subject = Subject::new(Holds::Current);
    let accepted = subject.lend(fresh());
    subject.lend(accepted);
    subject.synced(&parse("s", "SELECT '{1}'::d[]"));
    subject.lend(fresh());
    let wanted = wanted(&subject.fence, "5");
    let _ = subject.ask(&query("BEGIN"));
    assert_eq!(subject.declare(&wanted, Ok(Obtained::default())), Met::Yes);
    subject
}

/// In a transaction that may write, without its token.
fn unguarded() -> Subject {
    let mut subject = leader();
    subject.begin();
    subject.run(&query("SET LOCAL fencing.token = ''"), "SET", b'T');
    subject
}

#[test]
fn a_parse_meets_the_checks_of_a_parse() {
    // Nothing is sent while the read-only mode is in doubt.
    let mut subject = moved(Holds::None, &[&parse("s", "SELECT '{1}'::d[]")]);
    subject.lend(fresh());
    assert_eq!(ahead(&mut subject, &bind("", "s")), "guard");
    // Its literal may hide a write in a transaction that has begun otherwise.
    let mut subject = unguarded();
    assert!(ahead(&mut subject, &describe("s")).contains("REFUSED"));
    assert_eq!(ahead(&mut unguarded(), &query("EXECUTE s")), REFUSED);
    // An Execute is judged by the text.
    let mut subject = moved(Holds::None, &[&parse("s", "INSERT INTO t VALUES (1)")]);
    subject.send(&bind("", "s"));
    assert_eq!(ahead(&mut subject, &execute("", 0)), "wait");
    subject.answer("", b'I');
    assert!(ahead(&mut subject, &execute("", 0)).contains("REFUSED"));
}

#[test]
fn a_text_that_the_server_may_read_otherwise_is_in_doubt() {
    let mut subject = moved(
        Holds::None,
        &[&parse("s", "SELECT 'ä'"), &parse("t", "SELECT 1")],
    );
    subject.send(&bind("", "t"));
    subject.send(&execute("", 0));
    // Something has run that may have changed the encoding.
    assert!(ahead(&mut subject, &bind("", "s")).contains("P(s"));
    let found = ahead(&mut subject, &execute("", 0));
    assert_eq!(found, "wait");
}

#[test]
fn where_a_setting_has_changed_nothing_is_parsed_again() {
    let settings = [
        "SET datestyle = 'German'",
        "SET LOCAL TimeZone = 'UTC'",
        "SELECT set_config('DateStyle', 'German', true)",
        "RESET ALL",
    ];
    for text in settings {
        let mut subject = moved(Holds::None, &[&parse("s", "SELECT '1'")]);
        subject.run(&query(text), "SET", b'I');
        subject.run(&query("SELECT 1"), "SELECT 1", b'I');
        assert_eq!(ahead(&mut subject, &bind("", "s")), "free", "{text}");
        subject.run(&sync(), "", b'I');
        // The client can parse it anew, and that keeps the connection.
        let found = ahead(&mut subject, &parse("s", "SELECT '1'"));
        assert_eq!(found, "free", "{text}");
        subject.run(&sync(), "", b'I');
        assert!(subject.session.leftover().is_some(), "{text}");
    }
    // Not by one that decides nothing.
    let mut subject = moved(Holds::None, &[&parse("s", "SELECT '1'")]);
    let _ = subject.reply(b'S', &strings(&["application_name", "x"]));
    assert!(ahead(&mut subject, &bind("", "s")).contains("P(s"));
    // Neither does a text without a literal depend on it.
    for (text, depends) in [
        ("SELECT $1 + 1 AS \"a\"", false),
        ("SELECT $$a$$", true),
        ("SELECT $tag$a$tag$", true),
        ("SELECT a = Null FROM t", true),
    ] {
        let mut subject = moved(Holds::None, &[&parse("s", text)]);
        subject.run(&query("SET LOCAL TimeZone = 'UTC'"), "SET", b'I');
        let parsed = ahead(&mut subject, &bind("", "s")).contains("P(s");
        assert_eq!(parsed, !depends, "{text}");
    }
    for text in ["SET LOCAL search_path = a", "SET LOCAL ROLE r"] {
        let mut subject = moved(Holds::None, &[&parse("s", "SELECT 1")]);
        subject.run(&query(text), "SET", b'I');
        assert!(
            ahead(&mut subject, &bind("", "s")).starts_with(PARSED),
            "{text}"
        );
    }
}

#[test]
fn a_setting_of_another_connection_counts_no_more() {
    let mut subject = moved(Holds::None, &[&parse("s", "SELECT 1")]);
    subject.run(&query("SET LOCAL TimeZone = 'UTC'"), "SET", b'I');
    let used = subject.lend(fresh());
    subject.lend(used);
    subject.run(&query("SELECT 1"), "SELECT 1", b'I');
    assert!(ahead(&mut subject, &bind("", "s")).starts_with(PARSED));
    // A report shows what a function has set.
    let mut subject = moved(Holds::None, &[&parse("s", "SELECT '1'")]);
    let _ = subject.reply(b'S', &strings(&["DateStyle", "German"]));
    assert_eq!(ahead(&mut subject, &bind("", "s")), "free");
}

/// A function has set it, so only the report tells.
#[test]
fn a_statement_that_is_parsed_while_a_setting_changes() {
    for (text, report, initial, expect) in [
        (
            "SELECT '1'",
            "DateStyle",
            "ISO, MDY",
            Some(Leftover::Statement),
        ),
        ("SELECT '1'", "application_name", "", None),
        ("SELECT 1", "DateStyle", "ISO, MDY", None),
    ] {
        let mut subject = moved(Holds::None, &[&parse("s", "SELECT '1'")]);
        subject.begin();
        subject.send(&query("SELECT f()"));
        subject.send(&parse("t", text));
        subject.send(&sync());
        let _ = subject.reply(b'S', &strings(&[report, "a"]));
        subject.answer("SELECT 1", b'T');
        let _ = subject.reply(b'1', &[]);
        let _ = subject.reply(b'Z', b"T");
        // It was a SET LOCAL.
        subject.send(&query("COMMIT"));
        let _ = subject.reply(b'S', &strings(&[report, initial]));
        subject.answer("COMMIT", b'I');
        assert_eq!(subject.session.leftover(), expect, "{text} {report}");
    }
    // What its client has from elsewhere waits for the report.
    let mut subject = leader();
    subject.run(&query("SELECT 1"), "SELECT 1", b'I');
    subject.send(&query("SELECT f()"));
    assert_eq!(ahead(&mut subject, &bind("", "s")), "wait");
    subject.answer("SELECT 1", b'I');
    assert!(ahead(&mut subject, &bind("", "s")).contains("P(s"));
}

/// There was no room to wait for its parameter types.
#[test]
fn a_parse_that_was_not_read_whole_keeps_its_connection() {
    let mut subject = moved(Holds::None, &[]);
    let long = parse("s", "SELECT 1");
    let header = header::parse(&long, frontend::body_max).unwrap().unwrap();
    let front = Frame::new(header, long.get(..long.len() - 1).unwrap()).without_room();
    let verdicts = RefCell::new(VerdictCache::new(1 << 20));
    let action = subject.session.on_frontend(front, &verdicts);
    assert!(matches!(action, Action::Forward(_)));
    subject.run(&sync(), "", b'I');
    assert_eq!(subject.session.leftover(), Some(Leftover::Statement));
    // If the client leaves, a reset removes it.
    assert!(!subject.lend(fresh()).is_tidy());
}

#[test]
fn past_the_limit_a_client_keeps_its_connection() {
    let mut subject = Subject::new(Holds::None);
    subject.lend(fresh());
    let text = format!("SELECT 1 /* {} */", "x".repeat(60_000));
    for at in 0..statements::NAMES_BYTES_MAX / 60_000 + 1 {
        assert_eq!(subject.session.leftover(), None, "{at}");
        subject.synced(&parse(&at.to_string(), &text));
    }
    assert_eq!(subject.session.leftover(), Some(Leftover::Statement));
}

/// PostgreSQL keeps its short replies to itself until it is asked, so many texts could be in flight.
#[test]
fn texts_in_flight_have_a_limit() {
    let mut subject = moved(Holds::None, &[]);
    let long = parse("", &format!("SELECT '{}'", "x".repeat(60_000)));
    let is_sent = |subject: &mut Subject| matches!(subject.ask(&long), Action::Forward(_));
    let sent = (0..1000).take_while(|_| is_sent(&mut subject)).count();
    assert_eq!(sent, statements::NAMES_BYTES_MAX / long.len());
    for _ in 0..sent {
        subject.reply(b'1', b"");
    }
    assert!(is_sent(&mut subject));
}

/// The client's Query was not sent, so it is decided again in the next connection.
#[test]
fn a_connection_that_is_lost_while_a_statement_is_parsed_again() {
    for text in ["EXECUTE s", "PREPARE s AS SELECT 2", "EXPLAIN EXECUTE s"] {
        let mut subject = moved(Holds::None, &[&parse("s", "SELECT 1")]);
        let sent = ahead(&mut subject, &query(text));
        let (client, out) = subject.session.lose_server();
        assert!(out.is_empty(), "{text}: {out:?}");
        let session = Session::lend(client, fresh());
        assert!(!session.has_next_reply(), "{text}: {sent}");
    }
}
