//! The turns of a whole measurement, in their order. In a turn each session of one way sends its next statement when
//! the last is answered.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::session::Session;
use super::survey::{ANSWER_WITHIN, token_hint};
use super::target::{Path, Target};
use super::{BenchError, Event, Plan};

/// A way is warmed up for a round, but no longer than this.
const WARM_UP_MAX: Duration = Duration::from_secs(2);

/// Both ways have had their turn.
#[derive(Debug, Clone)]
pub(crate) struct Round {
    pub(super) direct: Turn,
    pub(super) proxied: Turn,
}

/// What came of a turn of one way.
#[derive(Debug, Clone)]
pub(crate) struct Turn {
    /// Nanoseconds from sending a statement to the end of its answer, for those that were answered in time.
    latencies: Histogram<u64>,
    length: Duration,
}

impl Round {
    /// Statements in a second that were answered, on the direct way and on the other.
    pub(crate) fn throughput(&self) -> (f64, f64) {
        let of = |turn: &Turn| turn.latencies.len() as f64 / turn.length.as_secs_f64();
        (of(&self.direct), of(&self.proxied))
    }

    /// Microseconds within which this part of the statements was answered, in the same order.
    pub(crate) fn latency(&self, quantile: f64) -> (f64, f64) {
        let of = |turn: &Turn| turn.latencies.value_at_quantile(quantile) as f64 / 1_000.0;
        (of(&self.direct), of(&self.proxied))
    }
}

/// Open sessions of one way.
struct Sessions {
    path: Path,
    open: Vec<Arc<Session>>,
}

/// Opens all sessions, warms both ways up, and lets them take turns. If it is stopped, the rounds are those that were
/// complete.
pub(super) async fn measure(
    plan: &Plan,
    stop: &CancellationToken,
    tell: &mut dyn FnMut(Event<'_>),
) -> Result<Vec<Round>, BenchError> {
    let direct = unless(stop, Sessions::open(&plan.direct, plan)).await?;
    let proxied = match unless(stop, Sessions::open(&plan.proxied, plan)).await {
        Err(BenchError::NoToken { said, .. }) => {
            let hint = unless(stop, token_hint(&plan.proxied)).await?;
            return Err(BenchError::NoToken { said, hint });
        }
        opened => opened?,
    };
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

/// The ways take turns in being the first.
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
    async fn open(target: &Target, plan: &Plan) -> Result<Self, BenchError> {
        let mut open = Vec::new();
        for _ in 0..plan.clients {
            let session = Session::open(target, plan.workload, plan.protocol).await?;
            open.push(Arc::new(session));
        }
        let path = target.path;
        Ok(Self { path, open })
    }

    /// Nothing holds the sessions afterwards, however it ends.
    async fn turn(&self, length: Duration, stop: &CancellationToken) -> Result<Turn, BenchError> {
        let latencies = Histogram::new(3).map_err(|error| {
            BenchError::system("cannot make a histogram", io::Error::other(error))
        })?;
        let latencies = Arc::new(Mutex::new(latencies));
        let end = Instant::now() + length;
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
            () = tokio::time::sleep(patience) => Err(BenchError::Stuck {
                path: self.path,
                within: patience,
            }),
        };
        all.shutdown().await;
        done?;
        let latencies = latencies.lock().clone();
        Ok(Turn { latencies, length })
    }

    /// At once: each waits for what it has in flight.
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
    session: Arc<Session>,
    end: Instant,
    latencies: Arc<Mutex<Histogram<u64>>>,
) -> Result<(), BenchError> {
    loop {
        let begin = Instant::now();
        session.ask().await?;
        if Instant::now() > end {
            return Ok(());
        }
        let nanos = u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
        latencies.lock().saturating_record(nanos);
    }
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
