//! Each prerequisite of `serve` is broken once: it must not start, and `check` must say so of what is not only this
//! machine's.

use std::fs::{File, Permissions};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use pgpalisade_test_servers::machine::{
    PATIENCE, Signal, free_port, signal, wait_at_most, wait_until, write_secret,
};
use pgpalisade_test_servers::postgres::{Postgres, scratch_dir, unprivileged};
use pgpalisade_test_servers::proxy::{Options, Proxy, binary};
use pgpalisade_test_servers::tls::Authority;

use super::{Settings, fresh_store, text_of};

/// `serve` as a child process, whether it starts or fails.
struct Serve {
    child: Child,
    log: PathBuf,
    _dir: tempfile::TempDir,
}

impl Serve {
    fn start(settings: &Settings) -> Self {
        Self::spawn(settings.command("serve"))
    }

    fn spawn(mut command: Command) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let file = File::create(&log).unwrap();
        command
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            .stdin(Stdio::null());
        Self {
            child: command.spawn().unwrap(),
            log,
            _dir: dir,
        }
    }

    fn output(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    fn wait_until_it_says(&self, part: &str) {
        wait_until(part, || self.output().contains(part));
    }

    /// Its exit status, if it fails to serve.
    #[track_caller]
    fn ends(&mut self) -> ExitStatus {
        let ended = wait_at_most(PATIENCE, || self.child.try_wait().unwrap());
        ended.unwrap_or_else(|| panic!("it serves: {}", self.output()))
    }
}

impl Drop for Serve {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            signal(self.child.id(), Signal::TERM);
            let _status = self.child.wait();
        }
    }
}

/// A broken setup, and the check that must report it, if one does.
struct Broken {
    settings: Settings,
    id: Option<String>,
}

/// Setups broken by flags, with the check that reports them. `taken`: an address in use.
fn by_flags(dir: &Path, authority: &Authority, taken: &str) -> Vec<(Option<String>, Vec<String>)> {
    let pair = authority.issue_local("proxy");
    let file = |name: &str, text: &str, mode: u32| {
        let path = dir.join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        path.display().to_string()
    };
    file(".s.PGSQL.7777", "", 0o600);
    let (certificate, key) = (pair.certificate.display(), pair.key.display());
    let here = dir.display();
    let (short, token) = (file("short", "abc\n", 0o600), "0123456789abcdef\n");
    let open = file("open", token, 0o644);
    let garbage = file("garbage", "garbage", 0o600);
    // "check --policy" reads only that file.
    let policy = |path: &str| format!("policy = \"{path}\"\n");
    let no_policy = file("no_policy.toml", &policy("/nowhere"), 0o600);
    let nonsense = file("nonsense", "nonsense", 0o600);
    let bad_policy = file("bad_policy.toml", &policy(&nonsense), 0o600);
    let (http, tls) = ("files: --http=127.0.0.1:0", "files: --tls-mode=require");
    let tls = format!("{tls} --tls-certificate={certificate}");
    let rows = [
        "--rejection-log=/nowhere/r".to_owned(),
        format!("--rejection-log={here}"),
        format!("--listen={taken}"),
        "--listen=192.0.2.1:6432".to_owned(),
        "--listen=/nowhere".to_owned(),
        format!("--listen={here}:7777"),
        format!("--http={taken}"),
        "--console=/nowhere".to_owned(),
        format!("{http} --http-token-file=/nowhere"),
        format!("{http} --http-token-file={short}"),
        format!("{http} --http-token-file={open}"),
        format!("{http} --http-certificate=/nowhere --http-key={key}"),
        format!("{tls} --tls-key={garbage}"),
        format!("{tls} --tls-key={key} --tls-client-ca=/nowhere"),
        format!("files: --console={here}:7778 --console-auth-file=/nowhere"),
        "logins: --auth=scram --auth-file=/nowhere".to_owned(),
        format!("declare: --config={no_policy}"),
        format!("declare: --config={bad_policy}"),
    ];
    let split = |row: String| {
        let (id, flags) = match row.split_once(": ") {
            Some((id, flags)) => (Some(id.to_owned()), flags),
            None => (None, &*row),
        };
        (id, flags.split(' ').map(str::to_owned).collect())
    };
    rows.into_iter().map(split).collect()
}

/// Setups broken by other settings.
fn by_places(good: &Settings, dir: &Path) -> Vec<Broken> {
    let exposed = dir.join("exposed");
    std::fs::create_dir(&exposed).unwrap();
    std::fs::set_permissions(&exposed, Permissions::from_mode(0o777)).unwrap();
    let occupied = dir.join("occupied");
    std::fs::write(&occupied, "").unwrap();
    let damaged = dir.join("damaged");
    std::fs::create_dir(&damaged).unwrap();
    write_secret(&damaged.join("authority.redb"), "damaged");
    let stores = [Path::new("/proc/authority"), &exposed, &occupied, &damaged];
    let by_store = |store: &Path| Broken {
        settings: good
            .clone()
            .authority(format!("embedded:{}", store.display())),
        id: Some("authority".to_owned()),
    };
    let mut all: Vec<Broken> = stores.into_iter().map(by_store).collect();
    let upstream = format!("{}?sslmode=verify-full&sslrootcert=/nowhere", good.upstream);
    all.push(Broken {
        settings: good.clone().upstream(upstream),
        id: Some("files".to_owned()),
    });
    all
}

#[test]
fn what_is_broken_fails_in_both() {
    let postgres = Postgres::start();
    let (dir, store) = fresh_store();
    let good = Settings::new(&postgres, &store);
    let authority = Authority::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = listener.local_addr().unwrap().to_string();
    let with = |flags: Vec<String>| {
        let flags = flags.iter();
        flags.fold(good.clone(), |settings, flag| settings.flag(flag))
    };
    let by_flags = by_flags(dir.path(), &authority, &taken).into_iter();
    let by_flags = by_flags.map(|(id, flags)| Broken {
        settings: with(flags),
        id,
    });
    let all: Vec<Broken> = by_flags.chain(by_places(&good, dir.path())).collect();
    for Broken { settings, id } in all {
        let place = format!("{id:?} {:?} {}", settings.flags, settings.authority);
        if let Some(id) = &id {
            let checked = settings.check();
            let finding = checked.finding(id);
            assert_eq!(finding["outcome"], "fail", "{place}: {finding:#}");
            assert!(!text_of(finding, "advice").is_empty(), "{place}");
            assert_eq!(checked.code, 1, "{place}");
        }
        let mut serve = Serve::start(&settings);
        // Another start helps as little with a wrong file, so systemd tries none. A missing one may come.
        let may_pass = format!("{place} {}", settings.upstream).contains("/nowhere")
            || place.contains("--http=");
        let code = match id.as_deref() {
            Some("declare") => 2,
            Some("files" | "logins") if !may_pass => 2,
            _ => 1,
        };
        assert_eq!(
            serve.ends().code(),
            Some(code),
            "{place}: {}",
            serve.output()
        );
    }
    assert!(!store.exists());
}

/// A working setup passes in both, before the start and while it runs.
#[test]
fn what_is_whole_is_fine_in_both() {
    let postgres = Postgres::start();
    let (dir, store) = fresh_store();
    let log = dir.path().join("rejections.jsonl");
    let settings = Settings::new(&postgres, &store)
        .flag(&format!("--listen=127.0.0.1:{}", free_port()))
        .flag(&format!("--listen={}", dir.path().display()))
        .flag(&format!("--http=127.0.0.1:{}", free_port()))
        .flag(&format!("--console={}", dir.path().display()))
        .flag(&format!("--rejection-log={}", log.display()));
    settings.check().expect_bad(&["authority"]);
    let left = std::fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(left, 0, "it has made something");
    let serve = Serve::start(&settings);
    serve.wait_until_it_says("listening on");
    settings.check().expect_bad(&[]);
}

/// Root may do everything, so these run as another user.
#[test]
fn missing_rights_fail_in_both() {
    let postgres = Postgres::start();
    let dir = scratch_dir();
    let program = dir.path().join("pgpalisade");
    std::fs::copy(binary(), &program).unwrap();
    std::fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    let closed = scratch_dir();
    std::fs::set_permissions(closed.path(), Permissions::from_mode(0o500)).unwrap();
    let (open, closed) = (dir.path().display(), closed.path().display());
    let missing = format!("{open}/missing");
    let secret = dir.path().join("secret");
    write_secret(&secret, "0123456789abcdef\n");
    std::fs::set_permissions(&secret, Permissions::from_mode(0o000)).unwrap();
    let token = format!("--http-token-file={}", secret.display());
    let store = || format!("{open}/store");
    for (id, store, flags) in [
        ("authority", format!("{closed}/store"), vec![]),
        ("", store(), vec![format!("--rejection-log={closed}/r")]),
        ("", store(), vec![format!("--listen={closed}")]),
        ("", store(), vec![format!("--listen={missing}")]),
        (
            "files",
            store(),
            vec!["--http=127.0.0.1:0".to_owned(), token],
        ),
    ] {
        let mut settings = Settings::new(&postgres, Path::new(&store));
        settings.flags.extend(flags);
        let command = |name: &str| {
            let mut command = unprivileged(&program);
            command.arg(name).args(settings.arguments()).env_clear();
            command.env("PGPALISADE_LISTEN", "127.0.0.1:0");
            command.current_dir(dir.path());
            command
        };
        if !id.is_empty() {
            let output = command("check").arg("--json").output().unwrap();
            let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
            let checks = report["checks"].as_array().unwrap();
            let finding = checks.iter().find(|finding| finding["id"] == id).unwrap();
            assert_eq!(finding["outcome"], "fail", "{finding:#}");
        }
        let mut serve = Serve::spawn(command("serve"));
        assert!(!serve.ends().success(), "{id}: {}", serve.output());
    }
}

/// Both start together after a reboot, in any order.
#[test]
fn serve_waits_for_one_postgresql_too() {
    let mut postgres = Postgres::start();
    let (_dir, store) = fresh_store();
    let settings = Settings::new(&postgres, &store);
    postgres.crash();
    let serve = Serve::start(&settings);
    serve.wait_until_it_says("waiting for the cluster");
    postgres.start_again(&[]);
    serve.wait_until_it_says("listening on");
    drop(serve);
    postgres.crash();
    let mut serve = Serve::start(&settings);
    assert_eq!(serve.ends().code(), Some(1));
    let said = format!(
        "the control connection to 127.0.0.1:{} failed: cannot connect: Connection refused",
        postgres.port()
    );
    assert!(serve.output().contains(&said), "{}", serve.output());
}

/// They share the server's connections.
#[test]
fn proxies_that_are_there_are_counted() {
    let (postgres, marks) = (Postgres::start(), Postgres::start());
    let authority = format!("postgres:{}", marks.admin_dsn());
    let proxy = || Proxy::start_with(Options::new(&postgres).store(authority.clone()));
    let _proxies = [proxy(), proxy()];
    let (_dir, store) = fresh_store();
    let settings = Settings::new(&postgres, &store).authority(authority.clone());
    // 247 connections, and each proxy has a control connection, and two to the store.
    let with = |most: u32| {
        let mut settings = settings.clone();
        settings.flags = vec![format!("--connections-max={most}")];
        settings.check()
    };
    with(120).finds("ok connections: 120, with 2 proxies");
    with(121)
        .finds("warn connections: 121, with 2 proxies -> connections.max to 120 or less for each");
}
