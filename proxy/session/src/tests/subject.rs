//! A session for the tables, and a server that gives every expected answer.

use std::cell::RefCell;
use std::str::FromStr as _;
use std::sync::Arc;

use bytes::BytesMut;
use pgpalisade_authority::{Backend, Cluster, Mark, Scope, Token};
use pgpalisade_policies::{Mode, Policy, VerdictCache, Who};

use super::super::access_mode::{DEFAULT_READ_ONLY, Reported};
use super::super::action::{Action, Disposition, Prerequisite};
use super::super::frame::Frame;
use super::super::greeting::{Greeting, ReportedSettings};
use super::super::in_flight::{Origin, Request};
use super::super::read_only::AccessChange;
use super::super::text_settings::Reports;
use super::super::token_request::{Declared, Obtained, TokenRequest};
use super::super::{Beginning, Met, ServerHalf, Session};
use super::frames::{bind, empty, execute, message, parse, parts, query, split, strings};
use crate::fence::mark_cache::MarkCache;
use crate::fence::{Fence, Identified, SessionFence, TokenValue};
use crate::wire::encode::{self, ParameterStatus};
use crate::wire::frontend;
use crate::wire::header;

/// Mark of the scope at the start, and token of a session that holds one.
pub(super) const MARK: u64 = 5;

/// Token of the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Holds {
    /// The current one, since its startup packet.
    Current,
    None,
    /// One that was current until the mark rose, at the end of the table's preparations.
    Stale,
}

/// A policy under which every write needs the token of the default scope.
pub(super) fn fence() -> SessionFence {
    fence_in(Mode::Enforce)
}

pub(super) fn fence_in(mode: Mode) -> SessionFence {
    let policy = Policy::parse("[defaults]\nallow = [\"prepare-transaction\"]\n", &|_| {
        Ok(())
    });
    let fence = Fence::new(policy.unwrap(), MarkCache::default().into(), mode).unwrap();
    raise(&fence, MARK);
    Arc::new(fence).for_session(&Who {
        user: "u",
        database: "d",
        application_name: None,
        client: None,
        common_name: None,
    })
}

pub(super) fn raise(fence: &Fence, mark: u64) {
    let mark = Mark::new(Token::new(mark).unwrap(), 1, "tests".to_owned());
    fence.mark(&Scope::default()).raise(&mark);
}

pub(super) fn wanted(fence: &SessionFence, value: &str) -> TokenRequest {
    let value = TokenValue::parse(value, &Scope::from_str("default").unwrap());
    TokenRequest::new(fence, value.unwrap().unwrap())
}

pub(super) const fn identified() -> Identified {
    Identified {
        backend: Backend {
            pid: 7,
            started_us: 1,
        },
        cluster: Cluster {
            system_identifier: 1,
            timeline: 1,
            postmaster_us: 0,
        },
    }
}

/// A session after its login.
pub(super) fn session(fence: SessionFence) -> Session {
    session_begun(fence, "off")
}

/// A session whose default access mode was reported as `default`.
pub(super) fn session_begun(fence: SessionFence, default: &str) -> Session {
    let (mut reported, mut texts) = (Reported::default(), Reports::default());
    for (name, value) in [
        (DEFAULT_READ_ONLY, default),
        ("in_hot_standby", "off"),
        ("server_encoding", "UTF8"),
        ("client_encoding", "UTF8"),
        ("standard_conforming_strings", "on"),
    ] {
        reported.note(name.as_bytes(), value.as_bytes());
        texts.note(name.as_bytes(), value.as_bytes());
    }
    let mut session = Session::new(Beginning {
        fence,
        scope: None,
        backend_pid: 7,
        reported,
        texts,
    });
    let greeting = greeting();
    session.server.reported = ReportedSettings::new(Arc::clone(&greeting));
    session.client.told = greeting;
    session
}

/// Settings that a login reports.
pub(super) const INITIAL: [(&str, &str); 5] = [
    ("TimeZone", "UTC"),
    ("DateStyle", "ISO, MDY"),
    ("application_name", ""),
    ("search_path", "public"),
    ("client_encoding", "UTF8"),
];

pub(super) fn greeting() -> Arc<Greeting> {
    let mut greeting = Greeting::default();
    for (name, value) in INITIAL {
        let mut report = BytesMut::new();
        encode::put(
            &mut report,
            &ParameterStatus::new(name.into(), value.into()),
        );
        greeting.note(report.freeze());
    }
    Arc::new(greeting)
}

/// A session and what it has sent.
pub(super) struct Subject {
    pub(super) session: Session,
    pub(super) fence: SessionFence,
    verdicts: RefCell<VerdictCache>,
    /// Bytes from the session for the client.
    pub(super) to_client: Vec<u8>,
    /// Bytes from the session for the server.
    pub(super) to_server: Vec<u8>,
}

impl Subject {
    /// A session that has sent only `SELECT 1` so far, so that its access mode is set.
    pub(super) fn new(holds: Holds) -> Self {
        let mut subject = Self::at_login(holds);
        subject.run(&query("SELECT 1"), "SELECT 1", b'I');
        subject
    }

    /// A session that has sent nothing yet.
    pub(super) fn at_login(holds: Holds) -> Self {
        let fence = fence();
        let mut subject = Self {
            session: session(fence.clone()),
            fence,
            verdicts: RefCell::new(VerdictCache::new(1 << 20)),
            to_client: Vec::new(),
            to_server: Vec::new(),
        };
        if holds != Holds::None {
            let wanted = wanted(&subject.fence, "5");
            subject.session.on_identified(identified());
            let declared =
                subject
                    .session
                    .on_declared(&wanted, identified(), Ok(Obtained::default()));
            declared.unwrap();
            subject.session.start_with(&wanted);
        }
        subject
    }

    /// Makes another session declare a higher token.
    pub(super) fn depose(&self) {
        raise(self.fence.fence(), MARK + 1);
    }

    /// Gives the client another server connection, and returns the one that it had.
    pub(super) fn lend(&mut self, server: Box<ServerHalf>) -> Box<ServerHalf> {
        let (_, unused) = session(self.fence.clone()).part().unwrap();
        let (client, _) = session(self.fence.clone()).part().unwrap();
        let session = std::mem::replace(&mut self.session, Session::lend(client, unused));
        let (client, left) = session.part().unwrap();
        self.session = Session::lend(client, server);
        left
    }

    /// Answers a declaration that the last message needs.
    pub(super) fn declare(&mut self, wanted: &TokenRequest, declared: Declared) -> Met {
        self.session.may_declare(wanted).unwrap();
        let met = self.session.on_declared(wanted, identified(), declared);
        self.take_output();
        met.unwrap()
    }

    /// Decides a message.
    pub(super) fn ask(&mut self, message: &[u8]) -> Action {
        let header = header::parse(message, frontend::body_max).unwrap().unwrap();
        let action = self
            .session
            .on_frontend(Frame::new(header, message), &self.verdicts);
        self.take_output();
        action
    }

    pub(super) fn take_output(&mut self) {
        let output = self.session.output();
        self.to_client
            .extend_from_slice(&std::mem::take(&mut output.to_client));
        self.to_server
            .extend_from_slice(&std::mem::take(&mut output.to_server));
        output.refusals.clear();
    }

    /// Sends a message that must pass, whatever access modes and replies it needs.
    #[track_caller]
    pub(super) fn send(&mut self, message: &[u8]) {
        for _ in 0..8 {
            match self.ask(message) {
                Action::Forward(_) => return,
                Action::Need(Prerequisite::Access(change)) => self.set_access(change),
                Action::Need(Prerequisite::Replies) => self.answer("SELECT 1", b'I'),
                other => panic!("{message:?}: {other:?}"),
            }
        }
        panic!("never sent: {message:?}");
    }

    pub(super) fn set_access(&mut self, change: AccessChange) {
        self.session.begin_set_access(change);
        self.take_output();
        self.answer("SET", b'I');
        let changed = self.session.end_set_access(change);
        assert_eq!(changed.unwrap(), Met::Yes);
    }

    /// Delivers a backend message.
    pub(super) fn reply(&mut self, tag: u8, body: &[u8]) -> Disposition {
        let disposition = self.session.on_backend(tag, body);
        self.take_output();
        disposition
    }

    /// Delivers replies that the client does not get.
    #[track_caller]
    pub(super) fn answer_with(&mut self, replies: &[(u8, &[u8])]) {
        for (tag, body) in replies {
            assert!(matches!(self.reply(*tag, body), Disposition::Drop));
        }
    }

    /// Sends a message, and answers all that is in flight.
    #[track_caller]
    pub(super) fn run(&mut self, message: &[u8], command_tag: &str, status: u8) {
        self.send(message);
        self.answer(command_tag, status);
    }

    /// Sends a message and a Sync, and answers them.
    #[track_caller]
    pub(super) fn synced(&mut self, message: &[u8]) {
        self.send(message);
        self.run(&sync(), "", b'I');
    }

    /// Sends a text in the extended protocol, without a Sync.
    #[track_caller]
    pub(super) fn pipeline(&mut self, text: &str) {
        for message in [parse("", text), bind("", ""), execute("", 0)] {
            self.send(&message);
        }
    }

    pub(super) fn begin(&mut self) {
        self.run(&query("BEGIN"), "BEGIN", b'T');
    }

    /// Fails a transaction block.
    pub(super) fn fail_block(&mut self) {
        self.send(&query("SELECT 1/0"));
        let _ = self.fail();
        self.answer("", b'E');
    }

    /// Decision on a message, as [`word`] says it.
    pub(super) fn decided(&mut self, message: &[u8]) -> String {
        let action = self.ask(message);
        word(&action, self)
    }

    /// As [`Self::decided`], with nothing that was sent before.
    pub(super) fn decided_anew(&mut self, message: &[u8]) -> String {
        self.to_client.clear();
        self.to_server.clear();
        self.decided(message)
    }

    /// Answers all that is in flight, without an error.
    #[track_caller]
    pub(super) fn answer(&mut self, command_tag: &str, status: u8) {
        while let Some(front) = self.session.server.ledger.front() {
            let command_tag = match front.origin {
                Origin::Client => command_tag,
                _ => "SET",
            };
            let complete = (b'C', strings(&[command_tag]));
            let ready = (b'Z', vec![status]);
            let replies = match front.request {
                Request::Parse => vec![(b'1', vec![])],
                Request::Bind => vec![(b'2', vec![])],
                Request::Close => vec![(b'3', vec![])],
                Request::Describe => vec![(b'n', vec![])],
                Request::Execute => match front.origin {
                    Origin::Client => vec![complete],
                    _ => {
                        let asks = self.session.server.read_only.is_asking();
                        let process = asks.then(|| (b'D', super::frames::row("7")));
                        let process = process.into_iter().chain([complete]);
                        process.chain(self.report()).collect()
                    }
                },
                Request::Query => vec![complete, ready],
                _ => vec![ready],
            };
            for (tag, body) in replies {
                let _ = self.reply(tag, &body);
            }
        }
    }

    /// Report of the server on the default that the session set last.
    fn report(&self) -> Option<(u8, Vec<u8>)> {
        let sent = String::from_utf8_lossy(&self.to_server);
        let (_, behind) = sent.rsplit_once(&format!("{DEFAULT_READ_ONLY} "))?;
        let value = match behind.split_once('\0')? {
            ("= on", _) => "on",
            _ => "off",
        };
        Some((b'S', strings(&[DEFAULT_READ_ONLY, value])))
    }

    /// Answers the request at the front with an error.
    pub(super) fn fail(&mut self) -> Disposition {
        self.reply(
            b'E',
            &super::frames::error_body("ERROR", "22012", "division by zero"),
        )
    }
}

/// Action in one word, with what the session sends ahead of it: `+` to the server, `!` to the client.
pub(super) fn word(action: &Action, subject: &Subject) -> String {
    let word = match action {
        Action::Forward(permit) => match permit.basis() {
            crate::fence::Basis::NotRequired => "free",
            crate::fence::Basis::Token => "token",
            crate::fence::Basis::Exempt => "exempt",
            crate::fence::Basis::FailedTransaction => "fails",
        },
        Action::Discard if subject.to_client.is_empty() && subject.to_server.is_empty() => "drop",
        Action::Discard => "no",
        Action::AwaitFront => "front",
        Action::AwaitWhole => "whole",
        Action::Need(prerequisite) => match prerequisite {
            Prerequisite::Replies => "wait",
            Prerequisite::Verdict(..) => "classify",
            Prerequisite::History => "history",
            Prerequisite::Access(AccessChange::ReadWrite(_)) => "lift",
            Prerequisite::Access(AccessChange::Guard) => "guard",
            Prerequisite::Access(AccessChange::Release) => "release",
            Prerequisite::Tokens(_, None) => "declare",
            Prerequisite::Tokens(_, Some(_)) => "lift+declare",
        },
        Action::Terminate => "bye",
        Action::End(_) => return "end".to_owned(),
    };
    let said = |bytes: &[u8], sign: &str| match bytes {
        [] => String::new(),
        _ => sign.to_owned(),
    };
    let (server, client) = (said(&subject.to_server, "+"), said(&subject.to_client, "!"));
    format!("{server}{client}{word}")
}

/// What the session sends ahead of a message, and its decision.
pub(super) fn ahead(subject: &mut Subject, message: &[u8]) -> String {
    subject.to_server.clear();
    subject.to_client.clear();
    let action = subject.ask(message);
    let sent = split(&subject.to_server);
    let own = sent.iter().map(|message| {
        let (tag, body) = parts(message);
        format!("{}({}) ", char::from(tag), body.escape_ascii())
    });
    let own: String = own.collect();
    subject.to_server.clear();
    format!("{own}{}", word(&action, subject))
}

/// A server connection after its login, in which nothing was declared.
pub(super) fn fresh() -> Box<ServerHalf> {
    session(fence()).part().unwrap().1
}

/// Compares a table with what was found, and shows all of it if they differ.
#[track_caller]
pub(super) fn check_table(expect: &str, found: &str) {
    let words = |table: &str| -> Vec<Vec<String>> {
        let lines = table.lines().filter(|line| !line.trim().is_empty());
        lines
            .map(|line| line.split_whitespace().map(str::to_owned).collect())
            .collect()
    };
    assert!(words(expect) == words(found), "found:\n{found}");
}

pub(super) fn malformed(tag: u8) -> Vec<u8> {
    message(tag, b"x")
}

pub(super) fn sync() -> Vec<u8> {
    empty(b'S')
}
