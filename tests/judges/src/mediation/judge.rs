//! Judges the changes of a conversation.
//!
//! Nobody else uses the server, so comparing before and after is enough:
//!
//! - Every session answers to its end.
//! - A strict session changes nothing. It takes no transaction id, and adds nothing to the write-ahead log except
//!   what reads add. (PostgreSQL 14 cannot read its own log.)
//! - The neighbour changes only rows of tables of scope `b`, and no sequence, catalog, large object, notification or
//!   WAL message. The free session changes no row of a table listed by a scope. The reader neither changes nor sees a
//!   row of the tables of scope `a`.
//! - A session with a twin gets the same replies as without the proxy.
//! - The holder: each new row of `log` has a token that the session has had, `@0` or more. G1 and G2: after another
//!   session's declaration of `n` is answered, no new row with a token below `n` may appear.

use std::time::Duration;

use super::conversation::{Conversation, Database, Session};
use super::world::{Copy, World, name_of};
use pgpalisade_test_servers::machine::wait_at_most;
use pgpalisade_test_servers::wire::Wire;

/// Next transaction id, and end of the write-ahead log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counters {
    xid: String,
    lsn: String,
    /// Mostly not logged.
    sequence: Vec<String>,
}

/// State at an answered declaration: its token, and the existing rows.
#[derive(Clone, Debug)]
pub struct Found {
    token: u64,
    rows: Vec<[String; 2]>,
}

#[derive(Debug)]
pub struct Judge {
    /// For state common to all databases.
    outside: Wire,
    /// In the conversations' database; listens for notifications.
    inside: Wire,
    reads_wal: bool,
    database: Database,
}

/// One line each; notifications arrive separately.
const CATALOG: &str = "
    SELECT 'counter', last_value::text || is_called::text FROM counter
    UNION ALL SELECT 'large objects', count(*)::text FROM pg_largeobject_metadata
    UNION ALL SELECT 'relations', count(*)::text FROM pg_class
    UNION ALL SELECT 'functions', count(*)::text FROM pg_proc";

/// Judges are excluded by their name.
const OTHERS: &str = "
    SELECT pid FROM pg_stat_activity
    WHERE datname ~ '^(watched|twin)' AND application_name <> 'judge'";

/// WAL records of changes.
const RECORDS: &str = "
    SELECT resource_manager || ' ' || record_type || ' ' || count(*)::text
    FROM pg_get_wal_records_info('$from', '$to')
    WHERE resource_manager NOT IN ('XLOG', 'Standby') AND record_type !~ '^(PRUNE.*|VACUUM|VISIBLE)$'
    GROUP BY resource_manager, record_type ORDER BY 1";

impl Judge {
    pub fn new(world: &World, database: Database) -> Self {
        let mut outside = world.admin("postgres");
        let reader = "SELECT FROM pg_extension WHERE extname = 'pg_walinspect'";
        Self {
            reads_wal: !outside.rows(reader).is_empty(),
            outside,
            inside: inside(world, database),
            database,
        }
    }

    /// Waits until no session is left in the conversations' databases. Ends a session that outlives its client, and
    /// returns false then.
    pub fn sessions_end(&mut self, within: Duration) -> bool {
        let outside = &mut self.outside;
        let ended = wait_at_most(within, || outside.rows(OTHERS).is_empty().then_some(()));
        if ended.is_none() {
            outside.ok(&format!(
                "SELECT pg_terminate_backend(pid, 5000) FROM ({OTHERS}) AS others"
            ));
        }
        ended.is_some()
    }

    pub fn counters(&mut self) -> Counters {
        let sql = "SELECT pg_snapshot_xmax(pg_current_snapshot()), pg_current_wal_insert_lsn()";
        let [xid, lsn] = pair(self.outside.rows(sql).concat());
        let sequence = self
            .inside
            .rows("SELECT last_value, is_called FROM counter")
            .concat();
        Counters { xid, lsn, sequence }
    }

    pub fn written(&mut self, before: &Counters, after: &Counters) -> Vec<String> {
        let mut found = Vec::new();
        if self.reads_wal && before.lsn != after.lsn {
            // The write-ahead log is readable up to its flush position, and a commit flushes it.
            self.outside
                .ok("SELECT pg_logical_emit_message(true, 'judge', '')");
            let sql = RECORDS
                .replace("$from", &before.lsn)
                .replace("$to", &after.lsn);
            found.extend(self.outside.rows(&sql).concat());
        }
        if before.sequence != after.sequence {
            found.push("a sequence".to_owned());
        }
        if before.xid != after.xid {
            found.insert(0, "a transaction id".to_owned());
        }
        found
    }

    /// Up to PostgreSQL 14 nothing reads the write-ahead log, so whatever may have logged a message counts as a write.
    pub fn unseen(&self, conversation: &Conversation) -> Option<String> {
        let logs = || conversation.to_string().contains("pg_logical_emit_message");
        (!self.reads_wal && logs()).then(|| "a message that cannot be seen".to_owned())
    }

    pub fn belonging_to_others(&mut self, session: Session) -> Vec<String> {
        belonging_to_others(&mut self.inside, session)
    }

    /// Forbidden changes since `before`. `written` are those from the write-ahead log, which has no record of
    /// notifications.
    pub fn changed_for_others(
        &mut self,
        session: Session,
        before: &[String],
        written: Vec<String>,
    ) -> Vec<String> {
        let mut wrong = differences(before, &self.belonging_to_others(session));
        if session == Session::Neighbour {
            let message = |record: &String| record.starts_with("LogicalMessage");
            wrong.extend(written.into_iter().filter(message));
            if self.notifications() > 0 {
                wrong.push("a notification".to_owned());
            }
        }
        wrong
    }

    pub fn belonging_to_others_directly(&self, world: &World, session: Session) -> Vec<String> {
        let mut twin = world.admin(&name_of(self.database, Copy::Twin));
        belonging_to_others(&mut twin, session)
    }

    pub fn notifications(&mut self) -> usize {
        // A notification arrives before the reply to a later statement.
        let answer = [self.inside.query("SELECT 1"), self.inside.query("SELECT 1")].concat();
        answer.iter().filter(|message| message.tag == b'A').count()
    }

    pub fn rows(&mut self) -> Vec<[String; 2]> {
        let sql = "SELECT xmin::text, coalesce(token, '') FROM log";
        self.inside.rows(sql).into_iter().map(pair).collect()
    }

    /// State at the declaration of this token, just answered.
    pub fn found_by(&mut self, token: &str) -> Option<Found> {
        let token = token.parse().ok()?;
        Some(Found {
            token,
            rows: self.rows(),
        })
    }

    /// Rows that a holder of `number` or more must not have written.
    pub fn wrong_rows(
        &mut self,
        before: &[[String; 2]],
        number: u64,
        found: &[Found],
    ) -> Vec<String> {
        let mut wrong = Vec::new();
        let rows = self.rows();
        for row in rows.iter().filter(|row| !before.contains(row)) {
            let [_, token] = row;
            match token.parse::<u64>() {
                Ok(token) if token >= number => {}
                _ => wrong.push(format!(
                    "a row with the token '{token}', which holds nothing"
                )),
            }
        }
        for found in found {
            for row in rows.iter().filter(|row| !found.rows.contains(row)) {
                if row[1].parse::<u64>().is_ok_and(|token| token < found.token) {
                    wrong.push(format!(
                        "a row with the token {}, after {} was declared and answered",
                        row[1], found.token
                    ));
                }
            }
        }
        wrong
    }

    /// Resets the tables after allowed writes.
    pub fn clean(&mut self) {
        self.inside.ok(CLEAN);
    }

    pub fn clean_twin(&self, world: &World) {
        world.admin(&name_of(self.database, Copy::Twin)).ok(CLEAN);
    }

    pub fn restore(&mut self, world: &World) {
        self.inside
            .send(&pgpalisade_test_servers::wire::Batch::new().terminate());
        self.inside.until_closed();
        world.restore(self.database, Copy::Watched);
        self.inside = inside(world, self.database);
    }
}

fn differences(before: &[String], after: &[String]) -> Vec<String> {
    let new = after.iter().filter(|line| !before.contains(line));
    new.map(|line| format!("changed: {line}")).collect()
}

/// Condition for the tables in which this session may write no row.
const fn whose(session: Session) -> &'static str {
    match session {
        Session::Free => "scopes <> ''",
        Session::Reader => "scopes LIKE '%a%'",
        _ => "scopes <> 'b'",
    }
}

fn belonging_to_others(wire: &mut Wire, session: Session) -> Vec<String> {
    let whose = whose(session);
    let tables = format!("SELECT relation, scopes, rows FROM contents() WHERE {whose}");
    let mut lines = wire.rows(&tables);
    if session == Session::Neighbour {
        lines.extend(wire.rows(CATALOG));
    }
    lines.into_iter().map(|row| row.join(" ")).collect()
}

const CLEAN: &str = "SELECT clean()";

fn inside(world: &World, database: Database) -> Wire {
    let mut wire = world.admin(&name_of(database, Copy::Watched));
    wire.ok("SET application_name = 'judge'");
    wire.ok("LISTEN news");
    wire
}

fn pair(row: Vec<String>) -> [String; 2] {
    row.try_into().expect("two columns")
}
