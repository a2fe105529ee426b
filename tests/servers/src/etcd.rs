//! Real etcd clusters on free ports, with their data in a temporary directory.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use pgpalisade_harness::child::Running;
use tempfile::TempDir;

use crate::machine::{self, Signal};

#[derive(Debug, Clone, Default)]
pub struct Setup {
    /// Members require client certificates.
    pub tls: Option<TlsFiles>,
    /// Initial data directories of the first members.
    pub data: Vec<PathBuf>,
    /// For every member.
    pub arguments: Vec<String>,
}

#[derive(Debug, Clone)]
pub struct TlsFiles {
    pub ca: PathBuf,
    pub cert: PathBuf,
    pub key: PathBuf,
}

#[derive(Debug)]
pub struct Etcd {
    members: Vec<Member>,
    tls: Option<TlsFiles>,
    dir: TempDir,
}

/// A member keeps its ports and data across restarts.
#[derive(Debug)]
struct Member {
    command: Vec<String>,
    client_port: u16,
    data: PathBuf,
    log: PathBuf,
    process: Option<Running>,
}

impl Etcd {
    pub fn start(members: usize) -> Self {
        Self::start_with(members, Setup::default())
    }

    pub fn start_with(members: usize, setup: Setup) -> Self {
        let dir = tempfile::Builder::new()
            .prefix("etcd-")
            .tempdir()
            .expect("a scratch directory");
        let peers: Vec<(String, u16)> = (0..members)
            .map(|index| (format!("m{index}"), machine::free_port()))
            .collect();
        let cluster: Vec<String> = peers
            .iter()
            .map(|(name, port)| format!("{name}=http://127.0.0.1:{port}"))
            .collect();
        let cluster = cluster.join(",");
        let member = |(index, (name, peer_port)): (usize, &(String, u16))| {
            let kept = setup.data.get(index).cloned();
            let data = kept.unwrap_or_else(|| dir.path().join(name));
            let log = dir.path().join(format!("{name}.log"));
            Member::new(name, *peer_port, &cluster, data, log, &setup)
        };
        let mut etcd = Self {
            members: peers.iter().enumerate().map(member).collect(),
            tls: setup.tls,
            dir,
        };
        for index in 0..members {
            etcd.spawn(index);
        }
        etcd.wait_until_ready();
        etcd
    }

    /// Value for `--authority`.
    pub fn authority(&self) -> String {
        format!("etcd:{}", self.urls().join(","))
    }

    /// Turns authentication on: `root:r` may do everything, `pgpalisade:s%cret` may use the keys of the marks.
    pub fn require_logins(&self) {
        // Some versions of etcdctl create the role root along with the user.
        if !self.ctl(&["role", "list"]).contains("root") {
            self.ctl(&["role", "add", "root"]);
        }
        let rights = ["marks", "readwrite", "/pgpalisade/", "--prefix"];
        for arguments in [
            ["user", "add", "root:r"].as_slice(),
            &["user", "grant-role", "root", "root"],
            &["user", "add", "pgpalisade:s%cret"],
            &["role", "add", "marks"],
            &[&["role", "grant-permission"], rights.as_slice()].concat(),
            &["user", "grant-role", "pgpalisade", "marks"],
            &["auth", "enable"],
        ] {
            self.ctl(arguments);
        }
    }

    pub fn authority_with_login(&self) -> String {
        let file = self.write_password("s%cret");
        let file = file.display();
        format!("{}?user=pgpalisade&password_file={file}", self.authority())
    }

    pub fn write_password(&self, password: &str) -> PathBuf {
        let file = self.dir().join("password");
        machine::write_secret(&file, &format!("{password}\n"));
        file
    }

    pub fn change_password(&self, password: &str) {
        let user = format!("pgpalisade:{password}");
        for arguments in [
            ["delete", "pgpalisade"].as_slice(),
            &["add", &user],
            &["grant-role", "pgpalisade", "marks"],
        ] {
            self.ctl(&[["--user=root:r", "user"].as_slice(), arguments].concat());
        }
    }

    pub fn urls(&self) -> Vec<String> {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let members = self.members.iter();
        members
            .map(|member| format!("{scheme}://127.0.0.1:{}", member.client_port))
            .collect()
    }

    pub fn urls_of(&self, members: &[usize]) -> Vec<String> {
        let all = self.urls();
        members.iter().map(|index| all[*index].clone()).collect()
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub fn leader(&self) -> usize {
        machine::wait_for("a leader", || {
            (0..self.members.len()).find(|index| {
                let status = self.try_ctl_at(*index, &["endpoint", "status", "-w", "json"]);
                status.is_some_and(|text| leads(&text))
            })
        })
    }

    /// Stops a member (SIGSTOP); its sockets stay open.
    pub fn pause(&self, index: usize) {
        if let Some(process) = &self.members[index].process {
            machine::pause(process.pid());
        }
    }

    pub fn resume(&self, index: usize) {
        self.signal(index, Signal::CONT);
    }

    pub fn kill(&mut self, index: usize) {
        self.members[index].process = None;
    }

    /// Does not wait for the member.
    pub fn restart(&mut self, index: usize) {
        self.kill(index);
        self.spawn(index);
    }

    pub fn restart_empty(&mut self, index: usize) {
        self.kill(index);
        let data = &self.members[index].data;
        std::fs::remove_dir_all(data).expect("remove the data");
        self.spawn(index);
    }

    pub fn restart_from(&mut self, index: usize, data: &Path) {
        self.kill(index);
        let own = self.members[index].data.clone();
        std::fs::remove_dir_all(&own).expect("remove the data");
        std::fs::rename(data, &own).expect("put the other data in place");
        self.spawn(index);
    }

    pub fn wait_until_ready(&self) {
        machine::wait_for("etcd to answer", || self.try_ctl(&["put", "ready", ""]));
    }

    /// Runs `etcdctl`, which must succeed, and returns its output.
    #[track_caller]
    pub fn ctl(&self, arguments: &[&str]) -> String {
        let all: Vec<usize> = (0..self.members.len()).collect();
        self.ctl_at(&all, arguments)
    }

    #[track_caller]
    pub fn ctl_at(&self, members: &[usize], arguments: &[&str]) -> String {
        let output = self.run_ctl(&self.urls_of(members).join(","), arguments);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "etcdctl {arguments:?}: {error}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Adds a candidate at the end of an election's queue, as `etcdctl elect` does, and returns its number.
    pub fn stands(&self, election: &str, candidate: &str) -> u64 {
        let key = format!("{election}/{candidate}");
        self.ctl(&["put", &key, candidate]);
        let answer = self.ctl(&["get", &key, "-w", "json"]);
        let answer: serde_json::Value = serde_json::from_str(&answer).expect("JSON");
        answer["kvs"][0]["create_revision"]
            .as_u64()
            .expect("a revision")
    }

    pub fn leaves(&self, election: &str, candidate: &str) {
        let gone = self.ctl(&["del", &format!("{election}/{candidate}")]);
        assert_eq!(gone.trim(), "1", "{candidate} does not stand in {election}");
    }

    /// Revision of the store at these members.
    pub fn revision(&self, members: &[usize]) -> i64 {
        let answer = self.ctl_at(members, &["get", "ready", "-w", "json"]);
        let answer: serde_json::Value = serde_json::from_str(&answer).expect("JSON");
        answer["header"]["revision"].as_i64().expect("a revision")
    }

    /// Makes a data directory from a snapshot. With the token `etcd-cluster`, etcd's default, the cluster keeps its
    /// id, which often happens to operators.
    pub fn restore_snapshot(&self, index: usize, snapshot: &Path, token: &str) -> PathBuf {
        const KEPT: [&str; 3] = [
            "--name",
            "--initial-cluster",
            "--initial-advertise-peer-urls",
        ];
        let data = self.dir.path().join("restored");
        let snapshot = snapshot.to_str().expect("UTF-8");
        let into = format!("--data-dir={}", data.display());
        let token = format!("--initial-cluster-token={token}");
        let mut arguments = vec!["snapshot", "restore", snapshot, &into, &token];
        for argument in &self.members[index].command {
            if KEPT.contains(&argument.split('=').next().unwrap_or_default()) {
                arguments.push(argument);
            }
        }
        self.ctl(&arguments);
        data
    }

    /// On a busy machine the first try may time out.
    pub fn save_snapshot(&self) {
        let path = self.snapshot();
        let save = ["snapshot", "save", path.to_str().expect("UTF-8")];
        machine::wait_for("a snapshot of etcd", || self.try_ctl_at(0, &save));
    }

    /// Kills all members and starts them with the saved snapshot.
    pub fn restore_all(&mut self) {
        let all = 0..self.members.len();
        all.clone().for_each(|index| self.kill(index));
        let path = self.snapshot();
        for index in all {
            let data = self.restore_snapshot(index, &path, "etcd-cluster");
            self.restart_from(index, &data);
        }
        self.wait_until_ready();
    }

    fn snapshot(&self) -> PathBuf {
        self.dir.path().join("snapshot")
    }

    pub fn try_ctl(&self, arguments: &[&str]) -> Option<()> {
        let output = self.run_ctl(&self.urls().join(","), arguments);
        output.status.success().then_some(())
    }

    pub fn try_ctl_at(&self, index: usize, arguments: &[&str]) -> Option<String> {
        let output = self.run_ctl(&self.urls()[index], arguments);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        output.status.success().then_some(text)
    }

    fn run_ctl(&self, endpoints: &str, arguments: &[&str]) -> Output {
        let mut command = Command::new("etcdctl");
        command
            .env("ETCDCTL_API", "3")
            .arg(format!("--endpoints={endpoints}"))
            .args(["--dial-timeout=1s", "--command-timeout=2s"]);
        if let Some(TlsFiles { ca, cert, key }) = &self.tls {
            for (name, path) in [("cacert", ca), ("cert", cert), ("key", key)] {
                command.arg(format!("--{name}={}", path.display()));
            }
        }
        let command = command.args(arguments);
        command.output().expect("run etcdctl (package etcd-client)")
    }

    fn signal(&self, index: usize, signal: Signal) {
        if let Some(process) = &self.members[index].process {
            machine::signal(process.pid(), signal);
        }
    }

    fn spawn(&mut self, index: usize) {
        let member = &mut self.members[index];
        let mut command = Command::new("etcd");
        command
            .args(&member.command)
            // Debian's builds also read their options from the environment.
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default());
        // Killed at the end: stored data must survive.
        let process = Running::spawn(&mut command, member.log.clone(), &[]);
        member.process = Some(process.expect("etcd (package etcd-server)"));
    }
}

impl Member {
    fn new(
        name: &str,
        peer_port: u16,
        cluster: &str,
        data: PathBuf,
        log: PathBuf,
        setup: &Setup,
    ) -> Self {
        let client_port = machine::free_port();
        let peer = format!("http://127.0.0.1:{peer_port}");
        let scheme = if setup.tls.is_some() { "https" } else { "http" };
        let client = format!("{scheme}://127.0.0.1:{client_port}");
        let mut command = vec![
            format!("--name={name}"),
            format!("--data-dir={}", data.display()),
            format!("--listen-peer-urls={peer}"),
            format!("--initial-advertise-peer-urls={peer}"),
            format!("--listen-client-urls={client}"),
            format!("--advertise-client-urls={client}"),
            format!("--initial-cluster={cluster}"),
            "--logger=zap".to_owned(),
            "--log-level=warn".to_owned(),
        ];
        if let Some(TlsFiles { ca, cert, key }) = &setup.tls {
            command.push(format!("--trusted-ca-file={}", ca.display()));
            command.push(format!("--cert-file={}", cert.display()));
            command.push(format!("--key-file={}", key.display()));
            command.push("--client-cert-auth=true".to_owned());
        }
        command.extend(setup.arguments.iter().cloned());
        Self {
            command,
            client_port,
            data,
            log,
            process: None,
        }
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        for index in 0..self.members.len() {
            self.kill(index);
        }
        if std::thread::panicking() {
            for member in &self.members {
                let log = std::fs::read_to_string(&member.log).unwrap_or_default();
                let tail: Vec<&str> = log.lines().rev().take(8).collect();
                let name = member.log.file_name().unwrap_or(OsStr::new("log"));
                eprintln!(
                    "--- {}, newest first ---\n{}",
                    name.display(),
                    tail.join("\n")
                );
            }
        }
    }
}

fn leads(status: &str) -> bool {
    let status: serde_json::Value = serde_json::from_str(status).unwrap_or_default();
    let status = &status[0]["Status"];
    status["leader"].is_u64() && status["leader"] == status["header"]["member_id"]
}
