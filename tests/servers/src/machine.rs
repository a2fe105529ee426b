//! Ports, paths, signals, and bounded waits.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use pgpalisade_harness::patience::Patience;

pub use pgpalisade_harness::Signal;
pub use pgpalisade_harness::child::{Running, TERM};

/// Bound of every wait in a test, far above what a healthy run needs: the machine may be shared.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Waits until `look` returns a value, polling every few milliseconds for at most [`PATIENCE`]. On timeout, `what`
/// names the missing event.
#[track_caller]
pub fn wait_for<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    match wait_at_most(PATIENCE, look) {
        Some(value) => value,
        None => panic!("waited {PATIENCE:?} for {what}"),
    }
}

/// As [`wait_for`], for a condition.
#[track_caller]
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    wait_for(what, || is_so().then_some(()));
}

/// Waits until `look` returns a value, for at most `bound`.
pub fn wait_at_most<T>(bound: Duration, look: impl FnMut() -> Option<T>) -> Option<T> {
    Patience::at_most(bound)
        .until(look)
        .expect("not told to stop")
}

pub fn patience() -> Patience {
    Patience::at_most(PATIENCE)
}

pub fn free_port() -> u16 {
    pgpalisade_harness::free_port().expect("a free port")
}

/// Only its owner may read the file.
pub fn write_secret(path: &Path, text: &str) {
    std::fs::write(path, text).expect("write a file");
    std::fs::set_permissions(path, Permissions::from_mode(0o600)).expect("close it");
}

pub fn repository() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2);
    root.expect("tests/servers is inside the workspace")
        .to_path_buf()
}

/// Directory that cargo built this test into, such as `target/debug`.
pub fn profile_dir() -> PathBuf {
    let exe = std::env::current_exe().expect("path of this test");
    let mut dir = exe.parent().expect("a directory").to_path_buf();
    if dir.ends_with("deps") {
        dir.pop();
    }
    dir
}

/// Ignores a process that is gone.
pub fn signal(pid: u32, signal: Signal) {
    let raw = i32::try_from(pid).expect("a pid");
    let pid = rustix::process::Pid::from_raw(raw).expect("a pid is not zero");
    let _gone_already = rustix::process::kill_process(pid, signal);
}

/// Stops a process (SIGSTOP) and waits until each of its threads has stopped.
pub fn pause(pid: u32) {
    signal(pid, Signal::STOP);
    wait_for("a process to stop", || {
        let mut threads = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?;
        let is_stopped = threads.all(|thread| {
            let stat = thread
                .ok()
                .and_then(|thread| std::fs::read_to_string(thread.path().join("stat")).ok());
            // The state follows the name, which is in parentheses.
            let state = stat.and_then(|stat| {
                stat.rsplit_once(") ")
                    .map(|(_, rest)| rest.starts_with('T'))
            });
            state.unwrap_or(true)
        });
        is_stopped.then_some(())
    });
}

pub fn children(pid: u32) -> Vec<u32> {
    let all = std::fs::read_dir("/proc").expect("the processes");
    let numbers = all.flatten().map(|entry| entry.file_name());
    let numbers = numbers.filter_map(|name| name.to_str()?.parse().ok());
    let is_child = |own: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{own}/stat")).unwrap_or_default();
        // State and parent follow the name, which is in parentheses.
        let fields = stat.rsplit_once(") ").map(|(_, fields)| fields);
        fields.and_then(|fields| fields.split(' ').nth(1)) == Some(&pid.to_string())
    };
    numbers.filter(is_child).collect()
}

/// Waits until the child has ended; kills it after `bound`.
pub fn reap(child: &mut Child, bound: Duration) -> ExitStatus {
    let ended = wait_at_most(bound, || child.try_wait().expect("wait for a child"));
    ended.unwrap_or_else(|| {
        let _gone_already = child.kill();
        child.wait().expect("wait for a killed child")
    })
}

/// Seed of a random test: `PGPALISADE_SEED`, or from the clock. Printed.
pub fn seed() -> u64 {
    let given = std::env::var("PGPALISADE_SEED")
        .ok()
        .and_then(|text| text.parse().ok());
    let seed = given.unwrap_or_else(|| {
        let now = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .expect("after 1970");
        now.as_secs() ^ u64::from(now.subsec_nanos())
    });
    println!("seed: PGPALISADE_SEED={seed}");
    seed
}

/// Asserts that `text` has this part.
#[track_caller]
pub fn assert_says(text: &str, part: &str) {
    assert!(text.contains(part), "{part:?} is not in {text}");
}

/// Asserts that less than `bound` has passed since `begun`.
#[track_caller]
pub fn assert_within(begun: Instant, bound: Duration) {
    let passed = begun.elapsed();
    assert!(passed < bound, "{passed:?}");
}
