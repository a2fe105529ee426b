//! Amount of measurements.

use std::time::Duration;

use clap::ValueEnum;

use crate::record::{ComparedTarget, Figure, Measurement, Record};

/// Duration of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Size {
    /// Nine rounds, 40 minutes
    Full,
    /// Five shorter rounds, a quarter of an hour
    Quick,
    /// One round of the smallest numbers, to see that everything runs
    Smoke,
}

#[derive(Clone, Debug)]
pub(crate) struct BenchPlan {
    /// Of everything but takeovers.
    pub(crate) rounds: u32,
    /// Transactions that end in it are counted.
    pub(crate) window: Duration,
    /// Of `pgbench -S`. With TLS only the second number.
    pub(crate) clients: &'static [u32],
    /// Clients that share server connections, and the number of those.
    pub(crate) sharers: &'static [(&'static [u32], u32)],
    /// Clients that share some and are idle.
    pub(crate) idle_sharers: u32,
    pub(crate) megabytes: u32,
    pub(crate) refusals: u32,
    /// Fewest first. Other targets have only the fewest.
    pub(crate) sessions: &'static [u32],
    /// That the store and the policy file know, fewest first.
    pub(crate) scopes: &'static [u32],
    pub(crate) takeovers: u32,
    pub(crate) old_sessions: &'static [u32],
}

impl Size {
    pub(crate) fn plan(self) -> BenchPlan {
        let full = BenchPlan {
            rounds: 9,
            window: Duration::from_secs(1),
            clients: &[1, 16, 64],
            sharers: &[(&[16, 64], 10), (&[5_000], 50)],
            idle_sharers: 10_000,
            megabytes: 256,
            refusals: 20_000,
            sessions: &[1_000, 5_000],
            scopes: &[1, 1_000, 100_000],
            takeovers: 30,
            old_sessions: &[0, 1, 20, 100],
        };
        match self {
            Self::Full => full,
            Self::Quick => BenchPlan {
                rounds: 5,
                window: Duration::from_millis(500),
                takeovers: 10,
                ..full
            },
            Self::Smoke => BenchPlan {
                rounds: 1,
                window: Duration::from_millis(200),
                clients: &[1, 2],
                sharers: &[(&[12], 10)],
                idle_sharers: 30,
                megabytes: 1,
                refusals: 64,
                sessions: &[5, 10],
                scopes: &[1, 10],
                takeovers: 1,
                old_sessions: &[0, 1],
            },
        }
    }
}

/// A cell of the table, in one round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cell<'a> {
    pub(crate) measurement: Measurement,
    pub(crate) variant: &'a str,
    pub(crate) number: u32,
    pub(crate) round: u32,
}

impl Cell<'_> {
    pub(crate) fn records(
        self,
        target: ComparedTarget,
        figures: impl IntoIterator<Item = (Figure, f64)>,
    ) -> impl Iterator<Item = Record> {
        figures.into_iter().map(move |(figure, value)| Record {
            measurement: self.measurement,
            target,
            variant: self.variant.to_owned(),
            number: self.number,
            round: self.round,
            figure,
            value,
        })
    }
}

/// The items, beginning with another one each round.
pub(crate) fn in_turn<T>(items: &[T], round: u32) -> impl Iterator<Item = &T> {
    let (front, back) = items.split_at((round as usize - 1) % items.len().max(1));
    back.iter().chain(front)
}
