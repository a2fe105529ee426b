//! Connections that have not logged in yet: how many there may be, how long each may be silent, and who gives way.
//!
//! Whoever reaches the proxy can open connections and say nothing. They must not keep out a leader, who speaks at once.
//! So a connection takes none of the places of `connections.max` before its startup packet is there, of those that have
//! sent none the oldest gives way to the newest, and one that leaves an authentication request of PostgreSQL unanswered
//! gives way where its place is needed.

use std::collections::BTreeMap;
use std::future::{Future, pending};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::Sleep;

use crate::aside::Aside;
use crate::timers::Timers;

/// Connections without a startup packet: this part of `connections.max`, and at least so many.
const SILENT_PART: usize = 4;
const SILENT_LEAST: usize = 256;

/// Cancel requests on their way to PostgreSQL, beside the places: who has none left may still cancel what it does.
const CANCELS_MAX: usize = 16;

/// So many passwords are hashed at once. A role may have been given up to 100,000 rounds, and whoever knows its name
/// can have them counted.
const HASHED_AT_ONCE: usize = 2;

/// How long a client may owe what comes next. Programs answer at once; whoever types a password connects anew with it.
const PATIENCE: Duration = Duration::from_secs(10);

/// Who owes an answer for less than this keeps the place, and who needs one waits as long for it.
const ANSWER: Duration = Duration::from_secs(1);

/// All connections that have not logged in, and the places for those that do. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Arrivals {
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
    /// All of them.
    logging_in: usize,
    /// Without a startup packet, by age. To drop a sender tells the connection to end.
    silent: BTreeMap<u64, oneshot::Sender<()>>,
    /// With a place, and an authentication request to answer.
    owing: BTreeMap<u64, (Instant, oneshot::Sender<()>)>,
}

impl Arrivals {
    /// For so many places. A login may take `login_timeout` at all.
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

    /// Takes in a connection that has said nothing yet.
    pub(crate) fn enter(&self) -> Arrival {
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
        Arrival {
            id,
            owes: Some(Owed {
                gives_way,
                patience: Box::pin(self.timers.sleep(self.patience)),
            }),
            arrivals: self.clone(),
        }
    }

    /// Connections that have not logged in.
    #[must_use]
    pub(crate) fn logging_in(&self) -> usize {
        self.waiting.lock().logging_in
    }

    /// Ends the login that has waited longest for its client, where that is too long. Says whether there was one.
    fn end_owing(&self) -> bool {
        let mut waiting = self.waiting.lock();
        let longest = waiting.owing.iter().min_by_key(|(_, (since, _))| *since);
        let id = longest
            .filter(|(_, (since, _))| since.elapsed() >= ANSWER)
            .map(|(id, _)| *id);
        id.is_some_and(|id| waiting.owing.remove(&id).is_some())
    }
}

/// One connection that has not logged in.
#[derive(Debug)]
pub(crate) struct Arrival {
    id: u64,
    arrivals: Arrivals,
    /// While the next step is the client's.
    owes: Option<Owed>,
}

#[derive(Debug)]
struct Owed {
    gives_way: oneshot::Receiver<()>,
    patience: Pin<Box<Sleep>>,
}

impl Arrival {
    /// Takes a place, now that the startup packet is there; `None` where there is none.
    pub(crate) async fn place(&self) -> Option<OwnedSemaphorePermit> {
        let places = &self.arrivals.places;
        if let Ok(place) = Arc::clone(places).try_acquire_owned() {
            return Some(place);
        }
        if !self.arrivals.end_owing() {
            return None;
        }
        let freed = Arc::clone(places).acquire_owned();
        self.arrivals.timers.timeout(ANSWER, freed).await.ok()?.ok()
    }

    /// Takes one of the few places of cancel requests. Until there is one, the client counts as one that has said
    /// nothing: it gives way to others, and does not wait for long.
    pub(crate) async fn cancel_place(&mut self) -> Option<OwnedSemaphorePermit> {
        let place = Arc::clone(&self.arrivals.cancels).acquire_owned();
        let place = self.unless_given_up(place).await;
        self.answered();
        place?.ok()
    }

    /// Where its password is hashed.
    pub(crate) const fn hashing(&self) -> &Aside {
        &self.arrivals.hashing
    }

    /// The client has to answer an authentication request.
    pub(crate) fn owes(&mut self) {
        if self.owes.is_some() {
            return;
        }
        let (stay, gives_way) = oneshot::channel();
        let mut waiting = self.arrivals.waiting.lock();
        waiting.owing.insert(self.id, (Instant::now(), stay));
        drop(waiting);
        self.owes = Some(Owed {
            gives_way,
            patience: Box::pin(self.arrivals.timers.sleep(self.arrivals.patience)),
        });
    }

    /// The client has sent what was waited for.
    pub(crate) fn answered(&mut self) {
        if self.owes.take().is_some() {
            let mut waiting = self.arrivals.waiting.lock();
            waiting.silent.remove(&self.id);
            waiting.owing.remove(&self.id);
        }
    }

    /// Returns when the client has been silent for too long, or gives way to another. Cancel safe.
    pub(crate) async fn given_up(&mut self) {
        match &mut self.owes {
            None => pending().await,
            Some(owed) => tokio::select! {
                _ = &mut owed.gives_way => {}
                () = &mut owed.patience => {}
            },
        }
    }

    /// What `step` comes to, or `None` where the client is given up before.
    pub(crate) async fn unless_given_up<T>(&mut self, step: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            done = step => Some(done),
            () = self.given_up() => None,
        }
    }
}

impl Drop for Arrival {
    fn drop(&mut self) {
        self.answered();
        self.arrivals.waiting.lock().logging_in -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrivals(places: usize) -> Arrivals {
        Arrivals::new(places, Duration::from_secs(60), Timers::of_this_runtime())
    }

    async fn is_given_up(arrival: &mut Arrival) -> bool {
        let now = Duration::from_millis(1);
        tokio::time::timeout(now, arrival.given_up()).await.is_ok()
    }

    #[tokio::test]
    async fn of_silent_ones_the_oldest_gives_way() {
        let arrivals = arrivals(1);
        let mut all: Vec<Arrival> = (0..SILENT_LEAST).map(|_| arrivals.enter()).collect();
        assert!(!is_given_up(&mut all[0]).await);
        let mut newest = arrivals.enter();
        assert!(is_given_up(&mut all[0]).await);
        assert!(!is_given_up(&mut all[1]).await);
        assert!(!is_given_up(&mut newest).await);
        // Who has spoken, or left, is not in the way.
        all[1].answered();
        all.remove(2);
        let _two = (arrivals.enter(), arrivals.enter());
        assert!(!is_given_up(&mut all[2]).await);
        assert!(!is_given_up(&mut all[1]).await);
    }

    #[tokio::test]
    async fn nobody_is_silent_for_ever() {
        let patience = Duration::from_millis(50);
        let mut arrival = Arrivals::new(1, patience, Timers::of_this_runtime()).enter();
        let begin = Instant::now();
        arrival.given_up().await;
        assert!(begin.elapsed() >= patience);
        arrival.answered();
        arrival.owes();
        arrival.given_up().await;
        assert!(begin.elapsed() >= 2 * patience);
        assert!(begin.elapsed() < PATIENCE);
    }

    #[tokio::test]
    async fn cancel_requests_are_few_and_wait_as_silent_ones() {
        let arrivals = arrivals(1);
        let mut first: Vec<Arrival> = (0..CANCELS_MAX).map(|_| arrivals.enter()).collect();
        let mut places = Vec::new();
        for arrival in &mut first {
            places.push(arrival.cancel_place().await.unwrap());
        }
        // They take nothing of the others.
        assert!(first[0].place().await.is_some());
        let mut waiting = arrivals.enter();
        let _silent: Vec<Arrival> = (0..SILENT_LEAST).map(|_| arrivals.enter()).collect();
        assert!(waiting.cancel_place().await.is_none());
        let mut last = arrivals.enter();
        places.pop();
        assert!(last.cancel_place().await.is_some());
    }

    #[tokio::test]
    async fn a_place_is_freed_by_who_does_not_answer() {
        let arrivals = arrivals(1);
        let (mut slow, newcomer) = (arrivals.enter(), arrivals.enter());
        let place = slow.place().await;
        assert!(place.is_some());
        assert!(newcomer.place().await.is_none());
        slow.answered();
        slow.owes();
        // It has only just been asked.
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
