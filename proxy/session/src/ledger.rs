//! The reply ledger: what has been sent to the server and not been answered yet.
//!
//! PostgreSQL answers strictly in order. Every request that is sent pushes what completes it, and
//! replies take it off again. That is how the proxy knows at any time what is in flight, takes out
//! the replies to its own messages, and puts an error of its own in the place of the server's.
//!
//! Source: <https://www.postgresql.org/docs/current/protocol-flow.html>

use pgpalisade_policies::AccessShow;
use std::collections::VecDeque;
use std::marker::PhantomData;

use super::in_flight::{Counts, InFlight, Origin, Request, access_show};
use crate::fence::{Kind, Meaning, Name, Wrote};
use crate::rejection::Rejection;
use crate::wire::backend::tag;

/// More requests than this in flight, and the client is not read until replies have come.
pub(crate) const IN_FLIGHT_MAX: usize = 16 * 1024;

/// Room for so many entries is kept while nothing is in flight.
const KEPT_WHEN_EMPTY: usize = 32;

/// So many entries are looked at for what a name stands for.
const LOOKED_BACK_MAX: usize = 64;

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

/// What the requests in flight do to a name.
#[derive(Debug)]
pub enum Sent<'a> {
    /// Nothing.
    Nothing,
    /// It was given a meaning since the last Sync, or none: should that fail, what is sent now is skipped.
    Change(Option<&'a Meaning>),
    /// That cannot be told before they are answered.
    Unclear,
}

/// The proof that what the server has confirmed holds for a request that is sent now: whatever is in flight belongs to
/// the same request cycle, which ends with ReadyForQuery, so the server skips the request where any of it fails.
#[derive(Debug, Clone, Copy)]
pub struct Settled<'a>(PhantomData<&'a Ledger>);

/// Requests in flight, oldest first.
#[derive(Debug, Default)]
pub struct Ledger {
    in_flight: VecDeque<InFlight>,
    mode: Mode,
    access_shows: AccessShows,
    /// The sum of those in flight.
    counts: Counts,
    /// Whether something that was answered in the open transaction may have written.
    wrote: Wrote,
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
    CopyIn(Data),
}

/// What was sent while a COPY FROM STDIN reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Data {
    /// No data yet.
    None,
    /// Data.
    Sent,
    /// A Sync after data: ignored, unless the server has refused the data by then.
    SentAndSynced,
}

impl Ledger {
    /// Notes a request that has just been sent. Most callers know its kind, and with that most of what is to be done.
    #[inline(always)]
    pub fn push(&mut self, mut entry: InFlight) {
        match (self.mode, entry.request) {
            (Mode::CopyIn(data), Request::Sync) => {
                if data == Data::Sent {
                    self.mode = Mode::CopyIn(Data::SentAndSynced);
                }
                return;
            }
            (Mode::CopyIn(_), Request::MalformedFlush) => return,
            (Mode::SkippingToSync, Request::Sync) => self.mode = Mode::Normal,
            (Mode::SkippingToSync, _) => return,
            _ => {}
        }
        if self.in_flight.is_empty() {
            self.access_shows = AccessShows::None;
        }
        if entry.asks_for_access() {
            self.access_shows = AccessShows::Some;
        }
        entry.counts = entry.counts();
        self.counts += entry.counts;
        self.in_flight.push_back(entry);
    }

    /// Takes the oldest entry off.
    fn take_front(&mut self) {
        if let Some(entry) = self.in_flight.front() {
            self.note_taken(entry.counts);
            drop(self.in_flight.pop_front());
            self.give_memory_back();
        }
    }

    /// Takes another entry off.
    fn take(&mut self, at: usize) {
        if let Some(entry) = self.in_flight.remove(at) {
            self.note_taken(entry.counts);
            self.give_memory_back();
        }
    }

    #[inline]
    fn note_taken(&mut self, counts: Counts) {
        self.counts -= counts;
        if counts.writing > 0 {
            self.wrote = Wrote::Yes;
        }
    }

    /// A long pipeline gives its memory back.
    #[inline]
    fn give_memory_back(&mut self) {
        if self.in_flight.is_empty() && self.in_flight.capacity() > KEPT_WHEN_EMPTY {
            self.in_flight = VecDeque::new();
        }
    }

    /// Takes note of a message from the server and says where it goes. Messages that can come at any
    /// time (ParameterStatus, NotificationResponse) are not for the ledger. Most callers know which message it is.
    #[inline(always)]
    pub fn on_reply(&mut self, reply: u8) -> Reply {
        let Some(front) = self.in_flight.front_mut() else {
            if reply == tag::READY_FOR_QUERY {
                self.mode = Mode::Normal;
            }
            return Reply::Relay;
        };
        let to = match front.origin {
            Origin::Client => Reply::Relay,
            Origin::Injected => Reply::Swallow,
        };
        match reply {
            tag::ERROR => return self.on_error(to),
            tag::COPY_IN_RESPONSE => self.on_copy_in(),
            tag::READY_FOR_QUERY => self.on_ready(),
            tag::COMMAND_COMPLETE | tag::EMPTY_QUERY => {
                front.completed += 1;
                if front.request == Request::Execute {
                    self.take_front();
                }
            }
            _ if completes(front.request, reply) => self.take_front(),
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
                self.take_front();
            }
            self.mode = match self.in_flight.is_empty() {
                true => Mode::SkippingToSync,
                false => Mode::Normal,
            };
        } else {
            self.end_copy_in();
        }
        replacement.map_or(to, Reply::Replace)
    }

    fn on_copy_in(&mut self) {
        // The server drops every Sync and Flush that stands between the command and its data.
        let mut at = 1;
        while let Some(entry) = self.in_flight.get(at) {
            match entry.request {
                Request::Sync | Request::MalformedFlush => self.take(at),
                _ => at += 1,
            }
        }
        self.mode = Mode::CopyIn(Data::None);
    }

    fn on_ready(&mut self) {
        let front = self.in_flight.front();
        if front.is_some_and(|front| front.request.ends_cycle()) {
            self.take_front();
        }
        if self.mode == Mode::SkippingToSync {
            self.mode = Mode::Normal;
        }
    }

    /// CopyDone or CopyFail is sent: from here on the server ignores no Sync.
    pub(crate) fn end_copy_in(&mut self) {
        if self.is_copying_in() {
            self.mode = Mode::Normal;
        }
    }

    /// Data of a COPY are sent.
    #[inline]
    pub(crate) fn on_copy_data(&mut self) {
        if self.mode == Mode::CopyIn(Data::None) {
            self.mode = Mode::CopyIn(Data::Sent);
        }
    }

    /// Whether nobody can tell how a Sync was taken, should the COPY fail now: if the server had refused the data by
    /// then, it has ended the cycle.
    pub(crate) fn has_unclear_sync(&self) -> bool {
        self.mode == Mode::CopyIn(Data::SentAndSynced)
    }

    /// The request that the next reply belongs to.
    #[inline]
    #[must_use]
    pub(crate) fn front(&self) -> Option<&InFlight> {
        self.in_flight.front()
    }

    /// What the next row shows, where it shows the access mode.
    #[inline]
    #[must_use]
    pub(crate) fn shown_access(&self) -> Option<AccessShow> {
        match self.access_shows {
            AccessShows::None => None,
            AccessShows::Some => {
                let (verdict, at) = self.front()?.position()?;
                verdict.statements.get(at).and_then(access_show)
            }
        }
    }

    /// The oldest request, to put an error into.
    pub(crate) fn front_mut(&mut self) -> Option<&mut InFlight> {
        self.in_flight.front_mut()
    }

    /// Requests in flight.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &InFlight> {
        self.in_flight.iter()
    }

    /// Whether everything that was sent has been answered.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// The proof that what was confirmed holds for a request that is sent now, where it does.
    #[inline]
    #[must_use]
    pub const fn settled(&self) -> Option<Settled<'_>> {
        match self.counts.ending {
            0 => Some(Settled(PhantomData)),
            _ => None,
        }
    }

    /// Whether the transaction in which a request arrives that is sent now may have written.
    #[must_use]
    pub const fn wrote(&self) -> Wrote {
        match self.counts.writing {
            0 => self.wrote,
            _ => Wrote::Yes,
        }
    }

    /// A statement has completed that has ended a transaction and begun another.
    pub(crate) fn begin_another(&mut self) {
        self.wrote = Wrote::No;
        if let Some(front) = self
            .in_flight
            .front_mut()
            .filter(|front| front.is_at_its_last())
        {
            self.counts.writing -= front.counts.writing;
            front.counts.writing = 0;
        }
    }

    /// ReadyForQuery has told that no transaction is open.
    #[inline]
    pub(crate) const fn end_transaction(&mut self) {
        self.wrote = Wrote::No;
    }

    /// What the requests in flight do to a name.
    #[inline]
    pub(super) fn sent(&self, name: Name<'_>) -> Sent<'_> {
        let mut changing = match name.kind() {
            Kind::Statement => self.counts.naming,
            Kind::Portal => self.counts.binding,
        };
        // A simple Query destroys what has no name.
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
                Kind::Statement => entry.counts.naming,
                Kind::Portal => entry.counts.binding,
            };
            if changing == 0 && !may_be_destroyed {
                return Sent::Nothing;
            }
        }
        Sent::Unclear
    }

    /// Whether more may be sent before replies come.
    #[inline]
    #[must_use]
    pub(crate) fn has_room(&self) -> bool {
        self.in_flight.len() < IN_FLIGHT_MAX
    }

    /// Whether the server is skipping to the next Sync: it would drop whatever else it is sent.
    #[inline]
    #[must_use]
    pub(crate) fn is_skipping(&self) -> bool {
        self.mode == Mode::SkippingToSync
    }

    /// Whether the server is reading the data of a COPY FROM STDIN.
    #[must_use]
    pub(crate) fn is_copying_in(&self) -> bool {
        matches!(self.mode, Mode::CopyIn(_))
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
