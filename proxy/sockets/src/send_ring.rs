//! Sends to many sockets with one call into the kernel, by io_uring.
//!
//! After a call of its own for each socket, the system looks whether the process that was woken by the send should run
//! first. With all sends in one call it looks once. What that is worth is in `docs/decisions/0011`.
//!
//! [`SendRing::send`] comes back when the kernel is done with all that it was given: as `send(2)` with
//! `MSG_DONTWAIT`, it never waits for a peer, and the bytes are the caller's again.

use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use io_uring::squeue::Entry;
use io_uring::{IoUring, Probe, opcode, types};

/// `MSG_DONTWAIT | MSG_NOSIGNAL` (send(2)). With the first one the kernel completes a send before the call that hands
/// it over ends (`io_sendmsg_prep` and `io_queue_async` in Linux), and `EAGAIN` is an answer, not a reason to wait.
const NOW: i32 = 0x40 | 0x4000;

/// What stands for a send that the kernel was not given: as if the socket had no room.
const NOT_SENT: i32 = -11;

/// A ring that is used for nothing but sends.
pub struct SendRing {
    ring: IoUring,
    /// What is handed over, in order. Kept for its memory; the addresses in it are good during one call only.
    entries: Vec<Entry>,
    /// What has become of each: the bytes sent, or a negative error number.
    results: Vec<i32>,
    /// The kernel has refused a call, and may find entries of then in the ring: it is not called again.
    is_broken: bool,
}

impl SendRing {
    /// A ring for up to `sends_max` sends in one call; the kernel rounds that up to a power of two.
    ///
    /// # Errors
    ///
    /// What the kernel says: `EPERM` and `ENOSYS` where io_uring is forbidden (Docker's seccomp profile,
    /// `kernel.io_uring_disabled`) or not there. `EINVAL` or `Unsupported` where it cannot send: before Linux 5.6.
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

    /// Sends each of `parts` as far as its socket takes it now, and says of each, in order, how many bytes that was.
    ///
    /// Parts for the same socket go out in order, but the second one is sent also where the first one was not taken
    /// whole: give a socket one part.
    ///
    /// # Errors
    ///
    /// For each part the socket's own; `WouldBlock` where it takes nothing, and for all parts that the kernel was not
    /// given: those behind the first `sends_max`, and all where the kernel no longer takes any.
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

    /// Hands the entries over, and comes back when the kernel is done with those that it has taken.
    fn hand_over(&mut self) {
        let mut submissions = self.ring.submission();
        let count = self.entries.len().min(submissions.capacity());
        for (number, entry) in (0..).zip(self.entries.iter().take(count)) {
            let entry = entry.clone().user_data(number);
            // SAFETY: the addresses are of bytes that the caller of `send` has borrowed until it returns. It returns
            // when each entry that the kernel has taken is completed (below), and entries that it has not taken are
            // never handed over later (`is_broken`). The queue was empty, so that there is room for `count`.
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
                // It holds nothing of this call any more, and takes no more of it: it is not called again.
                Ok(0) | Err(_) if taken == completed => {
                    self.is_broken = true;
                    return;
                }
                Ok(more) => taken += more,
                // It holds bytes that are about to be the caller's again, and cannot be asked about them.
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
    // A part of such a length is sent in pieces: what is left of it is the caller's to send.
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

    /// `None` where the system does not allow it, as in many containers.
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

    /// The sockets are in blocking mode: that the call comes back is the flag's doing.
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
