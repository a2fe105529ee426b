//! Clients that connect by a unix socket, and ownership of that socket.

use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::PathBuf;
use std::time::Duration;

use pgpalisade_test_servers::policy::PolicyFile;
use pgpalisade_test_servers::postgres::{Postgres, scratch_dir};
use pgpalisade_test_servers::programs::{feed, program, stdout};
use pgpalisade_test_servers::proxy::{Options, Proxy, subcommand};
use pgpalisade_test_servers::tls::Authority;
use pgpalisade_test_servers::wire::{Batch, Endpoint, SSL_REQUEST, TRUSTED, Wire};
use tempfile::TempDir;

/// A directory, and options for proxies in it.
struct Scene {
    dir: TempDir,
    postgres: Postgres,
}

impl Scene {
    fn new() -> Self {
        Self {
            dir: scratch_dir(),
            postgres: Postgres::start(),
        }
    }

    fn options(&self) -> Options {
        let dir = format!("{}:7777", self.dir.path().display());
        Options::new(&self.postgres).flag("--listen", &dir)
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join(".s.PGSQL.7777")
    }

    fn endpoint(&self) -> Endpoint {
        Endpoint::Unix(self.socket())
    }

    fn files(&self) -> usize {
        std::fs::read_dir(self.dir.path()).unwrap().count()
    }

    /// Error of a proxy that cannot start here.
    fn refused(&self) -> String {
        let options = self.options();
        let mut second = subcommand("serve");
        second.args([
            "--upstream",
            &options.upstream,
            "--control",
            &options.control,
        ]);
        // The store is never opened; and nobody may create this directory.
        second.args(["--authority", "embedded:/proc/authority"]);
        let output = second.args(&options.flags).output().unwrap();
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    }
}

#[test]
fn psql_comes_through_it() {
    let scene = Scene::new();
    let mut proxy = Proxy::start_with(scene.options());
    let output = feed(program("psql", &scene.endpoint()), "SELECT 'served'");
    assert!(stdout(&output).contains("served"), "{output:?}");
    assert!(
        proxy
            .output()
            .contains(&scene.socket().display().to_string())
    );
    // As with PostgreSQL's own: the directory says who may connect.
    let metadata = std::fs::metadata(scene.socket()).unwrap();
    assert!(metadata.file_type().is_socket());
    assert_eq!(metadata.permissions().mode() & 0o777, 0o777);
    assert_eq!(scene.files(), 2);
    // Running transactions end as on any other listener, and nothing is left behind.
    let mut wire = Wire::login(&scene.endpoint(), &TRUSTED);
    wire.ok("SELECT 1");
    assert!(proxy.terminate().success());
    assert_eq!(scene.files(), 0);
    assert!(Wire::try_connect(&scene.endpoint()).is_err());
}

/// As in `pg_hba.conf`, no network contains it, and TLS is for networks.
#[test]
fn its_clients_are_in_no_network_and_need_no_tls() {
    let scene = Scene::new();
    let authority = Authority::new();
    let pair = authority.issue_local("proxy");
    let policy = PolicyFile::new(
        "[[session]]\nmatch = { network = [\"0.0.0.0/0\", \"::/0\"] }\nwrites = \"allow\"\n",
    );
    let ca = authority.certificate().display().to_string();
    let options = scene
        .options()
        .flag("--tls-mode", "require")
        .flag("--tls-certificate", &pair.certificate.display().to_string())
        .flag("--tls-key", &pair.key.display().to_string())
        .flag("--tls-client-ca", &ca)
        .flag("--tls-client-certificates", "required")
        .policy(&policy);
    let proxy = Proxy::start_with(options);
    let mut wire = Wire::connect(&scene.endpoint());
    wire.send_bytes(&SSL_REQUEST);
    assert_eq!(wire.read_byte(), Some(b'N'));
    let mut wire = Wire::login(&scene.endpoint(), &TRUSTED);
    wire.fails("CREATE TABLE t ()", "PF002");
    let records = proxy.first_rejections(1);
    assert_eq!(records[0]["client_addr"], "[local]");
    // The declarer of a mark is named the same way.
    wire.ok("SET fencing.token = 1");
    let mut late = Wire::login(&scene.endpoint(), &TRUSTED);
    late.ok("SET fencing.token = 2");
    let answer = wire.query("SELECT 1");
    let detail = answer[0].field(b'D').unwrap_or_default();
    assert!(detail.contains("postgres@[local]"), "{answer:?}");
}

#[test]
fn what_a_killed_proxy_leaves_behind_is_replaced() {
    let scene = Scene::new();
    let mut proxy = Proxy::start_with(scene.options());
    proxy.kill();
    assert_eq!(scene.files(), 2);
    proxy.restart();
    Wire::login(&scene.endpoint(), &TRUSTED).ok("SELECT 1");
}

#[test]
fn the_socket_of_a_living_proxy_is_not_taken() {
    let scene = Scene::new();
    let proxy = Proxy::start_with(scene.options());
    let words = "another process listens there";
    assert!(scene.refused().contains(words));
    // A hanging proxy still owns it.
    proxy.pause();
    assert!(scene.refused().contains(words));
    proxy.resume();
    Wire::login(&scene.endpoint(), &TRUSTED).ok("SELECT 1");
    // Even if its socket was removed.
    std::fs::remove_file(scene.socket()).unwrap();
    assert!(scene.refused().contains(words));
    std::fs::write(scene.socket(), "").unwrap();
    assert!(
        scene
            .refused()
            .contains("a file that is not a socket is in the way")
    );
    assert!(scene.socket().exists());
}

/// PostgreSQL's files have the same names.
#[test]
fn the_socket_of_a_living_postgresql_is_not_taken() {
    let scene = Scene::new();
    let mut proxy = Proxy::start_with(Options::new(&scene.postgres));
    proxy.terminate();
    let dir = scene.postgres.socket_dir();
    let lock = dir.join(format!(".s.PGSQL.{}.lock", scene.postgres.port()));
    let before = std::fs::read_to_string(&lock).unwrap();
    let listen = format!("{}:{}", dir.display(), scene.postgres.port());
    proxy.options_mut().flags = vec!["--listen".into(), listen];
    let said = proxy.try_restart(Duration::from_secs(10)).unwrap_err();
    assert!(said.contains("another process listens there"), "{said}");
    assert_eq!(std::fs::read_to_string(&lock).unwrap(), before);
    scene.postgres.sql("SELECT 1");
}

/// It reads slowly, and the socket holds less than its answers.
#[test]
fn a_client_of_a_pool_that_says_goodbye_gets_its_answers() {
    let scene = Scene::new();
    let _proxy = Proxy::start_with(scene.options().flag("--pool", "transaction"));
    for count in [200, 240, 280, 320] {
        let mut wire = Wire::login(&scene.endpoint(), &TRUSTED);
        let rows = format!("SELECT repeat('x', 1000) FROM generate_series(1, {count})");
        wire.send(&Batch::new().query(&rows));
        std::thread::sleep(Duration::from_millis(300));
        wire.send(&Batch::new().terminate());
        std::thread::sleep(Duration::from_secs(2));
        let answer = wire.until_closed();
        assert_eq!(answer.iter().filter(|told| told.tag == b'D').count(), count);
    }
}
