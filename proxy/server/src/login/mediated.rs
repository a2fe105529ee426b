//! A login that ends at the proxy: it authenticates the client, or asks for its password, and logs in to PostgreSQL
//! in the client's name. The client is admitted only after PostgreSQL's yes.
//!
//! The server speaks first. The client gets unchanged what the server says before its authentication request.

use bytes::BytesMut;

use super::LoginError;
use super::authentication::{self, Authenticated, Legs, Opened};
use super::exchange::Exchange;
use super::startup::StartupRequest;
use crate::accounts::Logins;
use crate::backends::ServerLeg;
use crate::pending_logins::PendingLogin;
use crate::worker::WorkerContext;

/// Authenticates a client by the configured method, and waits until the server is ready.
pub(super) async fn authenticate(
    legs: &mut Legs<'_>,
    shared: &WorkerContext,
    request: &StartupRequest,
    pending: &mut PendingLogin,
) -> Result<Authenticated, LoginError> {
    let opened = match &shared.logins {
        Logins::Relayed => Opened::Unauthenticated,
        _ => Opened::Authenticated(mediate(legs, shared, request, pending).await?),
    };
    authentication::relay(legs, opened, pending).await
}

/// Runs both logins, and tells the client that it is authenticated. Returns the server's bytes since.
async fn mediate(
    legs: &mut Legs<'_>,
    shared: &WorkerContext,
    request: &StartupRequest,
    pending: &mut PendingLogin,
) -> Result<BytesMut, LoginError> {
    let user = request.user();
    let hashing = shared.pending_logins.hashing();
    let mut server = ServerLeg::new(legs.server, user, hashing);
    let asked = server.request(Some(legs.client)).await?;
    let mut client = Exchange {
        client: legs.client,
        carry: legs.carry,
        shown: legs.shown,
        user,
        pending,
    };
    let proof = client.prove(&shared.logins).await?;
    server
        .log_in(proof.credentials.as_ref(), asked, Some(legs.client))
        .await?;
    legs.client.write_all(&proof.admission).await?;
    Ok(server.into_bytes())
}
