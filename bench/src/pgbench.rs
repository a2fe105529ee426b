//! pgbench as the load: transactions within a window, and their cost for the target.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pgpalisade_test_servers::machine::{self, Signal};
use pgpalisade_test_servers::postgres::Postgres;
use pgpalisade_test_servers::programs::{program, stdout};
use tempfile::TempDir;

use crate::process;
use crate::record::Figure;
use crate::ways::Way;

/// Until caches are warm and all clients run.
const WARM_UP: Duration = Duration::from_millis(300);

/// pgbench logs clients in one after another, which takes time on a busy machine.
const LOGIN_MAX: Duration = Duration::from_millis(200);

#[derive(Clone, Debug)]
pub(crate) struct Load {
    /// `simple`, `extended` or `prepared`.
    pub(crate) protocol: &'static str,
    pub(crate) clients: u32,
    /// Without a script, one SELECT by primary key, as `pgbench -S`.
    pub(crate) script: Option<PathBuf>,
    /// `PGOPTIONS` of the sessions.
    pub(crate) options: String,
    /// Transactions that end in it are counted.
    pub(crate) window: Duration,
}

pub(crate) fn initialise(postgres: &Postgres, scale: u32) {
    let mut command = program("pgbench", &postgres.socket());
    let output = command
        .args(["-i", "-q", "-s", &scale.to_string()])
        .output();
    stdout(&output.expect("start pgbench"));
}

/// Runs pgbench and returns the figures of the window, which begins after all clients have logged in: transactions
/// per second, their latencies, and their CPU time.
pub(crate) fn run(way: &Way, load: &Load) -> Vec<(Figure, f64)> {
    let pgbench = Pgbench::start(way, load);
    sleep(WARM_UP);
    let from = Moment::now(way);
    sleep(load.window);
    let to = Moment::now(way);
    let log = pgbench.end();
    summary(log.lines().filter_map(transaction), &from, &to)
}

#[derive(Debug)]
struct Pgbench {
    process: Child,
    dir: TempDir,
}

impl Pgbench {
    fn start(way: &Way, load: &Load) -> Self {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let mut command = program("pgbench", way.endpoint());
        command
            .args(["-n", "-T", "3600", "-M", load.protocol])
            .args(["-c", &load.clients.to_string()])
            .args(["--log", "--log-prefix"])
            .arg(dir.path().join("log"))
            .env("PGOPTIONS", &load.options)
            .env("PGSSLMODE", way.sslmode)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(errors(&dir)).expect("a file"));
        match &load.script {
            Some(script) => command.arg("-f").arg(script),
            None => command.arg("-S"),
        };
        let process = command.spawn().expect("start pgbench");
        let mut pgbench = Self { process, dir };
        let bound = machine::PATIENCE + load.clients * LOGIN_MAX;
        let begun = machine::wait_at_most(bound, || {
            let ended = pgbench.process.try_wait().expect("look at pgbench");
            assert!(ended.is_none(), "pgbench: {}", pgbench.said());
            fs::metadata(pgbench.log())
                .is_ok_and(|log| log.len() > 0)
                .then_some(())
        });
        assert!(begun.is_some(), "waited {bound:?} for transactions");
        pgbench
    }

    /// Returns the log.
    fn end(mut self) -> String {
        // pgbench's own timer sends the same signal.
        machine::signal(self.process.id(), Signal::ALARM);
        let status = machine::reap(&mut self.process, machine::PATIENCE);
        assert!(status.success(), "pgbench: {status}: {}", self.said());
        fs::read_to_string(self.log()).expect("read pgbench's log")
    }

    fn log(&self) -> PathBuf {
        self.dir.path().join(format!("log.{}", self.process.id()))
    }

    fn said(&self) -> String {
        fs::read_to_string(errors(&self.dir)).unwrap_or_default()
    }
}

fn errors(dir: &TempDir) -> PathBuf {
    dir.path().join("errors")
}

/// A moment, and the target's CPU time until then.
#[derive(Debug)]
struct Moment {
    micros: u64,
    cpu: Option<Duration>,
}

impl Moment {
    fn now(way: &Way) -> Self {
        let cpu = way.pid().map(process::cpu_time);
        Self {
            micros: since_1970(),
            cpu,
        }
    }
}

fn since_1970() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let micros = since.expect("after 1970").as_micros();
    u64::try_from(micros).expect("before the year 500,000")
}

/// From the end and the latency of each transaction in microseconds.
fn summary(
    transactions: impl Iterator<Item = (u64, f64)>,
    from: &Moment,
    to: &Moment,
) -> Vec<(Figure, f64)> {
    let mut latencies: Vec<f64> = transactions
        .filter(|(end, _)| (from.micros..to.micros).contains(end))
        .map(|(_, latency)| latency)
        .collect();
    latencies.sort_by(f64::total_cmp);
    let count = latencies.len() as f64;
    let seconds = (to.micros - from.micros) as f64 / 1e6;
    let mut figures = vec![(Figure::Rate, count / seconds)];
    let quantile = |quantile: f64| latencies.get((count * quantile) as usize).copied();
    figures.extend(quantile(0.5).map(|latency| (Figure::Median, latency)));
    figures.extend(quantile(0.99).map(|latency| (Figure::Tail, latency)));
    if let (Some(from), Some(to)) = (from.cpu, to.cpu) {
        figures.push((Figure::Cpu, (to - from).as_secs_f64() * 1e6 / count));
    }
    figures
}

/// End of a transaction in microseconds since the Unix epoch, and its latency in microseconds.
///
/// <https://www.postgresql.org/docs/current/pgbench.html>, "Per-Transaction Logging": client, number, latency,
/// script, seconds, microseconds.
fn transaction(line: &str) -> Option<(u64, f64)> {
    let words: Vec<&str> = line.split(' ').collect();
    let &[_, _, latency, _, seconds, micros, ..] = words.as_slice() else {
        return None;
    };
    let end = seconds.parse::<u64>().ok()? * 1_000_000 + micros.parse::<u64>().ok()?;
    Some((end, latency.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_ends_within_the_window_counts() {
        let lines = [
            "0 1 900 0 10 999999",
            "0 2 400 0 11 0",
            "1 1 100 0 11 500000",
            "0 3 200 0 12 999999",
            "1 2 700 0 13 0",
            "1 3",
        ];
        let at = |seconds: u64, cpu: u64| Moment {
            micros: seconds * 1_000_000,
            cpu: Some(Duration::from_micros(cpu)),
        };
        let ended = lines.into_iter().filter_map(transaction);
        let found = summary(ended, &at(11, 1_000), &at(13, 1_060));
        let expect = [
            (Figure::Rate, 1.5),
            (Figure::Median, 200.0),
            (Figure::Tail, 400.0),
            (Figure::Cpu, 20.0),
        ];
        assert_eq!(found, expect);
    }
}
