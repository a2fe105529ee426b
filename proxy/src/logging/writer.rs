//! Lines on their way to standard error, and the thread that writes them.

use std::borrow::Cow;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use pgpalisade_fence::readable::escaped;
use tracing_subscriber::fmt::MakeWriter;

use super::storm::Storms;

/// Limit of waiting lines in bytes: some thousand lines.
const BUFFER_MAX: usize = 1024 * 1024;

/// Time for unwritten lines at the end of the process.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

const TELL_EVERY: Duration = Duration::from_secs(1);

/// Lines that wait for the writer. Clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct Buffer(Arc<QueueState>);

#[derive(Debug, Default)]
struct QueueState {
    state: Mutex<WriterState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct WriterState {
    waiting: Vec<u8>,
    /// Lines that found no room.
    dropped: u64,
    is_closed: bool,
}

/// Dropping it writes what waits, for at most a second.
#[derive(Debug)]
pub(crate) struct LogGuard {
    buffer: Buffer,
    ended: Receiver<()>,
}

impl Buffer {
    pub(super) fn write_to(
        self,
        mut out: impl Write + Send + 'static,
        storms: Storms,
    ) -> io::Result<LogGuard> {
        let (end, ended) = mpsc::sync_channel(0);
        let buffer = self.clone();
        std::thread::Builder::new()
            .name("log".to_owned())
            .spawn(move || {
                while let Some(lines) = buffer.next(&storms) {
                    // A failure of the log has no place to be reported.
                    let _ = out.write_all(&lines);
                }
                drop(end);
            })?;
        Ok(LogGuard {
            buffer: self,
            ended,
        })
    }

    /// Waits for lines, and logs how many are missing.
    fn next(&self, storms: &Storms) -> Option<Vec<u8>> {
        loop {
            let mut state = self.0.state.lock();
            if state.waiting.is_empty() && state.dropped == 0 && !state.is_closed {
                self.0.changed.wait_for(&mut state, TELL_EVERY);
            }
            let dropped = std::mem::take(&mut state.dropped);
            let (mut lines, is_closed) = (std::mem::take(&mut state.waiting), state.is_closed);
            drop(state);
            // These lines return to the buffer, which has room now.
            if dropped > 0 {
                tracing::warn!(
                    dropped,
                    "lines of this log came faster than they could be written"
                );
            }
            storms.tell_old();
            if is_closed {
                storms.tell_all();
                lines.append(&mut self.0.state.lock().waiting);
            }
            match (lines.is_empty(), is_closed) {
                (false, _) => return Some(lines),
                (true, true) => return None,
                (true, false) => {}
            }
        }
    }
}

impl<'a> MakeWriter<'a> for Buffer {
    type Writer = &'a Self;

    fn make_writer(&'a self) -> Self::Writer {
        self
    }
}

/// A line as written. Text of a client or a server cannot begin another line or control a terminal. A JSON line stays
/// valid.
fn shown(line: &[u8]) -> Cow<'_, [u8]> {
    let (text, end) = match line {
        [text @ .., b'\n'] => (text, "\n"),
        text => (text, ""),
    };
    match escaped(&String::from_utf8_lossy(text)) {
        Cow::Borrowed(_) => Cow::Borrowed(line),
        Cow::Owned(shown) => Cow::Owned((shown + end).into_bytes()),
    }
}

/// A line is one write.
impl Write for &Buffer {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let shown = shown(line);
        let mut state = self.0.state.lock();
        if state.waiting.len() + shown.len() > BUFFER_MAX {
            state.dropped += 1;
        } else {
            state.waiting.extend_from_slice(&shown);
        }
        drop(state);
        self.0.changed.notify_one();
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for LogGuard {
    fn drop(&mut self) {
        self.buffer.0.state.lock().is_closed = true;
        self.buffer.0.changed.notify_one();
        // The thread reports its end. A stopped reader is not waited for.
        let _ = self.ended.recv_timeout(FLUSH_TIMEOUT);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Instant;

    use super::*;

    struct Pipe {
        goes_on: Receiver<()>,
        taken: Arc<Mutex<Vec<u8>>>,
    }

    impl Write for Pipe {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.goes_on.recv();
            self.taken.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn start() -> (Buffer, LogGuard, Sender<()>, Arc<Mutex<Vec<u8>>>) {
        let (go_on, goes_on) = channel();
        let taken = Arc::default();
        let pipe = Pipe {
            goes_on,
            taken: Arc::clone(&taken),
        };
        let buffer = Buffer::default();
        let guard = buffer.clone().write_to(pipe, Storms::default()).unwrap();
        (buffer, guard, go_on, taken)
    }

    #[test]
    fn what_others_say_is_no_line_of_its_own() {
        for (line, expect) in [
            ("INFO user=x\n", "INFO user=x\n"),
            (
                "INFO user=x\nINFO \u{1b}[31mforged\r\u{9b}\n",
                "INFO user=x\\nINFO \\u001b[31mforged\\r\\u009b\n",
            ),
            ("käse, no end", "käse, no end"),
        ] {
            assert_eq!(shown(line.as_bytes()), expect.as_bytes());
        }
    }

    #[test]
    fn what_waits_is_bounded_and_nobody_waits() {
        let (buffer, guard, go_on, taken) = start();
        let line = [b'x'; 1023];
        let begin = Instant::now();
        // One line is on its way to the pipe, so the next ones wait.
        buffer.make_writer().write_all(&line).unwrap();
        while !buffer.0.state.lock().waiting.is_empty() {
            assert!(begin.elapsed() < Duration::from_secs(60));
            std::thread::yield_now();
        }
        let begin = Instant::now();
        for _ in 0..10_000 {
            buffer.make_writer().write_all(&line).unwrap();
        }
        assert!(begin.elapsed() < Duration::from_secs(5));
        assert!(buffer.0.state.lock().waiting.len() <= BUFFER_MAX);
        let dropped = buffer.0.state.lock().dropped;
        assert_eq!(dropped, 10_000 - BUFFER_MAX as u64 / 1023);
        drop(go_on);
        drop(guard);
        let written = taken.lock().len() as u64 / 1023;
        assert_eq!(written + dropped, 10_001);
    }

    #[test]
    fn the_end_waits_for_what_is_not_written_and_not_for_ever() {
        let (buffer, guard, go_on, taken) = start();
        buffer.make_writer().write_all(b"last words\n").unwrap();
        drop(go_on);
        drop(guard);
        assert_eq!(*taken.lock(), b"last words\n");

        let (buffer, guard, _nobody_reads, taken) = start();
        buffer.make_writer().write_all(b"last words\n").unwrap();
        let begin = Instant::now();
        drop(guard);
        assert!(begin.elapsed() < 3 * FLUSH_TIMEOUT);
        assert!(taken.lock().is_empty());
    }
}
