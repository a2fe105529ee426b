//! The thread that writes rejection records. It alone waits for the disk.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::time::SystemTime;

use super::record::{RejectionRecord, rfc3339};
use super::{Message, RejectionLogError, Shared};

/// Where lines go.
pub(super) struct Sink {
    path: PathBuf,
    out: Box<dyn Write + Send>,
}

/// What the last write left behind.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LastLine {
    Whole,
    /// A failed write may have left half a line.
    MaybeTorn,
}

pub(super) struct Writer {
    sink: Option<Sink>,
    shared: Arc<Shared>,
    last_line: LastLine,
    /// Records that did not reach the file since the last line that did.
    missing: u64,
}

impl Sink {
    pub(super) fn open(path: &Path) -> Result<Self, RejectionLogError> {
        let file = open_append(path).map_err(|source| RejectionLogError::Open {
            path: path.to_path_buf(),
            source,
        })?;
        Ok(Self {
            path: path.to_path_buf(),
            out: Box::new(file),
        })
    }

    #[cfg(test)]
    pub(super) fn to(out: impl Write + Send + 'static) -> Self {
        Self {
            path: PathBuf::from("/dev/null"),
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

impl Writer {
    pub(super) fn new(sink: Option<Sink>, shared: Arc<Shared>) -> Self {
        Self {
            sink,
            shared,
            last_line: LastLine::Whole,
            missing: 0,
        }
    }

    /// Writes until the last handle is gone and the queue is empty.
    pub(super) fn run(mut self, queue: &Receiver<Message>) {
        while let Ok(message) = queue.recv() {
            if self.shared.reopen.swap(false, Ordering::Acquire) {
                self.reopen();
            }
            self.report_dropped();
            if let Message::Record(record) = message {
                emit(&record);
                self.write_record(&record);
            }
        }
        self.report_dropped();
        self.write_missing();
    }

    fn reopen(&mut self) {
        let Some(sink) = &mut self.sink else { return };
        match open_append(&sink.path) {
            Ok(file) => {
                sink.out = Box::new(file);
                self.last_line = LastLine::Whole;
                tracing::info!(path = %sink.path.display(), "rejection log opened anew");
            }
            Err(error) => {
                tracing::error!(path = %sink.path.display(), %error, "cannot reopen the file; the old one stays");
            }
        }
    }

    /// Records that found the queue full were neither logged nor written.
    fn report_dropped(&mut self) {
        let dropped = self.shared.dropped.swap(0, Ordering::Relaxed);
        if dropped > 0 {
            tracing::warn!(target: "pgpalisade::rejection", dropped, "rejections came too fast to record");
            self.missing = self.missing.saturating_add(dropped);
        }
    }

    fn write_record(&mut self, record: &RejectionRecord) {
        self.write_missing();
        if self.missing > 0 || !self.write_line(&record.to_json_line()) {
            self.missing = self.missing.saturating_add(1);
        }
    }

    /// Says how many are missing, before anything else is written, so that a reader sees the gap where it is.
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

    /// True where the line is in the file, or there is none.
    fn write_line(&mut self, line: &str) -> bool {
        let Some(sink) = &mut self.sink else {
            return true;
        };
        // A torn line is ended first, so that it spoils no other. One write per line: other appenders do not cut
        // into it.
        let start = if self.last_line == LastLine::MaybeTorn {
            "\n"
        } else {
            ""
        };
        match sink.out.write_all(format!("{start}{line}\n").as_bytes()) {
            Ok(()) => {
                self.last_line = LastLine::Whole;
                true
            }
            Err(error) => {
                // Once per outage: a full disk is no reason to fill the log.
                if self.last_line == LastLine::Whole {
                    tracing::error!(path = %sink.path.display(), %error, "cannot write to the rejection log");
                }
                self.last_line = LastLine::MaybeTorn;
                false
            }
        }
    }
}

/// The event in the log. Field names are those of the JSON line.
fn emit(record: &RejectionRecord) {
    tracing::warn!(
        target: "pgpalisade::rejection",
        kind = record.kind.as_str(),
        sqlstate = record.kind.sqlstate(),
        scope = record.scope,
        token = record.token,
        mark = record.mark,
        user = record.session.user,
        database = record.session.database,
        application_name = record.session.application_name,
        client_addr = %record.session.client_addr,
        backend_pid = record.session.backend_pid,
        statement_class = record.statement_class.as_deref(),
        statement = record.statement.as_ref().map(super::StatementText::as_str),
        "rejected"
    );
}
