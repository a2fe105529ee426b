//! The waiter that is next, and its next step: an idle backend, an opening, or room for one.

use std::time::Duration;

use crate::backend::{Backend, Lend, State};
use crate::login::{Line, Login, Waiter};
use crate::{Access, BackendId, Budget, ClientId, Order, Pool, Residue};

/// Time in which a server process ends that does not hang.
const CLOSES_WITHIN: Duration = Duration::from_millis(200);

/// Next step for a waiter.
enum Step {
    Lend(BackendId),
    Open,
    MakeRoom(BackendId),
}

/// What the budget may still give.
#[derive(Clone, Copy)]
struct Left {
    has_places: bool,
    may_read: bool,
}

impl<L: Clone + Ord, T: Clone + Ord, B: Budget> Pool<L, T, B> {
    /// Serves waiters, as far as there is something for them.
    pub(crate) fn serve(&mut self, now: Duration) {
        let mut left = Left {
            has_places: true,
            may_read: self.waiting > 0 && self.budget.may_read(),
        };
        while self.waiting > 0 {
            let Some((login, access, step)) = self.next_step(now, left) else {
                break;
            };
            match step {
                Step::Lend(id) if self.may_lend(&access) => {
                    // After a token went first, the oldest waiter is next.
                    self.tokens_first = !(self.tokens_first && access.is_tokens());
                    let line = self.logins.entry(login).or_default().line(&access);
                    if let Some(waiter) = line.waiters.pop_front() {
                        self.waiting -= 1;
                        self.lend(id, waiter.client, access);
                    }
                }
                Step::Lend(_) => left.may_read = false,
                Step::Open if self.budget.take() => self.open(now, login, &access),
                Step::Open => left.has_places = false,
                Step::MakeRoom(id) => self.close(now, id),
            }
        }
        if left.has_places {
            self.budget.forgo();
        }
    }

    /// Whether a client may be lent a backend, which then counts as lent.
    pub(crate) fn may_lend(&mut self, wanted: &Access<T>) -> bool {
        *wanted != Access::ReadOnly || self.budget.read()
    }

    /// The oldest waiter, and every second time the oldest with tokens. No idle backend closes while it can serve.
    fn next_step(&self, now: Duration, left: Left) -> Option<(L, Access<T>, Step)> {
        let mut next = None;
        let mut first = (true, true, u64::MAX);
        for (name, login) in &self.logins {
            for (access, line) in &login.lines {
                let head = line.waiters.front();
                let step = head.and_then(|head| self.step(now, (name, access), head, left));
                let (Some(head), Some(step)) = (head, step) else {
                    continue;
                };
                let is_second = self.tokens_first && !access.is_tokens();
                let rank = (matches!(step, Step::MakeRoom(_)), is_second, head.number);
                if rank < first {
                    first = rank;
                    next = Some((name, access, step));
                }
            }
        }
        next.map(|(name, access, step)| (name.clone(), access.clone(), step))
    }

    fn step(
        &self,
        now: Duration,
        (name, wanted): (&L, &Access<T>),
        head: &Waiter,
        left: Left,
    ) -> Option<Step> {
        if *wanted == Access::ReadOnly && !left.may_read {
            return None;
        }
        let login = self.logins.get(name)?;
        let found = self.find(login, wanted, head.client);
        if let Some(id) = found {
            let is_own = self.backends.get(&id)?.access == *wanted;
            // A key's own backend may be on its way back.
            if is_own || login.lacks(wanted, |line| line.resetting) {
                return Some(Step::Lend(id));
            }
        }
        if !self.may_open(now, login, wanted) {
            return None;
        }
        let is_full = login.places >= self.limits.login;
        if !is_full && left.has_places {
            return Some(Step::Open);
        }
        // One at a time makes room: whatever closes may be enough.
        if self.idle == 0 || self.has_just_closed(now) {
            return None;
        }
        // Over the backends, which are few: very many logins may wait.
        let victims = self.backends.iter().filter_map(|(id, other)| {
            let since = other.idle_since()?;
            let is_victim = if other.login == *name {
                !other.access.serves(wanted)
            } else {
                !is_full
            };
            is_victim.then_some((since, *id))
        });
        victims.min().map(|(_, id)| Step::MakeRoom(id))
    }

    /// Whether a client of a login waits that a new backend could serve. For those that PostgreSQL is to decide on, few
    /// open at once, and one for each login: if it is admitted, it is for all of its clients.
    pub(crate) fn may_open(&self, now: Duration, login: &Login<T>, wanted: &Access<T>) -> bool {
        if *wanted == Access::New {
            let is_tried = login
                .lines
                .get(wanted)
                .is_some_and(|line| line.coming() > 0);
            if is_tried || self.undecided >= self.limits.undecided {
                return false;
            }
        }
        login.lacks(&wanted.born(), Line::coming) && login.may_open(now)
    }

    /// The idle backend that is best for a client: of its own key, else one that it can register itself.
    pub(crate) fn find(
        &self,
        login: &Login<T>,
        wanted: &Access<T>,
        client: ClientId,
    ) -> Option<BackendId> {
        let best = |access| self.best(login.lines.get(access)?, client);
        let is_registered_later = || wanted.is_tokens().then(|| best(&Access::ReadOnly))?;
        best(wanted).or_else(is_registered_later)
    }

    /// The client's last one, else one in which nothing is left, else the one that was used last.
    fn best(&self, line: &Line, client: ClientId) -> Option<BackendId> {
        let owner = |id: &&BackendId| self.backends.get(id).and_then(Backend::owner);
        let mut latest_first = line.idle.iter().rev();
        let own = latest_first.clone().find(|id| owner(id) == Some(client));
        let ready = own.or_else(|| latest_first.find(|id| owner(id).is_none()));
        ready.or_else(|| line.idle.last()).copied()
    }

    /// Wait after which others make way for a client.
    pub(crate) fn patience(&self) -> Duration {
        self.limits.wait / 8
    }

    pub(crate) fn lend(&mut self, id: BackendId, client: ClientId, wanted: Access<T>) {
        let owner = self.backends.get(&id).and_then(Backend::owner);
        let residue = match owner {
            None => Residue::None,
            Some(owner) if owner == client => Residue::Own,
            Some(_) => Residue::Perhaps,
        };
        self.enter(id, State::Lent(Lend::new(client, wanted)));
        self.orders.push_back(Order::Lend {
            client,
            backend: id,
            residue,
        });
    }

    pub(crate) fn reset(&mut self, id: BackendId) {
        self.enter(id, State::Resetting);
        self.orders.push_back(Order::Reset(id));
    }

    /// Whether a backend is closing that may have ended in a moment. One that hangs holds up nobody.
    pub(crate) fn has_just_closed(&self, now: Duration) -> bool {
        let mut backends = self.backends.values();
        self.closing > 0
            && backends.any(|backend| {
                let since = backend.closing_since();
                since.is_some_and(|since| now.saturating_sub(since) < CLOSES_WITHIN)
            })
    }

    pub(crate) fn close(&mut self, now: Duration, id: BackendId) {
        self.enter(id, State::Closing { since: now });
        self.orders.push_back(Order::Close(id));
    }

    /// Opens a backend. Its place is taken.
    fn open(&mut self, now: Duration, login: L, wanted: &Access<T>) {
        let backend = BackendId(self.number());
        let access = wanted.born();
        let of = self.logins.entry(login.clone()).or_default();
        of.places += 1;
        let state = State::Opening { since: now };
        of.enter(backend, &access, &state);
        self.undecided += usize::from(access == Access::New);
        let opening = Backend {
            login: login.clone(),
            access,
            state,
            expires_at: Duration::MAX,
        };
        self.backends.insert(backend, opening);
        self.orders.push_back(Order::Open { backend, login });
    }

    /// Moves a backend to another state.
    pub(crate) fn enter(&mut self, id: BackendId, state: State<T>) {
        let Some(backend) = self.backends.get_mut(&id) else {
            return;
        };
        if let Some(login) = self.logins.get_mut(&backend.login) {
            login.leave(id, &backend.access, &backend.state);
            login.enter(id, &backend.access, &state);
        }
        if backend.is_pinned() {
            self.budget.unpin();
        }
        if backend.is_read() {
            self.budget.end_read();
        }
        self.closing -= usize::from(backend.closing_since().is_some());
        self.idle -= usize::from(backend.idle_since().is_some());
        self.undecided -= usize::from(backend.is_undecided());
        backend.state = state;
        self.closing += usize::from(backend.closing_since().is_some());
        self.idle += usize::from(backend.idle_since().is_some());
    }
}
