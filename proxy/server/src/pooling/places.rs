//! Places for server connections, which the workers share.

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::sync::Arc;

use parking_lot::Mutex;
use pgpalisade_pool::{Budget, Debt};

use super::BackendLimits;

/// The places of all workers.
#[derive(Debug, Clone)]
pub(crate) struct Places {
    state: Arc<Mutex<State>>,
    undecided: usize,
    /// Of all, how many are kept for clients with tokens.
    leaders: usize,
}

/// Share of all places, as a divisor, that the openings for logins which were never admitted may have.
const UNDECIDED: usize = 4;

#[derive(Debug)]
struct State {
    free: usize,
    free_pins: usize,
    /// Server connections that clients without tokens may have beside those that they have.
    free_reads: usize,
    /// A share in which such a client has waited long: one of those is for it.
    next_reader: Option<u64>,
    /// Last number of a share.
    numbers: u64,
    /// The longest waiting first, at most one of each share.
    claims: VecDeque<Claim>,
}

#[derive(Debug)]
struct Claim {
    share: u64,
    /// Places that the share had when it last spoke.
    held: usize,
    is_urgent: bool,
}

/// The places of one worker.
#[derive(Debug)]
pub(crate) struct Share {
    places: Places,
    number: u64,
    held: usize,
    /// Whether it has a claim.
    is_waiting: bool,
}

impl Places {
    pub(super) fn new(limits: &BackendLimits, workers: NonZeroUsize) -> Self {
        let state = State {
            free: limits.max.get(),
            free_pins: limits.pinned,
            free_reads: limits.max.get().saturating_sub(limits.leaders),
            next_reader: None,
            numbers: 0,
            claims: VecDeque::new(),
        };
        Self {
            state: Arc::new(Mutex::new(state)),
            undecided: limits.max.get().div_ceil(UNDECIDED * workers.get()),
            leaders: limits.leaders,
        }
    }

    /// Openings of a worker at once for logins that were never admitted.
    pub(super) const fn undecided(&self) -> usize {
        self.undecided
    }

    pub(super) fn share(&self) -> Share {
        let mut state = self.state.lock();
        state.numbers += 1;
        Share {
            places: self.clone(),
            number: state.numbers,
            held: 0,
            is_waiting: false,
        }
    }
}

impl State {
    fn may_read(&self, share: u64) -> bool {
        let is_other = self.next_reader.is_some_and(|next| next != share);
        self.free_reads > usize::from(is_other)
    }
}

impl Budget for Share {
    fn take(&mut self) -> bool {
        let mut state = self.places.state.lock();
        let is_other = |claim: &&Claim| claim.share != self.number;
        let ahead = state.claims.iter().take_while(is_other).count();
        let is_taken = state.free > ahead;
        if is_taken {
            state.free -= 1;
            self.held += 1;
            drop(state);
            self.forgo();
        } else if !self.is_waiting {
            self.is_waiting = true;
            state.claims.push_back(Claim {
                share: self.number,
                held: self.held,
                is_urgent: false,
            });
        }
        is_taken
    }

    fn give_back(&mut self) {
        self.held -= 1;
        self.places.state.lock().free += 1;
    }

    fn forgo(&mut self) {
        if std::mem::take(&mut self.is_waiting) {
            let mut state = self.places.state.lock();
            state.claims.retain(|claim| claim.share != self.number);
        }
    }

    fn urge(&mut self) {
        let mut state = self.places.state.lock();
        let mut claims = state.claims.iter_mut();
        if let Some(own) = claims.find(|claim| claim.share == self.number) {
            own.held = self.held;
            own.is_urgent = true;
        }
    }

    fn debt(&self) -> Debt {
        let state = self.places.state.lock();
        let others = state.claims.iter();
        let mut others = others.filter(|claim| claim.share != self.number).peekable();
        if state.free >= state.claims.len() || others.peek().is_none() {
            return Debt::Nothing;
        }
        // None without a place, and otherwise none that would soon be owed the same.
        let is_poor = |claim: &Claim| claim.held == 0 || claim.held + 1 < self.held;
        if others.any(|claim| claim.is_urgent && is_poor(claim)) {
            Debt::Any
        } else {
            Debt::Idle
        }
    }

    fn read(&mut self) -> bool {
        // All of them together never have more than there are.
        if self.places.leaders == 0 {
            return true;
        }
        let mut state = self.places.state.lock();
        let may_read = state.may_read(self.number);
        if may_read {
            state.free_reads -= 1;
            state.next_reader = state.next_reader.filter(|next| *next != self.number);
        }
        may_read
    }

    fn may_read(&self) -> bool {
        self.places.leaders == 0 || self.places.state.lock().may_read(self.number)
    }

    fn end_read(&mut self) {
        if self.places.leaders > 0 {
            self.places.state.lock().free_reads += 1;
        }
    }

    fn urge_read(&mut self) {
        self.places
            .state
            .lock()
            .next_reader
            .get_or_insert(self.number);
    }

    fn forgo_read(&mut self) {
        let mut state = self.places.state.lock();
        state.next_reader = state.next_reader.filter(|next| *next != self.number);
    }

    fn owes_read(&self) -> bool {
        let next = self.places.state.lock().next_reader;
        next.is_some_and(|next| next != self.number)
    }

    fn pin(&mut self) -> bool {
        let mut state = self.places.state.lock();
        let is_free = state.free_pins > 0;
        state.free_pins -= usize::from(is_free);
        is_free
    }

    fn unpin(&mut self) {
        self.places.state.lock().free_pins += 1;
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.forgo();
        self.forgo_read();
    }
}

#[cfg(test)]
mod tests;
