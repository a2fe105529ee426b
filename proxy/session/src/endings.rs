//! The end of a session: by a takeover, by the server, or for an error.

use bytes::BytesMut;
use pgpalisade_authority::{Mark, Scope, Token};
use pgpalisade_policies::Mode;

use super::in_flight::{InFlight, Origin};
use super::{Session, command_tag};
use crate::fence::HeldToken;
use crate::rejection::Rejection;
use crate::rejection::{Enforcement, OpenTransaction, RejectionKind};
use crate::wire::WireError;
use crate::wire::backend::{self, tag};
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

    /// Like [`Self::say_fatal`], in PostgreSQL's own words.
    fn say_as_postgres(&mut self, sqlstate: &str, message: &str, detail: &str, hint: &str) {
        let fields = ErrorFields {
            severity: Severity::Fatal,
            sqlstate,
            message,
            detail,
            hint,
        };
        encode::put(&mut self.output.to_client, &ErrorResponse::from(&fields));
    }

    /// Ends the session because the client violated the protocol, as PostgreSQL does.
    pub fn end_for_violation(&mut self, error: WireError) -> Ending {
        self.say_as_postgres("08P01", &error.to_string(), "", "");
        Ending::ProtocolViolation(error)
    }

    /// Ends the session because a statement of the proxy failed, which leaves the access mode unknown.
    pub(super) fn end_for_own_statement(&mut self, message: &[u8]) -> Ending {
        let message = String::from_utf8_lossy(message).into_owned();
        self.say_fatal(
            "58000",
            "terminating connection because pgpalisade could not prepare the session",
            &message,
            "Connect again.",
        );
        Ending::OwnStatement(message)
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
        let ending = self.end_if_taken_over();
        if ending.is_none() {
            let mut bytes = BytesMut::new();
            encode::put_raw(&mut bytes, tag::ERROR, error);
            self.server.final_error = Some(bytes);
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
            self.server.registration.forget_declared();
        }
        if !self.is_terminated() {
            return None;
        }
        match stale {
            Some(rejection) => Some(self.end_by_takeover(rejection)),
            None => self.on_server_closed(),
        }
    }

    /// Handles the end of the server's connection. The client is told if a takeover ended its session.
    pub fn on_server_closed(&mut self) -> Option<Ending> {
        if let Some(error) = self.server.final_error.take() {
            return Some(self.end_if_taken_over().unwrap_or_else(|| {
                self.output.to_client.extend_from_slice(&error);
                Ending::ByServer
            }));
        }
        let (scope, token, mark) = self.ended_by_takeover()?;
        let transaction = if self.is_answered() {
            self.loses()
        } else {
            // The connection broke: whether the last statement was committed is unknown.
            OpenTransaction::Unknown
        };
        Some(self.end_by_takeover(&Rejection::session_ended(&scope, token, mark, transaction)))
    }

    /// Ends the session because another server has become the primary.
    pub fn end_with_its_server(&mut self) -> Ending {
        let rejection = if self.has_in_flight() {
            Rejection::lost_with_its_server()
        } else {
            Rejection::ended_with_its_server()
        };
        if !self.server.registration.accepted().is_empty() {
            self.record(&rejection, Enforcement::Refused, None);
        }
        rejection.encode(Severity::Fatal, &mut self.output.to_client);
        Ending::Deposed
    }

    /// Tells the client that a takeover ended the session, if one did.
    ///
    /// In place of a completion this means that the transaction was aborted: a server process that has committed
    /// sends its completion first. Work that may commit before its completion is an exception.
    fn end_if_taken_over(&mut self) -> Option<Ending> {
        let (scope, token, mark) = self.ended_by_takeover()?;
        let server = &self.server;
        let certain = !server.is_committed_midway && !server.ledger.iter().any(may_have_committed);
        let transaction = if certain {
            self.loses()
        } else {
            OpenTransaction::Unknown
        };
        Some(self.end_by_takeover(&Rejection::session_ended(&scope, token, mark, transaction)))
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

    fn end_by_takeover(&mut self, rejection: &Rejection) -> Ending {
        self.record(rejection, Enforcement::Refused, None);
        rejection.encode(Severity::Fatal, &mut self.output.to_client);
        match rejection.kind {
            RejectionKind::OutcomeUnknown => Ending::OutcomeUnknown,
            _ => Ending::TakenOver,
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
            registration.declared().iter().find_map(|(scope, token)| {
                let mark = self.client.fence.fence().mark_above(scope, *token)?;
                enforces(scope).then(|| (scope.clone(), *token, mark))
            })
        })
    }
}

fn may_have_committed(entry: &InFlight) -> bool {
    let verdict = entry.verdict.as_ref();
    verdict.is_some_and(|verdict| verdict.commits_midway())
}
