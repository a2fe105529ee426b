//! A server connection of the pool, and its state.

use std::time::Duration;

use crate::{Access, ClientId};

/// Time in which a client finds in its last backend what it has left there.
const COMES_BACK_WITHIN: Duration = Duration::from_secs(1);

/// Far longer than a login takes.
const OPENS_WITHIN: Duration = Duration::from_secs(5);

pub(crate) struct Backend<L, T> {
    pub(crate) login: L,
    pub(crate) access: Access<T>,
    pub(crate) state: State<T>,
    /// End of its lifetime: no client gets it afterwards.
    pub(crate) expires_at: Duration,
}

pub(crate) enum State<T> {
    Opening {
        since: Duration,
    },
    /// It still opens, and nobody counts on it.
    Late,
    Idle {
        since: Duration,
        /// Last client, if it may have left something.
        owner: Option<ClientId>,
    },
    Lent(Lend<T>),
    Resetting,
    Closing {
        since: Duration,
    },
}

pub(crate) struct Lend<T> {
    pub(crate) client: ClientId,
    pub(crate) wanted: Access<T>,
    pub(crate) is_pinned: bool,
    /// Closed instead of lent again.
    pub(crate) is_leaving: bool,
}

impl<T> Lend<T> {
    pub(crate) const fn new(client: ClientId, wanted: Access<T>) -> Self {
        Self {
            client,
            wanted,
            is_pinned: false,
            is_leaving: false,
        }
    }
}

impl<L, T> Backend<L, T> {
    pub(crate) const fn lend(&mut self) -> Option<&mut Lend<T>> {
        match &mut self.state {
            State::Lent(lend) => Some(lend),
            _ => None,
        }
    }

    pub(crate) const fn is_pinned(&self) -> bool {
        matches!(&self.state, State::Lent(lend) if lend.is_pinned)
    }

    /// Whether a client without tokens has it.
    pub(crate) const fn is_read(&self) -> bool {
        matches!(&self.state, State::Lent(lend) if matches!(lend.wanted, Access::ReadOnly))
    }

    /// The access that it will have once it is given back.
    pub(crate) const fn becomes(&self) -> &Access<T> {
        match &self.state {
            State::Lent(lend) => &lend.wanted,
            _ => &self.access,
        }
    }

    /// Whether its last client may have left something, and has not come back for a while.
    pub(crate) fn is_left(&self, now: Duration) -> bool {
        let idle = self.idle_since().map(|since| now.saturating_sub(since));
        self.owner().is_some() && idle >= Some(COMES_BACK_WITHIN)
    }

    pub(crate) const fn owner(&self) -> Option<ClientId> {
        match self.state {
            State::Idle { owner, .. } => owner,
            _ => None,
        }
    }

    pub(crate) const fn is_opening(&self) -> bool {
        matches!(self.state, State::Opening { .. } | State::Late)
    }

    /// Whether it has been opening for so long that it is counted on no more.
    pub(crate) fn is_late(&self, now: Duration) -> bool {
        matches!(self.state, State::Opening { since } if now.saturating_sub(since) >= OPENS_WITHIN)
    }

    /// Whether it opens for a login that PostgreSQL is to decide on.
    pub(crate) const fn is_undecided(&self) -> bool {
        matches!(
            (&self.access, &self.state),
            (Access::New, State::Opening { .. })
        )
    }

    pub(crate) const fn closing_since(&self) -> Option<Duration> {
        match self.state {
            State::Closing { since } => Some(since),
            _ => None,
        }
    }

    pub(crate) const fn idle_since(&self) -> Option<Duration> {
        match self.state {
            State::Idle { since, .. } => Some(since),
            _ => None,
        }
    }
}
