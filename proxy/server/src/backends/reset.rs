//! Resets a server connection that serves no client.

use std::future::poll_fn;

use bytes::BytesMut;
use pgpalisade_fence::SessionFence;
use pgpalisade_session::Session;
use pgpalisade_session::action::Disposition;
use pgpalisade_wire::backend;
use pgpalisade_wire::header::{self, HEADER_LEN};

use crate::pooling::backends::Backend;

/// Removes what the last client has left; `None` if the connection is no longer usable. The caller bounds the wait.
pub(super) async fn reset(fence: SessionFence, used: Backend) -> Option<Backend> {
    let Backend { half, mut side, .. } = used;
    let mut session = Session::without_client(fence, half);
    session.begin_reset(used.greeting.initial.texts, rand::random());
    side.upstream.put_own(&session.output().to_server.split());
    let mut bytes = BytesMut::new();
    while !session.is_answered() {
        poll_fn(|cx| {
            side.upstream.belongs_to(cx);
            side.upstream.poll_flush(cx)
        })
        .await
        .ok()?;
        side.upstream.read_more(&mut bytes).await.ok()?;
        while let Some(header) = header::parse(&bytes, backend::body_max).ok()? {
            if bytes.len() < header.frame_len() {
                break;
            }
            let message = bytes.split_to(header.frame_len());
            let body = message.get(HEADER_LEN..).unwrap_or_default();
            match session.on_backend(header.tag, body) {
                Disposition::Relay | Disposition::Drop => session.output().to_client.clear(),
                Disposition::Terminated | Disposition::End(_) => return None,
            }
        }
    }
    let half = session.end_reset()?;
    bytes.is_empty().then_some(Backend { half, side, ..used })
}
