//! A TCP relay that can hold bytes back, to stop time between the proxy and the server.
//!
//! [`HeldRelay::hold`] affects the connections of that moment: their bytes stay in the relay until they are released
//! or cut.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// Time between two parts of what is released.
const MOMENT: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the side that connected to the relay.
    ToServer,
    ToClient,
}

#[derive(Debug, Default)]
struct Valve {
    state: Mutex<ValveState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct ValveState {
    holds: bool,
    held_bytes: usize,
    /// Bytes that follow the others a moment later, once these are released.
    late_bytes: usize,
}

#[derive(Debug)]
struct Connection {
    client: TcpStream,
    server: TcpStream,
    to_server: Arc<Valve>,
    to_client: Arc<Valve>,
}

impl Connection {
    fn valve(&self, direction: Direction) -> &Valve {
        match direction {
            Direction::ToServer => &self.to_server,
            Direction::ToClient => &self.to_client,
        }
    }

    fn cut(&self) {
        let _closed_already = (
            self.client.shutdown(Shutdown::Both),
            self.server.shutdown(Shutdown::Both),
        );
    }
}

/// Dropping it cuts its connections and frees its port.
#[derive(Debug)]
pub struct HeldRelay {
    address: SocketAddr,
    connections: Arc<Mutex<Vec<Connection>>>,
    stopped: Arc<AtomicBool>,
    acceptor: Option<JoinHandle<()>>,
}

impl HeldRelay {
    pub fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        let address = listener.local_addr().expect("its address");
        let connections = Arc::new(Mutex::new(Vec::new()));
        let stopped = Arc::new(AtomicBool::new(false));
        let (list, stop) = (Arc::clone(&connections), Arc::clone(&stopped));
        let acceptor = std::thread::spawn(move || {
            for client in listener.incoming() {
                if stop.load(Ordering::SeqCst) {
                    return;
                }
                // Without a server the client's connection closes, as on a real network.
                let Ok(client) = client else { continue };
                let Ok(server) = TcpStream::connect(server) else {
                    continue;
                };
                list.lock()
                    .expect("connections")
                    .push(relay(client, server));
            }
        });
        Self {
            address,
            connections,
            stopped,
            acceptor: Some(acceptor),
        }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Holds back later bytes in one direction on the open connections.
    pub fn hold(&self, direction: Direction) {
        self.each(|connection| {
            connection
                .valve(direction)
                .state
                .lock()
                .expect("valve")
                .holds = true
        });
    }

    pub fn release(&self, direction: Direction) {
        self.release_in_two(direction, 0);
    }

    /// Releases all that has come, its last bytes a moment after the others.
    pub fn release_in_two(&self, direction: Direction, late_bytes: usize) {
        self.each(|connection| {
            let valve = connection.valve(direction);
            let mut state = valve.state.lock().expect("valve");
            (state.holds, state.late_bytes) = (false, late_bytes);
            valve.changed.notify_all();
        });
    }

    pub fn held_bytes(&self, direction: Direction) -> usize {
        let mut sum = 0;
        self.each(|connection| {
            sum += connection
                .valve(direction)
                .state
                .lock()
                .expect("valve")
                .held_bytes
        });
        sum
    }

    pub fn cut(&self) {
        self.each(Connection::cut);
        self.release(Direction::ToServer);
        self.release(Direction::ToClient);
    }

    /// Resets the connections with the clients, as a firewall does that has forgotten them. What is held stays so, and
    /// the server is told nothing.
    pub fn forget_clients(&self) {
        self.each(|connection| rustix::net::connect_unspec(&connection.client).expect("a reset"));
    }

    fn each(&self, visit: impl FnMut(&Connection)) {
        self.connections
            .lock()
            .expect("connections")
            .iter()
            .for_each(visit);
    }
}

impl Drop for HeldRelay {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::SeqCst);
        // Wakes the acceptor, which then sees the stop flag.
        let _woken = TcpStream::connect(self.address);
        if let Some(acceptor) = self.acceptor.take() {
            let _ended = acceptor.join();
        }
        self.cut();
    }
}

fn relay(client: TcpStream, server: TcpStream) -> Connection {
    let _faster = (client.set_nodelay(true), server.set_nodelay(true));
    let (to_server, to_client) = (Arc::new(Valve::default()), Arc::new(Valve::default()));
    let copy = |stream: &TcpStream| stream.try_clone().expect("a second handle of a socket");
    pump(copy(&client), copy(&server), Arc::clone(&to_server));
    pump(copy(&server), copy(&client), Arc::clone(&to_client));
    Connection {
        client,
        server,
        to_server,
        to_client,
    }
}

/// Copies one direction on a thread, which ends with the connection.
fn pump(mut from: TcpStream, mut to: TcpStream, valve: Arc<Valve>) {
    std::thread::spawn(move || {
        let mut buffer = vec![0; 65_536];
        while let Ok(mut read) = from.read(&mut buffer) {
            let mut state = valve.state.lock().expect("valve");
            state.held_bytes += read;
            while state.holds {
                state = valve.changed.wait(state).expect("valve");
            }
            state.held_bytes -= read;
            let late = std::mem::take(&mut state.late_bytes);
            drop(state);
            if late > 0 {
                read += from.read(&mut buffer[read..]).unwrap_or_default();
            }
            let (first, last) = buffer[..read].split_at(read.saturating_sub(late));
            let mut sent = to.write_all(first);
            if late > 0 {
                std::thread::sleep(MOMENT);
                sent = sent.and_then(|()| to.write_all(last));
            }
            if read == 0 || sent.is_err() {
                break;
            }
        }
        let _closed_already = to.shutdown(Shutdown::Write);
    });
}
