//! Workers that share places, and a crowd of clients in them.

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
