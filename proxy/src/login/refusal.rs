//! What a client is told that gets no session.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::BytesMut;

use super::encryption::Unmet;
use super::{Insecure, LoginError};
use crate::timers::Timers;
use crate::transport::Socket;
use crate::wire::encode::{self, ErrorFields, Severity};

/// PostgreSQL's own words.
const EARLY_DATA: &str = "This could be either a client-software bug or evidence of an attempted man-in-the-middle \
                          attack.";

const BOUND: &str = "The client and PostgreSQL each check the certificate that the login is bound to, and see \
                     different ones: pgpalisade has one of its own.";

const UNBOUND: &str = "Connect with channel_binding=disable. Or use TLS on one side of pgpalisade only, or give it \
                       PostgreSQL's own certificate and key.";

const fn advice(lacks: Unmet) -> &'static str {
    match lacks {
        Unmet::Encryption => "Connect with sslmode=require or stricter.",
        Unmet::Certificate => "Connect with sslcert and sslkey.",
    }
}

/// Tells a client why there is no session, where PostgreSQL would, and closes.
pub(super) async fn refuse(
    timers: &Timers,
    client: &mut Socket,
    client_addr: SocketAddr,
    error: &LoginError,
) {
    if let Some(out) = words(client_addr, error) {
        // A client that does not read its error is not waited for.
        let write = async {
            if client.write_all(&out).await.is_ok() {
                client.shut_down_write();
            }
        };
        let _ = timers.timeout(Duration::from_secs(1), write).await;
    }
}

/// What a client is told, where PostgreSQL would say something.
pub(super) fn words(client_addr: SocketAddr, error: &LoginError) -> Option<BytesMut> {
    let (sqlstate, detail, hint) = match error {
        LoginError::ClientLeft
        | LoginError::Answered
        | LoginError::NoStartup(_)
        | LoginError::Io(_) => {
            tracing::debug!(client.addr = %client_addr, %error, "no session");
            return None;
        }
        LoginError::Handshake(_) => {
            tracing::info!(client.addr = %client_addr, %error, "no session");
            return None;
        }
        LoginError::Refused(_) => ("", "", ""),
        LoginError::Protocol(_) => ("08P01", "", ""),
        LoginError::EarlyData(_) => ("08P01", EARLY_DATA, ""),
        LoginError::NoProtocol(_) => ("0A000", "", ""),
        LoginError::Insecure(Insecure { lacks, .. }) => ("28000", "", advice(*lacks)),
        LoginError::ChannelBinding => ("28000", BOUND, UNBOUND),
        LoginError::Unreachable(_) => ("08006", "", ""),
        LoginError::NoTlsToServer(_) => ("08006", "The log of pgpalisade says why.", ""),
        LoginError::Unanswered => ("57014", "", ""),
        LoginError::Full => ("53300", "pgpalisade has reached connections.max.", ""),
    };
    tracing::info!(client.addr = %client_addr, %error, "login refused");
    let mut out = BytesMut::new();
    match error {
        LoginError::Refused(rejection) => rejection.encode(Severity::Fatal, &mut out),
        error => encode::error_response(
            &mut out,
            &ErrorFields {
                severity: Severity::Fatal,
                sqlstate,
                message: &error.to_string(),
                detail,
                hint,
            },
        ),
    }
    Some(out)
}
