//! One TLS connection, without I/O: bytes of the network go in, bytes for the network come out.
//!
//! What is kept in it has a limit: a record that has not arrived whole, and during the handshake
//! [`HANDSHAKE_BYTES_MAX`]. Everything that it has to send is taken out at once.

use std::io::{self, Read as _, Write as _};
use std::sync::Arc;

use bytes::{BufMut as _, BytesMut};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, Connection, ServerConfig, ServerConnection};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::ALPN;

/// What a peer may send before the handshake is complete. A chain of certificates has some KiB.
const HANDSHAKE_BYTES_MAX: usize = 128 * 1024;

/// Why there is no encrypted connection, or not any longer.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The peer broke the protocol, or is not to be trusted.
    #[error("{0}")]
    Protocol(#[from] rustls::Error),
    /// The handshake does not end.
    #[error("the handshake is longer than {HANDSHAKE_BYTES_MAX} bytes")]
    TooLong,
    /// A server whose name cannot be one.
    #[error("{0:?} is not a host name that a certificate can be for")]
    Name(String),
    /// The server has none.
    #[error("the server does not support TLS, and sslmode requires it")]
    NotOffered,
    /// Instead of an answer to the request for TLS came something else. It is nobody's proven words, so it is not
    /// shown (CVE-2024-10977).
    #[error("the server did not answer the request for TLS")]
    NoAnswer,
    /// Bytes came between the answer and the handshake: a person in the middle could have put them there.
    #[error("received unencrypted data after the answer to the request for TLS")]
    EarlyData,
    /// TLS was asked for where it is switched off.
    #[error("sslmode is disable")]
    Disabled,
    /// The library took nothing.
    #[error("TLS: {0}")]
    Io(#[from] io::Error),
}

impl From<TlsError> for io::Error {
    fn from(error: TlsError) -> Self {
        match error {
            TlsError::Io(error) => error,
            other => Self::new(io::ErrorKind::InvalidData, other),
        }
    }
}

/// One TLS connection.
#[derive(Debug)]
pub struct Session {
    connection: Connection,
    /// Bytes of the peer in the handshake.
    handshake: usize,
}

impl Session {
    pub(crate) fn accepting(config: Arc<ServerConfig>) -> Result<Self, TlsError> {
        Ok(Self::new(ServerConnection::new(config)?.into()))
    }

    pub(crate) fn connecting(
        config: Arc<ClientConfig>,
        name: ServerName<'static>,
    ) -> Result<Self, TlsError> {
        Ok(Self::new(ClientConnection::new(config, name)?.into()))
    }

    const fn new(connection: Connection) -> Self {
        Self {
            connection,
            handshake: 0,
        }
    }

    /// Whether the handshake goes on.
    #[must_use]
    pub fn is_handshaking(&self) -> bool {
        self.connection.is_handshaking()
    }

    /// Takes bytes of the handshake. There may be something to send afterwards, also where this fails: the peer is
    /// told why.
    ///
    /// # Errors
    ///
    /// What is wrong with them.
    pub fn on_handshake(&mut self, mut bytes: &[u8]) -> Result<(), TlsError> {
        self.handshake += bytes.len();
        if self.handshake > HANDSHAKE_BYTES_MAX {
            return Err(TlsError::TooLong);
        }
        while !bytes.is_empty() {
            if self.connection.read_tls(&mut bytes)? == 0 {
                return Err(io::Error::from(io::ErrorKind::WriteZero).into());
            }
            self.connection.process_new_packets()?;
        }
        Ok(())
    }

    /// Whether there is something to send that nobody has asked for: an answer to what was read.
    #[must_use]
    pub fn has_output(&self) -> bool {
        self.connection.wants_write()
    }

    /// Moves what is to be sent behind `out`.
    ///
    /// # Errors
    ///
    /// None that is known: memory takes everything.
    pub fn take_output(&mut self, out: &mut BytesMut) -> Result<(), TlsError> {
        while self.connection.wants_write() {
            self.connection.write_tls(&mut (&mut *out).writer())?;
        }
        Ok(())
    }

    /// Encrypts all of `text`, behind `out`.
    ///
    /// # Errors
    ///
    /// None that is known: what is encrypted is taken out before there is too much of it.
    pub fn encrypt(&mut self, mut text: &[u8], out: &mut BytesMut) -> Result<(), TlsError> {
        while !text.is_empty() {
            let taken = self.connection.writer().write(text)?;
            self.take_output(out)?;
            text = match text.get(taken..) {
                Some(rest) if taken > 0 => rest,
                _ => return Err(io::Error::from(io::ErrorKind::WriteZero).into()),
            };
        }
        Ok(())
    }

    /// Says that nothing follows.
    ///
    /// # Errors
    ///
    /// As [`Self::take_output`].
    pub fn close(&mut self, out: &mut BytesMut) -> Result<(), TlsError> {
        self.connection.send_close_notify();
        self.take_output(out)
    }

    /// Reads text that is there already: `Some(0)` where the peer has said that nothing follows, `None` where more has
    /// to arrive.
    pub fn read(&mut self, buf: &mut [u8]) -> Option<usize> {
        // The only errors are that nothing is there, and the end of the network's bytes, which it is not told of.
        self.connection.reader().read(buf).ok()
    }

    /// Decrypts the first `received` bytes of `buf` in their place, and says how many bytes of text stand there
    /// afterwards. What has no room, which is less than a record, is left to [`Self::read`].
    ///
    /// The text never runs into bytes that were not taken yet: it is written no further than they reach. That is why no
    /// other buffer is needed.
    ///
    /// # Errors
    ///
    /// What is wrong with them.
    pub fn decrypt(&mut self, buf: &mut [u8], received: usize) -> Result<usize, TlsError> {
        let (mut taken, mut text) = (0, 0);
        while taken < received {
            let mut rest = buf.get(taken..received).unwrap_or_default();
            match self.connection.read_tls(&mut rest)? {
                0 => return Err(io::Error::from(io::ErrorKind::WriteZero).into()),
                read => taken += read,
            }
            self.connection.process_new_packets()?;
            let room = if taken < received { taken } else { buf.len() };
            let read = buf.get_mut(text..room).and_then(|room| self.read(room));
            text += read.unwrap_or_default();
        }
        Ok(text)
    }

    /// Whether both sides have agreed to speak PostgreSQL's protocol (ALPN).
    #[must_use]
    pub fn has_agreed_protocol(&self) -> bool {
        self.connection.alpn_protocol() == Some(ALPN)
    }

    /// The common name in that certificate, where its subject has one, and one only, that is fit to be compared and
    /// shown. An [`Acceptor`](crate::Acceptor) has verified the certificate; a client does so as its `sslmode` says.
    #[must_use]
    pub fn peer_common_name(&self) -> Option<String> {
        common_name(self.peer_certificate()?)
    }

    /// The certificate that the peer has shown, in DER.
    #[must_use]
    pub fn peer_certificate(&self) -> Option<&[u8]> {
        self.connection
            .peer_certificates()?
            .first()
            .map(AsRef::as_ref)
    }
}

fn common_name(certificate: &[u8]) -> Option<String> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let mut names = certificate.subject().iter_common_name();
    // Of several each program would choose another one.
    let (Some(name), None) = (names.next(), names.next()) else {
        return None;
    };
    let name = name.as_str().ok()?;
    // A NUL would end the name for whoever reads it as C does (CVE-2009-4034).
    let is_fit = !name.is_empty() && !name.contains(char::is_control);
    is_fit.then(|| name.to_owned())
}

#[cfg(test)]
mod tests;
