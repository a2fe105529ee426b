//! Backends and waiters of one login, by access.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::backend::State;
use crate::{Access, BackendId, ClientId};

const OPENINGS_MAX: usize = 4;
const BACKOFF_MIN: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(5);

pub(crate) struct Login<T> {
    pub(crate) lines: BTreeMap<Access<T>, Line>,
    /// Backends in any state.
    pub(crate) places: usize,
    backoff: Backoff,
}

/// Backends of one key, and the clients that wait for it.
#[derive(Default)]
pub(crate) struct Line {
    /// The longest idle first.
    pub(crate) idle: Vec<BackendId>,
    pub(crate) waiters: VecDeque<Waiter>,
    /// Backends lent to clients that wanted this access.
    pub(crate) lent: usize,
    pub(crate) opening: usize,
    pub(crate) resetting: usize,
}

pub(crate) struct Waiter {
    pub(crate) client: ClientId,
    /// Rank by age among the waiters of all keys.
    pub(crate) number: u64,
    pub(crate) since: Duration,
}

#[derive(Default)]
struct Backoff {
    pause: Duration,
    until: Duration,
}

impl Line {
    pub(crate) const fn coming(&self) -> usize {
        self.opening + self.resetting
    }

    pub(crate) fn is_empty(&self) -> bool {
        let backends = self.idle.len() + self.lent + self.opening + self.resetting;
        backends == 0 && self.waiters.is_empty()
    }
}

impl<T> Default for Login<T> {
    fn default() -> Self {
        Self {
            lines: BTreeMap::new(),
            places: 0,
            backoff: Backoff::default(),
        }
    }
}

impl<T: Clone + Ord> Login<T> {
    pub(crate) fn line(&mut self, access: &Access<T>) -> &mut Line {
        self.lines.entry(access.clone()).or_default()
    }

    pub(crate) fn enter(&mut self, id: BackendId, access: &Access<T>, state: &State<T>) {
        match state {
            State::Opening { .. } => self.line(access).opening += 1,
            State::Idle { .. } => self.line(access).idle.push(id),
            State::Lent(lend) => self.line(&lend.wanted).lent += 1,
            State::Resetting => self.line(access).resetting += 1,
            State::Late | State::Closing { .. } => {}
        }
    }

    pub(crate) fn leave(&mut self, id: BackendId, access: &Access<T>, state: &State<T>) {
        match state {
            State::Opening { .. } => self.line(access).opening -= 1,
            State::Idle { .. } => self.line(access).idle.retain(|other| *other != id),
            State::Lent(lend) => self.line(&lend.wanted).lent -= 1,
            State::Resetting => self.line(access).resetting -= 1,
            State::Late | State::Closing { .. } => {}
        }
    }

    /// Whether clients wait that one more backend of this access could serve, beside those that are coming.
    pub(crate) fn lacks(&self, access: &Access<T>, coming: impl Fn(&Line) -> usize) -> bool {
        let short = |line: &Line| line.waiters.len().saturating_sub(coming(line));
        if *access != Access::ReadOnly {
            return self.lines.get(access).map_or(0, short) > 0;
        }
        let tokens = self.lines.iter().filter(|(access, _)| access.is_tokens());
        let tokens: usize = tokens.map(|(_, line)| short(line)).sum();
        match self.lines.get(access) {
            Some(readers) => tokens + readers.waiters.len() > coming(readers),
            None => tokens > 0,
        }
    }

    pub(crate) fn may_open(&self, now: Duration) -> bool {
        let opening: usize = self.lines.values().map(|line| line.opening).sum();
        opening < OPENINGS_MAX && now >= self.backoff.until
    }

    /// Takes the waiters that an opening concerns which has failed: all, if no backend is open, or those of a login.
    pub(crate) fn concerned(&mut self, access: &Access<T>) -> impl Iterator<Item = Waiter> {
        let mut lines = self.lines.values();
        let is_bare = lines.all(|line| line.idle.is_empty() && line.lent + line.resetting == 0);
        let is_login = *access == Access::New;
        let lines = self.lines.iter_mut();
        let lines = lines.filter(move |(of, _)| is_bare || is_login && **of == Access::New);
        lines.flat_map(|(_, line)| line.waiters.drain(..))
    }

    pub(crate) fn opened(&mut self) {
        self.backoff = Backoff::default();
    }

    /// The pause grows with each opening that fails after the last pause.
    pub(crate) fn failed(&mut self, now: Duration) {
        if now >= self.backoff.until {
            let pause = self.backoff.pause.saturating_mul(2);
            self.backoff.pause = pause.clamp(BACKOFF_MIN, BACKOFF_MAX);
        }
        self.backoff.until = now.saturating_add(self.backoff.pause);
    }

    /// Drops lines without backends and waiters, and says whether nothing is left to know.
    pub(crate) fn is_forgotten(&mut self, now: Duration) -> bool {
        self.lines.retain(|_, line| !line.is_empty());
        self.places == 0 && self.lines.is_empty() && now >= self.backoff.until
    }
}
