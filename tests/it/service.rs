//! The proxy as a service: messages to systemd, reloads by SIGHUP, and the unit file.

use std::fs::{OpenOptions, Permissions};
use std::io::{ErrorKind, IoSliceMut, Write as _};
use std::mem::MaybeUninit;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use pgpalisade_test_servers::machine::{
    PATIENCE, Signal, reap, repository, signal, wait_for, wait_until,
};
use pgpalisade_test_servers::policy::PolicyFile;
use pgpalisade_test_servers::postgres::{Postgres, scratch_dir};
use pgpalisade_test_servers::proxy::{Options, Proxy, binary, subcommand};
use pgpalisade_test_servers::stage::Stage;
use pgpalisade_test_servers::wire::{Batch, Wire, errors};
use rustix::fs::OFlags;
use rustix::net::sockopt::set_socket_passcred;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use tempfile::TempDir;

/// systemd's end of a `NOTIFY_SOCKET`.
struct Manager {
    socket: UnixDatagram,
    dir: TempDir,
}

impl Manager {
    fn new() -> Self {
        let dir = scratch_dir();
        let socket = UnixDatagram::bind(dir.path().join("notify")).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        set_socket_passcred(&socket, true).unwrap();
        Self { socket, dir }
    }

    fn path(&self) -> String {
        self.dir.path().join("notify").display().to_string()
    }

    /// Next message that is not from the watchdog.
    fn told(&self) -> String {
        loop {
            let (_, text) = self.hear();
            if text.trim() != "WATCHDOG=1" {
                return text;
            }
        }
    }

    /// Next message, and its sender's pid.
    fn hear(&self) -> (u32, String) {
        let (mut buffer, mut space) = ([0; 1024], [MaybeUninit::uninit(); 256]);
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let into = &mut [IoSliceMut::new(&mut buffer)];
        let received = recvmsg(&self.socket, into, &mut ancillary, RecvFlags::empty()).unwrap();
        let pid = ancillary.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmCredentials(sender) => Some(sender.pid),
            _ => None,
        });
        let pid = pid.unwrap().as_raw_nonzero().get();
        let text = String::from_utf8_lossy(&buffer[..received.bytes]).into_owned();
        (u32::try_from(pid).unwrap(), text)
    }
}

#[test]
fn systemd_is_told_of_start_reload_and_end() {
    let manager = Manager::new();
    let postgres = Postgres::start();
    let policy = PolicyFile::new("");
    let options = Options::new(&postgres)
        .policy(&policy)
        .variable("NOTIFY_SOCKET", &manager.path());
    let mut proxy = Proxy::start_with(options);
    assert_eq!(manager.told().trim(), "READY=1");
    // When it reports the reload, the new settings are in force.
    policy.write("nonsense");
    signal(proxy.pid(), Signal::HUP);
    let told = manager.told();
    let since = told
        .lines()
        .find_map(|line| line.strip_prefix("MONOTONIC_USEC="));
    assert!(told.contains("RELOADING=1") && since.is_some(), "{told}");
    assert_eq!(manager.told().trim(), "READY=1");
    let is_logged = || {
        proxy
            .output()
            .contains("the policy file is not valid")
            .then_some(())
    };
    wait_for("the log", is_logged);
    proxy.terminate();
    assert_eq!(manager.told().trim(), "STOPPING=1");
    // Without a watchdog no messages are sent to it.
    manager.socket.set_nonblocking(true).unwrap();
    let nothing = manager.socket.recv(&mut [0; 64]).unwrap_err();
    assert_eq!(nothing.kind(), ErrorKind::WouldBlock);
}

#[test]
fn the_watchdog_is_fed_as_long_as_it_runs() {
    let manager = Manager::new();
    let postgres = Postgres::start();
    let options = Options::new(&postgres)
        .variable("NOTIFY_SOCKET", &manager.path())
        .variable("WATCHDOG_USEC", "200000");
    let proxy = Proxy::start_with(options);
    let fed = || {
        let mut buffer = [0; 64];
        let len = manager.socket.recv(&mut buffer)?;
        Ok::<_, std::io::Error>(buffer[..len].starts_with(b"WATCHDOG=1"))
    };
    wait_until("five times", || (0..5).all(|_| fed().unwrap()));
    // A hanging proxy sends none.
    proxy.pause();
    manager.socket.set_nonblocking(true).unwrap();
    while fed().is_ok() {}
    std::thread::sleep(Duration::from_millis(500));
    assert!(fed().is_err());
    proxy.resume();
}

/// Also the workers, which have an open transaction.
#[test]
fn a_second_signal_ends_it_at_once() {
    let mut stage = Stage::with_flags("", &[("--shutdown-grace", "1h")]);
    let mut open = stage.plain();
    open.ok("BEGIN");
    signal(stage.proxy.pid(), Signal::TERM);
    wait_until("the first signal", || {
        stage.proxy.output().contains("shutting down")
    });
    let status = stage.proxy.terminate();
    assert_eq!(status.code(), Some(1));
    let output = stage.proxy.output();
    assert!(
        output.ends_with("stopped at once by a second signal\n"),
        "{output}"
    );
    assert!(!output.contains("panicked"), "{output}");
}

/// A closed socket alone would look like a transaction that was rolled back.
#[test]
fn who_outlasts_the_grace_is_told_why() {
    for pool in ["session", "transaction"] {
        let flags = [("--pool", pool), ("--shutdown-grace", "1s")];
        let stage = Stage::with_flags("CREATE TABLE jobs (id int)", &flags);
        let mut leader = stage.leader("34");
        let [mut open, mut begun] = [(); 2].map(|()| stage.plain());
        leader.ok("BEGIN");
        leader.ok("INSERT INTO jobs VALUES (1)");
        open.ok("BEGIN; SELECT 1");
        begun.ok("BEGIN");
        let postgres = &stage.postgres;
        postgres.sql("ALTER SYSTEM SET synchronous_standby_names = 'nobody'");
        postgres.sql("SELECT pg_reload_conf()");
        wait_until("nobody to be waited for", || {
            postgres.value("SHOW synchronous_standby_names") == "nobody"
        });
        leader.send(&Batch::new().query("COMMIT"));
        wait_until("COMMIT to wait for nobody", || {
            let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
            postgres.value(waiting) == "1"
        });
        signal(stage.proxy.pid(), Signal::TERM);
        let said = |client: &mut Wire| errors(&client.until_closed());
        assert_eq!(said(&mut leader), ["08007"], "{pool}");
        for client in [&mut open, &mut begun] {
            assert_eq!(said(client), ["57P01"], "{pool}");
        }
        wait_until("its end", || stage.proxy.output().contains("\"stopped\""));
    }
}

/// After an upgrade systemd supervises the new process. It feeds the watchdog, though the environment names the
/// process that started it, which no longer does.
#[test]
fn systemd_is_told_of_an_upgrade() {
    let manager = Manager::new();
    let postgres = Postgres::start();
    let starter = manager.dir.path().join("starter");
    let as_systemd = "#!/bin/sh\nWATCHDOG_PID=$$ exec \"$PROGRAM\" \"$@\"\n";
    std::fs::write(&starter, as_systemd).unwrap();
    std::fs::set_permissions(&starter, Permissions::from_mode(0o755)).unwrap();
    let mut options = Options::new(&postgres)
        .variable("NOTIFY_SOCKET", &manager.path())
        .variable("WATCHDOG_USEC", "1000000")
        .variable("PROGRAM", &binary().display().to_string());
    options.binary = Some(starter);
    let mut proxy = Proxy::start_with(options);
    assert_eq!(manager.told().trim(), "READY=1");
    signal(proxy.pid(), Signal::USR2);
    let told = manager.told();
    let main_pid = told.trim().strip_prefix("MAINPID=");
    let new = main_pid.and_then(|pid| pid.parse().ok()).expect("MAINPID");
    assert_eq!(manager.told().trim(), "READY=1");
    // The old one ends by itself and sends nothing more.
    for _ in 0..5 {
        let (sender, text) = manager.hear();
        assert_eq!((sender, text.trim()), (new, "WATCHDOG=1"));
    }
    wait_until("the end of the old process", || {
        proxy.output().contains("stopped")
    });
    signal(new, Signal::TERM);
    assert_eq!(manager.told().trim(), "STOPPING=1");
    assert!(proxy.terminate().success());
}

/// As by logrotate at boot.
#[test]
fn a_reload_asked_for_during_the_start_ends_nothing() {
    let dir = scratch_dir();
    let policy = dir.path().join("policy");
    let made = Command::new("mkfifo").arg(&policy).status().unwrap();
    assert!(made.success());
    let mut serve = subcommand("serve");
    serve.args([
        "--listen",
        "127.0.0.1:0",
        "--upstream",
        "postgres://127.0.0.1:1",
    ]);
    serve.arg(format!("--authority=embedded:{}", dir.path().display()));
    let mut child = serve.arg("--policy").arg(&policy).spawn().unwrap();
    // A pipe without a reader cannot be opened so.
    let mut pipe = OpenOptions::new();
    pipe.write(true)
        .custom_flags(OFlags::NONBLOCK.bits().cast_signed());
    let mut read = wait_for("the proxy to read its policy", || pipe.open(&policy).ok());
    signal(child.id(), Signal::HUP);
    read.write_all(b"\n").unwrap();
    drop(read);
    signal(child.id(), Signal::TERM);
    let ended = reap(&mut child, PATIENCE);
    assert!(ended.code().is_some(), "{ended}");
}

/// Without systemd the proxy does not wait for it, and one without a policy is also ready again.
#[test]
fn a_reload_says_what_needs_a_restart() {
    let manager = Manager::new();
    let postgres = Postgres::start();
    let file = manager.dir.path().join("pgpalisade.toml");
    let write = |text: &str| std::fs::write(&file, text).unwrap();
    write("workers = 1\n[takeover]\ntimeout = \"5s\"\n");
    let options = Options::new(&postgres)
        .flag("--config", &file.display().to_string())
        .variable("NOTIFY_SOCKET", &manager.path());
    let proxy = Proxy::start_with(options);
    manager.told();
    let reload = |text: &str| {
        write(text);
        signal(proxy.pid(), Signal::HUP);
        assert!(manager.told().contains("RELOADING=1"));
        assert_eq!(manager.told().trim(), "READY=1");
    };
    let says = |part: &str| {
        wait_until(part, || proxy.output().contains(part));
    };
    reload("workers = 1\n[takeover]\ntimeout = \"5s\"\n");
    // PGPALISADE_SHUTDOWN_GRACE overrides the file, and 5s is the default of takeover.timeout.
    reload("workers = 2\n[shutdown]\ngrace = \"9s\"\n[connections]\nmax = 7\n");
    says("(SIGUSR2): connections.max, workers\"");
    reload("workers = \"many\"\nlisten = \"nonsense\"\n");
    says("a restart would fail");
    says("\\\"nonsense\\\" is not an address to listen on");
    reload("workers = 1\n");
    reload("workers = 3\n");
    says("(SIGUSR2): workers\"");
    assert_eq!(
        proxy.output().matches("these keys need a restart").count(),
        2
    );
}

/// If systemd is installed, it analyses the unit.
#[test]
fn the_unit_file_is_sound_and_strict() {
    let stage = Stage::start();
    let unit = repository().join("packaging/pgpalisade.service");
    let text = std::fs::read_to_string(unit).unwrap();
    let dir = scratch_dir();
    let file = dir.path().join("pgpalisade.service");
    // The tests' binary is elsewhere.
    let program: PathBuf = std::fs::read_link(format!("/proc/{}/exe", stage.proxy.pid())).unwrap();
    let program = program.display().to_string();
    std::fs::write(
        &file,
        text.replace("ExecStart=pgpalisade", &format!("ExecStart={program}")),
    )
    .unwrap();
    let analyze = |arguments: &[&str]| {
        let mut command = Command::new("systemd-analyze");
        command.args(arguments).arg(&file).output()
    };
    let verified = match analyze(&["verify", "--man=no"]) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            println!("systemd-analyze is not installed");
            return;
        }
        other => other.unwrap(),
    };
    let said = String::from_utf8_lossy(&verified.stderr).into_owned();
    let about_it = said
        .lines()
        .filter(|line| line.contains("pgpalisade.service"));
    assert_eq!(about_it.collect::<Vec<_>>(), Vec::<&str>::new());
    assert!(verified.status.success(), "{said}");
    let strict = analyze(&["security", "--offline=true", "--threshold=15"]).unwrap();
    let said = String::from_utf8_lossy(&strict.stdout).into_owned();
    assert!(strict.status.success(), "{said}");
}
