//! The watch: one stream from etcd for all watchers of a handle, reopened if it breaks or falls silent.

use std::convert::Infallible;
use std::time::Duration;

use etcd_client::{EventType, KeyValue, WatchOptions, WatchResponse, WatchStream};
use tokio::time::{Instant, sleep, timeout};

use super::connect::ATTEMPT_TIMEOUT;
use super::fault::{Ended, EtcdFault, FaultKind};
use super::keys;
use super::store::EtcdStore;
use crate::{Answer, Change};

/// Silence after which etcd is probed, and time for its answer.
const SILENCE: Duration = Duration::from_secs(1);
/// Pause between streams, doubled after each that did not last.
const PAUSE: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);

#[derive(Default)]
pub(super) struct Pause(Duration);

impl Pause {
    /// Waits after a stream that began at `began`.
    pub(super) async fn after(&mut self, began: Instant) {
        self.0 = if began.elapsed() > PAUSE_MAX {
            PAUSE
        } else {
            (self.0 * 2).clamp(PAUSE, PAUSE_MAX)
        };
        sleep(self.0).await;
    }
}

/// An open stream, and the member that it comes from.
pub(super) struct MemberStream<'s> {
    store: &'s EtcdStore,
    member: usize,
    stream: WatchStream,
}

impl MemberStream<'_> {
    /// The next message, if the stream continues with it. If none comes, etcd is asked for one.
    pub(super) async fn next(&mut self) -> Result<WatchResponse, Ended> {
        let heard = self.message().await.map_err(Ended::Broken);
        let heard = heard.and_then(|message| self.store.goes_on(&message).map(|()| message));
        if let Err(Ended::Broken(fault)) = &heard
            && fault.kind != FaultKind::Compacted
        {
            self.store.members.leave(self.member);
        }
        heard
    }

    async fn message(&mut self) -> Result<WatchResponse, EtcdFault> {
        let ended = || EtcdFault::unavailable("the watch has ended");
        match timeout(SILENCE, self.stream.message()).await {
            Ok(message) => return message?.ok_or_else(ended),
            Err(_) => self.stream.request_progress().await?,
        }
        match timeout(SILENCE, self.stream.message()).await {
            Ok(message) => message?.ok_or_else(ended),
            Err(_) => Err(EtcdFault::unavailable("the watch is silent")),
        }
    }
}

impl EtcdStore {
    /// Reports changes after the revision `seen`, until the store has gone back.
    pub(super) async fn run_watch(&self, mut seen: i64) {
        let mut pause = Pause::default();
        loop {
            let began = Instant::now();
            let Err(ended) = self.hear(&mut seen).await;
            let ended = match ended {
                // The next changes have been compacted.
                Ended::Broken(fault) if fault.kind == FaultKind::Compacted => {
                    self.catch_up(&mut seen).await
                }
                ended => Err(ended),
            };
            match ended {
                Ok(()) => {}
                Err(Ended::Broken(fault)) => {
                    tracing::debug!(error = fault.text, "etcd: the watch is reopened");
                }
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
    async fn hear(&self, seen: &mut i64) -> Result<Infallible, Ended> {
        // Distinguishes a wiped or restored etcd from a quiet one.
        self.sync(Vec::new()).await?;
        let range = self.keys.watched();
        let options = WatchOptions::new()
            .with_range(range.to)
            .with_start_revision(*seen + 1);
        let mut stream = self.open_watch(range.from, options).await?;
        loop {
            for event in stream.next().await?.events() {
                let Some(kv) = event.kv() else { continue };
                if let Err(error) = self.hear_event(event.event_type(), kv).await {
                    self.history.intact()?;
                    tracing::warn!(%error, "etcd: the watch skips what it cannot read");
                }
                *seen = (*seen).max(kv.mod_revision());
            }
        }
    }

    pub(super) async fn open_watch(
        &self,
        from: Vec<u8>,
        options: WatchOptions,
    ) -> Result<MemberStream<'_>, EtcdFault> {
        let (member, client) = self.members.current().await?;
        let mut watch = client.watch_client();
        let opening = timeout(ATTEMPT_TIMEOUT, watch.watch(from, Some(options))).await;
        let fault = match opening {
            Ok(Ok(stream)) => {
                return Ok(MemberStream {
                    store: self,
                    member,
                    stream,
                });
            }
            Ok(Err(error)) => error.into(),
            Err(_) => EtcdFault::unavailable("no watch was opened in time"),
        };
        self.members.leave(member);
        Err(fault)
    }

    /// Whether the stream continues with this message.
    fn goes_on(&self, message: &WatchResponse) -> Result<(), Ended> {
        self.history.check(message.header(), 0)?;
        if message.compact_revision() > 0 {
            let why = "the next changes have been compacted";
            return Err(EtcdFault::new(FaultKind::Compacted, why).into());
        }
        if message.canceled() {
            let why = format!("the watch was cancelled: {}", message.cancel_reason());
            return Err(EtcdFault::unavailable(why).into());
        }
        Ok(())
    }

    async fn hear_event(&self, kind: EventType, kv: &KeyValue) -> Answer<()> {
        let value = match kind {
            EventType::Put => Some(kv),
            EventType::Delete => None,
        };
        if kv.key() == self.keys.identity() {
            self.same_identity(value)?;
        } else if kv.key() == self.keys.cluster() {
            if let Some(kv) = value {
                let cluster = keys::read_cluster(kv.value())?;
                self.watchers.tell(&[Change::Cluster(cluster)]).await;
            }
        } else if let Ok(scope) = self.keys.read_mark(kv.key()) {
            self.learn(&scope, kv.mod_revision(), value)?;
            let row = keys::read_mark(&scope, kv.value())?;
            // No watcher needs to know that a scope was drained.
            if !row.drained {
                self.watchers.tell(&[Change::Mark(scope, row.mark)]).await;
            }
        }
        Ok(())
    }

    /// Reads everything, and reports what changed since the stream lost its place.
    async fn catch_up(&self, seen: &mut i64) -> Result<(), Ended> {
        tracing::info!(
            after = *seen,
            "etcd: changes were compacted, so the watch reads all marks again"
        );
        if let (Some(cluster), _) = self.on_record().await? {
            self.watchers.tell(&[Change::Cluster(cluster)]).await;
        }
        let (revision, marks) = self.read_marks().await?;
        for (scope, known) in marks {
            if known.mod_revision > *seen {
                let change = Change::Mark(scope.clone(), known.row.mark.clone());
                self.marks.put(&scope, known.mod_revision, known.row);
                self.watchers.tell(&[change]).await;
            }
        }
        *seen = revision;
        Ok(())
    }
}
