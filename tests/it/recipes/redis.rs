//! Redis: a lock to take the next number under; and why its own counter is not a token.

use std::process::Command;

use pgpalisade_harness::child::Running;
use pgpalisade_test_servers::machine::{free_port, repository, wait_until};
use pgpalisade_test_servers::postgres::{scratch_dir, unprivileged};
use pgpalisade_test_servers::programs::connect_by_environment;
use tempfile::TempDir;

use super::{Candidate, KILL, stage, who_sleeps_is_refused};
use crate::interpreters::python_packages;

/// A server with its data in memory.
struct Redis {
    port: u16,
    _process: Running,
    _dir: TempDir,
}

impl Redis {
    fn start() -> Self {
        let (dir, port) = (scratch_dir(), free_port());
        let mut command = unprivileged("redis-server");
        command
            .args(["--bind", "127.0.0.1", "--save", "", "--port"])
            .arg(port.to_string())
            .arg("--dir")
            .arg(dir.path())
            .current_dir(dir.path());
        let process = Running::spawn(&mut command, dir.path().join("log"), KILL).unwrap();
        let redis = Self {
            port,
            _process: process,
            _dir: dir,
        };
        wait_until("Redis to answer", || redis.says("PING") == "PONG");
        redis
    }

    /// Reply to a command.
    fn says(&self, command: &str) -> String {
        let mut cli = Command::new("redis-cli");
        cli.arg("-p")
            .arg(self.port.to_string())
            .args(command.split(' '));
        let answer = cli.output().unwrap().stdout;
        String::from_utf8_lossy(&answer).trim().to_owned()
    }
}

#[test]
fn a_lock_of_redis_takes_the_next_number() {
    let (stage, redis) = (stage(), Redis::start());
    let url = format!("redis://127.0.0.1:{}", redis.port);
    let start = |name| Candidate::start(name, "redis_lock.py", &[&url], &stage.proxy.endpoint());
    assert_eq!(who_sleeps_is_refused(&stage, start), [1, 2]);
}

#[test]
fn a_beat_of_redbeat_takes_the_next_number() {
    let celery = python_packages("examples/requirements.txt", "celery").join("celery");
    let (stage, redis) = (stage(), Redis::start());
    let start = |name| {
        let mut command = Command::new(&celery);
        command
            .args(["-A", "redbeat_beat", "beat", "--pidfile="])
            .env("PYTHONPATH", repository().join("examples"))
            .env("PYTHONUNBUFFERED", "1")
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("REDIS", format!("redis://127.0.0.1:{}", redis.port))
            .env("PGAPPNAME", name);
        connect_by_environment(&mut command, &stage.proxy.endpoint());
        Candidate::spawn(name, command)
    };
    assert_eq!(who_sleeps_is_refused(&stage, start), [1, 2]);
}

/// A standby without the last INCR is promoted: a number is given twice, and both holders are admitted. A leader that
/// takes the number after the mark cannot get one in use.
#[test]
fn a_counter_of_redis_gives_a_number_twice() {
    let (primary, standby) = (Redis::start(), Redis::start());
    standby.says(&format!("REPLICAOF 127.0.0.1 {}", primary.port));
    assert_eq!(primary.says("INCR token"), "1");
    wait_until("the standby", || standby.says("GET token") == "1");
    // It loses its primary.
    assert_eq!(
        standby.says(&format!("REPLICAOF 127.0.0.1 {}", free_port())),
        "OK"
    );
    let first = primary.says("INCR token");
    drop(primary);
    assert_eq!(standby.says("REPLICAOF NO ONE"), "OK");
    let second = standby.says("INCR token");
    assert_eq!([&*first, &*second], ["2", "2"]);

    let stage = stage();
    let mut leaders = [stage.leader(&first), stage.leader(&second)];
    for leader in &mut leaders {
        leader.ok("INSERT INTO jobs (name) VALUES ('invoice')");
    }
    let mut third = stage.plain();
    assert_eq!(third.rows("SHOW fencing.mark"), [["2"]]);
    third.ok("SET fencing.token = 'after:2'");
    for leader in &mut leaders {
        let answer = leader.query("INSERT INTO jobs (name) VALUES ('invoice')");
        assert_eq!(answer.first().unwrap().sqlstate(), "PF001");
    }
}
