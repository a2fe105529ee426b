//! G1: a takeover misses no living session, whatever is copied, restored, or seen by another proxy.

use pgpalisade_tests::etcd::Etcd;
use pgpalisade_tests::machine::{PATIENCE, wait_for};
use pgpalisade_tests::postgres::Postgres;
use pgpalisade_tests::proxy::{Options, Proxy, Store};
use pgpalisade_tests::stage::leader;
use pgpalisade_tests::wire::{Batch, Endpoint, Wire, pretty};

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
    Wire::login(endpoint, &[("user", "postgres"), ("database", "postgres")])
}

/// A declaration that is refused, by one of these.
#[track_caller]
fn assert_not_admitted(endpoint: &Endpoint, token: u64, sqlstates: &[&str]) {
    let answer = plain(endpoint).query(&format!("SET fencing.token = {token}"));
    let code = answer[0].sqlstate();
    assert!(sqlstates.contains(&code.as_str()), "{}", pretty(&answer));
}

/// The proxy of a copy of the cluster's storage sees none of the sessions, and removes their records. So from then on
/// the cluster itself admits nobody, until it is started anew, which ends them.
fn a_copy_is_served(store: &Store) {
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
    wait_for("the server to take its place back", || {
        let answer = plain(&proxy.endpoint()).query("SET fencing.token = 34");
        (answer[0].tag != b'E').then_some(())
    });
    leader(&proxy.endpoint(), "34").ok("INSERT INTO jobs VALUES (3)");
    let rows = postgres.sql("SELECT id FROM jobs ORDER BY id").concat();
    assert_eq!(rows, ["1", "3"]);
    let said = beside.try_restart(PATIENCE).unwrap_err();
    assert!(said.contains("was started later"), "{said}");
}

#[test]
fn a_copy_of_the_cluster_is_served_with_etcd() {
    let etcd = Etcd::start(1);
    a_copy_is_served(&Store::Url(etcd.authority()));
}

#[test]
fn a_copy_of_the_cluster_is_served_with_postgresql() {
    let marks = Postgres::start();
    a_copy_is_served(&Store::Url(format!("postgres:{}", marks.admin_dsn())));
}

/// One proxy at a time: it was led astray, and is led back while a session of before lives.
#[test]
fn a_copy_of_the_cluster_was_served() {
    let (postgres, copy) = (server(), server());
    let mut proxy = Proxy::start(&postgres);
    let mut old = leader(&proxy.endpoint(), "33");
    old.send(&Batch::new().query("BEGIN; INSERT INTO jobs VALUES (1); SELECT pg_sleep(4); COMMIT"));
    wait_for("the statement to run", || {
        let sleeps = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
        (postgres.value(sleeps) == "1").then_some(())
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
