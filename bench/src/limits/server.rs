//! What a fenced write costs PostgreSQL: write-ahead log, and locks.

use std::time::Duration;

use pgpalisade_bench::Error;
use pgpalisade_bench::ground::{Ground, ROLE};
use pgpalisade_bench::targets::{Kind, Link, Target};
use pgpalisade_tests::wire::Batch;
use tokio_util::sync::CancellationToken;

use crate::client::{Appetite, Client};
use crate::effort::Effort;
use crate::progress::say;
use crate::report::{Report, Verdict};

pub(crate) const NAME: &str = "server";

const ACCOUNTS: u64 = 100_000;
const TELLERS: u64 = 10;

/// Nothing but the transactions writes WAL: no snapshots for standbys, no images of pages after a checkpoint.
const SETTINGS: [&str; 5] = [
    "wal_level=minimal",
    "max_wal_senders=0",
    "full_page_writes=off",
    "bgwriter_lru_maxpages=0",
    "shared_buffers=256MB",
];

/// The tables of `pgbench -i`, scale 1, new and without dead rows.
const TABLES: &str = "
    DROP TABLE IF EXISTS pgbench_branches, pgbench_tellers, pgbench_accounts, pgbench_history;
    CREATE TABLE pgbench_branches (bid int PRIMARY KEY, bbalance int, filler char(88)) WITH (fillfactor = 100);
    CREATE TABLE pgbench_tellers (tid int PRIMARY KEY, bid int, tbalance int, filler char(84)) WITH (fillfactor = 100);
    CREATE TABLE pgbench_accounts (aid int PRIMARY KEY, bid int, abalance int, filler char(84)) WITH (fillfactor = 100);
    CREATE TABLE pgbench_history (tid int, bid int, aid int, delta int, mtime timestamp, filler char(22));
    INSERT INTO pgbench_branches VALUES (1, 0, '');
    INSERT INTO pgbench_tellers SELECT n, 1, 0, '' FROM generate_series(1, 10) n;
    INSERT INTO pgbench_accounts SELECT n, 1, 0, '' FROM generate_series(1, 100000) n;";

const NAMES: [&str; 4] = [
    "pgbench_branches",
    "pgbench_tellers",
    "pgbench_accounts",
    "pgbench_history",
];

/// A process tells what it has written at most once a second, when a transaction ends.
const TOLD: Duration = Duration::from_millis(1100);

const BYTES: &str = "WAL bytes/txn";
const RECORDS: &str = "WAL records/txn";
const LOCKS: &str = "locks";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Simple,
    Extended,
}

impl Protocol {
    const ALL: [Self; 2] = [Self::Simple, Self::Extended];

    fn name(self) -> &'static str {
        match self {
            Self::Simple => "simple",
            Self::Extended => "extended",
        }
    }

    fn request(self, sql: &str) -> Batch {
        match self {
            Self::Simple => Batch::new().query(sql),
            Self::Extended => Batch::new().statement(sql).sync(),
        }
    }
}

/// What the transactions of one run have written, and what one of them has locked.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Written {
    bytes: u64,
    records: u64,
    locks: Vec<String>,
}

/// The same transactions on the same tables, direct and through the proxy.
pub(crate) fn measure(effort: &Effort, stop: &CancellationToken) -> Result<Report, Error> {
    let mut ground = Ground::start(16, &SETTINGS, stop)?;
    let mut rows = Vec::new();
    for kind in [Kind::Direct, Kind::Bound] {
        let target = Target::start(kind, Link::Tcp, &ground)?;
        settle(&target, effort, &mut ground, stop)?;
        for protocol in Protocol::ALL {
            say(
                NAME,
                &format!(
                    "{} transactions, {kind}, {}",
                    effort.transactions,
                    protocol.name()
                ),
            );
            let written = run(&target, protocol, effort.transactions, &mut ground, stop)?;
            rows.push((kind, protocol, written));
        }
    }
    Ok(report(effort, &rows))
}

/// The first session with a token has the proxy make its table in the cluster. That is written once, and the process
/// that wrote it may tell ten seconds later.
fn settle(
    target: &Target,
    effort: &Effort,
    ground: &mut Ground,
    stop: &CancellationToken,
) -> Result<(), Error> {
    Client::login(target, Appetite::Small, stop)?.terminate()?;
    ground.wait_until_empty()?;
    let waits = format!("{:?} for PostgreSQL to have counted it", effort.settle);
    say(NAME, &waits);
    ground.pause(effort.settle)
}

fn run(
    target: &Target,
    protocol: Protocol,
    transactions: u32,
    ground: &mut Ground,
    stop: &CancellationToken,
) -> Result<Written, Error> {
    make_tables(ground)?;
    let mut client = Client::login(target, Appetite::Small, stop)?;
    let before = wal(ground)?;
    let mut random = Random(42);
    for _ in 0..transactions {
        for sql in transaction(&mut random) {
            client
                .run(protocol.request(&sql).bytes())?
                .expect(1, &sql)?;
        }
    }
    client.terminate()?;
    ground.wait_until_empty()?;
    let after = wal(ground)?;
    let locks = locks(target, protocol, ground, stop)?;
    Ok(Written {
        bytes: after.0 - before.0,
        records: after.1 - before.1,
        locks,
    })
}

fn make_tables(ground: &mut Ground) -> Result<(), Error> {
    let director = ground.director();
    director.run(TABLES)?;
    for name in NAMES {
        director.run(&format!("ALTER TABLE {name} OWNER TO {ROLE}"))?;
        // By itself: it cannot be in a transaction with others.
        director.run(&format!("VACUUM (FREEZE, ANALYZE) {name}"))?;
    }
    // What reading the catalog would clean up on its way is cleaned up before.
    director.run("VACUUM")?;
    director.run("CHECKPOINT")
}

/// Bytes and records of WAL since the server was started, of sessions that have ended or told.
fn wal(ground: &mut Ground) -> Result<(u64, u64), Error> {
    let director = ground.director();
    std::thread::sleep(TOLD);
    director.run("SELECT 1")?;
    let bytes = director.number("SELECT wal_bytes::bigint FROM pg_stat_wal")?;
    let records = director.number("SELECT wal_records FROM pg_stat_wal")?;
    Ok((bytes, records))
}

/// What a session holds in an open transaction after its last statement.
fn locks(
    target: &Target,
    protocol: Protocol,
    ground: &mut Ground,
    stop: &CancellationToken,
) -> Result<Vec<String>, Error> {
    let mut client = Client::login(target, Appetite::Small, stop)?;
    let pid = client
        .run(Batch::new().query("SELECT pg_backend_pid()").bytes())?
        .value;
    let pid = pid.unwrap_or_default();
    // All but its END.
    for sql in transaction(&mut Random(7)).iter().take(6) {
        client.run(protocol.request(sql).bytes())?.expect(1, sql)?;
    }
    let locks = ground.director().column(&format!(
        "SELECT concat_ws(' ', locktype, relation::regclass, mode, granted, fastpath) \
         FROM pg_locks WHERE pid = {pid} ORDER BY 1"
    ))?;
    client
        .run(Batch::new().query("ROLLBACK").bytes())?
        .expect(1, "ROLLBACK")?;
    client.terminate()?;
    ground.wait_until_empty()?;
    Ok(locks)
}

/// The script of pgbench that is like TPC-B.
fn transaction(random: &mut Random) -> [String; 7] {
    let (account, teller) = (random.up_to(ACCOUNTS), random.up_to(TELLERS));
    let delta = random.up_to(10_000).cast_signed() - 5_000;
    [
        "BEGIN".to_owned(),
        format!("UPDATE pgbench_accounts SET abalance = abalance + {delta} WHERE aid = {account}"),
        format!("SELECT abalance FROM pgbench_accounts WHERE aid = {account}"),
        format!("UPDATE pgbench_tellers SET tbalance = tbalance + {delta} WHERE tid = {teller}"),
        format!("UPDATE pgbench_branches SET bbalance = bbalance + {delta} WHERE bid = 1"),
        format!(
            "INSERT INTO pgbench_history (tid, bid, aid, delta, mtime) \
             VALUES ({teller}, 1, {account}, {delta}, CURRENT_TIMESTAMP)"
        ),
        "END".to_owned(),
    ]
}

/// The same numbers in each run: <https://prng.di.unimi.it/splitmix64.c>.
struct Random(u64);

impl Random {
    /// A number from 1.
    fn up_to(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % most + 1
    }
}

fn report(effort: &Effort, rows: &[(Kind, Protocol, Written)]) -> Report {
    let title = format!(
        "what {} transactions of pgbench's script that is like TPC-B write and lock in PostgreSQL, the \
         same numbers in each run",
        effort.transactions
    );
    let mut report = Report::new(NAME, "protocol", title);
    let each = |total: u64| total as f64 / f64::from(effort.transactions);
    for (kind, protocol, written) in rows {
        let at = (kind.name(), protocol.name());
        report.figure(at, BYTES, &[each(written.bytes)], 3);
        report.figure(at, RECORDS, &[each(written.records)], 4);
        report.figure(at, LOCKS, &[written.locks.len() as f64], 0);
    }
    for protocol in Protocol::ALL {
        let of = |kind| {
            let mut rows = rows.iter();
            rows.find(|(its, its_protocol, _)| (*its, *its_protocol) == (kind, protocol))
        };
        let (Some((.., direct)), Some((.., ours))) = (of(Kind::Direct), of(Kind::Bound)) else {
            continue;
        };
        let name = protocol.name();
        report.goal(
            format!("as much WAL as direct, {name}"),
            format!(
                "{} and {} bytes, {} and {} records",
                direct.bytes, ours.bytes, direct.records, ours.records
            ),
            Verdict::of(|| (direct.bytes, direct.records) == (ours.bytes, ours.records)),
        );
        report.goal(
            format!("the same locks as direct, {name}"),
            different(&direct.locks, &ours.locks),
            Verdict::of(|| direct.locks == ours.locks),
        );
    }
    report
}

fn different(direct: &[String], ours: &[String]) -> String {
    let missing = |from: &[String], of: &[String]| -> Vec<String> {
        of.iter()
            .filter(|lock| !from.contains(lock))
            .cloned()
            .collect()
    };
    let (more, less) = (missing(direct, ours), missing(ours, direct));
    match more.is_empty() && less.is_empty() && direct.len() == ours.len() {
        true => format!("{} locks", direct.len()),
        false => format!("more: {more:?}; less: {less:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transactions_are_the_same_in_each_run() {
        let (mut one, mut other) = (Random(42), Random(42));
        for _ in 0..1000 {
            let first = transaction(&mut one);
            assert_eq!(first, transaction(&mut other));
        }
        assert_ne!(transaction(&mut one), transaction(&mut Random(42)));
        let mut random = Random(1);
        let mut seen: Vec<u64> = (0..1000).map(|_| random.up_to(TELLERS)).collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen, (1..=TELLERS).collect::<Vec<_>>());
    }

    #[test]
    fn locks_are_compared() {
        let of = |names: &[&str]| {
            names
                .iter()
                .map(|name| (*name).to_owned())
                .collect::<Vec<_>>()
        };
        let (a, ab) = (of(&["a"]), of(&["a", "b"]));
        assert_eq!(different(&a, &a), "1 locks");
        assert_eq!(different(&a, &ab), "more: [\"b\"]; less: []");
        assert_eq!(different(&ab, &a), "more: []; less: [\"b\"]");
        assert!(different(&a, &of(&["a", "a"])).starts_with("more"));
    }
}
