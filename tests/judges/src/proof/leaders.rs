//! Client processes of a run: elected, started, broken by the nemesis, and ended.

use std::collections::VecDeque;
use std::io::Read;
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use pgpalisade_test_servers::machine::{self, Signal};
use pgpalisade_test_servers::proxy::binary;

use super::leader::{Number, Task};

/// Argument that turns the binary into a leader.
pub const LEAD: &str = "lead";

#[derive(Debug)]
pub struct Leaders {
    binary: PathBuf,
    /// `None` once the run has ended: a leader elected just before comes too late.
    running: Mutex<Option<Vec<Running>>>,
    /// The last leaders that may have outlived their election's process.
    left_behind: Mutex<VecDeque<LeftBehind>>,
    failed: Mutex<Vec<String>>,
}

const LEFT_MAX: usize = 16;

/// Pipes of a leader whose election has ended: its input and its output.
#[derive(Debug)]
struct LeftBehind {
    input: ChildStdin,
    output: ChildStdout,
}

impl LeftBehind {
    /// Closes its input, which ends it, and waits for the end of its output.
    fn end(self) {
        let Self { input, mut output } = self;
        drop(input);
        let _nothing = output.read_to_end(&mut Vec::new());
    }
}

#[derive(Debug)]
struct Running {
    leader: u32,
    scope: String,
    child: Child,
}

impl Leaders {
    pub fn new() -> Self {
        Self {
            binary: machine::profile_dir().join("pgpalisade-proof"),
            running: Mutex::new(Some(Vec::new())),
            left_behind: Mutex::default(),
            failed: Mutex::default(),
        }
    }

    /// The leader ends with this process, since its input ends then. After [`Self::end`] no leader starts: nothing
    /// would check its writes.
    pub fn start(&self, task: &Task) {
        let mut running = self.running.lock().expect("leaders");
        let Some(running) = running.as_mut() else {
            return;
        };
        let task_text = serde_json::to_string(task).expect("a task is JSON");
        let mut command = match task.number {
            Number::Elected(proxy) => elect(&task.scope, proxy),
            Number::Given(_) | Number::Taken | Number::Led(_) => Command::new(&self.binary),
        };
        if let Number::Elected(_) = task.number {
            command
                .arg(&self.binary)
                .stdout(Stdio::piped())
                .stderr(Stdio::null());
        } else {
            command.stdout(Stdio::null());
        }
        let command = command.args([LEAD, &task_text]).stdin(Stdio::piped());
        let child = command.spawn().expect("start a leader");
        running.push(Running {
            leader: task.leader,
            scope: task.scope.clone(),
            child,
        });
    }

    /// Drops those that have ended.
    pub fn count(&self, scope: &str) -> usize {
        let mut running = self.running.lock().expect("leaders");
        let Some(running) = running.as_mut() else {
            return 0;
        };
        running.retain_mut(|leader| {
            let ended = leader.child.try_wait().expect("look at a leader");
            let Some(status) = ended else { return true };
            if !is_expected(status) {
                let text = format!("leader {} ended with {status}", leader.leader);
                self.failed.lock().expect("failed leaders").push(text);
            }
            self.leave(&mut leader.child);
            false
        });
        running
            .iter()
            .filter(|leader| leader.scope == scope)
            .count()
    }

    /// Keeps the pipes of an ended election's process, whose leader may still run.
    fn leave(&self, child: &mut Child) {
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return;
        };
        let mut left = self.left_behind.lock().expect("what is left");
        left.push_back(LeftBehind { input, output });
        if left.len() > LEFT_MAX
            && let Some(oldest) = left.pop_front()
        {
            oldest.end();
        }
    }

    /// Returns the leader's number.
    pub fn signal_one(&self, choice: usize, signal: Signal) -> Option<u32> {
        let running = self.running.lock().expect("leaders");
        let running = running.as_ref()?;
        let one = running.get(choice.checked_rem(running.len())?)?;
        machine::signal(one.child.id(), signal);
        Some(one.leader)
    }

    pub fn resume(&self, leader: u32) {
        let running = self.running.lock().expect("leaders");
        let mut all = running.iter().flatten();
        if let Some(one) = all.find(|one| one.leader == leader) {
            machine::signal(one.child.id(), Signal::CONT);
        }
    }

    /// Ends all leaders for good, and returns those that had failed.
    pub fn end(&self) -> Vec<String> {
        self.count("");
        let running = self.running.lock().expect("leaders").take();
        for mut leader in running.into_iter().flatten() {
            machine::signal(leader.child.id(), Signal::KILL);
            machine::reap(&mut leader.child, Duration::from_secs(10));
            self.leave(&mut leader.child);
        }
        let left = std::mem::take(&mut *self.left_behind.lock().expect("what is left"));
        left.into_iter().for_each(LeftBehind::end);
        std::mem::take(&mut self.failed.lock().expect("failed leaders"))
    }
}

/// Start of a command line that becomes a leader once it has the lease of a scope. It ignores SIGTERM, so it writes
/// for as long as it lives.
fn elect(scope: &str, proxy: SocketAddr) -> Command {
    let mut command = Command::new(binary());
    let proxied = format!("postgres://postgres@{proxy}/postgres");
    command.args(["elect", scope, "--with", "lease", "--proxied", &proxied]);
    command.args(["--ttl", "3s", "--grace", "2s", "--once", "--"]);
    command.args(["sh", "-c", "trap '' TERM; exec \"$0\" \"$@\""]);
    command
}

/// 75 is a lost lease, 137 a killed leader.
fn is_expected(status: ExitStatus) -> bool {
    status.success()
        || status.signal() == Some(Signal::KILL.as_raw())
        || matches!(status.code(), Some(75 | 137))
}

impl Default for Leaders {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Leaders {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An election that is in progress when the run stops.
    #[test]
    fn nobody_is_elected_after_the_end() {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let mut leaders = Leaders::new();
        leaders.binary = "/bin/sh".into();
        let task = |leader| Task {
            leader,
            scope: "alpha".to_owned(),
            number: Number::Given(1),
            proxies: Vec::new(),
            pooler: None,
            direct: None,
            history: dir.path().join(format!("leader-{leader}.jsonl")),
            seed: 1,
            sessions: 1,
            again: 0.0,
            lifetime: Duration::from_secs(1),
            patience: Duration::from_secs(1),
        };
        let started = || {
            leaders
                .running
                .lock()
                .expect("leaders")
                .as_ref()
                .map(Vec::len)
        };
        leaders.start(&task(1));
        assert_eq!(started(), Some(1));
        leaders.end();
        leaders.start(&task(2));
        assert_eq!(started(), None, "a leader was started after the end");
        assert_eq!(leaders.signal_one(0, Signal::CONT), None);
    }
}
