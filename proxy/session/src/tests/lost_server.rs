//! A lent server connection that is lost.

use std::cell::RefCell;

use bytes::BytesMut;
use pgpalisade_policies::VerdictCache;

use super::super::action::{Action, Disposition, Prerequisite};
use super::super::endings::Ending;
use super::super::lost_server::Step;
use super::super::unserved::Needs;
use super::super::{Activity, ClientHalf, Session};
use super::frames::{error_body, message, parse, query, split, strings};
use super::subject::{Holds, Subject, fresh, sync};
use crate::wire::backend;
use crate::wire::frontend::FrontendTag;

/// A client with the current token, in a lent connection for which that was accepted.
fn lent(holds: Holds) -> Subject {
    let mut subject = Subject::new(holds);
    let unused = fresh();
    let own = subject.lend(unused);
    subject.lend(own);
    subject
}

/// Way in which a connection ends.
#[derive(Debug, Clone, Copy)]
enum Cause {
    /// Without a word.
    Closed,
    /// By an administrator.
    Terminated,
    /// With its postmaster.
    Crashed,
    TakenOver,
    /// Without a word, after the mark has risen.
    ClosedAfterTakeover,
    /// Another server became the primary.
    Deposed,
}

fn lose(mut subject: Subject, cause: Cause) -> (Box<ClientHalf>, BytesMut) {
    subject.to_client.clear();
    let fatal = |subject: &mut Subject, sqlstate| {
        let error = error_body("FATAL", sqlstate, "terminating connection");
        assert!(matches!(
            subject.reply(b'E', &error),
            Disposition::Terminated
        ));
        subject.session.on_terminated(&error)
    };
    let _ending = match cause {
        Cause::Closed => subject.session.on_server_closed(),
        Cause::Terminated => {
            assert!(fatal(&mut subject, "57P01").is_none());
            subject.session.on_server_closed()
        }
        Cause::Crashed => {
            assert!(fatal(&mut subject, "57P02").is_none());
            subject.session.on_server_closed()
        }
        Cause::TakenOver => {
            subject.depose();
            fatal(&mut subject, "57P01")
        }
        Cause::ClosedAfterTakeover => {
            subject.depose();
            subject.session.on_server_closed()
        }
        Cause::Deposed => Some(subject.session.end_with_its_server()),
    };
    assert!(subject.session.outlives_server());
    subject.take_output();
    assert!(subject.to_client.is_empty());
    subject.session.lose_server()
}

/// Errors, each with its code, and transaction states.
fn told(bytes: &[u8]) -> String {
    let words = split(bytes).into_iter().map(|message| {
        let body = &message[5..];
        match message[0] {
            b'E' => {
                assert_eq!(backend::error_field(body, b'V'), Some(&b"ERROR"[..]));
                let text = String::from_utf8_lossy(backend::error_field(body, b'M').unwrap());
                assert!(!text.contains("PF001: terminating"), "{text}");
                String::from_utf8_lossy(backend::error_field(body, b'C').unwrap()).into_owned()
            }
            b'Z' => char::from(body[0]).to_string(),
            tag => panic!("{}", char::from(tag)),
        }
    });
    words.collect::<Vec<_>>().join(" ")
}

/// Answers at once, and to messages of these types: `.` if they need a server.
fn found((mut client, out): (Box<ClientHalf>, BytesMut), next: &str) -> String {
    let mut found = vec![told(&out)];
    for tag in next.bytes() {
        let mut out = BytesMut::new();
        found.push(
            match client.answer(FrontendTag::from_byte(tag).unwrap(), &mut out) {
                Needs::Server => ".".to_owned(),
                Needs::Nothing => told(&out),
            },
        );
    }
    found.push(match client.activity() {
        Activity::Idle => "idle".to_owned(),
        Activity::InFailedTransaction => "failed".to_owned(),
        other => panic!("{other:?}"),
    });
    found.join("|")
}

const INSERT: &str = "INSERT INTO t VALUES (1)";

/// A transaction that has written.
fn wrote(subject: &mut Subject) {
    subject.begin();
    subject.run(&query(INSERT), "INSERT 0 1", b'T');
}

/// Does what stands between ` + `. A text is sent, in a pipeline if it follows a `:`.
fn act(subject: &mut Subject, steps: &str) {
    for step in steps.split(" + ") {
        match step {
            "nothing" => {}
            "BEGIN, answered" => subject.begin(),
            "a write in a block" => wrote(subject),
            "INSERT" => subject.send(&query(INSERT)),
            ":INSERT" => subject.pipeline(INSERT),
            "Sync" => subject.send(&sync()),
            "an answer" => subject.answer("SELECT 1", b'I'),
            "a failure" => subject.fail_block(),
            "data" => {
                let _ = subject.reply(b'G', &[0, 0, 0]);
                subject.send(&message(b'd', b"1\n"));
            }
            text => match text.strip_prefix(':') {
                Some(text) => subject.pipeline(text),
                None => subject.send(&query(text)),
            },
        }
    }
}

#[test]
fn requests_in_flight_are_answered() {
    use Cause::{Closed, Crashed, Deposed, TakenOver, Terminated};
    let check = |cause, rows: &[&str]| {
        for row in rows {
            let (steps, answers) = row.split_once(" => ").unwrap();
            let (next, expect) = answers.split_once(": ").unwrap();
            let mut subject = lent(Holds::Current);
            act(&mut subject, steps);
            let found = found(lose(subject, cause), next);
            assert_eq!(found, expect, "{steps}, {cause:?}");
        }
    };
    let closed = [
        "nothing => Q: |.|idle",
        "SELECT 1 => Q: 08006 I|.|idle",
        "INSERT => Q: 08007 I|.|idle",
        "BEGIN => Q: 08006 E|.|failed",
        "a write in a block + INSERT => Q: 08006 E|.|failed",
        "a write in a block + COMMIT => Q: 08007 I|.|idle",
        "a write in a block + ROLLBACK => Q: 08006 I|.|idle",
        "a write in a block + ROLLBACK + INSERT => Q: 08007 I|.|idle",
        "a write in a block + a failure + COMMIT => Q: 08006 I|.|idle",
        "a write in a block + SELECT 1 + SELECT 2 => Q: 08006 E 08006 E|.|failed",
        "a write in a block + SELECT 1; COMMIT => Q: 08007 I|.|idle",
        "a write in a block + PREPARE TRANSACTION 'x' => Q: 08007 I|.|idle",
        "BEGIN, answered + COPY t FROM STDIN => Q: 08006 E|.|failed",
        "BEGIN, answered + CALL p() => Q: 08006 E|.|failed",
        "BEGIN, answered + COMMIT; CALL p() => Q: 08007 I|.|idle",
        ":INSERT + Sync => Q: 08007 I|.|idle",
        ":INSERT => BES: 08006|||I|idle",
    ];
    check(Closed, &closed);
    check(Crashed, &["INSERT => Q: 08007 I|.|idle"]);
    check(Terminated, &["INSERT => Q: 57P01 I|.|idle"]);
    let taken_over = [
        "INSERT => Q: PF001 I|.|idle",
        "CALL p() => Q: 08007 I|.|idle",
        "a write in a block + COMMIT => Q: PF001 I|.|idle",
        ":SELECT 1 + :INSERT => BES: PF001|||I|idle",
        "COPY t FROM STDIN + data => ddcQ: PF001 I||||.|idle",
        ":COPY t FROM STDIN + data => dcHSQ: PF001||||I|.|idle",
    ];
    check(TakenOver, &taken_over);
    let deposed = [
        "INSERT => Q: 08007 I|.|idle",
        "SELECT 1 => Q: PF007 I|.|idle",
        "a write in a block + COMMIT AND CHAIN => Q: 08007 E|.|failed",
    ];
    check(Deposed, &deposed);
}

/// A message of the proxy that stands for a refused one is answered like that.
#[test]
fn a_refusal_in_flight_is_answered() {
    let mut subject = Subject::new(Holds::Current);
    subject.lend(fresh());
    subject.depose();
    assert!(matches!(
        subject.ask(&parse("", "SELECT 1")),
        Action::Discard
    ));
    assert_eq!(found(lose(subject, Cause::Closed), "BS"), "08006||I|idle");
}

#[test]
fn an_idle_client_is_told_at_its_next_message() {
    for (steps, next, expect) in [
        ("a write in a block", "QQ", "|08006 E|.|failed"),
        ("a write in a block", "PBSQ", "|08006||E|.|failed"),
        ("a write in a block", "HSQ", "||08006 E|.|failed"),
        (":SELECT 1 + an answer", "SQ", "|08006 I|.|idle"),
        ("BEGIN, answered + a failure", "Q", "|.|failed"),
    ] {
        let mut subject = lent(Holds::Current);
        act(&mut subject, steps);
        let found = found(lose(subject, Cause::Closed), next);
        assert_eq!(found, expect, "{steps}: {next}");
    }
    let mut subject = lent(Holds::Current);
    wrote(&mut subject);
    let found = found(lose(subject, Cause::ClosedAfterTakeover), "Q");
    assert_eq!(found, "|PF001 E|failed");
}

#[test]
fn a_declaration_is_not_repeated() {
    let mut subject = Subject::new(Holds::Current);
    subject.lend(fresh());
    let asked = subject.ask(&query(INSERT));
    assert!(matches!(asked, Action::Need(Prerequisite::Tokens(..))));
    assert_eq!(found(lose(subject, Cause::Closed), "QQ"), "|08006 I|.|idle");
}

/// Such a client does not stay.
#[test]
fn a_client_whose_login_is_not_complete_is_told_at_once() {
    for (depose, sqlstate) in [(false, "57P01"), (true, "PF001")] {
        let mut subject = lent(Holds::Current);
        let error = error_body("FATAL", "57P01", "terminating connection");
        if depose {
            subject.depose();
        }
        let _ = subject.session.on_terminated(&error);
        let _ = subject.session.on_server_closed();
        subject.session.refuse_login();
        subject.take_output();
        let said = &split(&subject.to_client)[0][5..];
        assert!(backend::is_fatal(said));
        assert_eq!(backend::error_field(said, b'C'), Some(sqlstate.as_bytes()));
    }
}

/// PostgreSQL ends such a session, too.
#[test]
fn a_client_that_breaks_the_protocol_ends() {
    let mut subject = lent(Holds::Current);
    subject.pipeline("COPY t FROM STDIN");
    let error = error_body("FATAL", "08P01", "unexpected message type 0x45");
    let said = subject.reply(b'E', &error);
    assert!(
        matches!(said, Disposition::End(ending) if matches!(*ending, Ending::ProtocolViolation(_)))
    );
    assert!(subject.to_client.ends_with(&error));
}

/// Gives a client another connection, and takes that to where the client believes to be. `replies` are those to BEGIN
/// and what fails it.
fn resumed(client: Box<ClientHalf>, replies: &[u8], status: u8) -> Result<Subject, Ending> {
    let mut subject = Subject::new(Holds::None);
    let server = fresh();
    subject.session = Session::lend(client, server);
    subject.to_server.clear();
    let verdicts = RefCell::new(VerdictCache::new(1 << 20));
    loop {
        let step = subject.session.resume(&verdicts);
        subject.take_output();
        match step {
            Step::Done => break,
            Step::Decided(Action::Need(Prerequisite::Access(change))) => subject.set_access(change),
            Step::Decided(Action::Need(Prerequisite::Replies)) => {
                for tag in replies {
                    let body = match tag {
                        b'E' => error_body("ERROR", "42601", "syntax error"),
                        b'C' => strings(&["BEGIN"]),
                        b'Z' => vec![status],
                        _ => Vec::new(),
                    };
                    assert!(matches!(subject.reply(*tag, &body), Disposition::Drop));
                }
            }
            Step::Decided(Action::End(ending)) => return Err(*ending),
            other => panic!("{other:?}"),
        }
    }
    subject.take_output();
    assert!(subject.to_client.is_empty());
    subject.to_server.clear();
    Ok(subject)
}

/// If PostgreSQL has begun none, the client must not go on outside of it.
#[test]
fn a_failed_transaction_that_did_not_begin_ends_the_session() {
    let mut subject = lent(Holds::Current);
    subject.begin();
    let (client, _) = lose(subject, Cause::Closed);
    let ended = resumed(client, b"3EZ", b'I');
    assert!(matches!(ended, Err(Ending::OwnStatement(_))));
}

/// They are parsed again in the next connection.
#[test]
fn its_prepared_statements_outlive_it() {
    let mut subject = Subject::new(Holds::None);
    subject.lend(fresh());
    subject.synced(&parse("s", "SELECT 1"));
    let (client, _) = subject.session.lose_server();
    assert!(client.statements.unwrap().get(b"s").is_some());
}
