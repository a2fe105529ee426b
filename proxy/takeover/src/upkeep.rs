//! Regular work of a proxy: the epoch is raised if that is due, and the records of ended sessions are removed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior};

use super::driver::Driver;
use super::epoch::Raise;
use super::error::DeclareError;
use super::reaper::Round;

pub(super) struct Upkeep {
    driver: Driver,
    declared_by: String,
    timeout: Duration,
    /// The epoch must rise: this proxy has started, or has registered a session.
    is_due: AtomicBool,
}

impl Upkeep {
    pub(super) fn new(driver: &Driver, declared_by: &str, timeout: Duration) -> Self {
        Self {
            driver: driver.clone(),
            declared_by: declared_by.to_owned(),
            timeout,
            is_due: AtomicBool::new(true),
        }
    }

    /// Must be called before a session is registered.
    pub(super) fn note_joining(&self) {
        self.is_due.store(true, Ordering::Release);
    }

    /// Raises the epoch if that is due.
    pub(super) async fn raise(&self) -> Result<(), DeclareError> {
        if !self.is_due.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        let mut raise = Raise::new(&self.declared_by);
        let deadline = Instant::now() + self.timeout;
        let handle = |event| raise.handle(event);
        let raised = self.driver.run(deadline, handle).await;
        if raised.is_err() {
            self.note_joining();
        }
        raised
    }

    pub(super) async fn reap(&self) -> Result<(), DeclareError> {
        let mut round = Round::default();
        let deadline = Instant::now() + self.timeout;
        let handle = |event| round.handle(event);
        self.driver.run(deadline, handle).await
    }

    /// Does both every `every`.
    pub(super) async fn run(self: Arc<Self>, every: Duration) {
        let mut ticks = tokio::time::interval(every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.tick().await;
        loop {
            ticks.tick().await;
            if let Err(error) = self.raise().await {
                tracing::warn!(%error, "cannot raise the epoch");
            }
            if let Err(error) = self.reap().await {
                tracing::warn!(%error, "cleanup of ended sessions failed, will retry");
            }
        }
    }
}
