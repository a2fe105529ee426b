//! The turns of a measurement. In a turn each session of one path sends its next statement when the last is answered.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::connection::ANSWER_WITHIN;
use crate::load_client::LoadClient;
use crate::target::{BenchTarget, Path};
use crate::{BenchConfig, BenchError, Event};

/// A warm-up otherwise takes as long as a round.
const WARM_UP_MAX: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, Copy)]
pub struct Round {
    pub direct: Turn,
    pub proxied: Turn,
}

/// Figures of one path's turn. Latencies are in microseconds, from sending a statement to the end of its answer.
#[derive(Debug, Clone, Copy)]
pub struct Turn {
    pub throughput: f64,
    pub(crate) mean: f64,
    pub(crate) p50: f64,
    pub(crate) p90: f64,
    pub(crate) p99: f64,
    pub(crate) max: f64,
}

impl Turn {
    /// `length` ends with the last answer.
    fn of(latencies: &Latencies, length: Duration) -> Self {
        let nanos = latencies.0.lock();
        let within = |quantile| nanos.value_at_quantile(quantile) as f64 / 1_000.0;
        Self {
            throughput: nanos.len() as f64 / length.as_secs_f64(),
            mean: nanos.mean() / 1_000.0,
            p50: within(0.5),
            p90: within(0.9),
            p99: within(0.99),
            max: within(1.0),
        }
    }
}

/// In nanoseconds, with three significant digits.
struct Latencies(Mutex<Histogram<u64>>);

impl Latencies {
    fn new() -> Result<Self, BenchError> {
        let empty = Histogram::new(3).map_err(not_counted)?;
        Ok(Self(Mutex::new(empty)))
    }

    /// The histogram resizes itself. Its `saturating_record` would clamp.
    fn record(&self, latency: Duration) -> Result<(), BenchError> {
        let nanos = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        self.0.lock().record(nanos).map_err(not_counted)
    }
}

fn not_counted(error: impl std::error::Error + Send + Sync + 'static) -> BenchError {
    BenchError::system("cannot record latencies", io::Error::other(error))
}

struct Sessions {
    path: Path,
    open: Vec<Arc<LoadClient>>,
}

/// Opens all sessions, warms both paths up, and lets them take turns. If stopped, returns the complete rounds.
pub(crate) async fn measure(
    plan: &BenchConfig,
    stop: &CancellationToken,
    tell: &mut dyn FnMut(Event<'_>),
) -> Result<Vec<Round>, BenchError> {
    let direct = unless(stop, Sessions::open(&plan.direct, plan)).await?;
    let proxied = unless(stop, Sessions::open(&plan.proxied, plan)).await?;
    let mut rounds = Vec::new();
    let measured = async {
        round(0, [&direct, &proxied], plan.length.min(WARM_UP_MAX), stop).await?;
        for number in 1..=plan.rounds {
            let round = round(number, [&direct, &proxied], plan.length, stop).await?;
            tell(Event::Round(number, &round));
            rounds.push(round);
        }
        Ok(())
    };
    let measured = measured.await;
    tokio::join!(direct.close(), proxied.close());
    match measured {
        Ok(()) | Err(BenchError::Interrupted) => Ok(rounds),
        Err(error) => Err(error),
    }
}

/// Odd and even rounds begin with different paths.
async fn round(
    number: usize,
    [direct, proxied]: [&Sessions; 2],
    length: Duration,
    stop: &CancellationToken,
) -> Result<Round, BenchError> {
    if number.is_multiple_of(2) {
        let proxied = proxied.turn(length, stop).await?;
        let direct = direct.turn(length, stop).await?;
        return Ok(Round { direct, proxied });
    }
    let direct = direct.turn(length, stop).await?;
    let proxied = proxied.turn(length, stop).await?;
    Ok(Round { direct, proxied })
}

impl Sessions {
    async fn open(target: &BenchTarget, plan: &BenchConfig) -> Result<Self, BenchError> {
        let mut open = Vec::new();
        for _ in 0..plan.clients {
            let session = LoadClient::open(target, plan.workload, plan.protocol).await?;
            open.push(Arc::new(session));
        }
        let path = target.path;
        Ok(Self { path, open })
    }

    /// Afterwards no task refers to the sessions, however the turn ends.
    async fn turn(&self, length: Duration, stop: &CancellationToken) -> Result<Turn, BenchError> {
        let latencies = Arc::new(Latencies::new()?);
        let begin = Instant::now();
        let end = begin + length;
        let mut all = JoinSet::new();
        for session in &self.open {
            all.spawn(keep_asking(
                Arc::clone(session),
                end,
                Arc::clone(&latencies),
            ));
        }
        let patience = length + ANSWER_WITHIN;
        let done = tokio::select! {
            done = join(&mut all) => done,
            () = stop.cancelled() => Err(BenchError::Interrupted),
            () = tokio::time::sleep(patience) => Err(BenchError::Stuck(self.path, patience)),
        };
        let took = begin.elapsed();
        all.shutdown().await;
        done.map(|()| Turn::of(&latencies, took))
    }

    /// All at once: each waits for what it has in flight.
    async fn close(self) {
        let mut closing = JoinSet::new();
        for session in self.open.into_iter().filter_map(Arc::into_inner) {
            closing.spawn(session.close());
        }
        closing.join_all().await;
    }
}

async fn join(all: &mut JoinSet<Result<(), BenchError>>) -> Result<(), BenchError> {
    while let Some(done) = all.join_next().await {
        done.map_err(|error| BenchError::system("a session's task ended", error.into()))??;
    }
    Ok(())
}

async fn keep_asking(
    session: Arc<LoadClient>,
    end: Instant,
    latencies: Arc<Latencies>,
) -> Result<(), BenchError> {
    let mut begin = Instant::now();
    while begin < end {
        session.ask().await?;
        let answered = Instant::now();
        latencies.record(answered - begin)?;
        begin = answered;
    }
    Ok(())
}

/// Awaits the step, unless interrupted.
pub(crate) async fn unless<T>(
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

    /// Even latencies, a few, and a stall that lasts until the timeout.
    #[test]
    fn a_known_distribution_has_known_figures() {
        const STALL: u64 = 70_000_000;
        let even: Vec<u64> = (1..=10_000).collect();
        let stalled = [vec![200; 98], vec![900, STALL]].concat();
        // Microseconds, seconds; then throughput, mean, p50, p90, p99 and maximum.
        for (micros, seconds, expect) in [
            (
                even,
                2,
                [5_000.0, 5_000.5, 5_000.0, 9_000.0, 9_900.0, 10_000.0],
            ),
            (vec![80], 1, [1.0, 80.0, 80.0, 80.0, 80.0, 80.0]),
            (
                stalled,
                70,
                [1.43, 700_205.0, 200.0, 200.0, 900.0, 70_000_000.0],
            ),
        ] {
            let latencies = Latencies::new().unwrap();
            for micros in micros {
                latencies.record(Duration::from_micros(micros)).unwrap();
            }
            let turn = Turn::of(&latencies, Duration::from_secs(seconds));
            let found = [
                turn.throughput,
                turn.mean,
                turn.p50,
                turn.p90,
                turn.p99,
                turn.max,
            ];
            for (found, expect) in found.into_iter().zip(expect) {
                assert!(
                    (found / expect - 1.0).abs() < 0.002,
                    "{turn:?}, not {expect}"
                );
            }
        }
    }
}
