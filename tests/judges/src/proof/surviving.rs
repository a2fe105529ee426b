//! Commits on the timeline that survives all failovers, in the order of PostgreSQL's log. A logical slot does not
//! survive a failover, so the log itself is read at the end: `pg_waldump` shows the position of each commit, and
//! `xmin` the inserting transaction of a row.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use pgpalisade_test_servers::patroni::Patroni;
use pgpalisade_test_servers::postgres::bin;

use super::history::{Event, Recorder, Row};

#[derive(Debug)]
struct Timeline {
    number: u32,
    begin: u64,
    end: Option<u64>,
}

/// Records every commit after a position, which the first timeline contains.
pub fn record(servers: &Patroni, first: u64, recorder: &Recorder) {
    let log = servers.data(servers.wait_until_whole()).join("pg_wal");
    let mut admin = servers.admin("postgres");
    let newest = "SELECT substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)";
    let timelines = history(&log, &admin.rows(newest).concat().concat(), first);
    let commits: BTreeMap<u64, u64> = timelines
        .iter()
        .flat_map(|own| commits(&log, own))
        .collect();
    let mut transactions: BTreeMap<u64, Vec<Row>> = BTreeMap::new();
    for row in admin.rows("SELECT xmin, id, scope, token FROM writes") {
        let number = |column: usize| row[column].parse().expect("a number");
        let lsn = commits.get(&number(0));
        let lsn = *lsn.unwrap_or_else(|| panic!("the log does not tell of {row:?}"));
        transactions.entry(lsn).or_default().push(Row {
            id: number(1),
            scope: row[2].clone(),
            token: number(3),
        });
    }
    for (lsn, rows) in transactions {
        recorder.record(&Event::Commit { lsn, rows });
    }
    let ends = timelines
        .iter()
        .map(|own| (own.number, own.end.unwrap_or(u64::MAX)));
    recorder.record(&Event::Survived {
        timelines: ends.collect(),
    });
}

/// Timelines after a position, from the history file of the newest one: each line has a number and its end.
fn history(log: &Path, newest: &str, first: u64) -> Vec<Timeline> {
    let text = std::fs::read_to_string(log.join(format!("{newest}.history")));
    let mut timelines = Vec::new();
    let mut begin = first;
    for line in text.unwrap_or_default().lines() {
        let mut fields = line.split('\t');
        let mut field = || fields.next().unwrap_or_default();
        let (Ok(number), Some(end)) = (field().parse(), position(field())) else {
            continue;
        };
        if end >= begin {
            timelines.push(Timeline {
                number,
                begin,
                end: Some(end),
            });
            begin = end;
        }
    }
    let number = u32::from_str_radix(newest, 16).expect("the name of a log file");
    let end = None;
    timelines.push(Timeline { number, begin, end });
    timelines
}

/// Transactions, and the start of their commit record plus one: a log flushed up to there does not include the
/// commit.
fn commits(log: &Path, timeline: &Timeline) -> Vec<(u64, u64)> {
    let mut command = Command::new(bin("pg_waldump"));
    command
        .arg("--path")
        .arg(log)
        .args(["--rmgr", "Transaction"]);
    command.args(["--timeline", &timeline.number.to_string()]);
    command.args(["--start", &text(timeline.begin)]);
    if let Some(end) = timeline.end {
        command.args(["--end", &text(end)]);
    }
    // The newest timeline ends with an invalid record, which pg_waldump reports as an error.
    let output = command.output().expect("run pg_waldump");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() || timeline.end.is_none(),
        "pg_waldump: {errors}"
    );
    let lines = String::from_utf8(output.stdout).expect("ASCII");
    lines
        .lines()
        .filter_map(commit)
        .filter(|(_, lsn)| timeline.end.is_none_or(|end| *lsn <= end))
        .collect()
}

/// `rmgr: Transaction len (rec/tot): 46/46, tx: 745, lsn: 0/0154A3B8, prev 0/0154A378, desc: COMMIT 2026-11-23 ...`
fn commit(line: &str) -> Option<(u64, u64)> {
    let (_, line) = line.split_once(" tx:")?;
    let (transaction, line) = line.split_once(", lsn: ")?;
    let (lsn, line) = line.split_once(", prev ")?;
    let is_commit = line.contains("desc: COMMIT ");
    let found = (transaction.trim().parse().ok()?, position(lsn)? + 1);
    is_commit.then_some(found)
}

fn position(text: &str) -> Option<u64> {
    let (high, low) = text.split_once('/')?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    Some(number(high)? << 32 | number(low)?)
}

fn text(position: u64) -> String {
    format!("{:X}/{:X}", position >> 32, position & 0xFFFF_FFFF)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commits_are_read() {
        let line = "rmgr: Transaction len (rec/tot):     46/    46, tx:        745, lsn: 1/0154A3B8, \
                    prev 0/0154A378, desc: COMMIT 2026-11-23 20:43:43.000000 UTC";
        assert_eq!(commit(line), Some((745, 0x1_0154_A3B9)));
        assert_eq!(commit(&line.replace("COMMIT", "ABORT")), None);
        assert_eq!(position(&text(0x1_0154_A3B9)), Some(0x1_0154_A3B9));
    }
}
