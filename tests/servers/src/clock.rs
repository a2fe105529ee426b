//! A clock that can be stepped under a running process, through libfaketime: <https://github.com/wolfcw/libfaketime>.
//! Only the time of day is stepped; the monotonic clock goes on.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Debian's path. The loader expands `$LIB`.
const LIBRARY: &str = "/usr/$LIB/faketime/libfaketimeMT.so.1";

/// Clock of processes that were started with its [environment](Self::environment).
#[derive(Clone, Debug)]
pub struct Clock {
    /// Holds the offset from the machine's clock.
    file: PathBuf,
}

impl Clock {
    /// The clock kept in `dir`. [Set](Self::set) it before a process starts with it.
    pub fn of(dir: &Path) -> Self {
        Self {
            file: dir.join("clock"),
        }
    }

    /// Environment variables for a process that uses this clock.
    pub fn environment(&self) -> [(&'static str, String); 5] {
        [
            ("LD_PRELOAD", LIBRARY.to_owned()),
            ("FAKETIME_TIMESTAMP_FILE", self.file.display().to_string()),
            ("FAKETIME_NO_CACHE", "1".to_owned()),
            ("FAKETIME_DISABLE_SHM", "1".to_owned()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
        ]
    }

    /// Steps the clock to `ahead` seconds ahead of the machine's; negative is back.
    pub fn set(&self, ahead: i64) {
        std::fs::write(&self.file, format!("{ahead:+}")).expect("write the clock");
    }
}

/// Machine's own clock, in seconds.
pub fn seconds_now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.as_ref()
        .map(Duration::as_secs)
        .expect("a clock behind 1970")
}
