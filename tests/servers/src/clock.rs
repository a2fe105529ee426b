//! A clock that can be stepped under a running process, through libfaketime: <https://github.com/wolfcw/libfaketime>.
//! The monotonic clock is not stepped.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Debian's path. The loader expands `$LIB`.
const LIBRARY: &str = "/usr/$LIB/faketime/libfaketimeMT.so.1";

/// Clock of processes started with its [environment](Self::environment).
#[derive(Clone, Debug)]
pub struct Clock {
    file: PathBuf,
}

impl Clock {
    /// [Set](Self::set) it before a process starts with it.
    pub fn of(dir: &Path) -> Self {
        Self {
            file: dir.join("clock"),
        }
    }

    /// For a process that uses this clock.
    pub fn environment(&self) -> [(&'static str, String); 5] {
        [
            ("LD_PRELOAD", LIBRARY.to_owned()),
            ("FAKETIME_TIMESTAMP_FILE", self.file.display().to_string()),
            ("FAKETIME_NO_CACHE", "1".to_owned()),
            ("FAKETIME_DISABLE_SHM", "1".to_owned()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
        ]
    }

    /// Steps the clock to `ahead` seconds ahead of the machine's, which may be negative.
    pub fn set(&self, ahead: i64) {
        std::fs::write(&self.file, format!("{ahead:+}")).expect("write the clock");
    }
}

pub fn seconds_now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.as_ref()
        .map(Duration::as_secs)
        .expect("a clock behind 1970")
}
