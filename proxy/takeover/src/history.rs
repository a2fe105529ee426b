//! Records of takeovers, which the authority keeps for people. Nothing waits for them.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pgpalisade_authority::{Authority, Rank, Scope, TakeoverEnd, TakeoverRecord};
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::time::{Instant, sleep};

use super::error::DeclareError;
use super::in_time;

/// Maximum number of waiting records. More are left out.
const LIMIT: usize = 1024;
/// Pause after records were handed on, so that a busy scope is written once for many.
const COLLECTED_FOR: Duration = Duration::from_millis(250);
/// Maximum attempts to hand records on, so that one scope does not hold up the others forever.
const ATTEMPTS: u32 = 60;
/// Pause while the authority does not answer.
const RETRY: Duration = Duration::from_millis(500);
/// Maximum number of scopes whose last takeover is known to be noted as complete.
const COMPLETE_MAX: usize = 10_000;
/// Time for which a read of all scopes also answers later callers.
const SHOWN_FOR: Duration = Duration::from_secs(1);

/// Sender of records.
#[derive(Debug, Clone)]
pub(super) struct Notes {
    sender: Sender<(Scope, TakeoverRecord)>,
    /// The last takeover noted as complete, by scope.
    complete: Arc<Mutex<HashMap<Scope, Rank>>>,
}

/// Records that are not yet with the authority.
pub(super) struct Noted {
    waiting: Receiver<(Scope, TakeoverRecord)>,
    authority: Arc<dyn Authority>,
    timeout: Duration,
}

impl Notes {
    pub(super) fn to(authority: &Arc<dyn Authority>, timeout: Duration) -> (Self, Noted) {
        let (sender, waiting) = mpsc::channel(LIMIT);
        let noted = Noted {
            waiting,
            authority: Arc::clone(authority),
            timeout,
        };
        let complete = Arc::default();
        (Self { sender, complete }, noted)
    }

    /// Adds a record. Does not wait.
    pub(super) fn push(&self, scope: &Scope, record: TakeoverRecord) {
        if record.end == TakeoverEnd::Complete {
            let mut complete = self.complete.lock();
            if complete.len() >= COMPLETE_MAX {
                complete.clear();
            }
            complete.insert(scope.clone(), record.rank());
        }
        if self.sender.try_send((scope.clone(), record)).is_err() {
            tracing::debug!(%scope, "too many takeovers wait to be recorded; this one is not recorded");
        }
    }

    /// Adds that a takeover is complete, by whatever proxy, unless this one has noted so before. Old sessions may
    /// have ended after a takeover that could not be completed.
    pub(super) fn push_found_complete(&self, scope: &Scope, record: TakeoverRecord) {
        let known = self.complete.lock().get(scope).copied();
        if known != Some(record.rank()) {
            self.push(scope, record);
        }
    }
}

impl Noted {
    /// Hands records on as they come.
    pub(super) async fn run(mut self) {
        while let Some(first) = self.waiting.recv().await {
            for (scope, records) in self.collect(Some(first)) {
                for _ in 0..ATTEMPTS {
                    if self.hand_on(&scope, &records).await {
                        break;
                    }
                    sleep(RETRY).await;
                }
            }
            sleep(COLLECTED_FOR).await;
        }
    }

    /// Hands on the waiting records, each once.
    pub(super) async fn flush(mut self) {
        for (scope, records) in self.collect(None) {
            self.hand_on(&scope, &records).await;
        }
    }

    /// Waiting records, by scope.
    fn collect(
        &mut self,
        first: Option<(Scope, TakeoverRecord)>,
    ) -> HashMap<Scope, Vec<TakeoverRecord>> {
        let mut collected: HashMap<Scope, Vec<TakeoverRecord>> = HashMap::new();
        let mut next = first.or_else(|| self.waiting.try_recv().ok());
        while let Some((scope, record)) = next {
            collected.entry(scope).or_default().push(record);
            next = self.waiting.try_recv().ok();
        }
        collected
    }

    async fn hand_on(&self, scope: &Scope, records: &[TakeoverRecord]) -> bool {
        let noted = self.authority.note_takeovers(scope, records);
        match in_time(noted, Instant::now() + self.timeout).await {
            Ok(()) => true,
            Err(error) => {
                // The loss of the authority is logged elsewhere.
                tracing::debug!(%scope, %error, "a takeover is not recorded yet");
                false
            }
        }
    }
}

/// Takeovers of some scopes, newest first.
pub(super) async fn of(
    authority: &Arc<dyn Authority>,
    scopes: &[Scope],
    deadline: Instant,
) -> Read {
    let mut all = Vec::new();
    for scope in scopes {
        all.extend(in_time(authority.takeovers(Some(scope)), deadline).await?);
    }
    all.sort_by_key(|(_, record)| Reverse(record.raised_at));
    Ok(all)
}

type Read = Result<Vec<(Scope, TakeoverRecord)>, DeclareError>;

/// Takeovers of all scopes, as they were read last. Later callers get the same answer for a while, and only one at a
/// time asks the authority.
#[derive(Debug, Default)]
pub(super) struct LastRead(tokio::sync::Mutex<Option<(Instant, Read)>>);

impl LastRead {
    pub(super) async fn get(&self, authority: &Arc<dyn Authority>, deadline: Instant) -> Read {
        let mut last = in_time(async { Ok(self.0.lock().await) }, deadline).await?;
        if let Some((at, read)) = &*last
            && at.elapsed() < SHOWN_FOR
        {
            return read.clone();
        }
        let read = in_time(authority.takeovers(None), deadline).await;
        *last = Some((Instant::now(), read.clone()));
        read
    }
}
