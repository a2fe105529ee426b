//! Choices of a run. Each seed decides all of them.

use super::splitmix::Random;
use super::weather::Weather;

/// Limits of a run. Some are zero.
pub(super) struct Limits {
    pub(super) scopes: usize,
    pub(super) proxies: usize,
    /// Process ids of a server, which are reused at once.
    pub(super) pids: i32,
    /// Requests of a hundred that are lost, and answers.
    pub(super) lost: u64,
    /// Requests of a hundred that arrive again later.
    pub(super) repeated: u64,
    /// Most milliseconds of a message on its way.
    pub(super) delay: u64,
    /// Most milliseconds that a process takes to end.
    pub(super) death: u64,
    /// Processes of a hundred that miss a signal to end.
    pub(super) deaf: u64,
    /// Sessions of a hundred that take tokens.
    pub(super) takers: u64,
    /// Declarations of a hundred that ask for a higher token.
    pub(super) raises: u64,
    /// Most milliseconds of a statement.
    pub(super) statement: u64,
    pub(super) weather: Vec<Weather>,
}

impl Limits {
    pub(super) fn draw(random: &mut Random) -> Self {
        let mut one_of = |values: &[u64]| values[random.index(values.len())];
        Self {
            scopes: usize::try_from(one_of(&[1, 1, 2])).unwrap(),
            proxies: usize::try_from(one_of(&[1, 2, 3])).unwrap(),
            pids: i32::try_from(one_of(&[2, 4, 8])).unwrap(),
            lost: one_of(&[0, 3, 15]),
            repeated: one_of(&[0, 5, 25]),
            delay: one_of(&[5, 20, 60]),
            death: one_of(&[5, 100, 1000]),
            deaf: one_of(&[0, 0, 10]),
            takers: one_of(&[0, 0, 50]),
            raises: one_of(&[2, 10, 40]),
            statement: one_of(&[20, 200, 2000]),
            weather: Weather::draw(random),
        }
    }

    /// Nothing fails any more.
    pub(super) fn calm(&mut self) {
        (self.lost, self.repeated) = (0, 0);
        self.weather.clear();
    }
}
