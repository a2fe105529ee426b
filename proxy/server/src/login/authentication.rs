//! PostgreSQL's authentication, relayed byte for byte until the server is ready. After a login at the proxy
//! (`mediated.rs`), only the rest is relayed.

use std::io;

use bytes::{Bytes, BytesMut};
use pgpalisade_logins::kind;
use pgpalisade_session::greeting::InitialReports;
use pgpalisade_wire::backend::{self, tag};
use pgpalisade_wire::frontend;
use pgpalisade_wire::header::{self, HEADER_LEN};

use super::LoginError;
use super::channel_binding::Binding;
use super::exchange::Exchange;
use crate::accounts::Logins;
use crate::backends::{OpenError, next_message};
use crate::pending_logins::PendingLogin;
use crate::transport::Socket;

/// Limit of bytes from the client before the end of the login.
const AHEAD_MAX: usize = 64 * 1024;

#[derive(Default)]
pub(super) struct Authenticated {
    pub(crate) backend_pid: i32,
    pub(crate) initial: InitialReports,
    /// ReadyForQuery, held back.
    pub(crate) ready: Bytes,
    pub(crate) server_carry: BytesMut,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    Unasked,
    Choosing,
    Authenticating,
    /// The client is authenticated.
    Starting,
}

/// Relays both ways until ReadyForQuery, which is held back. A client that knows that it is authenticated is
/// `admitted`: the server has sent these bytes since.
pub(super) async fn relay(
    exchange: &mut Exchange<'_>,
    server: &mut Socket,
    admitted: Option<BytesMut>,
    logins: &Logins,
) -> Result<Authenticated, LoginError> {
    let binding = Binding::between(exchange.client, exchange.shown, server);
    let Exchange {
        client,
        carry,
        pending,
        user,
        ..
    } = exchange;
    let mut said = Authenticated::default();
    let mut progress = match admitted {
        Some(_) => Progress::Starting,
        None => Progress::Unasked,
    };
    let mut bytes = admitted.unwrap_or_default();
    loop {
        let mut out = BytesMut::new();
        while let Some(message) = next_message(&mut bytes)? {
            let body = message.get(HEADER_LEN..).unwrap_or_default();
            match message.first().copied().unwrap_or_default() {
                tag::READY_FOR_QUERY => {
                    client.write_all(&out).await?;
                    said.ready = message;
                    said.server_carry = bytes;
                    return Ok(said);
                }
                tag::AUTHENTICATION if progress != Progress::Starting => {
                    let before = progress;
                    progress = on_authentication(body, pending);
                    let own = logins.own_roles();
                    let is_unasked = (before, progress) == (Progress::Unasked, Progress::Starting);
                    if is_unasked && own.is_some_and(|own| own.are_meant(user, server)) {
                        let user = String::from_utf8_lossy(user).into_owned();
                        return Err(OpenError::OwnRole(user).into());
                    }
                    out.extend_from_slice(&binding.offered(message.clone(), body));
                }
                tag::PARAMETER_STATUS => {
                    said.initial.note(body);
                    out.extend_from_slice(&message);
                }
                tag::BACKEND_KEY_DATA => {
                    said.backend_pid = backend::backend_pid(body).unwrap_or_default();
                    out.extend_from_slice(&message);
                }
                _ => out.extend_from_slice(&message),
            }
        }
        client.write_all(&out).await?;
        let may_bind = match progress {
            Progress::Choosing => Some(binding),
            Progress::Unasked | Progress::Authenticating => Some(Binding::Relayed),
            Progress::Starting => None,
        };
        send_answers(carry, server, may_bind, pending).await?;
        let reads_client = carry.len() < AHEAD_MAX;
        tokio::select! {
            read = server.read_more(&mut bytes) => match read {
                Ok(()) => {}
                // The server's refusal was passed on.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    client.shut_down_write();
                    return Err(LoginError::Answered);
                }
                Err(error) => return Err(error.into()),
            },
            read = client.read_more(carry), if reads_client => read.map_err(LoginError::of_client)?,
            () = pending.given_up() => return Err(LoginError::Unanswered),
        }
    }
}

fn on_authentication(body: &[u8], pending: &mut PendingLogin) -> Progress {
    match backend::authentication_kind(body) {
        Some(kind::OK) => {
            pending.answered();
            return Progress::Starting;
        }
        Some(kind::SASL) => {
            pending.owes();
            return Progress::Choosing;
        }
        // The server has the last word of a SCRAM exchange.
        Some(kind::SASL_FINAL) => {}
        _ => pending.owes(),
    }
    Progress::Authenticating
}

async fn send_answers(
    carry: &mut BytesMut,
    server: &mut Socket,
    binding: Option<Binding>,
    pending: &mut PendingLogin,
) -> Result<(), LoginError> {
    let Some(binding) = binding else {
        return Ok(());
    };
    while let Some(header) = header::parse(carry, frontend::body_max)?
        && header.tag == b'p'
        && carry.len() >= header.frame_len()
    {
        let message = carry.split_to(header.frame_len());
        pending.answered();
        if binding.fails(message.get(HEADER_LEN..).unwrap_or_default()) {
            return Err(LoginError::ChannelBinding);
        }
        server.write_all(&message).await?;
    }
    Ok(())
}
