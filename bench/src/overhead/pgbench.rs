//! Runs pgbench and reads its report: <https://www.postgresql.org/docs/current/pgbench.html>.

use std::fmt;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use pgpalisade::demo::child::ChildGuard;
use pgpalisade::demo::private_postgres::{PrivatePostgres, SUPERUSER};
use rustix::process::Signal;
use tokio_util::sync::CancellationToken;

use crate::error::Error;
use crate::proxy::forget_settings;

/// What a run may take longer than it was told to: connecting, and a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

const FAREWELL: &[(Signal, Duration)] = &[(Signal::TERM, Duration::from_secs(2))];

/// Which script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Workload {
    /// `-S`: one SELECT by primary key.
    Select,
    /// The built-in script that is like TPC-B: seven statements, of which four write.
    TpcB,
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Select => "select",
            Self::TpcB => "tpcb",
        })
    }
}

/// `--protocol`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    Simple,
    Extended,
    Prepared,
}

impl Protocol {
    pub(crate) const ALL: [Self; 3] = [Self::Simple, Self::Extended, Self::Prepared];

    fn name(self) -> &'static str {
        match self {
            Self::Simple => "simple",
            Self::Extended => "extended",
            Self::Prepared => "prepared",
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// How a session says its token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Declares {
    Nothing,
    /// `fencing.token=1`, in the startup packet.
    Token,
}

/// Where pgbench connects.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Target {
    /// On 127.0.0.1.
    pub(crate) port: u16,
    pub(crate) declares: Declares,
}

/// One run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Run {
    pub(crate) workload: Workload,
    pub(crate) protocol: Protocol,
    pub(crate) clients: u16,
    pub(crate) seconds: u16,
}

/// What pgbench reports.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Report {
    /// Transactions processed, by all clients.
    pub(crate) transactions: u64,
    /// Per second, without the time to connect.
    pub(crate) tps: f64,
}

impl Report {
    /// Of PostgreSQL 14 and later ("without initial connection time"), and of the older ones ("excluding
    /// connections establishing"). `None` where a figure is missing or there was no transaction at all.
    fn parse(text: &str) -> Option<Self> {
        let mut transactions = None;
        let mut tps = None;
        for line in text.lines() {
            if let Some(count) = line.strip_prefix("number of transactions actually processed: ") {
                // With a fixed number of transactions it is "done/wanted".
                transactions = count.split('/').next()?.trim().parse().ok();
            } else if let Some(rate) = line.strip_prefix("tps = ") {
                let (rate, how) = rate.split_once(' ')?;
                if how.starts_with("(without") || how.starts_with("(excluding") {
                    tps = rate.parse().ok();
                }
            }
        }
        let report = Self {
            transactions: transactions?,
            tps: tps?,
        };
        (report.transactions > 0 && report.tps.is_finite() && report.tps > 0.0).then_some(report)
    }
}

/// pgbench, with the login of a private PostgreSQL.
#[derive(Debug)]
pub(crate) struct Pgbench<'a> {
    program: PathBuf,
    directory: &'a Path,
    password: &'a str,
    stop: &'a CancellationToken,
}

impl<'a> Pgbench<'a> {
    /// Its output goes through files in `directory`.
    pub(crate) fn new(
        program: PathBuf,
        directory: &'a Path,
        postgres: &'a PrivatePostgres,
        stop: &'a CancellationToken,
    ) -> Self {
        Self {
            program,
            directory,
            password: postgres.password(),
            stop,
        }
    }

    /// Makes the tables, scale 1: 100,000 accounts, 10 tellers, one branch.
    pub(crate) fn initialise(&self, target: Target) -> Result<(), Error> {
        let arguments = ["-i", "-q", "-s", "1"].map(str::to_owned);
        self.execute(target, &arguments, Duration::ZERO).map(drop)
    }

    /// One run of some seconds.
    pub(crate) fn run(&self, target: Target, run: Run) -> Result<Report, Error> {
        let mut arguments = vec![
            "-n".to_owned(),
            format!("--protocol={}", run.protocol.name()),
            format!("--client={}", run.clients),
            format!("--time={}", run.seconds),
        ];
        if run.workload == Workload::Select {
            arguments.push("-S".to_owned());
        }
        let time = Duration::from_secs(run.seconds.into());
        self.report(target, &arguments, time)
    }

    /// One transaction that writes.
    pub(crate) fn write_once(&self, target: Target) -> Result<Report, Error> {
        let arguments = ["-n", "-t", "1"].map(str::to_owned);
        self.report(target, &arguments, Duration::ZERO)
    }

    fn report(&self, to: Target, arguments: &[String], time: Duration) -> Result<Report, Error> {
        let text = self.execute(to, arguments, time)?;
        Report::parse(&text).ok_or_else(|| Error::NotUnderstood {
            what: "the report of pgbench".to_owned(),
            text,
        })
    }

    /// What it wrote to its standard output.
    fn execute(&self, to: Target, arguments: &[String], time: Duration) -> Result<String, Error> {
        let output = self.directory.join("pgbench.out");
        let errors = self.directory.join("pgbench.err");
        let spawn = || {
            let mut command = Command::new(&self.program);
            forget_settings(&mut command);
            command
                .args(arguments)
                .env("LC_ALL", "C")
                .env("PGHOST", "127.0.0.1")
                .env("PGPORT", to.port.to_string())
                .env("PGUSER", SUPERUSER)
                .env("PGPASSWORD", self.password)
                .env("PGDATABASE", "postgres")
                .env("PGCONNECT_TIMEOUT", "10");
            if to.declares == Declares::Token {
                command.env("PGOPTIONS", "-c fencing.token=1");
            }
            command
                .stdin(Stdio::null())
                .stdout(File::create(&output)?)
                .stderr(File::create(&errors)?)
                .spawn()
        };
        let child = spawn().map_err(Error::system("cannot run pgbench"))?;
        let mut child = ChildGuard::new(child, FAREWELL);
        let start = Instant::now();
        let how = loop {
            if self.stop.is_cancelled() {
                return Err(Error::Interrupted);
            }
            match child.wait(Duration::from_millis(100)) {
                Some(status) if status.success() => {
                    return fs::read_to_string(&output)
                        .map_err(Error::system("cannot read the report of pgbench"));
                }
                Some(status) => break status.to_string(),
                None if start.elapsed() > time + PATIENCE => break "it does not end".to_owned(),
                None => {}
            }
        };
        Err(Error::Pgbench {
            how,
            doing: arguments.join(" "),
            output: fs::read_to_string(&errors).unwrap_or_default(),
        })
    }
}

/// In `PG_BIN` where that is set, else in `PATH`, else in Debian's directories, the newest.
pub(crate) fn find() -> Result<PathBuf, Error> {
    let directories: Vec<PathBuf> = match std::env::var_os("PG_BIN").filter(|dir| !dir.is_empty()) {
        // Where the user has said it, nothing else will do.
        Some(dir) => vec![PathBuf::from(dir)],
        None => {
            let path = std::env::var_os("PATH").unwrap_or_default();
            std::env::split_paths(&path).chain(debian()).collect()
        }
    };
    let mut programs = directories.iter().map(|dir| dir.join("pgbench"));
    programs
        .find(|program| program.is_file())
        .ok_or(Error::NoPgbench)
}

fn debian() -> Vec<PathBuf> {
    let entries = fs::read_dir("/usr/lib/postgresql").into_iter().flatten();
    let mut versions: Vec<(u32, PathBuf)> = entries
        .flatten()
        .filter_map(|entry| {
            let version = entry.file_name().to_str()?.parse().ok()?;
            Some((version, entry.path().join("bin")))
        })
        .collect();
    versions.sort_by_key(|(version, _)| std::cmp::Reverse(*version));
    versions.into_iter().map(|(_, bin)| bin).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expect: Option<(u64, f64)>) {
        let expect = expect.map(|(transactions, tps)| Report { transactions, tps });
        assert_eq!(Report::parse(text), expect);
    }

    #[test]
    fn reports() {
        let pg15 = "pgbench (15.14 (Debian 15.14-0+deb12u1))\n\
            transaction type: <builtin: select only>\nscaling factor: 1\nquery mode: simple\n\
            number of clients: 16\nnumber of threads: 1\nmaximum number of tries: 1\nduration: 2 s\n\
            number of transactions actually processed: 41268\n\
            number of failed transactions: 0 (0.000%)\nlatency average = 0.770 ms\n\
            initial connection time = 30.154 ms\n\
            tps = 20784.218905 (without initial connection time)\n";
        check(pg15, Some((41268, 20784.218905)));
        let pg13 = "number of transactions actually processed: 10/10\n\
            tps = 90.5 (including connections establishing)\n\
            tps = 100.5 (excluding connections establishing)\n";
        check(pg13, Some((10, 100.5)));
        check(&pg15.replace("41268", "0"), None);
        check(&pg15.replace("20784.218905", "many"), None);
        check(&pg15.replace("20784.218905", "NaN"), None);
        check(&pg15.replace("20784.218905", "inf"), None);
        check(&pg15.replace("tps", "rate"), None);
        check(&pg15.replace("actually processed", "wanted"), None);
        check("", None);
    }
}
