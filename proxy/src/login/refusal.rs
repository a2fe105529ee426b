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
    let (sqlstate, message) = match error {
        LoginError::ClientLeft
        | LoginError::Answered
        | LoginError::NoStartup(_)
        | LoginError::Io(_) => {
            tracing::debug!(client.addr = %client_addr, %error, "no session");
            return;
        }
        LoginError::Refused(rejection) => {
            tracing::info!(client.addr = %client_addr, %error, "login refused");
            let mut out = BytesMut::new();
            rejection.encode(Severity::Fatal, &mut out);
            write_and_close(timers, client, &out).await;
            return;
        }
        LoginError::Protocol(_) | LoginError::EarlyData(_) => ("08P01", error.to_string()),
        LoginError::Unreachable(_) => ("08006", error.to_string()),
        LoginError::Unanswered => ("57014", error.to_string()),
        LoginError::Full => ("53300", error.to_string()),
    };
    let detail = match error {
        LoginError::Full => "pgpalisade has reached connections.max.",
        _ => "",
    };
    tracing::info!(client.addr = %client_addr, %error, "login refused");
    let fields = ErrorFields {
        severity: Severity::Fatal,
        sqlstate,
        message: &message,
        detail,
        hint: "",
    };
    say_and_close(timers, client, &fields).await;
}

async fn say_and_close(timers: &Timers, client: &mut Socket, fields: &ErrorFields<'_>) {
    let mut out = BytesMut::new();
    encode::error_response(&mut out, fields);
    write_and_close(timers, client, &out).await;
}

/// A client that does not read its error is not waited for.
async fn write_and_close(timers: &Timers, client: &mut Socket, out: &[u8]) {
    let write = async {
        if client.write_all(out).await.is_ok() {
            client.shut_down_write();
        }
    };
    let _ = timers.timeout(Duration::from_secs(1), write).await;
}
