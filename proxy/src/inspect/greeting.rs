//! The session's pid from a login, which the client library hides.
//!
//! If a pooler made it up, no takeover could end the session.

use pgpalisade_wire::header;

const LOGIN_MAX: usize = 64 * 1024;

/// The part of a login that has been read.
#[derive(Debug)]
pub(super) enum Greeting {
    Listening(Vec<u8>),
    Told(i32),
    Silent,
}

impl Default for Greeting {
    fn default() -> Self {
        Self::Listening(Vec::new())
    }
}

impl Greeting {
    pub(super) const fn pid(&self) -> Option<i32> {
        match self {
            Self::Told(pid) => Some(*pid),
            _ => None,
        }
    }

    pub(super) fn hear(&mut self, bytes: &[u8]) {
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
