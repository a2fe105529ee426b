//! Effects of time: waits end, idle backends close, long waits get a place.

use std::time::Duration;

use crate::backend::{Backend, State};
use crate::login::Waiter;
use crate::{Access, BackendId, Budget, Debt, Order, Pool, Refusal};

impl<L: Clone + Ord, T: Clone + Ord, B: Budget> Pool<L, T, B> {
    /// Time has passed: to be called ten times a second.
    pub fn tick(&mut self, now: Duration) {
        self.give_up_on_late(now);
        self.serve(now);
        self.end_waits(now);
        self.make_way(now);
        self.pay(now);
        self.close_idle(now);
        self.reset_idle(now);
        self.logins.retain(|_, login| !login.is_forgotten(now));
    }

    /// An opening that takes long may never end. It keeps its place, and others open beside it.
    fn give_up_on_late(&mut self, now: Duration) {
        for id in self.all(|backend| backend.is_late(now)) {
            self.enter(id, State::Late);
        }
    }

    fn end_waits(&mut self, now: Duration) {
        let wait = self.limits.wait;
        let logins = self.logins.values_mut();
        for line in logins.flat_map(|login| login.lines.values_mut()) {
            let is_over = |waiter: &Waiter| now.saturating_sub(waiter.since) >= wait;
            while line.waiters.front().is_some_and(is_over)
                && let Some(waiter) = line.waiters.pop_front()
            {
                self.waiting -= 1;
                let refusal = Order::Refuse(waiter.client, Refusal::Timeout);
                self.orders.push_back(refusal);
            }
        }
    }

    fn close_idle(&mut self, now: Duration) {
        for id in self.all(|backend| backend.idle_since().is_some()) {
            if let Some(backend) = self.backends.get(&id)
                && self.is_idle_too_long(now, backend)
            {
                self.close(now, id);
            }
        }
    }

    /// Removes what clients have left unseen where they do not come back: a lock may hold up others, and its own client
    /// in another backend.
    fn reset_idle(&mut self, now: Duration) {
        for id in self.all(|backend| backend.is_left(now)) {
            self.reset(id);
        }
    }

    /// Closes what is idle. A client that still needs a backend gets a new one.
    pub fn close_all_idle(&mut self, now: Duration) {
        for id in self.all(|backend| backend.idle_since().is_some()) {
            self.close(now, id);
        }
    }

    fn is_idle_too_long(&self, now: Duration, backend: &Backend<L, T>) -> bool {
        let idle = backend.idle_since().map(|since| now.saturating_sub(since));
        now >= backend.expires_at || idle >= Some(self.limits.idle)
    }

    /// Clients of some keys may keep every backend busy. If one of another key has waited long, a backend of a login
    /// that has more closes when it is given back: one at each tick, so that keys do not take turns for each
    /// transaction.
    fn make_way(&mut self, now: Duration) {
        let starving = self.starving(now);
        let way = starving.iter().find_map(|key| self.way_for(*key));
        if !starving.is_empty() {
            self.budget.urge();
        }
        let is_long = |since| now.saturating_sub(since) >= self.patience();
        if self.readers().any(|head| is_long(head.since)) {
            self.budget.urge_read();
        } else {
            self.budget.forgo_read();
        }
        self.gives_way(now, way);
    }

    /// Keys whose clients have waited long, and which one more backend could serve.
    fn starving(&self, now: Duration) -> Vec<(&L, &Access<T>)> {
        let lines = self.logins.iter().flat_map(|(name, login)| {
            let lines = login.lines.iter();
            lines.map(move |(access, line)| (name, login, access, line))
        });
        let starving = lines.filter(|(_, login, access, line)| {
            let head = line.waiters.front();
            let waited = head.map(|head| now.saturating_sub(head.since));
            waited >= Some(self.patience()) && self.may_open(now, login, access)
        });
        starving
            .map(|(name, _, access, _)| (name, access))
            .collect()
    }

    /// Makes way for another pool, too, whose clients find no place.
    fn pay(&mut self, now: Duration) {
        let debt = self.budget.debt();
        if debt == Debt::Nothing {
            return;
        }
        let backends = self.backends.iter();
        let idle = backends.filter_map(|(id, backend)| Some((backend.idle_since()?, *id)));
        match idle.min() {
            Some((_, id)) if !self.has_just_closed(now) => self.close(now, id),
            None if debt == Debt::Any => self.gives_way(now, self.way(|_| true)),
            _ => return,
        }
        // The other pool is first now. What was kept for the idle one's key may serve others.
        self.budget.forgo();
        self.serve(now);
    }

    fn gives_way(&mut self, now: Duration, way: Option<BackendId>) {
        let way = way.filter(|_| !self.has_just_closed(now));
        if let Some(lend) = way.and_then(|id| self.backends.get_mut(&id)?.lend()) {
            lend.is_leaving = true;
        }
    }

    fn way_for(&self, (name, access): (&L, &Access<T>)) -> Option<BackendId> {
        let serves = |backend: &Backend<L, T>| backend.becomes().serves(access);
        let own = self.backends.values();
        let own = own.filter(|backend| backend.login == *name && serves(backend));
        let own = own.count();
        let is_full = self.logins.get(name)?.places >= self.limits.login;
        // Where only reads are short, one with tokens is of no use.
        let is_held_up = *access == Access::ReadOnly && !self.budget.may_read();
        self.way(|backend| {
            if is_held_up && !backend.is_read() {
                false
            } else if backend.login == *name {
                !serves(backend)
            } else {
                !is_full && self.places_of(backend) > own
            }
        })
    }

    /// The lent backend that is to close: of the login that has most, and without tokens first.
    fn way(&self, is_way: impl Fn(&Backend<L, T>) -> bool) -> Option<BackendId> {
        let rank = |(id, backend): (&BackendId, &Backend<L, T>)| {
            let State::Lent(lend) = &backend.state else {
                return None;
            };
            let is_way = is_way(backend) && !lend.is_pinned && !lend.is_leaving;
            is_way.then_some((!lend.wanted.is_tokens(), self.places_of(backend), *id))
        };
        let ways = self.backends.iter().filter_map(rank);
        ways.max().map(|(.., id)| id)
    }

    fn places_of(&self, backend: &Backend<L, T>) -> usize {
        let login = self.logins.get(&backend.login);
        login.map_or(0, |login| login.places)
    }
}
