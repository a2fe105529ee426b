//! The turns of a whole measurement, in their order.

use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::loader::Loader;
use super::machine::Ticks;
use super::survey::token_hint;
use super::target::Path;
use super::turn::{Kind, Tally, Turn};
use super::{BenchError, Event, Plan, Stage};

/// Threads that a plan may have.
pub(crate) const THREADS_MAX: usize = 256;
/// All loaders have their order by then.
const AHEAD: Duration = Duration::from_millis(20);

/// Both ways have had their turn.
#[derive(Debug, Clone)]
pub(crate) struct Round {
    pub(super) direct: Tally,
    pub(super) proxied: Tally,
    /// The length of each turn.
    pub(super) length: Duration,
    /// The part of this machine's CPU time that nobody used, 0 to 1, where that is known.
    pub(super) idle: Option<f64>,
}

impl Round {
    /// Statements in a second that were answered, on the direct way and on the other.
    pub(crate) fn throughput(&self) -> (f64, f64) {
        let of = |tally: &Tally| tally.answered as f64 / self.length.as_secs_f64();
        (of(&self.direct), of(&self.proxied))
    }

    /// Microseconds within which this part of the statements was answered, in the same order.
    pub(crate) fn latency(&self, quantile: f64) -> (f64, f64) {
        let of = |tally: &Tally| tally.latencies.value_at_quantile(quantile) as f64 / 1_000.0;
        (of(&self.direct), of(&self.proxied))
    }

    pub(super) const fn both(&self) -> [&Tally; 2] {
        [&self.direct, &self.proxied]
    }
}

/// What is to be done on both ways.
#[derive(Debug, Clone, Copy)]
struct Step {
    stage: Stage,
    rounds: usize,
    length: Duration,
    kind: Kind,
}

/// Open sessions on both ways, and what is left to do with them.
pub(super) struct Rounds<'a> {
    plan: &'a Plan,
    loaders: Vec<Loader>,
    stop: &'a CancellationToken,
    tell: &'a mut dyn FnMut(Event<'_>),
    left: Duration,
}

impl<'a> Rounds<'a> {
    /// Starts the loaders, and opens all sessions.
    pub(super) async fn open(
        plan: &'a Plan,
        stop: &'a CancellationToken,
        tell: &'a mut dyn FnMut(Event<'_>),
    ) -> Result<Self, BenchError> {
        let loaders = (0..plan.threads).map(|_| Loader::start());
        let loaders = loaders.collect::<Result<Vec<_>, _>>()?;
        for (index, loader) in loaders.iter().enumerate() {
            let sessions = share(plan.clients, plan.threads, index);
            for target in [&plan.direct, &plan.proxied] {
                let opened = loader.open(target, sessions, plan.workload, plan.protocol);
                match unless(stop, opened).await {
                    Err(BenchError::NoToken { said, .. }) => {
                        let hint = unless(stop, token_hint(&plan.proxied)).await?;
                        return Err(BenchError::NoToken { said, hint });
                    }
                    opened => opened?,
                }
            }
        }
        Ok(Self {
            plan,
            loaders,
            stop,
            tell,
            left: plan.total(),
        })
    }

    /// Both ways are warmed up, then measured in a closed loop.
    pub(super) async fn throughput(&mut self) -> Result<Vec<Round>, BenchError> {
        let warm_up = |_| (Kind::Closed, Stage::WarmUp);
        self.part(1, self.plan.warm_up(), &warm_up).await?;
        let closed = |number| (Kind::Closed, Stage::Throughput(number));
        self.part(self.plan.rounds, self.plan.length, &closed).await
    }

    /// At so many statements in a second, due at the same moments on both ways.
    pub(super) async fn latency(&mut self, rate: f64) -> Result<Vec<Round>, BenchError> {
        let open = |number| {
            let seed = number as u64;
            (Kind::Open { rate, seed }, Stage::Latency(number))
        };
        self.part(self.plan.rounds, self.plan.length, &open).await
    }

    /// Rounds of one kind, as many as are complete before an interruption.
    async fn part(
        &mut self,
        rounds: usize,
        length: Duration,
        kind: &dyn Fn(usize) -> (Kind, Stage),
    ) -> Result<Vec<Round>, BenchError> {
        let mut complete = Vec::new();
        for number in 1..=rounds {
            let (kind, stage) = kind(number);
            let step = Step {
                stage,
                rounds,
                length,
                kind,
            };
            match self.round(number, step).await {
                Ok(round) => {
                    (self.tell)(Event::Round {
                        stage,
                        rounds,
                        round: &round,
                    });
                    complete.push(round);
                }
                Err(BenchError::Interrupted) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(complete)
    }

    /// The ways take turns in being the first.
    async fn round(&mut self, number: usize, step: Step) -> Result<Round, BenchError> {
        let before = Ticks::now();
        let (direct, proxied) = if number.is_multiple_of(2) {
            let proxied = self.turn(Path::Proxied, step).await?;
            (self.turn(Path::Direct, step).await?, proxied)
        } else {
            let direct = self.turn(Path::Direct, step).await?;
            (direct, self.turn(Path::Proxied, step).await?)
        };
        let idle = Ticks::now()
            .zip(before)
            .and_then(|(now, before)| now.idle_since(before));
        Ok(Round {
            direct,
            proxied,
            length: step.length,
            idle,
        })
    }

    /// One way, on all loaders at once.
    async fn turn(&mut self, path: Path, step: Step) -> Result<Tally, BenchError> {
        let Step {
            stage,
            rounds,
            length,
            kind,
        } = step;
        (self.tell)(Event::Turn {
            stage,
            rounds,
            path,
            left: self.left,
        });
        let start = Instant::now() + AHEAD;
        // All have their orders before the first answer is waited for.
        let orders = self.loaders.iter().enumerate().map(|(index, loader)| {
            let kind = self.share_of(kind, index);
            loader.turn(Turn {
                path,
                start,
                length,
                kind,
            })
        });
        let orders: Vec<_> = orders.collect();
        let answers = async {
            let mut whole: Option<Tally> = None;
            for order in orders {
                let tally = order.await?;
                match &mut whole {
                    Some(whole) => whole.add(&tally),
                    None => whole = Some(tally),
                }
            }
            // There is at least one loader.
            whole.ok_or(BenchError::Interrupted)
        };
        let tally = unless(self.stop, answers).await?;
        self.left = self.left.saturating_sub(length);
        Ok(tally)
    }

    /// What one loader has to do of a turn. Several Poisson processes are one again.
    fn share_of(&self, kind: Kind, index: usize) -> Kind {
        let sessions = share(self.plan.clients, self.plan.threads, index);
        match kind {
            Kind::Closed => Kind::Closed,
            Kind::Open { rate, seed } => Kind::Open {
                rate: rate * sessions as f64 / self.plan.clients as f64,
                seed: seed * THREADS_MAX as u64 + index as u64,
            },
        }
    }
}

/// Sessions of one loader: as even as it goes.
const fn share(clients: usize, threads: usize, index: usize) -> usize {
    let rest = clients % threads;
    clients / threads + if index < rest { 1 } else { 0 }
}

/// The step, unless it is interrupted first.
pub(super) async fn unless<T>(
    stop: &CancellationToken,
    step: impl Future<Output = Result<T, BenchError>>,
) -> Result<T, BenchError> {
    tokio::select! {
        biased;
        () = stop.cancelled() => Err(BenchError::Interrupted),
        done = step => done,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_are_shared_out() {
        for (clients, threads) in [(8, 1), (8, 3), (1, 1), (7, 7), (100, 8)] {
            let shares: Vec<usize> = (0..threads)
                .map(|index| share(clients, threads, index))
                .collect();
            assert_eq!(shares.iter().sum::<usize>(), clients);
            assert!(shares.iter().max().unwrap() - shares.iter().min().unwrap() <= 1);
        }
    }
}
