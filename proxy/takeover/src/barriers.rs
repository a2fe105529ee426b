//! The running barriers. Each scope and rank has one in this proxy, and other declarations of the same token wait for
//! it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pgpalisade_authority::{Registered, TakeoverRecord};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};

use super::barrier::{self, Barrier, Drain, RETRY};
use super::driver::Driver;
use super::error::DeclareError;
use super::history::Notes;
use super::meters::{Meters, millis};

/// Limit of the time between a barrier's deadline and its end. Its declaration waits so long, and so has the reason
/// that the log has.
pub(super) const LAST_WORD: Duration = Duration::from_millis(250);

pub(super) struct Barriers {
    driver: Driver,
    meters: Meters,
    pub(super) notes: Notes,
    running: Mutex<HashMap<Barrier, Running>>,
}

#[derive(Clone)]
struct Running {
    drain: Arc<Mutex<Drain>>,
    end: watch::Receiver<Option<Result<(), DeclareError>>>,
}

impl Barriers {
    pub(super) fn new(driver: &Driver, meters: &Meters, notes: Notes) -> Arc<Self> {
        Arc::new(Self {
            driver: driver.clone(),
            meters: meters.clone(),
            notes,
            running: Mutex::default(),
        })
    }

    /// Returns after every session of `lower` is gone and the authority knows it. Keeps the record, with the work
    /// done.
    pub(super) async fn pass(
        self: &Arc<Self>,
        barrier: &Barrier,
        lower: &[Registered],
        record: TakeoverRecord,
        deadline: Instant,
    ) -> Result<(), DeclareError> {
        loop {
            let (mut running, until) = self.join(barrier, lower, &record, deadline);
            drop(timeout_at(until, running.end.wait_for(Option::is_some)).await);
            // Out of time, or the barrier's task has died.
            let incomplete = || Err(running.drain.lock().incomplete());
            let end = running.end.borrow().clone();
            let result = end.unwrap_or_else(incomplete);
            // The barrier of another declaration may have had less time than this one has.
            if result.is_ok() || until > deadline || Instant::now() + RETRY >= deadline {
                return result;
            }
            sleep(RETRY).await;
        }
    }

    /// The barrier to wait for, and how long: one that runs, or else a new one.
    fn join(
        self: &Arc<Self>,
        barrier: &Barrier,
        lower: &[Registered],
        record: &TakeoverRecord,
        deadline: Instant,
    ) -> (Running, Instant) {
        let mut all = self.running.lock();
        if let Some(running) = all.get(barrier)
            && running.end.has_changed().is_ok()
        {
            return (running.clone(), deadline);
        }
        let began = Instant::now();
        let within = deadline.saturating_duration_since(began);
        let drain = Arc::new(Mutex::new(Drain::new(barrier, lower, within)));
        let (ended, end) = watch::channel(None);
        let running = Running { drain, end };
        all.insert(barrier.clone(), running.clone());
        let (barriers, drain, record) =
            (Arc::clone(self), Arc::clone(&running.drain), record.clone());
        tokio::spawn(async move {
            let end = barriers.drain(&drain, record, began, deadline).await;
            ended.send_replace(Some(end));
        });
        (running, deadline + LAST_WORD)
    }

    async fn drain(
        &self,
        drain: &Mutex<Drain>,
        record: TakeoverRecord,
        began: Instant,
        deadline: Instant,
    ) -> Result<(), DeclareError> {
        // Since the drain was made, which counts its time from there: a task may start late.
        let handle = |event| drain.lock().handle(began.elapsed(), event);
        let result = self.driver.run(deadline, handle).await;
        let (took, drain) = (began.elapsed(), drain.lock());
        self.log(&drain, &result, took);
        self.running.lock().remove(&drain.barrier);
        let record = barrier::ended(record, &result, drain.work(took));
        self.notes.push(&drain.barrier.scope, record);
        result
    }

    fn log(&self, drain: &Drain, result: &Result<(), DeclareError>, took: Duration) {
        let Barrier { scope, rank, .. } = &drain.barrier;
        let (token, work) = (rank.token.get(), drain.work(took));
        if let Err(error) = result {
            self.meters.incomplete.inc();
            tracing::warn!(%scope, token, %error, "the takeover is not complete");
            return drain
                .holdouts()
                .for_each(|holdout| holdout.log(scope, rank.token));
        }
        self.meters.completed.observe(took.as_secs_f64());
        self.meters.sessions_ended.inc_by(work.sessions);
        let (ended, transactions, took_ms) = (work.sessions, work.transactions, millis(took));
        tracing::info!(%scope, token, ended, transactions, took_ms, "the takeover is complete");
    }
}
