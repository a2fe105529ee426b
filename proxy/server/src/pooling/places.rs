//! Places for server connections, which the workers share.

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::sync::Arc;

use parking_lot::Mutex;
use pgpalisade_pool::{Budget, Debt};

use super::BackendLimits;

/// The places of all workers.
#[derive(Debug, Clone)]
pub(crate) struct Places {
    state: Arc<Mutex<State>>,
    undecided: usize,
    /// Of all, how many are kept for clients with tokens.
    leaders: usize,
}

/// Share of all places, as a divisor, that the openings for logins which were never admitted may have.
const UNDECIDED: usize = 4;

#[derive(Debug)]
struct State {
    free: usize,
    free_pins: usize,
    /// Server connections that clients without tokens may have beside those that they have.
    free_reads: usize,
    /// A share in which such a client has waited long: one of those is for it.
    next_reader: Option<u64>,
    /// Last number of a share.
    numbers: u64,
    /// The longest waiting first, at most one of each share.
    claims: VecDeque<Claim>,
}

#[derive(Debug)]
struct Claim {
    share: u64,
    /// Places that the share had when it last spoke.
    held: usize,
    is_urgent: bool,
}

/// The places of one worker.
#[derive(Debug)]
pub(crate) struct Share {
    places: Places,
    number: u64,
    held: usize,
    /// Whether it has a claim.
    is_waiting: bool,
}

impl Places {
    pub(super) fn new(limits: &BackendLimits, workers: NonZeroUsize) -> Self {
        let state = State {
            free: limits.max.get(),
            free_pins: limits.pinned,
            free_reads: limits.max.get().saturating_sub(limits.leaders),
            next_reader: None,
            numbers: 0,
            claims: VecDeque::new(),
        };
        Self {
            state: Arc::new(Mutex::new(state)),
            undecided: limits.max.get().div_ceil(UNDECIDED * workers.get()),
            leaders: limits.leaders,
        }
    }

    /// Openings of a worker at once for logins that were never admitted.
    pub(super) const fn undecided(&self) -> usize {
        self.undecided
    }

    pub(super) fn share(&self) -> Share {
        let mut state = self.state.lock();
        state.numbers += 1;
        Share {
            places: self.clone(),
            number: state.numbers,
            held: 0,
            is_waiting: false,
        }
    }
}

impl State {
    fn may_read(&self, share: u64) -> bool {
        let is_other = self.next_reader.is_some_and(|next| next != share);
        self.free_reads > usize::from(is_other)
    }
}

impl Budget for Share {
    fn take(&mut self) -> bool {
        let mut state = self.places.state.lock();
        let is_other = |claim: &&Claim| claim.share != self.number;
        let ahead = state.claims.iter().take_while(is_other).count();
        let is_taken = state.free > ahead;
        if is_taken {
            state.free -= 1;
            self.held += 1;
            drop(state);
            self.forgo();
        } else if !self.is_waiting {
            self.is_waiting = true;
            state.claims.push_back(Claim {
                share: self.number,
                held: self.held,
                is_urgent: false,
            });
        }
        is_taken
    }

    fn give_back(&mut self) {
        self.held -= 1;
        self.places.state.lock().free += 1;
    }

    fn forgo(&mut self) {
        if std::mem::take(&mut self.is_waiting) {
            let mut state = self.places.state.lock();
            state.claims.retain(|claim| claim.share != self.number);
        }
    }

    fn urge(&mut self) {
        let mut state = self.places.state.lock();
        let mut claims = state.claims.iter_mut();
        if let Some(own) = claims.find(|claim| claim.share == self.number) {
            own.held = self.held;
            own.is_urgent = true;
        }
    }

    fn debt(&self) -> Debt {
        let state = self.places.state.lock();
        let others = state.claims.iter();
        let mut others = others.filter(|claim| claim.share != self.number).peekable();
        if state.free >= state.claims.len() || others.peek().is_none() {
            return Debt::Nothing;
        }
        // None without a place, and otherwise none that would soon be owed the same.
        let is_poor = |claim: &Claim| claim.held == 0 || claim.held + 1 < self.held;
        if others.any(|claim| claim.is_urgent && is_poor(claim)) {
            Debt::Any
        } else {
            Debt::Idle
        }
    }

    fn read(&mut self) -> bool {
        // All of them together never have more than there are.
        if self.places.leaders == 0 {
            return true;
        }
        let mut state = self.places.state.lock();
        let may_read = state.may_read(self.number);
        if may_read {
            state.free_reads -= 1;
            state.next_reader = state.next_reader.filter(|next| *next != self.number);
        }
        may_read
    }

    fn may_read(&self) -> bool {
        self.places.leaders == 0 || self.places.state.lock().may_read(self.number)
    }

    fn end_read(&mut self) {
        if self.places.leaders > 0 {
            self.places.state.lock().free_reads += 1;
        }
    }

    fn urge_read(&mut self) {
        self.places
            .state
            .lock()
            .next_reader
            .get_or_insert(self.number);
    }

    fn forgo_read(&mut self) {
        let mut state = self.places.state.lock();
        state.next_reader = state.next_reader.filter(|next| *next != self.number);
    }

    fn owes_read(&self) -> bool {
        let next = self.places.state.lock().next_reader;
        next.is_some_and(|next| next != self.number)
    }

    fn pin(&mut self) -> bool {
        let mut state = self.places.state.lock();
        let is_free = state.free_pins > 0;
        state.free_pins -= usize::from(is_free);
        is_free
    }

    fn unpin(&mut self) {
        self.places.state.lock().free_pins += 1;
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.forgo();
        self.forgo_read();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use pgpalisade_pool::{Access, BackendId, ClientId, Limits, Order, Pool, Residue};

    use super::*;
    use crate::pooling::Reset;

    fn shares<const N: usize>(max: usize) -> [Share; N] {
        keeping(max, 0)
    }

    fn keeping<const N: usize>(max: usize, leaders: usize) -> [Share; N] {
        let limits = BackendLimits {
            max: NonZeroUsize::new(max).unwrap(),
            leaders,
            wait: Duration::ZERO,
            idle: Duration::ZERO,
            lifetime: Duration::ZERO,
            pinned: 1,
            sessions: 0,
            reset: Reset::Always,
        };
        let places = Places::new(&limits, NonZeroUsize::MIN);
        [(); N].map(|()| places.share())
    }

    #[test]
    fn who_has_waited_longer_goes_first() {
        let [mut one, mut other, mut third] = shares(2);
        assert!(one.take() && one.take() && !other.take() && !third.take());
        one.give_back();
        assert!(!one.take() && !third.take());
        assert!(other.take() && !other.take());
        one.give_back();
        assert!(!one.take() && third.take());
        third.give_back();
        assert!(!other.take(), "another has waited longer");
        one.forgo();
        assert!(other.take());
    }

    #[test]
    fn some_are_kept_for_tokens_and_the_others_go_round() {
        let [mut one, mut other] = keeping(3, 1);
        assert!(one.read() && one.read() && !one.read() && !other.may_read());
        other.urge_read();
        one.urge_read();
        one.end_read();
        assert!(!one.read() && other.read());
        one.urge_read();
        other.end_read();
        assert!(!other.read() && one.read());
        one.end_read();
        one.end_read();
        one.urge_read();
        assert!(other.read() && !other.read() && one.read());
        other.end_read();
        other.urge_read();
        assert!(!one.may_read());
        drop(other);
        assert!(one.read());
    }

    #[test]
    fn one_that_has_ended_waits_no_more() {
        let [mut one, mut other] = shares(1);
        assert!(one.take() && !other.take());
        drop(other);
        assert_eq!(one.debt(), Debt::Nothing);
        one.give_back();
        assert!(one.take());
    }

    #[test]
    fn idle_places_are_owed_at_once_and_others_to_who_has_fewer() {
        let [mut rich, mut poor] = shares(4);
        assert!((0..4).all(|_| rich.take()));
        assert_eq!(rich.debt(), Debt::Nothing);
        assert!(!poor.take());
        assert_eq!((rich.debt(), poor.debt()), (Debt::Idle, Debt::Nothing));
        poor.urge();
        assert_eq!(rich.debt(), Debt::Any);
        rich.give_back();
        assert_eq!(rich.debt(), Debt::Nothing, "one is free");
        for debt in [Debt::Any, Debt::Idle] {
            assert!(poor.take() && !poor.take());
            poor.urge();
            assert_eq!(rich.debt(), debt);
            assert!(!rich.take());
            rich.urge();
            assert_eq!(poor.debt(), Debt::Idle);
            rich.give_back();
        }
    }

    #[test]
    fn the_last_place_goes_round() {
        let [mut one, mut other] = shares(1);
        assert!(one.take() && !other.take());
        other.urge();
        assert_eq!(one.debt(), Debt::Any);
    }

    /// Workers whose clients want to read again at once, a hundred each.
    struct Crowd {
        workers: Vec<Pool<u8, u8, Share>>,
        queue: BTreeMap<(Duration, u64), (usize, Event)>,
        count: u64,
        now: Duration,
        served: u64,
    }

    enum Event {
        Want(ClientId),
        Opened(BackendId),
        Done(ClientId, BackendId),
        Closed(BackendId),
        Tick,
    }

    const SECOND: Duration = Duration::from_secs(1);

    impl Crowd {
        fn later(&mut self, after: Duration, worker: usize, event: Event) {
            self.count += 1;
            self.queue
                .insert((self.now + after, self.count), (worker, event));
        }

        fn step(&mut self, worker: usize, event: Event) {
            let (now, pool) = (self.now, &mut self.workers[worker]);
            match event {
                Event::Want(client) => pool.wanted(now, client, &0, Access::ReadOnly),
                Event::Opened(id) => pool.opened(now, id, 0),
                Event::Closed(id) => pool.ended(now, id),
                Event::Tick => {
                    pool.tick(now);
                    self.later(SECOND / 10, worker, Event::Tick);
                }
                Event::Done(client, id) => {
                    pool.given_back(now, id, Access::ReadOnly, Residue::None);
                    self.served += u64::from(now > 5 * SECOND);
                    self.later(Duration::ZERO, worker, Event::Want(client));
                }
            }
            while let Some(order) = self.workers[worker].next_order() {
                let short = SECOND / 500;
                let (after, event) = match order {
                    Order::Open { backend, .. } => (short, Event::Opened(backend)),
                    Order::Close(id) => (short, Event::Closed(id)),
                    Order::Refuse(client, _) => (short, Event::Want(client)),
                    // All stand still for a while.
                    Order::Lend {
                        client, backend, ..
                    } if now < SECOND => (3 * SECOND, Event::Done(client, backend)),
                    Order::Lend {
                        client, backend, ..
                    } => (short, Event::Done(client, backend)),
                    Order::Reset(_) => continue,
                };
                self.later(after, worker, event);
            }
        }
    }

    /// Nobody waits for the turn of a worker that does not come.
    #[test]
    fn a_crowd_that_has_stood_still_goes_on() {
        for (workers, leaders, least) in [(1, 2, 8900), (4, 2, 8900), (8, 2, 8700), (4, 19, 200)] {
            let places = keeping::<8>(20, leaders);
            let limits = Limits {
                login: 20,
                undecided: 20,
                wait: 15 * SECOND,
                idle: 600 * SECOND,
                lifetime: 3600 * SECOND,
            };
            let pools = places.into_iter().take(workers);
            let mut crowd = Crowd {
                workers: pools
                    .map(|share| Pool::new(limits.clone(), share))
                    .collect(),
                queue: BTreeMap::new(),
                count: 0,
                now: Duration::ZERO,
                served: 0,
            };
            for worker in 0..workers {
                crowd.later(SECOND / 10, worker, Event::Tick);
                for client in 0..100 {
                    crowd.later(Duration::ZERO, worker, Event::Want(ClientId(client)));
                }
            }
            while crowd.now < 10 * SECOND {
                let ((now, _), (worker, event)) = crowd.queue.pop_first().unwrap();
                crowd.now = now;
                crowd.step(worker, event);
            }
            let each = crowd.served / 5;
            assert!(
                each >= least,
                "{workers} workers, {leaders} kept: {each} a second"
            );
        }
    }
}
