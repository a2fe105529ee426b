//! Memory of a process without what it shares with others, and what the machine has left.

use std::fs;

use pgpalisade_bench::Error;

/// Of `/proc/PID/smaps_rollup`, in KiB: <https://man7.org/linux/man-pages/man5/proc_pid_smaps.5.html>.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rollup {
    /// Resident.
    pub(crate) rss: u64,
    /// Resident, with what is shared divided by how many share it.
    pub(crate) pss: u64,
    /// Resident and of no file: heap and stacks.
    pub(crate) anonymous: u64,
}

impl Rollup {
    /// Of a process.
    pub(crate) fn of(pid: u32) -> Result<Self, Error> {
        let path = format!("/proc/{pid}/smaps_rollup");
        let text = fs::read_to_string(&path)
            .map_err(Error::system(format!("cannot read {path} (has it ended?)")))?;
        Self::parse(&text).ok_or(Error::NotUnderstood { what: path, text })
    }

    fn parse(text: &str) -> Option<Self> {
        Some(Self {
            rss: field(text, "Rss:")?,
            pss: field(text, "Pss:")?,
            anonymous: field(text, "Anonymous:")?,
        })
    }
}

/// Memory of the machine that can be used without swapping, in MiB.
pub(crate) fn available_mib() -> Result<u64, Error> {
    let path = "/proc/meminfo";
    let text = fs::read_to_string(path).map_err(Error::system(format!("cannot read {path}")))?;
    match field(&text, "MemAvailable:") {
        Some(kib) => Ok(kib / 1024),
        None => Err(Error::NotUnderstood {
            what: path.to_owned(),
            text,
        }),
    }
}

fn field(text: &str, name: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(name))?;
    value.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_a_rollup() {
        let text = "55d0-7ffc ---p 00000000 00:00 0 [rollup]\nRss:   19592 kB\nPss:   17615 kB\nPss_Dirty:  9 kB\n\
                    Private_Clean:  9644 kB\nAnonymous:   7920 kB\n";
        let expect = Rollup {
            rss: 19592,
            pss: 17615,
            anonymous: 7920,
        };
        assert_eq!(Rollup::parse(text), Some(expect));
        assert_eq!(Rollup::parse("Rss: 1 kB\nPss: 1 kB\n"), None);
        assert_eq!(
            Rollup::parse("Rss: x kB\nPss: 1 kB\nAnonymous: 1 kB\n"),
            None
        );
    }

    #[test]
    fn this_process_and_this_machine() {
        let own = Rollup::of(std::process::id()).unwrap();
        assert!(own.rss >= own.anonymous && own.anonymous > 0, "{own:?}");
        assert!(available_mib().unwrap() > 0);
        // Above the largest that Linux gives.
        assert!(Rollup::of(4_194_305).is_err());
    }
}
