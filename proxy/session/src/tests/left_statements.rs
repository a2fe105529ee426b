//! A server connection in which another client has left prepared statements: it was not reset between the two.

use super::super::ServerHalf;
use super::frames::{bind, execute, parse, query, target};
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

/// PostgreSQL 18 fails the next statement in such a connection, whoever sends it.
#[test]
fn a_query_within_a_pipeline_is_not_tidy() {
    for is_synced in [true, false] {
        let mut subject = Subject::new(Holds::None);
        subject.lend(fresh());
        subject.pipeline("SELECT 1");
        if is_synced {
            subject.run(&sync(), "SELECT 1", b'I');
        }
        subject.send(&query("SELECT 2"));
        subject.take_output();
        assert_eq!(subject.session.server.has_run_more_than_reads, !is_synced);
    }
}
