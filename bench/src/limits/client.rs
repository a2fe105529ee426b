//! A client that costs little itself: blocking sockets, requests that were put together before, answers that are
//! counted and thrown away.
//!
//! Message formats: <https://www.postgresql.org/docs/current/protocol-message-formats.html>.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use pgpalisade_bench::Error;
use pgpalisade_bench::ground::{DATABASE, ROLE};
use pgpalisade_bench::targets::Target;
use pgpalisade_tests::wire::{PROTOCOL_3_0, startup_packet};
use tokio_util::sync::CancellationToken;

/// How much one read may bring, for a session that gets small answers. Thousands of them are open at once.
const READ_SMALL: usize = 4 * 1024;

/// The same for one that gets much.
const READ_LARGE: usize = 256 * 1024;

/// How long an answer may take in all.
const PATIENCE: Duration = Duration::from_secs(120);

/// How often one looks whether the run is to end.
const LOOK: Duration = Duration::from_millis(200);

/// A message is at most this long, or it is no message.
const MESSAGE_MAX: usize = 1 << 30;

/// How much a session is going to receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Appetite {
    Small,
    Large,
}

/// A session, logged in.
#[derive(Debug)]
pub(crate) struct Client {
    socket: TcpStream,
    /// Bytes from `start` to `end` have come and were not looked at.
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    read: usize,
    stop: CancellationToken,
}

/// What came before a ReadyForQuery.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    /// CommandComplete.
    pub(crate) completed: u64,
    /// Bytes of CopyData, without heads.
    pub(crate) copied: u64,
    /// The first column of the last row.
    pub(crate) value: Option<String>,
    /// SQLSTATE and message of the first error.
    pub(crate) error: Option<String>,
}

impl Answer {
    /// Itself, where it is no error and `count` statements were completed.
    pub(crate) fn expect(self, count: u64, doing: &str) -> Result<Self, Error> {
        match &self.error {
            Some(error) => Err(Error::Round(format!("{doing}: {error}"))),
            None if self.completed != count => Err(Error::Round(format!(
                "{doing}: {} statements of {count} were completed",
                self.completed
            ))),
            None => Ok(self),
        }
    }

    fn take(&mut self, tag: u8, body: &[u8]) {
        match tag {
            b'C' => self.completed += 1,
            b'd' => self.copied += body.len() as u64,
            b'D' => self.value = first_column(body),
            b'E' if self.error.is_none() => self.error = Some(error_text(body)),
            _ => {}
        }
    }
}

impl Client {
    /// Connects and logs in as the role of the bench, with the token where the target has one.
    pub(crate) fn login(
        target: &Target,
        appetite: Appetite,
        stop: &CancellationToken,
    ) -> Result<Self, Error> {
        Self::login_with(target, target.options(), appetite, stop)
    }

    /// The same with other options in the startup packet.
    pub(crate) fn login_with(
        target: &Target,
        options: Option<&str>,
        appetite: Appetite,
        stop: &CancellationToken,
    ) -> Result<Self, Error> {
        let address = target.address();
        let connect = || {
            let socket = TcpStream::connect((address.host.as_str(), address.port))?;
            socket.set_nodelay(true)?;
            socket.set_read_timeout(Some(LOOK))?;
            socket.set_write_timeout(Some(PATIENCE))?;
            Ok(socket)
        };
        let socket = connect().map_err(Error::system(format!("cannot reach {}", target.kind())))?;
        let mut client = Self {
            socket,
            buffer: Vec::new(),
            start: 0,
            end: 0,
            read: match appetite {
                Appetite::Small => READ_SMALL,
                Appetite::Large => READ_LARGE,
            },
            stop: stop.clone(),
        };
        let mut parameters = vec![("user", ROLE), ("database", DATABASE)];
        parameters.extend(options.map(|options| ("options", options)));
        client.send(&startup_packet(PROTOCOL_3_0, &parameters))?;
        let doing = format!("logging in at {}", target.kind());
        client.until_ready()?.expect(0, &doing)?;
        Ok(client)
    }

    /// Sends bytes.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.socket
            .write_all(bytes)
            .map_err(Error::system("sending"))
    }

    /// Sends requests, and reads to the next ReadyForQuery.
    pub(crate) fn run(&mut self, requests: &[u8]) -> Result<Answer, Error> {
        self.send(requests)?;
        self.until_ready()
    }

    /// Reads to the next ReadyForQuery.
    pub(crate) fn until_ready(&mut self) -> Result<Answer, Error> {
        self.until(b'Z')
    }

    /// Reads to the next message of this type, or an error where that comes first.
    pub(crate) fn until(&mut self, last: u8) -> Result<Answer, Error> {
        let mut answer = Answer::default();
        let mut size = self.read;
        loop {
            while let Some(whole) = whole_message(self.unread())? {
                let tag = self.buffer.get(self.start).copied().unwrap_or_default();
                let body = self.buffer.get(self.start + 5..self.start + whole);
                answer.take(tag, body.unwrap_or_default());
                self.start += whole;
                let is_refusal = tag == b'E' && last != b'Z';
                if tag == last || is_refusal {
                    return Ok(answer);
                }
            }
            // A message that is longer than the buffer gets room for all of it.
            while self.end - self.start >= size {
                size *= 2;
            }
            if let Err(error) = self.fill(size) {
                // Who is turned away is told why first.
                return Err(answer.error.map_or(error, Error::Round));
            }
        }
    }

    /// Sends all of `requests` on another thread while the answers are read, as a client that pipelines must: neither
    /// side of the connection holds them all.
    pub(crate) fn run_while_reading(&mut self, requests: &[u8]) -> Result<Answer, Error> {
        let cloned = self.socket.try_clone();
        let mut writing = cloned.map_err(Error::system("cannot share a socket"))?;
        std::thread::scope(|threads| {
            let writer = threads.spawn(move || writing.write_all(requests));
            let answer = self.until_ready();
            if answer.is_err() {
                // So that the writer ends, whatever it waits for.
                let _ = self.socket.shutdown(std::net::Shutdown::Both);
            }
            let written = writer
                .join()
                .map_err(|_| Error::Round("the writer panicked".to_owned()))?;
            let answer = answer?;
            written.map_err(Error::system("sending"))?;
            Ok(answer)
        })
    }

    /// Says goodbye, and waits for the other side to close.
    pub(crate) fn terminate(mut self) -> Result<(), Error> {
        self.send(b"X\0\0\0\x04")?;
        let begin = Instant::now();
        let mut rest = [0; 64];
        while begin.elapsed() < PATIENCE && !self.stop.is_cancelled() {
            match self.socket.read(&mut rest) {
                Ok(0) => return Ok(()),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(()),
                Ok(_) => {}
                Err(error) if is_no_news(&error) => {}
                Err(error) => return Err(Error::system("waiting for the end")(error)),
            }
        }
        Err(self.why_not())
    }

    fn unread(&self) -> &[u8] {
        self.buffer.get(self.start..self.end).unwrap_or_default()
    }

    /// Waits for more bytes, with room for `size` of them in all.
    fn fill(&mut self, size: usize) -> Result<(), Error> {
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        if self.buffer.len() < size {
            self.buffer.resize(size, 0);
        }
        let begin = Instant::now();
        loop {
            if self.stop.is_cancelled() || begin.elapsed() > PATIENCE {
                return Err(self.why_not());
            }
            let room = self.buffer.get_mut(self.end..).unwrap_or_default();
            match self.socket.read(room) {
                Ok(0) => return Err(Error::Round("the connection was closed".to_owned())),
                Ok(read) => {
                    self.end += read;
                    return Ok(());
                }
                Err(error) if is_no_news(&error) => {}
                Err(error) => return Err(Error::system("waiting for an answer")(error)),
            }
        }
    }

    fn why_not(&self) -> Error {
        match self.stop.is_cancelled() {
            true => Error::Interrupted,
            false => Error::Round(format!("no answer in {PATIENCE:?}")),
        }
    }
}

fn is_no_news(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
    )
}

/// The length of the first message with its head, where all of it is there.
fn whole_message(bytes: &[u8]) -> Result<Option<usize>, Error> {
    let Some(&[_, a, b, c, d]) = bytes.first_chunk::<5>() else {
        return Ok(None);
    };
    let whole = u32::from_be_bytes([a, b, c, d]) as usize + 1;
    if !(5..=MESSAGE_MAX).contains(&whole) {
        let text = format!("{whole} bytes");
        let what = "the length of a message".to_owned();
        return Err(Error::NotUnderstood { what, text });
    }
    Ok((bytes.len() >= whole).then_some(whole))
}

/// Of a DataRow.
fn first_column(body: &[u8]) -> Option<String> {
    let (length, rest) = body.get(2..)?.split_first_chunk::<4>()?;
    let length = usize::try_from(i32::from_be_bytes(*length)).ok()?;
    Some(String::from_utf8_lossy(rest.get(..length)?).into_owned())
}

/// SQLSTATE and message of an ErrorResponse.
fn error_text(body: &[u8]) -> String {
    let field = |code: u8| {
        let mut fields = body.split(|byte| *byte == 0);
        let field = fields.find(|field| field.first() == Some(&code));
        String::from_utf8_lossy(field.and_then(|field| field.get(1..)).unwrap_or_default())
    };
    format!("{} {}", field(b'C'), field(b'M'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_cut_at_their_ends() {
        let cases: [(&[u8], Option<usize>); 5] = [
            (b"", None),
            (b"Z\0\0\0", None),
            (b"Z\0\0\0\x05", None),
            (b"Z\0\0\0\x05I", Some(6)),
            (b"n\0\0\0\x04Z\0", Some(5)),
        ];
        for (bytes, expect) in cases {
            assert_eq!(whole_message(bytes).unwrap(), expect, "{bytes:?}");
        }
        assert!(whole_message(b"Z\0\0\0\x03").is_err());
        assert!(whole_message(b"Z\xff\0\0\x03").is_err());
    }

    #[test]
    fn answers_are_counted() {
        let mut answer = Answer::default();
        answer.take(b'D', b"\0\x02\0\0\0\x0242\0\0\0\x017");
        answer.take(b'd', b"0123456789");
        answer.take(b'C', b"SELECT 1\0");
        assert_eq!(answer.value.as_deref(), Some("42"));
        assert_eq!((answer.completed, answer.copied), (1, 10));
        assert!(answer.clone().expect(1, "x").is_ok());
        assert!(answer.clone().expect(2, "x").is_err());
        answer.take(b'E', b"SERROR\0CPF002\0Mrefused\0\0");
        answer.take(b'E', b"SERROR\0C42601\0Mlater\0\0");
        assert_eq!(answer.error.as_deref(), Some("PF002 refused"));
        assert!(answer.expect(1, "x").is_err());
        // NULL has no value.
        let mut answer = Answer::default();
        answer.take(b'D', b"\0\x01\xff\xff\xff\xff");
        assert_eq!(answer.value, None);
    }
}
