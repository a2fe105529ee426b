//! What a client is told that gets no session.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::BytesMut;

use super::LoginError;
use crate::timers::Timers;
use crate::transport::Socket;
use crate::wire::encode::{self, ErrorFields, Severity};

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
    let (sqlstate, detail) = match error {
        LoginError::ClientLeft
        | LoginError::Answered
        | LoginError::NoStartup(_)
        | LoginError::Io(_) => {
            tracing::debug!(client.addr = %client_addr, %error, "no session");
            return None;
        }
        LoginError::Refused(_) => ("", ""),
        LoginError::Protocol(_) | LoginError::EarlyData(_) => ("08P01", ""),
        LoginError::Unreachable(_) => ("08006", ""),
        LoginError::Unanswered => ("57014", ""),
        LoginError::Full => ("53300", "pgpalisade has reached connections.max."),
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
                hint: "",
            },
        ),
    }
    Some(out)
}
