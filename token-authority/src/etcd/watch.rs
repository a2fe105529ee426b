//! The watch: one stream from etcd for all watchers of a handle, reopened if it breaks or falls silent.

use std::time::Duration;

use etcd_client::{EventType, KeyValue, WatchOptions, WatchResponse, WatchStream};
use tokio::time::{Instant, sleep, timeout};

use super::connect::ATTEMPT_TIMEOUT;
use super::fault::EtcdFault;
use super::history::Floor;
use super::keys::{self, Watched};
use super::store::EtcdStore;
use crate::{AuthorityError, Change};

/// Silence after which etcd is probed, and time for its answer.
const SILENCE: Duration = Duration::from_secs(1);
/// Pause between streams, doubled after each that did not last.
const PAUSE: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);

pub(super) enum Ended {
    /// The stream broke. The next one continues from `seen`.
    Broken(EtcdFault),
    /// The next changes have been compacted: all marks must be read.
    Compacted,
    /// This store is not accepted any more.
    Over(AuthorityError),
}

pub(super) struct Pause(Duration);

impl Default for Pause {
    fn default() -> Self {
        Self(PAUSE)
    }
}

impl Pause {
    /// Waits after a stream that began at `began`.
    pub(super) async fn after(&mut self, began: Instant) {
        self.0 = if began.elapsed() > PAUSE_MAX {
            PAUSE
        } else {
            PAUSE_MAX.min(self.0 * 2)
        };
        sleep(self.0).await;
    }
}

impl From<AuthorityError> for Ended {
    fn from(error: AuthorityError) -> Self {
        match error {
            AuthorityError::Unavailable(why) => Self::Broken(EtcdFault::unavailable(why)),
            error => Self::Over(error),
        }
    }
}

impl EtcdStore {
    /// Reports changes after the revision `seen`, until the store has gone back.
    pub(super) async fn run_watch(&self, mut seen: i64) {
        let mut pause = Pause::default();
        loop {
            let began = Instant::now();
            let ended = match self.stream(&mut seen).await {
                Ended::Compacted => self.catch_up(&mut seen).await,
                ended => Err(ended),
            };
            match ended {
                Ok(()) => {}
                Err(Ended::Broken(fault)) => {
                    tracing::debug!(error = fault.text, "etcd: the watch is reopened");
                }
                Err(Ended::Compacted) => {}
                Err(Ended::Over(error)) => {
                    if self.history.intact().is_err() {
                        return;
                    }
                    tracing::warn!(%error, "etcd: cannot continue the watch");
                }
            }
            pause.after(began).await;
        }
    }

    /// Follows one stream until it ends, and moves `seen` with it.
    async fn stream(&self, seen: &mut i64) -> Ended {
        // Distinguishes a wiped or restored etcd from a quiet one.
        if let Err(error) = self.sync(Vec::new()).await {
            return error.into();
        }
        let range = self.keys.watched();
        let options = WatchOptions::new()
            .with_range(range.to)
            .with_start_revision(*seen + 1);
        let (index, mut stream) = match self.open_watch(range.from, options).await {
            Ok(opened) => opened,
            Err(fault) => return Ended::Broken(fault),
        };
        loop {
            let ended = match next(&mut stream).await {
                Ok(message) => self.hear(&message, seen).await,
                Err(fault) => Err(Ended::Broken(fault)),
            };
            if let Err(ended) = ended {
                if matches!(ended, Ended::Broken(_)) {
                    self.members.leave(index);
                }
                return ended;
            }
        }
    }

    /// Opens a stream. Returns it with the index of its member for [`super::members::Members::leave`].
    pub(super) async fn open_watch(
        &self,
        from: Vec<u8>,
        options: WatchOptions,
    ) -> Result<(usize, WatchStream), EtcdFault> {
        let (index, client) = self.members.current().await?;
        let mut watch = client.watch_client();
        let opening = timeout(ATTEMPT_TIMEOUT, watch.watch(from, Some(options))).await;
        let fault = match opening {
            Ok(Ok(stream)) => return Ok((index, stream)),
            Ok(Err(error)) => error.into(),
            Err(_) => EtcdFault::unavailable("no watch was opened in time"),
        };
        self.members.leave(index);
        Err(fault)
    }

    /// Whether the stream continues after this message.
    pub(super) fn goes_on(&self, message: &WatchResponse) -> Result<(), Ended> {
        self.history.check(message.header(), Floor::None)?;
        if message.compact_revision() > 0 {
            return Err(Ended::Compacted);
        }
        if message.canceled() {
            let why = format!("the watch was cancelled: {}", message.cancel_reason());
            return Err(Ended::Broken(EtcdFault::unavailable(why)));
        }
        Ok(())
    }

    /// Handles one message of the stream.
    async fn hear(&self, message: &WatchResponse, seen: &mut i64) -> Result<(), Ended> {
        self.goes_on(message)?;
        for event in message.events() {
            let Some(kv) = event.kv() else { continue };
            if let Err(error) = self.hear_event(event.event_type(), kv).await {
                self.history.intact()?;
                tracing::warn!(%error, "etcd: the watch skips what it cannot read");
            }
            *seen = (*seen).max(kv.mod_revision());
        }
        Ok(())
    }

    async fn hear_event(&self, kind: EventType, kv: &KeyValue) -> Result<(), AuthorityError> {
        let value = match kind {
            EventType::Put => Some(kv),
            EventType::Delete => None,
        };
        match (self.keys.read_watched(kv.key()), value) {
            (Some(Watched::Identity), _) => self.same_identity(value)?,
            (Some(Watched::Cluster), Some(kv)) => {
                let cluster = keys::read_cluster(kv.value())?;
                self.watchers.tell(&[Change::Cluster(cluster)]).await;
            }
            (Some(Watched::Mark(scope)), _) => {
                self.learn(&scope, kv.mod_revision(), value)?;
                let row = keys::read_mark(&scope, kv.value())?;
                // No watcher needs to know that a scope was drained.
                if !row.drained {
                    self.watchers.tell(&[Change::Mark(scope, row.mark)]).await;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Reads everything, and reports what changed since the stream lost its place.
    async fn catch_up(&self, seen: &mut i64) -> Result<(), Ended> {
        tracing::info!(
            after = *seen,
            "etcd: changes were compacted, so the watch reads all marks again"
        );
        if let Some(cluster) = self.cluster().await? {
            self.watchers.tell(&[Change::Cluster(cluster)]).await;
        }
        let (revision, marks) = self.read_marks().await?;
        for (scope, known) in marks {
            if known.mod_revision > *seen {
                self.marks
                    .put(&scope, known.mod_revision, known.row.clone());
                self.watchers
                    .tell(&[Change::Mark(scope, known.row.mark)])
                    .await;
            }
        }
        *seen = revision;
        Ok(())
    }
}

/// The next message. If none comes, etcd is asked for one.
pub(super) async fn next(stream: &mut WatchStream) -> Result<WatchResponse, EtcdFault> {
    let ended = || EtcdFault::unavailable("the watch has ended");
    match timeout(SILENCE, stream.message()).await {
        Ok(message) => return message?.ok_or_else(ended),
        Err(_) => stream.request_progress().await?,
    }
    match timeout(SILENCE, stream.message()).await {
        Ok(message) => message?.ok_or_else(ended),
        Err(_) => Err(EtcdFault::unavailable("the watch is silent")),
    }
}
