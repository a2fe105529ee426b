//! Checks of PostgreSQL: addresses, rights, and proxies or poolers in between.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::Duration;

use pgpalisade_test_servers::held_relay::HeldRelay;
use pgpalisade_test_servers::pooler::Pooler;
use pgpalisade_test_servers::postgres::{Auth, Postgres};
use pgpalisade_test_servers::proxy::subcommand;
use pgpalisade_test_servers::stage::Stage;
use pgpalisade_test_servers::wire::{Endpoint, Wire};

use super::{Settings, fresh_store};

#[test]
fn before_the_first_start_nothing_fails_and_nothing_is_made() {
    let postgres = Postgres::start();
    let (dir, store) = fresh_store();
    let settings = Settings::new(&postgres, &store);
    let checked = settings.check();
    checked
        .expect("authority", "warn", "there is no store yet", "right place")
        .expect("witness", "ok", "the first start of a proxy creates it", "")
        .expect("proxies", "ok", "no proxy is connected", "")
        .expect("rights", "ok", "superuser", "")
        .expect_bad(&["authority"]);
    settings.status();
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    let made = "SELECT count(*) FROM pg_namespace WHERE nspname = 'pgpalisade'";
    assert_eq!(postgres.value(made), "0");
    // With --strict a warning fails the command.
    let strict = settings.flag("--strict").run("check");
    assert_eq!(strict.status.code(), Some(1));
}

#[test]
fn the_text_is_for_people() {
    let postgres = Postgres::start();
    let (_dir, store) = fresh_store();
    let output = Settings::new(&postgres, &store).run("check");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.starts_with("ok    config       every value is valid\n"),
        "{text}"
    );
    assert!(text.contains("\nwarn  authority    embedded:"), "{text}");
    assert!(text.contains("\n                   -> make sure"), "{text}");
    assert!(text.contains(" 1 warning, 0 failed, "), "{text}");
    assert!(!text.contains('\x1b'));
}

#[test]
fn a_wrong_configuration_ends_with_2() {
    for name in ["check", "status"] {
        let output = subcommand(name)
            .args(["--upstream", "nonsense"])
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2));
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(
            said.contains("--upstream: upstream: is not an address"),
            "{said}"
        );
        let unknown = subcommand(name).arg("--nonsense").output().unwrap();
        assert_eq!(unknown.status.code(), Some(2));
    }
}

#[test]
fn missing_rights_and_the_statement_that_gives_them() {
    let postgres = Postgres::start();
    postgres.sql("CREATE ROLE \"a role\" LOGIN; CREATE ROLE app LOGIN");
    let (_dir, store) = fresh_store();
    let control = format!(
        "host=127.0.0.1 port={} user='a role' dbname=postgres",
        postgres.port()
    );
    let settings = Settings::new(&postgres, &store).control(control);
    let checked = settings.check();
    checked.expect("superusers", "skip", "lacks rights", "");
    checked.expect(
        "rights",
        "fail",
        "lacks pg_signal_backend and pg_read_all_stats",
        "GRANT ",
    );
    let advice = checked.finding("rights")["advice"].as_str().unwrap();
    let (_, grant) = advice.split_once(": ").unwrap();
    postgres.sql(grant);
    let checked = settings.check();
    checked
        .expect(
            "rights",
            "ok",
            "pg_signal_backend and pg_read_all_stats",
            "",
        )
        .expect("superusers", "ok", "no client", "")
        // The role may not create the table, and the advice names one that may.
        .expect("witness", "warn", "a role", "CREATE SCHEMA")
        .expect_bad(&["witness", "authority"]);
    let _app = Wire::login(
        &postgres.tcp(),
        &[("user", "app"), ("database", "postgres")],
    );
    settings.check().expect("superusers", "ok", "no client", "");
    let _admin = postgres.admin();
    settings
        .check()
        .expect("superusers", "warn", "(postgres)", "PF006");
}

#[test]
fn a_standby() {
    let postgres = Postgres::start();
    let standby = postgres.replica();
    let (_dir, store) = fresh_store();
    let checked = Settings::new(&standby, &store).check();
    checked
        .expect("primary", "fail", "standby", "primary")
        .expect("cluster", "skip", "standby", "")
        .expect_bad(&["primary", "authority"]);
    // The clients' side leads to the primary, the control connection to its standby.
    let upstream = format!("postgres://127.0.0.1:{}", postgres.port());
    let crossed = Settings::new(&standby, &store).upstream(upstream).check();
    crossed
        .expect(
            "same-server",
            "fail",
            "they are two servers of cluster",
            "primary",
        )
        .expect_bad(&["primary", "same-server", "authority"]);
}

#[test]
fn a_pooler_in_between() {
    let postgres = Postgres::start();
    let pooler = Pooler::start(&postgres);
    let (_dir, store) = fresh_store();
    let straight = Settings::new(&postgres, &store);
    straight.check().expect_bad(&["authority"]);
    let port = pooler.port();
    let control = format!("host=127.0.0.1 port={port} user=postgres dbname=postgres");
    let behind = straight.clone().control(control).check();
    behind
        .expect(
            "direct",
            "fail",
            "a pooler is in between",
            "PostgreSQL itself",
        )
        .expect_bad(&["direct", "authority"]);
    let upstream = straight
        .upstream(format!("postgres://127.0.0.1:{port}"))
        .check();
    upstream
        .expect("direct", "ok", "nothing is between", "")
        .expect("same-server", "fail", "a pooler is between", "in front of")
        .expect_bad(&["same-server", "authority"]);
    // The check leaves no state in a session that the pooler gives to others.
    let pooled = Endpoint::Tcp(([127, 0, 0, 1], port).into());
    let mut pooled = Wire::login(&pooled, &[("user", "postgres"), ("database", "postgres")]);
    assert_eq!(pooled.rows("SHOW default_transaction_read_only"), [["off"]]);
    assert_eq!(pooled.rows("SHOW statement_timeout"), [["0"]]);
}

#[test]
fn a_relay_in_between() {
    let postgres = Postgres::start();
    let Endpoint::Tcp(server) = postgres.tcp() else {
        unreachable!("tcp is tcp")
    };
    let relay = HeldRelay::start(server);
    let (_dir, store) = fresh_store();
    let control = format!(
        "host=127.0.0.1 port={} user=postgres dbname=postgres",
        relay.address().port()
    );
    let checked = Settings::new(&postgres, &store).control(control).check();
    checked
        .expect(
            "direct",
            "warn",
            "a TCP proxy or NAT is in between",
            "same server",
        )
        .expect_bad(&["direct", "authority"]);
    let socket = Settings::new(&postgres, &store).control(postgres.admin_dsn());
    socket.check().expect("direct", "ok", "a unix socket", "");
}

#[test]
fn nobody_answers() {
    let postgres = Postgres::start();
    let (_dir, store) = fresh_store();
    let settings = Settings::new(&postgres, &store);
    // A port in use, and one without a listener.
    let closed = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let checked = settings
        .clone()
        .upstream(format!("postgres://{closed}"))
        .check();
    checked
        .expect("upstream", "fail", "Connection refused", "start PostgreSQL")
        .expect(
            "same-server",
            "warn",
            "cannot be compared",
            "the same server",
        )
        .expect_bad(&["upstream", "same-server", "authority"]);

    let http = TcpListener::bind("127.0.0.1:0").unwrap();
    let place = http.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        for _ in 0..2 {
            let (mut client, _) = http.accept().unwrap();
            let _asked = client.read(&mut [0; 100]);
            let _closed = client.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    let checked = settings
        .clone()
        .upstream(format!("postgres://{place}"))
        .check();
    checked.expect("upstream", "fail", "is not PostgreSQL", "upstream");
    server.join().unwrap();

    // Accepts and sends nothing: both steps have a timeout.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let place = silent.local_addr().unwrap();
    let control = format!("host=127.0.0.1 port={} user=postgres", place.port());
    let checked = settings
        .upstream(format!("postgres://{place}"))
        .control(control)
        .check();
    checked
        .expect("upstream", "fail", "does not answer within 5s", "")
        // One cause, one failure.
        .expect("control", "skip", "not tried", "")
        .expect("rights", "skip", "no control connection", "")
        .expect("marks", "skip", "no control connection", "");
    assert_eq!(checked.code, 1);
    assert!(checked.took < Duration::from_secs(20), "{:?}", checked.took);
}

#[test]
fn a_pgpalisade_as_the_upstream() {
    let stage = Stage::start();
    let (_dir, store) = fresh_store();
    let settings = Settings::new(&stage.postgres, &store);
    let port = stage.proxy.endpoint().port();
    let checked = settings
        .upstream(format!("postgres://127.0.0.1:{port}"))
        .check();
    checked.expect(
        "same-server",
        "warn",
        "is itself a pgpalisade",
        "lead to PostgreSQL itself",
    );
}

#[test]
fn passwords_are_not_shown() {
    let postgres = Postgres::start_with(Auth::Scram, &[]);
    postgres.sql("ALTER ROLE postgres PASSWORD 'right'");
    let (_dir, store) = fresh_store();
    let control = |password: &str| {
        format!(
            "host=127.0.0.1 port={} user=postgres password={password} dbname=postgres",
            postgres.port()
        )
    };
    let settings = Settings::new(&postgres, &store);
    settings
        .clone()
        .control(control("right"))
        .check()
        .expect_bad(&["authority"]);
    let settings = settings
        .control(control("hunter2"))
        .authority(format!("postgres:{}", control("hunter2")));
    settings
        .check()
        .expect(
            "control",
            "fail",
            "password authentication failed",
            "pg_hba.conf",
        )
        .expect("authority", "fail", "password authentication failed", "");
    for name in ["check", "status"] {
        let output = settings.run(name);
        assert_eq!(output.status.code(), Some(1), "{name}");
        let said = [output.stdout, output.stderr].concat();
        assert!(!String::from_utf8_lossy(&said).contains("hunter2"));
    }
}

#[test]
fn more_clients_than_the_server_takes() {
    let postgres = Postgres::start();
    let (_dir, store) = fresh_store();
    let mut settings = Settings::new(&postgres, &store);
    // The harness gives a server 250 connections; PostgreSQL reserves 3, and the control connection needs one.
    settings.flags = vec!["--connections-max=246".to_owned()];
    settings
        .check()
        .expect("connections", "ok", "takes 247", "");
    settings.flags = vec!["--connections-max=247".to_owned()];
    let checked = settings.check();
    checked.expect("connections", "warn", "takes only 247", "246 or less");
}

#[test]
fn prepared_transactions() {
    let postgres = Postgres::start();
    let (_dir, store) = fresh_store();
    let mut session = postgres.admin();
    session.ok("CREATE TABLE t (n int); BEGIN; INSERT INTO t VALUES (1)");
    session.ok("PREPARE TRANSACTION 'half\x1b[2Jdone'");
    let settings = Settings::new(&postgres, &store);
    settings
        .check()
        .expect("prepared", "warn", "half", "ROLLBACK PREPARED")
        .expect_bad(&["prepared", "authority"]);
    for name in ["check", "status"] {
        let text = String::from_utf8(settings.run(name).stdout).unwrap();
        assert!(text.contains("half"), "{text}");
        assert!(!text.contains('\x1b'), "a terminal would obey it: {text}");
    }
}

#[test]
fn ways_past_the_proxies_are_named() {
    let postgres = Postgres::start();
    postgres.sql("CREATE ROLE leader LOGIN; CREATE ROLE web LOGIN");
    let (_dir, store) = fresh_store();
    let (scratch, settings) = (
        tempfile::tempdir().unwrap(),
        Settings::new(&postgres, &store),
    );
    let holders = |settings: &Settings, user: &str| {
        let policy = scratch.path().join(format!("{user}.policy"));
        let config = scratch.path().join(format!("{user}.toml"));
        let rules = format!("[scope.default]\nholders = {{ user = \"{user}*\" }}\n");
        std::fs::write(&policy, rules).unwrap();
        std::fs::write(&config, format!("policy = \"{}\"\n", policy.display())).unwrap();
        settings
            .clone()
            .flag(&format!("--config={}", config.display()))
    };
    let named = holders(&settings, "lead");
    let hba = |rules: &str| {
        std::fs::write(postgres.data().join("pg_hba.conf"), rules).unwrap();
        postgres.sql("SELECT pg_reload_conf()");
    };
    let ours = "local all postgres trust\nhost all postgres,control 127.0.0.1/32 trust\n";
    let closed =
        "host all leader 127.0.0.1/32 trust\nhost all leader all reject\nlocal all all trust\n";
    let open = "host all all 0.0.0.0/0 trust\n";

    hba(&format!("{ours}{closed}{open}"));
    let nobody = settings.check();
    nobody.expect("ways-in", "ok", "no client is connected", "");
    let from_proxies = "leader: pg_hba.conf lets them in from the proxies only";
    named.check().expect("ways-in", "ok", from_proxies, "");
    hba(&format!("{ours}{open}{closed}"));
    named.check().expect(
        "ways-in",
        "warn",
        "from elsewhere: leader by line 3",
        "not fenced",
    );

    // By a socket, bypassing the proxy.
    hba(&format!("{ours}{closed}{open}"));
    let _past = Wire::login(
        &postgres.socket(),
        &[("user", "leader"), ("database", "postgres")],
    );
    named.check().expect(
        "ways-in",
        "warn",
        "where no proxy is: leader from a unix socket",
        "",
    );
    settings
        .check()
        .expect("ways-in", "warn", "leader from a unix socket", "");

    // A control role that may not read the file says so.
    postgres
        .sql("CREATE ROLE control LOGIN; GRANT pg_signal_backend, pg_read_all_stats TO control");
    let control = format!(
        "host=127.0.0.1 port={} user=control dbname=postgres",
        postgres.port()
    );
    let blind = holders(&settings.control(control), "web");
    blind.check().expect(
        "ways-in",
        "ok",
        "role control may not read pg_hba_file_rules",
        "",
    );
}
