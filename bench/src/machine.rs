//! Where a run was made, as its page says it.

use std::fs;
use std::process::Command;

/// The machine and its system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    /// Model of the processor.
    pub cpu: String,
    /// Processors that this process may use.
    pub cores: usize,
    /// Kernel and its release.
    pub kernel: String,
    /// Memory in GiB, rounded.
    pub memory_gib: u64,
}

impl Machine {
    /// This one. What is not known is said to be unknown.
    pub fn this() -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let uname = rustix::system::uname();
        Self {
            cpu: field(&cpuinfo, "model name").unwrap_or_else(|| "unknown".to_owned()),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: format!(
                "{} {}",
                uname.sysname().to_string_lossy(),
                uname.release().to_string_lossy()
            ),
            memory_gib: field(&meminfo, "MemTotal").map_or(0, |text| gib(&text)),
        }
    }
}

/// Today, as `2026-11-21`, in UTC.
pub fn today() -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let (year, month, day) = date(now.map_or(0, |since| since.as_secs() / 86_400));
    format!("{year:04}-{month:02}-{day:02}")
}

/// The commit that is checked out, and whether something is changed beside it. `None` outside of a repository.
pub fn revision() -> Option<String> {
    let output = Command::new("git")
        .args([
            "describe",
            "--always",
            "--dirty",
            "--abbrev=12",
            "--exclude=*",
        ])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

fn field(text: &str, name: &str) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    line.split_once(':')
        .map(|(_, value)| value.trim().to_owned())
}

/// Of `24689012 kB`.
fn gib(text: &str) -> u64 {
    let kib: u64 = text
        .split_whitespace()
        .next()
        .and_then(|number| number.parse().ok())
        .unwrap_or_default();
    (kib + (1 << 19)) >> 20
}

/// Days since 1970-01-01 as year, month and day of the Gregorian calendar.
fn date(days: u64) -> (u64, u64, u64) {
    let mut year = 1970;
    let mut left = days;
    let is_leap =
        |year: u64| year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400);
    loop {
        let length = if is_leap(year) { 366 } else { 365 };
        if left < length {
            break;
        }
        left -= length;
        year += 1;
    }
    let february = if is_leap(year) { 29 } else { 28 };
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if left < length {
            break;
        }
        left -= length;
        month += 1;
    }
    (year, month, left + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        for (days, expect) in [
            (0, (1970, 1, 1)),
            (789, (1972, 2, 29)),
            (11_016, (2000, 2, 29)),
            (20_778, (2026, 11, 21)),
            (20_818, (2026, 12, 31)),
            (20_819, (2027, 1, 1)),
        ] {
            assert_eq!(date(days), expect, "{days}");
        }
    }

    #[test]
    fn fields() {
        let text = "processor\t: 0\nmodel name\t: AMD: EPYC\nMemTotal:       24689012 kB\n";
        assert_eq!(field(text, "model name").as_deref(), Some("AMD: EPYC"));
        assert_eq!(field(text, "cache"), None);
        assert_eq!(field(text, "MemTotal").map(|text| gib(&text)), Some(24));
    }
}
