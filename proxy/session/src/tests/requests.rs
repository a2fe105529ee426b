//! Frontend messages in each state of a session, and the decision on each.
//!
//! Cells: a message that passes by the basis of its permit (`free`: needs no token; `token`; `exempt`; `fails`: the
//! transaction has failed), with a `+` if the session sends the server something ahead of it. `no` is a refusal,
//! `!no` told to the client by the session, `+no` by an error of the server. `drop`: discarded. `wait` for replies,
//! `front` and `whole` for more of it. `guard`, `lift`, `release`: the access mode first. `declare`: a token first.
//! `end` of the session, `bye`. `-`: there is no such state.

use pgpalisade_authority::{Scope, Token};
use pgpalisade_policies::{Mode, TextEncoding};

use super::super::Met;
use super::super::action::{Action, Prerequisite};
use super::super::token_request::Obtained;
use super::frames::{bind, bind_one, empty, execute, function_call, message, parse, query, target};
use super::subject::{
    Holds, MARK, Subject, ahead, check_table, fence_in, identified, malformed, sync, wanted, word,
};
use crate::fence::{Name, PreparedText, ServerText};
use crate::wire::backend::TransactionStatus;

/// States, in the order of the columns.
const STATES: [(&str, Reach); 10] = [
    ("idle", |_, _| Some(())),
    ("block", |subject, _| {
        subject.begin();
        portals(subject);
        subject.run(&sync(), "", b'T');
        Some(())
    }),
    ("failed", |subject, _| {
        subject.begin();
        subject.fail_block();
        Some(())
    }),
    ("pipe", |subject, _| {
        portals(subject);
        Some(())
    }),
    ("ran", |subject, _| {
        portals(subject);
        subject.send(&execute("r", 0));
        subject.answer("SELECT 1", b'I');
        Some(())
    }),
    // A function that may have switched read-only mode off has run, and another transaction has begun.
    ("doubt", |subject, _| {
        for (name, text) in [("h", "SELECT f()"), ("c", "COMMIT")] {
            subject.send(&parse(name, text));
            subject.send(&bind(name, name));
            subject.send(&execute(name, 0));
            subject.answer(if name == "c" { "COMMIT" } else { "SELECT 1" }, b'I');
        }
        Some(())
    }),
    ("skip", |subject, _| {
        portals(subject);
        let _ = subject.fail();
        Some(())
    }),
    ("copy", |subject, holds| {
        (holds != Holds::None).then(|| {
            subject.send(&query("COPY t FROM STDIN"));
            let _ = subject.reply(b'G', &[0, 0, 0]);
        })
    }),
    ("behind", |subject, _| {
        subject.send(&query("SELECT 1"));
        Some(())
    }),
    ("settling", |subject, holds| {
        subject.send(&query(match holds {
            Holds::None => "SET fencing.token = ''",
            Holds::Current | Holds::Stale => "SET fencing.token = '5'",
        }));
        Some(())
    }),
];

/// Brings a session into a state, if that is possible.
type Reach = fn(&mut Subject, Holds) -> Option<()>;

/// Binds a portal of the read and one of the write that each session has prepared.
fn portals(subject: &mut Subject) {
    subject.send(&bind("r", "r"));
    subject.send(&bind("w", "w"));
}

fn messages() -> Vec<(&'static str, Vec<u8>)> {
    let begun = |message: Vec<u8>| message[..6].to_vec();
    vec![
        ("Q:read", query("SELECT 1")),
        ("Q:write", query("INSERT INTO t VALUES (1)")),
        ("Q:copy", query("COPY t FROM STDIN")),
        ("Q:begin", query("BEGIN")),
        ("Q:commit", query("COMMIT")),
        ("Q:rollback", query("ROLLBACK")),
        ("Q:same", query("SET fencing.token = '5'")),
        ("Q:other", query("SET fencing.token = '9'")),
        ("Q:lower", query("SET fencing.token = '4'")),
        ("Q:none", query("SET fencing.token = ''")),
        ("Q:take", query("SET fencing.token = 'after:5'")),
        ("Q:taken", query("SET fencing.token = 'after:3'")),
        ("Q:next", query("SET fencing.token = 'next'")),
        (
            "Q:next,reads",
            query("SET fencing.token = 'next'; SELECT 1"),
        ),
        ("Q:ends,sets", query("COMMIT; SET fencing.token = '9'")),
        ("Q:show", query("SHOW fencing.status")),
        ("Q:history", query("SHOW fencing.history")),
        ("Q:execute", query("EXECUTE w")),
        ("Q:empty", query("")),
        ("Q:malformed", malformed(b'Q')),
        ("Q:begun", begun(query("SELECT 1"))),
        ("P:read", parse("a", "SELECT 1")),
        ("P:write", parse("a", "INSERT INTO t VALUES (1)")),
        ("P:literal", parse("a", "SELECT '{1}'::d[]")),
        (
            "P:unread",
            parse("a", &format!("SELECT {}1", "+".repeat(300))),
        ),
        ("P:malformed", malformed(b'P')),
        ("P:begun", begun(parse("a", "SELECT 1"))),
        ("B:read", bind("a", "r")),
        ("B:value", bind_one("a", "r")),
        ("B:write", bind("a", "w")),
        ("B:unknown", bind("a", "x")),
        ("B:malformed", malformed(b'B')),
        ("D:read", target(b'D', b'S', "r")),
        ("D:write", target(b'D', b'S', "w")),
        ("D:portal", target(b'D', b'P', "w")),
        ("D:malformed", malformed(b'D')),
        ("E:read", execute("r", 0)),
        ("E:write", execute("w", 0)),
        ("E:unknown", execute("x", 0)),
        ("E:malformed", malformed(b'E')),
        ("E:begun", begun(execute("r", 0))),
        ("C:statement", target(b'C', b'S', "r")),
        ("C:portal", target(b'C', b'P', "r")),
        ("C:malformed", malformed(b'C')),
        ("S", sync()),
        ("S:malformed", malformed(b'S')),
        ("H", empty(b'H')),
        ("H:malformed", malformed(b'H')),
        ("F", function_call()),
        ("F:read", message(b'F', LO_CLOSE)),
        ("d", message(b'd', b"1\n")),
        ("c", empty(b'c')),
        ("f", message(b'f', b"why\0")),
        ("X", empty(b'X')),
        ("p", message(b'p', b"secret\0")),
        ("unknown", empty(b'!')),
    ]
}

/// A FunctionCall of lo_close with a binary argument.
const LO_CLOSE: &[u8] = b"\0\0\x03\xb9\0\x01\0\x01\0\x01\0\0\0\x04\0\0\0\0\0\x01";

/// Outcome of one message in one state.
fn cell(holds: Holds, reach: Reach, message: &[u8]) -> Option<String> {
    let mut subject = Subject::new(holds);
    for (name, text) in [("r", "SELECT 1"), ("w", "INSERT INTO t VALUES (1)")] {
        subject.run(&parse(name, text), "", b'I');
    }
    subject.run(&sync(), "", b'I');
    reach(&mut subject, holds)?;
    if holds == Holds::Stale {
        subject.depose();
    }
    subject.to_client.clear();
    subject.to_server.clear();
    let action = subject.ask(message);
    Some(word(&action, &subject))
}

/// Messages with the same cells share a row, in the order of the first of them.
fn table(holds: Holds) -> String {
    let row =
        |cells: &[&str]| -> String { cells.iter().map(|cell| format!("{cell:<7} ")).collect() };
    let mut rows: Vec<(String, Vec<&str>)> = Vec::new();
    for (name, message) in messages() {
        let found = STATES.map(|(_, reach)| cell(holds, reach, &message));
        let cells = row(&found.each_ref().map(|cell| cell.as_deref().unwrap_or("-")));
        match rows.iter_mut().find(|(same, _)| *same == cells) {
            Some((_, names)) => names.push(name),
            None => rows.push((cells, vec![name])),
        }
    }
    let mut table = row(&STATES.map(|(name, _)| name));
    for (mut cells, names) in rows {
        for name in names {
            if cells.len() + name.len() > 118 {
                table.push_str(&format!("\n{}", cells.trim_end()));
                cells = " ".repeat(80);
            }
            cells.push_str(&format!(" {name}"));
        }
        table.push_str(&format!("\n{cells}"));
    }
    table
}

/// A Sync passes before the change of the access mode that is due. The message after it does not.
#[test]
fn a_sync_in_front_of_the_first_request() {
    let mut subject = Subject::at_login(Holds::None);
    assert_eq!(subject.decided(&sync()), "free");
    let select = query("SELECT 1");
    assert_eq!(subject.decided(&select), "wait");
    subject.answer("", b'I');
    assert_eq!(subject.decided(&select), "guard");
}

/// The end of a pipeline decides whether a SET in it counts, so the next message waits for it.
#[test]
fn what_follows_a_pipeline_that_sets_a_token() {
    let text = "SET fencing.token = '5'";
    for end in [
        query("SELECT 1/0"),
        function_call(),
        malformed(b'Q'),
        sync(),
    ] {
        let mut subject = Subject::new(Holds::Current);
        for message in [parse("", text), bind("", ""), execute("", 0)] {
            subject.run(&message, "SET", b'I');
        }
        subject.send(&end);
        let action = subject.ask(&query("INSERT INTO t VALUES (1)"));
        assert!(
            matches!(action, Action::Need(Prerequisite::Replies)),
            "{end:?}: {action:?}"
        );
    }
}

/// A session whose startup packet has taken a token that the server does not know yet.
fn started_with_a_take() -> Subject {
    let mut subject = Subject::at_login(Holds::None);
    let wanted = wanted(&subject.fence, "next");
    let obtained = Obtained {
        taken: vec![(Scope::default(), Token::new(MARK).unwrap())],
        ..Obtained::default()
    };
    let declared = subject
        .session
        .on_declared(&wanted, identified(), Ok(obtained));
    declared.unwrap();
    subject.session.start_with(&wanted);
    subject
}

fn has_told_the_number(subject: &Subject) -> bool {
    let told = String::from_utf8_lossy(&subject.to_server);
    told.contains(&format!("SET fencing.token = '{MARK}'"))
}

/// Such a message could not be answered there, and sees no setting.
#[test]
fn what_runs_nothing_is_sent_before_the_number_is_told() {
    for (tag, body) in [
        (b'S', &b""[..]),
        (b'H', b""),
        (b'X', b""),
        (b'd', b"1\n"),
        (b'c', b""),
        (b'f', b"\0"),
    ] {
        let mut subject = started_with_a_take();
        subject.ask(&message(tag, body));
        assert!(!has_told_the_number(&subject), "{}", char::from(tag));
    }
    let mut subject = started_with_a_take();
    subject.send(&query("SELECT 1"));
    assert!(has_told_the_number(&subject));
}

/// DISCARD ALL commits at once and restores a take. The number is set in the pipeline, whose end may undo it.
#[test]
fn what_follows_a_pipeline_that_returns_to_a_take() {
    let mut subject = started_with_a_take();
    subject.run(&query("SELECT 1"), "SELECT 1", b'I');
    for message in [parse("", "DISCARD ALL"), bind("", ""), execute("", 0)] {
        subject.run(&message, "DISCARD ALL", b'I');
    }
    subject.to_server.clear();
    subject.send(&bind("", ""));
    assert!(has_told_the_number(&subject));
    subject.send(&sync());
    let action = subject.ask(&function_call());
    assert!(
        matches!(action, Action::Need(Prerequisite::Replies)),
        "{action:?}"
    );
}

/// The server has the take again only if a rollback has undone the number.
#[test]
fn a_rollback_of_the_number() {
    use TransactionStatus::{Idle, InTransaction};
    for (status, reply, expect) in [(InTransaction, b'T', true), (Idle, b'I', false)] {
        let mut subject = started_with_a_take();
        subject.session.client.state.on_ready(status);
        subject.run(&query("SELECT 1"), "SELECT 1", reply);
        assert!(has_told_the_number(&subject));
        subject.begin();
        subject.run(&query("ROLLBACK"), "ROLLBACK", b'I');
        subject.to_server.clear();
        subject.send(&query("SELECT 1"));
        assert_eq!(has_told_the_number(&subject), expect, "{status:?}");
    }
}

/// A SET after a take is no take, though the take may have had no reply that shows its end.
#[test]
fn a_take_concerns_its_own_set_only() {
    let mut subject = Subject::new(Holds::Current);
    let token = subject.session.client.state.token().cloned();
    subject.session.client.state.on_taken(Some(token));
    subject.run(&query("SET fencing.token = '5'"), "SET", b'I');
    let found = subject.session.client.state.server_text();
    assert_eq!(found, ServerText::Tokens);
}

/// The statements after the SET in the same text may write.
#[test]
fn the_guard_is_given_back_before_a_set() {
    let mut subject = Subject::new(Holds::None);
    subject.session.on_identified(identified());
    let text = query("SET fencing.token = 6");
    let Action::Need(Prerequisite::Tokens(wanted, None)) = subject.ask(&text) else {
        panic!("6 is not declared");
    };
    let declared = Ok(Obtained::default());
    let met = subject.session.on_declared(&wanted, identified(), declared);
    assert_eq!(met.unwrap(), Met::Yes);
    subject.to_server.clear();
    assert_eq!(subject.decided(&text), "+free");
}

#[test]
fn names_are_forgotten_after_a_text_that_changes_them_by_name() {
    let mut subject = Subject::new(Holds::Current);
    for (name, text) in [("r", "SELECT 1"), ("d", "DEALLOCATE r")] {
        subject.run(&parse(name, text), "", b'I');
    }
    subject.run(&sync(), "", b'I');
    for (text, is_known) in [("EXECUTE r", true), ("EXECUTE d", false)] {
        subject.run(&query(text), "DEALLOCATE", b'I');
        let found = subject.session.server.names.get(Name::statement(b"r"));
        let found = found.and_then(PreparedText::verdict);
        assert_eq!(found.is_some(), is_known, "{text}");
    }
}

/// Its refusal is only observed, and what another SET of the text has obtained is not its own.
#[test]
fn a_take_beside_a_declaration_has_nothing() {
    let mut subject = Subject::at_login(Holds::None);
    subject.session.follow(fence_in(Mode::Observe));
    subject.session.on_identified(identified());
    let text = query("SET fencing.token = 6; SET fencing.token = 'next'");
    let Action::Need(Prerequisite::Tokens(wanted, None)) = subject.ask(&text) else {
        panic!("6 is not declared");
    };
    let declared = Ok(Obtained::default());
    let met = subject.session.on_declared(&wanted, identified(), declared);
    assert_eq!(met.unwrap(), Met::Yes);
    subject.send(&text);
    for (tag, body) in [(b'C', "SET\0"), (b'C', "SET\0"), (b'Z', "I")] {
        let _ = subject.reply(tag, body.as_bytes());
    }
    assert!(subject.session.client.state.token().is_none());
}

/// A policy that is loaded meanwhile does not give it the right.
#[test]
fn a_session_with_a_given_token_declares_none() {
    let mut subject = Subject::new(Holds::Current);
    let fence = subject.session.client.fence.clone();
    subject.session.client.fence = fence.clone().with_given_tokens();
    for _ in 0..2 {
        for own in [
            "SET fencing.token = 6",
            "SET fencing.token = 'next'",
            "SELECT set_config('fencing.token', '6', false)",
            "BEGIN; SET LOCAL fencing.token = 6",
        ] {
            assert!(
                word(&subject.ask(&query(own)), &subject).contains("no"),
                "{own}"
            );
        }
        subject.session.follow(fence.clone());
    }
}

/// Portals end with their transaction, even if ReadyForQuery does not report its end: their names are free again.
#[test]
fn a_portal_that_is_bound_again_behind_a_commit() {
    let mut subject = Subject::new(Holds::Current);
    for (name, text) in [("c", "COMMIT"), ("s", "RESET fencing.token")] {
        subject.run(&parse(name, text), "", b'I');
    }
    subject.run(&bind("p", "c"), "", b'I');
    subject.run(&execute("p", 0), "COMMIT", b'I');
    subject.run(&bind("p", "s"), "", b'I');
    subject.to_server.clear();
    assert_eq!(subject.decided(&execute("p", 0)), "free");
}

/// Nothing runs in a failed transaction, so nothing hides there. After its end, while that is in flight, it may.
#[test]
fn what_could_hide_behind_the_end_of_a_failed_transaction() {
    for end in ["ROLLBACK", "COMMIT"] {
        let mut subject = Subject::new(Holds::None);
        for (name, text) in [("end", end), ("hides", "SELECT f()")] {
            subject.run(&parse(name, text), "", b'I');
        }
        subject.begin();
        subject.fail_block();
        let hides = bind("", "hides");
        let action = subject.ask(&hides);
        assert!(matches!(action, Action::Forward(_)), "{end}: {action:?}");
        subject.run(&sync(), "", b'E');
        for message in [bind("", "end"), execute("", 0)] {
            subject.send(&message);
        }
        let action = subject.ask(&hides);
        let waits = matches!(action, Action::Need(Prerequisite::Replies));
        assert!(waits, "{end}: {action:?}");
    }
}

/// A function of the database may have changed the encoding of what follows in the same request cycle.
#[test]
fn what_leaves_the_encoding_in_doubt() {
    for holds in [Holds::None, Holds::Current] {
        for message in [
            parse("a", "SELECT '{1}'::d[]"),
            parse("", "SELECT '{1}'::d[]"),
            bind_one("a", "r"),
            bind("a", "w"),
            target(b'D', b'S', "w"),
            execute("p", 0),
        ] {
            let mut subject = Subject::new(holds);
            for (name, text) in [("r", "SELECT 1"), ("w", "INSERT INTO t VALUES (1)")] {
                subject.run(&parse(name, text), "", b'I');
            }
            subject.run(&sync(), "", b'I');
            if message[0] == b'E' {
                subject.send(&bind("p", "r"));
            }
            let reads = |subject: &Subject| {
                let server = &subject.session.server;
                let text = "SELECT '\u{e9}'".as_bytes();
                server.text_settings.for_text(text, server.ledger.settled())
            };
            // A Bind by name may have run anything.
            if message[0] != b'E' {
                assert_eq!(reads(&subject), Some(TextEncoding::Utf8));
            }
            subject.send(&message);
            let found = reads(&subject);
            assert_eq!(found, Some(TextEncoding::Other), "{holds:?} {message:?}");
            subject.send(&sync());
            subject.answer("SELECT 1", b'I');
            assert_eq!(reads(&subject), Some(TextEncoding::Utf8));
        }
    }
}

#[test]
fn a_session_with_the_current_token() {
    check_table(CURRENT, &table(Holds::Current));
}

#[test]
fn a_session_without_a_token() {
    check_table(NONE, &table(Holds::None));
}

#[test]
fn a_session_with_a_stale_token() {
    check_table(STALE, &table(Holds::Stale));
}

const CURRENT: &str = "
idle    block   failed  pipe    ran     doubt   skip    copy    behind  settling
token   token   token   token   token   token   drop    end     token   wait     Q:read Q:write Q:copy Q:empty E:read
                                                                                 E:write E:unknown F
free    free    fails   free    free    free    drop    end     free    wait     Q:begin
free    token   free    token   token   free    drop    end     token   wait     Q:commit
free    free    free    free    free    free    drop    end     free    wait     Q:rollback Q:malformed P:read P:write
                                                                                 P:literal P:unread P:malformed B:read
                                                                                 B:value B:write B:unknown B:malformed
                                                                                 D:read D:write D:portal D:malformed
                                                                                 E:malformed C:statement C:portal
                                                                                 C:malformed F:read
free    free    fails   wait    free    free    drop    end     wait    wait     Q:same
declare +no     fails   wait    +no     declare drop    end     wait    wait     Q:other Q:take Q:next
!no     +no     fails   wait    +no     +no     drop    end     wait    wait     Q:lower Q:taken Q:next,reads
free    +no     fails   wait    +no     free    drop    end     wait    wait     Q:none
declare +no     declare wait    +no     declare drop    end     wait    wait     Q:ends,sets
+free   +free   fails   wait    +free   +free   drop    end     wait    wait     Q:show
history history fails   wait    history history drop    end     wait    wait     Q:history
token   token   fails   wait    token   token   drop    end     wait    wait     Q:execute
whole   whole   whole   whole   whole   whole   drop    end     whole   wait     Q:begun P:begun
front   front   front   front   front   front   drop    end     front   wait     E:begun
free    free    free    free    free    free    free    free    free    wait     S S:malformed
free    free    free    free    free    free    drop    free    free    wait     H H:malformed
drop    drop    drop    wait    drop    drop    drop    token   wait    wait     d c
drop    drop    drop    wait    drop    drop    drop    free    wait    wait     f
bye     bye     bye     bye     bye     bye     bye     bye     bye     wait     X
end     end     end     wait    end     end     drop    end     wait    wait     p
end     end     end     wait    end     end     end     end     wait    wait     unknown
";

const NONE: &str = "
idle    block   failed  pipe    ran     doubt   skip    copy    behind  settling
free    free    fails   free    free    free    drop    -       wait    wait     Q:read Q:begin
!no     +no     fails   wait    +no     +no     drop    -       wait    wait     Q:write Q:copy Q:lower Q:taken
                                                                                 Q:next,reads Q:execute
free    free    free    free    free    free    drop    -       wait    wait     Q:commit Q:rollback Q:empty
                                                                                 Q:malformed P:read P:write P:malformed
                                                                                 B:malformed D:portal D:malformed
                                                                                 E:malformed
declare lift+declare fails   wait    lift+declare lift+declare drop    -       wait    wait     Q:same Q:other Q:take
                                                                                 Q:next
free    free    fails   wait    free    free    drop    -       wait    wait     Q:none
declare declare declare wait    lift+declare lift+declare drop    -       wait    wait     Q:ends,sets
+free   +free   fails   wait    +free   +free   drop    -       wait    wait     Q:show
history history fails   wait    history history drop    -       wait    wait     Q:history
whole   whole   whole   whole   whole   whole   drop    -       wait    wait     Q:begun P:begun
free    free    free    free    free    +no     drop    -       wait    wait     P:literal P:unread B:read B:value
                                                                                 B:write B:unknown D:read D:write
                                                                                 F:read
+no     free    +no     free    free    +no     drop    -       wait    wait     E:read
+no     +no     +no     wait    +no     +no     drop    -       wait    wait     E:write E:unknown
front   front   front   front   front   front   drop    -       wait    wait     E:begun
free    free    free    free    free    free    drop    -       free    wait     C:statement C:portal C:malformed H
                                                                                 H:malformed
free    free    free    free    free    free    free    -       free    wait     S S:malformed
!no     +no     +no     wait    +no     +no     drop    -       wait    wait     F
drop    drop    drop    wait    drop    drop    drop    -       wait    wait     d c f
bye     bye     bye     bye     bye     bye     bye     -       bye     wait     X
end     end     end     wait    end     end     drop    -       wait    wait     p
end     end     end     wait    end     end     end     -       wait    wait     unknown
";

const STALE: &str = "
idle    block   failed  pipe    ran     doubt   skip    copy    behind  settling
guard   free    fails   free    free    free    drop    end     wait    wait     Q:read Q:begin
guard   +no     fails   wait    +no     +no     drop    end     wait    wait     Q:write Q:copy Q:same Q:lower Q:taken
                                                                                 Q:next,reads Q:execute
guard   +no     free    wait    +no     free    drop    end     wait    wait     Q:commit
guard   free    free    free    free    free    drop    end     wait    wait     Q:rollback Q:empty Q:malformed P:read
                                                                                 P:write P:malformed B:malformed
                                                                                 D:portal D:malformed E:malformed
guard   +no     fails   wait    +no     declare drop    end     wait    wait     Q:other Q:take Q:next
guard   +no     fails   wait    +no     free    drop    end     wait    wait     Q:none
guard   +no     declare wait    +no     declare drop    end     wait    wait     Q:ends,sets
guard   +free   fails   wait    +free   +free   drop    end     wait    wait     Q:show
guard   history fails   wait    history history drop    end     wait    wait     Q:history
guard   whole   whole   whole   whole   whole   drop    end     wait    wait     Q:begun P:begun
guard   +no     free    wait    +no     +no     drop    end     wait    wait     P:literal P:unread B:read B:value
                                                                                 B:write B:unknown D:read D:write
                                                                                 F:read
guard   free    +no     free    free    +no     drop    end     wait    wait     E:read
guard   +no     +no     wait    +no     +no     drop    end     wait    wait     E:write E:unknown F
guard   front   front   front   front   front   drop    end     wait    wait     E:begun
guard   free    free    free    free    free    drop    end     free    wait     C:statement C:portal C:malformed
free    free    free    free    free    free    free    free    free    wait     S S:malformed
free    free    free    free    free    free    drop    free    free    wait     H H:malformed
drop    drop    drop    wait    drop    drop    drop    +no     wait    wait     d c
drop    drop    drop    wait    drop    drop    drop    free    wait    wait     f
bye     bye     bye     bye     bye     bye     bye     bye     bye     wait     X
guard   end     end     wait    end     end     drop    end     wait    wait     p
end     end     end     wait    end     end     end     end     wait    wait     unknown
";

/// One that is refused only for want of a token is sent without READ WRITE.
#[test]
fn a_begin_with_read_write() {
    for (holds, text, expect) in [
        (Holds::None, "BEGIN READ WRITE", "Q(BEGIN\\x00) drop"),
        (Holds::None, "BEGIN READ WRITE; SELECT 1", "!no"),
        (Holds::None, "/* */ BEGIN READ WRITE", "!no"),
        (Holds::Current, "BEGIN READ WRITE", "token"),
        (Holds::Stale, "BEGIN READ WRITE", "!no"),
    ] {
        let mut subject = Subject::new(holds);
        if holds == Holds::Stale {
            subject.depose();
            subject.run(&query("SELECT 1"), "SELECT 1", b'I');
        }
        let found = ahead(&mut subject, &query(text));
        assert_eq!(found, expect, "{holds:?} {text}");
    }
}
