//! Sends to many sockets with one call into the kernel, by io_uring.
//!
//! After a separate call for each socket, the system checks each time whether the woken process should run first.
//! `docs/decisions/0011` has measurements.
//!
//! [`SendRing::send`] returns when the kernel is done with all that it was given. Like `send(2)` with `MSG_DONTWAIT`,
//! it never waits for a peer, and keeps no bytes.

use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use io_uring::squeue::Entry;
use io_uring::{IoUring, Probe, opcode, types};

/// `MSG_DONTWAIT | MSG_NOSIGNAL` (send(2)). With the first flag the kernel completes a send before the submitting
/// call ends (`io_sendmsg_prep` and `io_queue_async` in Linux), and a full socket answers `EAGAIN` instead of
/// waiting.
const NOW: i32 = 0x40 | 0x4000;

/// Result of a send that the kernel was not given: `EAGAIN`, as if the socket had no room.
const NOT_SENT: i32 = -11;

/// A ring that is used only for sends.
pub struct SendRing {
    ring: IoUring,
    /// Submitted entries. Kept for the memory: the addresses in it are valid during one call only.
    entries: Vec<Entry>,
    /// Results of the entries: the bytes sent, or a negative error number.
    results: Vec<i32>,
    /// The kernel has refused a call, and the ring may still hold entries of it. It is not used again.
    is_broken: bool,
}

impl SendRing {
    /// A ring for up to `sends_max` sends in one call; the kernel rounds that up to a power of two.
    ///
    /// # Errors
    ///
    /// `EPERM` or `ENOSYS` if io_uring is forbidden (Docker's seccomp profile, `kernel.io_uring_disabled`) or
    /// missing. `EINVAL` or `Unsupported` if it cannot send, before Linux 5.6. Other errors of the kernel.
    pub fn new(sends_max: u32) -> io::Result<Self> {
        let ring = IoUring::new(sends_max)?;
        let mut known = Probe::new();
        ring.submitter().register_probe(&mut known)?;
        if !known.is_supported(opcode::Send::CODE) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let entries = Vec::with_capacity(sends_max as usize);
        Ok(Self {
            ring,
            results: Vec::with_capacity(entries.capacity()),
            entries,
            is_broken: false,
        })
    }

    /// Sends as much of each part as its socket takes now, and returns the numbers of sent bytes in order.
    ///
    /// Give each socket one part. Several parts for one socket go out in order, but the second one is sent even if
    /// the first was not taken whole.
    ///
    /// # Errors
    ///
    /// Each part has its socket's own error. `WouldBlock` if the socket takes nothing, or the kernel was not given
    /// the part: after the first `sends_max` parts, or once it has refused a call.
    pub fn send<'a>(
        &mut self,
        parts: impl IntoIterator<Item = (BorrowedFd<'a>, &'a [u8])>,
    ) -> impl Iterator<Item = io::Result<usize>> {
        self.entries.clear();
        self.entries.extend(parts.into_iter().map(entry));
        self.results.clear();
        self.results.resize(self.entries.len(), NOT_SENT);
        if !self.is_broken {
            self.hand_over();
        }
        self.results
            .iter()
            .map(|&result| match usize::try_from(result) {
                Ok(sent) => Ok(sent),
                Err(_) => Err(io::Error::from_raw_os_error(-result)),
            })
    }

    /// Submits the entries, and returns when the kernel is done with those that it has taken.
    fn hand_over(&mut self) {
        let mut submissions = self.ring.submission();
        let count = self.entries.len().min(submissions.capacity());
        for (number, entry) in (0..).zip(self.entries.iter().take(count)) {
            let entry = entry.clone().user_data(number);
            // SAFETY: the addresses are of bytes that the caller of `send` has borrowed until it returns. It returns
            // when each entry that the kernel has taken is completed (below), and entries that it has not taken are
            // never submitted later (`is_broken`). The queue was empty, so there is room for `count`.
            if unsafe { submissions.push(&entry) }.is_err() {
                self.is_broken = true;
                return;
            }
        }
        drop(submissions);
        let mut taken = 0;
        let mut completed = 0;
        while completed < count {
            match self.ring.submit_and_wait(taken - completed) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The kernel holds no bytes of this call, and takes no more of it. The ring is not used again.
                Ok(0) | Err(_) if taken == completed => {
                    self.is_broken = true;
                    return;
                }
                Ok(more) => taken += more,
                // The kernel holds bytes that are about to be the caller's again, and cannot be asked about them.
                Err(_) => std::process::abort(),
            }
            for done in self.ring.completion() {
                completed += 1;
                let number = usize::try_from(done.user_data()).unwrap_or(usize::MAX);
                if let Some(result) = self.results.get_mut(number) {
                    *result = done.result();
                }
            }
        }
    }
}

fn entry((socket, bytes): (BorrowedFd<'_>, &[u8])) -> Entry {
    // A longer part is cut: the caller sends the rest.
    let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    opcode::Send::new(types::Fd(socket.as_raw_fd()), bytes.as_ptr(), len)
        .flags(NOW)
        .build()
}

impl fmt::Debug for SendRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendRing")
            .field("is_broken", &self.is_broken)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::fd::AsFd as _;
    use std::os::unix::net::UnixStream;

    use super::*;

    /// `None` if the system does not allow it, as in many containers.
    fn ring(sends_max: u32) -> Option<SendRing> {
        SendRing::new(sends_max)
            .inspect_err(|error| println!("not tested: io_uring: {error}"))
            .ok()
    }

    fn pairs(count: usize) -> Vec<(UnixStream, UnixStream)> {
        (0..count).map(|_| UnixStream::pair().unwrap()).collect()
    }

    fn received(socket: &mut UnixStream, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        socket.read_exact(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn each_socket_gets_its_bytes_and_the_answers_are_in_order() {
        let Some(mut ring) = ring(8) else { return };
        let mut pairs = pairs(8);
        for round in 0..100_u8 {
            let texts: Vec<_> = (0..pairs.len()).map(|n| vec![round; n + 1]).collect();
            let parts = pairs.iter().zip(&texts);
            let sent = ring.send(parts.map(|((ours, _), text)| (ours.as_fd(), text.as_slice())));
            let sent: Vec<_> = sent.map(Result::unwrap).collect();
            assert_eq!(sent, (1..=8).collect::<Vec<_>>());
            for ((_, theirs), text) in pairs.iter_mut().zip(&texts) {
                assert_eq!(&received(theirs, text.len()), text);
            }
        }
    }

    /// The sockets are in blocking mode, so only the flag makes the call return.
    #[test]
    fn a_full_socket_takes_a_part_and_then_nothing_and_holds_up_no_other() {
        let Some(mut ring) = ring(2) else { return };
        let (full, mut full_end) = UnixStream::pair().unwrap();
        let (other, mut other_end) = UnixStream::pair().unwrap();
        let mut send = |first: &[u8]| {
            let parts = [(full.as_fd(), first), (other.as_fd(), &b"y"[..])];
            let mut sent = ring
                .send(parts)
                .map(|sent| sent.map_err(|error| error.kind()));
            let both = (sent.next().unwrap(), sent.next().unwrap());
            assert_eq!(both.1, Ok(1));
            assert_eq!(received(&mut other_end, 1), b"y");
            both.0
        };
        let large = vec![b'x'; 16 << 20];
        let part = send(&large).unwrap();
        assert!((1..large.len()).contains(&part), "{part}");
        assert_eq!(send(b"x"), Err(io::ErrorKind::WouldBlock));
        assert_eq!(received(&mut full_end, part), large[..part]);
        assert_eq!(send(b"x"), Ok(1));
    }

    #[test]
    fn a_peer_that_is_gone_is_an_error() {
        let Some(mut ring) = ring(2) else { return };
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        let sent: Vec<_> = ring.send([(ours.as_fd(), &b"x"[..])]).collect();
        assert_eq!(
            sent[0].as_ref().unwrap_err().kind(),
            io::ErrorKind::BrokenPipe
        );
    }

    #[test]
    fn what_does_not_fit_is_not_sent() {
        let Some(mut ring) = ring(2) else { return };
        let mut pairs = pairs(3);
        let parts = pairs.iter().map(|(ours, _)| (ours.as_fd(), &b"x"[..]));
        let sent: Vec<_> = ring
            .send(parts)
            .map(|sent| sent.map_err(|error| error.kind()))
            .collect();
        assert_eq!(sent, [Ok(1), Ok(1), Err(io::ErrorKind::WouldBlock)]);
        pairs[2].1.set_nonblocking(true).unwrap();
        let nothing = pairs[2].1.read(&mut [0; 1]).unwrap_err();
        assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn nothing_to_send_is_no_call() {
        let Some(mut ring) = ring(2) else { return };
        assert_eq!(ring.send([]).count(), 0);
        assert!(!ring.is_broken);
    }

    #[test]
    fn a_ring_that_the_kernel_refused_says_that_nothing_was_sent() {
        let Some(mut ring) = ring(2) else { return };
        ring.is_broken = true;
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let sent: Vec<_> = ring.send([(ours.as_fd(), &b"x"[..])]).collect();
        assert_eq!(
            sent[0].as_ref().unwrap_err().kind(),
            io::ErrorKind::WouldBlock
        );
        drop(ours);
        assert_eq!(theirs.read(&mut [0; 1]).unwrap(), 0);
    }
}
