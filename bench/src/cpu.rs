//! CPU time of another process, as the kernel counts it.

use std::fs;
use std::process::Command;

use crate::error::Error;

/// User and system time of a process, in clock ticks. It only grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ticks(u64);

/// Clock ticks in a second. A figure cannot be finer than one tick, 10 ms on most machines.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TickRate(u64);

impl Ticks {
    /// What a process and all its threads have used so far.
    pub(crate) fn of(pid: u32) -> Result<Self, Error> {
        let path = format!("/proc/{pid}/stat");
        let stat = fs::read_to_string(&path)
            .map_err(Error::system(format!("cannot read {path} (has it ended?)")))?;
        Self::parse(&stat).ok_or(Error::NotUnderstood {
            what: path,
            text: stat,
        })
    }

    /// Fields 14 and 15 of `/proc/PID/stat`: <https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html>.
    fn parse(stat: &str) -> Option<Self> {
        // The name, field 2, is in parentheses and may itself hold spaces and parentheses.
        let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
        let user: u64 = fields.next()?.parse().ok()?;
        let system: u64 = fields.next()?.parse().ok()?;
        Some(Self(user.checked_add(system)?))
    }
}

impl TickRate {
    /// Of this machine.
    pub(crate) fn of_this_machine() -> Result<Self, Error> {
        let output = Command::new("getconf")
            .arg("CLK_TCK")
            .output()
            .map_err(Error::system("cannot run getconf (package libc-bin)"))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        match text.trim().parse() {
            Ok(rate) if rate > 0 => Ok(Self(rate)),
            _ => Err(Error::NotUnderstood {
                what: "getconf CLK_TCK".to_owned(),
                text,
            }),
        }
    }

    /// Microseconds from `before` to `after`.
    pub(crate) fn micros(self, before: Ticks, after: Ticks) -> f64 {
        after.0.saturating_sub(before.0) as f64 * 1e6 / self.0 as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(stat: &str, expect: Option<u64>) {
        assert_eq!(Ticks::parse(stat), expect.map(Ticks));
    }

    #[test]
    fn user_and_system_time() {
        let rest = "S 1 77 77 0 -1 4194560 1093 11 22 33 150 42 7 8 20 0 3 0 99 1 2";
        check(&format!("77 (pgpalisade) {rest}"), Some(192));
        check(&format!("77 (a b) c) {rest}"), Some(192));
        check("77 (pgpalisade) S 1 77 77", None);
        check("77 (p) S 1 77 77 0 -1 4194560 1093 11 22 33 150", None);
        check("77 (p) S 1 77 77 0 -1 4194560 1093 11 22 33 x 42 7", None);
        check("", None);
    }

    #[test]
    fn ticks_to_microseconds() {
        assert_eq!(TickRate(100).micros(Ticks(10), Ticks(13)), 30_000.0);
        assert_eq!(TickRate(250).micros(Ticks(0), Ticks(1)), 4_000.0);
    }

    #[test]
    fn work_of_this_process_is_seen() {
        let pid = std::process::id();
        let before = Ticks::of(pid).unwrap();
        let rate = TickRate::of_this_machine().unwrap();
        let start = std::time::Instant::now();
        while start.elapsed().as_secs() < 10 {
            if rate.micros(before, Ticks::of(pid).unwrap()) > 0.0 {
                return;
            }
        }
        panic!("ten seconds of work and not one tick");
    }
}
