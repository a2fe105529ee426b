//! The reply ledger: what has been sent to the server and not been answered yet.
//!
//! PostgreSQL answers strictly in order. Every request that is sent pushes what completes it, and
//! replies take it off again. That is how the proxy knows at any time what is in flight, takes out
//! the replies to its own messages, and puts an error of its own in the place of the server's.
//!
//! Source: <https://www.postgresql.org/docs/current/protocol-flow.html>

use std::collections::VecDeque;
use std::sync::Arc;

use pgpalisade_policies::{AccessShow, Control, Statement, Verdict};

use crate::rejection::Rejection;
use crate::wire::backend::tag;

/// More requests than this in flight, and the client is not read until replies have come.
pub const IN_FLIGHT_MAX: usize = 16 * 1024;

/// Room for so many entries is kept while nothing is in flight.
const KEPT_WHEN_EMPTY: usize = 32;

/// Whose message a request is, and so who gets the reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The client's: the reply is relayed.
    Client,
    /// The proxy's own: the reply is swallowed.
    Proxy,
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
    /// CopyDone or CopyFail: has no reply, but ends the time in which the server ignores Sync.
    CopyEnd,
}

impl Request {
    const fn is_extended(self) -> bool {
        matches!(
            self,
            Self::Parse | Self::Bind | Self::Close | Self::Describe | Self::Execute
        )
    }
}

/// A request in flight.
#[derive(Debug)]
pub struct InFlight {
    /// What completes it.
    pub request: Request,
    /// Who gets the reply.
    pub origin: Origin,
    /// What it does, where the proxy needed to know.
    pub verdict: Option<Arc<Verdict>>,
    /// How many statements of the verdict have completed.
    pub completed: usize,
    /// The client's error in the place of the server's.
    pub error: Option<Box<Rejection>>,
    /// What its completion does to the session's names.
    pub name: Option<Box<NameChange>>,
    /// How the ledger counts it.
    counts: Counts,
}

/// What a request in flight counts as, found out once.
#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    ends_transaction: bool,
    may_hide_a_write: bool,
}

/// What a Parse or Close of a named statement does once the server has carried it out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NameChange {
    /// The statement was noted when the Parse was sent; should it fail, there is none.
    Prepare(Box<[u8]>),
    /// The statement is gone.
    CloseStatement(Box<[u8]>),
    /// The portal is gone.
    ClosePortal(Box<[u8]>),
}

impl InFlight {
    /// A request of the client.
    #[must_use]
    pub const fn client(request: Request, verdict: Option<Arc<Verdict>>) -> Self {
        Self {
            request,
            origin: Origin::Client,
            verdict,
            completed: 0,
            error: None,
            name: None,
            counts: Counts {
                ends_transaction: false,
                may_hide_a_write: false,
            },
        }
    }

    /// A request of the proxy's own.
    #[must_use]
    pub const fn proxy(request: Request) -> Self {
        Self {
            request,
            origin: Origin::Proxy,
            verdict: None,
            completed: 0,
            error: None,
            name: None,
            counts: Counts {
                ends_transaction: false,
                may_hide_a_write: false,
            },
        }
    }
}

impl InFlight {
    /// The verdict on it, where it is known, and which of its statements the next reply is about.
    #[inline]
    #[must_use]
    pub fn position(&self) -> Option<(&Arc<Verdict>, usize)> {
        let at = match self.request {
            Request::Query => self.completed,
            _ => 0,
        };
        self.verdict.as_ref().map(|verdict| (verdict, at))
    }

    /// Whether it ends a transaction that is no block.
    const fn ends_transaction(&self) -> bool {
        matches!(self.request, Request::Query | Request::Sync)
    }

    /// Whether it may run a function of the database that writes, or that switches read-only mode off for the next
    /// transaction. What prepares an Execute can run one too, and has no verdict with it.
    fn may_hide_a_write(&self) -> bool {
        self.origin == Origin::Client
            && match &self.verdict {
                Some(verdict) => verdict.statements.iter().any(Statement::may_hide_a_write),
                None => matches!(
                    self.request,
                    Request::Query
                        | Request::Parse
                        | Request::Bind
                        | Request::Describe
                        | Request::Execute
                ),
            }
    }

    fn asks_for_access(&self) -> bool {
        let mut statements = self.verdict.iter().flat_map(|verdict| &verdict.statements);
        statements.any(|statement| access_show(statement).is_some())
    }
}

fn access_show(statement: &Statement) -> Option<AccessShow> {
    statement.controls.iter().find_map(|control| match control {
        Control::ShowAccess(show) => Some(*show),
        _ => None,
    })
}

/// What a reply from the server means, and where it goes.
#[derive(Debug, PartialEq, Eq)]
pub enum Reply {
    /// Relay it.
    Relay,
    /// It answers the proxy: drop it.
    Swallow,
    /// The client gets this error in its place.
    Replace(Box<Rejection>),
}

/// Requests in flight, oldest first.
#[derive(Debug, Default)]
pub struct Ledger {
    in_flight: VecDeque<InFlight>,
    mode: Mode,
    /// Changes of names that the server has skipped because of an error.
    skipped: Vec<NameChange>,
    access_shows: AccessShows,
    /// How many of those in flight end a transaction outside of a block.
    ending: usize,
    /// How many may hide a write.
    hiding: usize,
}

/// Whether rows may have to be looked at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum AccessShows {
    #[default]
    None,
    /// A SHOW of the access mode was sent since nothing was in flight.
    Some,
}

/// What the server does with messages that it is sent now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Mode {
    #[default]
    Normal,
    /// An error in the extended protocol: it skips everything up to the next Sync.
    SkippingToSync,
    /// COPY FROM STDIN: Sync and Flush are ignored until CopyDone or CopyFail.
    CopyIn,
}

impl Ledger {
    /// Notes a request that has just been sent.
    #[inline]
    pub fn push(&mut self, mut entry: InFlight) {
        match (self.mode, entry.request) {
            (Mode::CopyIn, Request::Sync) => return,
            (Mode::CopyIn, Request::CopyEnd) => {
                self.mode = Mode::Normal;
                return;
            }
            // Outside of a COPY these messages are ignored; a marker is needed only where one may begin.
            (_, Request::CopyEnd) if self.in_flight.is_empty() => return,
            (Mode::SkippingToSync, Request::Sync) => self.mode = Mode::Normal,
            (Mode::SkippingToSync, _) => return,
            _ => {}
        }
        if self.in_flight.is_empty() {
            self.access_shows = AccessShows::None;
        }
        if entry.verdict.is_some() && entry.asks_for_access() {
            self.access_shows = AccessShows::Some;
        }
        entry.counts = Counts {
            ends_transaction: entry.ends_transaction(),
            may_hide_a_write: entry.may_hide_a_write(),
        };
        self.ending += usize::from(entry.counts.ends_transaction);
        self.hiding += usize::from(entry.counts.may_hide_a_write);
        self.in_flight.push_back(entry);
    }

    /// Takes one entry off. A long pipeline gives its memory back.
    fn take(&mut self, at: usize) -> Option<InFlight> {
        let entry = match at {
            0 => self.in_flight.pop_front(),
            at => self.in_flight.remove(at),
        }?;
        self.ending -= usize::from(entry.counts.ends_transaction);
        self.hiding -= usize::from(entry.counts.may_hide_a_write);
        if self.in_flight.is_empty() && self.in_flight.capacity() > KEPT_WHEN_EMPTY {
            self.in_flight = VecDeque::new();
        }
        Some(entry)
    }

    /// Takes note of a message from the server and says where it goes. Messages that can come at any
    /// time (ParameterStatus, NotificationResponse) are not for the ledger.
    #[inline]
    pub fn on_reply(&mut self, reply: u8) -> Reply {
        let Some(front) = self.in_flight.front_mut() else {
            if reply == tag::READY_FOR_QUERY {
                self.mode = Mode::Normal;
            }
            return Reply::Relay;
        };
        let to = match front.origin {
            Origin::Client => Reply::Relay,
            Origin::Proxy => Reply::Swallow,
        };
        match reply {
            tag::ERROR => return self.on_error(to),
            tag::COPY_IN_RESPONSE => self.on_copy_in(),
            tag::READY_FOR_QUERY => self.on_ready(),
            tag::COMMAND_COMPLETE | tag::EMPTY_QUERY => {
                front.completed += 1;
                if front.request == Request::Execute {
                    self.pop();
                }
            }
            _ if completes(front.request, reply) => self.pop(),
            _ => {}
        }
        to
    }

    fn on_error(&mut self, to: Reply) -> Reply {
        let front = self.in_flight.front_mut();
        let replacement = front.and_then(|front| front.error.take());
        let skips = self
            .in_flight
            .front()
            .is_some_and(|front| front.request.is_extended());
        if skips {
            while self
                .in_flight
                .front()
                .is_some_and(|front| front.request != Request::Sync)
            {
                let dropped = self.take(0);
                self.skipped
                    .extend(dropped.and_then(|entry| entry.name).map(|name| *name));
            }
            self.mode = match self.in_flight.is_empty() {
                true => Mode::SkippingToSync,
                false => Mode::Normal,
            };
        } else if self.mode == Mode::CopyIn {
            self.mode = Mode::Normal;
        }
        replacement.map_or(to, Reply::Replace)
    }

    fn on_copy_in(&mut self) {
        // The server drops every Sync that stands between the command and the end of its data.
        let mut at = 1;
        while let Some(entry) = self.in_flight.get(at) {
            match entry.request {
                Request::CopyEnd => {
                    self.take(at);
                    return;
                }
                Request::Sync => {
                    self.take(at);
                }
                _ => at += 1,
            }
        }
        self.mode = Mode::CopyIn;
    }

    fn on_ready(&mut self) {
        let front = self.in_flight.front().map(|front| front.request);
        if matches!(
            front,
            Some(Request::Query | Request::FunctionCall | Request::Sync)
        ) {
            self.pop();
        }
        if self.mode == Mode::SkippingToSync {
            self.mode = Mode::Normal;
        }
    }

    fn pop(&mut self) {
        self.take(0);
        while self
            .in_flight
            .front()
            .is_some_and(|front| front.request == Request::CopyEnd)
        {
            self.take(0);
        }
    }

    /// Changes of names that will not happen, since the last call.
    pub fn take_skipped(&mut self) -> Vec<NameChange> {
        std::mem::take(&mut self.skipped)
    }

    /// The request that the next reply belongs to.
    #[inline]
    #[must_use]
    pub fn front(&self) -> Option<&InFlight> {
        self.in_flight.front()
    }

    /// What the next row shows, where it shows the access mode.
    #[inline]
    #[must_use]
    pub fn shown_access(&self) -> Option<AccessShow> {
        match self.access_shows {
            AccessShows::None => None,
            AccessShows::Some => {
                let (verdict, at) = self.front()?.position()?;
                verdict.statements.get(at).and_then(access_show)
            }
        }
    }

    /// The oldest request, to put an error into.
    pub fn front_mut(&mut self) -> Option<&mut InFlight> {
        self.in_flight.front_mut()
    }

    /// Requests in flight.
    pub fn iter(&self) -> impl Iterator<Item = &InFlight> {
        self.in_flight.iter()
    }

    /// Whether everything that was sent has been answered.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// Whether something in flight ends a transaction that is no block.
    #[must_use]
    pub fn ends_transaction(&self) -> bool {
        self.ending > 0
    }

    /// Whether something of the client's in flight may hide a write.
    #[must_use]
    pub fn may_hide_a_write(&self) -> bool {
        self.hiding > 0
    }

    /// Whether more may be sent before replies come.
    #[inline]
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.in_flight.len() < IN_FLIGHT_MAX
    }

    /// Whether the server is skipping to the next Sync: it would drop whatever else it is sent.
    #[inline]
    #[must_use]
    pub fn is_skipping(&self) -> bool {
        self.mode == Mode::SkippingToSync
    }

    /// Whether the server is reading the data of a COPY FROM STDIN.
    #[must_use]
    pub fn is_copying_in(&self) -> bool {
        self.mode == Mode::CopyIn
    }
}

const fn completes(request: Request, reply: u8) -> bool {
    matches!(
        (request, reply),
        (Request::Parse, tag::PARSE_COMPLETE)
            | (Request::Bind, tag::BIND_COMPLETE)
            | (Request::Close, tag::CLOSE_COMPLETE)
            | (Request::Describe, tag::ROW_DESCRIPTION | tag::NO_DATA)
            | (Request::Execute, tag::PORTAL_SUSPENDED)
    )
}

#[cfg(test)]
mod tests;
