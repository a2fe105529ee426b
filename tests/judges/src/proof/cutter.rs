//! A network that can be cut: each link is a relay that forwards bytes, holds them, or closes its connections.
//!
//! A link that holds also holds connections made meanwhile. Held bytes continue once the link opens, however late: a
//! stale write.
//!
//! A link that strands holds the existing connections and lets new ones pass. The sender of the held bytes repeats
//! them on a new connection, and the first ones arrive after the reply to the second ones.
//!
//! A link that flaps closes its connections, and each new one after some bytes of replies.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use pgpalisade_test_servers::wire::Endpoint;

const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// Time for which a stranded connection stays open after its last byte: as long as a store may take to process it.
const LINGER: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    Open,
    HoldToServer,
    HoldToClient,
    HoldBoth,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    ToServer,
    ToClient,
}

impl Flow {
    fn lets_pass(self, direction: Direction) -> bool {
        match self {
            Self::Open => true,
            Self::HoldToServer => direction == Direction::ToClient,
            Self::HoldToClient => direction == Direction::ToServer,
            Self::HoldBoth => false,
        }
    }
}

/// All links of a run, and the thread that moves their bytes.
#[derive(Debug)]
pub struct Network {
    runtime: Runtime,
}

/// Ends with its network.
#[derive(Debug)]
pub struct Link {
    address: SocketAddr,
    flow: watch::Sender<Flow>,
    cuts: watch::Sender<u64>,
    strands: watch::Sender<Strands>,
    limit: watch::Sender<Option<usize>>,
    server: watch::Sender<Endpoint>,
}

/// Stranded connections. A connection's number is the count of strandings before it was made.
#[derive(Clone, Copy, Debug, Default)]
struct Strands {
    /// Connections with lower numbers are held in both directions
    held: u64,
    /// once their clients have sent this many more bytes.
    behind: usize,
    /// Clients of lower numbers have been disconnected.
    abandoned: u64,
    /// Bytes of lower numbers continue.
    released: u64,
}

impl Strands {
    fn holds(&self, number: u64) -> bool {
        (self.released..self.held).contains(&number)
    }
}

trait Duplex: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Duplex for T {}

impl Network {
    pub fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        Self { runtime }
    }

    /// On a free TCP port.
    pub fn link(&self, server: Endpoint) -> Link {
        let listener = self
            .runtime
            .block_on(TcpListener::bind(("127.0.0.1", 0)))
            .expect("a free port");
        let address = listener.local_addr().expect("its address");
        let flow = watch::Sender::new(Flow::Open);
        let cuts = watch::Sender::new(0);
        let strands = watch::Sender::new(Strands::default());
        let limit = watch::Sender::new(None);
        let server = watch::Sender::new(server);
        let to = server.subscribe();
        let valve = Valve {
            flow: flow.subscribe(),
            cuts: cuts.subscribe(),
            strands: strands.subscribe(),
            limit: limit.subscribe(),
            number: 0,
            answers_max: None,
            sent: Arc::default(),
        };
        self.runtime.spawn(async move {
            loop {
                // A connection that is gone before it is accepted does not concern the others.
                if let Ok((client, _)) = listener.accept().await {
                    let _faster = client.set_nodelay(true);
                    tokio::spawn(relay(client, to.borrow().clone(), valve.clone()));
                }
            }
        });
        Link {
            address,
            flow,
            cuts,
            strands,
            limit,
            server,
        }
    }
}

impl Default for Network {
    fn default() -> Self {
        Self::new()
    }
}

impl Link {
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn set(&self, flow: Flow) {
        self.flow.send_replace(flow);
    }

    /// Leads new connections to another server, as a moved IP address does.
    pub fn lead_to(&self, server: Endpoint) {
        self.server.send_replace(server);
    }

    pub fn cut(&self) {
        self.cuts.send_modify(|count| *count += 1);
    }

    /// Ends each new connection after this many bytes of replies.
    pub fn limit(&self, bytes: Option<usize>) {
        self.limit.send_replace(bytes);
    }

    /// Holds each existing connection once its client has sent `behind` more bytes, and lets new ones pass.
    pub fn strand(&self, behind: usize) {
        self.strands.send_modify(|strands| {
            strands.held += 1;
            strands.behind = behind;
        });
    }

    /// Disconnects the clients of stranded connections. Their sent bytes are kept.
    pub fn abandon(&self) {
        self.strands
            .send_modify(|strands| strands.abandoned = strands.held);
    }

    /// Lets stranded bytes continue, also to clients that were not disconnected.
    pub fn release(&self) {
        self.strands
            .send_modify(|strands| strands.released = strands.held);
    }
}

#[derive(Clone)]
struct Valve {
    flow: watch::Receiver<Flow>,
    cuts: watch::Receiver<u64>,
    strands: watch::Receiver<Strands>,
    limit: watch::Receiver<Option<usize>>,
    /// See [`Strands`].
    number: u64,
    /// Bytes of replies that the connection may carry.
    answers_max: Option<usize>,
    sent: Arc<AtomicUsize>,
}

impl Valve {
    async fn passes(&mut self, direction: Direction, bytes: usize) {
        let number = self.number;
        let strands = *self.strands.borrow();
        let more = match direction {
            Direction::ToServer => bytes,
            Direction::ToClient => 0,
        };
        let is_late = strands.holds(number)
            && self.sent.fetch_add(more, Ordering::Relaxed) + more >= strands.behind;
        if is_late {
            // An error means that the link and its network are gone.
            drop(self.strands.wait_for(|all| !all.holds(number)).await);
        }
        drop(self.flow.wait_for(|flow| flow.lets_pass(direction)).await);
    }

    async fn is_abandoned(&mut self) {
        let number = self.number;
        let abandoned = self.strands.wait_for(|all| number < all.abandoned);
        if abandoned.await.is_err() {
            std::future::pending().await
        }
    }

    /// Keeps the server's side open until it can have processed the late bytes.
    async fn lingers(&self) {
        if self.number < self.strands.borrow().abandoned {
            sleep(LINGER).await;
        }
    }
}

async fn relay(client: TcpStream, server: Endpoint, mut valve: Valve) {
    valve.number = valve.strands.borrow().held;
    valve.answers_max = *valve.limit.borrow();
    valve.sent = Arc::default();
    let mut cuts = valve.cuts.clone();
    cuts.mark_unchanged();
    let both = async {
        valve.passes(Direction::ToServer, 0).await;
        // Without a server the client's connection closes, as on a real network.
        let Ok(Some(server)) = timeout(CONNECT_WITHIN, connect(&server)).await else {
            return;
        };
        let (client_read, client_write) = tokio::io::split(client);
        let (server_read, server_write) = tokio::io::split(server);
        let to_server = pump(
            client_read,
            server_write,
            Direction::ToServer,
            valve.clone(),
        );
        let (mut to_server, answers) = (pin!(to_server), answer(server_read, client_write, valve));
        let mut answers = pin!(answers);
        tokio::select! {
            passed = &mut answers => {
                // Otherwise the connection counts as cut.
                if passed == Passed::All {
                    to_server.await;
                }
            }
            _ = &mut to_server => {
                answers.await;
            }
        }
    };
    tokio::select! {
        // A cut takes precedence over a flow that opened after it.
        biased;
        _ = cuts.changed() => {}
        () = both => {}
    }
}

async fn connect(server: &Endpoint) -> Option<Box<dyn Duplex>> {
    match server {
        Endpoint::Tcp(address) => {
            let stream = TcpStream::connect(address).await.ok()?;
            stream.set_nodelay(true).ok()?;
            Some(Box::new(stream))
        }
        Endpoint::Unix(path) => Some(Box::new(UnixStream::connect(path).await.ok()?)),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Passed {
    All,
    /// Up to the connection's limit.
    Part,
}

/// Copies the server's bytes until the client is disconnected.
async fn answer(
    server: impl AsyncRead + Unpin,
    mut client: impl AsyncWrite + Unpin,
    mut valve: Valve,
) -> Passed {
    let copy = pump(server, &mut client, Direction::ToClient, valve.clone());
    tokio::select! {
        passed = copy => passed,
        () = valve.is_abandoned() => {
            let _closed_already = client.shutdown().await;
            Passed::All
        }
    }
}

async fn pump(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    direction: Direction,
    mut valve: Valve,
) -> Passed {
    let mut buffer = vec![0; 16_384];
    let mut left = match direction {
        Direction::ToServer => None,
        Direction::ToClient => valve.answers_max,
    };
    while let Ok(read) = from.read(&mut buffer).await {
        valve.passes(direction, read).await;
        let passes = left.map_or(read, |left| read.min(left));
        if read == 0 || to.write_all(&buffer[..passes]).await.is_err() {
            break;
        }
        left = left.map(|left| left - passes);
        if left == Some(0) {
            return Passed::Part;
        }
    }
    if direction == Direction::ToServer {
        valve.lingers().await;
    }
    let _closed_already = to.shutdown().await;
    Passed::All
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn pair() -> (Network, Link, TcpStream, TcpStream) {
        limited_pair(None)
    }

    fn limited_pair(bytes: Option<usize>) -> (Network, Link, TcpStream, TcpStream) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        let network = Network::new();
        let link = network.link(Endpoint::Tcp(listener.local_addr().expect("its address")));
        link.limit(bytes);
        let client = TcpStream::connect(link.address()).expect("connect to the link");
        let (server, _) = listener.accept().expect("the link connects");
        for stream in [&client, &server] {
            let timeout = Some(Duration::from_secs(10));
            stream.set_read_timeout(timeout).expect("a timeout");
        }
        (network, link, client, server)
    }

    fn has_nothing(stream: &mut TcpStream) -> bool {
        let bound = Some(Duration::from_millis(100));
        stream.set_read_timeout(bound).expect("a timeout");
        let read = stream.read(&mut [0; 9]);
        let bound = Some(Duration::from_secs(10));
        stream.set_read_timeout(bound).expect("a timeout");
        read.is_err()
    }

    fn next(stream: &mut TcpStream) -> [u8; 3] {
        let mut bytes = [0; 3];
        stream.read_exact(&mut bytes).expect("three bytes");
        bytes
    }

    #[test]
    fn holds_one_direction_and_lets_go() {
        let (_network, link, mut client, mut server) = pair();
        link.set(Flow::HoldToServer);
        client.write_all(b"abc").expect("write");
        server.write_all(b"xyz").expect("write");
        assert_eq!(&next(&mut client), b"xyz");
        assert!(has_nothing(&mut server));
        link.set(Flow::Open);
        assert_eq!(&next(&mut server), b"abc");
    }

    #[test]
    fn a_cut_loses_what_was_held() {
        let (_network, link, mut client, mut server) = pair();
        link.set(Flow::HoldBoth);
        client.write_all(b"abc").expect("write");
        assert!(has_nothing(&mut server));
        link.cut();
        link.set(Flow::Open);
        for stream in [&mut client, &mut server] {
            // End of the connection or a reset, without a byte.
            assert!(matches!(stream.read(&mut [0; 9]), Ok(0) | Err(_)));
        }
    }

    /// A new connection sends the same bytes again, and then the old ones arrive.
    #[test]
    fn what_is_stranded_arrives_late() {
        let (_network, link, mut client, mut server) = pair();
        link.strand(0);
        client.write_all(b"abc").expect("write");
        assert!(has_nothing(&mut server));
        link.abandon();
        assert!(matches!(client.read(&mut [0; 9]), Ok(0)));
        drop(client);
        let mut again = TcpStream::connect(link.address()).expect("the relay accepts");
        again.write_all(b"xyz").expect("write");
        assert!(has_nothing(&mut server));
        link.release();
        assert_eq!(&next(&mut server), b"abc");
    }

    /// Replies that arrive meanwhile pass.
    #[test]
    fn what_is_stranded_later_passes_before() {
        let (_network, link, mut client, mut server) = pair();
        link.strand(6);
        client.write_all(b"abc").expect("write");
        assert_eq!(&next(&mut server), b"abc");
        server.write_all(b"xyz").expect("write");
        assert_eq!(&next(&mut client), b"xyz");
        client.write_all(b"def").expect("write");
        assert!(has_nothing(&mut server));
        link.release();
        assert_eq!(&next(&mut server), b"def");
    }

    #[test]
    fn a_connection_ends_behind_its_last_byte() {
        let (_network, _link, mut client, mut server) = limited_pair(Some(3));
        client.write_all(b"abc").expect("write");
        assert_eq!(&next(&mut server), b"abc");
        server.write_all(b"xyzxyz").expect("write");
        assert_eq!(&next(&mut client), b"xyz");
        for stream in [&mut client, &mut server] {
            assert!(matches!(stream.read(&mut [0; 9]), Ok(0) | Err(_)));
        }
    }

    #[test]
    fn new_connections_wait_too() {
        let (_network, link, _client, _server) = pair();
        link.set(Flow::HoldBoth);
        let mut late = TcpStream::connect(link.address()).expect("the relay accepts");
        late.write_all(b"abc").expect("write");
        assert!(has_nothing(&mut late));
        link.cut();
        link.set(Flow::Open);
        assert!(matches!(late.read(&mut [0; 9]), Ok(0) | Err(_)));
    }
}
