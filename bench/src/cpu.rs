//! CPU time of another process, as the kernel counts it.

use std::fs;
use std::sync::OnceLock;
use std::time::Duration;

use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::{Pid, SysconfVar, sysconf};

use crate::Error;

/// User and system time that a process has used so far, with all its threads, those that have ended too.
///
/// It is read from the CPU clock of the process, in nanoseconds, and exact at this moment, also for threads that run:
/// <https://man7.org/linux/man-pages/man3/clock_getcpuclockid.3.html>. Where there is none, from [`ticks_of`].
///
/// # Errors
/// Where there is no such process.
pub fn time_of(pid: u32) -> Result<Duration, Error> {
    match clock_of(pid) {
        Some(time) => Ok(time),
        None => ticks_of(pid),
    }
}

fn clock_of(pid: u32) -> Option<Duration> {
    let pid = Pid::from_raw(i32::try_from(pid).ok()?);
    let time = clock_gettime(clock_getcpuclockid(pid).ok()?).ok()?;
    Some(time.into())
}

/// The same from `/proc/PID/stat`, which counts in ticks, of 10 ms on most machines.
///
/// # Errors
/// Where there is no such process, or the file is not as proc(5) says.
pub fn ticks_of(pid: u32) -> Result<Duration, Error> {
    let path = format!("/proc/{pid}/stat");
    let stat = fs::read_to_string(&path)
        .map_err(Error::system(format!("cannot read {path} (has it ended?)")))?;
    let ticks = ticks_in(&stat).ok_or(Error::NotUnderstood {
        what: path,
        text: stat,
    })?;
    Ok(Duration::from_secs_f64(
        ticks as f64 / ticks_per_second() as f64,
    ))
}

/// Fields 14 and 15 of `/proc/PID/stat`: <https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html>.
fn ticks_in(stat: &str) -> Option<u64> {
    // The name, field 2, is in parentheses and may itself hold spaces and parentheses.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    user.checked_add(system)
}

fn ticks_per_second() -> u64 {
    static RATE: OnceLock<u64> = OnceLock::new();
    *RATE.get_or_init(|| {
        let rate = sysconf(SysconfVar::CLK_TCK).ok().flatten();
        // What Linux has had on all architectures but one, for as long as there is x86-64.
        rate.and_then(|rate| u64::try_from(rate).ok())
            .filter(|rate| *rate > 0)
            .unwrap_or(100)
    })
}

/// Microseconds for each of `count`.
pub fn micros_each(used: Duration, count: u64) -> f64 {
    used.as_nanos() as f64 / 1e3 / count as f64
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn user_and_system_time() {
        let rest = "S 1 77 77 0 -1 4194560 1093 11 22 33 150 42 7 8 20 0 3 0 99 1 2";
        let cases = [
            (format!("77 (pgpalisade) {rest}"), Some(192)),
            (format!("77 (a b) c) {rest}"), Some(192)),
            ("77 (pgpalisade) S 1 77 77".to_owned(), None),
            (
                "77 (p) S 1 77 77 0 -1 4194560 1093 11 22 33 150".to_owned(),
                None,
            ),
            (
                "77 (p) S 1 77 77 0 -1 4194560 1093 11 22 33 x 42 7".to_owned(),
                None,
            ),
            (String::new(), None),
        ];
        for (stat, expect) in cases {
            assert_eq!(ticks_in(&stat), expect, "{stat}");
        }
    }

    #[test]
    fn microseconds_of_each() {
        assert_eq!(micros_each(Duration::from_millis(30), 1500), 20.0);
    }

    fn work(time: Duration) {
        let start = Instant::now();
        while start.elapsed() < time {
            std::hint::spin_loop();
        }
    }

    /// The fine source and the coarse one say the same, within what the coarse one can say, and neither forgets a
    /// thread that has ended.
    #[test]
    fn both_sources_agree_about_threads_that_have_ended() {
        let pid = std::process::id();
        let (clock, ticks) = (clock_of(pid).unwrap(), ticks_of(pid).unwrap());
        std::thread::spawn(|| work(Duration::from_millis(400)))
            .join()
            .unwrap();
        let clock = clock_of(pid).unwrap() - clock;
        let ticks = ticks_of(pid).unwrap() - ticks;
        let apart = clock.as_secs_f64() - ticks.as_secs_f64();
        assert!(apart.abs() < 0.05, "clock {clock:?}, ticks {ticks:?}");
        // It was on the CPU for most of the time, also where other tests run.
        assert!(clock > Duration::from_millis(50), "{clock:?}");
    }

    #[test]
    fn a_process_that_is_not_there() {
        // Above the largest that Linux gives.
        assert!(time_of(4_194_305).is_err());
    }
}
