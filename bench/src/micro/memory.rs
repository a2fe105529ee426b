//! What verdicts take of memory: the cache of them, and the work on the heaviest text.

use std::fmt::Write;

use pgpalisade_policies::{Lexing, TextEncoding, VerdictCache, classify};

use crate::cases::classification::heaviest_of_all;

/// What a worker thread of the proxy has: see `VERDICT_CACHE` in `proxy/src/worker.rs`.
const CAPACITY: usize = 16 << 20;

/// Many more texts than it can hold.
const TEXTS: usize = 60_000;

const SAFE: Lexing = Lexing::with_unknown_strings(TextEncoding::AsciiSafe);

/// Fills a cache with texts that are all different, and says what it holds then, and what the process has grown by.
/// Then classifies the text that makes the most work.
pub(crate) fn report() -> String {
    let mut text = String::new();
    // The parser's own memory is there before, as in a proxy that has been at work.
    let mut cache = VerdictCache::new(CAPACITY);
    cache.get_or_classify(b"SELECT 1", SAFE);
    let before = status("VmRSS:");
    for number in 0..TEXTS {
        let text = format!(
            "INSERT INTO jobs_{number} (id, note) SELECT id, note FROM queue_{number} WHERE id = $1"
        );
        cache.get_or_classify(text.as_bytes(), SAFE);
    }
    let stats = cache.stats();
    let goal = match stats.bytes <= CAPACITY && stats.evictions > 0 {
        true => "within",
        false => "NOT within",
    };
    // Writing to a String does not fail.
    let _ = writeln!(
        text,
        "\ncache of {CAPACITY} bytes after {TEXTS} texts: {} bytes by its own count ({goal} its capacity), \
         {} entries, {} evicted",
        stats.bytes, stats.entries, stats.evictions
    );
    if let Some(grown) = grown(before, status("VmRSS:")) {
        let _ = writeln!(text, "resident memory grew by {grown} bytes meanwhile");
    }
    drop(cache);

    let heaviest = heaviest_of_all();
    // The peak is counted from here on: <https://man7.org/linux/man-pages/man5/proc_pid_clear_refs.5.html>
    if std::fs::write("/proc/self/clear_refs", "5").is_ok() {
        let before = status("VmRSS:");
        drop(classify(heaviest.as_bytes(), SAFE));
        if let Some(grown) = grown(before, status("VmHWM:")) {
            let _ = writeln!(
                text,
                "the heaviest text, {} bytes, takes {grown} bytes of memory while it is classified",
                heaviest.len()
            );
        }
    }
    text
}

fn grown(before: Option<usize>, after: Option<usize>) -> Option<usize> {
    let (before, after) = before.zip(after)?;
    Some(after.saturating_sub(before))
}

/// Bytes, from a line about this process. <https://man7.org/linux/man-pages/man5/proc_pid_status.5.html>
fn status(name: &str) -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    let kilobytes: usize = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}
