//! Choices of a run. Each seed decides all of them.

use std::time::Duration;

use super::splitmix::Random;
use super::weather::Weather;
use crate::Limits;

/// Least delay.
pub(super) const LEAST: Duration = Duration::from_micros(1);

/// Limits of a run. Some are zero.
pub(super) struct Draw {
    pub(super) limits: Limits,
    /// Places of all pools.
    pub(super) max: usize,
    /// Of these, how many clients without tokens may have.
    pub(super) reads: usize,
    /// Backends of all pools that clients may keep.
    pub(super) pinned: usize,
    pub(super) logins: u64,
    pub(super) clients: usize,
    /// Transactions of a hundred with a token, and logins.
    pub(super) tokens: u64,
    pub(super) new: u64,
    /// Most milliseconds of a transaction, of a pause between two, and of an opening.
    pub(super) transaction: u64,
    pub(super) think: u64,
    pub(super) opening: u64,
    /// Of a hundred: openings and resets that fail, transactions that pin, or whose client disconnects.
    pub(super) fails: u64,
    pub(super) pins: u64,
    pub(super) dies: u64,
    pub(super) weather: Vec<Weather>,
}

impl Draw {
    pub(super) fn new(random: &mut Random) -> Self {
        let weather = Weather::draw(random);
        let mut one_of = |values: &[u64]| values[random.index(values.len())];
        let seconds = Duration::from_secs;
        let max = usize::try_from(one_of(&[1, 2, 3, 6, 12])).unwrap();
        let mut size = |values: &[u64]| usize::try_from(one_of(values)).unwrap();
        let (login, leaders) = (size(&[1, 2, 4, 100]), size(&[0, 1, 2]));
        let reads = max.saturating_sub(leaders).max(1);
        let pinned = size(&[0, 1, 3]);
        let limits = Limits {
            login,
            undecided: size(&[1, 2, 100]),
            wait: Duration::from_millis(one_of(&[500, 4000, 4000])),
            idle: seconds(one_of(&[1, 2, 600])),
            lifetime: seconds(one_of(&[2, 3600])),
        };
        Self {
            limits,
            max,
            reads,
            pinned,
            logins: one_of(&[1, 1, 2, 3]),
            clients: usize::try_from(one_of(&[2, 6, 25, 25])).unwrap(),
            tokens: one_of(&[0, 0, 10, 50]),
            new: one_of(&[0, 0, 10]),
            transaction: one_of(&[5, 50, 200]),
            think: one_of(&[1, 50, 500]),
            opening: one_of(&[5, 20, 200]),
            fails: one_of(&[0, 2, 20]),
            pins: one_of(&[0, 5, 30]),
            dies: one_of(&[0, 2, 20]),
            weather,
        }
    }

    /// Nothing fails any more.
    pub(super) fn calm(&mut self) {
        (self.fails, self.pins, self.dies) = (0, 0, 0);
        self.transaction = self.transaction.min(20);
        self.opening = self.opening.min(20);
        self.weather.clear();
    }
}
