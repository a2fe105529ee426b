//! PostgreSQL's commits in the order of its log, by logical decoding.
//!
//! The plugin is `test_decoding`, which comes with PostgreSQL:
//! <https://www.postgresql.org/docs/current/test-decoding.html>. Changes are peeked at first and consumed once they
//! are recorded, so that a crash in between loses none.

use std::time::{Duration, Instant};

use pgpalisade_test_servers::wire::Endpoint;

use super::client::Client;
use super::history::{Answer, Event, Recorder, Row};
use super::stop::Stop;

const SLOT: &str = "proof";
/// The last transaction of a batch is always complete.
const AT_ONCE: usize = 4_000;
const PAUSE: Duration = Duration::from_millis(700);
const PATIENCE: Duration = Duration::from_secs(20);
const FINISH_WITHIN: Duration = Duration::from_secs(120);

/// Before any write.
pub const SETUP: &str =
    "SELECT lsn FROM pg_create_logical_replication_slot('proof', 'test_decoding')";

#[derive(Debug)]
pub struct Decoder<'a> {
    server: Endpoint,
    recorder: &'a Recorder,
    /// End of the last recorded commit. After a crash the slot may begin before it.
    last: u64,
}

impl<'a> Decoder<'a> {
    pub const fn new(server: Endpoint, recorder: &'a Recorder) -> Self {
        Self {
            server,
            recorder,
            last: 0,
        }
    }

    pub fn follow(&mut self, stop: &Stop) {
        while !stop.sleep(PAUSE) {
            // PostgreSQL may be down.
            while self.step().is_some_and(|commits| commits > 0) && !stop.is_stopped() {}
        }
    }

    /// Reads the rest. All writers must have ended.
    pub fn finish(&mut self) {
        let end = Instant::now() + FINISH_WITHIN;
        while self.step().expect("PostgreSQL decodes its log") > 0 {
            assert!(Instant::now() < end, "the log of PostgreSQL has no end");
        }
    }

    /// `None` if PostgreSQL did not answer.
    fn step(&mut self) -> Option<usize> {
        let mut client = Client::login(&self.server, &[], PATIENCE).ok()?;
        let peek = format!(
            "SELECT lsn - '0/0'::pg_lsn, data FROM pg_logical_slot_peek_changes('{SLOT}', NULL, {AT_ONCE}, \
             'include-xids', '0', 'skip-empty-xacts', '1')"
        );
        let reply = client.query(&peek);
        let changes = reply.rows;
        let mut rows = Vec::new();
        let mut commits = 0;
        let mut end = None;
        for change in &changes {
            let [lsn, data] = change.as_slice() else {
                return None;
            };
            if let Some(row) = inserted(data) {
                rows.push(row);
            } else if data == "COMMIT" {
                let lsn = lsn.parse().expect("a position");
                commits += 1;
                end = Some(lsn);
                self.take(lsn, std::mem::take(&mut rows));
            }
        }
        if let Some(end) = end {
            let give_up =
                format!("SELECT pg_replication_slot_advance('{SLOT}', '0/0'::pg_lsn + {end})");
            // If this fails the same commits come again, and are recognized.
            let _known_then = client.query(&give_up);
        }
        (reply.answer == Answer::Ok).then_some(commits)
    }

    fn take(&mut self, lsn: u64, rows: Vec<Row>) {
        if lsn <= self.last {
            return;
        }
        self.last = lsn;
        if !rows.is_empty() {
            self.recorder.record(&Event::Commit { lsn, rows });
        }
    }
}

/// An INSERT into `writes` in the plugin's format: `table public.writes: INSERT: id[bigint]:1 scope[text]:'alpha'
/// token[bigint]:5`.
fn inserted(data: &str) -> Option<Row> {
    let columns = data.strip_prefix("table public.writes: INSERT: ")?;
    let mut values = columns.split(' ').map(|column| column.split_once("]:"));
    let mut next = || values.next().flatten().map(|(_, value)| value);
    Some(Row {
        id: next()?.parse().ok()?,
        scope: next()?.trim_matches('\'').to_owned(),
        token: next()?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_read() {
        let line = "table public.writes: INSERT: id[bigint]:71 scope[text]:'alpha' token[bigint]:5";
        let row = inserted(line).expect("a row");
        assert_eq!((row.id, row.scope.as_str(), row.token), (71, "alpha", 5));
        assert_eq!(inserted("COMMIT"), None);
    }
}
