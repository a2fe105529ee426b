//! The pool of one worker's server connections ("backends") as a state machine, for `pool = "transaction"`.
//!
//! Methods are the events; each may queue [`Order`]s, which the driver takes with [`Pool::next_order`] until none is
//! left, before the next event. Time is what the driver says, from any origin.
//!
//! A backend belongs to a key for life: a login and an [`Access`]. A client that wants tokens may get a read-only
//! backend, registers it by itself, and says so when it gives it back. No backend in which something may be left goes
//! from one client to another without a reset between them. The next client is told to begin with it; once the last
//! client has left, it is ordered: the same client again needs none, and what a function has left behind (a lock,
//! LISTEN) ends with its client.
//!
//! The pool knows no marks: a client's session asks the fence before it wants a backend and before it uses it, and the
//! barrier of a takeover ends backends of lower tokens, which then come as [`Pool::ended`].

#[cfg(test)]
mod tests;

mod backend;
mod budget;
mod login;
mod serve;
mod tick;
mod view;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use backend::{Backend, State};
pub use budget::{Budget, Debt};
use login::{Line, Login, Waiter};
pub use view::{Activity, BackendView, Wait};

/// A server connection of this pool. Never reused: events of a backend that is gone change nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BackendId(u64);

/// A client of this worker, by a number that the driver never uses again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u64);

/// Rights of a backend, and need of a client: half of a key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access<T> {
    /// A login that PostgreSQL is to decide on needs a new backend, which is read-only afterwards.
    New,
    /// Transactions are read-only.
    ReadOnly,
    /// Registered for these tokens, in canonical form.
    Tokens(T),
}

impl<T: Ord> Access<T> {
    const fn is_tokens(&self) -> bool {
        matches!(self, Self::Tokens(_))
    }

    /// Access of a new backend that serves it.
    const fn born(&self) -> Self {
        match self {
            Self::New => Self::New,
            Self::ReadOnly | Self::Tokens(_) => Self::ReadOnly,
        }
    }

    /// Whether a backend of this access may be lent for another, or become one of it.
    fn serves(&self, wanted: &Self) -> bool {
        match self {
            Self::New => matches!(wanted, Self::New | Self::ReadOnly),
            Self::ReadOnly => *wanted == Self::ReadOnly || wanted.is_tokens(),
            Self::Tokens(_) => self == wanted,
        }
    }
}

/// What a client may have left in a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Residue {
    /// Nothing that a client could find.
    None,
    /// What only the client that gets the backend has left.
    Own,
    /// What a reset is to remove first.
    Perhaps,
}

/// Work for the driver, in the order of the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order<L> {
    /// The client has the backend until [`Pool::given_back`] or [`Pool::ended`]. It begins with a reset if there is
    /// residue of another.
    Lend {
        client: ClientId,
        backend: BackendId,
        residue: Residue,
    },
    /// Answered by [`Pool::opened`], or by [`Pool::ended`] if it fails, within a bound.
    Open { backend: BackendId, login: L },
    /// Answered by [`Pool::reset_done`], or closed within a bound.
    Reset(BackendId),
    /// Answered by [`Pool::ended`] within a bound. An opening is given up.
    Close(BackendId),
    /// The client waits no longer.
    Refuse(ClientId, Refusal),
}

/// Reason that a client gets no backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// None was free in time.
    Timeout,
    /// The opening that has just ended failed, and its login has no other backend, or the client needs a new one. The
    /// client gets the server's error.
    OpenFailed,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Backends of a login.
    pub login: usize,
    /// Backends that open at once for logins that PostgreSQL is to decide on: who has proved nothing leaves most places
    /// to others.
    pub undecided: usize,
    /// Wait of a client.
    pub wait: Duration,
    /// Time after which an idle backend is closed.
    pub idle: Duration,
    /// Lifetime of a backend, give or take a tenth.
    pub lifetime: Duration,
}

pub struct Pool<L, T, B> {
    limits: Limits,
    budget: B,
    backends: BTreeMap<BackendId, Backend<L, T>>,
    logins: BTreeMap<L, Login<T>>,
    orders: VecDeque<Order<L>>,
    /// Last number of a backend or waiter.
    numbers: u64,
    waiting: usize,
    closing: usize,
    idle: usize,
    /// Openings for logins that PostgreSQL is to decide on.
    undecided: usize,
    /// Whether a client with tokens goes before older waiters.
    tokens_first: bool,
}

impl<L: Clone + Ord, T: Clone + Ord, B: Budget> Pool<L, T, B> {
    pub const fn new(limits: Limits, budget: B) -> Self {
        Self {
            limits,
            budget,
            backends: BTreeMap::new(),
            logins: BTreeMap::new(),
            orders: VecDeque::new(),
            numbers: 0,
            waiting: 0,
            closing: 0,
            idle: 0,
            undecided: 0,
            tokens_first: true,
        }
    }

    pub fn next_order(&mut self) -> Option<Order<L>> {
        self.orders.pop_front()
    }

    /// A client, which has no backend and waits for none, needs one.
    pub fn wanted(&mut self, now: Duration, client: ClientId, login: &L, access: Access<T>) {
        if let Some(id) = self.ready(client, login, &access)
            && self.may_lend(&access)
        {
            return self.lend(id, client, access);
        }
        let number = self.number();
        let waiter = Waiter {
            client,
            number,
            since: now,
        };
        let login = self.logins.entry(login.clone()).or_default();
        login.line(&access).waiters.push_back(waiter);
        self.waiting += 1;
        self.serve(now);
    }

    fn ready(&self, client: ClientId, login: &L, access: &Access<T>) -> Option<BackendId> {
        // Those of other logins wait for the same.
        if *access == Access::ReadOnly && self.waiting > 0 && self.readers().next().is_some() {
            return None;
        }
        let login = self.logins.get(login)?;
        let id = self.find(login, access, client)?;
        let is_own = self.backends.get(&id)?.access == *access;
        // Older waiters go first, and a key's own backend may be on its way back.
        let is_free = |line: &Line| line.waiters.is_empty() && (is_own || line.resetting == 0);
        login.lines.get(access).is_none_or(is_free).then_some(id)
    }

    /// A client has disconnected, or waits no longer. If it had a backend, that is given back or ended first.
    pub fn left(&mut self, client: ClientId) {
        for line in self
            .logins
            .values_mut()
            .flat_map(|login| login.lines.values_mut())
        {
            let before = line.waiters.len();
            line.waiters.retain(|waiter| waiter.client != client);
            self.waiting -= before - line.waiters.len();
        }
        for id in self.all(|backend| backend.owner() == Some(client)) {
            self.reset(id);
        }
    }

    /// A client needs its backend no more: outside a transaction, all requests answered, and nothing left but what a
    /// reset removes. Any other is closed by the driver and comes as [`Self::ended`], as one whose registration ended
    /// unclear, or that a cancel request may still reach. `access`: what the backend is registered for by now.
    pub fn given_back(
        &mut self,
        now: Duration,
        id: BackendId,
        access: Access<T>,
        residue: Residue,
    ) {
        let Some(backend) = self.backends.get_mut(&id) else {
            return;
        };
        let is_over = now >= backend.expires_at || !backend.access.serves(&access);
        let Some(lend) = backend.lend() else {
            return;
        };
        let owner = match residue {
            Residue::None => None,
            Residue::Own | Residue::Perhaps => Some(lend.client),
        };
        if is_over || lend.is_leaving {
            self.close(now, id);
        } else {
            backend.access = access;
            self.enter(id, State::Idle { since: now, owner });
        }
        self.serve(now);
    }

    /// A backend is ready: authenticated, and its access confirmed. The random `seed` spreads the ends of lifetimes.
    pub fn opened(&mut self, now: Duration, id: BackendId, seed: u64) {
        let lifetime = self.limits.lifetime;
        let Some(backend) = self.backends.get_mut(&id) else {
            return;
        };
        if !backend.is_opening() {
            return;
        }
        let part = u32::try_from(seed % 1024).unwrap_or_default();
        let spread = (lifetime / 5 / 1024).saturating_mul(part);
        let lives = (lifetime - lifetime / 10).saturating_add(spread);
        backend.expires_at = now.saturating_add(lives);
        if let Some(login) = self.logins.get_mut(&backend.login) {
            login.opened();
            // The client that it was opened for has left.
            if backend.access == Access::New && login.line(&Access::New).waiters.is_empty() {
                login.leave(id, &backend.access, &backend.state);
                self.undecided -= usize::from(backend.is_undecided());
                backend.access = Access::ReadOnly;
                login.enter(id, &backend.access, &backend.state);
            }
        }
        self.free(now, id);
    }

    /// The reset of a backend has succeeded.
    pub fn reset_done(&mut self, now: Duration, id: BackendId) {
        let state = self.backends.get(&id).map(|backend| &backend.state);
        if matches!(state, Some(State::Resetting)) {
            self.free(now, id);
        }
    }

    fn free(&mut self, now: Duration, id: BackendId) {
        let state = State::Idle {
            since: now,
            owner: None,
        };
        self.enter(id, state);
        self.serve(now);
    }

    /// The connection of a backend has ended: its opening or reset failed, it was closed, it broke, or it said
    /// something unasked while idle. If it was lent, its client knows already.
    pub fn ended(&mut self, now: Duration, id: BackendId) {
        self.all_ended(now, [id]);
    }

    /// Several have ended, none of which is lent to anybody afterwards.
    pub fn all_ended(&mut self, now: Duration, ids: impl IntoIterator<Item = BackendId>) {
        for id in ids {
            self.remove(now, id);
        }
        self.serve(now);
    }

    fn remove(&mut self, now: Duration, id: BackendId) {
        let Some(backend) = self.backends.remove(&id) else {
            return;
        };
        self.budget.give_back();
        if backend.is_pinned() {
            self.budget.unpin();
        }
        if backend.is_read() {
            self.budget.end_read();
        }
        self.closing -= usize::from(backend.closing_since().is_some());
        self.idle -= usize::from(backend.idle_since().is_some());
        self.undecided -= usize::from(backend.is_undecided());
        let is_opening = backend.is_opening();
        let login = self.logins.entry(backend.login).or_default();
        login.places -= 1;
        login.leave(id, &backend.access, &backend.state);
        if is_opening {
            login.failed(now);
            for waiter in login.concerned(&backend.access) {
                self.waiting -= 1;
                let refusal = Order::Refuse(waiter.client, Refusal::OpenFailed);
                self.orders.push_back(refusal);
            }
        }
    }

    /// Asks before a statement whose effect outlives its transaction. If false, the client gets an error instead of a
    /// wait: clients that wait for a pin would keep their backends, and the wait might never end.
    #[must_use]
    pub fn pin(&mut self, id: BackendId) -> bool {
        let Some(lend) = self.backends.get_mut(&id).and_then(Backend::lend) else {
            return false;
        };
        lend.is_pinned = lend.is_pinned || self.budget.pin();
        lend.is_pinned
    }

    /// Whether no connection is left.
    pub fn is_empty(&self) -> bool {
        self.backends.is_empty()
    }

    /// The longest waiting client without tokens of each login.
    fn readers(&self) -> impl Iterator<Item = &Waiter> {
        let lines = self
            .logins
            .values()
            .filter_map(|login| login.lines.get(&Access::ReadOnly));
        lines.filter_map(|line| line.waiters.front())
    }

    const fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    fn all(&self, is_one: impl Fn(&Backend<L, T>) -> bool) -> Vec<BackendId> {
        let all = self.backends.iter().filter(|(_, backend)| is_one(backend));
        all.map(|(id, _)| *id).collect()
    }
}
