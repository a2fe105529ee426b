//! One request in flight: what completes it, who gets the reply, and what it may do.

use std::ops::{AddAssign, SubAssign};
use std::sync::Arc;

use pgpalisade_policies::{AccessShow, Analysis, Control, Statement};

use super::names::NameChange;
use crate::fence::Kind;
use crate::rejection::Rejection;

/// Whose message a request is, and so who gets the reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The client's: the reply is relayed.
    Client,
    /// The proxy's own: the reply is swallowed.
    Injected,
}

/// What kind of request it is, and so what completes it.
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
    /// A Query that PostgreSQL refuses for its layout: completed by ReadyForQuery, behind an error.
    MalformedQuery,
    /// A message of an extended-query pipeline that PostgreSQL refuses for its layout: completed by an error alone.
    Malformed,
    /// A Flush with a body: PostgreSQL refuses it, unless it reads the data of a COPY: then it ignores any Flush.
    MalformedFlush,
}

impl Request {
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

    /// Whether it ends a request cycle: the server answers it with ReadyForQuery.
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
    /// What completes it.
    pub(crate) request: Request,
    /// Who gets the reply.
    pub(crate) origin: Origin,
    /// What it does, where the proxy needed to know.
    pub(crate) verdict: Option<Arc<Analysis>>,
    /// How many statements of the verdict have completed.
    pub(crate) completed: usize,
    /// The client's error in the place of the server's.
    pub(crate) error: Option<Box<Rejection>>,
    /// What its completion does to the session's names.
    pub(crate) name: NameChange,
    /// What it may do, as it was judged.
    pub(crate) leave: Leave,
    /// How the ledger counts it.
    pub(super) counts: Counts,
}

/// What a request may do to data, by the judgement that let it pass.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Leave {
    /// It was let pass as one that changes none.
    #[default]
    Read,
    /// The same, in a transaction that is not read-only: a function of the database may have written in it.
    ReadUnguarded,
    /// It may write.
    Write,
}

impl Leave {
    /// Whether the transaction may have written because of it.
    const fn writes(self) -> bool {
        matches!(self, Self::ReadUnguarded | Self::Write)
    }
}

/// What a request in flight counts as, found out once; of many, how many of them count as that.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counts {
    /// It ends a request cycle.
    pub(super) ending: u32,
    /// It may write.
    pub(super) writing: u32,
    /// It changes the meaning of a statement's name.
    pub(super) naming: u32,
    /// It changes the meaning of a portal's name.
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

    /// A request of the proxy's own.
    #[must_use]
    pub(crate) const fn proxy(request: Request) -> Self {
        Self::new(request, Origin::Injected, None)
    }

    #[inline]
    const fn new(request: Request, origin: Origin, verdict: Option<Arc<Analysis>>) -> Self {
        Self {
            request,
            origin,
            verdict,
            completed: 0,
            error: None,
            name: NameChange::None,
            leave: Leave::Read,
            counts: Counts::NONE,
        }
    }

    /// The verdict on it, where it is known, and which of its statements the next reply is about.
    #[inline]
    #[must_use]
    pub(crate) fn position(&self) -> Option<(&Arc<Analysis>, usize)> {
        let at = match self.request {
            Request::Query => self.completed,
            _ => 0,
        };
        self.verdict.as_ref().map(|verdict| (verdict, at))
    }

    /// Whether the next reply is about the last statement of it.
    pub(super) fn is_at_its_last(&self) -> bool {
        let position = self.position();
        position.is_some_and(|(verdict, at)| at + 1 == verdict.statements.len())
    }

    pub(super) fn counts(&self) -> Counts {
        let kind = self.name.kind();
        let names = kind == Some(Kind::Statement) || self.may_change_statements();
        Counts {
            ending: u32::from(self.request.ends_cycle()),
            writing: u32::from(self.leave.writes()),
            naming: u32::from(names),
            binding: u32::from(kind == Some(Kind::Portal)),
        }
    }

    /// Whether its text makes statements, or lets some go.
    pub(super) fn may_change_statements(&self) -> bool {
        let verdict = self.verdict.as_deref();
        verdict.is_some_and(|verdict| verdict.any_control(changes_statements))
    }

    pub(super) fn asks_for_access(&self) -> bool {
        let verdict = self.verdict.as_deref();
        verdict.is_some_and(|verdict| verdict.any_control(shows_access))
    }
}

const fn shows_access(control: &Control) -> bool {
    matches!(control, Control::ShowAccess(_))
}

const fn changes_statements(control: &Control) -> bool {
    matches!(
        control,
        Control::Prepare { .. }
            | Control::Deallocate { .. }
            | Control::DeallocateAll
            | Control::DiscardAll
            | Control::MayChangeNames
    )
}

pub(super) fn access_show(statement: &Statement) -> Option<AccessShow> {
    statement.controls.iter().find_map(|control| match control {
        Control::ShowAccess(show) => Some(*show),
        _ => None,
    })
}
