//! The record of every rejection: a JSON line in a file, and an event in the log.
//!
//! In observe mode every write of an application can be a record, so an observed rejection is an event only at level
//! DEBUG, and an INFO event each minute says that there are some.
//!
//! Of repeated refusals only the first ones are recorded, and the others counted. Refusals before authentication
//! count as one kind: the name in them is not proved.
//!
//! The last records are also in memory. [`report`] sums up a file.

pub mod line;
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

pub use pgpalisade_logins::SessionLabel;
pub use record::{RecordedStatement, RejectionRecord, moment, rfc3339};

use parking_lot::Mutex;
use pgpalisade_fence::statement_text::Literals;
use pgpalisade_session::action::JudgedText;
use recent::Recent;
use repeats::Repeats;
use writer::{LogWriter, Sink};

/// Limit of records that wait for the writer: some 8 MiB, seconds of a storm of rejections.
const QUEUE: usize = 4096;

/// Time for the writer when the last handle is dropped: a disk that hangs must not keep the process alive.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
pub enum RejectionLogError {
    #[error("cannot open the rejection log {}", path.display())]
    Open {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("cannot start the writer of the rejection log")]
    Thread(#[source] std::io::Error),
}

/// A handle to the log; clones write to the same file. Dropping the last one writes what waits, within 5 s.
#[derive(Debug, Clone)]
pub struct RejectionLog {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// `None` only while dropped.
    queue: Option<SyncSender<Message>>,
    shared: Arc<LogState>,
    literals: Literals,
    /// Closes when the writer has ended. The mutex makes the handle `Sync`.
    ended: Mutex<Receiver<()>>,
}

/// State that handles share with the writer, outside the queue.
#[derive(Debug, Default)]
struct LogState {
    /// Records that found the queue full, and that the writer has not reported yet.
    dropped: AtomicU64,
    repeats: Repeats,
    recent: Recent,
    reopen: AtomicBool,
}

enum Message {
    Record(Arc<RejectionRecord>),
    Wake,
}

impl RejectionLog {
    /// Opens the file for appending, with mode 0640 if it is new, and starts the thread that writes to it. Records
    /// also go to `tracing` (target `pgpalisade::rejection`, level WARN if refused, DEBUG if observed); without a
    /// file, only there.
    ///
    /// # Errors
    ///
    /// The file cannot be opened, or the thread not started.
    pub fn open(file: Option<&Path>, literals: Literals) -> Result<Self, RejectionLogError> {
        let open = |path: &Path| {
            Sink::open(path).map_err(|source| RejectionLogError::Open {
                path: path.to_path_buf(),
                source,
            })
        };
        let sink = file.map(open).transpose()?;
        Self::start(sink, literals, QUEUE)
    }

    fn start(
        sink: Option<Sink>,
        literals: Literals,
        queue: usize,
    ) -> Result<Self, RejectionLogError> {
        let (sender, receiver) = mpsc::sync_channel(queue);
        let (end, ended) = mpsc::sync_channel(0);
        let shared = Arc::new(LogState::default());
        let writer = LogWriter::new(sink, Arc::clone(&shared));
        // The writer also uses a subscriber of this thread, as in tests.
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

    pub fn statement(&self, judged: &JudgedText) -> RecordedStatement {
        RecordedStatement::new(judged, self.inner.literals)
    }

    /// The last records, the oldest first. Repeated ones are summed up as in the file.
    pub fn recent(&self) -> Vec<Arc<RejectionRecord>> {
        self.inner.shared.recent.read()
    }

    /// Keeps a record and hands it to the writer, unless it repeats others. Never waits: if the writer cannot keep
    /// up, the record is dropped, and a later line `{"time":...,"dropped":n}` counts it.
    pub fn record(&self, record: RejectionRecord) {
        let Some(queue) = &self.inner.queue else {
            return;
        };
        let shared = &self.inner.shared;
        let Some(record) = shared.repeats.admit(record) else {
            return;
        };
        shared.recent.push(Arc::clone(&record));
        match queue.try_send(Message::Record(record)) {
            Ok(()) => {}
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                shared.dropped.fetch_add(1, Ordering::Relaxed);
                // If the writer has emptied the queue since, it must learn of the count.
                self.wake();
            }
        }
    }

    /// Reopens the file, for logrotate, before the next record. Returns at once. If it fails, the old file stays in
    /// use and the log says why.
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
