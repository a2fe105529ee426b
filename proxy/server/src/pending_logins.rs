//! Connections that have not logged in yet: their number, their time limits, and which of them gives way.
//!
//! Anybody who reaches the proxy can open connections and stay silent. They must not keep out a leader, who speaks at
//! once. So three rules hold:
//!
//! - A connection takes a place of `connections.max` only after its startup packet.
//! - Of the connections without a startup packet the oldest gives way to the newest.
//! - A connection that owes PostgreSQL an authentication answer gives way if its place is needed.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::Sleep;

use crate::aside::Aside;
use crate::timers::Timers;

/// Limit of connections without a startup packet: this fraction of `connections.max`, and at least `SILENT_LEAST`.
const SILENT_PART: usize = 4;
const SILENT_LEAST: usize = 256;

/// Limit of concurrent cancel requests, outside `connections.max`.
const CANCELS_MAX: usize = 16;

/// Limit of concurrent password hashes. A role may have up to 100,000 rounds, and anybody can have them computed.
const HASHED_AT_ONCE: usize = 2;

/// Time for a client's next message. Programs answer at once; a person who types a password reconnects.
const PATIENCE: Duration = Duration::from_secs(10);

/// A client that owes an answer for less time keeps its place. A client that needs a place waits as long.
const ANSWER: Duration = Duration::from_secs(1);

/// Interval of log lines about PROXY protocol headers, which anybody can cause.
const HEADER_WARNING_EVERY: Duration = Duration::from_secs(60);

/// All connections that have not logged in, and the places for sessions. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct PendingLogins {
    waiting: Arc<Mutex<Waiting>>,
    silent_max: usize,
    places: Arc<Semaphore>,
    cancels: Arc<Semaphore>,
    hashing: Aside,
    patience: Duration,
    timers: Timers,
}

#[derive(Debug, Default)]
struct Waiting {
    last: u64,
    logging_in: usize,
    /// By age. Dropping a sender ends the connection.
    silent: BTreeMap<u64, oneshot::Sender<()>>,
    /// Connections with a place that owe an authentication answer.
    owing: BTreeMap<u64, (Instant, oneshot::Sender<()>)>,
    /// Last log line about a missing or unexpected PROXY protocol header.
    header_warned: Option<Instant>,
}

impl PendingLogins {
    #[must_use]
    pub(crate) fn new(places: usize, login_timeout: Duration, timers: Timers) -> Self {
        Self {
            waiting: Arc::default(),
            silent_max: (places / SILENT_PART).max(SILENT_LEAST),
            places: Arc::new(Semaphore::new(places)),
            cancels: Arc::new(Semaphore::new(CANCELS_MAX)),
            hashing: Aside::new(HASHED_AT_ONCE),
            patience: PATIENCE.min(login_timeout),
            timers,
        }
    }

    /// Whether another log line about PROXY protocol headers is due; the caller must write it.
    pub(crate) fn header_warning_is_due(&self) -> bool {
        let warned = &mut self.waiting.lock().header_warned;
        let is_due = warned.is_none_or(|at| at.elapsed() >= HEADER_WARNING_EVERY);
        if is_due {
            *warned = Some(Instant::now());
        }
        is_due
    }

    /// Limit of all password hashes.
    pub(crate) const fn hashing(&self) -> &Aside {
        &self.hashing
    }

    pub(crate) fn enter(&self) -> PendingLogin {
        let (stay, gives_way) = oneshot::channel();
        let mut waiting = self.waiting.lock();
        waiting.last += 1;
        waiting.logging_in += 1;
        let id = waiting.last;
        waiting.silent.insert(id, stay);
        if waiting.silent.len() > self.silent_max {
            waiting.silent.pop_first();
        }
        drop(waiting);
        PendingLogin {
            id,
            owes: Some(self.owed(gives_way)),
            pending_logins: self.clone(),
        }
    }

    fn owed(&self, gives_way: oneshot::Receiver<()>) -> Owed {
        Owed {
            gives_way,
            patience: Box::pin(self.timers.sleep(self.patience)),
        }
    }

    #[must_use]
    pub(crate) fn logging_in(&self) -> usize {
        self.waiting.lock().logging_in
    }

    /// Ends the login that has waited longest for its client, if too long. Returns whether there was one.
    fn end_owing(&self) -> bool {
        let mut waiting = self.waiting.lock();
        let longest = waiting.owing.iter().min_by_key(|(_, (since, _))| *since);
        let id = longest
            .filter(|(_, (since, _))| since.elapsed() >= ANSWER)
            .map(|(id, _)| *id);
        id.is_some_and(|id| waiting.owing.remove(&id).is_some())
    }
}

#[derive(Debug)]
pub(crate) struct PendingLogin {
    id: u64,
    pending_logins: PendingLogins,
    /// Set while the next step is the client's.
    owes: Option<Owed>,
}

#[derive(Debug)]
struct Owed {
    gives_way: oneshot::Receiver<()>,
    patience: Pin<Box<Sleep>>,
}

impl PendingLogin {
    pub(crate) async fn place(&self) -> Option<OwnedSemaphorePermit> {
        let places = &self.pending_logins.places;
        if let Ok(place) = Arc::clone(places).try_acquire_owned() {
            return Some(place);
        }
        if !self.pending_logins.end_owing() {
            return None;
        }
        let freed = Arc::clone(places).acquire_owned();
        self.pending_logins
            .timers
            .timeout(ANSWER, freed)
            .await
            .ok()?
            .ok()
    }

    /// Takes a place for a cancel request. A waiting client still counts as silent.
    pub(crate) async fn cancel_place(&mut self) -> Option<OwnedSemaphorePermit> {
        let place = Arc::clone(&self.pending_logins.cancels).acquire_owned();
        let place = self.unless_given_up(place).await;
        self.answered();
        place?.ok()
    }

    pub(crate) fn owes(&mut self) {
        if self.owes.is_some() {
            return;
        }
        let (stay, gives_way) = oneshot::channel();
        let mut waiting = self.pending_logins.waiting.lock();
        waiting.owing.insert(self.id, (Instant::now(), stay));
        drop(waiting);
        self.owes = Some(self.pending_logins.owed(gives_way));
    }

    pub(crate) fn answered(&mut self) {
        if self.owes.take().is_some() {
            let mut waiting = self.pending_logins.waiting.lock();
            waiting.silent.remove(&self.id);
            waiting.owing.remove(&self.id);
        }
    }

    /// Returns when the client has been silent for too long, or gives way to another. Cancel safe.
    pub(crate) async fn given_up(&mut self) {
        match &mut self.owes {
            None => std::future::pending().await,
            Some(owed) => tokio::select! {
                _ = &mut owed.gives_way => {}
                () = &mut owed.patience => {}
            },
        }
    }

    /// Runs `step`; `None` if the client is given up first.
    pub(crate) async fn unless_given_up<T>(&mut self, step: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            done = step => Some(done),
            () = self.given_up() => None,
        }
    }
}

impl Drop for PendingLogin {
    fn drop(&mut self) {
        self.answered();
        self.pending_logins.waiting.lock().logging_in -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pending_logins(places: usize) -> PendingLogins {
        PendingLogins::new(places, Duration::from_secs(60), Timers::of_this_runtime())
    }

    async fn is_given_up(pending: &mut PendingLogin) -> bool {
        let now = Duration::from_millis(1);
        tokio::time::timeout(now, pending.given_up()).await.is_ok()
    }

    #[tokio::test]
    async fn of_silent_ones_the_oldest_gives_way() {
        let pending_logins = pending_logins(1);
        let mut all: Vec<PendingLogin> =
            (0..SILENT_LEAST).map(|_| pending_logins.enter()).collect();
        assert!(!is_given_up(&mut all[0]).await);
        let mut newest = pending_logins.enter();
        assert!(is_given_up(&mut all[0]).await);
        assert!(!is_given_up(&mut all[1]).await);
        assert!(!is_given_up(&mut newest).await);
        // A connection that has spoken or left does not give way.
        all[1].answered();
        all.remove(2);
        let _two = (pending_logins.enter(), pending_logins.enter());
        assert!(!is_given_up(&mut all[2]).await);
        assert!(!is_given_up(&mut all[1]).await);
    }

    #[tokio::test]
    async fn nobody_is_silent_for_ever() {
        let patience = Duration::from_millis(50);
        let mut pending = PendingLogins::new(1, patience, Timers::of_this_runtime()).enter();
        let begin = Instant::now();
        pending.given_up().await;
        assert!(begin.elapsed() >= patience);
        pending.answered();
        pending.owes();
        pending.given_up().await;
        assert!(begin.elapsed() >= 2 * patience);
        assert!(begin.elapsed() < PATIENCE);
    }

    #[tokio::test]
    async fn cancel_requests_are_few_and_wait_as_silent_ones() {
        let pending_logins = pending_logins(1);
        let mut first: Vec<PendingLogin> =
            (0..CANCELS_MAX).map(|_| pending_logins.enter()).collect();
        let mut places = Vec::new();
        for pending in &mut first {
            places.push(pending.cancel_place().await.unwrap());
        }
        // Cancel requests take no place of the others.
        assert!(first[0].place().await.is_some());
        let mut waiting = pending_logins.enter();
        let _silent: Vec<PendingLogin> =
            (0..SILENT_LEAST).map(|_| pending_logins.enter()).collect();
        assert!(waiting.cancel_place().await.is_none());
        let mut last = pending_logins.enter();
        places.pop();
        assert!(last.cancel_place().await.is_some());
    }

    #[tokio::test]
    async fn a_place_is_freed_by_who_does_not_answer() {
        let pending_logins = pending_logins(1);
        let (mut slow, newcomer) = (pending_logins.enter(), pending_logins.enter());
        let place = slow.place().await;
        assert!(place.is_some());
        assert!(newcomer.place().await.is_none());
        slow.answered();
        slow.owes();
        // The client was asked a moment ago.
        assert!(newcomer.place().await.is_none());
        tokio::time::sleep(ANSWER).await;
        let gives_way = async move {
            slow.given_up().await;
            drop(place);
        };
        let (_, taken) = tokio::join!(gives_way, newcomer.place());
        assert!(taken.is_some());
    }
}
