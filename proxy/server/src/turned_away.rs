//! Connections without a worker: told so if the protocol allows it, and closed.

use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use pgpalisade_wire::encode::{self, ErrorFields, ErrorResponse, Severity};
use pgpalisade_wire::startup::{self, StartupPacket};
use tokio::sync::Semaphore;

use crate::certificates::Certificates;
use crate::listener::{Accepted, ClientStream};
use crate::message_socket::{MessageError, MessageSocket};
use crate::metrics::Metrics;

/// Limit of clients told at a time; others are closed silently.
const AT_A_TIME: usize = 256;

const SQLSTATE: &str = "53300";

/// Time limit for a client's startup packet and for reading the answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// Encryption requests before a startup packet: one of each kind.
const REQUESTS: usize = 2;

#[derive(Debug)]
pub(crate) struct TurnedAway {
    certificates: Arc<Certificates>,
    metrics: Metrics,
    places: Arc<Semaphore>,
}

impl TurnedAway {
    pub(crate) fn new(certificates: Arc<Certificates>, metrics: Metrics) -> Self {
        Self {
            certificates,
            metrics,
            places: Arc::new(Semaphore::new(AT_A_TIME)),
        }
    }

    pub(crate) fn turn_away(&self, accepted: Accepted) {
        self.metrics.refused_login(SQLSTATE);
        let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else {
            return;
        };
        let offer = match (&accepted.stream, &self.certificates.current().client) {
            (ClientStream::Tcp(_), Some(_)) => TlsOffer::Possible,
            _ => TlsOffer::Declined,
        };
        tokio::spawn(async move {
            let told = async { tell(MessageSocket::new(accepted.stream)?, offer).await };
            if let Ok(Err(error)) = tokio::time::timeout(PATIENCE, told).await {
                tracing::debug!(client_addr = %accepted.client_addr, %error, "turned away");
            }
            drop(place);
        });
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TlsOffer {
    /// An SSLRequest is answered with the error at once: a "no" might be taken for the reason.
    Possible,
    /// An SSLRequest is answered with "no", before the startup packet.
    Declined,
}

/// Tells a client that wants a session. Probes and other protocols get no answer.
async fn tell(mut socket: MessageSocket, offer: TlsOffer) -> Result<(), MessageError> {
    for _ in 0..=REQUESTS {
        let Some(packet) = socket.packet().await? else {
            return Ok(());
        };
        match (startup::parse(&packet), offer) {
            (Ok(StartupPacket::SslRequest), TlsOffer::Declined)
            | (Ok(StartupPacket::GssEncRequest), _) => {
                socket.out.extend_from_slice(b"N");
                socket.flush().await?;
            }
            (Ok(StartupPacket::CancelRequest | StartupPacket::OtherVersion(_)) | Err(_), _) => {
                return Ok(());
            }
            (Ok(StartupPacket::SslRequest | StartupPacket::Startup(_)), _) => break,
        }
    }
    too_many(&mut socket.out);
    socket.close().await;
    Ok(())
}

fn too_many(out: &mut BytesMut) {
    let error = ErrorFields {
        severity: Severity::Fatal,
        sqlstate: SQLSTATE,
        message: "sorry, too many clients already",
        detail: "The worker threads of pgpalisade cannot keep up with new connections.",
        hint: "",
    };
    encode::put(out, &ErrorResponse::from(&error));
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::UnixStream;

    use super::*;

    const SSL: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];
    const GSS: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 48];
    const STARTUP: &[u8] = b"\0\0\0\x11\0\x03\0\0user\0us\0\0";

    async fn answer(bytes: &[&[u8]], offer: TlsOffer) -> Vec<u8> {
        let (mut client, server) = UnixStream::pair().unwrap();
        client.write_all(&bytes.concat()).await.unwrap();
        client.shutdown().await.unwrap();
        let server = ClientStream::Unix(server.into_std().unwrap());
        let socket = MessageSocket::new(server).unwrap();
        // Fails for bytes that are not a packet.
        let _ = tell(socket, offer).await;
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn who_asks_for_a_session_is_told() {
        use TlsOffer::{Declined, Possible};
        let mut error = BytesMut::new();
        too_many(&mut error);
        assert_eq!(answer(&[STARTUP], Declined).await, error);
        assert_eq!(answer(&[STARTUP], Possible).await, error);
        let declined = [b"N", &*error].concat();
        assert_eq!(answer(&[&SSL, STARTUP], Declined).await, declined);
        assert_eq!(answer(&[&GSS, STARTUP], Possible).await, declined);
        let both = [b"NN", &*error].concat();
        assert_eq!(answer(&[&SSL, &GSS, STARTUP], Declined).await, both);
        // An error is valid after an SSLRequest, but not after a "no".
        assert_eq!(answer(&[&SSL], Possible).await, error);
        assert!(
            !answer(&[&SSL, &SSL, &SSL, &SSL], Declined)
                .await
                .ends_with(b"NNN")
        );
    }

    #[tokio::test]
    async fn who_does_not_is_not() {
        let cancel = b"\0\0\0\x10\x04\xd2\x16\x2e\0\0\0\0\0\0\0\0";
        let other_version = b"\0\0\0\x0c\0\x02\0\0user";
        let long_ssl = b"\0\0\0\x09\x04\xd2\x16\x2f\0";
        for bytes in [
            &b""[..],
            other_version,
            long_ssl,
            &STARTUP[..9],
            b"GET / HTTP/1.1\r\n\r\n",
            b"\x16\x03\x01\x02\0\x01",
            cancel,
        ] {
            assert_eq!(answer(&[bytes], TlsOffer::Declined).await, b"", "{bytes:?}");
        }
    }
}
