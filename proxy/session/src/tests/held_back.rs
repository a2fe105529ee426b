//! A BEGIN that is held back.

use std::cell::RefCell;

use bytes::BytesMut;
use pgpalisade_policies::VerdictCache;

use super::super::action::{Action, Disposition, Prerequisite};
use super::super::endings::Ending;
use super::super::lost_server::Step;
use super::super::unserved::Needs;
use super::super::{Activity, ClientHalf, Met, Session};
use super::frames::{error_body, parse, query, split};
use super::subject::{Holds, Subject, fresh, identified, session, wanted};
use crate::rejection::Rejection;
use crate::wire::frontend::FrontendTag;

fn verdicts() -> RefCell<VerdictCache> {
    RefCell::new(VerdictCache::new(1 << 20))
}

fn client(holds: Holds) -> Box<ClientHalf> {
    let mut subject = Subject::new(holds);
    subject.lend(fresh());
    subject.session.part().unwrap().0
}

/// Answer to a client without a server: tags and transaction states.
fn held(client: &mut ClientHalf, message: &[u8]) -> Option<String> {
    let (mut out, mut message) = (BytesMut::new(), message.to_vec());
    let needs = client.hold_back(&mut message, &verdicts(), &mut out);
    let words = split(&out).into_iter().map(|message| {
        let body = message[5..].strip_suffix(b"\0").unwrap_or(&message[5..]);
        String::from_utf8_lossy(body).into_owned()
    });
    (needs == Needs::Nothing).then(|| words.collect::<Vec<_>>().join(" "))
}

/// A ROLLBACK with more after it, as asyncpg's reset.
#[test]
fn the_rest_of_a_text_runs_after_a_lost_transaction() {
    for (text, rest) in [
        ("ROLLBACK; SELECT 1", Some("          SELECT 1")),
        (
            " rollback work ;INSERT INTO t VALUES (1)",
            Some("                INSERT INTO t VALUES (1)"),
        ),
        // They do more than end it.
        ("ROLLBACK AND CHAIN; SELECT 1", None),
        ("ROLLBACK TO a; SELECT 1", None),
        ("COMMIT; SELECT 1", None),
        ("SELECT 1; ROLLBACK; SELECT 1", None),
        ("ROLLBACK -- x; DELETE FROM t\n; SELECT 1", None),
        ("ROLLBACK /* x; */; SELECT 1", None),
    ] {
        let mut client = client(Holds::Current);
        let _ = held(&mut client, &query("BEGIN"));
        client.owe(b"");
        let _ = client.answer(FrontendTag::Query, &mut BytesMut::new());
        let (mut message, mut out) = (query(text), BytesMut::new());
        let needs = client.hold_back(&mut message, &verdicts(), &mut out);
        assert_eq!(needs, Needs::Server, "{text}");
        assert_eq!(message, query(rest.unwrap_or(text)), "{text}");
        let told: &[u8] = rest.map_or(b"", |_| b"C\0\0\0\x0dROLLBACK\0");
        assert_eq!(out, told, "{text}");
        let is_over = client.activity() == Activity::Idle;
        assert_eq!(is_over, rest.is_some(), "{text}");
    }
}

/// Also if no server connection is to be had.
#[test]
fn a_lost_transaction_is_ended_without_a_server() {
    for (text, expect) in [
        ("ROLLBACK", Some("ROLLBACK I")),
        ("abort work;", Some("ROLLBACK I")),
        ("COMMIT", Some("ROLLBACK I")),
        ("END", Some("ROLLBACK I")),
        // PostgreSQL answers all others.
        ("ROLLBACK AND CHAIN", None),
        ("ROLLBACK TO a", None),
        ("COMMIT PREPARED 'a'", None),
        ("BEGIN", None),
        ("SELECT 1", None),
    ] {
        let mut client = client(Holds::Current);
        assert_eq!(held(&mut client, &query(text)).is_some(), text == "BEGIN");
        let _ = held(&mut client, &query("BEGIN"));
        client.owe(b"");
        let _ = client.answer(FrontendTag::Query, &mut BytesMut::new());
        assert_eq!(held(&mut client, &query(text)).as_deref(), expect, "{text}");
        let is_over = client.activity() == Activity::Idle;
        assert_eq!(is_over, expect.is_some(), "{text}");
    }
}

#[test]
fn only_a_plain_begin_is_held_back() {
    for (text, expect) in [
        ("BEGIN", Some("BEGIN T")),
        (" begin work ;", Some("BEGIN T")),
        (
            "BEGIN ISOLATION LEVEL SERIALIZABLE, READ ONLY, DEFERRABLE",
            Some("BEGIN T"),
        ),
        ("START TRANSACTION READ ONLY", Some("START TRANSACTION T")),
        ("begin /* of it */", Some("BEGIN T")),
        // PostgreSQL answers all others.
        ("/* of it */ BEGIN", None),
        ("BEGIN; SELECT 1", None),
        ("BEGIN; BEGIN", None),
        ("BEGINNING", None),
        ("BEGIN READ WRITE", None),
        ("BEGIN ISOLATION LEVEL NONE", None),
        ("START", None),
        ("COMMIT", None),
        ("", None),
        ("BEGIN /* \u{e9} */", None),
    ] {
        let found = held(&mut client(Holds::None), &query(text));
        assert_eq!(found.as_deref(), expect, "{text}");
    }
    assert_eq!(held(&mut client(Holds::None), &parse("", "BEGIN")), None);
    assert_eq!(held(&mut client(Holds::None), &query("BEGIN")[..9]), None);
    let mut twice = client(Holds::None);
    assert!(held(&mut twice, &query("BEGIN")).is_some());
    assert_eq!(twice.activity(), Activity::InTransaction);
    assert_eq!(held(&mut twice, &query("BEGIN")), None);
}

#[test]
fn a_connection_is_wanted_for_what_is_declared_first() {
    let begun = |text: &str| {
        let mut client = client(Holds::None);
        assert!(held(&mut client, &query("BEGIN")).is_some());
        client.wants(&query(text), &verdicts())
    };
    for (text, idle, inside) in [
        (
            "SET fencing.token = 5",
            Some("default=5"),
            Some("default=5"),
        ),
        ("SET LOCAL fencing.token = '6'", None, Some("default=6")),
        (
            "BEGIN; SET LOCAL fencing.token = 'default=5,b=2'; SELECT 1",
            Some("default=5,b=2"),
            Some("default=5,b=2"),
        ),
        // Stale, taken, not first, not a literal.
        ("SET fencing.token = 4", None, None),
        ("SET fencing.token = next", None, None),
        ("SELECT 1; SET fencing.token = 5", None, None),
        ("BEGIN; COMMIT; SET fencing.token = 5", None, None),
        ("SET fencing.token = ''", None, None),
        ("SET work_mem = 'fencing'", None, None),
        ("SELECT set_config('fencing.token', $1, false)", None, None),
        ("SELECT 1", None, None),
    ] {
        let of_idle = client(Holds::None).wants(&query(text), &verdicts());
        assert_eq!(of_idle.as_deref(), idle, "{text}");
        assert_eq!(begun(text).as_deref(), inside, "{text}");
    }
    // Tokens in force come first.
    let holder = client(Holds::Current);
    let found = holder.wants(&query("SET fencing.token = 6"), &verdicts());
    assert_eq!(found.as_deref(), Some("default=5"));
    assert_eq!(holder.wants(&query("SELECT 1"), &verdicts()), found);
    assert_eq!(found, holder.tokens().map(|held| held.to_string()));
}

/// A session with a client that holds back a BEGIN, in a new connection.
fn begun(holds: Holds) -> Subject {
    let mut subject = Subject::new(holds);
    subject.lend(fresh());
    let unused = session(subject.fence.clone());
    let parted = std::mem::replace(&mut subject.session, unused).part();
    let (mut client, _) = parted.unwrap();
    // Its next message is there already.
    let both = [query("BEGIN"), query("SELECT 1")].concat();
    assert!(held(&mut client, &both).is_some());
    subject.session = Session::lend(client, fresh());
    subject
}

/// As one whose declaration is refused.
#[test]
fn one_whose_declaration_is_refused_fails_the_transaction() {
    let mut subject = begun(Holds::Current);
    let Step::Decided(Action::Need(_)) = subject.session.resume(&verdicts()) else {
        panic!("its token is declared first");
    };
    let wanted = wanted(&subject.fence, "5");
    let why = Rejection::takeover_incomplete(None, &"no answer");
    subject.session.may_declare(&wanted).unwrap();
    let met = subject
        .session
        .on_declared(&wanted, identified(), Err(Box::new(why)));
    match met.unwrap() {
        Met::Refused(rejection) => subject.session.refuse_waiting(rejection),
        other => panic!("{other:?}"),
    }
    subject.take_output();
    assert!(subject.session.has_next_reply() && subject.to_client.is_empty());
    assert!(subject.session.may_part());
}

/// A BEGIN that was not sent is sent to the next connection.
#[test]
fn a_connection_that_is_lost_before_it_loses_nothing() {
    let subject = begun(Holds::None);
    let (mut client, out) = subject.session.lose_server();
    assert!(out.is_empty());
    assert_eq!(client.activity(), Activity::InTransaction);
    let found = client.answer(FrontendTag::Query, &mut BytesMut::new());
    assert_eq!(found, Needs::Server);
    client.owe(b"");
    assert_eq!(client.activity(), Activity::InFailedTransaction);
}

/// PostgreSQL's own words, and not those of a lost connection.
#[test]
fn one_that_postgresql_refuses_fails_the_transaction_with_its_error() {
    for sqlstate in ["57014", "0A000"] {
        let mut subject = begun(Holds::None);
        loop {
            match subject.session.resume(&verdicts()) {
                Step::Decided(Action::Need(Prerequisite::Access(change))) => {
                    subject.set_access(change);
                }
                Step::Send(..) => break,
                other => panic!("{other:?}"),
            }
        }
        let ended = subject.reply(b'E', &error_body("ERROR", sqlstate, "no"));
        assert!(matches!(ended, Disposition::End(_)), "{ended:?}");
        let (mut client, _) = subject.session.lose_server();
        let mut out = BytesMut::new();
        assert_eq!(client.answer(FrontendTag::Query, &mut out), Needs::Nothing);
        let error = String::from_utf8_lossy(&split(&out)[0]).into_owned();
        assert!(error.contains(&format!("C{sqlstate}\0")), "{error}");
        assert_eq!(client.activity(), Activity::InFailedTransaction);
    }
}

/// An error of the guard before it ends the client, as without a BEGIN. The next connection would fail as well.
#[test]
fn one_before_which_the_guard_fails_ends_its_client() {
    let mut subject = begun(Holds::None);
    let step = subject.session.resume(&verdicts());
    let Step::Decided(Action::Need(Prerequisite::Access(change))) = step else {
        panic!("{step:?}");
    };
    subject.session.begin_set_access(change);
    subject.take_output();
    let ended = subject.reply(b'E', &error_body("ERROR", "42501", "no"));
    let Disposition::End(ending) = ended else {
        panic!("{ended:?}");
    };
    assert!(matches!(*ending, Ending::OwnStatement(_)), "{ending:?}");
}

/// While its token is declared, the client's next message gets an error. What follows must not run without that.
#[test]
fn a_connection_that_is_lost_while_it_declares_fails_the_transaction() {
    let mut subject = begun(Holds::Current);
    let Step::Decided(Action::Need(_)) = subject.session.resume(&verdicts()) else {
        panic!("its token is declared first");
    };
    let (mut client, _) = subject.session.lose_server();
    let mut out = BytesMut::new();
    assert_eq!(client.answer(FrontendTag::Query, &mut out), Needs::Nothing);
    assert_eq!(split(&out)[1][5], b'E');
    assert_eq!(client.activity(), Activity::InFailedTransaction);
}
