//! Real ZooKeeper ensembles: servers on free ports, their data in a directory that is gone when the test is.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use pgpalisade_harness::child::Running;
use tempfile::TempDir;

use crate::machine::{self, Signal};
use crate::postgres::{scratch_dir, unprivileged};

/// A session's longest time where nothing else is said, in milliseconds. Kazoo asks for 10 s.
const SESSION_MS: u32 = 60_000;

/// What kazoo does for a test: with the servers and the path as its arguments, and the name `zk`.
const KAZOO: &str = "import sys
from kazoo.client import KazooClient
zk = KazooClient(sys.argv[1])
path = sys.argv[2]
zk.start()
";

/// An ensemble of one server or more.
#[derive(Debug)]
pub struct ZooKeeper {
    servers: Vec<Server>,
    dir: TempDir,
}

/// One server. It keeps its ports and data when it is restarted.
#[derive(Debug)]
struct Server {
    port: u16,
    home: PathBuf,
    process: Option<Running>,
}

impl ZooKeeper {
    /// Starts an ensemble of so many servers, and waits until it answers.
    pub fn start(servers: usize) -> Self {
        Self::with_sessions(servers, SESSION_MS)
    }

    /// The same, where no session lives longer than this without a sign of life.
    pub fn with_sessions(servers: usize, longest_ms: u32) -> Self {
        let dir = scratch_dir();
        let peers: Vec<String> = (0..servers)
            .map(|index| {
                let (peer, election) = (machine::free_port(), machine::free_port());
                format!("server.{}=127.0.0.1:{peer}:{election}\n", index + 1)
            })
            .collect();
        let peers = if servers > 1 {
            peers.concat()
        } else {
            String::new()
        };
        let server = |index| Server::new(dir.path(), index, longest_ms, &peers);
        let mut ensemble = Self {
            servers: (0..servers).map(server).collect(),
            dir,
        };
        for index in 0..servers {
            ensemble.restart(index);
        }
        ensemble.wait_until_ready();
        ensemble
    }

    /// Where it answers: `host:port`, with commas.
    pub fn hosts(&self) -> String {
        let hosts: Vec<String> = self
            .servers
            .iter()
            .map(|server| format!("127.0.0.1:{}", server.port))
            .collect();
        hosts.join(",")
    }

    /// Stops a server's time: it answers nothing, and its sockets stay open.
    pub fn pause(&self, index: usize) {
        if let Some(process) = &self.servers[index].process {
            machine::pause(process.pid());
        }
    }

    /// Lets a paused server go on.
    pub fn resume(&self, index: usize) {
        if let Some(process) = &self.servers[index].process {
            machine::signal(process.pid(), Signal::CONT);
        }
    }

    /// Kills a server. Its data stays.
    pub fn kill(&mut self, index: usize) {
        self.servers[index].process = None;
    }

    /// Starts a server that was killed. Does not wait for it.
    pub fn restart(&mut self, index: usize) {
        self.kill(index);
        let home = &self.servers[index].home;
        let mut command = unprivileged("java");
        command
            .args(["-Xmx128m", "-XX:TieredStopAtLevel=1", "-cp"])
            .arg("/usr/share/java/zookeeper.jar")
            .arg("org.apache.zookeeper.server.quorum.QuorumPeerMain")
            .arg(home.join("zoo.cfg"))
            .current_dir(home);
        // It is killed: what it has stored must outlive that.
        let process = Running::spawn(&mut command, home.join("log"), &[]);
        self.servers[index].process = Some(process.expect("java (package libzookeeper-java)"));
    }

    /// Waits until the ensemble answers.
    pub fn wait_until_ready(&self) {
        machine::wait_for("ZooKeeper to answer", || {
            self.try_kazoo("zk.exists('/')", "")
        });
    }

    /// The nodes below a path: name, `czxid` and owner of each, in the order of their numbers.
    pub fn nodes(&self, path: &str) -> Vec<(String, u64, String)> {
        let script = "for name in sorted(zk.get_children(path), key=lambda n: n[-10:]):
    stat = zk.exists(path + '/' + name)
    if stat: print(name, stat.czxid, stat.ephemeralOwner)";
        let told = self.kazoo(script, path);
        let lines = told.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        lines
            .map(|words| {
                let czxid = words[1].parse().expect("a number");
                (words[0].to_owned(), czxid, words[2].to_owned())
            })
            .collect()
    }

    /// Deletes a node.
    pub fn delete(&self, path: &str) {
        self.kazoo("zk.delete(path)", path);
    }

    /// Runs a script of kazoo: it knows `zk` and `path`. What it prints.
    ///
    /// # Panics
    /// When it fails.
    #[track_caller]
    pub fn kazoo(&self, script: &str, path: &str) -> String {
        let told = self.try_kazoo(script, path);
        told.unwrap_or_else(|| panic!("kazoo has failed: {script}"))
    }

    /// The command of such a script.
    pub fn kazoo_command(&self, script: &str, path: &str) -> Command {
        // Debian's Python, which finds Debian's packages.
        let mut command = Command::new("/usr/bin/python3");
        let script = format!("{KAZOO}{script}");
        command.args(["-c", &script, &self.hosts(), path]);
        command
    }

    fn try_kazoo(&self, script: &str, path: &str) -> Option<String> {
        let output = self.kazoo_command(script, path).output();
        let output = output.expect("run python3");
        if !output.status.success() {
            println!("{}", String::from_utf8_lossy(&output.stderr));
            return None;
        }
        String::from_utf8(output.stdout).ok()
    }
}

impl Drop for ZooKeeper {
    fn drop(&mut self) {
        // The directory goes last.
        self.servers.clear();
        let _removed_with_it = &self.dir;
    }
}

impl Server {
    fn new(dir: &Path, index: usize, longest_ms: u32, peers: &str) -> Self {
        let (port, home) = (machine::free_port(), dir.join(format!("zk-{}", index + 1)));
        let data = home.join("data");
        let settings = format!(
            "tickTime=200\ninitLimit=50\nsyncLimit=10\nmaxSessionTimeout={longest_ms}\nadmin.enableServer=false\n\
             dataDir={}\nclientPort={port}\nclientPortAddress=127.0.0.1\n{peers}",
            data.display()
        );
        std::fs::create_dir_all(&data).expect("make a directory");
        std::fs::write(home.join("zoo.cfg"), settings).expect("write the settings");
        // The server runs as somebody else.
        for made in [&home, &data] {
            std::fs::set_permissions(made, Permissions::from_mode(0o777)).expect("open to all");
        }
        std::fs::write(data.join("myid"), format!("{}", index + 1)).expect("write the number");
        Self {
            port,
            home,
            process: None,
        }
    }
}
