//! TLS handshakes on a socket.

use std::io;

use bytes::BytesMut;
use pgpalisade_tls::TlsState;

use super::Socket;

impl Socket {
    /// Does a session's handshake, for which `received` has come, and encrypts everything after it. A refused peer is
    /// told why. The caller bounds the wait; if it ends early, nothing more may be sent.
    ///
    /// # Errors
    ///
    /// Socket errors, and errors of the peer.
    pub(crate) async fn begin_tls(
        &mut self,
        mut session: TlsState,
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
