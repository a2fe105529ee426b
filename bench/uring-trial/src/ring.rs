//! The ring of one thread, and the sockets that are registered with it.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use io_uring::squeue::Entry;
use io_uring::{CompletionQueue, IoUring, SubmissionQueue, Submitter, cqueue, opcode, types};

/// Sockets that one thread may have at once.
const SOCKETS_MAX: u32 = 4096;
const SUBMISSIONS: u32 = 1024;
const COMPLETIONS: u32 = 8192;

/// `IORING_RECVSEND_POLL_FIRST`: wait before the first try. The answer to what was just sent is never there yet.
pub(crate) const POLL_FIRST: u16 = 1;

/// What a completion belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tag {
    pub(crate) what: What,
    /// The connection's place, and from where the bytes come.
    pub(crate) index: usize,
    pub(crate) side: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    Bell,
    Recv,
    Send,
    Cancel,
}

impl Tag {
    pub(crate) fn pack(self) -> u64 {
        (self.index as u64) << 3 | (self.side as u64) << 2 | self.what as u64
    }

    pub(crate) fn unpack(data: u64) -> Self {
        let what = match data & 3 {
            0 => What::Bell,
            1 => What::Recv,
            2 => What::Send,
            _ => What::Cancel,
        };
        Self {
            what,
            index: (data >> 3) as usize,
            side: (data >> 2 & 1) as usize,
        }
    }

    /// The place of the socket that `side` is.
    pub(crate) fn socket(self, side: usize) -> types::Fixed {
        types::Fixed((self.index * 2 + side) as u32)
    }
}

pub(crate) struct Ring {
    submitter: Submitter<'static>,
    submissions: SubmissionQueue<'static>,
    completions: CompletionQueue<'static>,
    bell: Box<[u8; 8]>,
}

impl Ring {
    /// To be called on the thread that uses it: the kernel takes submissions from no other. It is never given back.
    pub(crate) fn new() -> io::Result<Self> {
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_cqsize(COMPLETIONS)
            .build(SUBMISSIONS)?;
        let (mut submitter, submissions, completions) = Box::leak(Box::new(ring)).split();
        submitter.register_files_sparse(SOCKETS_MAX)?;
        // Saves the kernel a look into the table of files on every entry.
        submitter.register_ring_fd()?;
        let bell = Box::new([0; 8]);
        Ok(Self {
            submitter,
            submissions,
            completions,
            bell,
        })
    }

    pub(crate) fn submitter(&self) -> &Submitter<'static> {
        &self.submitter
    }

    pub(crate) fn register(&self, tag: Tag, sockets: &[OwnedFd; 2]) -> io::Result<()> {
        let fds = [sockets[0].as_raw_fd(), sockets[1].as_raw_fd()];
        self.submitter
            .register_files_update((tag.index * 2) as u32, &fds)?;
        Ok(())
    }

    pub(crate) fn forget(&self, index: usize) -> io::Result<()> {
        self.submitter
            .register_files_update((index * 2) as u32, &[-1, -1])?;
        Ok(())
    }

    /// Waits for the next arrival.
    pub(crate) fn arm_bell(&mut self, bell: &OwnedFd) -> io::Result<()> {
        let tag = Tag {
            what: What::Bell,
            index: 0,
            side: 0,
        };
        let entry =
            opcode::Read::new(types::Fd(bell.as_raw_fd()), self.bell.as_mut_ptr(), 8).build();
        // SAFETY: the buffer lives as long as the ring, and the descriptor as long as the thread.
        unsafe { self.push(&[entry.user_data(tag.pack())]) }
    }

    /// Queues entries that the kernel must see together.
    ///
    /// # Safety
    ///
    /// What the entries point to must stay where it is, and untouched, until they are completed.
    pub(crate) unsafe fn push(&mut self, entries: &[Entry]) -> io::Result<()> {
        if self.submissions.capacity() - self.submissions.len() < entries.len() {
            self.submissions.sync();
            self.submitter.submit()?;
            self.submissions.sync();
        }
        // SAFETY: the caller's promise.
        unsafe { self.submissions.push_multiple(entries) }.map_err(io::Error::other)
    }

    /// Submits what is queued, waits until `want` completions are there, and puts all that are into `into`.
    pub(crate) fn turn(
        &mut self,
        want: usize,
        into: &mut Vec<(Tag, cqueue::Entry)>,
    ) -> io::Result<()> {
        self.submissions.sync();
        match self.submitter.submit_and_wait(want) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        self.submissions.sync();
        self.completions.sync();
        into.clear();
        into.extend((&mut self.completions).map(|entry| (Tag::unpack(entry.user_data()), entry)));
        self.completions.sync();
        Ok(())
    }
}
