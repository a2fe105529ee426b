//! The server's side of a login: PostgreSQL asks, and the proxy answers for a user.

use std::io;
use std::sync::Arc;

use bytes::{Buf as _, Bytes, BytesMut};
use pgpalisade_logins::scram::client::ServerFault;
use pgpalisade_logins::scram::{Leg, nonce};
use pgpalisade_logins::{
    Channel, Credentials, Readers, ServerLogin, ServerLoginError, Step, end_point, kind,
};
use pgpalisade_wire::backend::{self, tag};
use pgpalisade_wire::header::{self, HEADER_LEN, Header};
use pgpalisade_wire::{WireError, encode};

use super::OpenError;
use crate::accounts::OwnRoles;
use crate::aside::Aside;
use crate::transport::Socket;

/// A server that has a startup packet.
pub(crate) struct ServerLeg<'a> {
    socket: &'a mut Socket,
    user: &'a [u8],
    hashing: &'a Aside,
    own: Option<&'a OwnRoles>,
    /// Bytes after the last message.
    bytes: BytesMut,
}

impl<'a> ServerLeg<'a> {
    /// `hashing` bounds the password hashes of all logins. A server that asks for nothing lets in none of the `own`
    /// roles.
    pub(crate) fn new(
        socket: &'a mut Socket,
        user: &'a [u8],
        hashing: &'a Aside,
        own: Option<&'a OwnRoles>,
    ) -> Self {
        Self {
            socket,
            user,
            hashing,
            own,
            bytes: BytesMut::new(),
        }
    }

    /// The server's next authentication message. Its other messages go to the client, if there is one.
    pub(crate) async fn request(
        &mut self,
        mut client: Option<&mut Socket>,
    ) -> Result<Bytes, OpenError> {
        loop {
            let message = self.message().await?;
            match (message.first(), &mut client) {
                (Some(&tag::AUTHENTICATION), _) => return Ok(message),
                (_, Some(client)) => client.write_all(&message).await?,
                (_, None) => {}
            }
        }
    }

    /// The server's next message. An error ends the login.
    pub(super) async fn message(&mut self) -> Result<Bytes, OpenError> {
        loop {
            match next_message(&mut self.bytes)? {
                Some(message) if message.first() == Some(&tag::ERROR) => {
                    return Err(OpenError::Refused(message));
                }
                Some(message) => return Ok(message),
                None => {}
            }
            let read = self.socket.read_more(&mut self.bytes).await;
            read.map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof => OpenError::Closed,
                _ => error.into(),
            })?;
        }
    }

    /// Logs in, beginning with the server's first request. Without credentials the server must ask for nothing.
    pub(crate) async fn log_in(
        &mut self,
        credentials: Option<&Arc<Credentials>>,
        mut request: Bytes,
        mut client: Option<&mut Socket>,
    ) -> Result<(), OpenError> {
        let body = request.get(HEADER_LEN..).unwrap_or_default();
        let is_unasked = backend::authentication_kind(body) == Some(kind::OK);
        let own = self.own.filter(|_| is_unasked);
        if own.is_some_and(|own| own.are_meant(self.user, self.socket)) {
            return Err(OpenError::OwnRole(self.user_text()));
        }
        let Some(credentials) = credentials else {
            return if is_unasked {
                Ok(())
            } else {
                Err(OpenError::NoCredentials(self.user_text()))
            };
        };
        let certificate = self.socket.peer_certificate();
        let channel = Channel {
            leg: channel_leg(self.socket, certificate.as_deref()),
            readers: readers(self.socket),
        };
        let mut login = ServerLogin::new(self.user.to_vec(), Arc::clone(credentials), channel);
        loop {
            let is_to_hash = login.is_to_hash();
            let answer = move || {
                let body = request.get(HEADER_LEN..).unwrap_or_default();
                let step = login.on_authentication(body, nonce(&rand::random()));
                (login, step)
            };
            // The server chooses the number of rounds, so hashing runs on another thread.
            let answered = if is_to_hash {
                let failed = || io::Error::other("the password could not be hashed");
                self.hashing.run(answer).await.ok_or_else(failed)?
            } else {
                answer()
            };
            let step = answered.1;
            login = answered.0;
            match step.map_err(|error| self.not_let_in(error))? {
                Step::Done => return Ok(()),
                Step::Wait => {}
                Step::Send(body) => {
                    let mut out = BytesMut::new();
                    encode::put_raw(&mut out, b'p', &body);
                    self.socket.write_all(&out).await?;
                }
            }
            request = self.request(client.as_deref_mut()).await?;
        }
    }

    fn not_let_in(&self, error: ServerLoginError) -> OpenError {
        let user = self.user_text();
        if let ServerLoginError::Scram(ServerFault::OtherVerifier) = error {
            tracing::warn!(
                user,
                "the verifier known here is not PostgreSQL's: the password was changed, and auth_file must be \
                    updated; or the login has expired (VALID UNTIL)"
            );
        }
        OpenError::NotLetIn(user, error)
    }

    fn user_text(&self) -> String {
        String::from_utf8_lossy(self.user).into_owned()
    }

    /// Bytes that the server has sent after its last message.
    pub(crate) fn into_bytes(self) -> BytesMut {
        self.bytes
    }
}

/// Limit for a message of a login or a reset. libpq takes 30,000 bytes in a login.
const BODY_MAX: usize = 256 * 1024;

/// Takes a complete message of the server off the front.
pub(crate) fn next_message(bytes: &mut BytesMut) -> Result<Option<Bytes>, WireError> {
    let header = header::parse(bytes, |_| BODY_MAX)?;
    let whole = header
        .map(Header::frame_len)
        .filter(|len| bytes.len() >= *len);
    Ok(whole.map(|len| bytes.copy_to_bytes(len)))
}

/// The channel of a login, with the server side's certificate.
pub(crate) fn channel_leg(socket: &Socket, certificate: Option<&[u8]>) -> Leg {
    if socket.is_encrypted() {
        Leg::Encrypted(certificate.and_then(end_point::hash))
    } else {
        Leg::Clear
    }
}

pub(crate) fn readers(socket: &Socket) -> Readers {
    if socket.is_encrypted() || socket.is_local() {
        Readers::Ends
    } else {
        Readers::Anybody
    }
}
