//! Two PostgreSQL servers managed by Patroni: a primary and a synchronous standby, with a private etcd.
//! <https://patroni.readthedocs.io>

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use pgpalisade_harness::child::{Farewell, Running};
use serde_json::json;
use tempfile::TempDir;

use crate::etcd::Etcd;
use crate::machine::{self, Signal};
use crate::postgres::{Frozen, Turn, bin, copy_tree, scratch_dir, template, unprivileged};
use crate::programs;
use crate::proxy::{Options, Store};
use crate::wire::{Endpoint, Wire};

/// Lifetime of the primary's key without its Patroni, in seconds.
pub const TTL: u32 = 10;
/// Seconds between Patroni's polls.
pub const LOOP_WAIT: u32 = 2;
/// Seconds for which Patroni retries to reach etcd or PostgreSQL.
pub const RETRY_TIMEOUT: u32 = 3;

/// Bound of a role change: a promotion takes [`TTL`] and a few polls, a return to standby a `pg_rewind`.
pub const WHOLE_WITHIN: Duration = Duration::from_secs(90);

/// No data is kept.
const KILL: Farewell = &[(Signal::KILL, Duration::from_secs(10))];

const NAMES: [&str; 2] = ["a", "b"];

#[derive(Debug)]
pub struct Patroni {
    nodes: [Node; 2],
    _etcd: Etcd,
    _turn: Turn,
}

#[derive(Debug)]
struct Node {
    port: u16,
    rest: u16,
    process: Option<Running>,
    dir: TempDir,
}

impl Patroni {
    /// Waits until both servers confirm a commit.
    pub fn start() -> Self {
        let turn = Turn::take();
        let etcd = Etcd::start(1);
        etcd.ctl(&["put", "/service/pgpalisade/config", &settings()]);
        let mut patroni = Self {
            nodes: [Node::new(&etcd, 0), Node::new(&etcd, 1)],
            _etcd: etcd,
            _turn: turn,
        };
        // Patroni adopts an existing server.
        copy_tree(&template(), &patroni.nodes[0].data());
        patroni.nodes[0].spawn();
        machine::wait_for("Patroni to promote a primary", || patroni.primary());
        patroni.nodes[1].spawn();
        patroni.wait_until_whole();
        patroni
    }

    pub fn primary(&self) -> Option<usize> {
        (0..self.nodes.len()).find(|node| self.nodes[*node].is("primary"))
    }

    /// Waits until one server is the primary and the other can be promoted. Returns the index of the primary.
    #[track_caller]
    pub fn wait_until_whole(&self) -> usize {
        let whole = machine::wait_at_most(WHOLE_WITHIN, || {
            let primary = self.primary()?;
            self.nodes[1 - primary].is("sync").then_some(primary)
        });
        whole.expect("Patroni's servers to be whole")
    }

    #[track_caller]
    pub fn wait_for_promotion(&self, node: usize) {
        let promoted = machine::wait_at_most(WHOLE_WITHIN, || {
            self.nodes[node].is("primary").then_some(())
        });
        promoted.expect("Patroni to promote its standby");
    }

    /// Runs `patronictl switchover`; returns once the other server is the primary.
    pub fn switchover(&self) {
        let mut command = unprivileged("patronictl");
        let own = self.nodes[0].dir.path();
        command.arg("-c").arg(own.join("patroni.yml"));
        command.args(["switchover", "--force"]).current_dir(own);
        let output = at_home(&mut command, own).output();
        programs::stdout(&output.expect("patronictl (package patroni)"));
    }

    /// Kills a server and its Patroni, as a machine failure does.
    pub fn kill(&mut self, node: usize) {
        self.nodes[node].kill();
    }

    pub fn end_patroni(&mut self, node: usize) {
        self.nodes[node].process = None;
    }

    /// Restarts a killed Patroni, which does the rest.
    pub fn revive(&mut self, node: usize) {
        if self.nodes[node].process.is_none() {
            self.nodes[node].spawn();
        }
    }

    /// Kills only PostgreSQL's postmaster.
    pub fn kill_postmaster(&self, node: usize) {
        if let Some(pid) = self.nodes[node].postmaster() {
            machine::signal(pid, Signal::KILL);
        }
    }

    /// Stops every process of a server and its Patroni (SIGSTOP) until the guard is dropped.
    pub fn freeze(&self, node: usize) -> Frozen {
        let node = &self.nodes[node];
        let mut frozen = Frozen::new(node.process.as_ref().map(Running::pid));
        let postmaster = node.postmaster().expect("a server that runs");
        frozen.stop([postmaster]);
        // The stopped postmaster starts no more children.
        frozen.stop(machine::children(postmaster));
        frozen
    }

    pub fn options(&self) -> Options {
        let [a, b] = [self.nodes[0].port, self.nodes[1].port];
        Options {
            upstream: format!("postgres://127.0.0.1:{a},127.0.0.1:{b}"),
            control: "user=postgres dbname=postgres".to_owned(),
            store: Store::Embedded,
            flags: Vec::new(),
            environment: Vec::new(),
            binary: None,
            direct: self.tcp(0),
        }
    }

    pub fn tcp(&self, node: usize) -> Endpoint {
        Endpoint::Tcp(local(self.nodes[node].port))
    }

    pub fn data(&self, node: usize) -> PathBuf {
        self.nodes[node].data()
    }

    /// Superuser session, directly on the primary.
    #[track_caller]
    pub fn admin(&self, database: &str) -> Wire {
        let primary = self.primary().expect("a primary");
        let own = [("user", "postgres"), ("database", database)];
        Wire::login(&self.tcp(primary), &own)
    }

    pub fn log(&self, node: usize) -> String {
        std::fs::read_to_string(self.nodes[node].log()).unwrap_or_default()
    }

    /// haproxy in front of both servers, configured as in Patroni's documentation.
    pub fn haproxy(&self, dir: &Path) -> (Running, Endpoint) {
        let port = machine::free_port();
        let server = |node: &Node| {
            let Node { port, rest, .. } = node;
            format!("  server s{port} 127.0.0.1:{port} maxconn 100 check port {rest}\n")
        };
        let servers: String = self.nodes.iter().map(server).collect();
        let settings = format!(
            "global\n  maxconn 100\n\
             defaults\n  log global\n  mode tcp\n  retries 2\n  timeout client 30m\n  timeout connect 4s\n  \
             timeout server 30m\n  timeout check 5s\n\
             listen primary\n  bind 127.0.0.1:{port}\n  option httpchk OPTIONS /primary\n  \
             http-check expect status 200\n  \
             default-server inter 3s fall 3 rise 2 on-marked-down shutdown-sessions\n{servers}"
        );
        let mut command = programs::haproxy(dir, &settings);
        let running = Running::spawn(&mut command, dir.join("log"), machine::TERM);
        let endpoint = Endpoint::Tcp(local(port));
        (running.expect("haproxy (package haproxy)"), endpoint)
    }
}

impl Node {
    fn new(etcd: &Etcd, number: usize) -> Self {
        let node = Self {
            port: machine::free_port(),
            rest: machine::free_port(),
            process: None,
            dir: scratch_dir(),
        };
        let dir = node.dir.path();
        let hosts = etcd.urls().concat().replace("http://", "");
        let (address, rest) = (local(node.port), local(node.rest));
        let user = json!({"username": "postgres", "password": "none"});
        // JSON is valid YAML.
        let own = json!({
            "scope": "pgpalisade",
            "name": NAMES[number],
            "etcd3": {"host": hosts},
            "restapi": {"listen": rest, "connect_address": rest},
            "watchdog": {"mode": "off"},
            "postgresql": {
                "listen": address,
                "connect_address": address,
                "data_dir": node.data(),
                "bin_dir": bin("postgres").parent(),
                "pgpass": dir.join("pgpass"),
                "basebackup": [{"checkpoint": "fast"}],
                "parameters": {"unix_socket_directories": dir},
                "authentication": {"superuser": user, "replication": user, "rewind": user},
                "pg_hba": [
                    "local all all trust",
                    "host all all 127.0.0.1/32 trust",
                    "host replication all 127.0.0.1/32 trust",
                ],
            },
        });
        std::fs::write(dir.join("patroni.yml"), own.to_string()).expect("write patroni.yml");
        node
    }

    fn spawn(&mut self) {
        let dir = self.dir.path();
        let mut command = unprivileged("patroni");
        command.arg(dir.join("patroni.yml")).current_dir(dir);
        let process = Running::spawn(at_home(&mut command, dir), self.log(), KILL);
        self.process = Some(process.expect("patroni (package patroni)"));
    }

    fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    fn log(&self) -> PathBuf {
        self.dir.path().join("log")
    }

    /// Whether Patroni reports this role: <https://patroni.readthedocs.io/en/latest/rest_api.html>.
    fn is(&self, role: &str) -> bool {
        let limit = Duration::from_secs(1);
        let ask = || {
            let mut stream = TcpStream::connect_timeout(&local(self.rest), limit)?;
            stream.set_read_timeout(Some(limit))?;
            write!(stream, "GET /{role} HTTP/1.0\r\n\r\n")?;
            let mut head = [0; 12];
            stream.read_exact(&mut head)?;
            std::io::Result::Ok(head)
        };
        ask().is_ok_and(|head| head.ends_with(b" 200"))
    }

    fn postmaster(&self) -> Option<u32> {
        let file = std::fs::read_to_string(self.data().join("postmaster.pid")).ok()?;
        let pid = file.lines().next()?.parse().ok()?;
        let home = std::fs::read_link(format!("/proc/{pid}/cwd")).ok()?;
        (home == self.data()).then_some(pid)
    }

    /// Patroni first, since it would restart PostgreSQL.
    fn kill(&mut self) {
        let patroni = self.process.as_ref().map(Running::pid);
        let of_patroni = patroni.map(machine::children).unwrap_or_default();
        self.process = None;
        let postmaster = self.postmaster();
        let of_postmaster = postmaster.map(machine::children).unwrap_or_default();
        let all: Vec<u32> = [of_patroni, postmaster.into_iter().collect(), of_postmaster].concat();
        all.iter()
            .for_each(|pid| machine::signal(*pid, Signal::KILL));
        // A dead process has no working directory, even before it is reaped.
        let lives = |pid: &u32| std::fs::read_link(format!("/proc/{pid}/cwd")).is_ok();
        let _tried_again_by_patroni =
            machine::wait_at_most(machine::PATIENCE, || (!all.iter().any(lives)).then_some(()));
    }
}

impl Drop for Patroni {
    fn drop(&mut self) {
        for (name, node) in NAMES.iter().zip(&mut self.nodes) {
            node.kill();
            if std::thread::panicking() {
                let log = std::fs::read_to_string(node.log()).unwrap_or_default();
                let tail: Vec<&str> = log.lines().rev().take(25).collect();
                eprintln!("--- {name}, newest first ---\n{}", tail.join("\n"));
            }
        }
    }
}

/// Common settings in etcd.
fn settings() -> String {
    let settings = json!({
        "ttl": TTL,
        "loop_wait": LOOP_WAIT,
        "retry_timeout": RETRY_TIMEOUT,
        "synchronous_mode": true,
        "postgresql": {
            "use_pg_rewind": true,
            "parameters": {
                "fsync": "off",
                "wal_level": "logical",
                // A proof reads the whole WAL at its end.
                "wal_keep_size": "8GB",
                "max_wal_size": "256MB",
                "max_connections": 120,
                "max_prepared_transactions": 5,
            },
        },
    });
    settings.to_string()
}

/// Clears the environment except for PATH.
fn at_home<'a>(command: &'a mut Command, dir: &Path) -> &'a mut Command {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let command = command
        .env_clear()
        .env("PATH", path)
        .env("LC_ALL", "C.UTF-8");
    command.env("HOME", dir).env("PYTHONDONTWRITEBYTECODE", "1")
}

fn local(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}
