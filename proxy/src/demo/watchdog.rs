//! Cleanup after a SIGKILL of this process.
//!
//! A shell waits at the other end of a pipe. If the pipe closes without a farewell, the shell ends the registered
//! processes and removes the directory.

use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use pgpalisade_harness::{HarnessError, system};

/// `$1` is the directory. Ignores signals of the terminal. SIGINT is PostgreSQL's fast shutdown.
const SCRIPT: &str = r#"
trap '' INT TERM HUP
pids=
while IFS= read -r line; do
    case $line in
        goodbye) exit 0 ;;
        *) pids="$pids $line" ;;
    esac
done
for pid in $pids; do kill -INT "$pid"; done
for round in 1 2 3 4 5 6 7 8 9 10; do
    left=
    for pid in $pids; do kill -0 "$pid" && left=yes; done
    test -z "$left" && break
    sleep 1
done
for pid in $pids; do kill -KILL "$pid"; done
rm -rf -- "$1"
"#;

/// The shell. Dropping it sends the farewell.
#[derive(Debug)]
pub(super) struct Watchdog {
    shell: Child,
}

impl Watchdog {
    pub(super) fn start(directory: &Path) -> io::Result<Self> {
        let shell = Command::new("/bin/sh")
            .args(["-c", SCRIPT, "pgpalisade-demo-watchdog"])
            .arg(directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .current_dir("/")
            .process_group(0)
            .spawn()?;
        Ok(Self { shell })
    }

    pub(super) fn watch(&mut self, pid: u32) -> Result<(), HarnessError> {
        let told = match &mut self.shell.stdin {
            Some(pipe) => writeln!(pipe, "{pid}"),
            None => Ok(()),
        };
        told.map_err(system("cannot reach the watchdog"))
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        if let Some(mut pipe) = self.shell.stdin.take() {
            let _ = writeln!(pipe, "goodbye");
        }
        let _ = self.shell.wait();
    }
}
