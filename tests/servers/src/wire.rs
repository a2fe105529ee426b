//! A client that speaks the protocol by hand: it sends exactly the given bytes.
//!
//! Message formats: <https://www.postgresql.org/docs/current/protocol-message-formats.html>.

mod batch;
mod message;
mod told;

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use rustls::{ClientConnection, StreamOwned};
use socket2::{SockFilter, SockRef};

pub use batch::{Batch, cancel_request, packet, startup_packet};
pub use message::{Message, as_of_18, assert_error, errors, pretty, tags};

use crate::machine::PATIENCE;
use crate::tls_client::TlsClient;

/// Protocol 3.0, which every driver speaks.
pub const PROTOCOL_3_0: u32 = 0x0003_0000;

/// With longer cancel keys; spoken by PostgreSQL 18.
pub const PROTOCOL_3_2: u32 = 0x0003_0002;

pub const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];

/// Parameters of a session as `postgres`.
pub const TRUSTED: [(&str, &str); 2] = [("user", "postgres"), ("database", "postgres")];

/// [`TRUSTED`], and these in addition.
pub fn trusted<'a>(more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    [&TRUSTED, more].concat()
}

/// Socket filter instruction that keeps the first bytes of a packet (`BPF_RET | BPF_K`).
const BPF_RETURN: u16 = 6;

#[derive(Clone, Debug)]
pub enum Endpoint {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl Endpoint {
    /// As in libpq: an address, or a socket's directory.
    pub fn host(&self) -> String {
        match self {
            Self::Tcp(address) => address.ip().to_string(),
            Self::Unix(path) => path
                .parent()
                .expect("a socket is in a directory")
                .display()
                .to_string(),
        }
    }

    /// As in libpq.
    pub fn port(&self) -> u16 {
        match self {
            Self::Tcp(address) => address.port(),
            Self::Unix(path) => {
                let number = path
                    .extension()
                    .and_then(|port| port.to_str())
                    .expect(".s.PGSQL.port");
                number.parse().expect("a port")
            }
        }
    }
}

enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
    Tls(Box<TlsStream>),
}

type TlsStream = StreamOwned<ClientConnection, TcpStream>;

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(buffer),
            Self::Unix(stream) => stream.read(buffer),
            Self::Tls(stream) => stream.read(buffer),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
            Self::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Tcp(_) | Self::Unix(_) => Ok(()),
            Self::Tls(stream) => stream.flush(),
        }
    }
}

pub struct Wire {
    socket: Socket,
    buffer: Vec<u8>,
    start: usize,
    key: Vec<u8>,
}

impl std::fmt::Debug for Wire {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wire").finish_non_exhaustive()
    }
}

impl Wire {
    /// Opens the socket and sends nothing. Later waits are bounded by [`PATIENCE`].
    pub fn try_connect(endpoint: &Endpoint) -> io::Result<Self> {
        let socket = match endpoint {
            Endpoint::Tcp(address) => {
                let stream = TcpStream::connect(address)?;
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                stream.set_write_timeout(Some(PATIENCE))?;
                Socket::Tcp(stream)
            }
            Endpoint::Unix(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                stream.set_write_timeout(Some(PATIENCE))?;
                Socket::Unix(stream)
            }
        };
        Ok(Self {
            socket,
            buffer: Vec::new(),
            start: 0,
            key: Vec::new(),
        })
    }

    #[track_caller]
    pub fn connect(endpoint: &Endpoint) -> Self {
        match Self::try_connect(endpoint) {
            Ok(wire) => wire,
            Err(error) => panic!("connect to {endpoint:?}: {error}"),
        }
    }

    /// Starts a session without authentication.
    #[track_caller]
    pub fn login(endpoint: &Endpoint, parameters: &[(&str, &str)]) -> Self {
        let mut wire = Self::connect(endpoint);
        wire.log_in(parameters);
        wire
    }

    /// Connects and sends the startup packet of `postgres`, with these parameters in addition.
    #[track_caller]
    pub fn open(endpoint: &Endpoint, more: &[(&str, &str)]) -> Self {
        let mut wire = Self::connect(endpoint);
        wire.startup(PROTOCOL_3_0, &trusted(more));
        wire
    }

    /// Starts a session without authentication.
    ///
    /// # Panics
    /// As [`Self::login`].
    #[track_caller]
    pub fn log_in(&mut self, parameters: &[(&str, &str)]) {
        self.startup(PROTOCOL_3_0, parameters);
        let answer = self.until_ready();
        let last = answer.last().map(|message| message.tag);
        assert_eq!(
            last,
            Some(b'Z'),
            "login with {parameters:?} was refused:\n{}",
            pretty(&answer)
        );
    }

    /// Starts TLS, after the peer has agreed or without asking it.
    pub fn encrypt(self, client: &TlsClient) -> io::Result<Self> {
        let Socket::Tcp(mut stream) = self.socket else {
            panic!("TLS is for TCP");
        };
        assert!(self.buffer.is_empty(), "there is more than the answer");
        let mut connection = client.connection();
        connection.complete_io(&mut stream)?;
        // In TLS 1.3 the server rejects a client certificate only after the handshake.
        let stream = StreamOwned::new(connection, stream);
        Ok(Self {
            socket: Socket::Tls(Box::new(stream)),
            ..self
        })
    }

    /// Connects, requests TLS and starts it.
    #[track_caller]
    pub fn connect_tls(endpoint: &Endpoint, client: &TlsClient) -> io::Result<Self> {
        let mut wire = Self::connect(endpoint);
        wire.send_bytes(&SSL_REQUEST);
        assert_eq!(wire.read_byte(), Some(b'S'), "the answer to SSLRequest");
        wire.encrypt(client)
    }

    #[track_caller]
    pub fn login_tls(endpoint: &Endpoint, client: &TlsClient, parameters: &[(&str, &str)]) -> Self {
        let mut wire = Self::connect_tls(endpoint, client).expect("TLS");
        wire.log_in(parameters);
        wire
    }

    /// Drops every later incoming packet unacknowledged, as if this machine were gone.
    pub fn vanish(&self) {
        let Socket::Tcp(stream) = &self.socket else {
            panic!("only a machine elsewhere can be gone");
        };
        let lose = SockFilter::new(BPF_RETURN, 0, 0, 0);
        let lost = SockRef::from(stream).attach_filter(&[lose]);
        lost.expect("attach a filter to a socket");
    }

    /// Its own, if it is a TCP socket.
    pub fn local_port(&self) -> Option<u16> {
        let Socket::Tcp(stream) = &self.socket else {
            return None;
        };
        stream.local_addr().ok().map(|address| address.port())
    }

    pub fn startup(&mut self, version: u32, parameters: &[(&str, &str)]) {
        self.send_bytes(&startup_packet(version, parameters));
    }

    /// Sends the startup packet of `postgres` with a token, and reads the reply.
    #[track_caller]
    pub fn start_as_leader(&mut self, token: &str) -> Vec<Message> {
        self.startup(PROTOCOL_3_0, &trusted(&[("fencing.token", token)]));
        self.until_ready()
    }

    /// Ignores a peer that has closed; reading shows it.
    pub fn send(&mut self, batch: &Batch) {
        self.send_bytes(batch.bytes());
    }

    pub fn send_bytes(&mut self, bytes: &[u8]) {
        let _reading_shows_it = self.try_send_bytes(bytes);
    }

    /// Fails if the peer has closed, or accepts nothing for [`PATIENCE`].
    pub fn try_send_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.socket.write_all(bytes)?;
        self.socket.flush()
    }

    /// Reads one message. The end of the connection is [`Message::closed`].
    #[track_caller]
    pub fn read(&mut self) -> Message {
        match self.try_read() {
            Ok(message) => message,
            Err(error) => panic!("no message came: {error}"),
        }
    }

    /// Fails if nothing arrives within [`Self::set_patience`].
    pub fn try_read(&mut self) -> io::Result<Message> {
        if !self.fill(5)? {
            return Ok(Message::closed());
        }
        let header = &self.buffer[self.start..self.start + 5];
        let tag = header[0];
        let length = u32::from_be_bytes([header[1], header[2], header[3], header[4]]) as usize;
        assert!(length >= 4, "a message with length {length}");
        if !self.fill(1 + length)? {
            return Ok(Message::closed());
        }
        let body = self.buffer[self.start + 5..self.start + 1 + length].to_vec();
        self.start += 1 + length;
        let message = Message { tag, body };
        if tag == b'K' {
            self.key.clone_from(&message.body);
        }
        Ok(message)
    }

    /// Reads until the buffer holds `count` bytes. False if the peer closes before.
    fn fill(&mut self, count: usize) -> io::Result<bool> {
        if self.start > 0 && self.start == self.buffer.len() {
            self.buffer.clear();
            self.start = 0;
        }
        while self.buffer.len() - self.start < count {
            let mut chunk = [0; 65_536];
            match self.socket.read(&mut chunk) {
                Ok(0) => return Ok(false),
                Ok(read) => self.buffer.extend_from_slice(&chunk[..read]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
                    ) =>
                {
                    return Ok(false);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Reads until ReadyForQuery or the end of the connection.
    #[track_caller]
    pub fn until_ready(&mut self) -> Vec<Message> {
        self.until(b'Z')
    }

    /// Sends a batch in one write and reads all replies to it. A Query with a known result marks the end.
    #[track_caller]
    pub fn run_all(&mut self, batch: &Batch) -> Vec<Message> {
        self.send(&batch.clone().query("SELECT 'the end'"));
        let mut answers = Vec::new();
        loop {
            let answer = self.until_ready();
            let is_end = answer
                .iter()
                .any(|m| m.is_closed() || m.tag == b'D' && m.row() == ["the end"]);
            answers.extend(answer);
            if is_end {
                return answers;
            }
        }
    }

    /// Reads until a message with this tag, or the end of the connection.
    #[track_caller]
    pub fn until(&mut self, tag: u8) -> Vec<Message> {
        let mut messages = Vec::new();
        loop {
            match self.try_read() {
                Ok(message) => {
                    let end = message.tag == tag || message.is_closed();
                    messages.push(message);
                    if end {
                        return messages;
                    }
                }
                Err(error) => {
                    panic!(
                        "waited for '{}': {error}; until then:\n{}",
                        char::from(tag),
                        pretty(&messages)
                    )
                }
            }
        }
    }

    #[track_caller]
    pub fn until_closed(&mut self) -> Vec<Message> {
        self.until(0)
    }

    /// Reads the reply to an encryption request; `None` if the peer closed.
    #[track_caller]
    pub fn read_byte(&mut self) -> Option<u8> {
        assert!(
            self.start == self.buffer.len(),
            "there is more than one byte"
        );
        let mut byte = [0];
        let read = self.socket.read(&mut byte).expect("one byte");
        (read == 1).then_some(byte[0])
    }

    #[track_caller]
    pub fn run(&mut self, batch: &Batch) -> Vec<Message> {
        self.send(batch);
        self.until_ready()
    }

    #[track_caller]
    pub fn query(&mut self, sql: &str) -> Vec<Message> {
        self.run(&Batch::new().query(sql))
    }

    /// As [`Self::query`], with an unnamed statement of the extended protocol.
    #[track_caller]
    pub fn extended(&mut self, sql: &str) -> Vec<Message> {
        self.run(&Batch::new().statement(sql).sync())
    }

    /// SQL that must succeed.
    #[track_caller]
    pub fn ok(&mut self, sql: &str) -> Vec<Message> {
        let answer = self.query(sql);
        let good = answer.last().is_some_and(|last| last.tag == b'Z') && errors(&answer).is_empty();
        assert!(good, "{sql}:\n{}", pretty(&answer));
        answer
    }

    /// Runs SQL that must fail with this error alone, and returns the reply.
    #[track_caller]
    pub fn fails(&mut self, sql: &str, sqlstate: &str) -> Vec<Message> {
        let answer = self.query(sql);
        assert_eq!(errors(&answer), [sqlstate], "{sql}:\n{}", pretty(&answer));
        answer
    }

    /// Rows of SQL that must succeed, as text; NULL is `NULL`.
    #[track_caller]
    pub fn rows(&mut self, sql: &str) -> Vec<Vec<String>> {
        self.ok(sql)
            .iter()
            .filter(|message| message.tag == b'D')
            .map(Message::row)
            .collect()
    }

    pub fn local_address(&self) -> SocketAddr {
        let address = match &self.socket {
            Socket::Tcp(stream) => stream.local_addr(),
            Socket::Tls(stream) => stream.sock.local_addr(),
            Socket::Unix(_) => panic!("a unix socket has no address"),
        };
        address.expect("an address")
    }

    /// Process id and cancellation secret.
    pub fn backend_key(&self) -> &[u8] {
        &self.key
    }

    pub fn backend_pid(&self) -> u32 {
        u32::from_be_bytes(self.key[..4].try_into().expect("four bytes"))
    }

    pub fn set_patience(&mut self, bound: Duration) {
        let set = match &self.socket {
            Socket::Tcp(stream) => stream.set_read_timeout(Some(bound)),
            Socket::Unix(stream) => stream.set_read_timeout(Some(bound)),
            Socket::Tls(stream) => stream.sock.set_read_timeout(Some(bound)),
        };
        set.expect("set a timeout");
    }

    pub fn set_write_patience(&mut self, bound: Duration) {
        let set = match &self.socket {
            Socket::Tcp(stream) => stream.set_write_timeout(Some(bound)),
            Socket::Unix(stream) => stream.set_write_timeout(Some(bound)),
            Socket::Tls(stream) => stream.sock.set_write_timeout(Some(bound)),
        };
        set.expect("set a timeout");
    }

    pub fn shut_down_writing(&mut self) {
        let _closed_already = match &mut self.socket {
            Socket::Tcp(stream) => stream.shutdown(Shutdown::Write),
            Socket::Unix(stream) => stream.shutdown(Shutdown::Write),
            Socket::Tls(stream) => {
                stream.conn.send_close_notify();
                let _closed_already = stream.flush();
                stream.sock.shutdown(Shutdown::Write)
            }
        };
    }
}
