//! `uring-trial relay KIND THREADS PORT UPSTREAM`. It ends when its standard input does, so that none is left behind.

use std::fmt;
use std::io;
use std::net::TcpListener;
use std::str::FromStr;
use std::thread;

use crate::intake::{self, Arrivals, Handoff, Nonblocking, Upstream};
use crate::{by_epoll, by_ring, by_ring_multishot, by_tokio};

/// How a relay waits for its sockets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// epoll; one buffer for all connections.
    Epoll,
    /// epoll for the waiting, and all sends of a wake-up in one entry into a ring.
    EpollBatch,
    /// io_uring: receive into a buffer of the direction's own, then send linked to the next receive.
    Ring,
    /// io_uring: multishot receive into buffers that all connections share, sends in the ring.
    RingMultishot,
    /// The same receive, and sends by a system call each: what fits code that writes where it decides.
    RingHybrid,
    /// tokio, one task for a connection, as the proxy is built.
    Tokio,
}

impl Kind {
    pub(crate) const ALL: [Self; 6] = [
        Self::Epoll,
        Self::EpollBatch,
        Self::Ring,
        Self::RingMultishot,
        Self::RingHybrid,
        Self::Tokio,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Epoll => "epoll",
            Self::EpollBatch => "epoll-batch",
            Self::Ring => "ring",
            Self::RingMultishot => "ring-multishot",
            Self::RingHybrid => "ring-hybrid",
            Self::Tokio => "tokio",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|kind| kind.name() == text);
        known.ok_or_else(|| {
            format!(
                "{text}: say one of {}",
                Self::ALL.map(Self::name).join(", ")
            )
        })
    }
}

/// Runs one relay until its standard input ends.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let [kind, threads, port, upstream] = args else {
        return Err("usage: uring-trial relay KIND THREADS PORT UPSTREAM".to_owned());
    };
    let kind: Kind = kind.parse()?;
    let threads: usize = threads.parse().map_err(|e| format!("{threads}: {e}"))?;
    let port: u16 = port.parse().map_err(|e| format!("{port}: {e}"))?;
    let upstream: Upstream = upstream.parse()?;
    serve(kind, threads, port, &upstream).map_err(|e| format!("relay {kind}: {e}"))
}

fn serve(kind: Kind, threads: usize, port: u16, upstream: &Upstream) -> io::Result<()> {
    let listener = TcpListener::bind(("127.0.0.1", port))?;
    let (body, nonblocking): (fn(Arrivals) -> io::Result<()>, _) = match kind {
        Kind::Epoll => (
            |a| by_epoll::run(a, by_epoll::Sends::AtOnce),
            Nonblocking::Yes,
        ),
        Kind::EpollBatch => (
            |a| by_epoll::run(a, by_epoll::Sends::Together),
            Nonblocking::Yes,
        ),
        Kind::Ring => (by_ring::run, Nonblocking::No),
        Kind::RingMultishot => (
            |a| by_ring_multishot::run(a, by_ring_multishot::Sends::InRing),
            Nonblocking::No,
        ),
        Kind::RingHybrid => (
            |a| by_ring_multishot::run(a, by_ring_multishot::Sends::ByCall),
            Nonblocking::No,
        ),
        Kind::Tokio => (by_tokio::run, Nonblocking::Yes),
    };
    let mut handoffs = Vec::new();
    for _ in 0..threads.max(1) {
        let (handoff, arrivals) = Handoff::new()?;
        handoffs.push(handoff);
        thread::spawn(move || {
            // A relay that has lost a thread measures nothing.
            if let Err(error) = body(arrivals) {
                eprintln!("relay {kind}: {error}");
                std::process::exit(1);
            }
        });
    }
    thread::spawn(|| {
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        std::process::exit(0);
    });
    let mut turn = 0;
    intake::accept(&listener, upstream, nonblocking, |pair| {
        turn += 1;
        handoffs[turn % handoffs.len()].give(pair)
    })
}
