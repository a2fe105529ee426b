//! Facts of the kernel about this process: its user, and its resources, under Prometheus' standard names.

use std::time::SystemTime;
use std::{fmt, fs, io};

use pgpalisade_server::metrics::{family, gauge};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use rustix::process::{Resource, geteuid, getrlimit};

/// The user that this process runs as.
pub(crate) fn user() -> String {
    let uid = geteuid().as_raw();
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    find_name(&users, uid).unwrap_or_else(|| format!("uid {uid}"))
}

/// The first name of a user id in /etc/passwd.
fn find_name(users: &str, uid: u32) -> Option<String> {
    let uid = uid.to_string();
    let mut users = users.lines().map(|line| line.split(':'));
    users.find_map(|mut fields| {
        let name = fields.next()?;
        (fields.nth(1)? == uid).then(|| name.to_owned())
    })
}

/// Asks the kernel each time.
#[derive(Debug)]
pub(crate) struct Process {
    started: SystemTime,
}

impl Default for Process {
    fn default() -> Self {
        let started = SystemTime::now();
        Self { started }
    }
}

struct Stat {
    cpu_seconds: f64,
    virtual_bytes: f64,
    resident_bytes: f64,
    threads: f64,
}

impl Stat {
    fn read() -> Option<Self> {
        Self::parse(&fs::read_to_string("/proc/self/stat").ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        // The program's name may contain spaces and brackets. Field 3 follows its last bracket.
        let (_, behind) = text.rsplit_once(')')?;
        let fields: Vec<f64> = behind
            .split_whitespace()
            .skip(1)
            .map(|field| field.parse().unwrap_or_default())
            .collect();
        let field = |number: usize| fields.get(number.checked_sub(4)?).copied();
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        Some(Self {
            cpu_seconds: (field(14)? + field(15)?) / ticks,
            threads: field(20)?,
            virtual_bytes: field(23)?,
            resident_bytes: field(24)? * rustix::param::page_size() as f64,
        })
    }
}

pub(crate) fn memory() -> Option<(f64, f64)> {
    let stat = Stat::read()?;
    Some((stat.resident_bytes, stat.virtual_bytes))
}

/// Number of open files and sockets. Linux 6.2 and later report it as a size; before, the size is 0, and counting
/// takes 10 ms for 10,000. <https://docs.kernel.org/filesystems/proc.html>
fn open_files() -> io::Result<u64> {
    match fs::metadata("/proc/self/fd")?.len() {
        0 => Ok(fs::read_dir("/proc/self/fd")?.count() as u64),
        open => Ok(open),
    }
}

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let encoder = &mut encoder;
        let (name, help) = ("pgpalisade_build_info", "The running version.");
        let version = [(env!("CARGO_PKG_VERSION"), ConstGauge::new(1_u32))];
        family(encoder, name, help, "version", version)?;
        if let Some(stat) = Stat::read() {
            let cpu = ConstCounter::new(stat.cpu_seconds);
            let (name, help) = ("process_cpu_seconds", "CPU time.");
            let metric = encoder.encode_descriptor(name, help, None, cpu.metric_type())?;
            cpu.encode(metric)?;
            let (name, help) = ("process_resident_memory_bytes", "Resident memory.");
            gauge(encoder, name, help, stat.resident_bytes)?;
            let (name, help) = ("process_virtual_memory_bytes", "Address space.");
            gauge(encoder, name, help, stat.virtual_bytes)?;
            gauge(encoder, "process_threads", "Threads.", stat.threads)?;
        }
        if let Ok(open) = open_files() {
            let help = "Open files and sockets.";
            gauge(encoder, "process_open_fds", help, open as f64)?;
        }
        if let Some(most) = getrlimit(Resource::Nofile).current {
            let help = "Limit of open files and sockets.";
            gauge(encoder, "process_max_fds", help, most as f64)?;
        }
        let started = self.started.duration_since(SystemTime::UNIX_EPOCH);
        let (name, help) = ("process_start_time_seconds", "Start time of the proxy.");
        let started = started.unwrap_or_default().as_secs_f64();
        gauge(encoder, name, help, started)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_found_by_their_number() {
        let users =
            "root:x:0:0:root:/root:/bin/sh\nbroken\nalice:x:1000:1000::/:\nal:x:1000:1::/:\n";
        assert_eq!(find_name(users, 0).as_deref(), Some("root"));
        assert_eq!(find_name(users, 1000).as_deref(), Some("alice"));
        assert_eq!(find_name(users, 1), None);
    }

    #[test]
    fn the_name_of_the_program_may_be_anything() {
        let text = "42 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 150 50 0 0 20 0 9 0 77 4096 3 rest";
        let stat = Stat::parse(text).unwrap();
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        assert_eq!(stat.cpu_seconds, 200.0 / ticks);
        assert_eq!((stat.threads, stat.virtual_bytes), (9.0, 4096.0));
        assert_eq!(stat.resident_bytes, 3.0 * rustix::param::page_size() as f64);
        assert!(Stat::parse("42 (a").is_none());
        assert!(open_files().unwrap() > 2);
        let own = Stat::read().unwrap();
        assert!(own.resident_bytes > 1e6 && own.threads >= 1.0);
    }
}
