//! The user and host that run this command, for people.

use rustix::system::uname;

use crate::process;

/// `alice@db1`; under sudo `root@db1 (sudo by alice)`, from the environment.
pub(super) fn name() -> String {
    let user = process::user();
    let host = uname().nodename().to_string_lossy().into_owned();
    let sudo = std::env::var("SUDO_USER").map_or(String::new(), |by| format!(" (sudo by {by})"));
    format!("{user}@{host}{sudo}")
}
