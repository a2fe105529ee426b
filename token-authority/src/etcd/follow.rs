//! Who leads an election, for declarations that only the leader may make, and for who follows it.
//!
//! An election is the one of [`super::Candidate`]: the key that was made first leads, and the revision at which it was
//! made is the leader's number. So a leader leads until its key is deleted, and only then another one is decided.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Compare, CompareOp, Event, EventType, WatchOptions};
use tokio::sync::watch;
use tokio::time::Instant;

use super::election::first_of;
use super::store::{Store, found, unexpected};
use super::watch::{Ended, Pause, next};
use crate::{AuthorityError, Following, Token};

/// An absence that is shorter is not told: a member of etcd that ends, an election of etcd's own.
const TOLD_AFTER: Duration = Duration::from_secs(5);

/// The key that leads an election.
#[derive(Debug)]
pub(super) struct Leader {
    key: Vec<u8>,
    /// The revision at which it was made.
    made: i64,
    number: Token,
}

impl Leader {
    pub(super) const fn number(&self) -> Token {
        self.number
    }

    /// True for as long as it leads.
    pub(super) fn leads(&self) -> Compare {
        Compare::create_revision(self.key.clone(), CompareOp::Equal, self.made)
    }
}

/// How long nobody has followed an election.
#[derive(Debug, Default)]
struct Absence {
    since: Option<Instant>,
    is_told: bool,
}

impl Absence {
    /// It goes on. Whether that is to be told now: once, when it is no short one any more.
    fn is_to_be_told(&mut self) -> bool {
        let since = *self.since.get_or_insert_with(Instant::now);
        let is_news = !self.is_told && since.elapsed() >= TOLD_AFTER;
        self.is_told |= is_news;
        is_news
    }

    /// It is over. Whether it was told.
    fn ends(&mut self) -> bool {
        std::mem::take(self).is_told
    }
}

impl Store {
    /// Who leads an election, and at which revision of the store. Read in a step, so it was never over before the call.
    pub(super) async fn leader(
        &self,
        election: &str,
    ) -> Result<(i64, Option<Leader>), AuthorityError> {
        let stepped = self.sync(vec![first_of(election)]).await?;
        let Some(first) = found(stepped.answers.last()) else {
            return Ok((stepped.revision, None));
        };
        let made = first.create_revision();
        let number = u64::try_from(made).ok();
        let number = number.and_then(|number| Token::new(number).ok());
        let leader = Leader {
            key: first.key().to_vec(),
            made,
            number: number.ok_or_else(unexpected)?,
        };
        Ok((stepped.revision, Some(leader)))
    }

    /// See [`crate::Authority::follow`].
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

    /// Tells who leads, for ever. Ends when the store has gone back.
    async fn run_follow(&self, election: &str, told: &watch::Sender<Option<Token>>) {
        let mut pause = Pause::default();
        let mut absence = Absence::default();
        loop {
            let began = Instant::now();
            match self.follow_once(election, told, &mut absence).await {
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
                // It is read anew in any case.
                Ended::Compacted => {}
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

    /// Reads who leads, and follows one stream until it ends.
    async fn follow_once(
        &self,
        election: &str,
        told: &watch::Sender<Option<Token>>,
        absence: &mut Absence,
    ) -> Ended {
        let (mut revision, mut leader) = match self.leader(election).await {
            Ok(read) => read,
            Err(error) => return error.into(),
        };
        tell(told, leader.as_ref());
        let options = WatchOptions::new()
            .with_prefix()
            .with_start_revision(revision + 1);
        let line = format!("{election}/").into_bytes();
        let (index, mut stream) = match self.open_watch(line, options).await {
            Ok(opened) => opened,
            Err(fault) => return Ended::Broken(fault),
        };
        if absence.ends() {
            tracing::info!(election, "etcd: following the election again");
        }
        loop {
            let message = match next(&mut stream).await {
                Ok(message) => message,
                Err(fault) => {
                    self.members.leave(index);
                    return Ended::Broken(fault);
                }
            };
            if let Err(ended) = self.goes_on(&message) {
                if matches!(ended, Ended::Broken(_)) {
                    self.members.leave(index);
                }
                return ended;
            }
            let mut events = message.events().iter();
            if events.any(|event| decides(event, leader.as_ref(), revision)) {
                (revision, leader) = match self.leader(election).await {
                    Ok(read) => read,
                    Err(error) => return error.into(),
                };
                tell(told, leader.as_ref());
            }
        }
    }
}

/// Whether another one may lead since this event: the leader's key is gone, or somebody has come where nobody led. Who
/// joins the line behind a leader, or writes its key again, changes nothing.
fn decides(event: &Event, leader: Option<&Leader>, read_at: i64) -> bool {
    let Some(kv) = event.kv() else { return false };
    let is_news = kv.mod_revision() > read_at;
    is_news
        && match leader {
            None => event.event_type() == EventType::Put,
            Some(leader) => event.event_type() == EventType::Delete && kv.key() == leader.key,
        }
}

fn tell(told: &watch::Sender<Option<Token>>, leader: Option<&Leader>) {
    let now = leader.map(Leader::number);
    told.send_if_modified(|before| {
        let is_news = *before != now;
        *before = now;
        is_news
    });
}
