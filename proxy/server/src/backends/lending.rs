//! The worker's pool of server connections: carries out the orders of [`pgpalisade_pool`].

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use pgpalisade_pool::{Access, BackendId, ClientId, Order, Refusal, Residue};
use pgpalisade_session::{Activity, ClientHalf, ServerHalf};
use tokio::sync::oneshot;

use super::OpenError;
use super::cancel::cancel_request;
use super::reset::{RESET_WITHIN, Unfit, has_settings};
use crate::pooling::SharedLogin;
use crate::pooling::backends::{Answer, Backend, Backends, Handed, Machine, Tokens};
use crate::pooling::cancel_keys::{CancelKey, Cancellable};
use crate::pooling::census::Census;
use crate::upstream::ServerSide;
use crate::worker::Worker;

impl Backends {
    /// Lets the pool decide, and carries out its orders.
    pub(super) fn decide(&self, worker: &Rc<Worker>, event: impl FnOnce(&mut Machine, Duration)) {
        event(&mut self.machine.borrow_mut(), self.now());
        loop {
            let order = self.machine.borrow_mut().next_order();
            match order {
                None => return,
                Some(order) => self.carry_out(worker, order),
            }
        }
    }

    /// Lets the pool decide on what a client wants, which does not wait yet.
    fn lend_at_once(
        &self,
        worker: &Rc<Worker>,
        client: ClientId,
        wanted: impl FnOnce(&mut Machine, Duration),
    ) -> Option<Answer> {
        wanted(&mut self.machine.borrow_mut(), self.now());
        let mut lent = None;
        loop {
            let order = self.machine.borrow_mut().next_order();
            match order {
                None => return lent,
                Some(Order::Lend {
                    client: to,
                    backend,
                    residue,
                }) if to == client => {
                    let handed = self.hand_out(backend, residue);
                    lent = Some(handed.ok_or(OpenError::NoPlace));
                }
                Some(order) => self.carry_out(worker, order),
            }
        }
    }

    fn hand_out(&self, id: BackendId, residue: Residue) -> Option<Handed> {
        let backend = self.idle.borrow_mut().remove(&id)?;
        Some(Handed {
            id,
            backend,
            residue,
        })
    }

    /// Notes that a connection is gone.
    pub(super) fn ended(&self, worker: &Rc<Worker>, id: BackendId) {
        self.opened.borrow_mut().remove(&id);
        self.decide(worker, |pool, now| pool.ended(now, id));
    }

    fn carry_out(&self, worker: &Rc<Worker>, order: Order<SharedLogin>) {
        match order {
            Order::Lend {
                client,
                backend,
                residue,
            } => {
                let waiter = self.waiting.borrow_mut().remove(&client);
                let handed = self.hand_out(backend, residue);
                if let (Some(waiter), Some(handed)) = (waiter, handed)
                    && let Err(Ok(back)) = waiter.send(Ok(handed))
                {
                    // The client has left meanwhile. What it wanted, its backend has not become.
                    drop(back);
                    self.opened.borrow_mut().remove(&backend);
                    self.machine.borrow_mut().ended(self.now(), backend);
                }
            }
            Order::Open { backend, login } => {
                self.opening.borrow_mut().insert(backend, login.clone());
                let worker = Rc::clone(worker);
                tokio::task::spawn_local(async move { worker.opens(backend, &login).await });
            }
            Order::Reset(id) => {
                let used = self.idle.borrow_mut().remove(&id);
                let worker = Rc::clone(worker);
                tokio::task::spawn_local(async move { worker.resets(id, used).await });
            }
            Order::Close(id) => {
                self.opening.borrow_mut().remove(&id);
                let closed = self.idle.borrow_mut().remove(&id);
                let worker = Rc::clone(worker);
                tokio::task::spawn_local(async move { worker.closes(id, closed).await });
            }
            Order::Refuse(client, refusal) => {
                let waiter = self.waiting.borrow_mut().remove(&client);
                let why = match refusal {
                    Refusal::Timeout => OpenError::NoPlace,
                    Refusal::OpenFailed => {
                        let failed = self.failed.borrow().clone();
                        failed.unwrap_or(OpenError::Closed)
                    }
                };
                if let Some(waiter) = waiter {
                    let _ = waiter.send(Err(why));
                }
            }
        }
    }
}

/// Why a wait has ended. Without a primary, no connection is opened meanwhile.
fn why_no_place(worker: &Worker, backends: &Backends, login: &SharedLogin) -> OpenError {
    let takeover = &worker.shared.takeover;
    if takeover.primary().is_none() {
        return OpenError::NoPrimary(takeover.why_no_primary());
    }
    if let Some(error) = backends.failures.borrow().last(login) {
        return error;
    }
    let opening = backends.opening.borrow();
    if opening.values().any(|opening| opening == login) {
        return OpenError::NotOpened;
    }
    OpenError::NoPlace
}

/// A client's place in the pool, up to its end.
pub(crate) struct Seat {
    worker: Rc<Worker>,
    client: ClientId,
    login: SharedLogin,
    cancel_key: CancelKey,
    /// The connection that it had last.
    last: Option<BackendId>,
}

/// A server connection while a client has it. If it is not given back, it is closed.
pub(crate) struct Lent {
    worker: Rc<Worker>,
    /// `None` once it was given back.
    id: Option<BackendId>,
    cancellable: Arc<Cancellable>,
    census: Option<Rc<Census>>,
}

/// A server connection for a client, and what another may have left in it.
pub(crate) type Borrowed = (Lent, Box<Backend>, Residue);

impl Seat {
    pub(crate) fn new(
        worker: &Rc<Worker>,
        client: ClientId,
        login: SharedLogin,
        cancel_key: CancelKey,
    ) -> Self {
        Self {
            worker: Rc::clone(worker),
            client,
            login,
            cancel_key,
            last: None,
        }
    }

    /// Waits for a server connection. One with residue is to be reset first.
    pub(crate) async fn lend(
        &mut self,
        tokens: Option<Tokens>,
        client: &ClientHalf,
    ) -> Result<Borrowed, OpenError> {
        let worker = Rc::clone(&self.worker);
        let access = tokens.map_or(Access::ReadOnly, Access::Tokens);
        let settings = client.settings();
        let mut hung = Duration::ZERO;
        loop {
            let access = access.clone();
            let handed =
                borrow(&worker, self.client, &self.login, access, client.activity()).await?;
            let Handed {
                id,
                mut backend,
                mut residue,
            } = handed;
            let lent = Lent {
                worker: Rc::clone(&worker),
                id: Some(id),
                cancellable: Arc::clone(&backend.cancellable),
                census: backend.census.clone(),
            };
            // A takeover or an operator may have ended it since the last look.
            if !poll_fn(|cx| Poll::Ready(backend.side.is_quiet(cx))).await {
                continue;
            }
            if self.last.replace(id) != Some(id) {
                backend.half.forget_token_text();
            }
            // What the client has discarded since may still be there.
            if residue == Residue::Own && backend.left_after != client.discards() {
                residue = Residue::Perhaps;
            }
            // Boxed, as is all that is rare here: each idle client has the memory of its whole future.
            let is_census_due = || {
                backend
                    .census
                    .as_ref()
                    .is_some_and(|census| census.is_due())
            };
            let must_prepare = match residue {
                Residue::Perhaps => settings.is_some() || is_census_due(),
                Residue::None | Residue::Own => !has_settings(&backend, settings),
            };
            if must_prepare {
                let begun = Instant::now();
                match Box::pin(worker.prepare(backend, residue, settings)).await {
                    Ok(prepared) => (backend, residue) = (prepared, Residue::None),
                    Err(Unfit::Refuses) => return Err(OpenError::NotSet),
                    Err(Unfit::Ended) => {
                        // All of them may hang, and each takes its time.
                        hung += begun.elapsed();
                        let shared = worker.shared.pooling.shared.as_ref();
                        if shared.is_some_and(|(limits, _)| limits.wait.max(RESET_WITHIN) <= hung) {
                            return Err(OpenError::NoPlace);
                        }
                        continue;
                    }
                }
            }
            self.cancel_key.lend(&backend.cancellable);
            return Ok((lent, backend, residue));
        }
    }

    /// Notes that the server connection has ended.
    pub(crate) fn lose(&self) {
        self.cancel_key.release();
    }

    /// Gives a server connection back. One that a cancel request may still reach is closed.
    pub(crate) fn give_back(
        &self,
        client: &ClientHalf,
        mut lent: Lent,
        half: Box<ServerHalf>,
        side: Box<ServerSide>,
    ) {
        self.cancel_key.release();
        if lent.cancellable.is_cancelled() || half.exceeds_last_tokens() || side.is_deposed() {
            return;
        }
        let (Some(backends), Some(id)) = (&self.worker.backends, lent.id.take()) else {
            return;
        };
        let access = half.accepted().last().map_or(Access::ReadOnly, |held| {
            Access::Tokens(held.to_string().into())
        });
        let census = lent.census.clone();
        let is_tidy = half.is_tidy() && census.as_ref().is_some_and(|census| census.is_quiet());
        let residue = if is_tidy {
            Residue::None
        } else {
            Residue::Perhaps
        };
        let backend = Box::new(Backend {
            half,
            side,
            cancellable: Arc::clone(&lent.cancellable),
            census,
            left_after: client.discards(),
        });
        backends.idle.borrow_mut().insert(id, backend);
        backends.decide(&self.worker, |pool, now| {
            pool.given_back(now, id, access, residue);
        });
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        leave(&self.worker, self.client);
    }
}

/// Takes a client out of the pool, and out of its queue.
pub(super) fn leave(worker: &Rc<Worker>, client: ClientId) {
    if let Some(backends) = &worker.backends {
        backends.waiting.borrow_mut().remove(&client);
        backends.decide(worker, |pool, _| pool.left(client));
    }
}

impl Lent {
    /// Ends what its client has left running, so that the server closes the connection too.
    pub(crate) async fn cancel(self) {
        cancel_request(&self.worker, self.cancellable.packet()).await;
    }

    /// Whether the client may keep it beyond its transaction.
    pub(crate) fn may_pin(&self) -> bool {
        let backends = self.worker.backends.as_ref().zip(self.id);
        backends.is_some_and(|(backends, id)| backends.machine.borrow_mut().pin(id))
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let (Some(backends), Some(id)) = (&self.worker.backends, self.id) {
            backends.ended(&self.worker, id);
        }
    }
}

/// Waits for a server connection. A client that has begun nothing waits outside of the queue while the gate is shut.
pub(super) async fn borrow(
    worker: &Rc<Worker>,
    client: ClientId,
    login: &SharedLogin,
    access: Access<Tokens>,
    activity: Activity,
) -> Answer {
    let Some(backends) = &worker.backends else {
        return Err(OpenError::Closed);
    };
    let is_held_up = activity == Activity::Idle;
    let answer = loop {
        if is_held_up {
            worker.gate.is_open().await;
        }
        let access = access.clone();
        let wanted = |pool: &mut Machine, now| pool.wanted(now, client, login, access);
        if let Some(answer) = backends.lend_at_once(worker, client, wanted) {
            break answer;
        }
        let (sender, answer) = oneshot::channel();
        backends.waiting.borrow_mut().insert(client, sender);
        let since = Instant::now();
        let waiting = async {
            tokio::select! {
                // First, because a connection that has been handed over must not be dropped unseen.
                biased;
                answer = answer => Some(answer.unwrap_or(Err(OpenError::NoPlace))),
                () = worker.gate.shuts(), if is_held_up => None,
            }
        };
        let answer = Box::pin(waiting).await;
        worker.tally.waited(since.elapsed());
        match answer {
            Some(Err(OpenError::NoPlace)) => break Err(why_no_place(worker, backends, login)),
            Some(answer) => break answer,
            None => leave(worker, client),
        }
    };
    if answer.is_ok() {
        worker.tally.lent();
    }
    answer
}
