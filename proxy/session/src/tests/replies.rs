//! Backend messages in each state of a session. Each row says where the message goes, what the client gets in its
//! place or ahead of it (`!` and type bytes), and how many requests are still in flight.

use pgpalisade_authority::{Claim, Scope, Token};
use pgpalisade_policies::{Lifetime, TextEncoding};

use super::super::Met;
use super::super::access_mode::DEFAULT_READ_ONLY;
use super::super::action::{Action, Disposition};
use super::super::endings::Ending;
use super::super::read_only::AccessChange;
use super::super::token_request::Obtained;
use super::frames::{
    bind, empty, error_body, execute, message, parse, parts, query, row, split, strings,
};
use super::subject::{Holds, MARK, Subject, identified, sync, wanted};
use crate::rejection::Rejection;

use Holds::{Current, None as Nothing};

/// Outcome of a message.
fn found(disposition: &Disposition, subject: &Subject) -> String {
    let word = match disposition {
        Disposition::Relay => "relay",
        Disposition::Drop => "drop",
        Disposition::Terminated => "terminated",
        Disposition::End(ending) => ending_word(ending),
    };
    let said = split(&subject.to_client);
    let said: String = said
        .iter()
        .map(|message| char::from(parts(message).0))
        .collect();
    let said = if said.is_empty() {
        said
    } else {
        format!(" !{said}")
    };
    let in_flight = subject.session.server.ledger.iter().count();
    format!("{word}{said} {in_flight}")
}

const fn ending_word(ending: &Ending) -> &'static str {
    match ending {
        Ending::ProtocolViolation(_) => "violation",
        Ending::Contradiction { .. } => "contradiction",
        Ending::OwnStatement(_) => "own",
        Ending::Unguarded(_) => "unguarded",
        Ending::Unanswered => "unanswered",
        Ending::TakenOver => "taken-over",
        Ending::OutcomeUnknown => "unknown",
        Ending::Deposed => "deposed",
        Ending::ByServer => "by-server",
    }
}

/// A reply as text: its type byte and what is in it. A report without a name is that of the default access mode.
fn reply(text: &str) -> (u8, Vec<u8>) {
    let (tag, rest) = (text.as_bytes()[0], text[1..].trim_start());
    let body = match tag {
        b'C' => strings(&[rest]),
        b'D' => row(rest),
        b'E' => match rest.split_once(' ') {
            Some((severity, code)) => error_body(severity, code, "terminating connection"),
            None => error_body("ERROR", "22012", "division by zero"),
        },
        b'G' => vec![0, 0, 0],
        b'S' => match rest.split_once('=') {
            Some((name, value)) => strings(&[name, value]),
            None => strings(&[DEFAULT_READ_ONLY, rest]),
        },
        _ => rest.into(),
    };
    (tag, body)
}

/// Delivers replies, whatever becomes of them.
fn deliver(subject: &mut Subject, replies: &str) {
    for text in replies.split("; ") {
        let (tag, body) = reply(text);
        let _ = subject.reply(tag, &body);
    }
}

#[track_caller]
fn is_dropped(subject: &mut Subject, text: &str) {
    let (tag, body) = reply(text);
    assert!(
        matches!(subject.reply(tag, &body), Disposition::Drop),
        "{text}"
    );
}

/// Checks replies in their order, each with its outcome.
#[track_caller]
fn check(subject: &mut Subject, replies: &str) {
    subject.to_client.clear();
    for row in replies.split("; ") {
        let (text, expect) = row.split_once(": ").unwrap();
        let (tag, body) = reply(text);
        let disposition = subject.reply(tag, &body);
        assert_eq!(found(&disposition, subject), expect, "{row} in {replies}");
        subject.to_client.clear();
    }
}

fn subject(holds: Holds, sent: &[Vec<u8>]) -> Subject {
    let mut subject = Subject::new(holds);
    for message in sent {
        subject.send(message);
    }
    subject
}

/// A session inside a transaction block.
fn in_block(holds: Holds) -> Subject {
    let mut subject = Subject::new(holds);
    subject.begin();
    subject
}

#[test]
fn what_nobody_has_asked_for_is_the_clients() {
    for holds in [Current, Nothing] {
        assert!(matches!(
            subject(holds, &[]).reply(b'S', b"no setting"),
            Disposition::Relay
        ));
        check(
            &mut subject(holds, &[]),
            "N: relay 0; A: relay 0; S application_name=a: relay 0; E: relay 0; \
         Z I: relay 0; !: relay 0",
        );
    }
}

#[test]
fn replies_to_the_client() {
    check(
        &mut subject(Nothing, &[query("SELECT 1; SELECT 1")]),
        "T: relay 1; D 1: relay 1; N: relay 1; C SELECT 1: relay 1; C SELECT 1: relay 1; Z I: relay 0",
    );
    let pipeline = [
        parse("", "SELECT 1"),
        bind("", ""),
        execute("", 1),
        execute("", 1),
        sync(),
    ];
    check(
        &mut subject(Nothing, &pipeline),
        "1: relay 4; 2: relay 3; s: relay 2; C SELECT 0: relay 1; Z I: relay 0",
    );
    check(&mut subject(Nothing, &pipeline), "E: relay 1; Z I: relay 0");
    // Until a Sync, the server skips what follows.
    let mut subject = subject(Nothing, &pipeline[..2]);
    check(&mut subject, "E: relay 0");
    assert!(matches!(subject.ask(&execute("", 0)), Action::Discard));
}

#[test]
fn replies_to_the_session_itself() {
    let mut subject = subject(Current, &[]);
    subject.session.begin_set_access(AccessChange::Release);
    check(
        &mut subject,
        "3: drop 6; 1: drop 5; 2: drop 4; N: drop 4; A: relay 4; C SET: drop 3; S off: drop 3; \
         3: drop 2; 3: drop 1; Z I: drop 0",
    );
    // The value at login differs from what the client knows, so it is reported.
    subject.session.begin_set_access(AccessChange::Release);
    check(
        &mut subject,
        "3: drop 6; 1: drop 5; 2: drop 4; C SET: drop 3; S on: drop 3; 3: drop 2; 3: drop 1; \
         Z I: drop !S 0",
    );
    // A statement that must not fail: afterwards the access mode is unknown.
    subject.session.begin_set_access(AccessChange::Release);
    check(&mut subject, "3: drop 6; E: own !E 1");
}

/// A cancel request of the client may hit the guard's statements. They are sent again, and the client sees nothing.
#[test]
fn a_guard_that_is_cancelled() {
    for at in 0..3 {
        let mut subject = Subject::at_login(Nothing);
        subject.session.begin_set_access(AccessChange::Guard);
        for statement in 0..3 {
            match statement {
                _ if statement == at => {
                    deliver(&mut subject, "3");
                    is_dropped(&mut subject, "E ERROR 57014");
                }
                2 => deliver(&mut subject, "3; 1; 2; D 7; C SET; 3; 3"),
                _ => deliver(&mut subject, "3; 1; 2; C SET; 3; 3"),
            }
            // The second and the third are one pipeline.
            if statement != 1 || at == 1 {
                deliver(&mut subject, "Z I");
            }
            if (statement, at) == (1, 1) {
                break;
            }
        }
        let changed = subject.session.end_set_access(AccessChange::Guard);
        assert_eq!(changed.unwrap(), Met::Yes);
        assert_eq!(subject.to_client, b"");
        subject.to_server.clear();
        assert_eq!(subject.decided(&query("SELECT 1")), "guard", "{at}");
    }
    // Other statements are not repeated: what came after them relied on them.
    let mut subject = subject(Current, &[]);
    subject.session.begin_set_access(AccessChange::Release);
    check(&mut subject, "3: drop 6; E ERROR 57014: own !E 1");
}

/// The guard counts if the process of the login confirms it.
#[test]
fn the_guard_is_confirmed() {
    for (process, report, holds) in [
        ("7", "; S on", true),
        // A pooler uses other processes.
        ("8", "; S on", false),
        ("", "; S on", false),
        // A server before version 14.
        ("7", "", false),
    ] {
        let mut subject = Subject::at_login(Nothing);
        subject.session.begin_set_access(AccessChange::Guard);
        for statement in 0..3 {
            deliver(&mut subject, "3; 1; 2");
            if statement == 2 {
                is_dropped(&mut subject, &format!("D {process}"));
            }
            deliver(&mut subject, &format!("C SET; 3; 3{report}"));
            // The second and the third are one pipeline.
            if statement != 1 {
                deliver(&mut subject, "Z I");
            }
        }
        assert!(subject.session.is_answered());
        let confirmed = subject.session.end_set_access(AccessChange::Guard);
        assert_eq!(confirmed.is_ok(), holds, "{process} {report}");
    }
}

#[test]
fn a_refusal_stands_in_the_place_of_the_servers_error() {
    // In a block, the client's ReadyForQuery is that of the server.
    let mut subject = in_block(Nothing);
    assert!(matches!(
        subject.ask(&query("INSERT INTO t VALUES (1)")),
        Action::Discard
    ));
    check(&mut subject, "E: drop !E 1; Z E: relay 0");
    // In a pipeline, the client's Sync ends it.
    let mut subject = Subject::new(Nothing);
    subject.run(&parse("w", "INSERT INTO t VALUES (1)"), "", b'I');
    subject.run(&bind("", "w"), "", b'I');
    assert!(matches!(subject.ask(&execute("", 0)), Action::Discard));
    check(&mut subject, "E: drop !E 0");
    assert!(matches!(subject.ask(&execute("", 0)), Action::Discard));
    assert!(matches!(subject.ask(&sync()), Action::Forward(_)));
    check(&mut subject, "Z I: relay 0");
    // In a COPY, the data fail.
    let mut subject = self::subject(Current, &[query("COPY t FROM STDIN")]);
    check(&mut subject, "G: relay 1");
    subject.depose();
    assert!(matches!(subject.ask(&empty(b'c')), Action::Discard));
    check(&mut subject, "E: drop !E 1; Z I: relay 0");
}

/// If data are refused before a Sync after them arrives, that Sync ends the cycle; otherwise it is ignored.
#[test]
fn data_that_are_refused_end_a_session_that_has_sent_a_sync_after_them() {
    for (order, expect) in [
        ([sync(), empty(b'd')], "relay 1"),
        ([empty(b'd'), sync()], "violation !EE 1"),
    ] {
        let mut subject = subject(Current, &[query("COPY t FROM STDIN")]);
        check(&mut subject, "G: relay 1");
        for message in order {
            assert!(matches!(subject.ask(&message), Action::Forward(_)));
        }
        check(&mut subject, &format!("E: {expect}"));
    }
}

#[test]
fn read_write_that_comes_too_late_answers_its_message() {
    let changed = |subject: &mut Subject| {
        let read_write = AccessChange::ReadWrite(Lifetime::Session);
        subject.session.end_set_access(read_write).unwrap()
    };
    let begun = "3: drop 13; 1: drop 12; 2: drop 11; C SET: drop 10; 3: drop 9; 3: drop 8; Z T: drop 7; 3: drop 6; \
     1: drop 5; 2: drop 4";
    let mut subject = in_block(Nothing);
    subject
        .session
        .begin_set_access(AccessChange::ReadWrite(Lifetime::Session));
    check(&mut subject, begun);
    check(&mut subject, "E: drop !E 1; Z E: relay 0");
    assert_eq!(changed(&mut subject), Met::Answered);
    // In a pipeline, only the error answers it, and the rest is skipped.
    let mut subject = Subject::new(Nothing);
    subject.run(&parse("", "SELECT 1"), "", b'I');
    subject
        .session
        .begin_set_access(AccessChange::ReadWrite(Lifetime::Session));
    let begun = "3: drop 11; 1: drop 10; 2: drop 9; C SET: drop 8; 3: drop 7; 3: drop 6; 3: drop 5; 1: drop 4; \
     2: drop 3";
    check(&mut subject, begun);
    check(&mut subject, "E: drop !E 0");
    assert_eq!(changed(&mut subject), Met::Answered);
    assert!(matches!(subject.ask(&bind("", "")), Action::Discard));
    // If it is not too late, the client sees nothing.
    let mut subject = in_block(Nothing);
    subject
        .session
        .begin_set_access(AccessChange::ReadWrite(Lifetime::Session));
    subject.answer("", b'T');
    assert_eq!(changed(&mut subject), Met::Yes);
    assert_eq!(subject.to_client, b"");
}

/// The register may have the session at the declared token, so it must not go on under a lower one.
#[test]
fn a_declaration_without_an_answer() {
    for (holds, ends) in [(Nothing, false), (Current, true)] {
        let mut subject = Subject::new(holds);
        let wanted = wanted(&subject.fence, "6");
        let scope = Scope::default();
        let rejection = Rejection::authority_unavailable(Some(&scope), &"no answer");
        let declared = Err(Box::new(rejection));
        let met = subject.session.on_declared(&wanted, identified(), declared);
        assert_eq!(met == Err(Ending::Unanswered), ends, "{holds:?}: {met:?}");
        assert_eq!(matches!(met, Ok(Met::Refused(_))), !ends, "{holds:?}");
    }
}

/// The result of the declaration shows whether a takeover was the reason.
#[test]
fn the_end_while_a_token_is_declared() {
    let fatal = error_body("FATAL", "57P01", "terminating connection");
    for deposed in [false, true] {
        let mut subject = Subject::at_login(Nothing);
        check(&mut subject, "E FATAL 57P01: terminated 0");
        assert_eq!(subject.session.on_terminated(&fatal), None);
        let wanted = wanted(&subject.fence, "5");
        let declared = if deposed {
            subject.depose();
            let scope = Scope::default();
            let mark = subject.fence.fence().mark(&scope).mark_detail();
            let claim = Claim::Token(Token::new(MARK).unwrap());
            Err(Box::new(Rejection::behind(&scope, claim, mark.unwrap())))
        } else {
            Ok(Obtained::default())
        };
        let met = subject.session.on_declared(&wanted, identified(), declared);
        let expect = if deposed {
            Ending::TakenOver
        } else {
            Ending::ByServer
        };
        assert_eq!(met, Err(expect));
    }
}

#[test]
fn the_end_by_an_administrator() {
    let fatal = error_body("FATAL", "57P01", "terminating connection");
    let text = query("INSERT INTO t VALUES (1)");
    // A session that declares has no token yet: the end of its declaration shows whether a takeover was the reason.
    check(&mut subject(Nothing, &[]), "E FATAL 57P01: terminated 0");
    // Only FATAL ends a session, and only this code is an administrator's.
    check(
        &mut subject(Current, &[]),
        "E ERROR 57P01: relay 0; E FATAL 57P05: relay 0",
    );
    for (deposed, sent, terminated, closed) in [
        ("", vec![], None, Some(Ending::ByServer)),
        ("", vec![text.clone()], None, Some(Ending::ByServer)),
        ("deposed", vec![], Some(Ending::TakenOver), None),
        ("deposed", vec![text.clone()], Some(Ending::TakenOver), None),
        (
            "deposed",
            vec![query("COMMIT; BEGIN")],
            Some(Ending::OutcomeUnknown),
            None,
        ),
        ("later", vec![text.clone()], None, Some(Ending::TakenOver)),
    ] {
        let mut subject = subject(Current, &sent);
        if deposed == "deposed" {
            subject.depose();
        }
        check(
            &mut subject,
            &format!("E FATAL 57P01: terminated {}", sent.len()),
        );
        let found = subject.session.on_terminated(&fatal);
        assert_eq!(found, terminated, "{deposed} {sent:?}");
        if deposed == "later" {
            subject.depose();
        }
        if terminated.is_none() {
            let seen = subject.session.on_server_closed();
            assert_eq!(seen, closed, "{deposed} {sent:?}");
        }
        subject.take_output();
        assert_eq!(subject.to_client.first(), Some(&b'E'), "{deposed} {sent:?}");
    }
}

/// The record says what became of the transaction that a takeover ended.
#[test]
fn what_a_deposed_session_had_open_is_recorded() {
    use crate::rejection::OpenTransaction::{None, RolledBack, Unknown};
    let fatal = error_body("FATAL", "57P01", "terminating connection");
    let write = query("INSERT INTO t VALUES (1)");
    let begun = |subject: &mut Subject| subject.begin();
    let nothing = |_: &mut Subject| {};
    let sent = |subject: &mut Subject| subject.send(&write);
    let may_commit = |subject: &mut Subject| subject.send(&query("COMMIT; BEGIN"));
    let half = |subject: &mut Subject| subject.send(&parse("", "SELECT 1"));
    type Reach<'a> = &'a dyn Fn(&mut Subject);
    let cases: [(&str, Reach<'_>, _, _); 5] = [
        ("idle", &nothing, None, None),
        ("in a block", &begun, RolledBack, RolledBack),
        ("in a statement", &sent, RolledBack, Unknown),
        ("in a pipeline", &half, RolledBack, Unknown),
        ("in a commit", &may_commit, Unknown, Unknown),
    ];
    for (name, reach, told, without_a_word) in cases {
        let end = |says: &dyn Fn(&mut Subject)| {
            let mut subject = subject(Current, &[]);
            reach(&mut subject);
            subject.depose();
            says(&mut subject);
            let refusals = &subject.session.output().refusals;
            refusals
                .iter()
                .map(|one| one.rejection.transaction)
                .collect::<Vec<_>>()
        };
        let terminates = |subject: &mut Subject| drop(subject.session.on_terminated(&fatal));
        let closes = |subject: &mut Subject| drop(subject.session.on_server_closed());
        assert_eq!(end(&terminates), [Some(told)], "{name}");
        assert_eq!(end(&closes), [Some(without_a_word)], "{name}");
    }
}

#[test]
fn a_server_that_closes_without_a_word() {
    let text = query("INSERT INTO t VALUES (1)");
    for (mark_rose, sent, expect) in [
        ("no", vec![], None),
        ("no", vec![text.clone()], None),
        ("yes", vec![], Some(Ending::TakenOver)),
        ("yes", vec![text], Some(Ending::OutcomeUnknown)),
    ] {
        let mut subject = subject(Current, &sent);
        if mark_rose == "yes" {
            subject.depose();
        }
        let found = subject.session.on_server_closed();
        assert_eq!(found, expect, "{mark_rose} {sent:?}");
    }
}

/// The server's replies are compared with the judgement.
#[test]
fn a_reply_that_contradicts_the_judgement_ends_the_session() {
    for (holds, text, replies) in [
        (Nothing, "SELECT 1", "C INSERT 0 1: contradiction !E 1"),
        (Nothing, "SELECT 1", "G: contradiction !E 1"),
        (Nothing, "SELECT 1", "C COMMIT: contradiction !E 1"),
        (Nothing, "BEGIN", "C SELECT 1: contradiction !E 1"),
        (Current, "COMMIT", "C SELECT 1: contradiction !E 1"),
        // A session that may write may change any data.
        (Current, "SELECT 1", "C INSERT 0 1: relay 1"),
    ] {
        check(&mut subject(holds, &[query(text)]), replies);
    }
}

/// The client does not see what the session itself has set. A session that may write owns the setting.
#[test]
fn reports_of_the_access_mode() {
    let set = [query("SET default_transaction_read_only = on")];
    check(
        &mut subject(Current, &set),
        "C SET: relay 1; S on: relay 1; Z I: relay 0",
    );
    // It is on already, so the server reports nothing.
    check(
        &mut subject(Nothing, &set),
        "C SET: relay 1; Z I: relay !S 0",
    );
    // A function has switched read-only mode off. The client gets no report, because the mode was the session's own,
    // and it is set again before anything else.
    let mut subject = subject(Nothing, &[query("SELECT g()")]);
    check(
        &mut subject,
        "C SELECT 1: relay 1; S off: drop 1; Z I: relay 0",
    );
    subject.to_server.clear();
    assert_eq!(subject.decided(&query("SELECT 1")), "guard");
}

/// SHOW returns the client's own mode instead of the one that the session has set.
#[test]
fn rows_that_show_the_access_mode() {
    for setting in ["transaction_read_only", DEFAULT_READ_ONLY] {
        let show = || [query(&format!("SHOW {setting}"))];
        check(
            &mut subject(Nothing, &show()),
            "T: relay 1; D on: drop !D 1; C SHOW: relay 1; Z I: relay 0",
        );
        check(&mut subject(Nothing, &show()), "D off: relay 1");
        check(&mut subject(Current, &show()), "D on: relay 1");
    }
    // The client's own READ ONLY is shown as it is.
    let mut subject = Subject::new(Nothing);
    subject.run(&query("BEGIN READ ONLY"), "BEGIN", b'T');
    subject.send(&query("SHOW transaction_read_only"));
    check(&mut subject, "D on: relay 1");
}

/// Another server has become the primary: requests of the client in flight may have been committed, those of the
/// proxy do not matter.
#[test]
fn the_end_of_a_server_as_the_primary() {
    let ended = |mut subject: Subject| {
        subject.to_client.clear();
        let ending = subject.session.end_with_its_server();
        subject.take_output();
        let said = String::from_utf8_lossy(&subject.to_client).into_owned();
        let code = ["PF007", "08007"]
            .into_iter()
            .find(|code| said.contains(code));
        (ending_word(&ending), code)
    };
    for holds in [Current, Nothing] {
        assert_eq!(ended(subject(holds, &[])), ("deposed", Some("PF007")));
        let asked = subject(holds, &[query("SELECT 1")]);
        assert_eq!(ended(asked), ("deposed", Some("08007")));
        let mut traced = subject(holds, &[]);
        traced.session.leave_trace("/* here */");
        assert_eq!(ended(traced), ("deposed", Some("PF007")));
    }
}

/// A trigger of the COPY may set `client_encoding`. The server ignored the Sync that would have reported it.
#[test]
fn encodings_are_unknown_after_a_copy_whose_sync_was_ignored() {
    let mut subject = Subject::new(Current);
    let encoding = |subject: &Subject| {
        let server = &subject.session.server;
        server
            .text_settings
            .for_text("é".as_bytes(), server.ledger.settled())
    };
    for sent in [
        parse("", "COPY t FROM STDIN"),
        bind("", ""),
        execute("", 0),
        sync(),
    ] {
        subject.send(&sent);
    }
    deliver(&mut subject, "1; 2; G");
    subject.send(&message(b'd', b"x\n"));
    subject.send(&empty(b'c'));
    deliver(&mut subject, "C COPY 1");
    assert_eq!(encoding(&subject), Some(TextEncoding::Other));
    subject.send(&sync());
    deliver(&mut subject, "Z I");
    assert_eq!(encoding(&subject), Some(TextEncoding::Utf8));
}

/// PostgreSQL logs the duration between the last completion and ReadyForQuery, and ends there, too.
#[test]
fn the_end_after_a_completion() {
    let fatal = error_body("FATAL", "57P01", "terminating connection");
    let insert = "INSERT INTO t VALUES (1)";
    for (before, text, expect) in [
        ("SELECT 1", insert, Ending::OutcomeUnknown),
        ("BEGIN", insert, Ending::TakenOver),
        (
            "SELECT 1",
            &format!("{insert}; SELECT 2"),
            Ending::TakenOver,
        ),
    ] {
        let mut subject = subject(Current, &[]);
        let status = if before == "BEGIN" { b'T' } else { b'I' };
        subject.run(&query(before), before, status);
        subject.send(&query(text));
        subject.depose();
        check(
            &mut subject,
            "C INSERT 0 1: relay 1; E FATAL 57P01: terminated 1",
        );
        let found = subject.session.on_terminated(&fatal);
        assert_eq!(found, Some(expect), "{before}; {text}");
    }
}
