//! A login that PostgreSQL is to decide on, by a new connection of the pool.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use pgpalisade_pool::{Access, ClientId};
use pgpalisade_session::Activity;

use super::OpenError;
use super::lending::{borrow, leave};
use crate::pooling::backends::Handed;
use crate::pooling::{Admitted, SharedLogin};
use crate::worker::Worker;

/// A client's login while it may wait for a server connection.
struct LoginWait<'a> {
    worker: &'a Rc<Worker>,
    client: ClientId,
}

impl Drop for LoginWait<'_> {
    fn drop(&mut self) {
        leave(self.worker, self.client);
    }
}

/// Has PostgreSQL decide on a login, by a new connection of the pool.
pub(crate) async fn try_login(
    worker: &Rc<Worker>,
    client: ClientId,
    login: SharedLogin,
) -> Result<Admitted, OpenError> {
    let Some(backends) = &worker.backends else {
        return Err(OpenError::Closed);
    };
    let admissions = &worker.shared.pooling.admissions;
    let _wait = LoginWait { worker, client };
    let Handed {
        id,
        backend,
        residue,
    } = tokio::select! {
        // First, because a connection that has been handed over must not be dropped unseen.
        biased;
        answer = borrow(worker, client, &login, Access::New, Activity::Idle) => answer?,
        admitted = admissions.admitted(&login) => return Ok(admitted),
    };
    let greeting = Arc::clone(backend.half.greeting());
    // Or during the login itself: then nobody would ask for this connection again.
    let shared = admissions.find(&login, Instant::now());
    if let Some((shared, _)) = shared.filter(|(shared, _)| *shared != login) {
        backends.ended(worker, id);
        tokio::task::spawn_local(Rc::clone(worker).says_goodbye(Some(backend)));
        return Ok((shared, greeting));
    }
    backends.idle.borrow_mut().insert(id, backend);
    backends.decide(worker, |pool, now| {
        pool.given_back(now, id, Access::ReadOnly, residue);
    });
    Ok((login, greeting))
}
