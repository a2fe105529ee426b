//! Which processors a measurement may use.

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::Error;

/// Keeps this thread, and servers that are given, on one processor, with all that they start from then on. When it is
/// dropped, they may use those again that they could before.
#[derive(Debug)]
pub struct OneProcessor {
    /// What is to be put back. `None` is this thread.
    before: Vec<(Option<Pid>, CpuSet)>,
}

impl OneProcessor {
    /// On the first processor that this thread may use.
    ///
    /// # Errors
    /// Where the system does not allow it, or there is no such server.
    pub fn with(servers: &[u32]) -> Result<Self, Error> {
        let pids = servers.iter().map(|pid| Pid::from_raw(pid.cast_signed()));
        let failed =
            |error: rustix::io::Errno| Error::system("cannot choose a processor")(error.into());
        let mut only = None;
        // Dropped with an error, it puts back what was changed.
        let mut kept = Self { before: Vec::new() };
        for pid in [None].into_iter().chain(pids) {
            let before = sched_getaffinity(pid).map_err(failed)?;
            let one = *only.get_or_insert_with(|| first_of(&before));
            kept.before.push((pid, before));
            sched_setaffinity(pid, &one).map_err(failed)?;
        }
        Ok(kept)
    }
}

fn first_of(all: &CpuSet) -> CpuSet {
    let mut one = CpuSet::new();
    if let Some(first) = (0..CpuSet::MAX_CPU).find(|cpu| all.is_set(*cpu)) {
        one.set(first);
    }
    one
}

impl Drop for OneProcessor {
    fn drop(&mut self) {
        for (pid, before) in &self.before {
            // A server that has ended needs none.
            let _ = sched_setaffinity(*pid, before);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    fn processors(child: &Child) -> u32 {
        let pid = Pid::from_child(child);
        sched_getaffinity(Some(pid)).unwrap().count()
    }

    #[test]
    fn what_is_started_meanwhile_has_one_processor() {
        let sleep = || Command::new("sleep").arg("60").spawn().unwrap();
        let (mut server, all) = (sleep(), sched_getaffinity(None).unwrap().count());
        let kept = OneProcessor::with(&[server.id()]).unwrap();
        let mut started = sleep();
        assert_eq!((processors(&server), processors(&started)), (1, 1));
        drop(kept);
        let mut later = sleep();
        assert_eq!((processors(&server), processors(&later)), (all, all));
        for child in [&mut server, &mut started, &mut later] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}
