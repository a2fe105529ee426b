//! A server connection in which another client has left prepared statements: it was not reset between the two.

use super::super::ServerHalf;
use super::frames::{bind, execute, message, parse, query, target};
use super::subject::{Holds, Subject, ahead, fresh, sync};

/// A server connection in which a client has prepared `s`, and left an unnamed statement.
fn left() -> Box<ServerHalf> {
    let mut subject = Subject::new(Holds::None);
    subject.lend(fresh());
    for message in [&parse("s", "SELECT 1"), &parse("", "SELECT 2")] {
        subject.synced(message);
    }
    let server = subject.lend(fresh());
    assert!(server.is_tidy());
    server
}

/// Another client that has sent these messages, each with its own Sync, and is lent that server connection.
fn next(messages: &[&[u8]]) -> Subject {
    let mut subject = Subject::new(Holds::None);
    subject.lend(fresh());
    for message in messages {
        subject.synced(message);
    }
    subject.lend(left());
    subject
}

/// Sends a message, so that the access mode is set.
fn begun(subject: &mut Subject) {
    subject.synced(&target(b'C', b'S', "none"));
}

const CLOSED: &str = r"C(Ss\x00) ";

#[test]
fn a_name_of_another_client_stands_for_nothing() {
    let describe = |name| target(b'D', b'S', name);
    let unnamed = r"C(S\x00) free";
    let table: &[(&[u8], &str)] = &[
        (&parse("s", "SELECT 3"), r"C(Ss\x00) free"),
        (&parse("s", "SELECT 1"), r"C(Ss\x00) free"),
        (&bind("", "s"), r"C(Ss\x00) free"),
        (&describe("s"), r"C(Ss\x00) free"),
        (&target(b'C', b'S', "s"), "free"),
        (&parse("", "SELECT 3"), "free"),
        (&bind("", ""), unnamed),
        (&describe(""), unnamed),
        (&bind("", "other"), "free"),
        (&query("EXECUTE s"), r"C(Ss\x00) S() wait"),
        (&query("DEALLOCATE s"), r"C(Ss\x00) S() wait"),
        (&query("PREPARE s AS SELECT 3"), r"C(Ss\x00) S() wait"),
        (&parse("", "EXECUTE s"), r"C(Ss\x00) wait"),
        (&query("SELECT 3"), "free"),
    ];
    for (message, expect) in table {
        let mut subject = next(&[]);
        begun(&mut subject);
        assert_eq!(ahead(&mut subject, message), *expect, "{message:?}");
        // Once is enough, whether the Close is in flight or answered.
        if matches!(message[0], b'B' | b'D') {
            assert_eq!(ahead(&mut subject, message), "free");
            subject.run(&sync(), "", b'I');
            assert_eq!(ahead(&mut subject, message), "free");
        }
    }
}

#[test]
fn an_equal_statement_of_another_client_serves() {
    let parsed = |text: &str| format!(r"C(Ss\x00) P(s\x00{text}\x00\x00\x00) free");
    for (own, expect) in [
        ("SELECT 1", "free".to_owned()),
        ("SELECT 3", parsed("SELECT 3")),
        ("select 1", parsed("select 1")),
    ] {
        let mut subject = next(&[&parse("s", own)]);
        assert_eq!(ahead(&mut subject, &bind("", "s")), expect);
        subject.send(&execute("", 0));
        subject.run(&sync(), "SELECT 1", b'I');
        assert_eq!(ahead(&mut subject, &bind("", "s")), "free");
        // It can be parsed elsewhere, too.
        subject.run(&sync(), "", b'I');
        subject.lend(fresh());
        begun(&mut subject);
        assert_eq!(ahead(&mut subject, &bind("", "s")), parsed(own));
    }
    // The unnamed one is parsed again in any case.
    let mut subject = next(&[&parse("", "SELECT 2")]);
    let unnamed = r"P(\x00SELECT 2\x00\x00\x00) free";
    assert_eq!(ahead(&mut subject, &bind("", "")), unnamed);
}

/// The client was told of columns; the one who has left the statement was not, so it may have others there.
#[test]
fn an_equal_statement_serves_only_whom_it_was_described_to() {
    let column = [
        0, 1, b'a', 0, 0, 0, 0, 9, 0, 1, 0, 0, 0, 23, 0, 4, 255, 255, 255, 255, 0, 0,
    ];
    let mut subject = Subject::new(Holds::None);
    subject.lend(fresh());
    subject.send(&parse("s", "SELECT 1"));
    subject.send(&target(b'D', b'S', "s"));
    for (tag, body) in [(b'1', &[][..]), (b't', &[0, 0]), (b'T', &column)] {
        let _ = subject.reply(tag, body);
    }
    subject.run(&sync(), "", b'I');
    subject.lend(left());
    let described = r"C(Ss\x00) P(s\x00SELECT 1\x00\x00\x00) D(Ss\x00) wait";
    assert_eq!(ahead(&mut subject, &bind("", "s")), described);
}

/// DEALLOCATE of a statement that is elsewhere leaves the other client's.
#[test]
fn who_comes_back_finds_its_own() {
    let mut first = Subject::new(Holds::None);
    first.lend(fresh());
    first.synced(&parse("s", "SELECT 1"));
    let shared = first.lend(fresh());

    let mut second = Subject::new(Holds::None);
    second.lend(fresh());
    second.synced(&parse("s", "SELECT 3"));
    second.lend(shared);
    second.synced(&bind("", "s"));
    let shared = second.lend(fresh());

    first.lend(shared);
    assert_eq!(
        ahead(&mut first, &bind("", "s")),
        r"C(Ss\x00) P(s\x00SELECT 1\x00\x00\x00) free"
    );
    first.run(&sync(), "", b'I');
    let shared = first.lend(fresh());
    second.lend(shared);
    let ended = r"C(S\x00) C(P\x00) S() !no";
    assert_eq!(ahead(&mut second, &query("DEALLOCATE s")), ended);
    assert_eq!(
        second.to_client,
        [&message(b'C', b"DEALLOCATE\0")[..], &message(b'Z', b"I")].concat()
    );
    for (tag, body) in [(b'3', ""), (b'3', ""), (b'Z', "I")] {
        let _ = second.reply(tag, body.as_bytes());
    }
    let taken = ahead(&mut second, &parse("s", "SELECT 4"));
    assert_eq!(taken, format!("{CLOSED}free"));
}

/// A Close that is skipped after an error has closed nothing.
#[test]
fn a_name_stays_taken_until_its_close_is_answered() {
    let mut subject = next(&[]);
    begun(&mut subject);
    subject.send(&bind("", "none"));
    assert_eq!(ahead(&mut subject, &bind("", "s")), format!("{CLOSED}free"));
    let _ = subject.fail();
    subject.run(&sync(), "", b'I');
    assert_eq!(ahead(&mut subject, &bind("", "s")), format!("{CLOSED}free"));
}

#[test]
fn what_is_no_read_leaves_a_server_connection_to_be_reset() {
    let table: &[(&[u8], &str, bool)] = &[
        (&query("SELECT now()"), "SELECT 1", true),
        (&query("BEGIN; SELECT 1; COMMIT"), "COMMIT", true),
        (&query("SHOW work_mem"), "SHOW", true),
        (&query("SET LOCAL work_mem = '1MB'"), "SET", false),
        (&query("SELECT lastval(), f()"), "SELECT 1", true),
        (&query("UNLISTEN *"), "UNLISTEN", true),
        (&query("DEALLOCATE ALL"), "DEALLOCATE ALL", false),
    ];
    for (message, tag, is_tidy) in table {
        let mut subject = Subject::new(Holds::None);
        subject.lend(fresh());
        subject.run(message, tag, b'I');
        let server = subject.lend(fresh());
        assert_eq!(server.is_tidy(), *is_tidy, "{message:?}");
    }
    // A portal, whose text is known from its Parse.
    for (text, tag, is_tidy) in [
        ("SELECT 1", "SELECT 1", true),
        ("SET LOCAL work_mem = '1MB'", "SET", false),
    ] {
        let mut subject = Subject::new(Holds::None);
        subject.lend(fresh());
        subject.pipeline(text);
        subject.run(&sync(), tag, b'I');
        assert_eq!(subject.lend(fresh()).is_tidy(), is_tidy, "{text}");
    }
    // Tokens of the client.
    let mut subject = Subject::new(Holds::Current);
    let server = subject.lend(fresh());
    assert!(!server.is_tidy());
}
