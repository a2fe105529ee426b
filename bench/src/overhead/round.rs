//! One round: a target, pgbench against it, and the counters at two moments when nothing moves.
//!
//! At both moments a lock on `pgbench_accounts` holds every client at its next statement. So what is counted is whole
//! transactions, no logins and no ends of sessions, and the counters are read at rest.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use pgpalisade_bench::affinity::OneProcessor;
use pgpalisade_bench::ground::{Ground, ROLE};
use pgpalisade_bench::statistics::percentile;
use pgpalisade_bench::targets::Target;
use pgpalisade_bench::{Error, cpu, memory};
use tokio_postgres::error::SqlState;

use crate::pgbench::{Pgbench, Run, Transaction};
use crate::plan::{Cores, Turn, Workload};
use crate::results::{Counters, Sample};

/// All clients log in within this, also 1,000 on a slow machine.
const LOGIN_LIMIT: Duration = Duration::from_secs(120);

/// All clients come to the lock within this, or one of them waits for something else.
const STANDSTILL_LIMIT: Duration = Duration::from_secs(3);

/// pgbench prepares one client's statements after the other's, and waits for each: a lock in the middle of that holds
/// only one of them. Then it is let go on.
const ATTEMPTS: usize = 5;

/// Before what is measured: the caches of new server processes fill. More with more of them.
fn warm_up(clients: u16) -> Duration {
    Duration::from_millis(150 + 2 * u64::from(clients))
}

/// Measures one round.
pub(crate) fn measure(
    ground: &mut Ground,
    pgbench: &Pgbench,
    turn: Turn,
    seconds: f64,
) -> Result<Sample, Error> {
    let Turn { cell, lane, .. } = turn;
    ground.wait_until_empty()?;
    if cell.workload == Workload::Tpcb {
        tidy_up(ground)?;
    }
    let _one = match cell.cores {
        Cores::All => None,
        // Server processes of the sessions are started by the first one.
        Cores::One => Some(OneProcessor::with(&[ground.postgres().pid()])?),
    };
    let target = Target::start(lane.kind, lane.link, ground)?;
    let mut run = pgbench.start(&target, cell)?;
    wait_for_logins(ground, &mut run, cell.clients)?;
    ground.pause(warm_up(cell.clients))?;
    stand_still(ground, &mut run, cell.clients)?;
    let before = Reading::of(&target)?;

    let begin = now();
    let start = Instant::now();
    ground.director().run("COMMIT")?;
    ground.pause(Duration::from_secs_f64(seconds))?;
    lock(ground)?;
    let time = start.elapsed();
    wait_for_waiters(ground, &mut run, cell.clients)?;
    let end = now();
    let after = Reading::of(&target)?;

    run.time_is_over();
    ground.director().run("COMMIT")?;
    let transactions = run.finish(ground.stop())?;
    let counted = Counted::of(&transactions, begin, end);
    counted.check(cell.clients)?;
    Ok(Sample {
        turn,
        transactions: counted.transactions,
        seconds: time.as_secs_f64(),
        latency_ms: counted.latency_ms,
        p50_ms: counted.p50_ms,
        p99_ms: counted.p99_ms,
        counters: counters(before, after),
    })
}

/// As pgbench does without `-n`: what the rounds before have left.
fn tidy_up(ground: &mut Ground) -> Result<(), Error> {
    for statement in [
        "TRUNCATE pgbench_history",
        "VACUUM pgbench_branches",
        "VACUUM pgbench_tellers",
    ] {
        ground.director().run(statement)?;
    }
    Ok(())
}

fn wait_for_logins(ground: &mut Ground, run: &mut Run, clients: u16) -> Result<(), Error> {
    let there = format!("SELECT count(*) FROM pg_stat_activity WHERE usename = '{ROLE}'");
    let start = Instant::now();
    while ground.director().number(&there)? < u64::from(clients) {
        run.check()?;
        if start.elapsed() > LOGIN_LIMIT {
            return Err(Error::Round(format!(
                "not all {clients} clients logged in within {LOGIN_LIMIT:?}"
            )));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Brings all clients to a halt, with the lock held.
fn stand_still(ground: &mut Ground, run: &mut Run, clients: u16) -> Result<(), Error> {
    for _ in 1..ATTEMPTS {
        let stands = match lock(ground) {
            Ok(()) => wait_for_waiters(ground, run, clients),
            Err(error) => Err(error),
        };
        match stands {
            Err(Error::Round(_)) => {
                ground.director().run("COMMIT")?;
                ground.pause(warm_up(clients))?;
            }
            other => return other,
        }
    }
    lock(ground)?;
    wait_for_waiters(ground, run, clients)
}

/// It is granted when those that are in a transaction have ended it. They do not where pgbench waits for one client,
/// which prepares a statement and waits for the lock: then it is given up.
fn lock(ground: &mut Ground) -> Result<(), Error> {
    let director = ground.director();
    let limit = STANDSTILL_LIMIT.as_millis();
    let locked = director.run(&format!(
        "BEGIN; SET LOCAL lock_timeout = {limit}; LOCK TABLE pgbench_accounts IN ACCESS EXCLUSIVE MODE"
    ));
    match locked {
        Err(Error::Sql { source, .. }) if source.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) => {
            director.run("ROLLBACK")?;
            let what = format!("no lock on pgbench_accounts within {STANDSTILL_LIMIT:?}");
            Err(Error::Round(what))
        }
        other => other,
    }
}

fn wait_for_waiters(ground: &mut Ground, run: &mut Run, clients: u16) -> Result<(), Error> {
    let waiters = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'pgbench_accounts'::regclass";
    let start = Instant::now();
    loop {
        let there = ground.director().number(waiters)?;
        if there == u64::from(clients) {
            return Ok(());
        }
        run.check()?;
        if start.elapsed() > STANDSTILL_LIMIT {
            return Err(Error::Round(format!(
                "{there} of {clients} clients came to the lock within {STANDSTILL_LIMIT:?}"
            )));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// By the clock that pgbench's log is in.
fn now() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}

/// What the log says about the time between two moments.
#[derive(Debug, PartialEq)]
struct Counted {
    transactions: u64,
    /// Done after the end.
    late: u64,
    latency_ms: f64,
    p50_ms: f64,
    p99_ms: f64,
}

impl Counted {
    /// Counted are all that were done after `begin` and by `end`. Those that stood at the lock at the beginning do not
    /// count for latency.
    fn of(all: &[Transaction], begin: Duration, end: Duration) -> Self {
        let inside: Vec<&Transaction> = all
            .iter()
            .filter(|transaction| transaction.done > begin && transaction.done <= end)
            .collect();
        let latencies: Vec<f64> = inside
            .iter()
            .filter(|transaction| transaction.begun() >= begin)
            .map(|transaction| transaction.latency.as_secs_f64() * 1e3)
            .collect();
        let part = |part| percentile(&latencies, part).unwrap_or_default();
        Self {
            transactions: inside.len() as u64,
            late: all.iter().filter(|one| one.done > end).count() as u64,
            latency_ms: latencies.iter().sum::<f64>() / latencies.len().max(1) as f64,
            p50_ms: part(0.5),
            p99_ms: part(0.99),
        }
    }

    /// Each client stood at the second lock with one transaction, and did no other. Where that is not so, the window is
    /// not what it is said to be.
    fn check(&self, clients: u16) -> Result<(), Error> {
        if self.transactions == 0 {
            return Err(Error::Round("not one transaction was done".to_owned()));
        }
        if self.late != u64::from(clients) {
            return Err(Error::Round(format!(
                "{} transactions were done after the second lock, by {clients} clients",
                self.late
            )));
        }
        Ok(())
    }
}

/// What the kernel has counted of a process.
#[derive(Debug, Clone, Copy)]
struct Reading {
    cpu: Duration,
    ticks: Duration,
    resident_kib: u64,
    threads: u64,
}

impl Reading {
    fn of(target: &Target) -> Result<Option<Self>, Error> {
        let read = |pid| -> Result<Self, Error> {
            Ok(Self {
                cpu: cpu::time_of(pid)?,
                ticks: cpu::ticks_of(pid)?,
                resident_kib: memory::resident_kib(pid)?,
                threads: memory::threads(pid)?,
            })
        };
        target.pid().map(read).transpose()
    }
}

fn counters(before: Option<Reading>, after: Option<Reading>) -> Option<Counters> {
    let (before, after) = before.zip(after)?;
    Some(Counters {
        cpu: after.cpu.saturating_sub(before.cpu),
        ticks: after.ticks.saturating_sub(before.ticks),
        resident_kib: after.resident_kib,
        threads: after.threads,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transaction(done_ms: u64, latency_ms: u64) -> Transaction {
        Transaction {
            done: Duration::from_millis(done_ms),
            latency: Duration::from_millis(latency_ms),
        }
    }

    #[test]
    fn only_what_was_done_between_the_locks_counts() {
        let all = [
            // The warm-up, the last moment of it, and one that stood at the lock.
            transaction(900, 10),
            transaction(1000, 10),
            transaction(1010, 60),
            transaction(1020, 4),
            transaction(1030, 6),
            // Stood at the second lock.
            transaction(2100, 500),
        ];
        let counted = Counted::of(&all, Duration::from_secs(1), Duration::from_secs(2));
        let expect = Counted {
            transactions: 3,
            late: 1,
            latency_ms: 5.0,
            p50_ms: 4.0,
            p99_ms: 6.0,
        };
        assert_eq!(counted, expect);
        assert!(counted.check(1).is_ok());
        assert!(counted.check(2).is_err());
    }
}
