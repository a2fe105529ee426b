//! TLS towards a client: requests before its startup packet, and requirements for a session.
//!
//! Source: <https://www.postgresql.org/docs/current/protocol-flow.html#PROTOCOL-FLOW-SSL>

use std::io;

use bytes::BytesMut;

use super::LoginError;
use crate::certificates::{ClientCertificates, ClientLeg, Plain};
use crate::transport::Socket;

/// The first byte of a TLS handshake. No packet of PostgreSQL begins with it: it would be too long.
const HANDSHAKE: u8 = 0x16;

/// Requests that a client may still send: each once, and none inside the other's encryption.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Requests {
    pub(super) ssl: bool,
    pub(super) gss: bool,
}

impl Requests {
    pub(super) const ALL: Self = Self {
        ssl: true,
        gss: true,
    };
    pub(super) const NONE: Self = Self {
        ssl: false,
        gss: false,
    };
}

/// Begins TLS if the client does so without asking, and returns whether it did. Both sides must name the protocol
/// (ALPN), because the handshake could be meant for another one.
pub(super) async fn begin_unasked(
    client: &mut Socket,
    carry: &mut BytesMut,
    leg: &ClientLeg,
) -> Result<bool, LoginError> {
    if carry.is_empty() {
        client
            .read_more(carry)
            .await
            .map_err(LoginError::of_client)?;
    }
    if carry.first() != Some(&HANDSHAKE) {
        return Ok(false);
    }
    let received = carry.split();
    begin(client, leg, &received).await?;
    if client.has_agreed_protocol() {
        Ok(true)
    } else {
        Err(LoginError::Handshake(io::Error::other(
            "received direct SSL connection request without ALPN protocol negotiation extension",
        )))
    }
}

/// Answers an SSLRequest that no other bytes follow.
pub(super) async fn answer(
    client: &mut Socket,
    leg: Option<&ClientLeg>,
    requests: Requests,
) -> Result<Requests, LoginError> {
    let Some(leg) = leg else {
        client.write_all(b"N").await?;
        return Ok(Requests {
            ssl: false,
            ..requests
        });
    };
    client.write_all(b"S").await?;
    begin(client, leg, &[]).await?;
    Ok(Requests::NONE)
}

async fn begin(client: &mut Socket, leg: &ClientLeg, received: &[u8]) -> Result<(), LoginError> {
    let session = leg.acceptor.session().map_err(io::Error::from)?;
    let begun = client.begin_tls(session, received).await;
    begun.map_err(|error| match error.kind() {
        io::ErrorKind::InvalidData => LoginError::Handshake(error),
        _ => LoginError::of_client(error),
    })
}

/// Checks what a session requires. `who` names the client.
pub(super) fn check(
    client: &Socket,
    leg: &ClientLeg,
    who: impl FnOnce() -> String,
) -> Result<(), LoginError> {
    if leg.plain == Plain::Refused && !client.is_encrypted() {
        return Err(LoginError::Unencrypted(who()));
    }
    if leg.certificates == ClientCertificates::Required && client.peer_certificate().is_none() {
        return Err(LoginError::NoCertificate);
    }
    Ok(())
}
