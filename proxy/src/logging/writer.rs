//! Lines on their way to standard error, and the thread that writes them.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::time::Duration;

use pgpalisade_fence::readable::escaped;

use super::storm::{Storms, WINDOW};

/// Limit of waiting lines.
const LINES_MAX: usize = 4096;

/// Time for unwritten lines at the end of the process.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

const TELL_EVERY: Duration = Duration::from_secs(1);

/// Takes lines for the writer. Clones share its queue.
#[derive(Debug, Clone)]
pub(super) struct Buffer {
    lines: SyncSender<Vec<u8>>,
    /// Lines that found no room.
    dropped: Arc<AtomicU64>,
}

/// Dropping it writes what waits, for at most a second.
#[derive(Debug)]
pub(crate) struct LogGuard {
    lines: SyncSender<Vec<u8>>,
    is_closed: Arc<AtomicBool>,
    ended: Receiver<()>,
}

/// Starts the thread that writes lines to `out`, and logs how many are missing.
pub(super) fn start(
    mut out: impl Write + Send + 'static,
    storms: Storms,
) -> io::Result<(Buffer, LogGuard)> {
    let (lines, waiting) = mpsc::sync_channel(LINES_MAX);
    let (end, ended) = mpsc::sync_channel(0);
    let (dropped, is_closed) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
    let buffer = Buffer {
        lines: lines.clone(),
        dropped: Arc::clone(&dropped),
    };
    let guard = LogGuard {
        lines,
        is_closed: Arc::clone(&is_closed),
        ended,
    };
    let write = move || {
        let mut is_last = false;
        while !is_last {
            let mut lines: Vec<u8> = waiting.recv_timeout(TELL_EVERY).unwrap_or_default();
            is_last = is_closed.load(Ordering::Acquire);
            let others = || waiting.try_iter().take(LINES_MAX).flatten();
            lines.extend(others());
            // These lines go into the queue, which has room now.
            let dropped = dropped.swap(0, Ordering::Relaxed);
            if dropped > 0 {
                tracing::warn!(
                    dropped,
                    "lines of this log came faster than they could be written"
                );
            }
            storms.tell(if is_last { Duration::ZERO } else { WINDOW });
            lines.extend(others());
            // A failure of the log has no place to be reported.
            let _ = out.write_all(&lines);
        }
        drop(end);
    };
    std::thread::Builder::new()
        .name("log".to_owned())
        .spawn(write)?;
    Ok((buffer, guard))
}

/// A line as written. Text of a client or a server cannot begin another line or control a terminal. A JSON line stays
/// valid.
fn shown(line: &[u8]) -> Vec<u8> {
    let (text, end) = match line {
        [text @ .., b'\n'] => (text, "\n"),
        text => (text, ""),
    };
    let text = String::from_utf8_lossy(text);
    (escaped(&text).into_owned() + end).into_bytes()
}

/// A line is one write.
impl Write for Buffer {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.lines.try_send(shown(line)).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for LogGuard {
    fn drop(&mut self) {
        self.is_closed.store(true, Ordering::Release);
        // Wakes the thread, if it waits for a line.
        let _ = self.lines.try_send(Vec::new());
        // The thread reports its end. A stopped reader is not waited for.
        let _ = self.ended.recv_timeout(FLUSH_TIMEOUT);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::{Sender, channel};
    use std::time::Instant;

    use super::*;

    struct Pipe {
        reached: Sender<()>,
        goes_on: Receiver<()>,
        taken: Arc<Mutex<Vec<u8>>>,
    }

    impl Write for Pipe {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.reached.send(());
            let _ = self.goes_on.recv();
            self.taken.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// A writer whose first line has reached a pipe that nobody reads.
    fn started(first: &[u8]) -> (Buffer, LogGuard, Sender<()>, Arc<Mutex<Vec<u8>>>) {
        let (reached, is_reached) = channel();
        let (go_on, goes_on) = channel();
        let taken = Arc::default();
        let pipe = Pipe {
            reached,
            goes_on,
            taken: Arc::clone(&taken),
        };
        let (mut buffer, guard) = start(pipe, Storms::default()).unwrap();
        buffer.write_all(first).unwrap();
        is_reached.recv().unwrap();
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
        const LINES: u64 = 50_000;
        let line = [b'x'; 15];
        let (mut buffer, guard, go_on, taken) = started(&line);
        let begin = Instant::now();
        for _ in 1..LINES {
            buffer.write_all(&line).unwrap();
        }
        assert!(begin.elapsed() < Duration::from_secs(5));
        let dropped = buffer.dropped.load(Ordering::Relaxed);
        assert!(dropped > 0);
        drop(go_on);
        drop(guard);
        let written = taken.lock().unwrap().len() as u64 / 15;
        assert_eq!(written + dropped, LINES);
    }

    #[test]
    fn the_end_waits_for_what_is_not_written_and_not_for_ever() {
        let (mut buffer, guard, go_on, taken) = started(b"first\n");
        buffer.write_all(b"last words\n").unwrap();
        drop(go_on);
        drop(guard);
        assert_eq!(*taken.lock().unwrap(), b"first\nlast words\n");

        let (_buffer, guard, _nobody_reads, taken) = started(b"last words\n");
        let begin = Instant::now();
        drop(guard);
        assert!(begin.elapsed() < 3 * FLUSH_TIMEOUT);
        assert!(taken.lock().unwrap().is_empty());
    }
}
