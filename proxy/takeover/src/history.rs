//! Records of takeovers, which the authority keeps for people. Nothing waits for them.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pgpalisade_authority::{Authority, AuthorityError, Rank, Scope, TakeoverEnd, TakeoverRecord};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use super::error::DeclareError;
use super::in_time;

/// Maximum number of scopes whose records wait. Those of others are left out.
const SCOPES_MAX: usize = 1024;
/// Pause after records were handed on, so that a busy scope is written once for many.
const COLLECTED_FOR: Duration = Duration::from_millis(250);
/// Maximum number of scopes whose last takeover is known to be noted as complete.
const COMPLETE_MAX: usize = 10_000;

/// Records that are not yet with the authority. Clones share them.
#[derive(Clone)]
pub(super) struct Notes(Arc<Inner>);

struct Inner {
    authority: Arc<dyn Authority>,
    timeout: Duration,
    waiting: Mutex<HashMap<Scope, Vec<TakeoverRecord>>>,
    more: Notify,
    /// The last takeover noted as complete, by scope.
    complete: Mutex<HashMap<Scope, Rank>>,
}

impl Notes {
    pub(super) fn to(authority: &Arc<dyn Authority>, timeout: Duration) -> Self {
        Self(Arc::new(Inner {
            authority: Arc::clone(authority),
            timeout,
            waiting: Mutex::default(),
            more: Notify::new(),
            complete: Mutex::default(),
        }))
    }

    /// Adds a record. Does not wait.
    pub(super) fn push(&self, scope: &Scope, record: TakeoverRecord) {
        if record.end == TakeoverEnd::Complete {
            let mut complete = self.0.complete.lock();
            if complete.len() >= COMPLETE_MAX {
                complete.clear();
            }
            complete.insert(scope.clone(), record.rank());
        }
        let mut waiting = self.0.waiting.lock();
        if waiting.len() < SCOPES_MAX || waiting.contains_key(scope) {
            let of_scope = waiting.entry(scope.clone()).or_default();
            of_scope.push(record);
            // The authority keeps no more.
            let surplus = of_scope.len().saturating_sub(TakeoverRecord::KEPT);
            of_scope.drain(..surplus);
        }
        self.0.more.notify_one();
    }

    /// Adds that a takeover is complete, by whatever proxy, unless this one has noted so before. Old sessions may
    /// have ended after a takeover that could not be completed.
    pub(super) fn push_found_complete(&self, scope: &Scope, record: TakeoverRecord) {
        let known = self.0.complete.lock().get(scope).copied();
        if known != Some(record.rank()) {
            self.push(scope, record);
        }
    }

    /// Hands records on as they come.
    pub(super) async fn run(self) {
        loop {
            self.0.more.notified().await;
            self.flush().await;
            sleep(COLLECTED_FOR).await;
        }
    }

    /// Hands on the waiting records, each once. They wait again if the authority does not answer.
    pub(super) async fn flush(&self) {
        let all = std::mem::take(&mut *self.0.waiting.lock());
        for (scope, mut records) in all {
            let noted = self.0.authority.note_takeovers(&scope, &records);
            let noted = in_time(noted, Instant::now() + self.0.timeout).await;
            let Err(error) = noted else { continue };
            // The loss of the authority is logged elsewhere.
            tracing::debug!(%scope, %error, "takeovers are not recorded yet");
            if let DeclareError::Authority(AuthorityError::Unavailable(_)) = error {
                let mut waiting = self.0.waiting.lock();
                let later = waiting.entry(scope).or_default();
                records.append(later);
                *later = records;
                self.0.more.notify_one();
            }
        }
    }
}

/// Takeovers of some scopes, newest first.
pub(super) async fn of(
    authority: &Arc<dyn Authority>,
    scopes: &[Scope],
    deadline: Instant,
) -> Result<Vec<(Scope, TakeoverRecord)>, DeclareError> {
    let mut all = Vec::new();
    for scope in scopes {
        all.extend(in_time(authority.takeovers(Some(scope)), deadline).await?);
    }
    all.sort_by_key(|(_, record)| Reverse(record.raised_at));
    Ok(all)
}
