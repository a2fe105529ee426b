//! A new process takes over the listeners of the old one (SIGUSR2), and no connection is refused.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use pgpalisade_harness::child::{Running, TERM};
use pgpalisade_test_servers::etcd::Etcd;
use pgpalisade_test_servers::http::Http;
use pgpalisade_test_servers::machine::{
    Signal, free_port, signal, wait_at_most, wait_for, wait_until,
};
use pgpalisade_test_servers::postgres::{Auth, Postgres, scratch_dir};
use pgpalisade_test_servers::proxy::{Options, Proxy, subcommand};
use pgpalisade_test_servers::stage::leader;
use pgpalisade_test_servers::wire::{Batch, Endpoint, PROTOCOL_3_0, Wire, cancel_request, pretty};

const SETUP: &str = "CREATE TABLE jobs (id int)";
const TAKEN: &str = "the new process has taken over";
const FAILED: &str = "no new process has taken over";

/// Processes of one proxy, in order. The first is a child of the test, each other one of its predecessor.
struct Line {
    pids: Vec<u32>,
    proxy: Proxy,
}

impl Line {
    fn start(options: Options) -> Self {
        let proxy = Proxy::start_with(options.flag("--shutdown-grace", "20s"));
        Self {
            pids: vec![proxy.pid()],
            proxy,
        }
    }

    fn pid(&self) -> u32 {
        self.pids[self.pids.len() - 1]
    }

    fn ask(&self) {
        signal(self.pid(), Signal::USR2);
    }

    /// Waits until a new process has taken over, and returns the old one's pid.
    fn upgrade(&mut self) -> u32 {
        let old = self.pid();
        self.ask();
        let line = wait_for("a new process", || {
            let output = self.proxy.output();
            let mut taken = output.lines().filter(|line| line.contains(TAKEN));
            taken.nth(self.pids.len() - 1).map(str::to_owned)
        });
        let line: serde_json::Value = serde_json::from_str(&line).unwrap();
        let pid = line["pid"].as_u64().unwrap();
        self.pids.push(u32::try_from(pid).unwrap());
        old
    }

    fn endpoint(&self) -> Endpoint {
        self.proxy.endpoint()
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        for pid in self.pids.iter().skip(1) {
            signal(*pid, Signal::TERM);
            if wait_at_most(Duration::from_secs(15), || ended(*pid)).is_none() {
                signal(*pid, Signal::KILL);
            }
        }
    }
}

/// Ended, or not reaped by its parent.
fn ended(pid: u32) -> Option<()> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let state = status.lines().find(|line| line.starts_with("State:"));
    state.is_none_or(|line| line.contains('Z')).then_some(())
}

/// Clients that connect continuously, each for one transaction.
struct Storm {
    over: Arc<AtomicBool>,
    committed: Arc<AtomicUsize>,
    clients: Vec<JoinHandle<Duration>>,
}

impl Storm {
    fn begin(endpoint: &Endpoint, clients: usize) -> Self {
        let (over, committed) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let client = |_| {
            let (over, committed) = (Arc::clone(&over), Arc::clone(&committed));
            let endpoint = endpoint.clone();
            std::thread::spawn(move || {
                let mut longest = Duration::ZERO;
                while !over.load(Ordering::Relaxed) {
                    let begun = Instant::now();
                    let mut wire = leader(&endpoint, "1");
                    longest = longest.max(begun.elapsed());
                    wire.ok("BEGIN");
                    wire.ok("INSERT INTO jobs VALUES (0)");
                    wire.ok("COMMIT");
                    wire.send(&Batch::new().terminate());
                    committed.fetch_add(1, Ordering::Relaxed);
                    std::thread::sleep(Duration::from_millis(10));
                }
                longest
            })
        };
        let clients = (0..clients).map(client).collect();
        Self {
            over,
            committed,
            clients,
        }
    }

    /// Number of transactions, all of which must succeed, and the longest login.
    fn end(self) -> (usize, Duration) {
        self.over.store(true, Ordering::Relaxed);
        let ends = self
            .clients
            .into_iter()
            .map(|client| client.join().unwrap());
        let longest = ends.max().unwrap_or_default();
        (self.committed.load(Ordering::Relaxed), longest)
    }
}

/// Sessions, each in a transaction that has written.
fn open_transactions(endpoint: &Endpoint, count: usize) -> Vec<Wire> {
    let open = |_| {
        let mut wire = leader(endpoint, "1");
        wire.ok("BEGIN");
        wire.ok("INSERT INTO jobs VALUES (1)");
        wire
    };
    (0..count).map(open).collect()
}

fn shared(postgres: &Postgres, etcd: &Etcd) -> Options {
    Options::new(postgres).store(etcd.authority())
}

#[test]
fn nobody_is_refused_and_no_transaction_fails() {
    let postgres = Postgres::start_with(Auth::Trust, &["max_connections=600"]);
    postgres.sql(SETUP);
    let etcd = Etcd::start(1);
    let mut line = Line::start(shared(&postgres, &etcd));
    let storm = Storm::begin(&line.endpoint(), 2);
    let mut inserted = 0;
    for count in [500, 20, 20] {
        let mut open = open_transactions(&line.endpoint(), count);
        let old = line.upgrade();
        for wire in &mut open {
            wire.ok("INSERT INTO jobs VALUES (1)");
            wire.ok("COMMIT");
        }
        drop(open);
        wait_for("the end of the old process", || ended(old));
        inserted += 2 * count;
        let rows = postgres.sql("SELECT count(*) FROM jobs WHERE id = 1");
        assert_eq!(rows[0][0], inserted.to_string());
    }
    let (committed, longest) = storm.end();
    println!("{committed} connections, the longest login {longest:?}");
    assert!(committed > 20, "{committed}");
    let rows = postgres.sql("SELECT count(*) FROM jobs WHERE id = 0");
    assert_eq!(rows[0][0], committed.to_string());
}

/// The new process opens the store once the old one has ended: until then new connections wait.
#[test]
fn with_an_embedded_store_new_connections_wait() {
    let postgres = Postgres::start();
    postgres.sql(SETUP);
    let mut line = Line::start(Options::new(&postgres));
    let storm = Storm::begin(&line.endpoint(), 4);
    for _ in 0..2 {
        let mut open = open_transactions(&line.endpoint(), 20);
        let old = line.upgrade();
        let waiting = Storm::begin(&line.endpoint(), 1);
        std::thread::sleep(Duration::from_secs(3));
        assert!(ended(old).is_none());
        assert_eq!(waiting.committed.load(Ordering::Relaxed), 0);
        for wire in &mut open {
            wire.ok("COMMIT");
        }
        wait_for("the end of the old process", || ended(old));
        wait_until("a connection that has waited", || {
            waiting.committed.load(Ordering::Relaxed) > 0
        });
        waiting.end();
    }
    let (committed, longest) = storm.end();
    println!("{committed} connections, the longest login {longest:?}");
    let rows = postgres.sql("SELECT count(*) FROM jobs WHERE id = 1");
    assert_eq!(rows[0][0], "40");
}

/// Metrics and health move as well, while the old process still waits for a transaction.
#[test]
fn http_is_answered_by_the_new_process() {
    let postgres = Postgres::start();
    postgres.sql(SETUP);
    let etcd = Etcd::start(1);
    let http = Http::free();
    let options = http.options(&postgres).store(etcd.authority());
    let mut line = Line::start(options);
    // `None`: the old process has accepted the connection, and closed it.
    let started = || -> Option<f64> {
        let request = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";
        let answer = http.send(request).ok()?;
        let mut lines = answer.lines();
        let value = lines.find_map(|line| line.strip_prefix("process_start_time_seconds "))?;
        value.parse().ok()
    };
    let before = started().unwrap();
    let mut open = open_transactions(&line.endpoint(), 1);
    let old = line.upgrade();
    wait_for("the new process to answer", || {
        started().filter(|since| *since > before)
    });
    assert_eq!(http.get("/readyz").status, 200);
    assert!(ended(old).is_none());
    open[0].ok("COMMIT");
}

/// Silent clients that the old process has accepted are served by it, for one transaction. Idle ones must reconnect.
#[test]
fn who_has_just_connected_is_served_by_the_old_process() {
    let postgres = Postgres::start();
    postgres.sql(SETUP);
    let etcd = Etcd::start(1);
    let mut line = Line::start(shared(&postgres, &etcd));
    let mut idle = leader(&line.endpoint(), "1");
    let mut newcomer = Wire::connect(&line.endpoint());
    let old = line.upgrade();
    std::thread::sleep(Duration::from_millis(1500));
    newcomer.startup(
        PROTOCOL_3_0,
        &[("user", "postgres"), ("fencing.token", "1")],
    );
    let answer = newcomer.until_ready();
    assert_eq!(answer[answer.len() - 1].tag, b'Z', "{}", pretty(&answer));
    newcomer.ok("BEGIN");
    newcomer.ok("INSERT INTO jobs VALUES (1)");
    let told = idle.until_closed();
    assert_eq!(told[0].sqlstate(), "57P01", "{}", pretty(&told));
    assert!(ended(old).is_none());
    newcomer.ok("COMMIT");
    wait_for("the end of the old process", || ended(old));
}

/// The new process fences the sessions of the old one, and cancel requests reach them through it.
#[test]
fn sessions_of_the_old_process_are_within_reach_of_the_new_one() {
    let postgres = Postgres::start();
    postgres.sql(SETUP);
    let etcd = Etcd::start(1);
    let mut line = Line::start(shared(&postgres, &etcd));
    let mut open = open_transactions(&line.endpoint(), 2);
    let old = line.upgrade();
    wait_until("the end of the old listeners", || {
        let accepting = "waiting for open transactions";
        line.proxy.output().contains(accepting)
    });
    let mut slow = open.remove(0);
    slow.send(&Batch::new().query("SELECT pg_sleep(30)"));
    wait_until("the statement", || {
        let running = "SELECT 1 FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%'";
        !postgres.sql(running).is_empty()
    });
    Wire::connect(&line.endpoint()).send_bytes(&cancel_request(slow.backend_key()));
    let answer = slow.until_ready();
    assert!(pretty(&answer).contains("57014"), "{}", pretty(&answer));
    slow.ok("ROLLBACK");
    let mut new = leader(&line.endpoint(), "2");
    new.ok("INSERT INTO jobs VALUES (2)");
    open[0].fails("COMMIT", "PF001");
    wait_for("the end of the old process", || ended(old));
    assert_eq!(postgres.sql("SELECT id FROM jobs").concat(), ["2"]);
}

/// Whether a process handles SIGTERM itself, which it does before its start begins.
fn listens_to_signals(pid: u32) -> Option<()> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let caught = status
        .lines()
        .find_map(|line| line.strip_prefix("SigCgt:"))?;
    let caught = u64::from_str_radix(caught.trim(), 16).ok()?;
    (caught & (1 << (Signal::TERM.as_raw() - 1)) != 0).then_some(())
}

/// Ending the new process while it starts cancels the upgrade.
#[test]
fn a_signal_calls_an_upgrade_off() {
    let postgres = Postgres::start();
    postgres.sql(SETUP);
    let etcd = Etcd::start(1);
    let mut line = Line::start(shared(&postgres, &etcd));
    let mut open = open_transactions(&line.endpoint(), 1);
    for (round, ends_with) in [Signal::TERM, Signal::INT].into_iter().enumerate() {
        // New connections are impossible, so the new process cannot finish its start.
        signal(postgres.pid(), Signal::STOP);
        line.ask();
        let new = wait_for("a new process", || {
            let output = line.proxy.output();
            let mut started = output
                .lines()
                .filter(|line| line.contains("a new process starts"));
            let told: serde_json::Value = serde_json::from_str(started.nth(round)?).unwrap();
            u32::try_from(told["pid"].as_u64()?).ok()
        });
        wait_for("its signals", || listens_to_signals(new));
        signal(new, ends_with);
        // Sooner than its connection times out.
        let called_off = wait_at_most(Duration::from_secs(3), || {
            (line.proxy.output().matches(FAILED).count() == round + 1).then_some(())
        });
        signal(postgres.pid(), Signal::CONT);
        assert!(called_off.is_some(), "{}", line.proxy.output());
        leader(&line.endpoint(), "1").ok("INSERT INTO jobs VALUES (1)");
    }
    let old = line.upgrade();
    open[0].ok("COMMIT");
    wait_for("the end of the old process", || ended(old));
}

/// A start waits for PostgreSQL, and for its store: signals are handled meanwhile.
#[test]
fn a_signal_ends_a_start() {
    let postgres = Postgres::start();
    let mut proxy = Proxy::start(&postgres);
    proxy.terminate();
    let hanging = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let etcd = format!("etcd:http://{}", hanging.local_addr().unwrap());
    for store in [format!("embedded:{}", proxy.store().display()), etcd] {
        let mut command = subcommand("serve");
        command
            .args(["--listen", &format!("127.0.0.1:{}", free_port())])
            .args([
                "--upstream",
                &format!("postgres://127.0.0.1:{}", postgres.port()),
            ])
            .args(["--control", &postgres.admin_dsn(), "--authority", &store]);
        signal(postgres.pid(), Signal::STOP);
        let dir = scratch_dir();
        let mut process = Running::spawn(&mut command, dir.path().join("log"), TERM).unwrap();
        wait_for("its signals", || listens_to_signals(process.pid()));
        signal(process.pid(), Signal::TERM);
        let ended = process.wait(Duration::from_secs(2));
        signal(postgres.pid(), Signal::CONT);
        assert!(
            ended.is_some_and(|status| status.success()),
            "{store}: {}",
            process.output()
        );
    }
}

/// With an embedded store the old process is told to end before the new one can open it. Visible errors are found
/// before that.
#[test]
fn an_embedded_store_that_cannot_be_opened_stops_nobody() {
    let postgres = Postgres::start();
    postgres.sql(SETUP);
    let line = Line::start(Options::new(&postgres));
    let permissions =
        |mode| std::fs::set_permissions(line.proxy.store(), Permissions::from_mode(mode)).unwrap();
    permissions(0o777);
    line.ask();
    wait_until("the failure", || line.proxy.output().contains(FAILED));
    permissions(0o700);
    leader(&line.endpoint(), "1").ok("INSERT INTO jobs VALUES (1)");
}

/// A new process that cannot serve changes nothing, whichever store there is.
#[test]
fn the_old_process_goes_on_where_the_new_one_fails() {
    let postgres = Postgres::start();
    postgres.sql(SETUP);
    let dir = scratch_dir();
    let file = dir.path().join("pgpalisade.toml");
    std::fs::write(&file, "workers = 1\n").unwrap();
    let listen = format!("{}:7777", dir.path().display());
    let options = Options::new(&postgres)
        .flag("--listen", &listen)
        .flag("--config", &file.display().to_string());
    let mut line = Line::start(options);
    let socket = Endpoint::Unix(dir.path().join(".s.PGSQL.7777"));
    let lock = dir.path().join(".s.PGSQL.7777.lock");
    let mut open = open_transactions(&socket, 1);
    std::fs::write(&file, "workers = \"many\"\n").unwrap();
    for round in 1..=2 {
        line.ask();
        wait_until("the failure", || {
            let failures = line.proxy.output().matches(FAILED).count();
            failures == round
        });
    }
    for endpoint in [&socket, &line.endpoint()] {
        leader(endpoint, "1").ok("INSERT INTO jobs VALUES (1)");
    }
    // Once it can be read again, the new process also owns the socket's files, and removes them at its end.
    std::fs::write(&file, "workers = 2\n").unwrap();
    let old = line.upgrade();
    open[0].ok("COMMIT");
    wait_for("the end of the old process", || ended(old));
    let owner = std::fs::read_to_string(&lock).unwrap();
    assert_eq!(owner.trim(), line.pid().to_string());
    leader(&socket, "1").ok("INSERT INTO jobs VALUES (1)");
    signal(line.pid(), Signal::TERM);
    wait_for("the end of the new process", || ended(line.pid()));
    assert!(!lock.exists());
    assert!(Wire::try_connect(&socket).is_err());
}
