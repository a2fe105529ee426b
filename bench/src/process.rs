//! Resources that another process used, as the kernel counts them.

use std::time::Duration;

use procfs::ProcResult;
use procfs::process::Process;

/// Of all threads so far, in nanoseconds of the scheduler's clock.
pub(crate) fn cpu_time(pid: u32) -> Duration {
    read(pid, "CPU time", |process| {
        let times = process
            .tasks()?
            .map(|task| Ok(task?.schedstat()?.sum_exec_runtime));
        let total = times.sum::<ProcResult<u64>>()?;
        Ok(Duration::from_nanos(total))
    })
}

/// With all children that it has waited for, in ticks of the kernel.
pub(crate) fn cpu_time_with_children(pid: u32) -> Duration {
    read(pid, "CPU time", |process| {
        let stat = process.stat()?;
        let children = (stat.cutime + stat.cstime).cast_unsigned();
        let ticks = stat.utime + stat.stime + children;
        let millis = ticks * 1000 / procfs::ticks_per_second();
        Ok(Duration::from_millis(millis))
    })
}

pub(crate) fn resident_kib(pid: u32) -> u64 {
    read(pid, "memory", |process| {
        Ok(process.status()?.vmrss.unwrap_or_default())
    })
}

fn read<T>(pid: u32, what: &str, of: impl Fn(&Process) -> ProcResult<T>) -> T {
    let found = Process::new(pid.cast_signed()).and_then(|process| of(&process));
    match found {
        Ok(value) => value,
        Err(error) => panic!("cannot read the {what} of process {pid}: {error}"),
    }
}
