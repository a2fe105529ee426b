//! The record of every rejection: one JSON line each in a file, an event in the log, and counts of them.
//!
//! In observe mode every write of an application can be a record, so what was only observed is no event of its own
//! unless the log is at level DEBUG: an INFO event says how many there are, with the first one and then at most once
//! a minute. The file has them all, as far as its writer keeps up.
//!
//! Of refusals that repeat only the first ones are recorded, and the others counted. What is refused before a login
//! was authenticated is marked so, and counts as one kind: nobody has proved the name in it.
//!
//! The last records are also in memory, with the writers without a token that have taken turns ([`overlaps`]). Whoever
//! reads a file has [`line`](mod@line) for its lines, and [`report`] for the sum of them.

mod client_addr;
mod counts;
pub mod line;
pub mod overlaps;
mod recent;
mod record;
mod repeats;
pub mod report;
#[cfg(test)]
mod tests;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender, TrySendError};
use std::time::Duration;

pub use client_addr::ClientAddr;
pub use counts::Counters;
pub use record::{RecordedStatement, RejectionRecord, SessionLabel, moment, rfc3339};

use jiff::Timestamp;
use overlaps::{Overlap, Overlaps, Writer as TokenlessWriter};
use parking_lot::Mutex;
use pgpalisade_fence::rejection::Enforcement;
use pgpalisade_fence::statement_text::Literals;
use pgpalisade_policies::Class;
use pgpalisade_session::action::JudgedText;
use recent::Recent;
use repeats::Repeats;
use writer::{Sink, Writer};

/// Records that wait for the writer. At about 2 KiB each this is some 8 MiB: seconds of a storm of rejections,
/// and a bound.
const QUEUE: usize = 4096;

/// How long the last handle waits for the writer when it is dropped: a disk that hangs must not keep the process.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// Why a rejection log could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum RejectionLogError {
    /// The file could not be opened for appending.
    #[error("cannot open the rejection log {}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The system gave no thread.
    #[error("cannot start the writer of the rejection log")]
    Thread(#[source] std::io::Error),
}

/// A handle to the log; clones are cheap and write to the same file. Dropping the last one writes what waits,
/// within 5 s.
#[derive(Debug, Clone)]
pub struct RejectionLog {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// `None` only while it is dropped.
    queue: Option<SyncSender<Message>>,
    shared: Arc<Shared>,
    literals: Literals,
    /// Tells, by closing, that the writer has ended. In a mutex only to make the handle `Sync`.
    ended: Mutex<Receiver<()>>,
}

/// What handles tell the writer besides records: it works also when the queue is full.
#[derive(Debug, Default)]
struct Shared {
    counters: Counters,
    /// Records that found the queue full and that the writer has not told of yet.
    dropped: AtomicU64,
    repeats: Repeats,
    recent: Recent,
    overlaps: Mutex<Overlaps>,
    reopen: AtomicBool,
}

enum Message {
    Record(Arc<RejectionRecord>),
    /// Look at [`Shared`].
    Wake,
}

impl Shared {
    /// A write that was let pass though it had no token.
    fn note_overlap(&self, record: &RejectionRecord) {
        let session = &record.session;
        let is_let_pass = record.enforced == Enforcement::Observed && session.is_authenticated();
        if let (true, Some(Class::Write), Some(scope)) = (is_let_pass, record.needs, &record.scope)
            && let Ok(at) = Timestamp::try_from(record.time)
        {
            let writer = TokenlessWriter {
                application: session.application_name.clone(),
                host: session.client_addr.ip().map(|host| host.to_string()),
            };
            self.overlaps.lock().note(scope, writer, at);
        }
    }
}

impl RejectionLog {
    /// Opens the log: the file for appending, with mode 0640 where it is new, and the thread that writes to it.
    /// Without a file the records only go to `tracing` (target `pgpalisade::rejection`, level WARN for what was
    /// refused, DEBUG for what was only observed), with it to both.
    ///
    /// # Errors
    /// Where the file cannot be opened or the thread not started.
    pub fn open(file: Option<&Path>, literals: Literals) -> Result<Self, RejectionLogError> {
        let sink = file.map(Sink::open).transpose()?;
        Self::start(sink, literals, QUEUE)
    }

    /// Whether this process could open the file. Neither makes nor changes it.
    ///
    /// # Errors
    /// Those of [`Self::open`].
    pub fn try_open(file: &Path) -> Result<(), RejectionLogError> {
        writer::try_append(file).map_err(|source| RejectionLogError::Open {
            path: file.to_path_buf(),
            source,
        })
    }

    fn start(
        sink: Option<Sink>,
        literals: Literals,
        queue: usize,
    ) -> Result<Self, RejectionLogError> {
        let (sender, receiver) = mpsc::sync_channel(queue);
        let (end, ended) = mpsc::sync_channel(0);
        let shared = Arc::new(Shared::default());
        let writer = Writer::new(sink, Arc::clone(&shared));
        // A subscriber that is set for this thread only (a test's) is used by the writer too.
        let dispatch = tracing::dispatcher::get_default(Clone::clone);
        std::thread::Builder::new()
            .name(String::from("rejection-log"))
            .spawn(move || {
                tracing::dispatcher::with_default(&dispatch, || writer.run(&receiver));
                drop(end);
            })
            .map_err(RejectionLogError::Thread)?;
        Ok(Self {
            inner: Arc::new(Inner {
                queue: Some(sender),
                shared,
                literals,
                ended: Mutex::new(ended),
            }),
        })
    }

    /// Makes a statement, as the client sent it, fit for a record.
    pub fn statement(&self, judged: &JudgedText) -> RecordedStatement {
        RecordedStatement::new(judged, self.inner.literals)
    }

    /// The last records, the oldest first, as far as they are kept. Those that repeat are in it as in the file.
    pub fn recent(&self) -> Vec<Arc<RejectionRecord>> {
        self.inner.shared.recent.read()
    }

    /// The writers without tokens that have taken turns, those that began last first.
    pub fn overlaps(&self) -> Vec<Overlap> {
        self.inner.shared.overlaps.lock().list()
    }

    /// Keeps a record and hands it to the writer, unless it only repeats others. Never waits: where the writer cannot
    /// keep up, the record is dropped and counted, and a line `{"time":...,"dropped":n}` says so once the writer
    /// gets there.
    pub fn record(&self, record: RejectionRecord) {
        let Some(queue) = &self.inner.queue else {
            return;
        };
        let shared = &self.inner.shared;
        if record.session.is_authenticated() {
            shared.counters.count(record.kind, record.enforced);
        } else {
            shared.counters.count_unproved();
        }
        shared.note_overlap(&record);
        let Some(record) = shared.repeats.admit(record) else {
            return;
        };
        shared.recent.push(Arc::clone(&record));
        match queue.try_send(Message::Record(record)) {
            Ok(()) => {}
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                shared.counters.count_dropped();
                shared.dropped.fetch_add(1, Ordering::Relaxed);
                // The writer may have emptied the queue since: then it must be told of the count.
                self.wake();
            }
        }
    }

    /// Opens the file anew, for logrotate. Returns at once; the writer does it before the next record. Where it
    /// fails the old file stays in use and the log says why.
    pub fn reopen(&self) {
        self.inner.shared.reopen.store(true, Ordering::Release);
        self.wake();
    }

    fn wake(&self) {
        if let Some(queue) = &self.inner.queue {
            // A full queue wakes the writer as well.
            let _ = queue.try_send(Message::Wake);
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.queue = None;
        let ended = self.ended.get_mut();
        if ended.recv_timeout(FLUSH_TIMEOUT) == Err(mpsc::RecvTimeoutError::Timeout) {
            tracing::error!(
                "the rejection log could not be written in time; its last records may be lost"
            );
        }
    }
}
