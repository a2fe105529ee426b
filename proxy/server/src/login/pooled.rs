//! A login of a client that shares server connections: it ends at the proxy, and needs no connection of its own.
//!
//! PostgreSQL still decides: it has admitted the same login within the last minute, or is asked now.

use std::sync::Arc;
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use pgpalisade_session::greeting::Greeting;
use pgpalisade_wire::encode;
use pgpalisade_wire::startup::{StartupMessage, StartupPacket, parse};
use pgpalisade_wire::startup_options::without;

use super::LoginError;
use super::exchange::Exchange;
use crate::accounts::Logins;
use crate::backends::OpenError;
use crate::pooling::cancel_keys::CancelKey;
use crate::pooling::{Admitted, Pooling, SharedLogin};

const FENCING: &str = "fencing.";

/// A client that knows everything but that it may begin: ReadyForQuery is for the relay to send.
#[derive(Debug)]
pub(super) struct PooledLogin {
    pub(super) login: SharedLogin,
    pub(super) greeting: Arc<Greeting>,
    pub(super) cancel_key: CancelKey,
}

/// Authenticates a client that has sent `packet`. `obtain` has a connection opened for the login.
pub(super) async fn authenticate(
    client: &mut Exchange<'_>,
    logins: &Logins,
    packet: &[u8],
    pooling: &Pooling,
    obtain: impl AsyncFnOnce(SharedLogin) -> Result<Admitted, OpenError>,
) -> Result<PooledLogin, LoginError> {
    let Ok(StartupPacket::Startup(message)) = parse(packet) else {
        return Err(LoginError::Layout);
    };
    let mut out = BytesMut::new();
    if let Some(limits) = encode::negotiated(message) {
        encode::put(&mut out, &limits);
        client.client.write_all(&out).await?;
        out.clear();
    }
    let proof = client.prove(logins).await?;
    let packet = shared_packet(message);
    let login = SharedLogin {
        packet,
        credentials: proof.credentials,
    };
    let (login, greeting) = match pooling.admissions.find(&login, Instant::now()) {
        Some(admitted) => admitted,
        None => obtain(login).await?,
    };
    let cancel_key = pooling.cancel_keys.issue(message.secret_len());
    out.extend_from_slice(&proof.admission);
    greeting.put(&mut out);
    cancel_key.put(&mut out);
    client.client.write_all(&out).await?;
    Ok(PooledLogin {
        login,
        greeting,
        cancel_key,
    })
}

/// The startup packet of the connections for this client, without what is the client's own: tokens and scope are,
/// whichever connection serves it.
fn shared_packet(message: StartupMessage<'_>) -> Bytes {
    let packet = message.with_only(|name, value| {
        let is_of_the_protocol = name.starts_with(b"_pq_.");
        if is_of_the_protocol || str::from_utf8(name).is_ok_and(is_fencing) {
            return None;
        }
        match name {
            b"options" => Some(without(value, is_fencing)).filter(|rest| !rest.is_empty()),
            _ => Some(value.into()),
        }
    });
    packet.freeze()
}

fn is_fencing(name: &str) -> bool {
    let front = name.get(..FENCING.len()).unwrap_or_default();
    front.eq_ignore_ascii_case(FENCING)
}

#[cfg(test)]
mod tests;
