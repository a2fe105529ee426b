//! Child process that writes to a log file and ends on drop.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::HarnessError;
use crate::error::system;
use crate::patience::Patience;

/// Recipient of signals from the terminal, or to the caller's process group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessGroup {
    Shared,
    /// Only the caller gets them, and ends its children in order.
    Own,
}

impl ProcessGroup {
    pub fn command(self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        if self == Self::Own {
            command.process_group(0);
        }
        command
    }
}

/// Signals that end a child, each with its time limit, before SIGKILL.
pub type Farewell = &'static [(Signal, Duration)];

pub const TERM: Farewell = &[(Signal::TERM, Duration::from_secs(10))];

/// Child process, ended on drop. It is signalled by pid only until it is reaped, so that the pid is its own.
#[derive(Debug)]
pub struct Running {
    child: Child,
    program: String,
    log: PathBuf,
    log_begins: usize,
    farewell: Farewell,
}

impl Running {
    /// Starts a command without input, and appends its output to a log file.
    pub fn spawn(
        command: &mut Command,
        log: PathBuf,
        farewell: Farewell,
    ) -> Result<Self, HarnessError> {
        let program = PathBuf::from(command.get_program());
        let program = program.file_name().unwrap_or_default().to_string_lossy();
        let log_begins = fs::metadata(&log).map_or(0, |file| file.len());
        let mut spawn = || {
            let output = File::options().create(true).append(true).open(&log)?;
            let command = command.stdin(Stdio::null()).stdout(output.try_clone()?);
            command.stderr(output).spawn()
        };
        let child = spawn().map_err(system(format!("cannot run {program}")))?;
        Ok(Self {
            child,
            program: program.into_owned(),
            log,
            log_begins: usize::try_from(log_begins).unwrap_or_default(),
            farewell,
        })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    pub fn wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        let ended = Patience::at_most(limit).until(|| self.ended());
        ended.ok().flatten()
    }

    pub fn signal(&mut self, signal: Signal) {
        if self.ended().is_none() {
            // It may end now, but is not reaped before `ended`, so the signal cannot hit another process.
            let _gone_already = kill_process(Pid::from_child(&self.child), signal);
        }
    }

    /// Ends the process: by each signal in turn, finally by SIGKILL.
    pub fn end(&mut self) -> Option<ExitStatus> {
        for (signal, limit) in self.farewell {
            self.signal(*signal);
            if let Some(status) = self.wait(*limit) {
                return Some(status);
            }
        }
        let _gone_already = self.child.kill();
        self.child.wait().ok()
    }

    pub fn output(&self) -> String {
        let log = fs::read(&self.log).unwrap_or_default();
        let own = log.get(self.log_begins..).unwrap_or_default();
        String::from_utf8_lossy(own).into_owned()
    }

    pub(crate) fn failure(&self) -> HarnessError {
        let output = self.output();
        let lines: Vec<&str> = output.lines().collect();
        let last = lines.get(lines.len().saturating_sub(5)..);
        HarnessError::Program {
            program: self.program.clone(),
            output: last.unwrap_or_default().join("\n"),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.ended().is_none() {
            self.end();
        }
    }
}
