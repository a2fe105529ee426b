//! Checks of PostgreSQL: addresses, rights, and proxies or poolers in between.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::Command;
use std::time::Duration;

use pgpalisade_authority::Embedded;
use pgpalisade_test_servers::machine::assert_says;
use pgpalisade_test_servers::pooler::Pooler;
use pgpalisade_test_servers::postgres::{Auth, Postgres};
use pgpalisade_test_servers::proxy::{binary, subcommand};
use pgpalisade_test_servers::stage::Stage;
use pgpalisade_test_servers::wire::{Endpoint, TRUSTED, Wire};

use super::{Settings, fresh_store};

#[test]
fn before_the_first_start_nothing_fails_and_nothing_is_made() {
    let postgres = Postgres::start();
    let (dir, store) = fresh_store();
    let settings = Settings::new(&postgres, &store);
    let checked = settings.check();
    checked
        .finds("warn authority: there is no store yet -> right place")
        .finds("ok witness: the first start of a proxy creates it")
        .finds("ok rights: superuser")
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
        assert_says(&said, "--upstream: upstream: is not an address");
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
    checked.finds("skip superusers: lacks rights");
    checked.finds("fail rights: lacks pg_signal_backend and pg_read_all_stats -> GRANT ");
    let advice = checked.finding("rights")["advice"].as_str().unwrap();
    let (_, grant) = advice.split_once(": ").unwrap();
    postgres.sql(grant);
    let checked = settings.check();
    checked
        .finds("ok rights: pg_signal_backend and pg_read_all_stats")
        .finds("ok superusers: no client")
        // The role may not create the table, and the advice names one that may.
        .finds("warn witness: a role -> CREATE SCHEMA")
        .expect_bad(&["witness", "authority"]);
    let _app = Wire::login(
        &postgres.tcp(),
        &[("user", "app"), ("database", "postgres")],
    );
    settings.check().finds("ok superusers: no client");
    let _admin = postgres.admin();
    settings
        .check()
        .finds("warn superusers: (postgres) -> PF006");
}

#[test]
fn a_standby() {
    let postgres = Postgres::start();
    let standby = postgres.replica();
    let (_dir, store) = fresh_store();
    let checked = Settings::new(&standby, &store).check();
    checked
        .finds("fail primary: standby -> primary")
        .expect_bad(&["primary", "authority"]);
    // The clients' side leads to the primary, the control connection to its standby.
    let upstream = format!("postgres://127.0.0.1:{}", postgres.port());
    let crossed = Settings::new(&standby, &store).upstream(upstream).check();
    crossed
        .finds("fail same-server: they are two servers of cluster -> primary")
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
        .finds("fail direct: a pooler is in between -> PostgreSQL itself")
        .expect_bad(&["direct", "authority"]);
    let upstream = straight
        .upstream(format!("postgres://127.0.0.1:{port}"))
        .check();
    upstream
        .finds("ok direct: no pooler is between")
        .finds("fail same-server: a pooler is between -> in front of")
        .expect_bad(&["same-server", "authority"]);
    // The check leaves no state in a session that the pooler gives to others.
    let pooled = Endpoint::Tcp(([127, 0, 0, 1], port).into());
    let mut pooled = Wire::login(&pooled, &TRUSTED);
    assert_eq!(pooled.rows("SHOW default_transaction_read_only"), [["off"]]);
    assert_eq!(pooled.rows("SHOW statement_timeout"), [["0"]]);
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
        .finds("fail same-server: Connection refused -> start PostgreSQL")
        .expect_bad(&["same-server", "authority"]);

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
    checked.finds("warn same-server: cannot be compared -> the same server");
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
        .finds("fail control: does not answer within 5s")
        // One cause, one failure.
        .finds("skip rights: no control connection")
        .finds("skip ways-in: no control connection");
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
    checked.finds("warn same-server: is itself a pgpalisade -> lead to PostgreSQL itself");
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
        .finds("fail control: password authentication failed -> pg_hba.conf")
        .finds("fail authority: password authentication failed");
    for name in ["check", "status"] {
        let output = settings.run(name);
        assert_eq!(output.status.code(), Some(1), "{name}");
        let said = [output.stdout, output.stderr].concat();
        assert!(!String::from_utf8_lossy(&said).contains("hunter2"));
    }
}

/// As on a full disk: a file of this process may have no byte.
#[test]
fn a_store_without_room() {
    let postgres = Postgres::start();
    let (_dir, store) = fresh_store();
    let settings = Settings::new(&postgres, &store);
    drop(Embedded::open(&store).unwrap());
    let limited = Command::new("/bin/sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 0; exec \"$0\" check \"$@\""])
        .arg(binary())
        .args(settings.arguments())
        .env_clear()
        .env("PGPALISADE_LISTEN", "127.0.0.1:0")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&[limited.stdout, limited.stderr].concat()).into_owned();
    assert!(said.contains("File too large"), "{said}");
    assert_eq!(limited.status.code(), Some(1), "{said}");
    assert_eq!(std::fs::read_dir(&store).unwrap().count(), 1);
}

#[test]
fn more_clients_than_the_server_takes() {
    let postgres = Postgres::start();
    let (_dir, store) = fresh_store();
    let mut settings = Settings::new(&postgres, &store);
    // The harness gives a server 250 connections; PostgreSQL reserves 3, and the control connection needs one.
    settings.flags = vec!["--connections-max=246".to_owned()];
    settings.check().finds("ok connections: takes 247");
    settings.flags = vec!["--connections-max=247".to_owned()];
    let checked = settings.check();
    checked.finds("warn connections: takes only 247 -> 246 or less");
    // The lookups of passwords need another.
    let query = "--auth-query=SELECT rolname, rolpassword FROM pg_authid WHERE rolname = $1";
    settings.flags = ["--connections-max=246", "--auth=scram", query]
        .map(str::to_owned)
        .to_vec();
    let checked = settings.check();
    checked.finds("warn connections: takes only 247 -> 245 or less");
}

#[test]
fn a_rule_for_more_sessions_than_there_are() {
    let postgres = Postgres::start();
    let (dir, store) = fresh_store();
    let policy = dir.path().join("policy.toml");
    let rule = "[[session]]\nmatch = { user = \"postgres\" }\npool = \"session\"\n";
    std::fs::write(&policy, rule).unwrap();
    let mut settings = Settings::new(&postgres, &store);
    let config = dir.path().join("config.toml");
    std::fs::write(&config, format!("policy = {:?}\n", policy.display())).unwrap();
    let config = format!("--config={}", config.display());
    settings.flags = vec![config, "--pool=transaction".to_owned()];
    let checked = settings.check();
    checked.finds("warn declare: pool = \"session\" -> backends.sessions");
    settings.flags.push("--backends-sessions=1".to_owned());
    settings.check().finds("ok declare: every session");
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
        .finds("warn prepared: half -> ROLLBACK PREPARED")
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
    nobody.finds("ok ways-in: no client is connected");
    named
        .check()
        .finds("ok ways-in: leader: pg_hba.conf lets them in from the proxies only");
    hba(&format!("{ours}{open}{closed}"));
    named
        .check()
        .finds("warn ways-in: from elsewhere: leader by line 3 -> not fenced");

    // By a socket, bypassing the proxy.
    hba(&format!("{ours}{closed}{open}"));
    let _past = Wire::login(
        &postgres.socket(),
        &[("user", "leader"), ("database", "postgres")],
    );
    named
        .check()
        .finds("warn ways-in: where no proxy is: leader from a unix socket");
    settings
        .check()
        .finds("warn ways-in: leader from a unix socket");

    // A control role that may not read the file says so.
    postgres
        .sql("CREATE ROLE control LOGIN; GRANT pg_signal_backend, pg_read_all_stats TO control");
    let control = format!(
        "host=127.0.0.1 port={} user=control dbname=postgres",
        postgres.port()
    );
    let blind = holders(&settings.control(control), "web");
    blind
        .check()
        .finds("ok ways-in: role control may not read pg_hba_file_rules");
}
