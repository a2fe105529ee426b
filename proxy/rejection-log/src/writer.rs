//! The thread that writes rejection records: only it waits for the disk.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant, SystemTime};

use super::record::{RejectionRecord, rfc3339};
use super::repeats::{LeftOut, WINDOW};
use super::{LogState, Message};
use pgpalisade_fence::rejection::Enforcement;
use pgpalisade_fence::statement_text::StatementText;
use pgpalisade_fence::traceparent::Traceparent;

const DROPPED_EVERY: Duration = Duration::from_secs(1);

const OBSERVED_EVERY: Duration = Duration::from_secs(60);

const REPEATS_EVERY: Duration = Duration::from_secs(1);

/// Pause before the writer waits, so that in a flood the sessions' threads seldom have to wake it. The queue holds a
/// flood's records of that time.
pub(super) const REST: Duration = Duration::from_millis(10);

const TARGET: &str = "pgpalisade::rejection";

/// Logs one record, with the JSON line's field names.
macro_rules! event {
    ($level:ident, $record:expr, $message:literal) => {
        tracing::event!(
            target: TARGET,
            tracing::Level::$level,
            kind = $record.kind.as_str(),
            sqlstate = $record.kind.sqlstate(),
            scope = $record.scope,
            token = $record.token,
            mark = $record.mark,
            user = $record.session.user,
            database = $record.session.database,
            application_name = $record.session.application_name,
            client_addr = %$record.session.client_addr,
            backend_pid = $record.session.backend_pid,
            statement_class = $record.statement.class.as_deref(),
            statement = $record.statement.text.as_ref().map(StatementText::as_str),
            traceparent = $record.statement.traceparent.as_ref().map(Traceparent::as_str),
            reason = $record.reason,
            count = ($record.count > 1).then_some($record.count),
            $message
        )
    };
}

/// The file, or its stand-in for tests.
pub(super) struct Sink {
    path: PathBuf,
    out: Box<dyn Write + Send>,
    /// Whether it may end in half a line, which a failed write has left.
    may_be_torn: bool,
}

pub(super) struct LogWriter {
    sink: Option<Sink>,
    shared: Arc<LogState>,
    /// Whether the last write has failed.
    is_failing: bool,
    /// Records since the last written line that did not reach the file.
    missing: u64,
    dropped_told: Option<Instant>,
    observed_told: Option<Instant>,
    repeats_told: Instant,
}

impl Sink {
    pub(super) fn open(path: &Path) -> std::io::Result<Self> {
        let file = open_append(path)?;
        Ok(Self {
            path: path.to_path_buf(),
            may_be_torn: ends_in_half_a_line(&file, path),
            out: Box::new(file),
        })
    }

    #[cfg(test)]
    pub(super) fn to(out: impl Write + Send + 'static) -> Self {
        Self {
            path: PathBuf::from("/dev/null"),
            may_be_torn: false,
            out: Box::new(out),
        }
    }
}

fn open_append(path: &Path) -> std::io::Result<File> {
    OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o640)
        .open(path)
}

/// Whether a file ends in half a line, as far as it can be read.
fn ends_in_half_a_line(file: &File, path: &Path) -> bool {
    let has_lines = |metadata: Metadata| metadata.is_file() && metadata.len() > 0;
    let last = || {
        let mut file = File::open(path)?;
        file.seek(SeekFrom::End(-1))?;
        let mut last = [0];
        file.read_exact(&mut last)?;
        std::io::Result::Ok(last)
    };
    file.metadata().is_ok_and(has_lines) && !last().is_ok_and(|last| last == *b"\n")
}

impl LogWriter {
    pub(super) fn new(sink: Option<Sink>, shared: Arc<LogState>) -> Self {
        Self {
            sink,
            shared,
            is_failing: false,
            missing: 0,
            dropped_told: None,
            observed_told: None,
            repeats_told: Instant::now(),
        }
    }

    /// Writes until the last handle is gone and the queue is empty.
    pub(super) fn run(mut self, queue: &Receiver<Message>) {
        while let Some(message) = self.next(queue) {
            if self.shared.reopen.swap(false, Ordering::Acquire) {
                self.reopen();
            }
            if is_due(self.dropped_told, DROPPED_EVERY) {
                self.report_dropped();
            }
            if self.repeats_told.elapsed() >= REPEATS_EVERY {
                self.report_repeats(WINDOW);
            }
            match message {
                Message::Record(record) => {
                    self.emit(&record);
                    self.write_record(&record);
                }
                // A full disk may have room again.
                Message::Wake => self.write_missing(),
            }
        }
        self.report_repeats(Duration::ZERO);
        self.report_dropped();
        self.write_missing();
    }

    /// Waits for the next message; `None` if no more can come. Reports dropped records first.
    fn next(&mut self, queue: &Receiver<Message>) -> Option<Message> {
        match queue.try_recv() {
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => return None,
            Ok(message) => return Some(message),
        }
        self.report_dropped();
        std::thread::sleep(REST);
        match queue.try_recv() {
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => return None,
            Ok(message) => return Some(message),
        }
        match queue.recv_timeout(REPEATS_EVERY) {
            Ok(message) => Some(message),
            Err(RecvTimeoutError::Timeout) => Some(Message::Wake),
            Err(RecvTimeoutError::Disconnected) => None,
        }
    }

    /// Reports refusals that were left out, of kinds counted for at least `age`.
    fn report_repeats(&mut self, age: Duration) {
        self.repeats_told = Instant::now();
        for left_out in self.shared.repeats.take(age) {
            match left_out {
                LeftOut::Repeated(record) => {
                    let record: Arc<RejectionRecord> = Arc::from(record);
                    self.shared.recent.push(Arc::clone(&record));
                    self.emit(&record);
                    self.write_record(&record);
                }
                LeftOut::Unauthenticated(left_out) => self.report_unauthenticated(left_out),
                LeftOut::Beyond(left_out) => {
                    self.shared.dropped.fetch_add(left_out, Ordering::Relaxed);
                }
            }
        }
    }

    fn report_unauthenticated(&mut self, left_out: u64) {
        tracing::warn!(
            target: TARGET,
            left_out,
            "more requests were refused before authentication than are recorded"
        );
        let time = rfc3339(SystemTime::now());
        let line = serde_json::json!({ "time": time, "unauthenticated": left_out });
        self.write_counted(&line.to_string(), left_out);
    }

    fn reopen(&mut self) {
        let Some(sink) = &mut self.sink else { return };
        match Sink::open(&sink.path) {
            Ok(opened) => {
                *sink = opened;
                self.is_failing = false;
                tracing::info!(path = %sink.path.display(), "rejection log reopened");
            }
            Err(error) => {
                tracing::error!(path = %sink.path.display(), %error, "cannot reopen the rejection log; the old file \
                    stays open");
            }
        }
    }

    fn report_dropped(&mut self) {
        let dropped = self.shared.dropped.swap(0, Ordering::Relaxed);
        if dropped > 0 {
            tracing::warn!(target: TARGET, dropped, "rejections came too fast to record");
            self.missing = self.missing.saturating_add(dropped);
            self.dropped_told = Some(Instant::now());
            self.write_missing();
        }
    }

    fn emit(&mut self, record: &RejectionRecord) {
        match record.enforced {
            Enforcement::Refused if record.session.is_authenticated() => {
                event!(WARN, record, "rejected");
            }
            Enforcement::Refused => {
                event!(WARN, record, "rejected before the login was authenticated");
            }
            Enforcement::Observed => {
                event!(DEBUG, record, "observed, not rejected");
                self.report_observed();
            }
        }
    }

    fn report_observed(&mut self) {
        if is_due(self.observed_told, OBSERVED_EVERY) {
            tracing::info!(
                target: TARGET,
                "rejections that were only observed; see \"pgpalisade report\""
            );
            self.observed_told = Some(Instant::now());
        }
    }

    fn write_record(&mut self, record: &RejectionRecord) {
        self.write_counted(&record.to_json_line(), record.count);
    }

    /// Writes a line that stands for `count` refusals, or counts them as missing.
    fn write_counted(&mut self, line: &str, count: u64) {
        self.write_missing();
        if self.missing > 0 || !self.write_line(line) {
            self.missing = self.missing.saturating_add(count);
        }
    }

    /// Writes the number of missing records first, so that a reader sees the gap in its place.
    fn write_missing(&mut self) {
        if self.sink.is_none() {
            self.missing = 0;
        }
        if self.missing == 0 {
            return;
        }
        let line =
            serde_json::json!({ "time": rfc3339(SystemTime::now()), "dropped": self.missing });
        if self.write_line(&line.to_string()) {
            self.missing = 0;
        }
    }

    /// True if the line was written, or no file is configured.
    fn write_line(&mut self, line: &str) -> bool {
        let Some(sink) = &mut self.sink else {
            return true;
        };
        // A torn line is ended first. One write per line: other appenders cannot split it.
        let start = if sink.may_be_torn { "\n" } else { "" };
        match sink.out.write_all(format!("{start}{line}\n").as_bytes()) {
            Ok(()) => {
                (sink.may_be_torn, self.is_failing) = (false, false);
                true
            }
            Err(error) => {
                // Once per outage: a full disk must not fill the log.
                if !self.is_failing {
                    tracing::error!(path = %sink.path.display(), %error, "cannot write to the rejection log");
                }
                (sink.may_be_torn, self.is_failing) = (true, true);
                false
            }
        }
    }
}

fn is_due(last: Option<Instant>, every: Duration) -> bool {
    last.is_none_or(|at| at.elapsed() >= every)
}
