//! A stream, and the state of its bytes in a [`SendBatch`](super::SendBatch).

use std::cell::{Cell, RefCell};
use std::io;
use std::task::{Context, Waker};

use bytes::BytesMut;

use super::stream::Stream;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SendState {
    Sent,
    Queued,
    /// The socket had no room for all of them, or failed. The next bytes go after them.
    Returned,
}

/// A stream shared by its socket and the batch: stays open as long as its bytes are queued.
#[derive(Debug)]
pub(super) struct SharedStream {
    pub(super) stream: Stream,
    status: Cell<SendState>,
    returned: RefCell<io::Result<BytesMut>>,
    /// Woken when bytes have returned.
    task: RefCell<Option<Waker>>,
}

impl SharedStream {
    pub(super) fn new(stream: Stream) -> Self {
        Self {
            stream,
            status: Cell::new(SendState::Sent),
            returned: RefCell::new(Ok(BytesMut::new())),
            task: RefCell::new(None),
        }
    }

    #[inline]
    pub(super) const fn status(&self) -> SendState {
        self.status.get()
    }

    #[inline]
    pub(super) fn queue(&self) {
        self.status.set(SendState::Queued);
    }

    pub(super) fn belongs_to(&self, cx: &Context<'_>) {
        *self.task.borrow_mut() = Some(cx.waker().clone());
    }

    pub(super) fn has_task(&self) -> bool {
        self.task.borrow().is_some()
    }

    #[inline]
    pub(super) fn on_sent(&self, bytes: &[u8], sent: io::Result<usize>) {
        match sent {
            Ok(sent) if sent == bytes.len() => self.status.set(SendState::Sent),
            other => self.on_returned(bytes, other),
        }
    }

    #[cold]
    fn on_returned(&self, bytes: &[u8], sent: io::Result<usize>) {
        let rest = match sent {
            Ok(sent) => Ok(bytes.get(sent..).unwrap_or_default()),
            Err(error) if is_no_fault(&error) => Ok(bytes),
            Err(error) => Err(error),
        };
        *self.returned.borrow_mut() = rest.map(BytesMut::from);
        self.status.set(SendState::Returned);
        if let Some(task) = &*self.task.borrow() {
            task.wake_by_ref();
        }
    }

    /// Takes the returned bytes, which must be sent again.
    ///
    /// # Errors
    ///
    /// The error of the send.
    pub(super) fn take_returned(&self) -> io::Result<BytesMut> {
        self.status.set(SendState::Sent);
        self.returned.replace(Ok(BytesMut::new()))
    }
}

/// Whether the socket had no room, or a signal interrupted the call.
fn is_no_fault(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, WouldBlock};
    matches!(error.kind(), WouldBlock | Interrupted)
}
