//! The time for which a holder may rely on a lease.

use std::cell::Cell;
use std::fmt::Display;
use std::time::Duration;

use pgpalisade_authority::Leased;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use crate::candidate::LockError;

/// Renewals in the duration of a lease. A failed one can be retried for half of that time: etcd's own election takes
/// about 2 s.
const RENEWALS: u32 = 6;
/// Longest interval between renewals: a leader that has lost its lease learns of it with the next one.
const RENEW_EVERY: Duration = Duration::from_millis(2500);
/// Pause between two attempts to renew a lease.
const PAUSE: Duration = Duration::from_millis(200);

pub(crate) const LATE: &str = "the lease was not renewed in time";

pub(crate) struct Lease {
    ttl: Duration,
    /// Start of the last successful renewal. The lease lives for its TTL from then on, or longer.
    asked_at: Cell<Instant>,
}

impl Lease {
    pub(crate) fn new(ttl: Duration) -> Self {
        let asked_at = Cell::new(Instant::now());
        Self { ttl, asked_at }
    }

    pub(crate) fn renewed_at(&self, asked_at: Instant) {
        self.asked_at.set(asked_at);
    }

    /// A third of its TTL before its end, the lease counts as lost: nobody else leads before its end.
    pub(crate) fn sure_until(&self) -> Instant {
        self.asked_at.get() + self.ttl * 2 / 3
    }

    pub(crate) fn is_sure(&self) -> bool {
        Instant::now() < self.sure_until()
    }

    /// Renews the lease during `turn`, and returns its result.
    pub(crate) async fn kept_for<T, E: Display>(
        &self,
        turn: impl Future<Output = Result<T, LockError>>,
        renew: impl AsyncFn() -> Result<Leased, E>,
    ) -> Result<T, LockError> {
        let turn = tokio::select! {
            turn = turn => turn?,
            why = self.lost(renew) => return Err(LockError::Lost(why)),
        };
        if self.is_sure() {
            Ok(turn)
        } else {
            // This process has slept, and another may lead.
            Err(LockError::Lost(LATE.to_owned()))
        }
    }

    /// Renews the lease until that fails for good, and says why.
    pub(crate) async fn lost<E: Display>(
        &self,
        renew: impl AsyncFn() -> Result<Leased, E>,
    ) -> String {
        loop {
            sleep_until(self.asked_at.get() + (self.ttl / RENEWALS).min(RENEW_EVERY)).await;
            let mut last = String::new();
            let renewed = timeout_at(self.sure_until(), async {
                loop {
                    let asked_at = Instant::now();
                    match renew().await {
                        Ok(Leased::Held) => return Some(asked_at),
                        Ok(Leased::NotHeld) => return None,
                        Err(error) => last = format!(": {error}"),
                    }
                    sleep(PAUSE).await;
                }
            });
            match renewed.await {
                Ok(Some(asked_at)) => self.renewed_at(asked_at),
                Ok(None) => return "the lease has ended".to_owned(),
                Err(_) => return format!("{LATE}{last}"),
            }
        }
    }
}
