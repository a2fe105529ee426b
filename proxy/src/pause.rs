//! PAUSE and RESUME: while an operator wants it, no session begins anything.
//!
//! Each worker says when it obeys. From then on it reads no session that is idle, and what a session does is shown at
//! the end of each of its turns: one that is seen idle behind that stays so.

use std::cell::Cell;
use std::sync::Arc;

use tokio::sync::futures::OwnedNotified;
use tokio::sync::{Notify, Semaphore, watch};

/// Whether sessions that are idle are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Traffic {
    /// As ever.
    Flows,
    /// Not before it flows again.
    Held,
}

/// What workers are told.
#[derive(Debug, Clone)]
pub(crate) struct Order {
    traffic: Traffic,
    /// Has a permit for each worker that obeys.
    obeyed: Arc<Semaphore>,
}

impl Order {
    fn new(traffic: Traffic) -> Self {
        let obeyed = Arc::new(Semaphore::new(0));
        Self { traffic, obeyed }
    }
}

/// Where the order is given. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Pause(Arc<watch::Sender<Order>>);

impl Default for Pause {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(Order::new(Traffic::Flows))))
    }
}

impl Pause {
    /// What was ordered last.
    pub(crate) fn traffic(&self) -> Traffic {
        self.0.borrow().traffic
    }

    /// Has all workers obey, and waits until they do, or another order is given.
    pub(crate) async fn order(&self, traffic: Traffic) {
        let order = Order::new(traffic);
        let obeyed = Arc::clone(&order.obeyed);
        let workers = u32::try_from(self.0.receiver_count()).unwrap_or(u32::MAX);
        self.0.send_replace(order).obeyed.close();
        let _all_or_closed = obeyed.acquire_many(workers).await;
    }

    /// For one worker.
    pub(crate) fn orders(&self) -> watch::Receiver<Order> {
        self.0.subscribe()
    }
}

/// What the sessions of one worker come to before they are read.
#[derive(Debug)]
pub(crate) struct Gate {
    traffic: Cell<Traffic>,
    opening: Arc<Notify>,
}

impl Gate {
    /// An open one.
    pub(crate) fn new() -> Self {
        Self {
            traffic: Cell::new(Traffic::Flows),
            opening: Arc::default(),
        }
    }

    /// Whether idle sessions are not read.
    #[inline]
    pub(crate) const fn is_shut(&self) -> bool {
        matches!(self.traffic.get(), Traffic::Held)
    }

    /// Obeys orders, to the end of the worker.
    pub(crate) async fn obey(&self, mut orders: watch::Receiver<Order>) {
        loop {
            let Order { traffic, obeyed } = orders.borrow_and_update().clone();
            self.traffic.set(traffic);
            if traffic == Traffic::Flows {
                self.opening.notify_waiters();
            }
            obeyed.add_permits(1);
            if orders.changed().await.is_err() {
                return;
            }
        }
    }

    /// Wakes who polls it when the gate opens.
    pub(crate) fn opening(&self) -> OwnedNotified {
        Arc::clone(&self.opening).notified_owned()
    }

    /// Waits until it is open.
    pub(crate) async fn is_open(&self) {
        while self.is_shut() {
            self.opening().await;
        }
    }
}
