//! Names and addresses that lead to several servers, or later to another one.

use std::fs::File;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use pgpalisade_test_servers::machine::wait_until;
use pgpalisade_test_servers::proxy::{Options, Proxy};
use pgpalisade_test_servers::stage::leader;

use super::{AT_MOST, SETUP, assert_clear, assert_ended, attempt, first_write, ids, servers};
use pgpalisade_test_servers::postgres::Postgres;
use pgpalisade_test_servers::wire::{Endpoint, TRUSTED, Wire};

/// Makes the C library resolve names by a file of the test: <https://cwrap.org/nss_wrapper.html>.
fn resolving(mut options: Options, hosts: &Path) -> Options {
    let set = |name: &str, value: String| (name.to_owned(), value);
    options.environment = vec![
        set("LD_PRELOAD", "libnss_wrapper.so".to_owned()),
        set("NSS_WRAPPER_HOSTS", hosts.display().to_string()),
    ];
    options
}

/// One name, two servers: sessions go where the control connection has found the primary, and follow it.
#[test]
fn a_name_that_stands_for_all_servers() {
    let primary = Postgres::start();
    primary.sql(SETUP);
    let standby = primary.replica_at("127.0.0.2");
    standby.wait_for_replay(&primary);
    let dir = tempfile::tempdir().unwrap();
    let hosts = dir.path().join("hosts");
    // The standby comes first.
    std::fs::write(&hosts, "127.0.0.2 cluster.test\n127.0.0.1 cluster.test\n").unwrap();
    let options = Options {
        upstream: format!("postgres://cluster.test:{}", primary.port()),
        control: "user=postgres dbname=postgres".to_owned(),
        ..Options::new(&primary)
    };
    let proxy = Proxy::start_with(resolving(options, &hosts));
    for id in 1..=5 {
        leader(&proxy.endpoint(), "33").ok(&format!("INSERT INTO jobs VALUES ({id})"));
    }
    let mut old = leader(&proxy.endpoint(), "33");
    standby.wait_for_replay(&primary);
    standby.promote();
    let began = Instant::now();
    assert_ended(&mut old, "PF007");
    let (_, refusals) = first_write(&proxy, "34", 6);
    println!(
        "a name: the first write {:?} after the promotion",
        began.elapsed()
    );
    assert!(began.elapsed() < AT_MOST);
    assert_clear(&refusals);
    assert_eq!(ids(&primary).len(), 5);
    assert_eq!(ids(&standby).len(), 6);
}

/// A name is moved to another server, while the old one lives and no connection breaks.
#[test]
fn a_name_that_moves() {
    let primary = Postgres::start();
    primary.sql(SETUP);
    let standby = primary.replica_at("127.0.0.2");
    let dir = tempfile::tempdir().unwrap();
    let hosts = dir.path().join("hosts");
    std::fs::write(&hosts, "127.0.0.1 primary.test\n").unwrap();
    // The file is read again if it is newer by a second.
    let before = SystemTime::now() - Duration::from_secs(10);
    File::open(&hosts).unwrap().set_modified(before).unwrap();
    let options = Options {
        upstream: format!("postgres://primary.test:{}", primary.port()),
        control: "user=postgres dbname=postgres".to_owned(),
        ..Options::new(&primary)
    };
    let proxy = Proxy::start_with(resolving(options, &hosts));
    let mut old = leader(&proxy.endpoint(), "33");
    old.ok("INSERT INTO jobs VALUES (1)");
    standby.wait_for_replay(&primary);
    standby.promote();
    std::fs::write(&hosts, "127.0.0.2 primary.test\n").unwrap();
    assert_ended(&mut old, "PF007");
    let (_, refusals) = first_write(&proxy, "34", 2);
    assert_clear(&refusals);
    assert_eq!(ids(&standby), ["1", "2"]);
}

/// An address is moved to another server, as with a virtual IP. The old server lives, and the control connection
/// still leads there. A session on the new server gets no token before the control connection has moved too.
#[test]
fn one_address_that_leads_elsewhere() {
    let (primary, standby) = servers();
    let dir = tempfile::tempdir().unwrap();
    let link = dir.path().join(".s.PGSQL.5432");
    let lead_to = |server: &Postgres| {
        let Endpoint::Unix(socket) = server.socket() else {
            unreachable!("a socket")
        };
        let _not_there = std::fs::remove_file(&link);
        symlink(socket, &link).unwrap();
    };
    lead_to(&primary);
    let options = Options {
        upstream: dir.path().display().to_string(),
        control: "user=postgres dbname=postgres".to_owned(),
        ..Options::new(&primary)
    }
    .with_own_role(&primary);
    let proxy = Proxy::start_with(options);
    let mut old = leader(&proxy.endpoint(), "33");
    old.ok("INSERT INTO jobs VALUES (1)");
    standby.wait_for_replay(&primary);
    standby.promote();
    lead_to(&standby);
    let mut reader = Wire::login(&proxy.endpoint(), &TRUSTED);
    reader.ok("SELECT 1");
    // It is on the new server, which the barrier does not see.
    let refused = attempt(&proxy, "34", "INSERT INTO jobs VALUES (2)");
    assert_eq!(refused, Err("PF006".to_owned()));
    wait_until("the control connection to follow", || {
        proxy.output().contains("another server became the primary")
    });
    assert_ended(&mut old, "PF007");
    let (_, refusals) = first_write(&proxy, "34", 3);
    assert_clear(&refusals);
    assert_eq!(ids(&standby), ["1", "3"]);
}
