//! A server whose clock can be stepped, by libfaketime: <https://github.com/wolfcw/libfaketime>.

use std::path::Path;

use super::program::programs;
use super::{Auth, Postgres};

/// Where Debian has it. The loader knows what `$LIB` stands for.
const LIBRARY: &str = "/usr/$LIB/faketime/libfaketimeMT.so.1";

/// How far the clock is from the machine's.
const FILE: &str = "clock";

impl Postgres {
    /// As [`Self::start_with`]. Its clock begins as the machine's.
    pub fn start_with_clock(auth: Auth, settings: &[&str]) -> Self {
        let server = Self::start_as(auth, settings, |dir| {
            let file = dir.join(FILE);
            std::fs::write(&file, "+0").expect("write the clock");
            programs()
                .clone()
                .with_environment("LD_PRELOAD", LIBRARY)
                .with_environment("FAKETIME_TIMESTAMP_FILE", &file.display().to_string())
                .with_environment("FAKETIME_NO_CACHE", "1")
                .with_environment("FAKETIME_DISABLE_SHM", "1")
                .with_environment("FAKETIME_DONT_FAKE_MONOTONIC", "1")
        });
        server.set_clock(3_600);
        let machine = format!("extract(epoch FROM now()) - {}", seconds_now());
        let ahead = server.value(&format!("SELECT {machine} > 1800"));
        assert_eq!(ahead, "t", "no libfaketime (package faketime)");
        server.set_clock(0);
        server
    }

    /// Steps the clock: so many seconds before that of the machine, or behind it.
    pub fn set_clock(&self, ahead: i64) {
        let file: &Path = &self.dir.path().join(FILE);
        std::fs::write(file, format!("{ahead:+}")).expect("write the clock");
    }
}

fn seconds_now() -> u64 {
    let now = std::time::SystemTime::now();
    let since = now.duration_since(std::time::UNIX_EPOCH);
    since.expect("a clock behind 1970").as_secs()
}
