//! Driver in place of the relay: carries messages of both sides, and does what must happen before one is decided. The
//! steps are those of `relay/prepare.rs` and `relay/token_grant.rs`, with chance in place of the authority.

use std::cell::RefCell;
use std::collections::VecDeque;

use bytes::BytesMut;
use pgpalisade_authority::{Claim, Token};
use pgpalisade_policies::{VerdictCache, classify};
use rand::Rng as _;
use rand::rngs::StdRng;

use super::super::action::{Action, Disposition, Prerequisite};
use super::super::frame::Frame;
use super::super::lost_server::Step;
use super::super::read_only::AccessChange;
use super::super::token_request::{Declared, Obtained, TokenRequest};
use super::super::unserved::Needs;
use super::super::{ClientHalf, Identity, Met, ServerHalf, Session};
use super::frames::{empty, error_body, parts, split};
use super::postgres::{AT_RESET, Postgres};
use super::subject::{self, identified};
use crate::fence::SessionFence;
use crate::rejection::Rejection;
use crate::wire::backend::TransactionStatus;
use crate::wire::frontend::FrontendTag;
use crate::wire::{frontend, header};

/// A client without a server, and what it has declared.
pub(super) struct ParkedClient {
    half: Box<ClientHalf>,
    started: Option<String>,
    declared: Vec<String>,
    lost: Lost,
}

/// Whether a transaction of the client was lost that the client has not ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Lost {
    #[default]
    Nothing,
    Transaction,
}

impl ParkedClient {
    /// Whether a message is answered without a server. What of it is answered alone is blanked.
    pub(super) fn is_answered(
        &mut self,
        message: &mut [u8],
        verdicts: &RefCell<VerdictCache>,
    ) -> bool {
        let (tag, mut out) = (FrontendTag::from_byte(message[0]).unwrap(), BytesMut::new());
        if self.half.answer(tag, &mut out) == Needs::Nothing {
            return true;
        }
        let before = message.to_vec();
        let is_answered = self.half.hold_back(message, verdicts, &mut out) == Needs::Nothing;
        let is_blanked = before != message;
        if is_blanked || (is_answered && may_end_a_transaction(message)) {
            self.lost = Lost::Nothing;
        }
        is_answered
    }
}

fn may_end_a_transaction(message: &[u8]) -> bool {
    let text = String::from_utf8_lossy(message);
    let mut ends = ["COMMIT", "ROLLBACK", "END", "ABORT", "PREPARE TRANSACTION"].iter();
    ends.any(|end| text.contains(end))
}

/// A server without a client.
pub(super) struct ParkedServer {
    half: Box<ServerHalf>,
    server: Postgres,
    granted: Vec<String>,
}

/// Client that has used a server last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Last {
    Own,
    Other,
}

/// Whether a conversation goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Course {
    GoesOn,
    Ended,
}

/// Behaviour of the authority.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Authority {
    /// Accepts every token that is not stale.
    Accepts,
    /// Also refuses or does not answer, at random.
    IsFickle,
}

/// Prerequisites after which a message must be decided.
const ROUNDS_MAX: usize = 12;

/// The session, the server, and the messages between them.
pub(super) struct Driver<'a> {
    pub(super) session: Session,
    pub(super) server: Postgres,
    fence: SessionFence,
    verdicts: &'a RefCell<VerdictCache>,
    rng: &'a mut StdRng,
    authority: Authority,
    to_server: VecDeque<Vec<u8>>,
    to_session: VecDeque<Vec<u8>>,
    /// Bytes that the client has received.
    pub(super) to_client: Vec<u8>,
    mark: u64,
    /// Token of the startup packet.
    started: Option<String>,
    /// Tokens that were accepted for the server.
    granted: Vec<String>,
    /// What the client has said, and the tokens that it has taken.
    declared: Vec<String>,
    lost: Lost,
    /// Number of the take that has raised the mark.
    taken: Option<u64>,
    course: Course,
    /// Messages, printed if a test fails.
    log: Vec<String>,
}

impl Drop for Driver<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.log.join("\n"));
        }
    }
}

impl<'a> Driver<'a> {
    pub(super) fn new(
        verdicts: &'a RefCell<VerdictCache>,
        rng: &'a mut StdRng,
        authority: Authority,
        server: Postgres,
    ) -> Self {
        let fence = subject::fence();
        Self {
            session: subject::session_begun(fence.clone(), server.default_access()),
            server,
            fence,
            verdicts,
            rng,
            authority,
            to_server: VecDeque::new(),
            to_session: VecDeque::new(),
            to_client: Vec::new(),
            mark: subject::MARK,
            started: None,
            granted: Vec::new(),
            declared: Vec::new(),
            lost: Lost::Nothing,
            taken: None,
            course: Course::GoesOn,
            log: Vec::new(),
        }
    }

    fn note(&mut self, what: &str, message: &[u8]) {
        let (tag, body) = parts(message);
        let line = format!("{what} {} {}", char::from(tag), body.escape_ascii());
        self.log.push(line);
    }

    /// Begins the session with a token in its startup packet.
    pub(super) fn start_with(&mut self, value: &str) {
        let wanted = subject::wanted(&self.fence, value);
        assert!(matches!(self.obtain(&wanted, None), Some(Met::Yes)));
        self.started = Some(value.to_owned());
        self.declared.push(value.to_owned());
        self.session.start_with(&wanted);
    }

    /// Begins with another client and another server.
    pub(super) fn log_in(&mut self, server: Postgres, token: Option<&str>) {
        self.session = subject::session_begun(self.fence.clone(), server.default_access());
        self.server = server;
        if let Some(token) = token {
            self.start_with(token);
        }
    }

    /// Waits for the end of a transaction, and parts client and server; `None` if none is near.
    pub(super) fn part(&mut self) -> Option<(ParkedClient, ParkedServer)> {
        self.drain();
        if self.course == Course::Ended || self.server.sync_runs_a_cursor() {
            return None;
        }
        let unused = subject::session(self.fence.clone());
        let half = match std::mem::replace(&mut self.session, unused).part() {
            Ok((client, server)) if !server.exceeds_last_tokens() => (client, server),
            Ok((client, server)) => {
                self.session = Session::lend(client, server);
                return None;
            }
            Err(session) => {
                self.session = *session;
                return None;
            }
        };
        self.log.push("parted".to_owned());
        let client = self.parked(half.0);
        let server = ParkedServer {
            half: half.1,
            server: std::mem::replace(&mut self.server, Postgres::new(&[])),
            granted: std::mem::take(&mut self.granted),
        };
        Some((client, server))
    }

    /// Joins a client with a server that it had last, or that another has used since.
    pub(super) fn lend(&mut self, client: ParkedClient, server: ParkedServer, last: Last) {
        self.log.push("lent".to_owned());
        (self.started, self.declared) = (client.started, client.declared);
        self.lost = client.lost;
        (self.server, self.granted) = (server.server, server.granted);
        self.session = match last {
            Last::Own => Session::lend(client.half, server.half),
            Last::Other => Session::lend_used(client.half, server.half, 0),
        };
        if self.session.is_resetting() {
            self.await_replies();
            self.server.forget_token();
            assert!(self.course == Course::GoesOn);
        }
        let mut front = Front::IsAskedAgain;
        while front == Front::IsAskedAgain && self.course == Course::GoesOn {
            let step = self.session.resume(self.verdicts);
            self.put_output();
            front = match step {
                Step::Done | Step::Decided(Action::Discard) => Front::Answered,
                Step::Decided(Action::Need(prerequisite)) => self.prepare(prerequisite),
                Step::Send(_, message) => {
                    self.to_server.push_back(message.into());
                    self.await_replies();
                    Front::IsAskedAgain
                }
                Step::Decided(other) => panic!("{other:?}"),
            };
        }
    }

    /// Parts a client whose transaction could not begin; the server is not used again.
    pub(super) fn part_refused(&mut self) -> Option<ParkedClient> {
        if self.course == Course::Ended || !self.session.has_next_reply() {
            return None;
        }
        self.lost = Lost::Transaction;
        let unused = subject::session(self.fence.clone());
        let parted = std::mem::replace(&mut self.session, unused).part();
        Some(self.parked(parted.unwrap().0))
    }

    fn parked(&mut self, half: Box<ClientHalf>) -> ParkedClient {
        ParkedClient {
            half,
            started: self.started.take(),
            declared: std::mem::take(&mut self.declared),
            lost: std::mem::take(&mut self.lost),
        }
    }

    /// Ends the server with what is under way, and parts its client; `None` if that would end too.
    pub(super) fn lose_server(&mut self) -> Option<ParkedClient> {
        if self.course == Course::Ended || !self.session.outlives_server() {
            return None;
        }
        self.log.push("lost".to_owned());
        self.to_server.clear();
        self.to_session.clear();
        if self.rng.random() {
            let error = error_body("FATAL", "57P01", "terminated");
            let _ = self.session.on_terminated(&error);
        }
        let _ = self.session.on_server_closed();
        let is_open = self.session.client.state.status() != TransactionStatus::Idle;
        if is_open && self.session.is_answered() {
            self.lost = Lost::Transaction;
        }
        let unused = subject::session(self.fence.clone());
        let (half, _) = std::mem::replace(&mut self.session, unused).lose_server();
        Some(self.parked(half))
    }

    /// One of `count`, at random.
    pub(super) fn choose(&mut self, count: usize) -> usize {
        self.rng.random_range(0..count)
    }

    /// Switches the authority.
    pub(super) const fn answers(&mut self, authority: Authority) {
        self.authority = authority;
    }

    pub(super) const fn course(&self) -> Course {
        self.course
    }

    /// Sends a message of the client; then a random number of messages under way arrive.
    pub(super) fn send(&mut self, message: &[u8]) {
        self.decide(message);
        for _ in 0..self.rng.random_range(0..4) {
            self.step();
        }
    }

    /// Lets another session take over while nothing of this one is under way. If the next Sync would run a cursor,
    /// nothing happens here: the takeover itself ends that session.
    pub(super) fn depose(&mut self) {
        self.drain();
        if self.server.sync_runs_a_cursor() {
            return;
        }
        self.log.push("takeover".to_owned());
        self.raise(self.mark + 1, None);
    }

    /// Delivers all messages under way.
    pub(super) fn drain(&mut self) {
        while self.step() == Moved::Some {}
    }

    fn decide(&mut self, message: &[u8]) {
        self.note("client:", message);
        if may_end_a_transaction(message) {
            self.lost = Lost::Nothing;
        }
        self.declared
            .push(String::from_utf8_lossy(message).into_owned());
        let header = header::parse(message, frontend::body_max).unwrap().unwrap();
        for _ in 0..ROUNDS_MAX {
            if self.course == Course::Ended {
                return;
            }
            let action = self
                .session
                .on_frontend(Frame::new(header, message), self.verdicts);
            self.put_output();
            match action {
                Action::Forward(_) => return self.to_server.push_back(message.to_vec()),
                Action::Discard => return,
                Action::Terminate | Action::End(_) => return self.course = Course::Ended,
                Action::Need(prerequisite) => {
                    if self.prepare(prerequisite) == Front::Answered {
                        return;
                    }
                }
                Action::AwaitFront | Action::AwaitWhole => panic!("{message:?} is whole"),
            }
        }
        panic!("{message:?} is never decided");
    }

    fn prepare(&mut self, prerequisite: Prerequisite) -> Front {
        match prerequisite {
            Prerequisite::Replies => self.await_replies(),
            Prerequisite::Verdict(unread) => {
                self.session
                    .on_verdict(classify(&unread.text, unread.encoding).into());
            }
            Prerequisite::History => self.session.on_history("[]".to_owned()),
            Prerequisite::Access(change) => {
                if self.set_access(change) == Met::Answered {
                    return Front::Answered;
                }
            }
            Prerequisite::Tokens(wanted, read_write) => match self.obtain(&wanted, read_write) {
                Some(Met::Yes) => {}
                Some(Met::Refused(rejection)) => {
                    self.session.refuse_waiting(rejection);
                    self.put_output();
                    return Front::Answered;
                }
                Some(Met::Answered) | None => return Front::Answered,
            },
        }
        Front::IsAskedAgain
    }

    /// Delivers all messages. Then the session must have its replies: anything else would be a deadlock.
    fn await_replies(&mut self) {
        self.session.ask_for_replies();
        self.put_output();
        self.drain();
        let settled = self.course == Course::Ended || self.session.is_settled();
        assert!(
            settled,
            "waits for replies that nobody sends: {:?}",
            self.session
        );
    }

    fn set_access(&mut self, change: AccessChange) -> Met {
        self.session.begin_set_access(change);
        self.await_replies();
        match self.course {
            Course::GoesOn => self.session.end_set_access(change).unwrap(),
            Course::Ended => Met::Answered,
        }
    }

    fn obtain(&mut self, wanted: &TokenRequest, read_write: Option<AccessChange>) -> Option<Met> {
        if self.session.may_declare(wanted).is_err() {
            self.course = Course::Ended;
            return None;
        }
        if let Some(read_write) = read_write
            && self.set_access(read_write) == Met::Answered
        {
            return Some(Met::Answered);
        }
        if let Identity::Pid(_) = self.session.identity() {
            if self.is_fickle() {
                let rejection = Box::new(Rejection::backend_unknown(&"not found"));
                let met = self.session.on_not_identified(wanted, rejection);
                self.put_output();
                return Some(met);
            }
            self.session.leave_trace("/* here */");
            self.await_replies();
            self.session.on_identified(identified());
        }
        let declared = self.declare(wanted);
        let met = self.session.on_declared(wanted, identified(), declared);
        self.put_output();
        if met.is_err() {
            self.course = Course::Ended;
        }
        met.ok()
    }

    /// The authority raises a mark before it accepts a token, even if its answer is lost.
    fn declare(&mut self, wanted: &TokenRequest) -> Declared {
        let default = self.fence.default_scope().clone();
        let mut obtained = Obtained::default();
        // Other scopes have no mark, and their tokens permit no write.
        for (scope, claim, _) in wanted.claims().filter(|(scope, ..)| **scope == default) {
            let is_own = self.taken == Some(self.session.take_number());
            let known = self.fence.fence().mark(scope).mark_detail();
            let number = match claim {
                Claim::Token(token) if token.get() >= self.mark => token.get(),
                Claim::Next | Claim::Lease(_) if is_own => self.mark,
                Claim::Next | Claim::Lease(_) => self.mark + 1,
                Claim::After(Some(mark)) if mark.get() == self.mark => self.mark + 1,
                Claim::After(Some(mark)) if is_own && mark.get() + 1 == self.mark => self.mark,
                Claim::After(Some(mark)) if mark.get() > self.mark => {
                    let rejection = Rejection::nothing_to_follow(scope, claim, known);
                    return Err(Box::new(rejection));
                }
                Claim::Token(_) | Claim::After(_) => {
                    let rejection = Rejection::behind(scope, claim, known.unwrap());
                    return Err(Box::new(rejection));
                }
            };
            let take = claim.is_take().then(|| self.session.take_number());
            if self.is_fickle() {
                if self.rng.random() {
                    self.raise(number, take);
                }
                let why = &"no answer";
                return Err(Box::new(if self.rng.random() {
                    Rejection::authority_unavailable(Some(scope), why)
                } else {
                    Rejection::takeover_incomplete(Some(scope), why)
                }));
            }
            self.raise(number, take);
            if claim.is_take() {
                let token = Token::new(number).unwrap();
                obtained.taken.push((scope.clone(), token));
                self.declared.push(number.to_string());
            }
            self.granted.push(number.to_string());
        }
        Ok(obtained)
    }

    /// A take keeps its token as long as the mark does not rise.
    fn raise(&mut self, number: u64, take: Option<u64>) {
        if number > self.mark {
            (self.mark, self.taken) = (number, take);
            subject::raise(self.fence.fence(), number);
        }
    }

    fn is_fickle(&mut self) -> bool {
        self.authority == Authority::IsFickle && self.rng.random_ratio(1, 8)
    }

    fn put_output(&mut self) {
        let output = self.session.output();
        let own = std::mem::take(&mut output.to_server);
        self.to_client
            .extend_from_slice(&std::mem::take(&mut output.to_client));
        output.refusals.clear();
        self.to_server.extend(split(&own));
    }

    /// Delivers one message, to one side or the other.
    fn step(&mut self) -> Moved {
        let server_first = self.rng.random();
        if self.course == Course::Ended {
            return Moved::None;
        }
        if server_first && self.server_reads() == Moved::Some {
            return Moved::Some;
        }
        match self.session_reads() {
            Moved::Some => Moved::Some,
            Moved::None => self.server_reads(),
        }
    }

    fn server_reads(&mut self) -> Moved {
        let Some(message) = self.to_server.pop_front() else {
            return Moved::None;
        };
        self.note("    server reads:", &message);
        let (tag, body) = parts(&message);
        self.server.read(tag, body);
        for token in std::mem::take(&mut self.server.writes) {
            self.check_write(&token);
        }
        self.to_session.extend(self.server.take());
        Moved::Some
    }

    /// Checks that a write has an accepted token that its client has declared, and that no other session has a higher
    /// one. RESET may return to the take of the startup packet, without its number.
    fn check_write(&self, token: &str) {
        assert!(
            self.lost == Lost::Nothing,
            "a write of a transaction whose beginning was lost"
        );
        let asked = self.started.as_deref() == Some(token) && token.parse::<u64>().is_err();
        let token = match self.granted.first() {
            Some(number) if asked => number,
            // The client's startup token is in force, whose text the server does not have.
            _ if token == AT_RESET => self.started.as_deref().unwrap_or_default(),
            _ => token,
        };
        let is_current = token.parse::<u64>().is_ok_and(|token| token >= self.mark);
        let is_granted = self.granted.iter().any(|granted| granted == token);
        let is_own = self.declared.iter().any(|said| said.contains(token));
        assert!(
            is_current && is_granted && is_own,
            "a write under the token {token:?}, where the mark is {} and {:?} were accepted; its own: {is_own}",
            self.mark,
            self.granted
        );
    }

    fn session_reads(&mut self) -> Moved {
        let Some(message) = self.to_session.pop_front() else {
            return Moved::None;
        };
        self.note("    server says:", &message);
        let (tag, body) = parts(&message);
        let disposition = self.session.on_backend(tag, body);
        self.put_output();
        match disposition {
            Disposition::Relay => self.to_client.extend_from_slice(&message),
            Disposition::Drop => {}
            Disposition::End(_) if self.server.is_closed() => {}
            Disposition::Terminated | Disposition::End(_) => {
                panic!("{message:?}: {disposition:?}");
            }
        }
        if self.server.is_closed() && self.to_session.is_empty() {
            self.course = Course::Ended;
        }
        Moved::Some
    }

    /// Ends what the client has open, and has everything answered.
    pub(super) fn finish(&mut self) {
        for message in closing() {
            self.send(&message);
        }
        self.drain();
        assert!(
            self.course == Course::Ended || self.session.is_answered(),
            "not answered: {:?}",
            self.session
        );
    }
}

/// Messages that end a COPY and a pipeline, if there is one.
pub(super) fn closing() -> [Vec<u8>; 3] {
    [
        super::frames::message(b'f', b"end\0"),
        empty(b'S'),
        empty(b'S'),
    ]
}

/// State of the message at the front.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Front {
    IsAskedAgain,
    Answered,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moved {
    Some,
    None,
}
