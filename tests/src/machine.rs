//! What every part of the harness needs from the machine: ports, paths, signals, and waiting with a bound.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::time::Duration;

use pgpalisade_harness::patience::Patience;

pub use pgpalisade_harness::Signal;
pub use pgpalisade_harness::child::{Running, TERM};

/// How long a test waits for something that must happen before it calls it a failure.
///
/// Far above what a healthy run needs, since the machine may be shared.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Waits until `look` gives a value, looking every few milliseconds, at most for [`PATIENCE`].
///
/// # Panics
/// When the time is over; `what` says what did not happen.
#[track_caller]
pub fn wait_for<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    match wait_at_most(PATIENCE, look) {
        Some(value) => value,
        None => panic!("waited {PATIENCE:?} for {what}"),
    }
}

/// Waits until `look` gives a value, at most for `bound`.
pub fn wait_at_most<T>(bound: Duration, look: impl FnMut() -> Option<T>) -> Option<T> {
    Patience::at_most(bound)
        .until(look)
        .expect("not told to stop")
}

/// [`PATIENCE`], for what the harness waits for.
pub fn patience() -> Patience {
    Patience::at_most(PATIENCE)
}

/// A TCP port on 127.0.0.1 that nobody listens on.
pub fn free_port() -> u16 {
    pgpalisade_harness::free_port().expect("a free port")
}

/// Writes a file with a secret, which nobody else may read.
pub fn write_secret(path: &Path, text: &str) {
    std::fs::write(path, text).expect("write a file");
    std::fs::set_permissions(path, Permissions::from_mode(0o600)).expect("close it");
}

/// The root of the repository.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("tests/ is inside the workspace")
        .to_path_buf()
}

/// The directory that cargo built this test into: `target/debug`, say.
pub fn profile_dir() -> PathBuf {
    let exe = std::env::current_exe().expect("path of this test");
    let mut dir = exe.parent().expect("a directory").to_path_buf();
    if dir.ends_with("deps") {
        dir.pop();
    }
    dir
}

/// Sends a signal to the one process with this id. A process that is gone already is no error.
pub fn signal(pid: u32, signal: Signal) {
    let raw = i32::try_from(pid).expect("a pid");
    let pid = rustix::process::Pid::from_raw(raw).expect("a pid is not zero");
    let _gone_already = rustix::process::kill_process(pid, signal);
}

/// Stops a process where it is (SIGSTOP), and waits until each of its threads has stopped, which takes a moment on a
/// busy machine. SIGCONT lets it go on.
pub fn pause(pid: u32) {
    signal(pid, Signal::STOP);
    wait_for("a process to stop", || {
        let mut threads = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?;
        let is_stopped = threads.all(|thread| {
            let stat = thread
                .ok()
                .and_then(|thread| std::fs::read_to_string(thread.path().join("stat")).ok());
            // Behind the name, which stands in brackets, comes the state.
            let state = stat.and_then(|stat| {
                stat.rsplit_once(") ")
                    .map(|(_, rest)| rest.starts_with('T'))
            });
            state.unwrap_or(true)
        });
        is_stopped.then_some(())
    });
}

/// The processes that this one has started, and that are still there.
pub fn children(pid: u32) -> Vec<u32> {
    let all = std::fs::read_dir("/proc").expect("the processes");
    let numbers = all.flatten().map(|entry| entry.file_name());
    let numbers = numbers.filter_map(|name| name.to_str()?.parse().ok());
    let is_child = |own: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{own}/stat")).unwrap_or_default();
        // Behind the name, which stands in brackets, come the state and the parent.
        let fields = stat.rsplit_once(") ").map(|(_, fields)| fields);
        fields.and_then(|fields| fields.split(' ').nth(1)) == Some(&pid.to_string())
    };
    numbers.filter(is_child).collect()
}

/// Waits until the child has ended, and kills it by its id where it does not within `bound`.
pub fn reap(child: &mut Child, bound: Duration) -> ExitStatus {
    let ended = wait_at_most(bound, || child.try_wait().expect("wait for a child"));
    ended.unwrap_or_else(|| {
        let _gone_already = child.kill();
        child.wait().expect("wait for a killed child")
    })
}

/// The seed of a random test: `PGPALISADE_SEED` where set, else the clock. It is printed; cargo shows it on failure.
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
