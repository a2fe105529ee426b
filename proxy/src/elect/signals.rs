//! Signals that this process gets: to end, or to be passed on to its command.

use std::io;
use std::task::{Context, Waker};

use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind};

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
pub(super) struct Signals {
    terminate: unix::Signal,
    interrupt: unix::Signal,
    quit: unix::Signal,
    /// None: whoever has started this process wants it to outlive a terminal, as `nohup` does.
    hangup: Option<unix::Signal>,
    user: [unix::Signal; 2],
    /// Nobody asks for it. Were it ignored, as whoever has started this process may have left it, the system would
    /// tell nobody how the command has ended.
    _child: unix::Signal,
}

impl Signals {
    /// From now on none of them ends this process by itself.
    pub(super) fn listen() -> io::Result<Self> {
        Ok(Self {
            terminate: unix::signal(SignalKind::terminate())?,
            interrupt: unix::signal(SignalKind::interrupt())?,
            quit: unix::signal(SignalKind::quit())?,
            hangup: match ignores_hangup() {
                true => None,
                false => Some(unix::signal(SignalKind::hangup())?),
            },
            user: [
                unix::signal(SignalKind::user_defined1())?,
                unix::signal(SignalKind::user_defined2())?,
            ],
            _child: unix::signal(SignalKind::child())?,
        })
    }

    /// The next that says that this process is to end.
    pub(super) async fn ending(&mut self) -> Caught {
        Caught(tokio::select! {
            _ = self.terminate.recv() => Signal::TERM,
            _ = self.interrupt.recv() => Signal::INT,
            _ = self.quit.recv() => Signal::QUIT,
            () = hung_up(&mut self.hangup) => Signal::HUP,
        })
    }

    /// The next, whatever it says.
    pub(super) async fn any(&mut self) -> Caught {
        let [first, second] = &mut self.user;
        Caught(tokio::select! {
            _ = self.terminate.recv() => Signal::TERM,
            _ = self.interrupt.recv() => Signal::INT,
            _ = self.quit.recv() => Signal::QUIT,
            () = hung_up(&mut self.hangup) => Signal::HUP,
            _ = first.recv() => Signal::USR1,
            _ = second.recv() => Signal::USR2,
        })
    }

    /// Drops what has come for a command.
    pub(super) fn forget(&mut self) {
        let mut cx = Context::from_waker(Waker::noop());
        for signal in &mut self.user {
            while signal.poll_recv(&mut cx).is_ready() {}
        }
    }
}

async fn hung_up(hangup: &mut Option<unix::Signal>) {
    match hangup {
        Some(hangup) => {
            hangup.recv().await;
        }
        None => std::future::pending().await,
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
