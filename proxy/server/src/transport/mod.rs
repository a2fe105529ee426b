//! Sockets, and the bytes that wait on either side of them. Only this module reads and writes.

mod handshake;
mod outbox;
mod send_batch;
mod shared_stream;
mod socket;
mod stall;
mod stream;
#[cfg(test)]
mod tests;

pub use send_batch::Batching;
pub(crate) use send_batch::{SendBatch, allowed_batching};
pub(crate) use socket::{Lookout, Socket};
pub(crate) use stall::{Stall, StallLimit, Unsent};

/// Size of the read buffer, shared by a worker's connections: a large result takes a quarter of the system calls of
/// PostgreSQL's 16 KiB.
const SCRATCH: usize = 64 * 1024;

/// Above this many unsent bytes to one side, the other side is not read.
pub(crate) const OUTBOX_HIGH_WATER: usize = 64 * 1024;

/// The read buffer of a worker's connections. A connection holds memory only for a message that is incomplete or may
/// not be sent yet.
#[derive(Debug)]
pub(crate) struct Scratch(Box<[u8]>);

impl Default for Scratch {
    fn default() -> Self {
        Self(vec![0; SCRATCH].into())
    }
}

impl Scratch {
    #[inline]
    pub(crate) fn room(&mut self) -> &mut [u8] {
        &mut self.0
    }

    #[inline]
    #[must_use]
    pub(crate) fn front(&self, read: usize) -> &[u8] {
        self.0.get(..read).unwrap_or_default()
    }
}
