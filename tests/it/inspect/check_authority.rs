//! Checks of the store against the cluster.

use std::path::Path;

use pgpalisade_authority::{
    Authority, Backend, Cluster, Declaration, Declared, Embedded, Scope, Token,
};
use pgpalisade_test_servers::etcd::Etcd;
use pgpalisade_test_servers::policy::PolicyFile;
use pgpalisade_test_servers::postgres::Postgres;
use pgpalisade_test_servers::proxy::{Options, Proxy};
use pgpalisade_test_servers::stage::leader;
use pgpalisade_test_servers::wire::Wire;

use super::{Settings, fresh_store};

fn bytes_in(dir: &Path) -> Vec<Vec<u8>> {
    let mut files: Vec<_> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    files
        .iter()
        .map(|file| std::fs::read(file).unwrap())
        .collect()
}

#[test]
fn while_its_proxy_runs_and_after() {
    let postgres = Postgres::start();
    let mut proxy = Proxy::start(&postgres);
    let _leader = leader(&proxy.endpoint(), "34");
    let settings = Settings::new(&postgres, &proxy.store());
    settings
        .check()
        .finds("ok authority: is in use")
        .finds("ok witness: copy of the marks: 1")
        .expect_bad(&[]);
    proxy.kill();
    let before = bytes_in(&proxy.store());
    settings
        .check()
        .finds("ok authority: marks: 1")
        .expect_bad(&[]);
    settings.status();
    assert!(
        bytes_in(&proxy.store()) == before,
        "a look has changed the store"
    );
    // The proxy that a check has found can be restarted: nothing was left locked.
    proxy.restart();
}

#[test]
fn a_witness_that_is_off_and_a_store_that_is_damaged() {
    let postgres = Postgres::start();
    let (_dir, store) = fresh_store();
    let elsewhere = Embedded::open(&store).unwrap();
    let settings = Settings::new(&postgres, &store);
    settings
        .check()
        .finds("warn authority: this cluster has no proxy -> another cluster's");
    drop(elsewhere);
    let off = settings.clone().flag("--witness=off").check();
    off.finds("warn witness: it is off -> auto");
    std::fs::write(store.join("authority.redb"), b"damaged").unwrap();
    settings
        .check()
        .finds("fail authority: damaged")
        .expect_bad(&["authority"]);
}

/// A living session with a lower token, as an incomplete takeover leaves it.
#[tokio::test]
async fn a_takeover_that_is_not_completed() {
    let postgres = Postgres::start();
    let (_dir, store) = fresh_store();
    let old = postgres.admin();
    let backend = backend(&postgres, &old);
    let gone = Backend {
        pid: backend.pid,
        started_us: backend.started_us - 1,
    };
    let authority = Embedded::open(&store).unwrap();
    let cluster = cluster(&postgres);
    authority.enrol(cluster).await.unwrap();
    let scope: Scope = "jobs".parse().unwrap();
    for (token, backend) in [(33, gone), (33, backend), (34, gone)] {
        let declared = authority
            .declare(&Declaration::new(
                &scope,
                Token::new(token).unwrap(),
                backend,
                cluster,
                "test",
            ))
            .await
            .unwrap();
        assert!(matches!(declared, Declared::Accepted { .. }));
    }
    drop(authority);
    let settings = Settings::new(&postgres, &store);
    let status = settings.status();
    assert_eq!(status["scopes"][0]["alive_below_mark"], 1, "{status:#}");
    assert_eq!(status["authority"]["registered_sessions"], 2);
    assert_eq!(status["authority"]["alive_sessions"], 1);
    drop(old);
    let ended = || (settings.status()["scopes"][0]["alive_below_mark"] == 0).then_some(());
    pgpalisade_test_servers::machine::wait_for("the session to end", ended);
}

fn backend(postgres: &Postgres, session: &Wire) -> Backend {
    let pid = session.backend_pid();
    let started =
        "SELECT (extract(epoch FROM backend_start) * 1000000)::int8 FROM pg_stat_activity";
    let started = postgres.value(&format!("{started} WHERE pid = {pid}"));
    Backend {
        pid: i32::try_from(pid).unwrap(),
        started_us: started.parse().unwrap(),
    }
}

fn cluster(postgres: &Postgres) -> Cluster {
    let identifier = postgres.value("SELECT system_identifier FROM pg_control_system()");
    let started = "SELECT (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::int8";
    Cluster {
        system_identifier: identifier.parse().unwrap(),
        timeline: 1,
        postmaster_us: postgres.value(started).parse().unwrap(),
    }
}

/// A store shared by several proxies can be read while they run.
#[test]
fn a_store_in_postgresql() {
    let postgres = Postgres::start_with(
        pgpalisade_test_servers::postgres::Auth::Trust,
        &["fsync=on"],
    );
    let (_dir, store) = fresh_store();
    let place = format!("postgres:{}", postgres.admin_dsn());
    let settings = Settings::new(&postgres, &store).authority(place.clone());
    settings
        .check()
        .finds("warn authority: there is no store yet");
    let found = postgres.value("SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'pgpal%'");
    assert_eq!(found, "0");
    let proxy = Proxy::start_with(Options::new(&postgres).store(place));
    let _leader = leader(&proxy.endpoint(), "34");
    let tables = "SELECT sum(n_tup_ins + n_tup_upd + n_tup_del) FROM pg_stat_user_tables";
    let changes = || {
        // A collector of PostgreSQL 14 is told at once.
        if postgres.version() >= 15 {
            postgres.sql("SELECT pg_stat_force_next_flush()");
        }
        postgres.sql("SELECT pg_sleep(1.1)");
        postgres.value(tables)
    };
    let before = changes();
    settings
        .check()
        .finds("warn authority: inside the protected cluster -> synchronous_standby_names")
        .expect_bad(&["authority"]);
    let status = settings.status();
    assert_eq!(status["authority"]["state"], "read");
    assert_eq!(status["scopes"][0]["alive_below_mark"], 0);
    assert_eq!(changes(), before, "a look has written");
}

#[test]
fn a_store_in_etcd() {
    let postgres = Postgres::start();
    let mut etcd = Etcd::start(3);
    let (_dir, store) = fresh_store();
    let settings = Settings::new(&postgres, &store).authority(etcd.authority());
    for _ in 0..2 {
        // The first check has created none.
        settings
            .check()
            .finds("warn authority: there is no store yet");
    }
    let proxy = Proxy::start_with(Options::new(&postgres).store(etcd.authority()));
    let _leader = leader(&proxy.endpoint(), "34");
    settings
        .check()
        .finds("ok authority: marks: 1")
        .expect_bad(&[]);
    assert_eq!(settings.status()["authority"]["state"], "read");
    let follower = (etcd.leader() + 1) % 3;
    etcd.kill(follower);
    etcd.kill((follower + 1) % 3);
    settings
        .check()
        .finds("fail authority:  -> no new token")
        .expect_bad(&["authority"]);
}

#[test]
fn elections_that_give_tokens() {
    const ELECTION: &str = "/elections/jobs";
    let (postgres, etcd) = (Postgres::start(), Etcd::start(1));
    let (_dir, store) = fresh_store();
    let policy = PolicyFile::new(&format!(
        "[scope.jobs]\ntables = [\"*.jobs\"]\nnumbers = {{ etcd_election = \"{ELECTION}\" }}\n"
    ));
    let policy = policy.path().display().to_string();
    let settings = Settings::new(&postgres, &store).authority(etcd.authority());
    let without = settings.check();
    without.finds("skip elections: no scope");
    // By itself "check --policy" contacts no server.
    let config = etcd.dir().join("pgpalisade.toml");
    std::fs::write(&config, format!("policy = \"{policy}\"\n")).unwrap();
    let settings = settings
        .flag("--config")
        .flag(&config.display().to_string());
    settings
        .check()
        .finds("skip elections: there is no store yet");
    let options = Options::new(&postgres)
        .flag("--policy", &policy)
        .store(etcd.authority());
    drop(Proxy::start_with(options));
    settings
        .check()
        .finds("ok elections: scope jobs: nobody leads /elections/jobs");
    let number = etcd.stands(ELECTION, "a");
    settings
        .check()
        .finds(&format!("ok elections: {number} leads"));
    etcd.require_logins();
    settings
        .authority(etcd.authority_with_login())
        .check()
        .finds("ok authority: ")
        .finds("fail elections: permission denied -> read all keys below");
}
