//! Leader of an election, for declarations restricted to the leader, and for followers of the election.
//!
//! Elections are those of [`super::ElectionCandidate`]: the oldest key leads, and its creation revision is the
//! leader's number. So a leader leads until its key is deleted, and only then another one is chosen.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Compare, CompareOp, Event, EventType, WatchOptions};
use tokio::sync::watch;
use tokio::time::Instant;

use super::election::{first_of, number};
use super::fault::{Ended, FaultKind};
use super::store::{EtcdStore, found, unexpected};
use super::watch::Pause;
use crate::{Answer, Following, Token};

/// Shorter interruptions are not logged: a member of etcd that ends, an election within etcd.
const TOLD_AFTER: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct ElectionLeader {
    key: Vec<u8>,
    /// Creation revision.
    made: i64,
    pub(super) number: Token,
}

impl ElectionLeader {
    /// True while the key leads.
    pub(super) fn leads(&self) -> Compare {
        Compare::create_revision(self.key.clone(), CompareOp::Equal, self.made)
    }
}

/// Time without a follower's stream.
#[derive(Debug, Default)]
struct Absence {
    since: Option<Instant>,
    is_told: bool,
}

impl Absence {
    /// Whether to log a continued interruption: once, when it is no longer short.
    fn is_to_be_told(&mut self) -> bool {
        let since = *self.since.get_or_insert_with(Instant::now);
        let is_news = !self.is_told && since.elapsed() >= TOLD_AFTER;
        self.is_told |= is_news;
        is_news
    }

    /// Ends the interruption. Returns whether it was logged.
    fn ends(&mut self) -> bool {
        std::mem::take(self).is_told
    }
}

impl EtcdStore {
    /// Leader of an election, and the revision of the read. The read is a step, so it is not stale.
    pub(super) async fn leader(&self, election: &str) -> Answer<(i64, Option<ElectionLeader>)> {
        let stepped = self.sync(vec![first_of(election)]).await?;
        let Some(first) = found(stepped.answers.last()) else {
            return Ok((stepped.revision, None));
        };
        let made = first.create_revision();
        let leader = ElectionLeader {
            key: first.key().to_vec(),
            made,
            number: number(made).ok_or_else(unexpected)?,
        };
        Ok((stepped.revision, Some(leader)))
    }

    pub(super) fn follow(self: Arc<Self>, election: &str) -> Following {
        let (told, following) = watch::channel(None);
        let election = election.to_owned();
        tokio::spawn(async move {
            tokio::select! {
                () = self.run_follow(&election, &told) => {}
                () = told.closed() => {}
            }
        });
        following
    }

    /// Reports the leader, until the store has gone back.
    async fn run_follow(&self, election: &str, told: &watch::Sender<Option<Token>>) {
        let mut pause = Pause::default();
        let mut absence = Absence::default();
        loop {
            let began = Instant::now();
            let Err(ended) = self.follow_once(election, told, &mut absence).await;
            match ended {
                // The next round reads the leader anyway.
                Ended::Broken(fault) if fault.kind == FaultKind::Compacted => {}
                Ended::Broken(fault) if absence.is_to_be_told() => tracing::warn!(
                    error = fault.text,
                    election,
                    "etcd: cannot follow the election; until it is followed again, a leader is ended only when the \
                        next one declares"
                ),
                Ended::Broken(fault) => {
                    tracing::debug!(
                        error = fault.text,
                        election,
                        "etcd: following the election again"
                    );
                }
                Ended::Over(error) => {
                    tracing::warn!(%error, election, "etcd: cannot follow the election");
                    if self.history.intact().is_err() {
                        return;
                    }
                }
            }
            pause.after(began).await;
        }
    }

    /// Reads the leader, and follows one stream until it ends.
    async fn follow_once(
        &self,
        election: &str,
        told: &watch::Sender<Option<Token>>,
        absence: &mut Absence,
    ) -> Result<Infallible, Ended> {
        let (mut revision, mut leader) = self.leader(election).await?;
        tell(told, leader.as_ref());
        let options = WatchOptions::new()
            .with_prefix()
            .with_start_revision(revision + 1);
        let line = format!("{election}/").into_bytes();
        let mut stream = self.open_watch(line, options).await?;
        if absence.ends() {
            tracing::info!(election, "etcd: following the election again");
        }
        loop {
            let message = stream.next().await?;
            let mut events = message.events().iter();
            if events.any(|event| decides(event, leader.as_ref(), revision)) {
                (revision, leader) = self.leader(election).await?;
                tell(told, leader.as_ref());
            }
        }
    }
}

/// Whether the leader may have changed with this event: the leader's key is gone, or a candidate joined an empty
/// queue. Joining later, or writing a key again, changes nothing.
fn decides(event: &Event, leader: Option<&ElectionLeader>, read_at: i64) -> bool {
    let Some(kv) = event.kv() else { return false };
    let is_news = kv.mod_revision() > read_at;
    is_news
        && match leader {
            None => event.event_type() == EventType::Put,
            Some(leader) => event.event_type() == EventType::Delete && kv.key() == leader.key,
        }
}

fn tell(told: &watch::Sender<Option<Token>>, leader: Option<&ElectionLeader>) {
    let now = leader.map(|leader| leader.number);
    told.send_if_modified(|before| {
        let is_news = *before != now;
        *before = now;
        is_news
    });
}
