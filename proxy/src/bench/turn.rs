//! One turn: a path is measured for the length of a round, in a closed or an open loop.
//!
//! Closed: each session sends its next statement when the last is answered. That gives the throughput.
//! Open: statements are due at times that were fixed before, and each is sent by the session that is free then. Where
//! none is free it waits, and the waiting is part of its latency.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use tokio::task::JoinSet;

use super::BenchError;
use super::arrivals::Arrivals;
use super::session::Session;
use super::target::Path;

/// A statement that goes out later than this, though a session was free, was held up by the bench itself.
const LATE: Duration = Duration::from_micros(250);
/// A turn that its path cannot keep up with may last this many times its length.
const OVERTIME: u32 = 2;

/// What a turn is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Turn {
    pub(super) path: Path,
    /// The same for all loaders, a little ahead.
    pub(super) start: Instant,
    pub(super) length: Duration,
    pub(super) kind: Kind,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    Closed,
    /// So many statements in a second for this loader, by a seed of its own.
    Open {
        rate: f64,
        seed: u64,
    },
}

impl Turn {
    /// When a statement that is due is given up.
    fn limit(&self) -> Instant {
        self.start + self.length * OVERTIME
    }

    /// By then every answer must be there, counted from when the turn is ordered.
    fn patience(&self) -> Duration {
        self.length * OVERTIME + super::survey::ANSWER_WITHIN
    }
}

/// What came of a turn.
#[derive(Debug, Clone)]
pub(super) struct Tally {
    /// Answered within the length of a closed turn; all that were answered in an open one.
    pub(super) answered: u64,
    /// Nanoseconds from when a statement was due to its answer; empty for a closed turn.
    pub(super) latencies: Histogram<u64>,
    /// Sent late by the bench, though a session was free.
    pub(super) late: u64,
    /// Given up: the path could not keep up with the rate.
    pub(super) given_up: u64,
    /// The highest part of a CPU that one of the loaders' threads used, 0 to 1.
    pub(super) busiest: f64,
}

impl Tally {
    /// Of no statement yet.
    pub(super) fn new() -> Result<Self, BenchError> {
        Ok(Self {
            answered: 0,
            latencies: latencies()?,
            late: 0,
            given_up: 0,
            busiest: 0.0,
        })
    }

    /// Adds what another loader has counted in the same turn.
    pub(super) fn add(&mut self, other: &Self) {
        self.answered += other.answered;
        self.late += other.late;
        self.given_up += other.given_up;
        self.busiest = self.busiest.max(other.busiest);
        // Both have the same bounds.
        let _same_bounds = self.latencies.add(&other.latencies);
    }

    /// Statements that were due in an open turn.
    pub(super) fn due(&self) -> u64 {
        self.answered + self.given_up
    }

    fn record(&mut self, latency: Duration) {
        let nanos = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        self.latencies.saturating_record(nanos);
    }
}

/// Nanoseconds up to 10 minutes, with three digits: an error of a thousandth at most.
fn latencies() -> Result<Histogram<u64>, BenchError> {
    const TEN_MINUTES: u64 = 600_000_000_000;
    Histogram::new_with_bounds(1, TEN_MINUTES, 3)
        .map_err(|error| BenchError::system("cannot make a histogram", io::Error::other(error)))
}

/// Runs the part of a turn that these sessions have, inside a `LocalSet`. The first error ends it, and so does
/// `stopped`. Nothing holds the sessions afterwards.
pub(super) async fn run(
    turn: Turn,
    sessions: &[Rc<Session>],
    stopped: impl Future<Output = ()>,
) -> Result<Tally, BenchError> {
    let tally = Rc::new(RefCell::new(Tally::new()?));
    let mut all = JoinSet::new();
    match turn.kind {
        Kind::Closed => {
            for session in sessions {
                all.spawn_local(closed(turn, Rc::clone(session), Rc::clone(&tally)));
            }
        }
        Kind::Open { rate, seed } => {
            let arrivals = Arrivals::new(seed, rate, turn.length);
            let arrivals = Rc::new(RefCell::new(arrivals));
            for session in sessions {
                let (arrivals, tally) = (Rc::clone(&arrivals), Rc::clone(&tally));
                all.spawn_local(open(turn, Rc::clone(session), arrivals, tally));
            }
        }
    }
    let done = tokio::select! {
        done = join(&mut all) => done,
        () = stopped => Err(BenchError::Interrupted),
        () = tokio::time::sleep(turn.patience()) => Err(BenchError::Stuck {
            path: turn.path,
            within: turn.patience(),
        }),
    };
    all.shutdown().await;
    done?;
    let tally = tally.borrow().clone();
    Ok(tally)
}

async fn join(all: &mut JoinSet<Result<(), BenchError>>) -> Result<(), BenchError> {
    while let Some(done) = all.join_next().await {
        done.map_err(|error| BenchError::system("a session's task ended", error.into()))??;
    }
    Ok(())
}

async fn closed(
    turn: Turn,
    session: Rc<Session>,
    tally: Rc<RefCell<Tally>>,
) -> Result<(), BenchError> {
    wait(&session, turn.start).await?;
    let end = turn.start + turn.length;
    loop {
        session.ask().await?;
        if Instant::now() > end {
            return Ok(());
        }
        tally.borrow_mut().answered += 1;
    }
}

async fn open(
    turn: Turn,
    session: Rc<Session>,
    arrivals: Rc<RefCell<Arrivals>>,
    tally: Rc<RefCell<Tally>>,
) -> Result<(), BenchError> {
    loop {
        // In a statement of its own: the borrow must not live over an await.
        let next = arrivals.borrow_mut().next();
        let Some(after) = next else {
            return Ok(());
        };
        let due = turn.start + after;
        let now = Instant::now();
        if now > turn.limit() {
            let mut tally = tally.borrow_mut();
            tally.given_up += 1;
            // At least so long: its answer would have come later still.
            tally.record(now - due);
            continue;
        }
        if now < due {
            wait(&session, due).await?;
            tally.borrow_mut().late += u64::from(due.elapsed() > LATE);
        }
        session.ask().await?;
        let mut tally = tally.borrow_mut();
        tally.answered += 1;
        tally.record(due.elapsed());
    }
}

async fn wait(session: &Session, moment: Instant) -> Result<(), BenchError> {
    let rung = session.alarm.until(moment).await;
    rung.map_err(|error| BenchError::system("a timer failed", error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tallies_of_loaders_are_added() {
        let mut whole = Tally::new().unwrap();
        let mut part = Tally::new().unwrap();
        whole.record(Duration::from_micros(100));
        (whole.answered, whole.late, whole.busiest) = (1, 1, 0.5);
        part.record(Duration::from_millis(300));
        part.record(Duration::from_secs(3_600));
        (part.answered, part.given_up, part.late, part.busiest) = (1, 1, 0, 0.7);
        whole.add(&part);
        assert_eq!(
            (whole.answered, whole.given_up, whole.due(), whole.late),
            (2, 1, 3, 1)
        );
        assert_eq!(whole.busiest, 0.7);
        let micros = |quantile| whole.latencies.value_at_quantile(quantile) as f64 / 1_000.0;
        assert!((micros(0.3) / 100.0 - 1.0).abs() < 0.002, "{}", micros(0.3));
        assert!(
            (micros(0.6) / 300_000.0 - 1.0).abs() < 0.002,
            "{}",
            micros(0.6)
        );
        // What is longer than the bound counts as the bound.
        assert!((micros(1.0) / 600e6 - 1.0).abs() < 0.002, "{}", micros(1.0));
    }

    #[test]
    fn patience_is_longer_than_the_overtime() {
        let turn = Turn {
            path: Path::Direct,
            start: Instant::now(),
            length: Duration::from_secs(60),
            kind: Kind::Closed,
        };
        assert!(turn.start + turn.patience() > turn.limit() + Duration::from_secs(5));
    }
}
