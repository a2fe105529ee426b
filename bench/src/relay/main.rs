//! `relay`: the floor that a proxy is compared with. It carries bytes in both directions and looks at none of them.
//!
//! One thread, epoll, sockets that do not block, one buffer: a request costs one wait, one read and one write, and so
//! does a reply. Nothing that has to see the bytes can cost less with these system calls.

mod pair;

use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;

use clap::Parser;
use rustix::event::epoll;
use rustix::fd::OwnedFd;

use crate::pair::{End, Pair, Stream};

/// Bytes that are read at once, and at most kept for a side that does not take them.
const BUFFER: usize = 16 * 1024;

/// Events that one wait may bring.
const EVENTS: usize = 256;

/// Of the listener, in what epoll hands back. Sessions have the numbers from 0.
const LISTENER: u64 = u64::MAX;

/// Carry bytes between clients and a server, and look at none of them
#[derive(Debug, Parser)]
#[command(name = "relay")]
struct Flags {
    /// Where to listen
    listen: SocketAddr,
    /// The server: HOST:PORT, or the path of a unix socket
    upstream: Upstream,
}

#[derive(Debug, Clone)]
enum Upstream {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl FromStr for Upstream {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.starts_with('/') {
            return Ok(Self::Unix(PathBuf::from(text)));
        }
        let address = text.parse().map(Self::Tcp);
        address.map_err(|_| "write 127.0.0.1:5432, or the path of a unix socket".to_owned())
    }
}

fn main() -> ExitCode {
    match relay(&Flags::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("relay: {error}");
            ExitCode::FAILURE
        }
    }
}

fn relay(flags: &Flags) -> io::Result<()> {
    let listener = TcpListener::bind(flags.listen)?;
    listener.set_nonblocking(true)?;
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let data = epoll::EventData::new_u64(LISTENER);
    epoll::add(&epoll, &listener, data, epoll::EventFlags::IN)?;
    let mut out = io::stdout();
    writeln!(out, "listening on {}", listener.local_addr()?)?;
    out.flush()?;
    let mut relay = Relay {
        epoll,
        listener,
        upstream: flags.upstream.clone(),
        sessions: Vec::new(),
        buffer: vec![0; BUFFER],
    };
    let mut events = Vec::with_capacity(EVENTS);
    loop {
        events.clear();
        match epoll::wait(
            &relay.epoll,
            rustix::buffer::spare_capacity(&mut events),
            None,
        ) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for event in &events {
            relay.take(*event);
        }
    }
}

struct Relay {
    epoll: OwnedFd,
    listener: TcpListener,
    upstream: Upstream,
    /// By number; the place of one that has ended is used again.
    sessions: Vec<Option<Pair>>,
    buffer: Vec<u8>,
}

impl Relay {
    fn take(&mut self, event: epoll::Event) {
        let data = event.data.u64();
        if data == LISTENER {
            return self.accept();
        }
        let end = if data & 1 == 0 {
            End::Client
        } else {
            End::Server
        };
        let number = usize::try_from(data >> 1).unwrap_or(usize::MAX);
        let Some(place) = self.sessions.get_mut(number) else {
            return;
        };
        // An event of a session that has ended in this round.
        let Some(pair) = place else { return };
        let goes_on = pair
            .take(end, event.flags, &mut self.buffer)
            .and_then(|()| pair.watch(&self.epoll, data >> 1));
        // What has ended, or failed, is closed: dropping the sockets takes them out of epoll too.
        if goes_on.is_err() || pair.has_ended() {
            *place = None;
        }
    }

    /// All that are waiting. One that cannot be served is closed.
    fn accept(&mut self) {
        while let Ok((client, _)) = self.listener.accept() {
            if let Err(error) = self.serve(client) {
                eprintln!("relay: {error}");
            }
        }
    }

    fn serve(&mut self, client: TcpStream) -> io::Result<()> {
        client.set_nodelay(true)?;
        client.set_nonblocking(true)?;
        // It waits here: logins are not what is measured.
        let server = match &self.upstream {
            Upstream::Tcp(address) => {
                let server = TcpStream::connect(address)?;
                server.set_nodelay(true)?;
                server.set_nonblocking(true)?;
                Stream::Tcp(server)
            }
            Upstream::Unix(path) => {
                let server = UnixStream::connect(path)?;
                server.set_nonblocking(true)?;
                Stream::Unix(server)
            }
        };
        let number = match self.sessions.iter().position(Option::is_none) {
            Some(free) => free,
            None => {
                self.sessions.push(None);
                self.sessions.len() - 1
            }
        };
        let mut pair = Pair::new(Stream::Tcp(client), server);
        pair.watch(&self.epoll, number as u64)?;
        if let Some(place) = self.sessions.get_mut(number) {
            *place = Some(pair);
        }
        Ok(())
    }
}
