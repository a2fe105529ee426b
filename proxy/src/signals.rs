//! Signals that a process receives.

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll, Waker};

use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind};

/// Each signal is received once.
pub(crate) struct Signals(Vec<(Signal, unix::Signal)>);

impl Signals {
    /// From now on none of them ends this process by default. Needs a runtime.
    pub(crate) fn listen(to: &[Signal]) -> io::Result<Self> {
        let listen = |&signal: &Signal| {
            let kind = SignalKind::from_raw(signal.as_raw());
            Ok((signal, unix::signal(kind)?))
        };
        to.iter().map(listen).collect::<io::Result<_>>().map(Self)
    }

    /// Cancel safe.
    pub(crate) async fn next(&mut self) -> Signal {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// Drops signals that have come.
    pub(crate) fn forget(&mut self) {
        let mut cx = Context::from_waker(Waker::noop());
        while self.poll_next(&mut cx).is_ready() {}
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Signal> {
        for (signal, comes) in &mut self.0 {
            if comes.poll_recv(cx).is_ready() {
                return Poll::Ready(*signal);
            }
        }
        Poll::Pending
    }
}
