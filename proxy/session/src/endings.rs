//! The end of a session: by a takeover, by the server, or for an error.

use bytes::BytesMut;
use pgpalisade_authority::{Mark, Scope, Token};
use pgpalisade_policies::Mode;

use super::in_flight::{InFlight, Origin, Request};
use super::{Session, command_tag};
use crate::fence::{HeldToken, Leave};
use crate::rejection::Rejection;
use crate::rejection::{Enforcement, OpenTransaction, RejectionKind};
use crate::wire::WireError;
use crate::wire::backend::{self, TransactionStatus, tag};
use crate::wire::encode::{self, ErrorFields, ErrorResponse, Severity};

/// Reason why the proxy ends a session.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Ending {
    /// The client violated the protocol. PostgreSQL ends such a session too.
    #[error("protocol violation: {0}")]
    ProtocolViolation(WireError),
    /// The server's reply does not match the decision on the request.
    #[error("the reply {reply:?} {command_tag:?} does not match the decision on its request")]
    Contradiction {
        /// Type of the reply.
        reply: char,
        /// Command tag of the reply.
        command_tag: String,
    },
    /// A statement of the proxy failed that must not fail.
    #[error("a statement of the proxy's own failed: {0}")]
    OwnStatement(String),
    /// The read-only guard was set and does not hold. The text is the message that the client got.
    #[error("{0}")]
    Unguarded(String),
    /// A declaration was not answered, and the session could go on under a lower token.
    #[error("a declaration was not answered")]
    Unanswered,
    /// A takeover ended it, with a certain outcome.
    #[error("ended by a takeover")]
    TakenOver,
    /// A takeover ended it while something in flight may have been committed.
    #[error("ended by a takeover, outcome unknown")]
    OutcomeUnknown,
    /// Another server is the primary.
    #[error("the server is no longer the primary")]
    Deposed,
    /// The server ended it and said why.
    #[error("the server ended the session")]
    ByServer,
}

/// Error with which a server connection ends.
#[derive(Debug)]
pub(super) enum FinalError {
    /// The body of the server's own.
    Server(Box<[u8]>),
    /// The proxy's, for a client that stays.
    Fence(Box<Rejection>),
}

/// SQLSTATE of an end by an administrator or a takeover.
pub(super) const TERMINATED: &[u8] = b"57P01";

/// SQLSTATE of an end because another process of the server has crashed.
const CRASHED: &[u8] = b"57P02";

fn is_termination(error: &[u8]) -> bool {
    backend::error_field(error, b'C') == Some(TERMINATED)
}

/// Writes why the proxy ends a session.
pub fn put_fatal(out: &mut BytesMut, sqlstate: &str, message: &str, detail: &str, hint: &str) {
    let fields = ErrorFields {
        severity: Severity::Fatal,
        sqlstate,
        message: &encode::with_code(sqlstate, message),
        detail,
        hint,
    };
    encode::put(out, &ErrorResponse::from(&fields));
}

/// Writes the server's fatal error as one that the client survives.
pub fn put_survived(error: &[u8], detail: &str, hint: &str, out: &mut BytesMut) {
    let field = |letter| {
        let text = backend::error_field(error, letter).unwrap_or_default();
        String::from_utf8_lossy(text)
    };
    let fields = ErrorFields {
        severity: Severity::Error,
        sqlstate: &field(b'C'),
        message: &field(b'M'),
        detail,
        hint,
    };
    encode::put(out, &ErrorResponse::from(&fields));
}

impl Session {
    /// Tells the client why the proxy ends its session.
    pub fn say_fatal(&mut self, sqlstate: &str, message: &str, detail: &str, hint: &str) {
        put_fatal(&mut self.output.to_client, sqlstate, message, detail, hint);
    }

    /// Ends the session because the client violated the protocol, as PostgreSQL does and in its words.
    pub fn end_for_violation(&mut self, error: WireError) -> Ending {
        let fields = ErrorFields {
            severity: Severity::Fatal,
            sqlstate: "08P01",
            message: &error.to_string(),
            detail: "",
            hint: "",
        };
        encode::put(&mut self.output.to_client, &ErrorResponse::from(&fields));
        Ending::ProtocolViolation(error)
    }

    /// Ends the session because a statement of the proxy failed, which leaves the access mode unknown.
    pub(super) fn end_for_own_statement(&mut self, message: &[u8]) -> Ending {
        let detail = String::from_utf8_lossy(message).into_owned();
        let (sqlstate, message, hint) = if self.may_have_committed() {
            (
                "08007",
                "terminating connection because pgpalisade could not prepare the session, and it is not known \
                 whether the last statement was committed",
                "Connect again, and read the data to find out.",
            )
        } else {
            (
                "58000",
                "terminating connection because pgpalisade could not prepare the session",
                "Connect again.",
            )
        };
        self.say_fatal(sqlstate, message, &detail, hint);
        Ending::OwnStatement(detail)
    }

    /// Ends the session because the read-only guard was set and does not hold.
    pub(super) fn end_unguarded(&mut self) -> Ending {
        let rejection = Rejection::not_guarded();
        self.record(&rejection, Enforcement::Refused, None);
        rejection.encode(Severity::Fatal, &mut self.output.to_client);
        Ending::Unguarded(rejection.message)
    }

    /// Whether a reply shows that the server did something other than what was judged.
    #[inline(always)]
    pub(super) fn is_contradiction(&self, reply: u8, command_tag: &[u8]) -> bool {
        match self.server.ledger.front() {
            None => false,
            Some(request) => command_tag::contradicts(request, reply, command_tag),
        }
    }

    /// Ends the session at once, so that its open transaction cannot be committed.
    pub(super) fn end_for_contradiction(&mut self, reply: u8, command_tag: &[u8]) -> Ending {
        let command_tag = String::from_utf8_lossy(command_tag).into_owned();
        self.say_fatal(
            "58000",
            "terminating connection because PostgreSQL's reply does not match the proxy's decision",
            &format!("The reply {command_tag:?} does not fit the request."),
            "Report this as a defect of pgpalisade, with the statements of the session.",
        );
        Ending::Contradiction {
            reply: char::from(reply),
            command_tag,
        }
    }

    /// Handles the end of the session by an administrator. The client is told of a known takeover. Otherwise the
    /// error waits until the server closes the connection, which it does next. A takeover through another proxy may
    /// become known in between.
    pub fn on_terminated(&mut self, error: &[u8]) -> Option<Ending> {
        let ending = is_termination(error)
            .then(|| self.end_if_taken_over())
            .flatten();
        if ending.is_none() {
            self.server.final_error = Some(FinalError::Server(error.into()));
        }
        ending
    }

    /// Whether the server has announced the end of the session, for an unknown reason.
    #[must_use]
    pub const fn is_terminated(&self) -> bool {
        self.server.final_error.is_some()
    }

    /// Ends a session that the server ended during its declaration. The result of the declaration shows whether a
    /// takeover was the reason.
    pub(super) fn end_if_terminated(&mut self, refused: Option<&Rejection>) -> Option<Ending> {
        let stale = refused.filter(|rejection| rejection.kind == RejectionKind::StaleToken);
        if stale.is_some() {
            // It is not registered.
            self.server.registration.declared.clear();
        }
        if !self.is_terminated() {
            return None;
        }
        match stale {
            Some(rejection) => Some(self.end_by_takeover(rejection.clone())),
            None => self.on_server_closed(),
        }
    }

    /// Handles the end of the server's connection. The client is told if a takeover ended its session.
    pub fn on_server_closed(&mut self) -> Option<Ending> {
        if let Some(FinalError::Server(error)) = self.server.final_error.take() {
            let taken_over = is_termination(&error)
                .then(|| self.end_if_taken_over())
                .flatten();
            return Some(taken_over.unwrap_or_else(|| self.end_by_server(error)));
        }
        let (scope, token, mark) = self.ended_by_takeover()?;
        let is_certain = self.is_answered() || self.outlives_server() && !self.may_have_committed();
        let transaction = if is_certain {
            self.loses()
        } else {
            // The connection broke: whether the last statement was committed is unknown.
            OpenTransaction::Unknown
        };
        Some(self.end_by_takeover(Rejection::session_ended(&scope, token, mark, transaction)))
    }

    pub(super) fn end_by_server(&mut self, error: Box<[u8]>) -> Ending {
        if self.outlives_server() {
            self.server.final_error = Some(FinalError::Server(error));
        } else {
            encode::put_raw(&mut self.output.to_client, tag::ERROR, &error);
        }
        Ending::ByServer
    }

    /// Ends the session because another server has become the primary.
    pub fn end_with_its_server(&mut self) -> Ending {
        let is_unknown = if self.outlives_server() {
            self.may_have_committed()
        } else {
            self.has_in_flight()
        };
        let rejection = if is_unknown {
            Rejection::lost_with_its_server()
        } else {
            Rejection::ended_with_its_server()
        };
        let rejection = self.as_told(rejection);
        if !self.server.registration.accepted().is_empty() {
            self.record(&rejection, Enforcement::Refused, None);
        }
        self.tell_end(rejection);
        Ending::Deposed
    }

    /// Tells the client that a takeover ended the session, if one did.
    ///
    /// In place of a completion this means that the transaction was aborted: a server process that has committed
    /// sends its completion first. Work that may commit before its completion is an exception, and so is what has
    /// completed.
    fn end_if_taken_over(&mut self) -> Option<Ending> {
        let (scope, token, mark) = self.ended_by_takeover()?;
        let transaction = if self.commits_midway() {
            OpenTransaction::Unknown
        } else {
            self.loses()
        };
        Some(self.end_by_takeover(Rejection::session_ended(&scope, token, mark, transaction)))
    }

    /// Whether work in flight may have been committed before its completion.
    fn commits_midway(&self) -> bool {
        let server = &self.server;
        let is_idle = self.client.state.status() == TransactionStatus::Idle;
        // In a transaction block, DO and CALL cannot commit.
        let mut is_inside = !is_idle;
        let commits = |entry: &InFlight| {
            let verdict = entry.verdict.as_ref();
            let runs = entry.request.runs() && !entry.is_plain;
            is_inside &= verdict.map_or(!runs, |verdict| verdict.keeps_transaction());
            // Between the last completion and ReadyForQuery the server logs the duration, and may end there.
            // A text that was not read counts as one statement.
            let statements = verdict.map_or(1, |verdict| verdict.statements.len().max(1));
            let is_completed = entry.request == Request::Query && entry.completed >= statements;
            let has_committed = is_idle && is_completed && entry.leave != Leave::Read;
            let midway = verdict.is_some_and(|verdict| verdict.commits_midway());
            has_committed || (midway && !is_inside)
        };
        server.is_committed_midway || server.ledger.iter().any(commits)
    }

    /// Whether the server's last words mean that nothing in flight was committed.
    pub(super) fn is_certain(&self, error: &[u8]) -> bool {
        let is_fatal = backend::error_field(error, b'V') == Some(b"FATAL");
        let is_crash = backend::error_field(error, b'C') == Some(CRASHED);
        is_fatal && !is_crash && !self.commits_midway()
    }

    /// Whether a request of the client is in flight.
    fn has_in_flight(&self) -> bool {
        let is_clients = |entry: &InFlight| entry.origin == Origin::Client;
        self.server.ledger.iter().any(is_clients)
    }

    /// Fate of the open transaction if the outcome is certain.
    fn loses(&self) -> OpenTransaction {
        if self.is_inside() || self.has_in_flight() {
            OpenTransaction::RolledBack
        } else {
            OpenTransaction::None
        }
    }

    fn end_by_takeover(&mut self, rejection: Rejection) -> Ending {
        let rejection = self.as_told(rejection);
        self.record(&rejection, Enforcement::Refused, None);
        let is_unknown = rejection.kind == RejectionKind::OutcomeUnknown;
        self.tell_end(rejection);
        if is_unknown {
            Ending::OutcomeUnknown
        } else {
            Ending::TakenOver
        }
    }

    /// An end as its client gets it, which may stay.
    fn as_told(&self, rejection: Rejection) -> Rejection {
        if self.outlives_server() {
            rejection.sparing_the_client()
        } else {
            rejection
        }
    }

    /// Tells the client why its session ends. One that stays is told with what has become of its work.
    fn tell_end(&mut self, rejection: Rejection) {
        if self.outlives_server() {
            self.server.final_error = Some(FinalError::Fence(Box::new(rejection)));
        } else {
            rejection.encode(Severity::Fatal, &mut self.output.to_client);
        }
    }

    /// Tells a client whose session has not begun, and does not stay.
    pub fn refuse_login(&mut self) {
        let out = &mut self.output.to_client;
        match self.server.final_error.take() {
            Some(FinalError::Fence(rejection)) => rejection.encode(Severity::Fatal, out),
            Some(FinalError::Server(error)) => encode::put_raw(out, tag::ERROR, &error),
            None => {}
        }
    }

    /// Token of the session that a takeover has made stale, if that ends sessions.
    fn ended_by_takeover(&self) -> Option<(Scope, Token, Mark)> {
        let ends = |held: &&HeldToken| self.client.fence.ends_sessions(held);
        let registration = &self.server.registration;
        let accepted = registration.accepted().iter();
        let mut tokens = accepted.flat_map(|held| held.tokens()).filter(ends);
        let ended = tokens.find_map(|held| {
            let mark = held.mark.mark_above(held.token)?;
            Some((held.mark.scope().clone(), held.token, mark))
        });
        let enforces = |scope| self.client.fence.mode(Some(scope)) == Mode::Enforce;
        ended.or_else(|| {
            registration.declared.iter().find_map(|(scope, token)| {
                let mark = self.client.fence.fence().mark_above(scope, *token)?;
                enforces(scope).then(|| (scope.clone(), *token, mark))
            })
        })
    }
}
