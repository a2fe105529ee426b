//! One request in flight: what completes it, where the reply goes, and what it may do.

use std::ops::{AddAssign, SubAssign};
use std::sync::Arc;

use pgpalisade_policies::{AccessShow, Analysis, Control, Statement, WriteReason};

use super::name_change::NameChange;
use crate::fence::{Guard, Leave, NameSpace, TransactionAccess};
use crate::rejection::Rejection;
use crate::wire::backend::tag;

/// Sender of a request, which decides where the reply goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The client: the reply is relayed.
    Client,
    /// The proxy: the reply is dropped.
    Injected,
    /// The proxy, which parses a statement of the client again, or closes another client's: only an error is relayed.
    ParsedAgain,
    /// The proxy, in place of a message about a statement whose result type has changed: the client is told so.
    Outdated,
}

/// Kind of a request, which decides what completes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// Completed by ReadyForQuery.
    Query,
    /// Completed by ReadyForQuery.
    FunctionCall,
    /// Completed by ReadyForQuery.
    Sync,
    /// Completed by ParseComplete.
    Parse,
    /// Completed by BindComplete.
    Bind,
    /// Completed by CloseComplete.
    Close,
    /// Completed by RowDescription or NoData.
    Describe,
    /// Completed by CommandComplete, EmptyQueryResponse or PortalSuspended.
    Execute,
    /// A Query that PostgreSQL rejects for its layout. Completed by ReadyForQuery, after an error.
    MalformedQuery,
    /// An extended-query message that PostgreSQL rejects for its layout. Completed by an error alone.
    Malformed,
    /// A Flush with a body. PostgreSQL rejects it, except during COPY, where it ignores any Flush.
    MalformedFlush,
}

impl Request {
    /// Whether a reply with this tag completes it, other than CommandComplete, an error or ReadyForQuery.
    pub(super) const fn is_completed_by(self, reply: u8) -> bool {
        matches!(
            (self, reply),
            (Self::Parse, tag::PARSE_COMPLETE)
                | (Self::Bind, tag::BIND_COMPLETE)
                | (Self::Close, tag::CLOSE_COMPLETE)
                | (Self::Describe, tag::ROW_DESCRIPTION | tag::NO_DATA)
                | (Self::Execute, tag::PORTAL_SUSPENDED)
        )
    }

    pub(super) const fn is_extended(self) -> bool {
        matches!(
            self,
            Self::Parse
                | Self::Bind
                | Self::Close
                | Self::Describe
                | Self::Execute
                | Self::Malformed
                | Self::MalformedFlush
        )
    }

    /// Whether it runs a statement.
    pub(super) const fn runs(self) -> bool {
        matches!(self, Self::Query | Self::Execute | Self::FunctionCall)
    }

    /// Whether the server answers it with ReadyForQuery, which ends a request cycle.
    #[inline]
    pub(crate) const fn ends_cycle(self) -> bool {
        matches!(
            self,
            Self::Query | Self::MalformedQuery | Self::FunctionCall | Self::Sync
        )
    }
}

/// A request in flight.
#[derive(Debug)]
pub struct InFlight {
    pub(crate) request: Request,
    pub(crate) origin: Origin,
    /// Verdict on its text, if the proxy needed one.
    pub(crate) verdict: Option<Arc<Analysis>>,
    /// Statements of the verdict that have completed.
    pub(crate) completed: usize,
    /// Error that the client gets in place of the server's.
    pub(crate) error: Option<Box<Rejection>>,
    /// Change of a name on completion.
    pub(crate) name: NameChange,
    pub(crate) leave: Leave,
    /// Whether its text is known to end no transaction, without a verdict.
    pub(super) is_plain: bool,
    /// Whether it ends a pipeline and is no Sync: the server skips it after the error of a Flush.
    pub(super) may_be_skipped: bool,
    /// The guard before its text.
    pub(crate) guard: Guard,
    /// Its share of the ledger's counts.
    pub(super) counts: Counts,
}

/// Counts of the ledger: 0 or 1 for one request, the sum for those in flight.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counts {
    /// Requests that end a request cycle.
    pub(super) ending: u32,
    /// Requests that may write.
    pub(super) writing: u32,
    /// Requests that change the name of a statement.
    pub(super) naming: u32,
    /// Requests that change the name of a portal.
    pub(super) binding: u32,
}

impl Counts {
    const NONE: Self = Self {
        ending: 0,
        writing: 0,
        naming: 0,
        binding: 0,
    };
}

impl AddAssign for Counts {
    #[inline]
    fn add_assign(&mut self, other: Self) {
        self.ending += other.ending;
        self.writing += other.writing;
        self.naming += other.naming;
        self.binding += other.binding;
    }
}

impl SubAssign for Counts {
    #[inline]
    fn sub_assign(&mut self, other: Self) {
        self.ending -= other.ending;
        self.writing -= other.writing;
        self.naming -= other.naming;
        self.binding -= other.binding;
    }
}

impl InFlight {
    /// A request of the client.
    #[must_use]
    #[inline]
    pub const fn client(request: Request, verdict: Option<Arc<Analysis>>) -> Self {
        Self::new(request, Origin::Client, verdict)
    }

    /// A request of the proxy.
    #[must_use]
    pub(crate) const fn proxy(request: Request) -> Self {
        Self::new(request, Origin::Injected, None)
    }

    #[inline]
    pub(super) const fn new(
        request: Request,
        origin: Origin,
        verdict: Option<Arc<Analysis>>,
    ) -> Self {
        Self {
            request,
            origin,
            verdict,
            completed: 0,
            error: None,
            name: NameChange::None,
            leave: Leave::Read,
            is_plain: false,
            may_be_skipped: false,
            guard: Guard::IN_DOUBT,
            counts: Counts::NONE,
        }
    }

    /// Verdict, if known, and index of the statement that the next reply is about.
    #[inline]
    #[must_use]
    pub(crate) fn position(&self) -> Option<(&Arc<Analysis>, usize)> {
        let at = match self.request {
            Request::Query => self.completed,
            _ => 0,
        };
        self.verdict.as_ref().map(|verdict| (verdict, at))
    }

    /// Access mode of the transaction in which the statement runs that the next reply is about.
    pub(super) fn transaction(&self) -> TransactionAccess {
        let before = self
            .position()
            .and_then(|(verdict, at)| verdict.statements.get(..at));
        let before = before.unwrap_or_default();
        before.iter().fold(self.guard, Guard::after).transaction()
    }

    /// Whether the next reply is about its last statement.
    pub(super) fn is_at_its_last(&self) -> bool {
        let position = self.position();
        position.is_some_and(|(verdict, at)| at + 1 == verdict.statements.len())
    }

    #[inline(always)]
    pub(super) fn counts(&self) -> Counts {
        let kind = self.name.kind();
        let names = kind == Some(NameSpace::Statement) || self.may_change_statements();
        Counts {
            ending: u32::from(self.request.ends_cycle()),
            writing: u32::from(self.leave.writes()),
            naming: u32::from(names),
            binding: u32::from(kind == Some(NameSpace::Portal)),
        }
    }

    /// Whether its text creates or drops prepared statements.
    pub(super) fn may_change_statements(&self) -> bool {
        let verdict = self.verdict.as_deref();
        verdict.is_some_and(|verdict| verdict.any_control(Control::changes_statements))
    }

    /// Whether the grammar here refuses its text.
    pub(super) fn is_unknown_syntax(&self) -> bool {
        let statements = self.verdict.iter().flat_map(|verdict| &verdict.statements);
        let mut reasons = statements.filter_map(|statement| statement.why.as_ref());
        reasons.any(|why| matches!(why, WriteReason::Syntax(_)))
    }

    #[inline]
    pub(super) fn asks_for_access(&self) -> bool {
        let verdict = self.verdict.as_deref();
        verdict.is_some_and(|verdict| verdict.any_control(shows_access))
    }
}

const fn shows_access(control: &Control) -> bool {
    matches!(control, Control::ShowAccess(_))
}

pub(super) fn access_show(statement: &Statement) -> Option<AccessShow> {
    statement.controls.iter().find_map(|control| match control {
        Control::ShowAccess(show) => Some(*show),
        _ => None,
    })
}
