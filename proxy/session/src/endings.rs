//! The end of a session: by a takeover, by the server, or because something is not as it must be.

use bytes::BytesMut;
use pgpalisade_authority::{Mark, Scope, Token};
use pgpalisade_policies::Mode;

use super::in_flight::{InFlight, Origin};
use super::{CommittedMidway, Session, command_tag};
use crate::fence::HeldToken;
use crate::rejection::Rejection;
use crate::rejection::{Enforcement, OpenTransaction, RejectionKind};
use crate::wire::WireError;
use crate::wire::encode::{self, ErrorFields, Severity};

/// Why the proxy ends a session.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Ending {
    /// The client has broken the protocol: PostgreSQL ends such a session too.
    #[error("protocol violation: {0}")]
    ProtocolViolation(WireError),
    /// The server has done something else than was judged.
    #[error("the reply {reply:?} {command_tag:?} does not match the decision on its request")]
    Contradiction {
        /// The type of the reply.
        reply: char,
        /// What it says that was done.
        command_tag: String,
    },
    /// A statement of the proxy's own has failed that must not.
    #[error("a statement of the proxy's own failed: {0}")]
    OwnStatement(String),
    /// The read-only guard was stated, and does not hold: what the client was told.
    #[error("{0}")]
    Unguarded(String),
    /// A declaration has had no answer, and the session could go on under a lower token.
    #[error("a declaration was not answered")]
    Unanswered,
    /// A takeover has ended it, and nothing was in doubt.
    #[error("ended by a takeover")]
    TakenOver,
    /// A takeover has ended it, while something was sent that may have been committed.
    #[error("ended by a takeover, outcome unknown")]
    OutcomeUnknown,
    /// Another server is the primary.
    #[error("the server is no longer the primary")]
    Deposed,
    /// The server has ended it and has said why.
    #[error("the server ended the session")]
    ByServer,
}

impl Session {
    /// Tells the client why the proxy ends its session.
    pub fn say_fatal(&mut self, sqlstate: &str, message: &str, detail: &str, hint: &str) {
        self.say_as_postgres(
            sqlstate,
            &encode::with_code(sqlstate, message),
            detail,
            hint,
        );
    }

    /// The same in words that are PostgreSQL's own.
    fn say_as_postgres(&mut self, sqlstate: &str, message: &str, detail: &str, hint: &str) {
        let fields = ErrorFields {
            severity: Severity::Fatal,
            sqlstate,
            message,
            detail,
            hint,
        };
        encode::error_response(&mut self.output.to_client, &fields);
    }

    /// The client has broken the protocol: PostgreSQL ends such a session too.
    pub fn end_for_violation(&mut self, error: WireError) -> Ending {
        self.say_as_postgres("08P01", &error.to_string(), "", "");
        Ending::ProtocolViolation(error)
    }

    /// A statement of the proxy's own has failed that must not: the session's access mode is not known.
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

    /// The read-only guard was stated, and does not hold.
    pub(super) fn end_unguarded(&mut self) -> Ending {
        let rejection = Rejection::not_guarded();
        self.record(&rejection, Enforcement::Refused, None);
        rejection.encode(Severity::Fatal, &mut self.output.to_client);
        Ending::Unguarded(rejection.message)
    }

    /// Whether a reply shows that the server has done something else than was judged.
    #[inline(always)]
    pub(super) fn is_contradiction(&self, reply: u8, command_tag: &[u8]) -> bool {
        match self.server.ledger.front() {
            None => false,
            Some(request) => command_tag::contradicts(request, reply, command_tag),
        }
    }

    /// Ends the session on the spot, so that what it has open cannot be committed.
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

    /// The server says that an administrator has ended the session. Where that was a takeover, the client is told.
    /// Where no takeover is known, what the server said waits until it closes its side, which it does next: a
    /// takeover through another proxy may become known in between.
    pub fn on_terminated(&mut self, error: &[u8]) -> Option<Ending> {
        let ending = self.end_if_taken_over();
        if ending.is_none() {
            let mut bytes = BytesMut::new();
            encode::error_response_as_sent(&mut bytes, error);
            self.server.final_error = Some(bytes);
        }
        ending
    }

    /// Whether the server has said that it ends the session, and why is not known.
    #[must_use]
    pub const fn is_terminated(&self) -> bool {
        self.server.final_error.is_some()
    }

    /// Where the server has ended the session while it declared: what the declaration has come to, a refusal or not,
    /// says whether that was a takeover. The client is told.
    pub fn end_if_terminated(&mut self, refused: Option<&Rejection>) -> Option<Ending> {
        let stale = refused.filter(|rejection| rejection.kind == RejectionKind::StaleToken);
        if stale.is_some() {
            self.server.granted.forget_declared();
        }
        if !self.is_terminated() {
            return None;
        }
        match stale {
            Some(rejection) => Some(self.end_by_takeover(rejection)),
            None => self.on_server_closed(),
        }
    }

    /// The server has closed the connection. A session that a takeover has ended is told so.
    pub fn on_server_closed(&mut self) -> Option<Ending> {
        if let Some(error) = self.server.final_error.take() {
            return Some(self.end_if_taken_over().unwrap_or_else(|| {
                self.output.to_client.extend_from_slice(&error);
                Ending::ByServer
            }));
        }
        let (scope, token, mark) = self.ended_by_takeover()?;
        let transaction = match self.is_answered() {
            // The socket just died: whether the last statement was committed, nobody here knows.
            false => OpenTransaction::Unknown,
            true => self.loses(),
        };
        Some(self.end_by_takeover(&Rejection::session_ended(&scope, token, mark, transaction)))
    }

    /// Another server has become the primary, so nothing of this session may go on.
    pub fn end_with_its_server(&mut self) -> Ending {
        let rejection = match self.has_in_flight() {
            true => Rejection::lost_with_its_server(),
            false => Rejection::ended_with_its_server(),
        };
        if !self.server.granted.accepted().is_empty() {
            self.record(&rejection, Enforcement::Refused, None);
        }
        rejection.encode(Severity::Fatal, &mut self.output.to_client);
        Ending::Deposed
    }

    /// Tells a client whose session the server has ended that it was a takeover, where it was.
    ///
    /// In the place of a completion it means that the transaction was aborted: a server process that
    /// has committed completes first. Work that may commit before it completes is another matter.
    fn end_if_taken_over(&mut self) -> Option<Ending> {
        let (scope, token, mark) = self.ended_by_takeover()?;
        let server = &self.server;
        let certain = server.committed_midway == CommittedMidway::No
            && !server.ledger.iter().any(may_have_committed);
        let transaction = match certain {
            true => self.loses(),
            false => OpenTransaction::Unknown,
        };
        Some(self.end_by_takeover(&Rejection::session_ended(&scope, token, mark, transaction)))
    }

    /// Whether anything of the client has yet to be answered.
    fn has_in_flight(&self) -> bool {
        let is_clients = |entry: &InFlight| entry.origin == Origin::Client;
        self.server.ledger.iter().any(is_clients)
    }

    /// What a certain end takes from it.
    fn loses(&self) -> OpenTransaction {
        match self.is_inside() || self.has_in_flight() {
            true => OpenTransaction::RolledBack,
            false => OpenTransaction::None,
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

    /// A token of the session that a takeover has made stale, where that ends sessions.
    fn ended_by_takeover(&self) -> Option<(Scope, Token, Mark)> {
        let ends = |binding: &&HeldToken| self.client.fence.ends_sessions(binding);
        let granted = &self.server.granted;
        let accepted = granted.accepted().iter();
        let mut bindings = accepted.flat_map(|held| held.bindings()).filter(ends);
        let ended = bindings.find_map(|binding| {
            let mark = binding.cell.mark_above(binding.token)?;
            Some((binding.cell.scope().clone(), binding.token, mark))
        });
        let enforces = |scope| self.client.fence.mode(Some(scope)) == Mode::Enforce;
        ended.or_else(|| {
            granted.declared().iter().find_map(|(scope, token)| {
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
