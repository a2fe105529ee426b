//! The pool as people see it.

use std::time::Duration;

use strum::{IntoStaticStr, VariantArray};

use crate::backend::{Backend, State};
use crate::{Access, BackendId, Budget, ClientId, Pool};

/// What a backend does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "lowercase")]
pub enum Activity {
    /// Lent to a client.
    Active,
    Idle,
    Resetting,
    Opening,
    Closing,
}

impl Activity {
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

#[derive(Debug, PartialEq, Eq)]
pub struct BackendView<'a, L, T> {
    pub id: BackendId,
    pub login: &'a L,
    /// Of a lent backend, what its client wanted.
    pub access: &'a Access<T>,
    pub activity: Activity,
    /// The client that it is lent to.
    pub client: Option<ClientId>,
    /// Whether its client keeps it beyond a transaction.
    pub is_pinned: bool,
    /// Whether it closes instead of being lent again.
    pub is_leaving: bool,
}

/// A client that waits for a backend.
#[derive(Debug, PartialEq, Eq)]
pub struct Wait<'a, L> {
    pub client: ClientId,
    pub login: &'a L,
    pub since: Duration,
}

impl<L: Clone + Ord, T: Clone + Ord, B: Budget> Pool<L, T, B> {
    pub fn backends(&self) -> impl Iterator<Item = BackendView<'_, L, T>> {
        self.backends.iter().map(|(id, backend)| backend.view(*id))
    }

    pub fn waits(&self) -> impl Iterator<Item = Wait<'_, L>> {
        let lines = self
            .logins
            .iter()
            .flat_map(|(login, of)| of.lines.values().map(move |line| (login, line)));
        lines.flat_map(|(login, line)| {
            line.waiters.iter().map(move |waiter| Wait {
                client: waiter.client,
                login,
                since: waiter.since,
            })
        })
    }

    /// Whether clients are to give back what they have between two transactions, also if they send ahead.
    pub fn wants_back(&self, now: Duration) -> bool {
        let is_over = |backend: &Backend<L, T>| match &backend.state {
            State::Lent(lend) if lend.is_pinned => false,
            State::Lent(lend) => lend.is_leaving || now >= backend.expires_at,
            _ => false,
        };
        self.waiting > 0 || self.budget.owes_read() || self.backends.values().any(is_over)
    }

    /// Number of clients that wait for a backend.
    pub const fn waiting(&self) -> usize {
        self.waiting
    }
}

impl<L, T> Backend<L, T> {
    fn view(&self, id: BackendId) -> BackendView<'_, L, T> {
        let (activity, client) = match &self.state {
            State::Opening { .. } | State::Late => (Activity::Opening, None),
            State::Idle { .. } => (Activity::Idle, None),
            State::Lent(lend) => (Activity::Active, Some(lend.client)),
            State::Resetting => (Activity::Resetting, None),
            State::Closing { .. } => (Activity::Closing, None),
        };
        BackendView {
            id,
            login: &self.login,
            access: self.becomes(),
            activity,
            client,
            is_pinned: self.is_pinned(),
            is_leaving: match &self.state {
                State::Lent(lend) => lend.is_leaving,
                State::Closing { .. } => true,
                _ => false,
            },
        }
    }
}
