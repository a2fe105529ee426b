//! Signals for this process: to end, or to be passed on to its command.

use std::io;

use rustix::process::Signal;

use crate::signals::Signals;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Caught(Signal);

impl Caught {
    pub(super) const fn signal(self) -> Signal {
        self.0
    }

    /// Whether it tells this process to end.
    pub(super) fn ends(self) -> bool {
        [Signal::TERM, Signal::INT, Signal::QUIT].contains(&self.0)
    }

    /// A shell's exit code for a process that it has ended.
    pub(super) fn exit_code(self) -> u8 {
        u8::try_from(128 + self.0.as_raw()).unwrap_or(u8::MAX)
    }
}

/// Each signal is received once.
pub(super) struct LeaderSignals {
    /// Signals that tell this process to end, including the loss of its terminal.
    ending: Signals,
    user: Signals,
    /// Never awaited. If SIGCHLD were ignored, perhaps by inheritance, the system would not report how the command
    /// ended.
    _child: Signals,
}

impl LeaderSignals {
    /// From now on none of them ends this process by default.
    pub(super) fn listen() -> io::Result<Self> {
        let mut ending = vec![Signal::TERM, Signal::INT, Signal::QUIT];
        // An ignored SIGHUP means that this process is to outlive its terminal, as with `nohup`.
        if !ignores_hangup() {
            ending.push(Signal::HUP);
        }
        Ok(Self {
            ending: Signals::listen(&ending)?,
            user: Signals::listen(&[Signal::USR1, Signal::USR2])?,
            _child: Signals::listen(&[Signal::CHILD])?,
        })
    }

    /// The next signal that tells this process to end.
    pub(super) async fn ending(&mut self) -> Caught {
        Caught(self.ending.next().await)
    }

    /// The next signal of any kind.
    pub(super) async fn any(&mut self) -> Caught {
        Caught(tokio::select! {
            signal = self.ending.next() => signal,
            signal = self.user.next() => signal,
        })
    }

    /// Drops signals that came for a command.
    pub(super) fn forget(&mut self) {
        self.user.forget();
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
