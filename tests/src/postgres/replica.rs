//! A streaming replica of a server, and its promotion.

use super::program::{bin, programs, scratch_dir, unprivileged};
use super::{Postgres, Turn};
use crate::machine;

impl Postgres {
    /// Starts a replica that follows this server. It lives on its own, whatever becomes of this one.
    pub fn replica(&self) -> Self {
        let turn = Turn::take();
        let dir = scratch_dir();
        let output = unprivileged(bin("pg_basebackup"))
            .arg("-h")
            .arg(self.socket_dir())
            .args(["-p", &self.port().to_string(), "-U", "postgres"])
            .arg("-D")
            .arg(dir.path().join("data"))
            .args(["-R", "-X", "stream", "-c", "fast"])
            .current_dir(dir.path())
            .output()
            .expect("run pg_basebackup");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "pg_basebackup: {said}");
        Self::launch(turn, dir, self.settings.clone(), programs().clone())
    }

    /// Confirms nothing from now on that this replica does not have, as a store needs it that fails over.
    pub fn wait_for_synchronous(&self, replica: &Self) {
        self.sql("ALTER SYSTEM SET synchronous_standby_names = '*'");
        self.sql("SELECT pg_reload_conf()");
        machine::wait_for("the replica to be synchronous", || {
            let synchronous = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'";
            (self.value(synchronous) == "1").then_some(())
        });
        // What was confirmed before that.
        replica.wait_for_replay(self);
    }

    /// Makes a replica the primary of a new timeline.
    pub fn promote(&self) {
        assert_eq!(self.value("SELECT pg_promote(true, 20)"), "t");
    }

    /// Stops following the primary, so that a promotion loses what it writes from now on. Pausing the replay would not
    /// do: a promotion applies what was received.
    pub fn stop_following(&self) {
        self.sql("ALTER SYSTEM SET primary_conninfo = ''");
        self.sql("SELECT pg_reload_conf()");
        machine::wait_for("the replica to stop following", || {
            let receivers = self.value("SELECT count(*) FROM pg_stat_wal_receiver");
            (receivers == "0").then_some(())
        });
    }

    /// Waits until everything that the primary has written so far is applied.
    pub fn wait_for_replay(&self, primary: &Self) {
        let position = primary.value("SELECT pg_current_wal_lsn()");
        let caught_up = format!("SELECT pg_last_wal_replay_lsn() >= '{position}'::pg_lsn");
        machine::wait_for("the replica to catch up", || {
            (self.value(&caught_up) == "t").then_some(())
        });
    }
}
