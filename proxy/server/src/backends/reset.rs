//! Resets a server connection that serves no client.

use std::future::poll_fn;
use std::io;
use std::task::{Poll, ready};

use bytes::BytesMut;
use pgpalisade_session::Session;
use pgpalisade_session::action::Disposition;
use pgpalisade_wire::backend::{self, tag};
use pgpalisade_wire::header::{self, HEADER_LEN};

use crate::pooling::backends::Backend;
use crate::pooling::census::{self, Found};
use crate::worker::Worker;

/// Removes what the last client has left; `None` if the connection is no longer usable. The caller bounds the wait.
///
/// Takes a census as well, if one is due.
pub(super) async fn reset(worker: &Worker, used: Backend) -> Option<Backend> {
    let Backend { half, mut side, .. } = used;
    let census = used.census.as_ref().filter(|census| census.begin());
    let mut found = Found::Nothing;
    let mut session = Session::without_client(worker.fence_of_nobody(), half);
    let last = census.map(|_| census::QUERY);
    session.begin_reset(used.greeting.initial.texts, rand::random(), last);
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
        read.await.ok().filter(|read| *read > 0)?;
        while let Some(header) = header::parse(&bytes, backend::body_max).ok()? {
            if bytes.len() < header.frame_len() {
                break;
            }
            let message = bytes.split_to(header.frame_len());
            let body = message.get(HEADER_LEN..).unwrap_or_default();
            match header.tag {
                tag::DATA_ROW => found = Found::of(body),
                tag::ERROR => found = Found::Unknown,
                _ => {}
            }
            match session.on_backend(header.tag, body) {
                Disposition::Relay | Disposition::Drop => session.output().to_client.clear(),
                Disposition::Terminated | Disposition::End(_) => return None,
            }
        }
    }
    let half = session.end_reset()?;
    if let Some(census) = census {
        census.note(found);
    }
    bytes.is_empty().then_some(Backend { half, side, ..used })
}
