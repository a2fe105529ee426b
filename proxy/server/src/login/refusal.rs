//! Errors for clients that get no session.

use std::time::Duration;

use bytes::BytesMut;
use pgpalisade_logins::{ClientAddr, PasswordError};
use pgpalisade_session::endings::put_fatal;
use pgpalisade_wire::encode::{self, ErrorFields, ErrorResponse, Severity};

use super::{LoginError, Silence};
use crate::backends::{OpenError, SEE_LOG};
use crate::metrics::Metrics;
use crate::transport::Socket;
use crate::worker::WorkerContext;

const EARLY_DATA: &str = "This could be either a client-software bug or evidence of an attempted man-in-the-middle \
                          attack.";

const BOUND: &str = "The client and PostgreSQL each check the certificate that the login is bound to, and see \
                     different ones: pgpalisade has one of its own.";

const UNBOUND: &str = "Connect with channel_binding=disable. Or use TLS on one side of pgpalisade only, or give it \
                       PostgreSQL's own certificate and key.";

const ONLY_WHILE_LEADING: &str =
    "Its listener admits sessions only while the proxy leads (without = \"refuse\").";

const CONNECT_LATER: &str = "Connect to the proxy that leads, or again later.";

const MORE_SESSIONS: &str = "Raise backends.sessions. A rule of the policy, or the listener, gives this client a \
                             server connection of its own.";

const USE_TLS: &str = "Connect with sslmode=require or stricter.";

/// Tells a client why there is no session, if PostgreSQL would, and closes.
pub(super) async fn refuse(
    shared: &WorkerContext,
    client: &mut Socket,
    client_addr: ClientAddr,
    error: &LoginError,
) {
    if let LoginError::NoStartup(why @ (Silence::NoProxyHeader | Silence::StrayProxyHeader)) = error
        && shared.pending_logins.header_warning_is_due()
    {
        tracing::warn!(%client_addr, error = %why, "closed a connection without an answer");
    }
    let out = words(&shared.metrics, client_addr, error).unwrap_or_default();
    // A client that does not read its error is not waited for.
    let write = async {
        if client.write_all(&out).await.is_ok() {
            client.shut_down_write();
        }
    };
    let _ = shared.timers.timeout(Duration::from_secs(1), write).await;
}

fn log(client_addr: ClientAddr, error: &LoginError) {
    if matches!(error, LoginError::NoProtocol(_)) {
        // Clients can cause this line at will.
        tracing::debug!(%client_addr, %error, "login refused");
    } else {
        tracing::info!(%client_addr, %error, "login refused");
    }
}

/// Counts and logs the error, and returns its message, if PostgreSQL would say something.
pub(super) fn words(
    metrics: &Metrics,
    client_addr: ClientAddr,
    error: &LoginError,
) -> Option<BytesMut> {
    let at_server;
    let (sqlstate, detail, hint) = match error {
        LoginError::ClientLeft
        | LoginError::Answered
        | LoginError::NoStartup(_)
        | LoginError::Server(OpenError::Closed | OpenError::Io(_))
        | LoginError::Io(_) => {
            tracing::debug!(%client_addr, %error, "no session");
            return None;
        }
        LoginError::Server(OpenError::Refused(response)) => {
            tracing::debug!(%client_addr, %error, "no session");
            return Some(BytesMut::from(&**response));
        }
        LoginError::Handshake(_) => {
            tracing::info!(%client_addr, %error, "no session");
            return None;
        }
        LoginError::Refused(rejection) => (rejection.kind.sqlstate(), "", ""),
        LoginError::Protocol(_)
        | LoginError::Layout
        | LoginError::OutOfTurn(..)
        | LoginError::Password(PasswordError::Size) => ("08P01", "", ""),
        LoginError::WrongPassword(_) | LoginError::Password(PasswordError::Empty) => {
            ("28P01", "", "")
        }
        LoginError::EarlyData(_) => ("08P01", EARLY_DATA, ""),
        LoginError::NoProtocol(_) => ("0A000", "", ""),
        LoginError::Unencrypted(_) | LoginError::ReadablePassword => ("28000", "", USE_TLS),
        LoginError::NoCertificate => ("28000", "", "Connect with sslcert and sslkey."),
        LoginError::Scram(refusal) => (refusal.sqlstate(), refusal.detail(), ""),
        LoginError::Lookup(why) => {
            tracing::warn!(error = %why, "cannot look up how a client logs in");
            ("08006", SEE_LOG, "")
        }
        LoginError::ChannelBinding => ("28000", BOUND, UNBOUND),
        LoginError::Server(error) => {
            at_server = error.advice();
            (at_server.sqlstate, &*at_server.detail, at_server.hint)
        }
        LoginError::Unanswered => ("57014", "", ""),
        LoginError::Ended(cause) => cause.advice(),
        // libpq then tries its next host.
        LoginError::NotLeading(_) => ("57P03", ONLY_WHILE_LEADING, CONNECT_LATER),
        LoginError::Full => ("53300", "pgpalisade has reached connections.max.", ""),
        LoginError::NoOwnPlace => (
            "53300",
            "pgpalisade has reached backends.sessions.",
            MORE_SESSIONS,
        ),
    };
    metrics.refused_login(sqlstate);
    log(client_addr, error);
    Some(encoded(error, sqlstate, detail, hint))
}

fn encoded(error: &LoginError, sqlstate: &str, detail: &str, hint: &str) -> BytesMut {
    let mut out = BytesMut::new();
    let message = error.to_string();
    match error {
        LoginError::Refused(rejection) => rejection.encode(Severity::Fatal, &mut out),
        LoginError::NoProtocol(version) if version.has_plain_errors() => {
            encode::plain_fatal_error(&mut out, &message);
        }
        error if error.is_in_postgres_words() => {
            let fields = ErrorFields {
                severity: Severity::Fatal,
                sqlstate,
                message: &message,
                detail,
                hint,
            };
            encode::put(&mut out, &ErrorResponse::from(&fields));
        }
        _ => put_fatal(&mut out, sqlstate, &message, detail, hint),
    }
    out
}
