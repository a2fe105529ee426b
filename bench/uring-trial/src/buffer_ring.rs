//! Buffers that the kernel takes from when something has arrived, shared by all connections of a thread: an idle
//! connection has none.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::io;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::types::BufRingEntry;

use crate::intake::READ_CHUNK;
use crate::ring::Ring;

pub(crate) const GROUP: u16 = 0;
/// A power of two, as the kernel wants it.
const BUFFERS: u16 = 256;
const PAGE: usize = 4096;

pub(crate) struct BufferRing {
    entries: *mut BufRingEntry,
    layout: Layout,
    bytes: Vec<u8>,
    tail: u16,
}

impl BufferRing {
    /// To be dropped after the ring that it is registered with.
    pub(crate) fn register(ring: &Ring) -> io::Result<Self> {
        let size = usize::from(BUFFERS) * size_of::<BufRingEntry>();
        let layout = Layout::from_size_align(size, PAGE).map_err(io::Error::other)?;
        // SAFETY: the size is not zero.
        let entries = unsafe { alloc_zeroed(layout) }.cast::<BufRingEntry>();
        if entries.is_null() {
            handle_alloc_error(layout);
        }
        let bytes = vec![0; usize::from(BUFFERS) * READ_CHUNK];
        let mut buffers = Self {
            entries,
            layout,
            bytes,
            tail: 0,
        };
        // SAFETY: the entries and the buffers outlive the ring.
        unsafe {
            ring.submitter()
                .register_buf_ring_with_flags(entries as u64, BUFFERS, GROUP, 0)?
        };
        for buffer in 0..BUFFERS {
            buffers.give_back(buffer);
        }
        Ok(buffers)
    }

    /// What has arrived in a buffer that the kernel has taken.
    pub(crate) fn bytes(&self, buffer: u16, range: std::ops::Range<usize>) -> &[u8] {
        let start = usize::from(buffer) * READ_CHUNK;
        &self.bytes[start + range.start..start + range.end]
    }

    pub(crate) fn give_back(&mut self, buffer: u16) {
        let addr = self.bytes[usize::from(buffer) * READ_CHUNK..].as_ptr();
        // SAFETY: the place is one of `BUFFERS`, and the kernel reads it only below the tail.
        let entry = unsafe { &mut *self.entries.add(usize::from(self.tail % BUFFERS)) };
        entry.set_addr(addr as u64);
        entry.set_len(READ_CHUNK as u32);
        entry.set_bid(buffer);
        self.tail = self.tail.wrapping_add(1);
        // SAFETY: the tail lies in the first entry, where nothing else writes.
        let tail = unsafe { &*BufRingEntry::tail(self.entries).cast::<AtomicU16>() };
        tail.store(self.tail, Ordering::Release);
    }
}

impl Drop for BufferRing {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.entries.cast(), self.layout) };
    }
}
