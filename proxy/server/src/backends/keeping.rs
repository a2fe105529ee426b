//! Keeps a worker's server connections while no client has them: opens, looks after and closes them.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, SystemTime};

use pgpalisade_pool::BackendId;
use pgpalisade_session::Identity;
use pgpalisade_wire::startup;
use tokio::sync::mpsc;

use super::open::open;
use crate::metrics::Outcome;
use crate::pooling::SharedLogin;
use crate::pooling::backends::Backend;
use crate::pooling::view::{Opened, Question};
use crate::worker::Worker;

/// Interval in which idle connections are looked at, and waits end.
const TICK: Duration = Duration::from_millis(100);

/// Time for PostgreSQL to close a connection after a goodbye.
const GOODBYE_WITHIN: Duration = Duration::from_secs(5);

impl Worker {
    /// Shows the pool to operators, up to the end of the worker.
    pub(crate) async fn answers_operators(self: Rc<Self>, questions: mpsc::Receiver<Question>) {
        if let Some(backends) = &self.backends {
            backends.answer(questions).await;
        }
    }

    /// Keeps the pool, up to the end of the worker.
    pub(crate) async fn keeps_backends(self: Rc<Self>) {
        let Some(backends) = &self.backends else {
            return;
        };
        loop {
            self.shared.timers.sleep(TICK).await;
            let ended = poll_fn(|cx| {
                let mut idle = backends.idle.borrow_mut();
                let mut ended = Vec::new();
                idle.retain(|id, backend| {
                    let is_over = backend.side.is_deposed() || !backend.side.is_quiet(cx);
                    ended.extend(is_over.then_some(*id));
                    !is_over
                });
                Poll::Ready(ended)
            });
            let ended = ended.await;
            for id in &ended {
                backends.opened.borrow_mut().remove(id);
            }
            backends.decide(&self, |pool, now| {
                pool.all_ended(now, ended);
                pool.tick(now);
                if self.stopping.get() {
                    pool.close_all_idle(now);
                }
                backends.are_wanted_back.set(pool.wants_back(now));
            });
            backends.failures.borrow_mut().tidy();
            self.tally.sizes(&backends.sizes());
        }
    }

    pub(super) async fn opens(self: Rc<Self>, id: BackendId, login: &SharedLogin) {
        let Some(backends) = &self.backends else {
            return;
        };
        let opened = open(&self, login).await;
        if backends.opening.borrow_mut().remove(&id).is_none() {
            return;
        }
        match opened {
            Ok(mut backend) => {
                self.tally.opening(Outcome::Done);
                backends.failures.borrow_mut().forget(login);
                let shown = Opened {
                    pid: backend.half.identity().pid(),
                    at: SystemTime::now(),
                };
                backends.opened.borrow_mut().insert(id, shown);
                let censuses = backends.censuses.as_ref();
                backend.census = censuses.map(|all| all.of(login));
                backends.idle.borrow_mut().insert(id, backend);
                backends.decide(&self, |pool, now| pool.opened(now, id, rand::random()));
            }
            Err(error) => {
                self.tally.opening(Outcome::Failed);
                let is_new = backends.failures.borrow_mut().note(login, &error);
                if is_new && error.is_to_log() {
                    let user = String::from_utf8_lossy(startup::user(&login.packet));
                    let error = error.in_words();
                    tracing::warn!(%user, error, "cannot open a server connection");
                }
                *backends.failed.borrow_mut() = Some(error);
                // Those that waited for it are told now.
                backends.ended(&self, id);
                *backends.failed.borrow_mut() = None;
            }
        }
    }

    pub(super) async fn closes(self: Rc<Self>, id: BackendId, closed: Option<Box<Backend>>) {
        Rc::clone(&self).says_goodbye(closed).await;
        if let Some(backends) = &self.backends {
            backends.ended(&self, id);
        }
    }

    /// Says goodbye, and removes the registration if the server has closed.
    pub(super) async fn says_goodbye(self: Rc<Self>, closed: Option<Box<Backend>>) {
        let Some(closed) = closed else {
            return;
        };
        let Backend { half, side, .. } = *closed;
        let mut upstream = side.upstream;
        upstream.say_goodbye();
        let timers = self.shared.timers.clone();
        let closed = timers.timeout(GOODBYE_WITHIN, upstream.closed()).await;
        if let (Ok(Ok(())), Identity::Known(session)) = (closed, half.identity()) {
            self.shared.takeover.release(session.backend);
        }
    }
}
