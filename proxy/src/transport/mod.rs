//! Sockets, and the bytes that wait on either side of them. The only place that reads and writes.

mod outbox;
mod socket;
mod stall;

pub use outbox::Outbox;
pub use socket::{Socket, dial};
pub use stall::{Stall, Unsent};

use bytes::BytesMut;

/// How much one read may bring behind a message that is not there whole. Two of PostgreSQL's own 8 KiB output buffers.
pub const READ_CHUNK: usize = 16 * 1024;

/// How much one read may bring else. A large result takes a quarter of the system calls that [`READ_CHUNK`] would take,
/// and the buffer is one for all connections of a worker.
const SCRATCH: usize = 64 * 1024;

/// Above this many unsent bytes towards one side, the other side is not read any more.
pub const OUTBOX_HIGH_WATER: usize = 64 * 1024;

/// The buffer that all connections of a worker read into. A connection keeps memory of its own only
/// for a message that has not arrived whole or may not be sent yet, so an idle session holds none.
#[derive(Debug, Default)]
pub struct Scratch(BytesMut);

impl Scratch {
    /// What was read into it last.
    #[must_use]
    pub fn filled(&self) -> &[u8] {
        &self.0
    }

    /// The empty buffer, with room for 64 KiB.
    pub fn empty(&mut self) -> &mut BytesMut {
        self.0.clear();
        self.0.reserve(SCRATCH);
        &mut self.0
    }
}
