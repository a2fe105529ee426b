//! Memory of another process, as the kernel counts it.

use std::fs;

use crate::Error;

/// Resident memory of a process in KiB: `VmRSS` of `/proc/PID/status`.
///
/// # Errors
/// Where there is no such process.
pub fn resident_kib(pid: u32) -> Result<u64, Error> {
    number(pid, "VmRSS:")
}

/// How many threads it has.
///
/// # Errors
/// Where there is no such process.
pub fn threads(pid: u32) -> Result<u64, Error> {
    number(pid, "Threads:")
}

fn number(pid: u32, field: &str) -> Result<u64, Error> {
    let path = format!("/proc/{pid}/status");
    let status = fs::read_to_string(&path)
        .map_err(Error::system(format!("cannot read {path} (has it ended?)")))?;
    number_in(&status, field).ok_or(Error::NotUnderstood {
        what: path,
        text: status,
    })
}

fn number_in(status: &str, field: &str) -> Option<u64> {
    let value = status.lines().find_map(|line| line.strip_prefix(field))?;
    value.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields() {
        let status = "Name:\tx\nVmHWM:\t  900 kB\nVmRSS:\t  812 kB\nThreads:\t3\n";
        assert_eq!(number_in(status, "VmRSS:"), Some(812));
        assert_eq!(number_in(status, "Threads:"), Some(3));
        assert_eq!(number_in(status, "VmSwap:"), None);
    }

    #[test]
    fn memory_that_is_touched_is_seen() {
        let pid = std::process::id();
        let before = resident_kib(pid).unwrap();
        let block = std::hint::black_box(vec![7_u8; 32 << 20]);
        let after = resident_kib(pid).unwrap();
        assert!(after > before + 30 * 1024, "{before} KiB, then {after} KiB");
        drop(block);
    }
}
