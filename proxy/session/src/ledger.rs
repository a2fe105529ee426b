//! Reply ledger: requests that were sent to the server and are not answered yet.
//!
//! PostgreSQL answers strictly in order. Each request pushes what completes it, and replies take it off. So the proxy
//! always knows what is in flight, drops the replies to its own messages, and replaces a server's error with its own.
//!
//! Source: <https://www.postgresql.org/docs/current/protocol-flow.html>

use pgpalisade_policies::AccessShow;
use std::collections::VecDeque;
use std::marker::PhantomData;

use super::in_flight::{Counts, InFlight, Origin, Request, access_show};
use super::name_change::NameChange;
use crate::fence::{Name, NameSpace, PreparedText};
use crate::rejection::Rejection;
use crate::wire::backend::tag;

/// Limit of requests in flight. Above it the client is not read until replies come.
pub(crate) const IN_FLIGHT_MAX: usize = 16 * 1024;

/// Entries for which memory is kept while nothing is in flight.
const KEPT_WHEN_EMPTY: usize = 32;

/// Entries that are searched for what a name stands for.
const LOOKED_BACK_MAX: usize = 64;

/// Destination of a reply from the server.
#[derive(Debug, PartialEq, Eq)]
pub enum ReplyRoute {
    /// Relay it.
    Relay,
    /// Drop it: it answers the proxy.
    Swallow,
    /// Send the client this error instead.
    Replace(Box<Rejection>),
}

/// Effect of the requests in flight on a name.
#[derive(Debug)]
pub enum Sent<'a> {
    /// None of them changes it.
    Nothing,
    /// Defined or closed since the last Sync: if that fails, the server skips what is sent now.
    Change(Option<&'a PreparedText>),
    /// Unknown until they are answered.
    Unclear,
}

/// Proof that the confirmed state holds for a request that is sent now.
///
/// Whatever is in flight belongs to its request cycle, which ends with ReadyForQuery: if any of it fails, the server
/// skips the request.
#[derive(Debug, Clone, Copy)]
pub struct Settled<'a>(PhantomData<&'a Ledger>);

/// Requests in flight, oldest first.
#[derive(Debug, Default)]
pub struct Ledger {
    in_flight: VecDeque<InFlight>,
    mode: ServerMode,
    /// Whether a Sync was sent after data of the COPY that is being answered: the server ignores it, unless it has
    /// refused the data before.
    has_unclear_sync: bool,
    /// Whether a SHOW of the access mode was sent since the ledger was last empty, so rows must be checked for it.
    has_access_show: bool,
    /// Sum over the requests in flight.
    counts: Counts,
    /// Whether a request that was answered may have written in the open transaction.
    wrote: bool,
}

/// The server's treatment of what it is sent now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum ServerMode {
    #[default]
    Normal,
    /// After an error in the extended protocol: everything up to the next Sync is skipped.
    SkippingToSync,
    /// COPY FROM STDIN: Sync and Flush are ignored until CopyDone or CopyFail.
    CopyIn {
        /// Whether data was sent.
        has_data: bool,
    },
}

impl Ledger {
    /// Adds a request that was just sent. Inlined, as most callers pass a constant kind.
    #[inline(always)]
    pub fn push(&mut self, mut entry: InFlight) {
        match (self.mode, entry.request) {
            (ServerMode::CopyIn { has_data }, Request::Sync) => {
                self.has_unclear_sync |= has_data;
                return;
            }
            (ServerMode::CopyIn { .. }, Request::MalformedFlush) => return,
            (ServerMode::SkippingToSync, Request::Sync) => self.mode = ServerMode::Normal,
            (ServerMode::SkippingToSync, _) => return,
            _ => {}
        }
        self.has_access_show &= !self.in_flight.is_empty();
        self.has_access_show |= entry.asks_for_access();
        entry.counts = entry.counts();
        self.counts += entry.counts;
        self.in_flight.push_back(entry);
    }

    /// Whether a request after the one being answered runs anything.
    pub(super) fn runs_more(&self) -> bool {
        let mut later = self.in_flight.iter().skip(1);
        later.any(|later| later.request.runs())
    }

    /// Adds a request of the proxy, which is rare.
    #[inline(never)]
    pub(super) fn push_own(&mut self, entry: InFlight) {
        self.push(entry);
    }

    fn take_front(&mut self) {
        if let Some(entry) = self.in_flight.front() {
            self.note_taken(entry.counts);
            drop(self.in_flight.pop_front());
            self.give_memory_back();
        }
    }

    fn take(&mut self, at: usize) {
        if let Some(entry) = self.in_flight.remove(at) {
            self.note_taken(entry.counts);
            self.give_memory_back();
        }
    }

    #[inline]
    fn note_taken(&mut self, counts: Counts) {
        self.counts -= counts;
        self.wrote |= counts.writing > 0;
    }

    /// Frees the memory of a long pipeline.
    #[inline]
    fn give_memory_back(&mut self) {
        if self.in_flight.is_empty() && self.in_flight.capacity() > KEPT_WHEN_EMPTY {
            self.in_flight = VecDeque::new();
        }
    }

    /// Applies a backend message and says where it goes. Messages that can come at any time (ParameterStatus,
    /// NotificationResponse) do not belong here. Inlined, as most callers pass a constant message.
    #[inline(always)]
    pub fn on_reply(&mut self, reply: u8) -> ReplyRoute {
        let Some(front) = self.in_flight.front_mut() else {
            if reply == tag::READY_FOR_QUERY {
                self.mode = ServerMode::Normal;
            }
            return ReplyRoute::Relay;
        };
        front.may_be_skipped &= reply == tag::ERROR;
        let to = match front.origin {
            Origin::Client => ReplyRoute::Relay,
            Origin::ParsedAgain if reply == tag::ERROR => ReplyRoute::Relay,
            Origin::Injected | Origin::ParsedAgain | Origin::Outdated => ReplyRoute::Swallow,
        };
        match reply {
            tag::ERROR => return self.on_error(to),
            tag::COPY_IN_RESPONSE => self.on_copy_in(),
            tag::READY_FOR_QUERY => self.on_ready(),
            tag::COMMAND_COMPLETE | tag::EMPTY_QUERY => {
                self.has_unclear_sync = false;
                front.completed += 1;
                if front.request == Request::Execute {
                    self.take_front();
                }
            }
            _ if front.request.is_completed_by(reply) => self.take_front(),
            _ => {}
        }
        to
    }

    fn on_error(&mut self, to: ReplyRoute) -> ReplyRoute {
        let front = self.in_flight.front_mut();
        let replacement = front.and_then(|front| front.error.take());
        let is_extended = |front: &InFlight| front.request.is_extended();
        let is_before_sync = |front: &InFlight| front.request != Request::Sync;
        if self.front().is_some_and(is_extended) {
            while self.front().is_some_and(is_before_sync) {
                self.take_front();
            }
            self.mode = if self.in_flight.is_empty() {
                ServerMode::SkippingToSync
            } else {
                ServerMode::Normal
            };
        } else {
            self.end_copy_in();
        }
        replacement.map_or(to, ReplyRoute::Replace)
    }

    fn on_copy_in(&mut self) {
        // The server drops each Sync and Flush between the command and its data.
        let mut at = 1;
        while let Some(entry) = self.in_flight.get(at) {
            match entry.request {
                Request::Sync | Request::MalformedFlush => self.take(at),
                _ => at += 1,
            }
        }
        self.mode = ServerMode::CopyIn { has_data: false };
    }

    fn on_ready(&mut self) {
        let front = self.in_flight.front();
        if front.is_some_and(|front| front.request.ends_cycle()) {
            self.take_front();
        }
        if self.mode == ServerMode::SkippingToSync {
            self.mode = ServerMode::Normal;
        }
    }

    /// Notes the error of a Flush, at which a `statement_timeout` was due.
    pub(crate) const fn skip_to_sync(&mut self) {
        self.mode = ServerMode::SkippingToSync;
    }

    /// Ends the COPY: from now on the server ignores no Sync.
    pub(crate) fn end_copy_in(&mut self) {
        if self.is_copying_in() {
            self.mode = ServerMode::Normal;
        }
    }

    /// Notes that COPY data is sent.
    #[inline]
    pub(crate) fn on_copy_data(&mut self) {
        if let ServerMode::CopyIn { has_data } = &mut self.mode {
            *has_data = true;
        }
    }

    /// Whether a Sync is ambiguous if the COPY fails now: it ended the cycle if the server had already refused the
    /// data.
    pub(crate) const fn has_unclear_sync(&self) -> bool {
        self.has_unclear_sync
    }

    /// Changes of names that are in flight.
    pub(crate) fn names_mut(&mut self) -> impl Iterator<Item = &mut NameChange> {
        self.in_flight.iter_mut().map(|entry| &mut entry.name)
    }

    /// Request that the next reply answers.
    #[inline]
    #[must_use]
    pub(crate) fn front(&self) -> Option<&InFlight> {
        self.in_flight.front()
    }

    /// Access mode that the next row shows, if it shows one.
    #[inline]
    #[must_use]
    pub(crate) fn shown_access(&self) -> Option<AccessShow> {
        let front = self.front().filter(|_| self.has_access_show)?;
        let (verdict, at) = front.position()?;
        verdict.statements.get(at).and_then(access_show)
    }

    pub(crate) fn front_mut(&mut self) -> Option<&mut InFlight> {
        self.in_flight.front_mut()
    }

    /// Request that was sent last.
    pub(crate) fn back_mut(&mut self) -> Option<&mut InFlight> {
        self.in_flight.back_mut()
    }

    /// Requests in flight, oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &InFlight> {
        self.in_flight.iter()
    }

    /// Whether everything that was sent has been answered.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// Proof that the confirmed state holds for a request that is sent now, if it does.
    #[inline]
    #[must_use]
    pub const fn settled(&self) -> Option<Settled<'_>> {
        match self.counts.ending {
            0 => Some(Settled(PhantomData)),
            _ => None,
        }
    }

    /// Whether the transaction of a request that is sent now may have written.
    #[must_use]
    pub const fn wrote(&self) -> bool {
        self.wrote || self.counts.writing > 0
    }

    /// Notes that a completed statement has ended a transaction: what follows belongs to the next.
    pub(crate) fn begin_another(&mut self) {
        self.wrote = false;
        let front = self.in_flight.front_mut();
        if let Some(front) = front.filter(|front| front.is_at_its_last()) {
            self.counts.writing -= front.counts.writing;
            front.counts.writing = 0;
        }
    }

    /// Notes that ReadyForQuery has reported no open transaction.
    #[inline]
    pub(crate) const fn end_transaction(&mut self) {
        self.wrote = false;
    }

    /// Effect of the requests in flight on a name.
    #[inline]
    pub(super) fn sent(&self, name: Name<'_>) -> Sent<'_> {
        let mut changing = match name.kind() {
            NameSpace::Statement => self.counts.naming,
            NameSpace::Portal => self.counts.binding,
        };
        // A simple Query destroys the unnamed statement and portal.
        let may_be_destroyed = name.is_unnamed() && self.counts.ending > 0;
        if changing == 0 && !may_be_destroyed {
            return Sent::Nothing;
        }
        if !name.is_comparable() {
            return Sent::Unclear;
        }
        let newest = self.in_flight.len();
        for at in (newest.saturating_sub(LOOKED_BACK_MAX)..newest).rev() {
            let Some(entry) = self.in_flight.get(at) else {
                break;
            };
            if let Some(meaning) = entry.name.of(name) {
                return Sent::Change(meaning);
            }
            if entry.counts.ending > 0 || entry.may_change_statements() {
                return Sent::Unclear;
            }
            changing -= match name.kind() {
                NameSpace::Statement => entry.counts.naming,
                NameSpace::Portal => entry.counts.binding,
            };
            if changing == 0 && !may_be_destroyed {
                return Sent::Nothing;
            }
        }
        Sent::Unclear
    }

    /// Whether all that is in flight was sent by the proxy for itself.
    pub(super) fn is_of_proxy(&self) -> bool {
        self.iter().all(|entry| entry.origin == Origin::Injected)
    }

    /// Whether nothing of the client is in flight but the beginning of a request cycle that has run no statement.
    pub(super) fn runs_nothing_of_client(&self) -> bool {
        let runs = |entry: &InFlight| {
            let request = entry.request;
            entry.origin != Origin::Injected && (request.runs() || request.ends_cycle())
        };
        !self.in_flight.iter().any(runs)
    }

    /// Whether more may be sent before replies come.
    #[inline]
    #[must_use]
    pub(crate) fn has_room(&self) -> bool {
        self.in_flight.len() < IN_FLIGHT_MAX
    }

    /// Whether the server answers all that is in flight without another message.
    pub(crate) fn ends_cycle(&self) -> bool {
        let ends = |last: &InFlight| last.request.ends_cycle();
        self.mode == ServerMode::Normal && self.in_flight.back().is_some_and(ends)
    }

    /// Whether the server skips everything up to the next Sync.
    #[inline]
    #[must_use]
    pub(crate) fn is_skipping(&self) -> bool {
        self.mode == ServerMode::SkippingToSync
    }

    /// Whether the server is reading the data of a COPY FROM STDIN.
    #[must_use]
    pub(crate) fn is_copying_in(&self) -> bool {
        matches!(self.mode, ServerMode::CopyIn { .. })
    }
}

#[cfg(test)]
mod tests;
