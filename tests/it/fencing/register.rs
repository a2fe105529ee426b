//! G1: a takeover misses no living session, despite copies, restores, and other proxies.

use pgpalisade_test_servers::etcd::Etcd;
use pgpalisade_test_servers::machine::{PATIENCE, wait_until};
use pgpalisade_test_servers::postgres::{Postgres, copy_tree};
use pgpalisade_test_servers::proxy::{Options, Proxy, Store};
use pgpalisade_test_servers::stage::leader;
use pgpalisade_test_servers::wire::{Batch, Endpoint, TRUSTED, Wire, pretty};

use super::SETUP;

fn server() -> Postgres {
    let postgres = Postgres::start();
    postgres.sql(SETUP);
    postgres
}

fn at(postgres: &Postgres, store: &Store) -> Options {
    Options {
        store: store.clone(),
        ..Options::new(postgres)
    }
}

fn plain(endpoint: &Endpoint) -> Wire {
    Wire::login(endpoint, &TRUSTED)
}

/// Asserts that a declaration is refused with one of these.
#[track_caller]
fn assert_not_admitted(endpoint: &Endpoint, token: u64, sqlstates: &[&str]) {
    let answer = plain(endpoint).query(&format!("SET fencing.token = {token}"));
    let code = answer[0].sqlstate();
    assert!(sqlstates.contains(&code.as_str()), "{}", pretty(&answer));
}

/// The proxy of a copy of the cluster's storage sees none of the sessions, and removes their records. From then on
/// the cluster itself admits nobody until it is restarted, which ends them.
#[test]
fn a_copy_of_the_cluster_is_served() {
    let etcd = Etcd::start(1);
    let store = &Store::Url(etcd.authority());
    let mut postgres = server();
    let proxy = Proxy::start_with(at(&postgres, store));
    let mut old = leader(&proxy.endpoint(), "33");
    old.ok("BEGIN; INSERT INTO jobs VALUES (1)");
    let copy = server();
    let identifier = "SELECT system_identifier FROM pg_control_system()";
    assert_eq!(postgres.value(identifier), copy.value(identifier));
    let mut beside = Proxy::start_with(at(&copy, store));

    assert_not_admitted(&proxy.endpoint(), 34, &["PF006", "PF007"]);
    old.ok("COMMIT");
    beside.terminate();
    assert_not_admitted(&proxy.endpoint(), 34, &["PF006", "PF007"]);

    old.ok("BEGIN; INSERT INTO jobs VALUES (2)");
    postgres.crash();
    postgres.start_again(&[]);
    wait_until("the server to take its place back", || {
        let answer = plain(&proxy.endpoint()).query("SET fencing.token = 34");
        answer[0].tag != b'E'
    });
    leader(&proxy.endpoint(), "34").ok("INSERT INTO jobs VALUES (3)");
    let rows = postgres.sql("SELECT id FROM jobs ORDER BY id").concat();
    assert_eq!(rows, ["1", "3"]);
    let said = beside.try_restart(PATIENCE).unwrap_err();
    assert!(said.contains("was started later"), "{said}");
}

/// A single proxy is pointed to a copy, and back while an earlier session lives.
#[test]
fn a_copy_of_the_cluster_was_served() {
    let (postgres, copy) = (server(), server());
    let mut proxy = Proxy::start(&postgres);
    let mut old = leader(&proxy.endpoint(), "33");
    old.send(&Batch::new().query("BEGIN; INSERT INTO jobs VALUES (1); SELECT pg_sleep(4); COMMIT"));
    wait_until("the statement to run", || {
        let sleeps = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
        postgres.value(sleeps) == "1"
    });
    proxy.kill();
    let lead = |proxy: &mut Proxy, postgres: &Postgres| {
        let Options {
            upstream, control, ..
        } = Options::new(postgres);
        (proxy.options_mut().upstream, proxy.options_mut().control) = (upstream, control);
        proxy.try_restart(PATIENCE)
    };
    lead(&mut proxy, &copy).unwrap();
    proxy.terminate();
    let said = lead(&mut proxy, &postgres).unwrap_err();
    assert!(said.contains("was started later"), "{said}");
}

/// The store is restored to a copy with the same mark, without a session that has joined at it since.
#[test]
fn a_restored_store_has_the_mark_and_lacks_a_session() {
    let postgres = server();
    let mut proxy = Proxy::start(&postgres);
    let snapshot = proxy.store().with_extension("snapshot");
    leader(&proxy.endpoint(), "33").ok("INSERT INTO jobs VALUES (1)");
    proxy.terminate();
    copy_tree(&proxy.store(), &snapshot);
    proxy.restart();
    let mut old = leader(&proxy.endpoint(), "33");
    old.send(
        &Batch::new().query("BEGIN; INSERT INTO jobs VALUES (2); SELECT pg_sleep(60); COMMIT"),
    );
    wait_until("the statement to run", || {
        let sleeps = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
        postgres.value(sleeps) == "1"
    });
    proxy.kill();
    copy_tree(&snapshot, &proxy.store());
    let said = proxy.try_restart(PATIENCE).unwrap_err();
    for part in ["scope pgpalisade.epoch is at", "pgpalisade recover"] {
        assert!(said.contains(part), "{said}");
    }
    let recovered = proxy
        .subcommand("recover")
        .arg("--end-all-sessions")
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&recovered.stdout);
    assert!(
        recovered.status.success() && told.contains("pgpalisade.epoch: "),
        "{told}"
    );
    proxy.restart();
    leader(&proxy.endpoint(), "34").ok("INSERT INTO jobs VALUES (3)");
    let rows = postgres.sql("SELECT id FROM jobs ORDER BY id").concat();
    assert_eq!(rows, ["1", "3"]);
    proxy.terminate();
    proxy.restart();
}

/// A second authority is admitted while the first proxy's control connection is down. Its takeover misses the session
/// that the first one has bound, which is ended as soon as the first proxy looks again.
#[test]
fn a_second_authority_gets_in() {
    let postgres = server();
    postgres.sql("CREATE ROLE control SUPERUSER LOGIN");
    let mut options = Options::new(&postgres).flag("--witness", "off");
    let unseen = options.clone();
    options.control = options.control.replace("user=postgres", "user=control");
    let first = Proxy::start_with(options);
    let mut old = leader(&first.endpoint(), "33");
    old.ok("BEGIN; INSERT INTO jobs VALUES (1)");
    // Separately: in one transaction the connection would be back before the login is forbidden.
    postgres.sql("ALTER ROLE control NOLOGIN");
    postgres
        .sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'control'");
    let second = Proxy::start_with(unseen);
    leader(&second.endpoint(), "5").ok("INSERT INTO jobs VALUES (2)");
    postgres.sql("ALTER ROLE control LOGIN");
    wait_until("the first proxy to see the second", || {
        first
            .output()
            .contains("another authority serves this cluster")
    });
    let pid = old.backend_pid();
    wait_until("the old session to be gone", || !postgres.has_session(pid));
    assert_not_admitted(&first.endpoint(), 34, &["PF006"]);
    let rows = postgres.sql("SELECT id FROM jobs ORDER BY id").concat();
    assert_eq!(rows, ["2"]);
}
