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
    let sending = async {
        match worker.shared.pooling.cancel_keys.find(packet) {
            Addressee::Server => send(worker, packet).await,
            Addressee::Nobody => Ok(()),
            Addressee::Backend(packet) => send(worker, &packet).await,
        }
    };
    match worker.shared.timers.timeout(CANCEL_TIMEOUT, sending).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(%error, "cannot forward a cancel request"),
        Err(_) => tracing::warn!("a cancel request was not forwarded in time"),
    }
}

/// Sends a packet, and waits until the server has carried it out and closes.
async fn send(worker: &Worker, packet: &[u8]) -> Result<(), OpenError> {
    let mut server = connect_now(worker).await?;
    server.write_all(packet).await?;
    let mut rest = BytesMut::new();
    match server.read_more(&mut rest).await {
        Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => Err(error.into()),
        _ => Ok(()),
    }
}
