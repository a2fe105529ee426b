//! Opens a server connection for a user, without a client.

use std::sync::Arc;
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use pgpalisade_takeover::PrimaryTerm;
use pgpalisade_wire::backend::{self, tag};
use pgpalisade_wire::header::HEADER_LEN;
use pgpalisade_wire::startup;

use super::{OpenError, ServerLeg, UpstreamConnection, connect};
use crate::aside::Aside;
use crate::pooling::cancel_keys::Cancellable;
use crate::pooling::{Greeting, SharedLogin};
use crate::transport::Socket;
use crate::worker::Worker;

/// A server connection that has said that it is ready.
#[derive(Debug)]
pub(crate) struct OpenedBackend {
    pub(crate) socket: Socket,
    /// The server's term as the primary, if known.
    pub(crate) term: Option<PrimaryTerm>,
    pub(crate) pid: i32,
    pub(crate) cancellable: Arc<Cancellable>,
    pub(crate) greeting: Arc<Greeting>,
    /// Bytes that the server has sent after its first ReadyForQuery.
    pub(crate) server_bytes: BytesMut,
}

/// Opens a connection for a login within the time of a login.
///
/// # Errors
///
/// PostgreSQL cannot be reached, or refuses the login.
pub(crate) async fn open(worker: &Worker, login: &SharedLogin) -> Result<OpenedBackend, OpenError> {
    let shared = &worker.shared;
    let opening = async {
        let mut server = connect(worker).await?;
        let hashing = shared.pending_logins.hashing();
        let logging_in = log_in(&mut server.socket, login, hashing);
        let logged_in = UpstreamConnection::while_primary(server.tenure.as_ref(), logging_in);
        let LoggedIn {
            key,
            greeting,
            server_bytes,
        } = logged_in.await?;
        Ok(OpenedBackend {
            pid: backend::backend_pid(&key).unwrap_or_default(),
            cancellable: Cancellable::new(&key, server.tenure.clone()),
            socket: server.socket,
            term: server.tenure,
            greeting: Arc::new(greeting),
            server_bytes,
        })
    };
    let limit = shared.limits.login_timeout;
    let opened = shared.timers.timeout(limit, opening).await;
    let opened = opened.unwrap_or(Err(OpenError::Unanswered));
    let admissions = &shared.pooling.admissions;
    match &opened {
        Ok(backend) => admissions.note(login, &backend.greeting, Instant::now()),
        Err(error) if error.is_about_login() => admissions.forget(login),
        Err(_) => {}
    }
    opened
}

#[derive(Debug)]
struct LoggedIn {
    /// Body of BackendKeyData.
    key: Bytes,
    greeting: Greeting,
    server_bytes: BytesMut,
}

async fn log_in(
    socket: &mut Socket,
    login: &SharedLogin,
    hashing: &Aside,
) -> Result<LoggedIn, OpenError> {
    socket.write_all(&login.packet).await?;
    let user = startup::user(&login.packet);
    let mut server = ServerLeg::new(socket, user, hashing);
    let asked = server.request(None).await?;
    server
        .log_in(login.credentials.as_ref(), asked, None)
        .await?;
    let (mut key, mut greeting) = (Bytes::new(), Greeting::default());
    loop {
        let mut message = server.message().await?;
        match message.first().copied() {
            Some(tag::PARAMETER_STATUS) => greeting.note(message),
            Some(tag::BACKEND_KEY_DATA) => key = message.split_off(HEADER_LEN),
            Some(tag::READY_FOR_QUERY) => {
                return Ok(LoggedIn {
                    key,
                    greeting,
                    server_bytes: server.into_bytes(),
                });
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
