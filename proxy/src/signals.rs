//! Signals that a process receives.

use std::future::poll_fn;
use std::io;
use std::task::Poll;

use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind};

/// Each signal is received once.
pub(crate) struct Signals(Vec<(Signal, unix::Signal)>);

impl Signals {
    /// Replaces the default action of these signals. Needs a runtime.
    pub(crate) fn listen(to: &[Signal]) -> io::Result<Self> {
        let listen = |&signal: &Signal| {
            let kind = SignalKind::from_raw(signal.as_raw());
            Ok((signal, unix::signal(kind)?))
        };
        to.iter().map(listen).collect::<io::Result<_>>().map(Self)
    }

    /// Cancel safe.
    pub(crate) async fn next(&mut self) -> Signal {
        poll_fn(|cx| {
            let mut all = self.0.iter_mut();
            let next =
                all.find_map(|(signal, comes)| comes.poll_recv(cx).is_ready().then_some(*signal));
            next.map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}
