//! What happened in a run, one JSON line for each event: what the processes write and the checker reads.
//!
//! A request is written down *before* it is sent and its answer after it came, each with one `write`. So a
//! process that is killed loses at most answers, and an answer that is missing means "unknown".
//!
//! Times are nanoseconds of the machine's monotonic clock, which all processes of a run share.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::sync::Mutex;

use serde::{Deserialize, Serialize};

/// One line of a history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// What was run.
    Run {
        /// What all choices came from.
        seed: u64,
        /// Which way the clients took, in words.
        route: String,
        /// `takeover.timeout` of the proxies.
        takeover_timeout_ms: u64,
        /// What a declaration may take beyond it, on a busy machine.
        slack_ms: u64,
    },
    /// A process that believes that it leads.
    Leader {
        /// Its number, unique in a run.
        leader: u32,
        /// What it leads.
        scope: String,
        /// Its fencing token.
        token: u64,
    },
    /// The next token of a scope is about to be taken. Where that succeeds, it is a declaration too.
    Take {
        /// Unique in a run.
        id: u64,
        /// When.
        at: u64,
        /// In which scope.
        scope: String,
        /// The mark that it is to follow. None: whichever there is.
        after: Option<u64>,
    },
    /// The answer to it.
    Taken {
        /// The take's.
        id: u64,
        /// The token, where it was told.
        token: Option<u64>,
    },
    /// A token is about to be declared.
    Declare {
        /// When.
        at: u64,
        /// Unique in a run.
        id: u64,
        /// By whom.
        leader: u32,
        /// Through which proxy.
        proxy: usize,
        /// The server process of the session, where it is known already.
        pid: Option<u32>,
    },
    /// The answer to a declaration.
    Declared {
        /// When it had come.
        at: u64,
        /// The declaration's.
        id: u64,
        /// What it was.
        answer: Answer,
    },
    /// Where PostgreSQL's log stood some time after a declaration was acknowledged: everything that is committed
    /// at a higher position was committed after the answer.
    Position {
        /// The declaration's.
        id: u64,
        /// The end of what was flushed.
        lsn: u64,
        /// Of which timeline, where a failover may begin a new one. Then the snapshot came before.
        #[serde(default)]
        timeline: Option<u32>,
    },
    /// What the first snapshot of a new holder had of all lower tokens.
    Snapshot {
        /// The declaration's.
        id: u64,
        /// When it had come.
        at: u64,
        /// The rows.
        seen: Tally,
    },
    /// Rows are about to be written, in one transaction or more.
    Write {
        /// When.
        at: u64,
        /// Unique in a run.
        id: u64,
        /// By whom.
        leader: u32,
        /// In which way.
        shape: String,
        /// The ids of the rows, unique in a run.
        rows: Vec<u64>,
    },
    /// The answer to a write.
    Written {
        /// When it had come.
        at: u64,
        /// The write's.
        id: u64,
        /// What it was.
        answer: Answer,
    },
    /// A transaction as PostgreSQL's log has it.
    Commit {
        /// The end of its commit record: a total order.
        lsn: u64,
        /// What it inserted.
        rows: Vec<Row>,
    },
    /// The history of the primary at the end: each timeline with the position that it ended at. What stands behind
    /// that, or on another timeline, was lost in a failover.
    Survived {
        /// The first one first.
        timelines: Vec<(u32, u64)>,
    },
    /// What is in the table at the end.
    Table {
        /// The rows.
        rows: Tally,
    },
    /// A number is about to be appended to the row that several writers share.
    Append {
        /// By whom.
        writer: u32,
        /// Consecutive for each writer, from 1.
        number: u64,
    },
    /// The answer to it.
    Appended {
        /// By whom.
        writer: u32,
        /// Which.
        number: u64,
        /// What it was.
        answer: Answer,
    },
    /// What the shared row has at the end, in its order.
    SharedRow {
        /// Writer and number.
        entries: Vec<(u32, u64)>,
    },
    /// In a scope nothing was promised for a while.
    Exempt {
        /// Which.
        scope: String,
        /// Why.
        why: Exemption,
        /// Before it began.
        begin: u64,
        /// When all was promised again.
        end: u64,
        /// Where PostgreSQL's log stood at the beginning.
        first: u64,
        /// Where it stood at the end.
        last: u64,
    },
    /// Something was broken for a while.
    Fault {
        /// How.
        kind: FaultKind,
        /// What.
        target: Target,
        /// Before it was broken.
        begin: u64,
        /// When it was whole again.
        end: u64,
    },
}

/// A row that was committed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    /// Unique in a run.
    pub id: u64,
    /// The writer's scope.
    pub scope: String,
    /// The writer's token.
    pub token: u64,
}

/// A set of rows by their number and the exclusive-or of their ids. Two different sets of a run have the same
/// tally only by an accident that needs at least two rows too many and two too few.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// How many.
    pub rows: u64,
    /// All ids, folded.
    pub fold: u64,
}

impl Tally {
    /// One row more.
    pub fn add(&mut self, id: u64) {
        self.rows += 1;
        self.fold ^= id;
    }
}

/// Tokens from here on were given by no election.
pub const POISON: u64 = 1 << 41;

/// The number of a proxy with another store.
pub const BESIDE: usize = 999;

/// What a client was told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// Success.
    Ok,
    /// An error with this SQLSTATE.
    Error(String),
    /// The connection ended, or could not be made.
    Lost,
    /// Nothing came for as long as the client waits.
    Silent,
}

impl Answer {
    /// The SQLSTATE of an error.
    pub fn sqlstate(&self) -> Option<&str> {
        match self {
            Self::Error(code) => Some(code),
            Self::Ok | Self::Lost | Self::Silent => None,
        }
    }
}

/// Why nothing is promised. What was acknowledged before says nothing about what comes behind it: the new holder has to
/// declare anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exemption {
    /// The policy only observed.
    Observed,
    /// The scope was poisoned, and repaired.
    Repaired,
    /// A proxy with another store had come in, and the others had not seen it yet.
    TwoAuthorities,
}

/// How something is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    /// SIGSTOP, later SIGCONT.
    Pause,
    /// SIGKILL, later started again.
    Kill,
    /// SIGQUIT, later started again: PostgreSQL's immediate shutdown.
    Quit,
    /// Connections are closed.
    Cut,
    /// Connections are closed, and those that are made anew are closed behind some bytes of answers, for a while.
    Flap,
    /// Bytes wait, and go on later: a network that heals.
    Hold,
    /// Bytes wait, and then the connections are closed: a network that does not heal in time.
    Partition,
    /// Bytes of the connections that there are wait, new connections pass, and the old bytes arrive after theirs.
    Late,
    /// The policy is changed from enforcing to observing and back.
    Observe,
    /// All connections that there may be are taken.
    Exhaust,
    /// A scope gets a token that no election reaches, and is repaired.
    Repair,
    /// A copy of the cluster is served with the same store; then the cluster is started anew.
    Copy,
    /// Proxies are killed, the store is put back to an earlier state, and what it has forgotten is recovered.
    Restore,
    /// The same, where nobody was elected since that state and nothing is recovered unless a proxy asks for it.
    QuietRestore,
    /// The clock of the server is stepped and set right again, and the server may be started anew in between.
    ClockStep,
    /// The synchronous standby of a PostgreSQL store is promoted, and has its address.
    Failover,
    /// Patroni is asked to let the other server be the primary.
    Switchover,
    /// PostgreSQL's first process is killed alone; its Patroni sees to it.
    KillPostmaster,
    /// A proxy with another store serves the cluster, while the control connections of the others are away.
    SecondAuthority,
}

/// What is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// A proxy process.
    Proxy(usize),
    /// A client process.
    Leader(u32),
    /// The server.
    Postgres,
    /// One server process.
    Backend(u32),
    /// A process of the store.
    Member(usize),
    /// The network between the clients and a proxy.
    ClientLink(usize),
    /// The network between a proxy's sessions and PostgreSQL.
    UpstreamLink(usize),
    /// The network between a proxy's control connection and PostgreSQL.
    ControlLink(usize),
    /// The network between a proxy and the store.
    StoreLink(usize),
}

impl Target {
    /// The kind of thing that it is.
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
        }
    }
}

/// Now, for [`Event`].
pub fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).expect("the monotonic clock is positive");
    let nanoseconds = u64::try_from(time.tv_nsec).expect("nanoseconds are positive");
    seconds * 1_000_000_000 + nanoseconds
}

/// Appends events to a file.
#[derive(Debug)]
pub struct Recorder(Mutex<File>);

impl Recorder {
    /// Opens the file, and keeps what is in it.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(Self(Mutex::new(file)))
    }

    /// Writes one event with one `write`. The kernel has it then, whatever becomes of this process.
    pub fn record(&self, event: &Event) {
        let mut line = serde_json::to_vec(event).expect("an event is JSON");
        line.push(b'\n');
        let mut file = self.0.lock().expect("the history's file");
        file.write_all(&line).expect("write the history");
    }
}

/// Reads a history. A last line without an end is that of a process that was killed, and is left out.
///
/// # Errors
/// When the file cannot be read, or a line is no event; the error names the line.
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
