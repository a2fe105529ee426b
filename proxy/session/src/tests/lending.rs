//! A client that is parted from its server connection between two transactions, and lent another.

use std::sync::Arc;

use pgpalisade_authority::{Claim, Mark, Token};
use pgpalisade_policies::Leftover;

use super::super::action::{Action, Disposition, Prerequisite};
use super::super::endings::Ending;
use super::super::token_request::Obtained;
use super::super::{Activity, Met, Session};
use super::frames::{bind, error_body, execute, parse, query, strings};
use super::subject::{Holds, MARK, Subject, fence, fresh, raise, session, sync, wanted};
use crate::fence::{ServerText, TokenValue};
use crate::rejection::Rejection;

/// A client that holds the current token, with a server connection for which it was not accepted.
fn moved() -> Subject {
    let mut subject = Subject::new(Holds::Current);
    subject.lend(fresh());
    subject
}

/// The declaration that a message needs first.
#[track_caller]
fn needed(subject: &mut Subject, message: &[u8]) -> TokenValue {
    match subject.ask(message) {
        Action::Need(Prerequisite::Tokens(wanted, None)) => wanted.value().clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_session_is_parted_only_between_transactions() {
    type Begin = fn(&mut Subject);
    let open: [(&str, Begin); 8] = [
        ("a transaction", |subject| {
            subject.begin();
        }),
        ("a failed transaction", |subject| {
            subject.begin();
            subject.fail_block();
        }),
        ("a request in flight", |subject| {
            subject.send(&query("SELECT 1"))
        }),
        ("a pipeline", |subject| {
            subject.run(&parse("", "SELECT 1"), "", b'I');
        }),
        ("a pipeline that is skipped", |subject| {
            subject.send(&parse("", "SELECT 1"));
            let _ = subject.fail();
        }),
        ("a pipeline whose first message was refused", |subject| {
            *subject = moved();
            subject.depose();
            assert_eq!(subject.decided_anew(&parse("", "SELECT 1")), "+no");
            let _ = subject.fail();
        }),
        ("output", |subject| {
            subject.session.say_fatal("57P01", "over", "", "");
        }),
        ("the server's last words", |subject| {
            let error = error_body("FATAL", "57P01", "terminated");
            let _ = subject.session.on_terminated(&error);
        }),
    ];
    for (what, begin) in open {
        let mut subject = Subject::new(Holds::Current);
        begin(&mut subject);
        assert!(subject.session.part().is_err(), "{what}");
    }
    let mut subject = Subject::new(Holds::Current);
    subject.synced(&parse("", "SELECT 1"));
    assert!(subject.session.part().is_ok());
}

#[test]
fn a_token_counts_where_it_was_accepted() {
    let insert = query("INSERT INTO t VALUES (1)");
    let mut subject = Subject::new(Holds::Current);
    let accepted = subject.lend(fresh());
    assert!(subject.session.client.state.token().is_none());
    for message in [
        &query("SELECT 1"),
        &insert,
        &query("BEGIN"),
        &parse("", "SELECT 1"),
    ] {
        assert_eq!(subject.decided_anew(message), "declare");
        assert!(subject.session.client.state.token().is_none());
    }
    // What runs nothing declares nothing.
    assert_eq!(subject.decided_anew(&sync()), "free");
    subject.answer("", b'I');
    subject.lend(accepted);
    // The server has no text of it yet.
    assert_eq!(subject.decided_anew(&insert), "+token");
    subject.answer("INSERT 0 1", b'I');
    assert_eq!(subject.decided_anew(&insert), "token");
}

#[test]
fn after_its_declaration_it_counts_in_the_other_server_too() {
    let mut subject = moved();
    let insert = query("INSERT INTO t VALUES (1)");
    let value = needed(&mut subject, &insert);
    assert_eq!(value, *wanted(&fence(), "5").value());
    let wanted = wanted(&subject.fence, "5");
    assert_eq!(subject.declare(&wanted, Ok(Obtained::default())), Met::Yes);
    assert_eq!(subject.decided_anew(&insert), "+token");
    subject.answer("INSERT 0 1", b'I');
    // RESET returns to it, wherever the client is.
    subject.lend(fresh());
    subject
        .session
        .on_declared(
            &wanted,
            super::subject::identified(),
            Ok(Obtained::default()),
        )
        .unwrap();
    subject.run(&query("RESET fencing.token"), "RESET", b'I');
    assert_eq!(subject.decided_anew(&insert), "+token");
}

/// The proxy learns of the takeover by the authority's answer.
#[test]
fn a_refused_declaration_is_told_once() {
    let mut subject = moved();
    let insert = query("INSERT INTO t VALUES (1)");
    needed(&mut subject, &insert);
    raise(subject.fence.fence(), MARK + 1);
    let wanted = wanted(&subject.fence, "5");
    let (scope, claim, _) = wanted.claims().next().unwrap();
    let mark = Mark::new(Token::new(MARK + 1).unwrap(), 1, "tests".to_owned());
    let behind = Rejection::behind(scope, claim, mark);
    assert!(matches!(claim, Claim::Token(_)));
    match subject.declare(&wanted, Err(Box::new(behind))) {
        Met::Refused(rejection) => subject.session.refuse_waiting(rejection),
        other => panic!("{other:?}"),
    }
    subject.take_output();
    subject.run(&query("SELECT 1"), "SELECT 1", b'I');
    assert_eq!(subject.decided_anew(&insert), "!no");
}

#[test]
fn a_reset_declares_the_startup_token_again() {
    let mut subject = Subject::new(Holds::Current);
    raise(subject.fence.fence(), MARK);
    // A later token of its own, with which it moves.
    let six = wanted(&subject.fence, "5,billing=1");
    assert!(subject.session.may_declare(&six).is_ok());
    let set = query("SET fencing.token = '5,billing=1'");
    assert_eq!(subject.decided_anew(&set), "declare");
    assert_eq!(subject.declare(&six, Ok(Obtained::default())), Met::Yes);
    subject.run(&set, "SET", b'I');
    subject.run(&query("SELECT 1"), "SELECT 1", b'I');
    subject.lend(fresh());
    assert_eq!(needed(&mut subject, &query("SELECT 1")), *six.value());
    assert_eq!(subject.declare(&six, Ok(Obtained::default())), Met::Yes);
    subject.run(&query("SELECT 1"), "SELECT 1", b'I');
    for reset in ["RESET fencing.token", "RESET ALL", "DISCARD ALL"] {
        let startup = needed(&mut subject, &query(reset));
        assert_eq!(startup, *wanted(&fence(), "5").value());
    }
}

/// Its text there is another client's, or gone with a reset.
#[test]
fn a_login_finds_the_token_that_was_accepted_for_another() {
    let five = wanted(&fence(), "5");
    for (mark, counts) in [(5, true), (6, false)] {
        let mut first = Subject::new(Holds::Current);
        let used = first.lend(fresh());
        raise(first.fence.fence(), mark);
        let (client, _) = session(first.fence.clone()).part().unwrap();
        first.session = Session::lend(client, used);
        assert!(!first.session.start_with(&wanted(&fence(), "4")));
        assert_eq!(first.session.start_with(&five), counts, "{mark}");
        let written = first.decided_anew(&query("INSERT INTO t VALUES (1)"));
        assert_eq!(written == "+token", counts, "{written}");
    }
}

/// If the mark is lower, the scope was repaired: the token of an earlier leader must not undo that.
#[test]
fn a_token_that_was_accepted_before_raises_no_mark() {
    let mut subject = moved();
    let action = subject.ask(&query("INSERT INTO t VALUES (1)"));
    let Action::Need(Prerequisite::Tokens(wanted, _)) = action else {
        panic!("{action:?}");
    };
    let mut claims = wanted.claims();
    assert!(claims.all(|(_, _, terms)| terms.bounds.max_step == Some(0)));
}

/// A takeover may end the connection, whoever has it then: the authority may have accepted a declaration that failed.
#[test]
fn a_connection_that_is_registered_beyond_its_last_tokens_is_not_for_others() {
    let rows: [(&[&str], bool); 6] = [
        (&["5"], false),
        (&["5", "6"], false),
        (&["5", "6,billing=1"], false),
        (&["5,billing=1", "6"], true),
        (&["billing=1", "5"], true),
        (&["5", "4"], true),
    ];
    for (declared, expect) in rows {
        let mut subject = Subject::new(Holds::None);
        subject.lend(fresh());
        for value in declared {
            let wanted = wanted(&subject.fence, value);
            assert!(subject.session.may_declare(&wanted).is_ok());
            let (scope, claim, _) = wanted.claims().next().unwrap();
            let mark = Mark::new(Token::new(7).unwrap(), 1, "tests".to_owned());
            let answer = if *value == "4" {
                Err(Box::new(Rejection::behind(scope, claim, mark)))
            } else {
                Ok(Obtained::default())
            };
            let _met = subject.declare(&wanted, answer);
        }
        let exceeds = subject.session.server.exceeds_last_tokens();
        assert_eq!(exceeds, expect, "{declared:?}");
    }
}

#[test]
fn a_reset_leaves_nothing_of_the_last_client() {
    let mut first = Subject::new(Holds::Current);
    first.run(
        &query("PREPARE n AS INSERT INTO t VALUES (1)"),
        "PREPARE",
        b'I',
    );
    let used = first.lend(fresh());
    let mut second = Subject::new(Holds::None);
    second.session = Session::without_client(fence(), used);
    second.session.begin_reset(0, None);
    let reset = |subject: &mut Subject| {
        subject.take_output();
        subject.answer("DISCARD ALL", b'I');
        subject.answer("SET", b'I');
    };
    reset(&mut second);
    let server = std::mem::replace(&mut second.session, session(fence())).end_reset();
    second.lend(server.unwrap());
    second.run(&query("PREPARE n AS SELECT 1"), "PREPARE", b'I');
    assert_eq!(second.decided_anew(&query("EXECUTE n")), "free");
}

/// A server connection in which another client has prepared a write, and a client to which it is lent.
fn lent_used() -> Subject {
    let mut first = Subject::new(Holds::None);
    first.synced(&parse("n", "INSERT INTO t VALUES (1)"));
    let used = first.lend(fresh());
    let mut second = Subject::new(Holds::None);
    let (client, _) = session(fence()).part().unwrap();
    second.session = Session::lend_used(client, used, 0);
    second.take_output();
    second
}

/// What the last client has changed, this one has never known.
#[test]
fn a_client_is_told_nothing_of_the_reset_before_it() {
    let mut subject = lent_used();
    assert!(subject.session.is_resetting());
    for (message, body) in [
        (b'A', b"\0\0\0\x07channel\0payload\0".to_vec()),
        (b'N', vec![0]),
        (b'C', strings(&["DISCARD ALL"])),
        (b'S', strings(&["TimeZone", "UTC"])),
        (b'Z', b"I".to_vec()),
        (b'C', strings(&["SET"])),
        (b'Z', b"I".to_vec()),
    ] {
        assert!(subject.session.is_resetting());
        subject.answer_with(&[(message, &body)]);
    }
    let session = &subject.session;
    assert!(!session.is_resetting() && session.leftover().is_none() && session.may_part());
    assert!(subject.session.part().unwrap().1.is_tidy());
}

/// Nothing of the client was sent, so it gets another connection, and is told nothing.
#[test]
fn a_reset_that_fails_costs_the_server_connection() {
    let mut subject = lent_used();
    let ended = subject.reply(b'E', &error_body("ERROR", "57014", "canceled"));
    assert!(
        matches!(&ended, Disposition::End(ending) if **ending == Ending::ByServer),
        "{ended:?}"
    );
    assert!(subject.session.outlives_server());
    let (client, told) = subject.session.lose_server();
    assert!(told.is_empty());
    assert_eq!(client.activity(), Activity::Idle);
}

/// A client may give its statements less time than those of the proxy take. It hears 57014 only of what was not done.
#[test]
fn a_time_limit_of_the_client_costs_no_more_than_its_statement() {
    for (first, sent, told) in [
        ("SELECT 1", "SELECT 2", "57014"),
        ("SELECT 1", "INSERT INTO t VALUES (1)", "08007"),
        ("LISTEN c", "SELECT 2", "58000"),
        ("LISTEN c", "INSERT INTO t VALUES (1)", "08007"),
        ("SELECT 1", "INSERT INTO t VALUES (1); LISTEN c", "08007"),
    ] {
        let mut subject = moved();
        let five = wanted(&subject.fence, "5");
        let _needed = needed(&mut subject, &query(first));
        assert_eq!(subject.declare(&five, Ok(Obtained::default())), Met::Yes);
        subject.run(&query(first), first.split(' ').next().unwrap(), b'I');
        // Its token is set in the server first.
        subject.session.server.has_token_text = false;
        subject.session.client.state.leave_server();
        let accepted = subject.session.server.accepted().to_vec();
        let state = &mut subject.session.client.state;
        state.enter_server(&accepted, ServerText::Other);
        subject.to_client.clear();
        subject.send(&query(sent));
        let ended = subject.reply(b'E', &error_body("ERROR", "57014", "canceled"));
        assert!(matches!(&ended, Disposition::End(_)), "{sent}: {ended:?}");
        subject.take_output();
        if subject.session.outlives_server() {
            let (_, more) = subject.session.lose_server();
            subject.to_client.extend_from_slice(&more);
        }
        let words = String::from_utf8_lossy(&subject.to_client);
        assert!(words.contains(told), "{first}; {sent}: {words}");
    }
}

#[test]
fn time_limits_of_a_client_are_set_after_its_other_settings() {
    let texts = ["statement_timeout", "search_path"].map(|name| {
        let text = format!("SET {name} = 1").into_bytes();
        (name.into(), text.into())
    });
    let mut session = Session::without_client(fence(), fresh());
    session.begin_settings(&Arc::new(texts.into()));
    let sent = String::from_utf8_lossy(&session.output().to_server).into_owned();
    assert!(
        sent.find("search_path") < sent.find("statement_timeout"),
        "{sent}"
    );
}

/// The server reports what it has reset before its ReadyForQuery. What follows in the same cycle stays.
#[test]
fn a_discard_ends_with_its_cycle() {
    let zone: &[u8] = &strings(&["TimeZone", "UTC"]);
    let discard = ("DISCARD ALL", "DISCARD ALL");
    let listens = ("LISTEN c", "LISTEN");
    for (statements, expect) in [
        (vec![discard], None),
        (vec![discard, listens], Some(Leftover::Channel)),
    ] {
        let mut subject = Subject::new(Holds::None);
        subject.lend(fresh());
        subject.run(&query("SET TimeZone = 'CET'"), "SET", b'I');
        for (text, command_tag) in statements {
            let done = strings(&[command_tag]);
            let steps: [(Vec<u8>, u8, &[u8]); 3] = [
                (parse("", text), b'1', b""),
                (bind("", ""), b'2', b""),
                (execute("", 0), b'C', &done),
            ];
            for (message, tag, body) in steps {
                let action = subject.ask(&message);
                assert!(matches!(action, Action::Forward(_)), "{text}: {action:?}");
                assert!(matches!(subject.reply(tag, body), Disposition::Relay));
            }
        }
        assert!(matches!(subject.ask(&sync()), Action::Forward(_)));
        let _ = subject.reply(b'S', zone);
        let _ = subject.reply(b'Z', b"I");
        assert_eq!(subject.session.leftover(), expect);
    }
}

#[test]
fn a_client_knows_of_one_access_mode_whatever_its_server_has() {
    let mut subject = Subject::new(Holds::None);
    // The guard of the first stays hidden.
    let guarded = subject.lend(fresh());
    subject.run(&query("SELECT 1"), "SELECT 1", b'I');
    subject.lend(guarded);
    subject.to_client.clear();
    subject.pipeline("SELECT 1");
    subject.run(&sync(), "SELECT 1", b'I');
    assert!(subject.to_client.is_empty());
}
