//! One TLS connection without I/O: bytes from the network go in, bytes for the network come out.
//!
//! Its memory is limited to one incomplete record, and to [`HANDSHAKE_BYTES_MAX`] during the handshake. All output is
//! taken at once.

use std::io::{self, Read as _, Write as _};
use std::sync::Arc;

use bytes::{BufMut as _, BytesMut};
use der::asn1::AnyRef;
use der::{Decode as _, Reader as _, SliceReader, Tag, Tagged as _};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, Connection, ServerConfig, ServerConnection};

use crate::ALPN;

/// Limit of a peer's bytes in the handshake. A chain of certificates has a few KiB.
const HANDSHAKE_BYTES_MAX: usize = 128 * 1024;

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("{0}")]
    Protocol(#[from] rustls::Error),
    #[error("the handshake is longer than {HANDSHAKE_BYTES_MAX} bytes")]
    TooLong,
    #[error("{0:?} is not a host name that a certificate can be for")]
    Name(String),
    #[error("the server does not support TLS, and sslmode requires it")]
    NotOffered,
    /// Another answer to the request for TLS. It is not authenticated, so it is not shown (CVE-2024-10977).
    #[error("the server did not answer the request for TLS")]
    NoAnswer,
    /// Bytes between the answer and the handshake: they may be injected.
    #[error("received unencrypted data after the answer to the request for TLS")]
    EarlyData,
    #[error("sslmode is disable")]
    Disabled,
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

#[derive(Debug)]
pub struct TlsState {
    connection: Connection,
    /// Number of the peer's bytes in the handshake.
    handshake: usize,
}

impl TlsState {
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

    #[must_use]
    pub fn is_handshaking(&self) -> bool {
        self.connection.is_handshaking()
    }

    /// Takes bytes of the handshake. Afterwards there may be output, even after an error: the peer is told why.
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

    /// Whether TLS itself has output, in answer to what was read.
    #[must_use]
    pub fn has_output(&self) -> bool {
        self.connection.wants_write()
    }

    /// Appends the output to `out`.
    ///
    /// # Errors
    ///
    /// None known: memory takes everything.
    pub fn take_output(&mut self, out: &mut BytesMut) -> Result<(), TlsError> {
        while self.connection.wants_write() {
            self.connection.write_tls(&mut (&mut *out).writer())?;
        }
        Ok(())
    }

    /// Encrypts all of `text`, and appends it to `out`.
    ///
    /// # Errors
    ///
    /// None known: the output is taken before its limit is reached.
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

    pub fn close(&mut self, out: &mut BytesMut) -> Result<(), TlsError> {
        self.connection.send_close_notify();
        self.take_output(out)
    }

    /// Reads decrypted text: `Some(0)` if the peer has ended the stream, `None` if more has to arrive.
    pub fn read(&mut self, buf: &mut [u8]) -> Option<usize> {
        // The only errors are missing text, and the end of the network's bytes, which is never passed in.
        self.connection.reader().read(buf).ok()
    }

    /// Decrypts the first `received` bytes of `buf` in place, and returns the length of the text at its front. Text
    /// without room, less than a record, is left to [`Self::read`].
    ///
    /// The text is written only as far as bytes were taken, so no other buffer is needed.
    ///
    /// # Errors
    ///
    /// The bytes are invalid.
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

    #[must_use]
    pub fn has_agreed_protocol(&self) -> bool {
        self.connection.alpn_protocol() == Some(ALPN)
    }

    /// The common name in the peer's certificate, if its subject has exactly one, without control characters. An
    /// [`Acceptor`](crate::Acceptor) has verified the certificate; a client does so as its `sslmode` says.
    #[must_use]
    pub fn peer_common_name(&self) -> Option<String> {
        common_name(self.peer_certificate()?)
    }

    #[must_use]
    pub fn peer_certificate(&self) -> Option<&[u8]> {
        self.connection
            .peer_certificates()?
            .first()
            .map(AsRef::as_ref)
    }
}

fn common_name(certificate: &[u8]) -> Option<String> {
    let mut names = common_names(certificate).ok()?.into_iter();
    // With several, programs choose different ones.
    let (Some(name), None) = (names.next(), names.next()) else {
        return None;
    };
    let is_text = matches!(
        name.tag(),
        Tag::Utf8String | Tag::PrintableString | Tag::Ia5String
    );
    let name = std::str::from_utf8(name.value()).ok().filter(|_| is_text)?;
    // A NUL would end the name for C programs (CVE-2009-4034).
    let is_fit = !name.is_empty() && !name.contains(char::is_control);
    is_fit.then(|| name.to_owned())
}

/// id-at-commonName, 2.5.4.3.
const COMMON_NAME: [u8; 3] = [0x55, 0x04, 0x03];

/// All common names in the subject of a certificate
/// ([RFC 5280, 4.1](https://www.rfc-editor.org/rfc/rfc5280#section-4.1)).
fn common_names(certificate: &[u8]) -> der::Result<Vec<AnyRef<'_>>> {
    let mut certificate = elements(AnyRef::from_der(certificate)?, Tag::Sequence)?;
    let mut fields = elements(certificate.decode()?, Tag::Sequence)?;
    let version_or_serial: AnyRef<'_> = fields.decode()?;
    // Serial number, unless there was no version; then signature, issuer and validity.
    let skipped = if version_or_serial.tag().is_context_specific() {
        4
    } else {
        3
    };
    for _ in 0..skipped {
        fields.decode::<AnyRef<'_>>()?;
    }
    let mut subject = elements(fields.decode()?, Tag::Sequence)?;
    let mut names = Vec::new();
    while !subject.is_finished() {
        let mut relative_name = elements(subject.decode()?, Tag::Set)?;
        while !relative_name.is_finished() {
            let mut attribute = elements(relative_name.decode()?, Tag::Sequence)?;
            let (kind, value): (AnyRef<'_>, AnyRef<'_>) =
                (attribute.decode()?, attribute.decode()?);
            if kind.tag() == Tag::ObjectIdentifier && kind.value() == COMMON_NAME {
                names.push(value);
            }
        }
    }
    Ok(names)
}

fn elements<'a>(all: AnyRef<'a>, tag: Tag) -> der::Result<SliceReader<'a>> {
    all.tag().assert_eq(tag)?;
    SliceReader::new(all.value())
}

#[cfg(test)]
mod tests;
