//! The events of a run, one JSON line each: written by its processes and read by the checker.
//!
//! A request is recorded *before* it is sent and its answer after it came, each with one `write`. So a killed process
//! loses at most answers, and a missing answer means "unknown".
//!
//! Times are nanoseconds of the machine's monotonic clock.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::sync::Mutex;

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    Run {
        seed: u64,
        route: String,
        takeover_timeout_ms: u64,
        slack_ms: u64,
        /// Whether clients share server connections.
        shares: bool,
        /// Whether a pooler lends connections: a takeover ends those that an earlier client has declared in.
        #[serde(default)]
        pooled: bool,
    },
    Leader {
        leader: u32,
        scope: String,
        token: u64,
    },
    /// Before a leader takes the next token of a scope. On success this is a declaration too.
    Take {
        id: u64,
        at: u64,
        scope: String,
        /// Mark to follow; `None` for any.
        after: Option<u64>,
    },
    Taken {
        id: u64,
        /// If it was told.
        token: Option<u64>,
    },
    /// Before a leader declares a token.
    Declare {
        at: u64,
        id: u64,
        leader: u32,
        /// Number of the proxy.
        proxy: usize,
        /// If already known.
        pid: Option<u32>,
    },
    Declared {
        at: u64,
        id: u64,
        answer: Answer,
    },
    /// Position of PostgreSQL's log some time after a declaration was acknowledged: every commit at a higher position
    /// came after the answer.
    Position {
        id: u64,
        lsn: u64,
        /// If a failover may begin a new one. The snapshot then came before.
        #[serde(default)]
        timeline: Option<u32>,
    },
    /// A new holder's first snapshot of all lower tokens.
    Snapshot {
        id: u64,
        at: u64,
        seen: Tally,
    },
    /// Before a leader writes rows, in one or more transactions.
    Write {
        at: u64,
        id: u64,
        leader: u32,
        shape: String,
        rows: Vec<u64>,
    },
    Written {
        at: u64,
        id: u64,
        answer: Answer,
    },
    /// The last time at which a listener's client that reads nothing has seen its connection open.
    Open {
        /// Of its declaration.
        id: u64,
        at: u64,
    },
    Commit {
        /// End of its commit record, which orders all commits.
        lsn: u64,
        rows: Vec<Row>,
    },
    /// Timelines of the final primary, each with the position of its end. Commits after that position, or on another
    /// timeline, were lost in a failover.
    Survived {
        timelines: Vec<(u32, u64)>,
    },
    Table {
        rows: Tally,
    },
    /// Before a writer appends a number to the shared row.
    Append {
        writer: u32,
        /// Consecutive for each writer, from 1.
        number: u64,
    },
    Appended {
        writer: u32,
        number: u64,
        answer: Answer,
    },
    /// Final contents of the shared row, in its order.
    SharedRow {
        /// Writer and number.
        entries: Vec<(u32, u64)>,
    },
    Exempt {
        scope: String,
        why: Exemption,
        begin: u64,
        end: u64,
        first: u64,
        last: u64,
    },
    Fault {
        kind: FaultKind,
        target: Target,
        begin: u64,
        end: u64,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    pub id: u64,
    pub scope: String,
    pub token: u64,
}

/// A set of rows, as their number and the exclusive-or of their ids. Two different sets of a run have the same tally
/// only by coincidence, with at least two rows too many and two too few.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    pub rows: u64,
    pub fold: u64,
}

impl Tally {
    pub fn add(&mut self, id: u64) {
        self.rows += 1;
        self.fold ^= id;
    }
}

/// Lowest token that no election gives.
pub const POISON: u64 = 1 << 41;

/// First number of a connection behind a listener. Each is a leader of its own, with the token that it was given.
const BEHIND: u32 = 1 << 31;
/// Connections of one program.
const CONNECTIONS_MAX: u32 = 1 << 12;

/// Number of a program's connection as a leader.
///
/// # Panics
///
/// With too many programs or connections.
pub fn connection(program: u32, number: u32) -> u32 {
    assert!(number < CONNECTIONS_MAX && program < BEHIND / CONNECTIONS_MAX);
    BEHIND + program * CONNECTIONS_MAX + number
}

/// Number of the process to which a leader belongs.
pub fn process(leader: u32) -> u32 {
    leader
        .checked_sub(BEHIND)
        .map_or(leader, |place| place / CONNECTIONS_MAX)
}

/// Number of a proxy with another store.
pub const BESIDE: usize = 999;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    Ok,
    Error(String),
    /// The connection ended, or could not be made.
    Lost,
    /// Nothing arrived within the client's patience.
    Silent,
}

impl Answer {
    pub fn sqlstate(&self) -> Option<&str> {
        match self {
            Self::Error(code) => Some(code),
            Self::Ok | Self::Lost | Self::Silent => None,
        }
    }
}

/// Reason for a period without promises: a new holder must declare again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exemption {
    /// The policy only observed.
    Observed,
    /// The scope was poisoned and repaired.
    Repaired,
    /// A proxy with another store was serving, and the others had not noticed yet.
    TwoAuthorities,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    /// SIGSTOP, later SIGCONT.
    Pause,
    /// SIGKILL, later restarted.
    Kill,
    /// SIGTERM, later restarted.
    Stop,
    /// SIGQUIT, PostgreSQL's immediate shutdown; later restarted.
    Quit,
    /// Connections are closed.
    Cut,
    /// For a while connections are closed, and new ones after some bytes of replies.
    Flap,
    /// Bytes wait and continue later: a network that recovers.
    Hold,
    /// Bytes wait, and then the connections are closed: a network that does not recover in time.
    Partition,
    /// Bytes of existing connections wait, new connections pass, and the old bytes arrive after the new ones.
    Late,
    /// The policy changes from enforcing to observing and back.
    Observe,
    /// All available connections are taken.
    Exhaust,
    /// A scope gets a token beyond any election, and is repaired.
    Repair,
    /// A copy of the cluster is served with the same store; then the cluster is restarted.
    Copy,
    /// Proxies are killed, the store is restored to an earlier state, and the lost state is recovered.
    Restore,
    /// As [`Self::Restore`], without an election since that state, and with a recovery only if a proxy asks for it.
    QuietRestore,
    /// The server's clock is stepped and corrected; the server may restart in between.
    ClockStep,
    /// The synchronous standby of a PostgreSQL store is promoted and takes over its address.
    Failover,
    Switchover,
    /// Only PostgreSQL's postmaster is killed; Patroni recovers it.
    KillPostmaster,
    /// The listener that gives the token should no longer do so, and does not know.
    LeadLost,
    /// A proxy with another store serves the cluster while the control connections of the others are down.
    SecondAuthority,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    Proxy(usize),
    Leader(u32),
    Postgres,
    Backend(u32),
    Member(usize),
    ClientLink(usize),
    UpstreamLink(usize),
    ControlLink(usize),
    StoreLink(usize),
    /// What the listeners follow.
    Election,
}

impl Target {
    pub fn class(&self) -> &'static str {
        match self {
            Self::Proxy(_) => "proxy",
            Self::Leader(_) => "client",
            Self::Postgres => "postgres",
            Self::Backend(_) => "backend",
            Self::Member(_) => "store member",
            Self::ClientLink(_) => "link client-proxy",
            Self::UpstreamLink(_) => "link proxy-postgres",
            Self::ControlLink(_) => "link control-postgres",
            Self::StoreLink(_) => "link proxy-store",
            Self::Election => "election",
        }
    }
}

pub fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).expect("the monotonic clock is positive");
    let nanoseconds = u64::try_from(time.tv_nsec).expect("nanoseconds are positive");
    seconds * 1_000_000_000 + nanoseconds
}

#[derive(Debug)]
pub struct Recorder(Mutex<File>);

impl Recorder {
    /// Opens the file and keeps its contents.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(Self(Mutex::new(file)))
    }

    /// Writes one event with one `write`: the kernel has it, even if this process dies.
    pub fn record(&self, event: &Event) {
        let mut line = serde_json::to_vec(event).expect("an event is JSON");
        line.push(b'\n');
        let mut file = self.0.lock().expect("the history's file");
        file.write_all(&line).expect("write the history");
    }
}

/// Skips an incomplete last line, which a killed process left. Other errors name their line.
pub fn read(path: &Path) -> io::Result<Vec<Event>> {
    let mut reader = BufReader::new(File::open(path)?);
    let mut events = Vec::new();
    let mut line = String::new();
    loop {
        line.clear();
        if reader.read_line(&mut line)? == 0 || !line.ends_with('\n') {
            return Ok(events);
        }
        let event = serde_json::from_str(&line).map_err(|error| {
            let place = format!("{}:{}: {error}", path.display(), events.len() + 1);
            io::Error::new(io::ErrorKind::InvalidData, place)
        })?;
        events.push(event);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_without_an_end_is_left_out() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("history.jsonl");
        let event = Event::Declared {
            at: 5,
            id: 7,
            answer: Answer::Error("PF001".to_owned()),
        };
        let recorder = Recorder::open(&path).expect("a file");
        recorder.record(&event);
        recorder.record(&event);
        let text = std::fs::read_to_string(&path).expect("the file");
        std::fs::write(&path, &text[..text.len() - 4]).expect("the file");
        assert_eq!(read(&path).expect("a history"), [event]);
        std::fs::write(&path, "{}\n").expect("the file");
        let error = read(&path).expect_err("no event");
        assert!(error.to_string().contains("history.jsonl:1:"), "{error}");
    }
}
