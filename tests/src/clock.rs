//! A clock that can be stepped under a running process, by libfaketime: <https://github.com/wolfcw/libfaketime>. It is
//! the time of day; what is measured from it, as a monotonic clock has it, goes on.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Where Debian has it. The loader knows what `$LIB` stands for.
const LIBRARY: &str = "/usr/$LIB/faketime/libfaketimeMT.so.1";

/// The clock of processes that were started with its [environment](Self::environment).
#[derive(Clone, Debug)]
pub struct Clock {
    /// How far it is from the machine's.
    file: PathBuf,
}

impl Clock {
    /// The one that this directory keeps. It has to be [set](Self::set) before a process begins with it.
    pub fn of(dir: &Path) -> Self {
        Self {
            file: dir.join("clock"),
        }
    }

    /// What a process needs to have this clock.
    pub fn environment(&self) -> [(&'static str, String); 5] {
        [
            ("LD_PRELOAD", LIBRARY.to_owned()),
            ("FAKETIME_TIMESTAMP_FILE", self.file.display().to_string()),
            ("FAKETIME_NO_CACHE", "1".to_owned()),
            ("FAKETIME_DISABLE_SHM", "1".to_owned()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
        ]
    }

    /// Steps it: so many seconds before the machine's, or behind it.
    pub fn set(&self, ahead: i64) {
        std::fs::write(&self.file, format!("{ahead:+}")).expect("write the clock");
    }
}

/// The machine's own clock, in seconds.
pub fn seconds_now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.as_ref()
        .map(Duration::as_secs)
        .expect("a clock behind 1970")
}
