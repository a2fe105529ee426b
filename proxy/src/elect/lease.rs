//! How long a holder may count on a lease.

use std::fmt::Display;
use std::time::Duration;

use pgpalisade_authority::Leased;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use super::lock::LockError;

/// How many times a lease is renewed in its time. Half of the time is left then for what makes a renewal fail: etcd's
/// own election takes about 2 s.
const RENEWALS: u32 = 6;
/// A lease with more time is renewed as often as this: whoever has lost it otherwise finds out with the renewal.
const RENEW_EVERY: Duration = Duration::from_millis(2500);
/// Between two attempts to renew a lease.
const PAUSE: Duration = Duration::from_millis(200);

/// What is said of a lease that may be another's by now.
pub(super) const LATE: &str = "the lease was not renewed in time";

/// How long a lease surely lives.
pub(super) struct Lease {
    pub(super) ttl: Duration,
    /// When the last answered renewal was asked for. It lives for its TTL from then on, or longer.
    pub(super) asked_at: Instant,
}

impl Lease {
    /// A third of it before its end the lease is taken for lost, so that nobody else leads by then.
    pub(super) fn sure_until(&self) -> Instant {
        self.asked_at + self.ttl * 2 / 3
    }

    pub(super) fn is_sure(&self) -> bool {
        Instant::now() < self.sure_until()
    }

    /// Keeps the lease until its candidate has had its turn, and gives what comes of that.
    pub(super) async fn kept_for<T, E: Display>(
        &mut self,
        turn: impl Future<Output = Result<T, LockError>>,
        renew: impl AsyncFn() -> Result<Leased, E>,
    ) -> Result<T, LockError> {
        let turn = tokio::select! {
            turn = turn => turn?,
            why = self.lost(renew) => return Err(LockError::Lost(why)),
        };
        match self.is_sure() {
            true => Ok(turn),
            // This process has slept since, and somebody else may lead.
            false => Err(LockError::Lost(LATE.to_owned())),
        }
    }

    /// Renews the lease until that cannot be done any more, and says why.
    pub(super) async fn lost<E: Display>(
        &mut self,
        renew: impl AsyncFn() -> Result<Leased, E>,
    ) -> String {
        loop {
            sleep_until(self.asked_at + (self.ttl / RENEWALS).min(RENEW_EVERY)).await;
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
                Ok(Some(asked_at)) => self.asked_at = asked_at,
                Ok(None) => return "the lease has ended".to_owned(),
                Err(_) => return format!("{LATE}{last}"),
            }
        }
    }
}
