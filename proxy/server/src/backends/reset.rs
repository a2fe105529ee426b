//! Resets a server connection that serves no client, or gives it the settings of the next.

use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::Duration;

use bytes::BytesMut;
use pgpalisade_pool::{BackendId, Residue};
use pgpalisade_session::action::Disposition;
use pgpalisade_session::settings::Texts;
use pgpalisade_session::{ServerHalf, Session};
use pgpalisade_wire::backend::{self, tag};
use pgpalisade_wire::header::HEADER_LEN;

use super::next_message;
use crate::metrics::Outcome;
use crate::pooling::backends::Backend;
use crate::pooling::census::{self, Found};
use crate::worker::Worker;

/// Time for PostgreSQL to reset a connection, or to set what a client has set.
pub(crate) const RESET_WITHIN: Duration = Duration::from_secs(5);

/// Why a connection serves no client any more.
pub(super) enum Unfit {
    /// It has ended, or hangs.
    Ended,
    /// PostgreSQL refuses a statement of the proxy.
    Refuses,
}

/// Whether a connection has exactly these settings of a client.
pub(super) fn has_settings(backend: &Backend, wanted: Option<&Arc<Texts>>) -> bool {
    match (backend.half.applied(), wanted) {
        (None, None) => true,
        (Some(applied), Some(wanted)) => Arc::ptr_eq(applied, wanted),
        _ => false,
    }
}

impl Worker {
    /// Resets a connection whose client has left.
    pub(super) async fn resets(self: Rc<Self>, id: BackendId, used: Option<Box<Backend>>) {
        let Some(backends) = &self.backends else {
            return;
        };
        let reset = async { self.reset_in_time(used?).await };
        match reset.await {
            Some(backend) => {
                backends.idle.borrow_mut().insert(id, backend);
                backends.decide(&self, |pool, now| pool.reset_done(now, id));
            }
            None => backends.ended(&self, id),
        }
    }

    /// Removes what the last client has left; `None` if the connection is no longer usable.
    pub(super) async fn reset_in_time(&self, used: Box<Backend>) -> Option<Box<Backend>> {
        let timers = self.shared.timers.clone();
        let resetting = timers.timeout(RESET_WITHIN, reset(self, *used));
        let reset = resetting.await.ok().flatten();
        self.tally.reset(match reset {
            Some(_) => Outcome::Done,
            None => Outcome::Failed,
        });
        reset.map(Box::new)
    }

    /// Makes a connection as after a login of this client: without what another has left, and with its settings.
    pub(super) async fn prepare(
        &self,
        mut backend: Box<Backend>,
        residue: Residue,
        settings: Option<&Arc<Texts>>,
    ) -> Result<Box<Backend>, Unfit> {
        if residue == Residue::Perhaps || backend.half.applied().is_some() {
            backend = self.reset_in_time(backend).await.ok_or(Unfit::Ended)?;
        }
        let Some(texts) = settings else {
            return Ok(backend);
        };
        let begin = |session: &mut Session| session.begin_settings(texts);
        let setting = exchange(self, *backend, begin, Session::end_settings);
        let set = self.shared.timers.clone().timeout(RESET_WITHIN, setting);
        let (backend, _) = set.await.unwrap_or(Err(Unfit::Ended))?;
        Ok(Box::new(backend))
    }
}

/// Takes a census as well, if one is due.
async fn reset(worker: &Worker, used: Backend) -> Option<Backend> {
    let census = used.census.clone().filter(|census| census.begin());
    let last = census.as_ref().map(|_| census::QUERY);
    let begin = |session: &mut Session| session.begin_reset(rand::random(), last);
    let reset = exchange(worker, used, begin, Session::end_reset).await;
    let (reset, found) = reset.ok()?;
    if let Some(census) = census {
        census.note(found);
    }
    Some(reset)
}

/// Sends what `begin` writes, and reads the replies. An error among them, or silence, ends the connection.
async fn exchange(
    worker: &Worker,
    used: Backend,
    begin: impl FnOnce(&mut Session),
    end: impl FnOnce(Session) -> Option<Box<ServerHalf>>,
) -> Result<(Backend, Found), Unfit> {
    let Backend { half, mut side, .. } = used;
    let mut found = Found::Nothing;
    let mut session = Session::without_client(worker.fence_of_nobody(), half);
    begin(&mut session);
    side.upstream.put_own(&session.output().to_server.split());
    let mut bytes = BytesMut::new();
    while !session.is_answered() {
        let read = poll_fn(|cx| {
            side.upstream.belongs_to(cx);
            ready!(side.upstream.poll_flush(cx))?;
            let mut scratch = worker.scratch.borrow_mut();
            let read = ready!(side.upstream.poll_read(cx, scratch.room()))?;
            bytes.extend_from_slice(scratch.front(read));
            Poll::Ready(io::Result::Ok(read))
        });
        if !read.await.is_ok_and(|read| read > 0) {
            return Err(Unfit::Ended);
        }
        while let Some(message) = next_message(&mut bytes).map_err(|_| Unfit::Ended)? {
            let kind = message.first().copied().unwrap_or_default();
            let body = message.get(HEADER_LEN..).unwrap_or_default();
            if kind == tag::DATA_ROW {
                found = Found::of(body);
            }
            if kind == tag::ERROR && backend::is_fatal(body) {
                return Err(if is_ended(body) {
                    Unfit::Ended
                } else {
                    Unfit::Refuses
                });
            }
            match session.on_backend(kind, body) {
                Disposition::Relay | Disposition::Drop => session.output().to_client.clear(),
                Disposition::Terminated | Disposition::End(_) => return Err(Unfit::Refuses),
            }
        }
    }
    let half = end(session).ok_or(Unfit::Refuses)?;
    let backend = Backend { half, side, ..used };
    bytes
        .is_empty()
        .then_some((backend, found))
        .ok_or(Unfit::Ended)
}

/// Whether an error ends the connection for a reason of the server's, rather than for a statement.
fn is_ended(error: &[u8]) -> bool {
    let sqlstate = backend::error_field(error, b'C');
    sqlstate.is_some_and(|sqlstate| sqlstate.starts_with(b"57P"))
}
