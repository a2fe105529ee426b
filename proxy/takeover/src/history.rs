//! How takeovers went: the authority keeps it for people, and nobody waits for that.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pgpalisade_authority::{Authority, AuthorityError, Rank, Scope, TakeoverEnd, TakeoverRecord};
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::error::DeclareError;
use super::{in_time, spawn_until};

/// Records that may wait. What does not fit is left out.
const LIMIT: usize = 1024;
/// Behind each time that records were handed on, so that a busy scope is written once for many.
const COLLECTED_FOR: Duration = Duration::from_millis(250);
/// How often it is tried to hand them on, so that one scope does not hold up the others for ever.
const ATTEMPTS: u32 = 60;
/// Between attempts when the authority does not answer.
const RETRY: Duration = Duration::from_millis(500);
/// Scopes of which it is known that their last takeover is noted as complete.
const COMPLETE_MAX: usize = 10_000;
/// What was read of all scopes is shown to others for so long.
const SHOWN_FOR: Duration = Duration::from_secs(1);

/// Where records are handed in.
#[derive(Debug, Clone)]
pub(super) struct Notes {
    sender: Sender<(Scope, TakeoverRecord)>,
    /// What was noted as complete last.
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

    /// The same, and hands them on until `cancel`.
    pub(super) fn start(
        authority: &Arc<dyn Authority>,
        timeout: Duration,
        cancel: &CancellationToken,
    ) -> Self {
        let (notes, noted) = Self::to(authority, timeout);
        spawn_until(cancel, noted.run());
        notes
    }

    /// Does not wait.
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

    /// That the takeover is complete, by whomever, unless this proxy has noted so before. The old sessions may have
    /// ended by themselves since one that could not be completed.
    pub(super) fn push_found_complete(&self, scope: &Scope, record: TakeoverRecord) {
        let known = self.complete.lock().get(scope).copied();
        if known != Some(record.rank()) {
            self.push(scope, record);
        }
    }
}

impl Noted {
    /// Hands them on.
    async fn run(mut self) {
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

    /// Hands on what waits now, each once.
    pub(super) async fn flush(mut self) {
        for (scope, records) in self.collect(None) {
            self.hand_on(&scope, &records).await;
        }
    }

    /// What waits, by scope.
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
                // That the authority is lost is told elsewhere.
                tracing::debug!(%scope, %error, "a takeover is not recorded yet");
                false
            }
        }
    }
}

/// The takeovers of some scopes, the newest first.
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

/// What was read, or why it could not be.
type Read = Result<Vec<(Scope, TakeoverRecord)>, AuthorityError>;

/// The takeovers of all scopes as they were read last: whoever asks meanwhile gets the same, and the authority is asked
/// by one at a time.
#[derive(Debug, Default)]
pub(super) struct LastRead(tokio::sync::Mutex<Option<(Instant, Read)>>);

impl LastRead {
    pub(super) async fn get(
        &self,
        authority: &Arc<dyn Authority>,
        deadline: Instant,
    ) -> Result<Vec<(Scope, TakeoverRecord)>, DeclareError> {
        let waited = tokio::time::timeout_at(deadline, self.0.lock()).await;
        let late = || AuthorityError::Unavailable("it did not answer in time".to_owned());
        let mut last = waited.map_err(|_| late())?;
        if let Some((at, read)) = &*last
            && at.elapsed() < SHOWN_FOR
        {
            return Ok(read.clone()?);
        }
        let read = tokio::time::timeout_at(deadline, authority.takeovers(None)).await;
        let read = read.unwrap_or_else(|_| Err(late()));
        *last = Some((Instant::now(), read.clone()));
        Ok(read?)
    }
}
