//! Signals that this process gets: to end, or to be passed on to its command.

use std::io;

use rustix::process::Signal;

use crate::signals::Signals;

/// A signal that has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Caught(Signal);

impl Caught {
    pub(super) const fn signal(self) -> Signal {
        self.0
    }

    /// Whether it says that this process is to end.
    pub(super) fn ends(self) -> bool {
        [Signal::TERM, Signal::INT, Signal::QUIT].contains(&self.0)
    }

    /// Of a process that it has ended, as a shell says it.
    pub(super) fn exit_code(self) -> u8 {
        u8::try_from(128 + self.0.as_raw()).unwrap_or(u8::MAX)
    }
}

/// Hears of signals, and passes each on once.
pub(super) struct LeaderSignals {
    /// Those that say that this process is to end, also where a terminal is gone.
    ending: Signals,
    user: Signals,
    /// Nobody asks for it. Were it ignored, as whoever has started this process may have left it, the system would
    /// tell nobody how the command has ended.
    _child: Signals,
}

impl LeaderSignals {
    /// From now on none of them ends this process by itself.
    pub(super) fn listen() -> io::Result<Self> {
        let mut ending = vec![Signal::TERM, Signal::INT, Signal::QUIT];
        // Otherwise whoever has started this process wants it to outlive a terminal, as `nohup` does.
        if !ignores_hangup() {
            ending.push(Signal::HUP);
        }
        Ok(Self {
            ending: Signals::listen(&ending)?,
            user: Signals::listen(&[Signal::USR1, Signal::USR2])?,
            _child: Signals::listen(&[Signal::CHILD])?,
        })
    }

    /// The next that says that this process is to end.
    pub(super) async fn ending(&mut self) -> Caught {
        Caught(self.ending.next().await)
    }

    /// The next, whatever it says.
    pub(super) async fn any(&mut self) -> Caught {
        Caught(tokio::select! {
            signal = self.ending.next() => signal,
            signal = self.user.next() => signal,
        })
    }

    /// Drops what has come for a command.
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
    // The first bit is that of the first signal.
    ignored.is_some_and(|mask| mask & 1 != 0)
}
