//! From a socket in the clear to one that is encrypted.

use std::io;

use bytes::BytesMut;
use pgpalisade_tls::Session as TlsSession;

use super::Socket;

impl Socket {
    /// Does the handshake of a session, of which these bytes have come already, and encrypts everything from then on.
    /// A peer that is refused is told why. The caller bounds the wait; nothing more may be sent where it ends early.
    ///
    /// # Errors
    ///
    /// Those of the socket, or what is wrong with the peer.
    pub(crate) async fn begin_tls(
        &mut self,
        mut session: TlsSession,
        received: &[u8],
    ) -> io::Result<()> {
        let (mut bytes, mut out) = (BytesMut::from(received), BytesMut::new());
        loop {
            let step = session.on_handshake(&bytes);
            session.take_output(&mut out)?;
            let sent = self.send_all(&out).await;
            step?;
            sent?;
            if !session.is_handshaking() {
                self.encrypt_with(session);
                return Ok(());
            }
            out.clear();
            bytes.clear();
            self.read_more(&mut bytes).await?;
        }
    }
}
