//! What a process and the machine have spent.

use std::fs;
use std::io;
use std::ops::Sub;

/// Of one process since its start, over all its threads, those that the kernel has started for its ring among them.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Spent {
    pub(crate) cpu_ns: u64,
    pub(crate) switches: u64,
    /// Threads named `iou-`, which the kernel starts for requests that would block.
    pub(crate) kernel_workers: u64,
}

impl Sub for Spent {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            cpu_ns: self.cpu_ns.saturating_sub(before.cpu_ns),
            switches: self.switches.saturating_sub(before.switches),
            kernel_workers: self.kernel_workers,
        }
    }
}

pub(crate) fn of_process(pid: u32) -> io::Result<Spent> {
    let mut spent = Spent::default();
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let task = task?.path();
        // A thread may have ended since.
        let Ok(schedstat) = fs::read_to_string(task.join("schedstat")) else {
            continue;
        };
        spent.cpu_ns += schedstat
            .split(' ')
            .next()
            .and_then(|ns| ns.parse::<u64>().ok())
            .unwrap_or(0);
        let status = fs::read_to_string(task.join("status")).unwrap_or_default();
        for line in status
            .lines()
            .filter(|line| line.contains("voluntary_ctxt_switches"))
        {
            spent.switches += line
                .split('\t')
                .nth(1)
                .and_then(|n| n.parse::<u64>().ok())
                .unwrap_or(0);
        }
        spent.kernel_workers += u64::from(status.starts_with("Name:\tiou-"));
    }
    Ok(spent)
}

/// Hundredths of a second that all cores together were not idle: user, nice, system, irq and softirq.
pub(crate) fn machine_ticks() -> io::Result<u64> {
    let stat = fs::read_to_string("/proc/stat")?;
    let line = stat.lines().next().unwrap_or_default();
    let fields: Vec<u64> = line
        .split_whitespace()
        .skip(1)
        .filter_map(|n| n.parse().ok())
        .collect();
    Ok([0, 1, 2, 5, 6]
        .iter()
        .filter_map(|&field| fields.get(field))
        .sum())
}
