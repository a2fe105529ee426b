//! Opens a server connection for a user, without a client.

use std::sync::Arc;
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use pgpalisade_session::ServerHalf;
use pgpalisade_session::greeting::Greeting;
use pgpalisade_wire::backend::{self, tag};
use pgpalisade_wire::header::HEADER_LEN;
use pgpalisade_wire::startup;

use super::{OpenError, ServerLeg, UpstreamConnection, connect};
use crate::accounts::OwnRoles;
use crate::aside::Aside;
use crate::pooling::SharedLogin;
use crate::pooling::backends::Backend;
use crate::pooling::cancel_keys::Cancellable;
use crate::transport::Socket;
use crate::upstream::{ServerSide, Upstream};
use crate::worker::Worker;

/// Opens a connection for a login within the time of a login.
///
/// # Errors
///
/// PostgreSQL cannot be reached, or refuses the login.
pub(super) async fn open(worker: &Worker, login: &SharedLogin) -> Result<Box<Backend>, OpenError> {
    let shared = &worker.shared;
    let opening = async {
        let mut server = connect(worker).await?;
        let (hashing, own) = (shared.pending_logins.hashing(), shared.logins.own_roles());
        let logging_in = log_in(&mut server.socket, login, hashing, own);
        let logged_in = UpstreamConnection::while_primary(server.tenure.as_ref(), logging_in);
        let LoggedIn {
            key,
            greeting,
            server_bytes,
        } = logged_in.await?;
        let pid = backend::backend_pid(&key).unwrap_or_default();
        let half = ServerHalf::shared(pid, Arc::new(greeting));
        let cancellable = Cancellable::new(&key, server.tenure.clone());
        let upstream = Upstream::new(server.socket);
        Ok(Box::new(Backend {
            half: Box::new(half),
            side: Box::new(ServerSide::new(upstream, server_bytes, server.tenure)),
            cancellable,
            census: None,
            left_after: 0,
        }))
    };
    let limit = shared.limits.login_timeout;
    let opened = shared.timers.timeout(limit, opening).await;
    let opened = opened.unwrap_or(Err(OpenError::Unanswered));
    let admissions = &shared.pooling.admissions;
    match &opened {
        Ok(backend) => admissions.note(login, backend.half.greeting(), Instant::now()),
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
    own: Option<&OwnRoles>,
) -> Result<LoggedIn, OpenError> {
    socket.write_all(&login.packet).await?;
    let user = startup::user(&login.packet);
    let mut server = ServerLeg::new(socket, user, hashing, own);
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
