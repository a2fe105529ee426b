//! Streaming replicas and their promotion.

use tempfile::TempDir;

use super::program::{bin, programs, scratch_dir, unprivileged};
use super::{Postgres, Turn};
use crate::machine::{self, Signal};

impl Postgres {
    /// A replica, which outlives this server.
    pub fn replica(&self) -> Self {
        let turn = Turn::take();
        let dir = self.base_backup();
        let settings = self.settings.clone();
        Self::launch(turn, dir, settings, programs().clone(), None)
    }

    /// At another address of this machine but on the same port, as servers of one DNS name are.
    pub fn replica_at(&self, address: &str) -> Self {
        let turn = Turn::take();
        let dir = self.base_backup();
        let hba = dir.path().join("data/pg_hba.conf");
        let mut rules = std::fs::read_to_string(&hba).expect("read pg_hba.conf");
        rules.push_str(&format!("host all all {address}/32 trust\n"));
        std::fs::write(hba, rules).expect("write pg_hba.conf");
        let mut settings = self.settings.clone();
        settings.push(format!("listen_addresses={address}"));
        Self::launch(turn, dir, settings, programs().clone(), Some(self.port()))
    }

    fn base_backup(&self) -> TempDir {
        let dir = scratch_dir();
        let output = unprivileged(bin("pg_basebackup"))
            .arg("-h")
            .arg(self.socket_dir())
            .args(["-p", &self.port().to_string(), "-U", "postgres"])
            .arg("-D")
            .arg(dir.path().join("data"))
            .args(["-X", "stream", "-c", "fast"])
            .current_dir(dir.path())
            .output()
            .expect("run pg_basebackup");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "pg_basebackup: {said}");
        // `-R` of a newer pg_basebackup writes parameters that the server does not know.
        let data = dir.path().join("data");
        std::fs::write(data.join("standby.signal"), "").expect("write standby.signal");
        let (host, port) = (self.socket_dir().display(), self.port());
        let follows = format!("primary_conninfo = 'host={host} port={port} user=postgres'\n");
        let file = data.join("postgresql.auto.conf");
        let settings = std::fs::read_to_string(&file).expect("read postgresql.auto.conf");
        std::fs::write(file, settings + &follows).expect("write postgresql.auto.conf");
        dir
    }

    /// The server must be shut down and hold nothing that the primary lacks.
    pub fn start_as_replica_of(&mut self, primary: &Self) {
        std::fs::write(self.data().join("standby.signal"), "").expect("write standby.signal");
        let (host, port) = (primary.socket_dir().display(), primary.port());
        self.start_again(&[&format!(
            "primary_conninfo=host={host} port={port} user=postgres"
        )]);
    }

    /// Stops every process of the server (SIGSTOP) until the guard is dropped.
    pub fn freeze(&self) -> Frozen {
        let workers = self.sql("SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid()");
        let workers = workers.concat();
        let workers = workers.iter().filter_map(|pid| pid.parse().ok());
        Frozen::new(workers.chain([self.pid()]))
    }

    /// Makes every later commit wait for this replica.
    pub fn wait_for_synchronous(&self, replica: &Self) {
        self.sql("ALTER SYSTEM SET synchronous_standby_names = '*'");
        self.sql("SELECT pg_reload_conf()");
        machine::wait_until("the replica to be synchronous", || {
            let synchronous = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'";
            self.value(synchronous) == "1"
        });
        // Earlier commits.
        replica.wait_for_replay(self);
    }

    /// Promotes a replica to primary on a new timeline.
    pub fn promote(&self) {
        assert_eq!(self.value("SELECT pg_promote(true, 20)"), "t");
    }

    /// Stops following the primary, so that a promotion loses later writes. A promotion would apply all WAL that was
    /// only paused.
    pub fn stop_following(&self) {
        self.sql("ALTER SYSTEM SET primary_conninfo = ''");
        self.sql("SELECT pg_reload_conf()");
        machine::wait_until("the replica to stop following", || {
            let receivers = self.value("SELECT count(*) FROM pg_stat_wal_receiver");
            receivers == "0"
        });
    }

    /// Waits until everything written so far is applied.
    pub fn wait_for_replay(&self, primary: &Self) {
        let position = primary.value("SELECT pg_current_wal_lsn()");
        let caught_up = format!("SELECT pg_last_wal_replay_lsn() >= '{position}'::pg_lsn");
        machine::wait_until("the replica to catch up", || self.value(&caught_up) == "t");
    }
}

#[derive(Debug)]
pub struct Frozen {
    pids: Vec<u32>,
}

impl Frozen {
    pub(crate) fn new(pids: impl IntoIterator<Item = u32>) -> Self {
        let mut frozen = Self { pids: Vec::new() };
        frozen.stop(pids);
        frozen
    }

    pub(crate) fn stop(&mut self, pids: impl IntoIterator<Item = u32>) {
        for pid in pids {
            machine::signal(pid, Signal::STOP);
            self.pids.push(pid);
        }
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        for pid in &self.pids {
            machine::signal(*pid, Signal::CONT);
        }
    }
}
