//! A machine for one page: a private view of this one's file system, processes and network, which the reader may
//! change as root. Gone when dropped. PostgreSQL runs in it, as Debian's package starts it.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use pgpalisade_test_servers::machine;
use pgpalisade_test_servers::programs::feed;
use pgpalisade_test_servers::proxy::binary;
use tempfile::TempDir;

/// Sets up the room in directory `$1` for repository `$2` with binary `$3`, and keeps it until its input ends.
///
/// Written files stay in memory. The repository looks as after `make release`. Hosts of `db.internal` are this
/// machine.
const SETUP: &str = r#"
mount -t tmpfs tmpfs "$1"
cd "$1"
mkdir changes work root repository-changes repository-work
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/changes,workdir=$1/work" root
mount -t proc proc root/proc
mount --rbind /dev root/dev
mount -t tmpfs tmpfs root/run
mount -t tmpfs tmpfs -o mode=1777 root/tmp
mkdir root/srv/pgpalisade
mount -t overlay overlay -o "lowerdir=$2,upperdir=$1/repository-changes,workdir=$1/repository-work" root/srv/pgpalisade
mkdir -p root/srv/pgpalisade/target/release
touch root/srv/pgpalisade/target/release/pgpalisade
mount --bind "$3" root/srv/pgpalisade/target/release/pgpalisade
echo '127.0.0.1 db.internal pg1.db.internal pg2.db.internal pg3.db.internal' >>root/etc/hosts
rm -rf root/etc/postgresql/* root/var/lib/postgresql/*
ip link set lo up
chroot root sh -euc 'pg_createcluster --start --encoding UTF8 --locale C.UTF-8 \
    "$(ls /usr/lib/postgresql | sort -n | tail -n 1)" main >&2'
exec chroot root bash -c 'echo ready; read -r _'
"#;

pub(crate) struct Printed {
    pub(crate) text: String,
    pub(crate) succeeded: bool,
}

pub(crate) struct Room {
    keeper: Child,
    /// First process inside.
    pid: u32,
    scratch: TempDir,
}

impl Room {
    /// # Panics
    /// If no room can be made: an unwalked page is untested.
    pub(crate) fn new() -> Self {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let mut keeper = Command::new("unshare")
            .args(["--mount", "--pid", "--net", "--fork", "--kill-child"])
            .args(["--propagation", "private", "sh", "-euc", SETUP, "room"])
            .args([scratch.path(), &machine::repository(), binary()])
            .env_clear()
            .env("PATH", PATH)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("run unshare(1)");
        let mut ready = String::new();
        let output = keeper.stdout.take().expect("it is piped");
        let read = BufReader::new(output).read_line(&mut ready);
        read.expect("read what the set-up prints");
        if ready != "ready\n" {
            let mut why = String::new();
            let errors = keeper.stderr.as_mut().expect("it is piped");
            errors.read_to_string(&mut why).expect("read its errors");
            panic!(
                "no page is walked: it takes root, namespaces, overlayfs and Debian's PostgreSQL:\n{why}"
            );
        }
        let pid = *machine::children(keeper.id()).first().expect("a process");
        Self {
            keeper,
            pid,
            scratch,
        }
    }

    /// In the room's root shell, in the repository.
    pub(crate) fn shell(&self, script: &str) -> Command {
        let mut command = Command::new("nsenter");
        command
            .arg("--target")
            .arg(self.pid.to_string())
            .args(["--mount", "--pid", "--net", "--root", "--wd"])
            .args(["bash", "-euc"])
            .arg(format!("exec 2>&1\ncd /srv/pgpalisade\n{script}"))
            .env_clear()
            .env("PATH", PATH)
            .env("HOME", "/root")
            .env("LANG", "C.UTF-8");
        command
    }

    pub(crate) fn run(&self, script: &str, input: &str) -> Printed {
        let output = feed(self.shell(script), input);
        Printed {
            text: String::from_utf8_lossy(&output.stdout).into_owned(),
            succeeded: output.status.success(),
        }
    }

    pub(crate) fn path(&self, inside: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{inside}", self.pid))
    }

    /// Outside of the room, for the output of its programs.
    pub(crate) fn log(&self) -> PathBuf {
        self.scratch.path().join("log")
    }
}

const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

impl Drop for Room {
    fn drop(&mut self) {
        // The room's first process reads to the end of its input, then ends and takes all others with it.
        drop(self.keeper.stdin.take());
        let _ended = self.keeper.wait();
    }
}
