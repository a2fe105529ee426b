//! Cancel requests: with a key of ours to the connection that serves its client, with any other to PostgreSQL.

use std::io;
use std::time::Duration;

use bytes::BytesMut;

use super::OpenError;
use super::connect::connect_now;
use crate::pooling::cancel_keys::Addressee;
use crate::worker::Worker;

/// Limit of a cancel request, which has no answer.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(10);

/// Carries out a client's CancelRequest.
pub(crate) async fn cancel(worker: &Worker, packet: &[u8]) {
    match worker.shared.pooling.cancel_keys.find(packet) {
        Addressee::Server => cancel_request(worker, packet).await,
        Addressee::Nobody => {}
        Addressee::Backend(packet) => cancel_request(worker, &packet).await,
    }
}

/// Sends a CancelRequest, and waits until the server has carried it out and closes.
pub(super) async fn cancel_request(worker: &Worker, packet: &[u8]) {
    let sending = async {
        let mut server = connect_now(worker).await?;
        server.write_all(packet).await?;
        let mut rest = BytesMut::new();
        match server.read_more(&mut rest).await {
            Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => {
                Err(OpenError::from(error))
            }
            _ => Ok(()),
        }
    };
    match worker.shared.timers.timeout(CANCEL_TIMEOUT, sending).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(%error, "cannot forward a cancel request"),
        Err(_) => tracing::warn!("a cancel request was not forwarded in time"),
    }
}
