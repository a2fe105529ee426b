//! PAUSE and RESUME: during a pause no session begins anything.
//!
//! Each worker reports when it obeys; then it reads no idle session. A session publishes its state at the end of each
//! turn, so one seen as idle afterwards stays idle.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, Semaphore, watch};

/// Interval of the checks whether a waiting client is still there.
pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Traffic {
    Flows,
    Held,
}

#[derive(Debug, Clone)]
pub struct Order {
    pub traffic: Traffic,
    /// One permit for each obeying worker.
    obeyed: Arc<Semaphore>,
}

impl Order {
    fn new(traffic: Traffic) -> Self {
        let obeyed = Arc::new(Semaphore::new(0));
        Self { traffic, obeyed }
    }
}

/// The current order. Clones share it.
#[derive(Debug, Clone)]
pub struct Pause(Arc<watch::Sender<Order>>);

impl Default for Pause {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(Order::new(Traffic::Flows))))
    }
}

impl Pause {
    pub fn traffic(&self) -> Traffic {
        self.0.borrow().traffic
    }

    /// Gives an order to all workers. Repeating the last one changes nothing.
    pub fn order(&self, traffic: Traffic) {
        self.0.send_if_modified(|order| {
            let is_new = order.traffic != traffic;
            if is_new {
                // The previous order is obsolete.
                order.obeyed.close();
                *order = Order::new(traffic);
            }
            is_new
        });
    }

    /// Waits until all workers obey the last order, and returns it.
    pub async fn obeyed(&self) -> Order {
        loop {
            let order = self.0.borrow().clone();
            let workers = u32::try_from(self.0.receiver_count()).unwrap_or(u32::MAX);
            if order.obeyed.acquire_many(workers).await.is_ok() {
                return order;
            }
        }
    }

    pub fn is_last(&self, order: &Order) -> bool {
        Arc::ptr_eq(&self.0.borrow().obeyed, &order.obeyed)
    }

    pub(crate) fn orders(&self) -> watch::Receiver<Order> {
        self.0.subscribe()
    }
}

#[derive(Debug)]
pub(crate) struct Gate {
    traffic: Cell<Traffic>,
    turns: Notify,
}

impl Gate {
    pub(crate) fn new() -> Self {
        Self {
            traffic: Cell::new(Traffic::Flows),
            turns: Notify::new(),
        }
    }

    #[inline]
    pub(crate) const fn is_shut(&self) -> bool {
        matches!(self.traffic.get(), Traffic::Held)
    }

    pub(crate) async fn obey(&self, mut orders: watch::Receiver<Order>) {
        loop {
            let Order { traffic, obeyed } = orders.borrow_and_update().clone();
            self.traffic.set(traffic);
            self.turns.notify_waiters();
            obeyed.add_permits(1);
            if orders.changed().await.is_err() {
                return;
            }
        }
    }

    /// Waits until it opens or shuts.
    pub(crate) async fn turns(&self) {
        self.turns.notified().await;
    }

    pub(crate) async fn is_open(&self) {
        while self.is_shut() {
            self.turns().await;
        }
    }

    pub(crate) async fn shuts(&self) {
        while !self.is_shut() {
            self.turns().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn is_obeyed(pause: &Pause) -> bool {
        let soon = Duration::from_millis(50);
        tokio::time::timeout(soon, pause.obeyed()).await.is_ok()
    }

    #[tokio::test]
    async fn an_order_is_obeyed_when_all_workers_do() {
        let pause = Pause::default();
        let gates = [Gate::new(), Gate::new()];
        let [one, other] = [(); 2].map(|()| pause.orders());
        pause.order(Traffic::Held);
        assert!(!is_obeyed(&pause).await);
        let obey = async { tokio::join!(gates[0].obey(one), gates[1].obey(other)) };
        let order = async {
            assert!(is_obeyed(&pause).await);
            assert!(gates.iter().all(Gate::is_shut));
            pause.order(Traffic::Flows);
            assert!(is_obeyed(&pause).await);
            assert!(!gates.iter().any(Gate::is_shut));
        };
        tokio::select! {
            _ = obey => unreachable!("workers live as long as the orders"),
            () = order => {}
        }
    }

    /// Another operator's order does not report quiet.
    #[tokio::test]
    async fn who_is_overtaken_waits_for_the_last_order() {
        let pause = Pause::default();
        let (gate, busy) = (Gate::new(), pause.orders());
        let waits = pause.obeyed();
        pause.order(Traffic::Held);
        let held = pause.0.borrow().clone();
        for traffic in [Traffic::Held, Traffic::Flows, Traffic::Held] {
            pause.order(traffic);
            assert!(!is_obeyed(&pause).await);
        }
        assert!(!pause.is_last(&held));
        tokio::select! {
            () = gate.obey(busy) => unreachable!("a worker lives as long as the orders"),
            last = waits => assert!(pause.is_last(&last)),
        }
    }
}
