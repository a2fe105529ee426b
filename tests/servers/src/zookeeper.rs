//! A real ZooKeeper on a free port, with its data in a temporary directory.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use pgpalisade_harness::child::Running;
use tempfile::TempDir;

use crate::machine;
use crate::postgres::{scratch_dir, unprivileged};

/// Milliseconds. Kazoo asks for 10 s.
const SESSION_MS: u32 = 2000;

#[derive(Debug)]
pub struct ZooKeeper {
    port: u16,
    _process: Running,
    _dir: TempDir,
}

impl ZooKeeper {
    pub fn start() -> Self {
        let (dir, port) = (scratch_dir(), machine::free_port());
        let data = dir.path().join("data");
        let settings = format!(
            "tickTime=200\nmaxSessionTimeout={SESSION_MS}\nadmin.enableServer=false\ndataDir={}\nclientPort={port}\n\
             clientPortAddress=127.0.0.1\n",
            data.display()
        );
        let config = dir.path().join("zoo.cfg");
        std::fs::create_dir_all(&data).expect("make a directory");
        std::fs::write(&config, settings).expect("write the settings");
        // The server runs as another user.
        for made in [dir.path(), &data] {
            std::fs::set_permissions(made, Permissions::from_mode(0o777)).expect("open to all");
        }
        let mut command = unprivileged("java");
        command
            .args(["-Xmx128m", "-XX:TieredStopAtLevel=1", "-cp"])
            .arg("/usr/share/java/zookeeper.jar")
            .arg("org.apache.zookeeper.server.quorum.QuorumPeerMain")
            .arg(config)
            .current_dir(dir.path());
        let process = Running::spawn(&mut command, dir.path().join("log"), &[]);
        let server = Self {
            port,
            _process: process.expect("java (package libzookeeper-java)"),
            _dir: dir,
        };
        machine::wait_for("ZooKeeper to answer", || server.try_answer());
        server
    }

    pub fn hosts(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    fn try_answer(&self) -> Option<()> {
        // Debian's Python, which finds Debian's packages.
        let mut command = Command::new("/usr/bin/python3");
        let script =
            "import sys; from kazoo.client import KazooClient; KazooClient(sys.argv[1]).start(2)";
        let output = command.args(["-c", script, &self.hosts()]).output();
        output.expect("run python3").status.success().then_some(())
    }
}
