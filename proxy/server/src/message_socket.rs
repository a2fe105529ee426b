//! A socket without a session, of an operator: bounded messages.

use std::io;
use std::time::Duration;

use bytes::BytesMut;
use pgpalisade_wire::WireError;
use pgpalisade_wire::header::{self, HEADER_LEN};
use pgpalisade_wire::startup;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};
use tokio_util::either::Either;

use crate::listener::ClientStream;

const BODY_MAX: usize = 16 * 1024;

/// Limit for a client that accepts no answer.
const TAKEN_WITHIN: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub enum MessageError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error("no message arrived in time")]
    Idle,
}

pub struct Message {
    pub tag: u8,
    pub body: BytesMut,
}

pub struct MessageSocket {
    stream: Either<TcpStream, UnixStream>,
    inbox: BytesMut,
    pub out: BytesMut,
}

impl MessageSocket {
    pub fn new(stream: ClientStream) -> io::Result<Self> {
        let stream = match stream {
            ClientStream::Tcp(stream) => Either::Left(TcpStream::from_std(stream)?),
            ClientStream::Unix(stream) => Either::Right(UnixStream::from_std(stream)?),
        };
        Ok(Self {
            stream,
            inbox: BytesMut::new(),
            out: BytesMut::new(),
        })
    }

    pub fn peer_uid(&self) -> Option<u32> {
        match &self.stream {
            Either::Left(_) => None,
            Either::Right(stream) => Some(stream.peer_cred().ok()?.uid()),
        }
    }

    pub async fn packet(&mut self) -> Result<Option<BytesMut>, MessageError> {
        loop {
            match startup::packet_len(&self.inbox)? {
                Some(len) if self.inbox.len() >= len => return Ok(Some(self.inbox.split_to(len))),
                _ if self.read().await? == 0 => return Ok(None),
                _ => {}
            }
        }
    }

    pub async fn message(&mut self) -> Result<Option<Message>, MessageError> {
        loop {
            match header::parse(&self.inbox, |_| BODY_MAX)? {
                Some(header) if self.inbox.len() >= header.frame_len() => {
                    let mut frame = self.inbox.split_to(header.frame_len());
                    let body = frame.split_off(HEADER_LEN);
                    return Ok(Some(Message {
                        tag: header.tag,
                        body,
                    }));
                }
                _ if self.read().await? == 0 => return Ok(None),
                _ => {}
            }
        }
    }

    /// The next message, which must arrive whole within `time`.
    pub async fn message_within(
        &mut self,
        time: Duration,
    ) -> Result<Option<Message>, MessageError> {
        let message = tokio::time::timeout(time, self.message()).await;
        message.unwrap_or(Err(MessageError::Idle))
    }

    pub fn is_drained(&self) -> bool {
        self.inbox.is_empty()
    }

    async fn read(&mut self) -> io::Result<usize> {
        self.inbox.reserve(HEADER_LEN + 1024);
        self.stream.read_buf(&mut self.inbox).await
    }

    pub async fn flush(&mut self) -> io::Result<()> {
        let write = self.stream.write_all(&self.out);
        let written = tokio::time::timeout(TAKEN_WITHIN, write).await;
        written.map_err(|_| io::ErrorKind::TimedOut)??;
        self.out.clear();
        Ok(())
    }

    /// Sends [`Self::out`] and closes. Reads until the client closes: the system drops the answer if a socket is
    /// closed with unread bytes.
    pub async fn close(mut self) {
        if self.flush().await.is_err() || self.stream.shutdown().await.is_err() {
            return;
        }
        let drain = async {
            while self
                .stream
                .read_buf(&mut self.inbox)
                .await
                .is_ok_and(|read| read > 0)
            {
                self.inbox.clear();
            }
        };
        let _ = tokio::time::timeout(Duration::from_secs(1), drain).await;
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::net::UnixStream as StdStream;

    use super::*;

    #[tokio::test]
    async fn who_is_idle_is_not_waited_for() {
        let (mut client, ours) = StdStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let mut socket = MessageSocket::new(ClientStream::Unix(ours)).unwrap();
        client.write_all(b"S\0\0\0\x04").unwrap();
        let message = socket.message_within(Duration::from_secs(60)).await;
        assert_eq!(message.unwrap().unwrap().tag, b'S');
        // Neither silence nor a part of a message holds the proxy up.
        for begun in [&b""[..], b"Q\0"] {
            client.write_all(begun).unwrap();
            let waited = socket.message_within(Duration::from_millis(20));
            let waited = tokio::time::timeout(Duration::from_secs(60), waited).await;
            assert!(matches!(waited.unwrap(), Err(MessageError::Idle)));
        }
    }
}
