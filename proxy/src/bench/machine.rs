//! How busy the machine is that the bench runs on.

use std::fs;

/// CPU time of all cores since the start of the machine, in ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ticks {
    all: u64,
    idle: u64,
}

impl Ticks {
    /// `None` where `/proc` does not tell.
    pub(super) fn now() -> Option<Self> {
        Self::parse(&fs::read_to_string("/proc/stat").ok()?)
    }

    /// The first line of `/proc/stat`: `cpu`, then user, nice, system, idle, iowait, irq, softirq, steal (proc(5)).
    /// What follows is counted in these already.
    fn parse(stat: &str) -> Option<Self> {
        let mut words = stat.lines().next()?.split_whitespace();
        if words.next() != Some("cpu") {
            return None;
        }
        let ticks: Vec<u64> = words
            .take(8)
            .map(str::parse)
            .collect::<Result<_, _>>()
            .ok()?;
        Some(Self {
            all: ticks.iter().sum(),
            idle: ticks.get(3)? + ticks.get(4)?,
        })
    }

    /// The part of the time since `before` in which cores were idle, 0 to 1; `None` where no time has passed.
    pub(super) fn idle_since(self, before: Self) -> Option<f64> {
        let all = self.all.checked_sub(before.all).filter(|all| *all > 0)?;
        let idle = self.idle.saturating_sub(before.idle);
        Some(idle as f64 / all as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_time() {
        let before = Ticks::parse("cpu  100 0 50 800 50 0 0 0 7 7\ncpu0 1 1 1 1\n").unwrap();
        assert_eq!(
            before,
            Ticks {
                all: 1000,
                idle: 850
            }
        );
        let after = Ticks::parse("cpu 150 0 70 820 60 0 0 0\n").unwrap();
        assert_eq!(after.idle_since(before), Some(0.3));
        assert_eq!(after.idle_since(after), None);
        for text in ["", "cpu0 1 2 3 4 5 6 7 8", "cpu 1 2 3", "cpu a b c d e"] {
            assert_eq!(Ticks::parse(text), None, "{text}");
        }
        assert!(Ticks::now().is_some());
    }
}
