//! What a server says at login that the client library keeps to itself: the pid of the session.
//!
//! The proxy registers sessions by this pid. Where a pooler made it up, no takeover could end them.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::wire::header;

/// A login is short: a server that sends more before BackendKeyData is not listened to any longer.
const LOGIN_MAX: usize = 64 * 1024;

/// Both directions of a connection, whatever it runs over.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// A connection that is listened to until the pid has been told.
pub(super) struct Overheard {
    stream: Box<dyn Stream>,
    greeting: Arc<Mutex<Greeting>>,
}

/// The part of a login that has been heard.
#[derive(Debug)]
pub(super) enum Greeting {
    /// Bytes in front of BackendKeyData.
    Listening(Vec<u8>),
    /// The pid in BackendKeyData.
    Told(i32),
    /// The login is over, or is none, and no pid was told.
    Silent,
}

impl Default for Greeting {
    fn default() -> Self {
        Self::Listening(Vec::new())
    }
}

impl Greeting {
    /// The pid that the server told.
    pub(super) const fn pid(&self) -> Option<i32> {
        match self {
            Self::Told(pid) => Some(*pid),
            _ => None,
        }
    }

    fn hear(&mut self, bytes: &[u8]) {
        if let Self::Listening(heard) = self {
            heard.extend_from_slice(bytes);
            *self = Self::scan(std::mem::take(heard));
        }
    }

    /// <https://www.postgresql.org/docs/current/protocol-message-formats.html>: BackendKeyData is `K`, the length,
    /// the pid, the key. ReadyForQuery (`Z`) ends the login.
    fn scan(mut heard: Vec<u8>) -> Self {
        let mut rest = heard.as_slice();
        loop {
            let message = match header::parse(rest, |_| LOGIN_MAX) {
                Ok(Some(message)) if rest.len() >= message.frame_len() => message,
                Ok(_) => break,
                Err(_) => return Self::Silent,
            };
            let (frame, after) = rest.split_at(message.frame_len());
            match (message.tag, frame.get(header::HEADER_LEN..)) {
                (b'K', Some(&[a, b, c, d, ..])) => {
                    return Self::Told(i32::from_be_bytes([a, b, c, d]));
                }
                (b'K' | b'Z', _) => return Self::Silent,
                _ => rest = after,
            }
        }
        let done = heard.len() - rest.len();
        heard.drain(..done);
        if heard.len() > LOGIN_MAX {
            return Self::Silent;
        }
        Self::Listening(heard)
    }
}

impl Overheard {
    pub(super) fn new(stream: Box<dyn Stream>) -> (Self, Arc<Mutex<Greeting>>) {
        let greeting = Arc::new(Mutex::default());
        let overheard = Self {
            stream,
            greeting: Arc::clone(&greeting),
        };
        (overheard, greeting)
    }
}

impl AsyncRead for Overheard {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        if let Some(new) = buf.filled().get(before..)
            && !new.is_empty()
        {
            self.greeting.lock().hear(new);
        }
        polled
    }
}

impl AsyncWrite for Overheard {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGIN: &[u8] =
        b"R\0\0\0\x08\0\0\0\0S\0\0\0\x09a\0bc\0K\0\0\0\x0c\0\0\x01\x02abcdZ\0\0\0\x05I";

    #[track_caller]
    fn check(pieces: &[&[u8]], expect: Option<i32>) {
        let mut greeting = Greeting::default();
        pieces.iter().for_each(|piece| greeting.hear(piece));
        assert_eq!(greeting.pid(), expect, "{pieces:?}");
    }

    #[test]
    fn the_pid_is_heard_however_the_bytes_come() {
        check(&[LOGIN], Some(0x102));
        let single: Vec<&[u8]> = LOGIN.chunks(1).collect();
        check(&single, Some(0x102));
        check(&[b"Z\0\0\0\x05I", LOGIN], None);
        check(&[b"R\xff\xff\xff\xff", LOGIN], None);
        check(&[b"K\0\0\0\x05x"], None);
        check(&[], None);
    }

    #[test]
    fn a_server_that_talks_on_fills_no_memory() {
        let mut greeting = Greeting::default();
        for _ in 0..100_000 {
            greeting.hear(b"S\0\0\xff\xf0");
            if let Greeting::Listening(heard) = &greeting {
                assert!(heard.len() <= LOGIN_MAX + 5);
            }
        }
    }
}
