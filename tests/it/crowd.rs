//! No client can block others, by silence, by noise, or by taking resources that it does not need.

use std::collections::VecDeque;
use std::io::Read;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pgpalisade_test_servers::machine::{
    self, Signal, assert_says, free_port, signal, wait_for, wait_until,
};
use pgpalisade_test_servers::postgres::{Auth, Postgres};
use pgpalisade_test_servers::programs::{program, stdout};
use pgpalisade_test_servers::proxy::{Options, Proxy, subcommand};
use pgpalisade_test_servers::stage::{Stage, leader};
use pgpalisade_test_servers::wire::{Batch, Endpoint, Message, PROTOCOL_3_0, Wire, pretty};

const SETUP: &str = "CREATE TABLE jobs (id int)";
const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];

/// A login that the proxy refuses before PostgreSQL has seen it.
fn refused_before_authentication(endpoint: &Endpoint, user: &str) -> Message {
    let mut wire = Wire::connect(endpoint);
    let parameters = [("user", user), ("fencing.token", "no number")];
    wire.startup(PROTOCOL_3_0, &parameters);
    wire.until_closed().swap_remove(0)
}

/// Starts the proxy again, with a log that nobody reads.
fn unread(proxy: &mut Proxy) -> (Child, Endpoint) {
    proxy.terminate();
    let port = free_port();
    let mut serve = proxy.subcommand("serve");
    serve.args(["--listen", &format!("127.0.0.1:{port}"), "--log=debug"]);
    serve.stdout(Stdio::null()).stderr(Stdio::piped());
    let child = serve.spawn().unwrap();
    let endpoint = Endpoint::Tcp(([127, 0, 0, 1], port).into());
    wait_for("the proxy", || Wire::try_connect(&endpoint).ok());
    (child, endpoint)
}

/// The proxy's parent process stops reading its log.
#[test]
fn a_log_that_nobody_reads() {
    let postgres = Postgres::start();
    postgres.sql(SETUP);
    let mut proxy = Proxy::start(&postgres);
    let (mut child, endpoint) = unread(&mut proxy);
    let mut first = leader(&endpoint, "1");
    // Several times the capacity of the pipe and the buffer before it, at some 100 bytes each.
    for number in 0..15_000 {
        drop(Wire::connect(&endpoint));
        if number % 1_000 == 0 {
            first.ok("INSERT INTO jobs VALUES (1)");
        }
    }
    first.ok("INSERT INTO jobs VALUES (1)");
    let mut second = leader(&endpoint, "2");
    second.ok("INSERT INTO jobs VALUES (2)");
    // Once there is room again, the log reports the number of lost lines.
    let mut stderr = child.stderr.take().unwrap();
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        stderr.read_to_string(&mut text).unwrap();
        text
    });
    std::thread::sleep(Duration::from_millis(500));
    signal(child.id(), Signal::TERM);
    let ended = machine::reap(&mut child, Duration::from_secs(15));
    let text = reader.join().unwrap();
    assert!(ended.success(), "{ended}");
    assert!(text.contains("came faster than they could be written"));
    assert!(text.contains("stopped"), "not written to its end");
}

/// The proxy is told to end in the same situation: it does not wait for the reader either.
#[test]
fn the_end_does_not_wait_for_who_reads_the_log() {
    let postgres = Postgres::start();
    let mut proxy = Proxy::start(&postgres);
    let (mut child, endpoint) = unread(&mut proxy);
    for _ in 0..2_000 {
        drop(Wire::connect(&endpoint));
    }
    signal(child.id(), Signal::TERM);
    let begin = Instant::now();
    let ended = machine::reap(&mut child, Duration::from_secs(15));
    assert!(ended.success(), "{ended} after {:?}", begin.elapsed());
}

/// Unauthenticated clients can cause refusals in any name, as often as they like.
#[test]
fn refusals_before_authentication_are_few_and_apart() {
    const NOISE: u64 = 1_000;
    let mut stage = Stage::with(SETUP);
    let endpoint = stage.proxy.endpoint();
    for number in 0..NOISE {
        let user = format!("nobody{number}");
        let answer = refused_before_authentication(&endpoint, &user);
        assert_eq!(answer.sqlstate(), "PF003");
    }
    stage.plain().fails("INSERT INTO jobs VALUES (1)", "PF002");
    stage.proxy.terminate();
    let (mut recorded, mut real, mut summed_up) = (0, 0, 0);
    for record in stage.proxy.rejections() {
        match (&record["authenticated"], &record["unauthenticated"]) {
            (serde_json::Value::Bool(false), _) => recorded += 1,
            (serde_json::Value::Bool(true), _) => real += 1,
            (_, left_out) => summed_up += left_out.as_u64().unwrap(),
        }
    }
    assert!((1..=100).contains(&recorded), "{recorded} records");
    assert_eq!((real, recorded + summed_up), (1, NOISE));
    let output = stage.proxy.output();
    let lines = output
        .lines()
        .filter(|line| line.contains("login refused"))
        .count();
    assert!((1..=250).contains(&lines), "{lines} lines");
    let report = subcommand("report")
        .arg(stage.proxy.rejection_log())
        .arg("--json")
        .output()
        .unwrap();
    let report: serde_json::Value = serde_json::from_slice(&report.stdout).unwrap();
    assert_eq!(report["read"]["records"], 1, "{report:#}");
    assert_eq!(report["read"]["unauthenticated"], NOISE);
    assert_eq!(report["total"]["refused"], 1);
}

/// A leader is served throughout, despite 10,000 silent connections, far more than the limit.
#[test]
fn silent_connections_keep_no_leader_out() {
    const SILENT: usize = 10_000;
    let stage = Stage::with_flags(SETUP, &[("--connections-max", "20")]);
    let endpoint = stage.proxy.endpoint();
    let flood_ended = AtomicBool::new(false);
    let (logins, slowest) = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut open = VecDeque::new();
            for _ in 0..SILENT {
                open.push_back(Wire::connect(&endpoint));
                // Far more than the proxy keeps; the test itself also needs open files.
                if open.len() > 600 {
                    open.pop_front();
                }
            }
            flood_ended.store(true, Ordering::Relaxed);
            std::thread::sleep(Duration::from_secs(1));
        });
        let (mut logins, mut slowest) = (0, Duration::ZERO);
        let mut after = 0;
        while after < 20 {
            after += usize::from(flood_ended.load(Ordering::Relaxed));
            let begin = Instant::now();
            let token = (logins + 1).to_string();
            leader(&endpoint, &token).ok("INSERT INTO jobs VALUES (1)");
            slowest = slowest.max(begin.elapsed());
            logins += 1;
        }
        (logins, slowest)
    });
    println!("{logins} logins, the slowest took {slowest:?}");
    assert!(slowest < Duration::from_secs(5), "{slowest:?}");
}

/// Places are for logins in progress: a client that does not answer PostgreSQL's challenge gives way.
#[test]
fn half_logins_keep_no_leader_out() {
    let postgres = Postgres::start_with(Auth::Scram, &["password_encryption=scram-sha-256"]);
    postgres.sql("CREATE ROLE app LOGIN PASSWORD 'secret'");
    let proxy = Proxy::start_with(Options::new(&postgres).flag("--connections-max", "2"));
    let _half: Vec<Wire> = (0..2)
        .map(|_| {
            let mut wire = Wire::connect(&proxy.endpoint());
            wire.startup(PROTOCOL_3_0, &[("user", "app"), ("database", "postgres")]);
            assert_eq!(wire.read().tag, b'R');
            wire
        })
        .collect();
    std::thread::sleep(Duration::from_millis(1_100));
    let mut psql = program("psql", &proxy.endpoint());
    psql.args(["-XAtc", "SELECT 1", "-U", "app", "postgres"])
        .env("PGPASSWORD", "secret");
    assert_eq!(stdout(&psql.output().unwrap()).trim(), "1");
}

/// A client that asks for TLS first is told in the clear why it gets no place.
#[test]
fn no_place_is_left() {
    let stage = Stage::with_flags(SETUP, &[("--connections-max", "2")]);
    let (_one, two) = (stage.plain(), stage.plain());
    for encryption in [&SSL_REQUEST[..], &[]] {
        let mut wire = Wire::connect(&stage.proxy.endpoint());
        if !encryption.is_empty() {
            wire.send_bytes(encryption);
            assert_eq!(wire.read_byte(), Some(b'N'));
        }
        wire.startup(PROTOCOL_3_0, &[("user", "postgres")]);
        let answer = wire.until_closed();
        assert_eq!(answer[0].sqlstate(), "53300", "{}", pretty(&answer));
        assert_eq!(answer[0].severity(), "FATAL");
    }
    drop(two);
    wait_for("the place to be free", || {
        let mut wire = Wire::connect(&stage.proxy.endpoint());
        wire.startup(PROTOCOL_3_0, &[("user", "postgres")]);
        (wire.until_ready().last()?.tag == b'Z').then_some(())
    });
}

/// A Query of this size, sent without its last byte.
fn half_sent(text_len: usize) -> Vec<u8> {
    let mut bytes = Batch::new()
        .query(&format!("SELECT '{}'", "x".repeat(text_len)))
        .bytes()
        .to_vec();
    bytes.pop();
    bytes
}

/// 150 clients each stop in the middle of a text of nearly 1 MiB.
#[test]
fn texts_that_never_end() {
    let stage = Stage::with_flags(SETUP, &[("--workers", "1"), ("--connections-max", "200")]);
    stage.sql("ALTER SYSTEM SET log_min_messages = 'warning'");
    let mut first = stage.leader("1");
    first.ok("INSERT INTO jobs VALUES (1)");
    let before = stage.proxy.resident_kib();
    let text = half_sent(1_000_000);
    let mut greedy: Vec<Wire> = (0..90).map(|_| stage.plain()).collect();
    for wire in &mut greedy {
        wire.set_write_patience(Duration::from_secs(2));
        wire.send_bytes(&text);
    }
    let grown = stage.proxy.resident_kib().saturating_sub(before);
    println!("{grown} KiB for 90 texts of 1,000,000 bytes");
    assert!(grown < 48 * 1024, "the proxy grew by {grown} KiB");
    // A token holder's text is not analysed, so it needs no room.
    let long = format!(
        "INSERT INTO jobs VALUES (length('{}'))",
        "x".repeat(300_000)
    );
    first.ok(&long);
    // A session without a token gets no room, and is told so.
    let mut plain = stage.plain();
    let refused = plain.fails(&format!("SELECT '{}'", "x".repeat(800_000)), "PF002");
    let detail = refused[0].field(b'D').unwrap();
    assert!(detail.contains("too many long texts"), "{detail}");
    // Short texts need no room.
    assert_eq!(plain.rows("SELECT 1"), [["1"]]);
    // Temporary: after 30 s the incomplete ones are closed.
    let begin = Instant::now();
    let last = greedy.iter_mut().find_map(|wire| {
        wire.set_patience(Duration::from_secs(40));
        let answer = wire.try_read().ok()?;
        (answer.sqlstate() == "54000").then_some(answer)
    });
    assert!(
        last.is_some(),
        "nobody was told to go in {:?}",
        begin.elapsed()
    );
    wait_until("room", || {
        let answer = plain.query(&format!("SELECT '{}'", "x".repeat(800_000)));
        answer[0].tag == b'T'
    });
}

/// Any role can take the advisory lock by which proxies detect each other.
#[test]
fn a_lock_of_somebody_who_may_not_serve() {
    let mut stage = Stage::with("CREATE ROLE app LOGIN");
    let direct = stage.postgres.tcp();
    let app = || Wire::login(&direct, &[("user", "app"), ("database", "postgres")]);
    // As another authority.
    let mut other = app();
    other.ok("SELECT pg_advisory_lock(1885827169, 12345)");
    let renew = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity \
                 WHERE application_name = 'pgpalisade control'";
    assert_eq!(stage.value(renew), "t");
    drop(stage.leader("1"));
    // As our own, which the embedded store takes exclusively.
    let ours = "SELECT objid FROM pg_locks WHERE locktype = 'advisory' AND classid = 1885827169 AND objid <> 12345";
    let object = stage.value(ours);
    stage.proxy.terminate();
    for lock in ["pg_advisory_lock", "pg_advisory_lock_shared"] {
        let mut same = app();
        same.ok(&format!(
            "SELECT {lock}(1885827169, {object}::int8::bit(32)::int4)"
        ));
        stage.proxy.restart();
        drop(stage.leader("2"));
        let output = stage.proxy.output();
        assert_says(&output, "without the rights of a control role");
        // A second authority still detects the first.
        let refused = second_authority(&stage.postgres);
        assert_says(
            &refused,
            "all proxies of a cluster must share one authority",
        );
        stage.proxy.terminate();
    }
}

/// Error of a proxy with a store of its own.
fn second_authority(postgres: &Postgres) -> String {
    let dir = tempfile::tempdir().unwrap();
    let output = subcommand("serve")
        .args(["--listen", &format!("127.0.0.1:{}", free_port())])
        .args([
            "--upstream",
            &format!("postgres://127.0.0.1:{}", postgres.port()),
        ])
        .args(["--control", &postgres.admin_dsn()])
        .args(["--authority", &format!("embedded:{}", dir.path().display())])
        .output()
        .unwrap();
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The copy of the marks admits nobody, so writing it does not wait for the standby.
#[test]
fn a_takeover_while_the_standby_is_away() {
    let postgres = Postgres::start();
    postgres.sql("ALTER SYSTEM SET synchronous_standby_names = 'nobody'");
    postgres.sql("SELECT pg_reload_conf()");
    wait_until("the setting", || {
        postgres.value("SHOW synchronous_standby_names") == "nobody"
    });
    let proxy = Proxy::start_with(Options::new(&postgres).flag("--takeover-timeout", "2s"));
    for token in ["1", "2"] {
        drop(leader(&proxy.endpoint(), token));
    }
    assert_eq!(
        postgres.value("SELECT token FROM pgpalisade.mark WHERE scope = 'default'"),
        "2"
    );
    // If it cannot be written at all, the search for remaining sessions is skipped.
    let mut admin = postgres.admin();
    admin.ok("BEGIN; LOCK TABLE pgpalisade.mark");
    let mut wire = Wire::login(&proxy.endpoint(), &[("user", "postgres")]);
    let answer = wire.fails("SET fencing.token = 3", "PF006");
    let text = pretty(&answer);
    assert_says(&text, "could not be copied into the cluster");
}

/// The error names the backend that does not end, but not its statement.
#[test]
fn the_server_process_that_does_not_end_is_named() {
    let stage = Stage::with_flags(SETUP, &[("--takeover-timeout", "2s")]);
    // Its database has another encoding than that of the control connection.
    stage.sql(
        "CREATE DATABASE latin TEMPLATE template0 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'",
    );
    let latin = [("database", "latin"), ("fencing.token", "33")];
    let latin = [
        &[("user", "postgres"), ("client_encoding", "UTF8")],
        &latin[..],
    ]
    .concat();
    let mut old = Wire::login(&stage.proxy.endpoint(), &latin);
    old.ok("BEGIN; SELECT 'a sécret'");
    let pid = old.backend_pid();
    signal(pid, Signal::STOP);
    let answer = stage.plain().query("SET fencing.token = 34");
    signal(pid, Signal::CONT);
    let detail = answer[0].field(b'D').unwrap();
    assert_eq!(answer[0].sqlstate(), "PF006", "{}", pretty(&answer));
    let named = format!("server process {pid} (user postgres, idle in transaction since 20");
    assert!(detail.contains(&named), "{detail}");
    assert!(
        !detail.contains("SELECT") && !detail.contains("cret"),
        "{detail}"
    );
    let output = wait_for("the log", || {
        let output = stage.proxy.output();
        let told = output.contains("was told to end and has not ended");
        told.then_some(output)
    });
    assert!(output.contains("BEGIN; SELECT ?"), "{output}");
    // With the reason, in the log and in the record.
    let record = &stage.proxy.first_rejections(1)[0];
    assert_eq!(record["sqlstate"], "PF006");
    let reason = record["reason"].as_str().unwrap();
    assert!(reason.contains(&named), "{reason}");
    let rejected = wait_for("its line in the log", || {
        let output = stage.proxy.output();
        let mut lines = output.lines();
        let line = lines.find(|line| line.contains("\"rejected\""));
        line.map(str::to_owned)
    });
    assert!(rejected.contains(&named), "{rejected}");
    assert!(!output.contains("cret"), "{output}");
}

/// A client's application_name is shown to others, on their terminals.
#[test]
fn names_are_shown_without_what_a_terminal_obeys() {
    let stage = Stage::with("CREATE ROLE \"a\u{1b}[2Jb\" LOGIN");
    let mut old = stage.leader("1");
    let name = format!("x\u{1b}]0;y\u{7}\u{202e}{}", "z".repeat(500));
    let parameters = [
        ("user", "a\u{1b}[2Jb"),
        ("database", "postgres"),
        ("application_name", &name),
        ("fencing.token", "2"),
    ];
    let _new = Wire::login(&stage.proxy.endpoint(), &parameters);
    let answer = old.query("SELECT 1");
    let detail = answer[0].field(b'D').unwrap();
    assert!(detail.contains("by a?[2Jb@"), "{detail}");
    assert!(detail.contains("(x?]0;y??z"), "{detail}");
    assert!(
        !detail.chars().any(|c| c.is_control() || c == '\u{202e}'),
        "{detail:?}"
    );
    assert!(detail.len() < 400, "{detail}");
}
