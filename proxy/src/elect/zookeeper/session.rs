//! A session with ZooKeeper, over one connection at a time, to whichever server answers.
//!
//! It is the ensemble's, and outlives a connection: with its number and its password it is taken up again at the next
//! server, where it has not ended meanwhile. Whatever is sent counts as a sign of life. Source:
//! <https://zookeeper.apache.org/doc/r3.8.0/zookeeperProgrammers.html#ch_zkSessions>.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::jute::{self, Ask, Connected, Reply};
use super::{Servers, ZooKeeperError};

/// How many servers that do not answer may be tried before a session is lost, at least.
const TRIES: u32 = 6;
/// A server gets at least so long.
const LEAST_PATIENCE: Duration = Duration::from_millis(500);

/// A session that was had. It ends with its timeout where nobody closes it.
pub(super) struct Session {
    servers: Servers,
    answers_within: Duration,
    /// How long it lives without a sign of life: what was asked for, or less where the servers give no more.
    lives: Duration,
    state: Mutex<State>,
}

/// What changes with each request.
struct State {
    /// None while a request is under way. One that is given up takes the connection with it, so that its answer is
    /// nobody else's.
    connection: Option<Connection>,
    /// Which server is asked next.
    next: usize,
    id: i64,
    password: Vec<u8>,
    timeout_ms: i32,
    /// No server is to answer that has not seen it.
    last_zxid: i64,
}

struct Connection {
    stream: TcpStream,
    xid: i32,
}

impl Session {
    /// Has one made, by the first server that does. Bounded.
    pub(super) async fn open(servers: &Servers, ttl: Duration) -> Result<Self, ZooKeeperError> {
        let mut state = State {
            connection: None,
            next: 0,
            id: 0,
            password: vec![0; 16],
            timeout_ms: i32::try_from(ttl.as_millis()).unwrap_or(i32::MAX),
            last_zxid: 0,
        };
        let answers_within = (ttl / TRIES).max(LEAST_PATIENCE);
        let connection = state.connect(servers, answers_within).await?;
        state.connection = Some(connection);
        let given = u64::try_from(state.timeout_ms).unwrap_or_default();
        let lives = ttl.min(Duration::from_millis(given));
        Ok(Self {
            servers: servers.clone(),
            answers_within: (lives / TRIES).max(LEAST_PATIENCE),
            lives,
            state: Mutex::new(state),
        })
    }

    /// How long it lives without a sign of life.
    pub(super) const fn lives(&self) -> Duration {
        self.lives
    }

    /// Asks, at another server where the connection is gone. Bounded: by a time for each server.
    pub(super) async fn ask(&self, request: Ask<'_>) -> Result<Bytes, ZooKeeperError> {
        let mut state = self.state.lock().await;
        let mut connection = match state.connection.take() {
            Some(connection) => connection,
            None => state.connect(&self.servers, self.answers_within).await?,
        };
        let answer = timeout(self.answers_within, connection.ask(request)).await;
        let reply = answer.map_err(|_| ZooKeeperError::Silent)??;
        if reply.zxid > 0 {
            state.last_zxid = reply.zxid;
        }
        state.connection = Some(connection);
        reply.body()
    }
}

impl State {
    /// Connects to the first server that takes the session, or makes it. The next attempt begins behind it.
    async fn connect(
        &mut self,
        servers: &Servers,
        within: Duration,
    ) -> Result<Connection, ZooKeeperError> {
        let mut last = ZooKeeperError::Silent;
        for _ in 0..servers.0.len() {
            let server = servers.0.get(self.next % servers.0.len());
            self.next = self.next.wrapping_add(1);
            let Some(server) = server else { continue };
            match timeout(within, self.connect_to(server)).await {
                Ok(Ok(connection)) => return Ok(connection),
                Ok(Err(ZooKeeperError::Expired)) => return Err(ZooKeeperError::Expired),
                Ok(Err(error)) => last = error,
                Err(_) => last = ZooKeeperError::Silent,
            }
        }
        Err(last)
    }

    async fn connect_to(&mut self, server: &str) -> Result<Connection, ZooKeeperError> {
        let mut connection = Connection {
            stream: TcpStream::connect(server).await?,
            xid: 0,
        };
        connection.stream.set_nodelay(true)?;
        let hello = jute::connect_frame(self.id, &self.password, self.last_zxid, self.timeout_ms);
        connection.stream.write_all(&hello).await?;
        let given = Connected::read(connection.frame().await?)?;
        if given.timeout_ms <= 0 {
            return Err(ZooKeeperError::Expired);
        }
        // Whoever counts on the longer time would not know.
        if self.id != 0 && given.timeout_ms < self.timeout_ms {
            return Err(ZooKeeperError::Shorter);
        }
        (self.id, self.password) = (given.session, given.password);
        self.timeout_ms = given.timeout_ms;
        Ok(connection)
    }
}

impl Connection {
    async fn ask(&mut self, request: Ask<'_>) -> Result<Reply, ZooKeeperError> {
        self.xid = self.xid.checked_add(1).unwrap_or(1);
        self.stream.write_all(&request.frame(self.xid)).await?;
        let reply = Reply::read(self.frame().await?)?;
        match reply.xid == self.xid {
            true => Ok(reply),
            false => Err(ZooKeeperError::Garbled),
        }
    }

    async fn frame(&mut self) -> Result<Bytes, ZooKeeperError> {
        let length = usize::try_from(self.stream.read_u32().await?).unwrap_or(usize::MAX);
        if length > jute::FRAME_MAX {
            return Err(ZooKeeperError::Garbled);
        }
        let mut frame = BytesMut::zeroed(length);
        self.stream.read_exact(&mut frame).await?;
        Ok(frame.freeze())
    }
}
