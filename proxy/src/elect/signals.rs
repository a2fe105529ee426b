//! Signals that this process gets: to end, or to be passed on to its command.

use std::io;

use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind};

/// A signal that has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Caught(Signal);

impl Caught {
    pub(super) const fn signal(self) -> Signal {
        self.0
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
    hangup: unix::Signal,
    user: [unix::Signal; 2],
}

impl Signals {
    /// From now on none of them ends this process by itself.
    pub(super) fn listen() -> io::Result<Self> {
        Ok(Self {
            terminate: unix::signal(SignalKind::terminate())?,
            interrupt: unix::signal(SignalKind::interrupt())?,
            quit: unix::signal(SignalKind::quit())?,
            hangup: unix::signal(SignalKind::hangup())?,
            user: [
                unix::signal(SignalKind::user_defined1())?,
                unix::signal(SignalKind::user_defined2())?,
            ],
        })
    }

    /// The next that says that this process is to end.
    pub(super) async fn ending(&mut self) -> Caught {
        Caught(tokio::select! {
            _ = self.terminate.recv() => Signal::TERM,
            _ = self.interrupt.recv() => Signal::INT,
            _ = self.quit.recv() => Signal::QUIT,
        })
    }

    /// The next, whatever it says.
    pub(super) async fn any(&mut self) -> Caught {
        let [first, second] = &mut self.user;
        Caught(tokio::select! {
            _ = self.terminate.recv() => Signal::TERM,
            _ = self.interrupt.recv() => Signal::INT,
            _ = self.quit.recv() => Signal::QUIT,
            _ = self.hangup.recv() => Signal::HUP,
            _ = first.recv() => Signal::USR1,
            _ = second.recv() => Signal::USR2,
        })
    }
}
