//! Trouble of servers.

use std::time::Duration;

use super::promises::Doing;
use super::random::LEAST;
use super::splitmix::Random;
use super::world::{Delivery, World};
use crate::{Access, Debt};

/// A kind of trouble.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Weather {
    /// A server process ends.
    Kill,
    /// A takeover ends those with one token.
    Takeover,
    /// No opening succeeds, or each may again.
    Outage,
    /// Another pool takes places of the budget, or gives them back, and may want more.
    Sibling,
}

impl Weather {
    const ALL: [Self; 4] = [Self::Kill, Self::Takeover, Self::Outage, Self::Sibling];

    pub(super) fn draw(random: &mut Random) -> Vec<Self> {
        let all = Self::ALL.into_iter();
        all.filter(|_| random.percent(40)).collect()
    }
}

impl World {
    pub(super) fn weather(&mut self) {
        let kinds = self.draw.weather.len();
        if kinds == 0 {
            return;
        }
        match self.draw.weather[self.random.index(kinds)] {
            Weather::Kill => {
                let at = self.random.index(self.truth.servers.len());
                let killed = self.truth.servers.keys().nth(at).copied();
                killed.into_iter().for_each(|id| self.kill(id));
            }
            Weather::Takeover => {
                let token = Access::Tokens(u8::try_from(self.random.below(2)).unwrap());
                let lower = self.truth.servers.iter();
                let lower = lower.filter(|(_, server)| server.access == token);
                let lower: Vec<_> = lower.map(|(id, _)| *id).collect();
                lower.into_iter().for_each(|id| self.kill(id));
            }
            Weather::Outage => self.is_away ^= true,
            Weather::Sibling => {
                let taken = self.places.taken.get();
                if self.others > 0 {
                    self.places.taken.set(taken - self.others);
                    self.others = 0;
                } else {
                    self.others = self.random.index(1 + self.draw.max.saturating_sub(taken));
                    self.places.taken.set(taken + self.others);
                }
                let debts = [None, Some(Debt::Idle), Some(Debt::Any)];
                self.places.debt.set(debts[self.random.index(3)]);
            }
        }
        self.obey();
        let after = self.random.delay(1000) + LEAST;
        self.later(after, Delivery::Weather);
    }

    /// The holder sees the end of the connection.
    pub(super) fn kill(&mut self, id: crate::BackendId) {
        let Some(server) = self.truth.servers.get_mut(&id) else {
            return;
        };
        server.is_dead = true;
        if !matches!(server.doing, Doing::Lent(..)) {
            let after = self.random.delay(5) + LEAST;
            self.later(after, Delivery::Noticed(id));
        }
    }

    pub(super) fn calm(&mut self) {
        self.draw.calm();
        self.calm_since = Some(self.now);
        self.is_away = false;
        let taken = self.places.taken.get();
        self.places.taken.set(taken - self.others);
        self.others = 0;
        self.places.debt.set(None);
        self.obey();
    }
}

/// Time with faults, and without.
pub(super) const STORM: Duration = Duration::from_secs(5);
pub(super) const CALM: Duration = Duration::from_secs(6);
