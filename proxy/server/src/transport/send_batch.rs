//! Batches the sends of a worker's turn into one system call.
//!
//! A small message waits until the ready tasks have run. The processes woken by the kernel then do not displace the
//! worker after each message (`docs/decisions/0011`).

use std::cell::RefCell;
use std::future::Future;
use std::os::fd::AsFd as _;
use std::rc::Rc;
use std::task::{Poll, Waker};

use pgpalisade_sockets::SendRing;

use super::shared_stream::{SendState, SharedStream};

/// More bytes are sent at once: copying costs as much as a call.
pub(super) const PART_MAX: usize = 4 * 1024;

/// Limit of sends in a batch, and so of the first one's wait.
const PARTS_MAX: u32 = 32;

const BYTES_MAX: usize = 32 * 1024;

/// After this many lone sends in a row, the next ones are made at once: with one busy session, waiting costs a tenth
/// of the worker's instructions.
const ALONE: u32 = 8;

/// One in this many lone sends still waits, to see whether others send.
const LOOK_EVERY: u32 = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Batching {
    /// All of a worker's turn, if the kernel has io_uring and allows it.
    Auto,
    /// One.
    Off,
}

/// The part of a setting that the kernel allows; logs if that is less.
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

/// Sends of one worker that wait for the end of its turn.
#[derive(Debug)]
pub(crate) struct SendBatch {
    queue: RefCell<Queue>,
    flusher: RefCell<Option<Waker>>,
}

#[derive(Debug)]
struct Queue {
    /// `None`: each message is sent alone.
    ring: Option<SendRing>,
    parts: Vec<BatchedWrite>,
    bytes: Vec<u8>,
    /// Lone sends in a row.
    alone: u32,
}

#[derive(Debug)]
struct BatchedWrite {
    shared: Rc<SharedStream>,
    /// End in the queue's bytes.
    end: usize,
}

impl SendBatch {
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

    /// Queues at most [`PART_MAX`] bytes, if other sends are likely and nothing of the stream must go first. Returns
    /// whether it did.
    #[inline]
    pub(super) fn push(&self, shared: &Rc<SharedStream>, bytes: &[u8]) -> bool {
        debug_assert!(
            shared.has_task(),
            "nobody would be woken for what came back"
        );
        let mut queue = self.queue.borrow_mut();
        match shared.status() {
            SendState::Sent if queue.is_quiet() => return false,
            SendState::Sent => queue.push(shared, bytes),
            SendState::Queued if queue.extend(shared, bytes) => return true,
            // A stream has one entry: rejected bytes must go before what follows.
            SendState::Queued | SendState::Returned => return false,
        }
        if queue.parts.len() == 1
            && let Some(flusher) = &*self.flusher.borrow()
        {
            flusher.wake_by_ref();
        }
        true
    }

    pub(crate) fn flush(&self) {
        self.queue.borrow_mut().send();
    }

    /// Sends at the end of each turn what its tasks have queued. Never ends.
    ///
    /// The first task that queues something wakes it. A worker's runtime runs tasks in the order of their wake-ups,
    /// so it runs last.
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
    /// Whether no other send is likely in this turn. Counts the send that is then made at once.
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
        self.parts.push(BatchedWrite {
            shared: Rc::clone(shared),
            end: self.bytes.len(),
        });
    }

    /// Adds to a stream's entry, if it is the last one.
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
