//! The reaper: removes the records of sessions that PostgreSQL no longer has.
//!
//! Records never expire by time. They are removed after (pid, backend_start) is seen to be gone.

use std::sync::Arc;
use std::time::Duration;

use pgpalisade_authority::Backend;
use tokio::time::{Instant, MissedTickBehavior};

use super::epoch::Epoch;
use super::error::DeclareError;
use super::{in_time, sessions};

/// Everything that the reaper needs belongs to the epoch, which it raises too.
pub(super) struct Reaper(pub(super) Arc<Epoch>);

impl Reaper {
    /// One round. Returns how many sessions were gone.
    pub(super) async fn reap(&self) -> Result<usize, DeclareError> {
        let Epoch {
            control,
            authority,
            timeout,
            ..
        } = &*self.0;
        let deadline = Instant::now() + *timeout;
        // The records first: a session that registers after the look must not seem to be gone.
        let records = in_time(authority.sessions(), deadline).await?;
        let mut known: Vec<Backend> = records.iter().map(|(_, r)| r.backend).collect();
        known.sort_unstable();
        known.dedup();
        if known.is_empty() {
            return Ok(0);
        }
        // After the records: they belong to the cluster on record now, or to one that it has replaced.
        let recorded = in_time(authority.cluster(), deadline).await?;
        let (alive, now) = sessions::alive(control, &known, deadline).await?;
        if let Some(recorded) = recorded
            && recorded != now
        {
            // This proxy leads to another server than those that register. Sessions that it does not see may live
            // there.
            return Err(DeclareError::WrongCluster {
                ours: now,
                recorded,
            });
        }
        known.retain(|backend| !alive.contains(backend));
        if !known.is_empty() {
            in_time(authority.forget(&known), deadline).await?;
            tracing::debug!(sessions = known.len(), "reaped");
        }
        Ok(known.len())
    }

    /// Runs a round every `every`.
    pub(super) async fn run(self, every: Duration) {
        let mut ticks = tokio::time::interval(every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.tick().await;
        loop {
            ticks.tick().await;
            if let Err(error) = self.0.raise().await {
                tracing::warn!(%error, "cannot raise the epoch");
            }
            if let Err(error) = self.reap().await {
                tracing::warn!(%error, "cleanup of ended sessions failed, will retry");
            }
        }
    }
}
