//! Does the cache of verdicts stay within its bytes?

use std::fmt::Write;

use pgpalisade_policies::{TextEncoding, VerdictCache};

/// What a worker thread of the proxy has: see `VERDICT_CACHE` in `proxy/src/worker.rs`.
const CAPACITY: usize = 16 << 20;

/// Many more texts than it can hold.
const TEXTS: usize = 60_000;

/// Fills a cache with texts that are all different, and says what it holds then, and what the process has grown by.
pub(crate) fn report() -> String {
    let before = resident();
    let mut cache = VerdictCache::new(CAPACITY);
    for number in 0..TEXTS {
        let text = format!(
            "INSERT INTO jobs_{number} (id, note) SELECT id, note FROM queue_{number} WHERE id = $1"
        );
        cache.get_or_classify(text.as_bytes(), TextEncoding::AsciiSafe);
    }
    let stats = cache.stats();
    let mut text = String::new();
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
    if let Some(grown) = resident()
        .zip(before)
        .map(|(now, then)| now.saturating_sub(then))
    {
        let _ = writeln!(text, "resident memory grew by {grown} bytes meanwhile");
    }
    drop(cache);
    text
}

/// Bytes of this process in memory. <https://man7.org/linux/man-pages/man5/proc_pid_status.5.html>
fn resident() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: usize = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}
