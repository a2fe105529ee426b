//! What the connections of one worker have to send in one turn of it, sent with one call.
//!
//! A small message is not sent at once: it waits until the tasks that were ready have run. The kernel then takes all of
//! them together, and the processes that they wake do not push the worker aside after each one
//! (`docs/decisions/0011`). Where io_uring is not to be had, each is a call by itself, in the same place.

use std::cell::RefCell;
use std::future::Future;
use std::os::fd::AsFd as _;
use std::rc::Rc;
use std::task::{Poll, Waker};

use pgpalisade_sockets::SendRing;

use super::shared_stream::{SendState, SharedStream};

/// More than this is sent at once: to copy it costs as much as a call.
pub(super) const PART_MAX: usize = 4 * 1024;

/// Sends that may wait for each other. It bounds how long the first of them waits: for so many turns of sessions.
const PARTS_MAX: u32 = 32;

/// Bytes of all of them.
const BYTES_MAX: usize = 32 * 1024;

/// So many sends in a row without company, and the next ones are made at once: where one session is busy at a time,
/// to wait for others costs a tenth of the worker's instructions, and brings nothing.
const ALONE: u32 = 8;

/// Of those, every so manieth waits all the same, to see whether there is company now.
const LOOK_EVERY: u32 = 8;

/// How many sends go to the system in one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Batching {
    /// All that the connections of a worker have in one turn, where the kernel has io_uring and allows it.
    Auto,
    /// One.
    Off,
}

/// What the kernel allows of a setting. Where that is less, the log says so.
#[must_use]
pub(crate) fn allowed_batching(batching: Batching) -> Batching {
    match batching {
        Batching::Off => Batching::Off,
        Batching::Auto => SendRing::new(PARTS_MAX).map_or_else(
            |error| {
                tracing::info!(%error, "io_uring is not available: one system call for each message sent");
                Batching::Off
            },
            |_| Batching::Auto,
        ),
    }
}

/// What waits to be sent.
#[derive(Debug)]
pub(crate) struct SendBatch {
    queue: RefCell<Queue>,
    /// Wakes [`SendBatch::flush_after_each_turn`].
    flusher: RefCell<Option<Waker>>,
}

#[derive(Debug)]
struct Queue {
    /// Without one, each part is sent by itself.
    ring: Option<SendRing>,
    parts: Vec<Part>,
    /// The bytes of all parts, one behind the other.
    bytes: Vec<u8>,
    /// Sends in a row that had no company.
    alone: u32,
}

#[derive(Debug)]
struct Part {
    shared: Rc<SharedStream>,
    /// It begins where the one before it ends.
    end: usize,
}

impl SendBatch {
    /// An empty one.
    #[must_use]
    pub(crate) fn new(batching: Batching) -> Self {
        let ring = match batching {
            Batching::Off => None,
            Batching::Auto => SendRing::new(PARTS_MAX).ok(),
        };
        Self {
            queue: RefCell::new(Queue {
                ring,
                parts: Vec::with_capacity(PARTS_MAX as usize),
                bytes: Vec::with_capacity(BYTES_MAX),
                alone: 0,
            }),
            flusher: RefCell::default(),
        }
    }

    /// Queues at most [`PART_MAX`] bytes, where others may have something to send too, and the stream has nothing that
    /// would have to go first. Says whether it did.
    #[inline]
    pub(super) fn push(&self, shared: &Rc<SharedStream>, bytes: &[u8]) -> bool {
        debug_assert!(
            shared.has_task(),
            "nobody would be woken for what came back"
        );
        let mut queue = self.queue.borrow_mut();
        match shared.standing() {
            SendState::Sent if queue.is_quiet() => return false,
            SendState::Sent => queue.push(shared, bytes),
            SendState::Queued if queue.extend(shared, bytes) => return true,
            // A stream has one part at a time: what the system does not take of it has to be in front of what follows.
            SendState::Queued | SendState::Returned => return false,
        }
        if queue.parts.len() == 1
            && let Some(flusher) = &*self.flusher.borrow()
        {
            flusher.wake_by_ref();
        }
        true
    }

    /// Sends all that is there.
    pub(crate) fn flush(&self) {
        self.queue.borrow_mut().send();
    }

    /// Sends what the tasks have queued that were ready at one time. It never ends.
    ///
    /// The first of them to queue something wakes it. The runtime of a worker runs its tasks in the order in which they
    /// were woken, so that it runs behind the others.
    pub(crate) fn flush_after_each_turn(&self) -> impl Future<Output = ()> {
        std::future::poll_fn(|cx| {
            let mut flusher = self.flusher.borrow_mut();
            if !flusher
                .as_ref()
                .is_some_and(|own| own.will_wake(cx.waker()))
            {
                *flusher = Some(cx.waker().clone());
            }
            drop(flusher);
            self.flush();
            Poll::Pending
        })
    }
}

impl Queue {
    /// Whether nobody else is likely to send anything in this turn; then nothing is queued. Counts the send that is
    /// made at once then.
    #[inline]
    fn is_quiet(&mut self) -> bool {
        let is_quiet = self.alone >= ALONE && !self.alone.is_multiple_of(LOOK_EVERY);
        if is_quiet {
            self.alone = self.alone.wrapping_add(1).max(ALONE);
        }
        is_quiet
    }

    fn push(&mut self, shared: &Rc<SharedStream>, bytes: &[u8]) {
        let is_full = self.parts.len() == PARTS_MAX as usize;
        if is_full || self.bytes.len() + bytes.len() > BYTES_MAX {
            self.send();
        }
        self.bytes.extend_from_slice(bytes);
        shared.queue();
        self.parts.push(Part {
            shared: Rc::clone(shared),
            end: self.bytes.len(),
        });
    }

    /// Adds to the part of a stream, where nothing stands behind it.
    fn extend(&mut self, shared: &Rc<SharedStream>, bytes: &[u8]) -> bool {
        let fits = self.bytes.len() + bytes.len() <= BYTES_MAX;
        match self.parts.last_mut() {
            Some(last) if fits && Rc::ptr_eq(&last.shared, shared) => {
                self.bytes.extend_from_slice(bytes);
                last.end = self.bytes.len();
                true
            }
            _ => false,
        }
    }

    fn send(&mut self) {
        let (all, mut start) = (self.bytes.as_slice(), 0);
        let parts = self.parts.iter().map(move |part| {
            let own = all.get(start..part.end).unwrap_or_default();
            start = part.end;
            (&*part.shared, own)
        });
        match &mut self.ring {
            Some(ring) if parts.len() > 1 => {
                let sockets = parts
                    .clone()
                    .map(|(shared, own)| (shared.stream.as_fd(), own));
                for ((shared, own), sent) in parts.zip(ring.send(sockets)) {
                    shared.on_sent(own, sent);
                }
            }
            _ => parts.for_each(|(shared, own)| shared.on_sent(own, shared.stream.send(own))),
        }
        self.alone = match self.parts.len() {
            0 => self.alone,
            1 => self.alone.wrapping_add(1),
            _ => 0,
        };
        self.parts.clear();
        self.bytes.clear();
    }
}
