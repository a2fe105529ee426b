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

pub(crate) use outbox::Outbox;
pub use send_batch::Batching;
pub(crate) use send_batch::{SendBatch, allowed_batching};
pub(crate) use socket::{Lookout, Socket, dial};
pub(crate) use stall::{Stall, StallLimit, Unsent};

/// Size of the read buffer, shared by all connections of a worker. A large result takes a quarter of the system calls
/// that PostgreSQL's own 16 KiB would take.
const SCRATCH: usize = 64 * 1024;

/// Above this many unsent bytes towards one side, the other side is not read.
pub(crate) const OUTBOX_HIGH_WATER: usize = 64 * 1024;

/// The read buffer of all connections of a worker. A connection keeps its own memory only for a message that is
/// incomplete or may not be sent yet, so an idle session holds none.
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

    /// The bytes of the last read.
    #[inline]
    #[must_use]
    pub(crate) fn front(&self, read: usize) -> &[u8] {
        self.0.get(..read).unwrap_or_default()
    }
}
