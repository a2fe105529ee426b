//! Looks up in the authority what the cache has refused.
//!
//! A cached mark can be too high: another process has repaired the scope. The watch usually reports that at once, but
//! a refusal must not rest forever on a watch that may be broken. So every scope in which the cache has refused a
//! token is read from the authority soon after. A wrongly refused leader gets in at its next attempt, at most a round
//! and the authority's answer later. While the authority is away, the refusal stands.

use std::sync::Arc;
use std::time::Duration;

use pgpalisade_authority::Authority;
use tokio::time::{Instant, MissedTickBehavior};

use super::in_time;
use pgpalisade_fence::mark_cache::MarkCache;

/// Interval between rounds: a wrong refusal lasts at most this long, and until the authority answers.
const EVERY: Duration = Duration::from_secs(2);
/// Maximum number of scopes in a round. The others wait for the next one.
const SCOPES_MAX: usize = 100;

/// Runs a round every two seconds.
pub(super) async fn run(authority: Arc<dyn Authority>, marks: Arc<MarkCache>, timeout: Duration) {
    let mut ticks = tokio::time::interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        round(authority.as_ref(), &marks, timeout).await;
    }
}

async fn round(authority: &dyn Authority, marks: &MarkCache, timeout: Duration) {
    for scope in marks.take_refusing(SCOPES_MAX) {
        let deadline = Instant::now() + timeout;
        match in_time(authority.mark(&scope), deadline).await {
            Ok(Some(mark)) => marks.note(&scope, &mark),
            Ok(None) => {}
            // The next refusal asks again.
            Err(error) => {
                return tracing::debug!(%error, %scope, "a refusal by the cache was not looked up");
            }
        }
    }
}
