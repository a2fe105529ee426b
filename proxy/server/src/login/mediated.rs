//! A login that ends at the proxy: it authenticates the client, or asks for its password, and logs in to PostgreSQL
//! in the client's name. The client is admitted only after PostgreSQL's yes.
//!
//! The server speaks first. The client gets unchanged what the server says before its authentication request.

use bytes::BytesMut;

use super::LoginError;
use super::authentication::{self, Authenticated};
use super::exchange::Exchange;
use crate::accounts::Logins;
use crate::backends::ServerLeg;
use crate::transport::Socket;
use crate::worker::WorkerContext;

/// Authenticates a client by the configured method, and waits until the server is ready.
pub(super) async fn authenticate(
    exchange: &mut Exchange<'_>,
    server: &mut Socket,
    shared: &WorkerContext,
) -> Result<Authenticated, LoginError> {
    let admitted = match &shared.logins {
        Logins::Relayed(_) => None,
        _ => Some(mediate(exchange, server, shared).await?),
    };
    authentication::relay(exchange, server, admitted, &shared.logins).await
}

/// Runs both logins, and tells the client that it is authenticated. Returns the server's bytes since.
async fn mediate(
    client: &mut Exchange<'_>,
    server: &mut Socket,
    shared: &WorkerContext,
) -> Result<BytesMut, LoginError> {
    let (hashing, own) = (shared.pending_logins.hashing(), shared.logins.own_roles());
    let mut server = ServerLeg::new(server, client.user, hashing, own);
    let asked = server.request(Some(client.client)).await?;
    let proof = client.prove(&shared.logins).await?;
    server
        .log_in(proof.credentials.as_ref(), asked, Some(client.client))
        .await?;
    client.client.write_all(&proof.admission).await?;
    Ok(server.into_bytes())
}
