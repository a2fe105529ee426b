//! Runs pgbench and reads its log of transactions: <https://www.postgresql.org/docs/current/pgbench.html>.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use pgpalisade::demo::child::ChildGuard;
use pgpalisade_bench::Error;
use pgpalisade_bench::targets::Target;
use rustix::process::{Pid, Signal, kill_process};
use tokio_util::sync::CancellationToken;

use crate::plan::{Cell, Workload};

/// What a run may take that has nothing to wait for.
const PATIENCE: Duration = Duration::from_secs(120);

/// Longer than any round. pgbench is told when to end; this is for the case that nobody can tell it any more.
const TIME_MAX: &str = "--time=900";

const FAREWELL: &[(Signal, Duration)] = &[(Signal::TERM, Duration::from_secs(2))];

/// pgbench, with its files in a directory.
#[derive(Debug)]
pub(crate) struct Pgbench {
    pub(crate) program: PathBuf,
    pub(crate) directory: PathBuf,
    pub(crate) stop: CancellationToken,
}

impl Pgbench {
    /// Makes the tables: 100,000 accounts, 10 tellers and one branch for each unit of `scale`.
    pub(crate) fn initialise(&self, target: &Target, scale: u16) -> Result<(), Error> {
        self.execute(target, &["-i", "-q", "-s", &scale.to_string()])
    }

    /// One transaction that writes.
    pub(crate) fn write_once(&self, target: &Target) -> Result<(), Error> {
        self.execute(target, &["-n", "-t", "1"])
    }

    fn execute(&self, target: &Target, arguments: &[&str]) -> Result<(), Error> {
        let arguments = arguments.iter().map(|&argument| argument.to_owned());
        let mut run = self.spawn(target, arguments.collect())?;
        run.wait(&self.stop)
    }

    /// Starts it without an end: [`Run::finish`] ends it.
    pub(crate) fn start(&self, target: &Target, cell: Cell) -> Result<Run, Error> {
        let mut arguments = vec![
            "-n".to_owned(),
            format!("--protocol={}", cell.protocol),
            format!("--client={}", cell.clients),
            TIME_MAX.to_owned(),
            "--log".to_owned(),
            format!("--log-prefix={}", self.directory.join("pgbench").display()),
        ];
        if cell.workload == Workload::Select {
            arguments.push("-S".to_owned());
        }
        self.spawn(target, arguments)
    }

    fn spawn(&self, target: &Target, arguments: Vec<String>) -> Result<Run, Error> {
        let errors = self.directory.join("pgbench.err");
        let spawn = || {
            let mut command = Command::new(&self.program);
            target.connect_by_environment(&mut command);
            command
                .args(&arguments)
                .current_dir(&self.directory)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(File::create(&errors)?)
                // Ctrl-C is for us, and we stop things in order.
                .process_group(0)
                .spawn()
        };
        let child = spawn().map_err(Error::system("cannot run pgbench"))?;
        let child = ChildGuard::new(child, FAREWELL);
        // One thread, so one file, named by its process.
        let log = self.directory.join(format!("pgbench.{}", child.pid()));
        Ok(Run {
            child,
            arguments,
            errors,
            log,
        })
    }
}

/// pgbench as it runs. It is ended when dropped.
#[derive(Debug)]
pub(crate) struct Run {
    child: ChildGuard,
    arguments: Vec<String>,
    errors: PathBuf,
    log: PathBuf,
}

impl Run {
    /// That it still runs.
    ///
    /// # Errors
    /// What it said, where it has ended.
    pub(crate) fn check(&mut self) -> Result<(), Error> {
        match self.child.ended() {
            None => Ok(()),
            Some(status) => Err(self.failed(status.to_string())),
        }
    }

    /// Tells it that its time is over: each client finishes its transaction, and logs out.
    ///
    /// SIGALRM is how its own timer (`--time`) tells it.
    pub(crate) fn time_is_over(&mut self) {
        if let Ok(raw) = i32::try_from(self.child.pid())
            && let Some(pid) = Pid::from_raw(raw)
            && self.child.ended().is_none()
        {
            // It has not been waited for, so the number is its own.
            let _ = kill_process(pid, Signal::ALARM);
        }
    }

    /// Waits for its end, and gives its log.
    pub(crate) fn finish(mut self, stop: &CancellationToken) -> Result<Vec<Transaction>, Error> {
        self.wait(stop)?;
        let text = read(&self.log)?;
        // Not needed any more; what stays goes with the directory.
        let _ = fs::remove_file(&self.log);
        Transaction::parse_all(&text)
    }

    fn wait(&mut self, stop: &CancellationToken) -> Result<(), Error> {
        let start = Instant::now();
        let how = loop {
            if stop.is_cancelled() {
                return Err(Error::Interrupted);
            }
            match self.child.wait(Duration::from_millis(50)) {
                Some(status) if status.success() => return Ok(()),
                Some(status) => break status.to_string(),
                None if start.elapsed() > PATIENCE => break "it does not end".to_owned(),
                None => {}
            }
        };
        Err(self.failed(how))
    }

    fn failed(&self, how: String) -> Error {
        Error::Pgbench {
            how,
            doing: self.arguments.join(" "),
            output: fs::read_to_string(&self.errors).unwrap_or_default(),
        }
    }
}

fn read(path: &Path) -> Result<String, Error> {
    fs::read_to_string(path).map_err(Error::system("cannot read the log of pgbench"))
}

/// A line of the log of transactions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Transaction {
    /// When it was done, since 1970.
    pub(crate) done: Duration,
    /// How long it took.
    pub(crate) latency: Duration,
}

impl Transaction {
    /// When it was begun.
    pub(crate) fn begun(self) -> Duration {
        self.done.saturating_sub(self.latency)
    }

    fn parse_all(text: &str) -> Result<Vec<Self>, Error> {
        let parse = |line: &str| {
            Self::parse(line).ok_or_else(|| Error::NotUnderstood {
                what: "a line of pgbench's log".to_owned(),
                text: line.to_owned(),
            })
        };
        text.lines().map(parse).collect()
    }

    /// `client_id transaction_no time script_no time_epoch time_us`: the time it took in microseconds, and when it was
    /// done, in seconds and microseconds.
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.split_ascii_whitespace().skip(2);
        let latency = Duration::from_micros(fields.next()?.parse().ok()?);
        let seconds = Duration::from_secs(fields.nth(1)?.parse().ok()?);
        let micros = Duration::from_micros(fields.next()?.parse().ok()?);
        Some(Self {
            done: seconds + micros,
            latency,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_log() {
        let parsed = Transaction::parse("0 199 2241 0 1175850568 995598").unwrap();
        assert_eq!(parsed.latency, Duration::from_micros(2241));
        assert_eq!(parsed.done, Duration::from_micros(1_175_850_568_995_598));
        assert_eq!(parsed.begun(), Duration::from_micros(1_175_850_568_993_357));
        for line in [
            "",
            "0 199 2241 0 1175850568",
            "0 199 skipped 0 1175850568 995598",
        ] {
            assert_eq!(Transaction::parse(line), None, "{line}");
        }
        assert!(Transaction::parse_all("0 1 2 0 3 4\nnonsense\n").is_err());
    }
}
