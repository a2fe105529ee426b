//! Signals for this process: to end, or to be passed on to its command. The proxy listens to its own in the same way.

use std::future::poll_fn;
use std::io;
use std::task::Poll;

use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind};

/// Signals that tell this process to end.
const ENDING: [Signal; 3] = [Signal::TERM, Signal::INT, Signal::QUIT];
/// Signals for the command only.
const USER: [Signal; 2] = [Signal::USR1, Signal::USR2];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Caught(Signal);

impl Caught {
    pub(crate) const fn signal(self) -> Signal {
        self.0
    }

    pub(crate) fn ends(self) -> bool {
        ENDING.contains(&self.0)
    }

    /// A shell's exit code for a process that it has ended.
    pub(crate) fn exit_code(self) -> u8 {
        u8::try_from(128 + self.0.as_raw()).unwrap_or(u8::MAX)
    }
}

/// Signals that this process receives, each once.
pub struct Signals(Vec<(Signal, unix::Signal)>);

impl Signals {
    /// Replaces the default action of these signals. Needs a runtime.
    pub fn listen(to: &[Signal]) -> io::Result<Self> {
        let listen = |&signal: &Signal| {
            let kind = SignalKind::from_raw(signal.as_raw());
            Ok((signal, unix::signal(kind)?))
        };
        to.iter().map(listen).collect::<io::Result<_>>().map(Self)
    }

    /// Cancel safe.
    pub async fn next(&mut self) -> Signal {
        poll_fn(|cx| {
            let mut all = self.0.iter_mut();
            let next =
                all.find_map(|(signal, comes)| comes.poll_recv(cx).is_ready().then_some(*signal));
            next.map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

pub(crate) struct LeaderSignals {
    caught: Signals,
    /// Never awaited. If SIGCHLD were ignored, the system would not report how the command ended.
    _child: unix::Signal,
}

impl LeaderSignals {
    /// From now on none of them ends this process by default. Needs a runtime.
    pub(crate) fn listen() -> io::Result<Self> {
        let mut signals = [&ENDING[..], &USER].concat();
        // An ignored SIGHUP means that this process outlives its terminal, as with `nohup`.
        if !ignores_hangup() {
            signals.push(Signal::HUP);
        }
        Ok(Self {
            caught: Signals::listen(&signals)?,
            _child: unix::signal(SignalKind::child())?,
        })
    }

    /// The next signal that ends this process, or reports that its terminal is gone. Drops those for the command.
    pub(crate) async fn ending(&mut self) -> Caught {
        loop {
            let caught = self.any().await;
            if !USER.contains(&caught.0) {
                return caught;
            }
        }
    }

    /// The next signal of any kind. Cancel safe.
    pub(crate) async fn any(&mut self) -> Caught {
        Caught(self.caught.next().await)
    }
}

/// Whether SIGHUP was ignored when this process began.
/// <https://www.man7.org/linux/man-pages/man5/proc_pid_status.5.html>
fn ignores_hangup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    // The lowest bit is that of signal 1, SIGHUP.
    ignored.is_some_and(|mask| mask & 1 != 0)
}
