//! Hostile clients of the console, and upgrades of the proxy.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::process::CommandExt as _;
use std::time::{Duration, Instant};

use pgpalisade_test_servers::machine::{
    Signal, assert_says, assert_within, signal, wait_for, wait_until,
};
use pgpalisade_test_servers::programs::program;
use pgpalisade_test_servers::wire::{Batch, Endpoint, SSL_REQUEST, Wire, startup_packet};
use postgres_protocol::authentication::sasl::{ChannelBinding, ScramSha256};

use super::{Scene, on_a_port, on_a_socket, show};

/// Far above the duration of an undelayed reply.
const AT_ONCE: Duration = Duration::from_secs(5);

fn tcp(scene: &Scene) -> TcpStream {
    let Endpoint::Tcp(address) = &scene.console else {
        panic!("it is on a socket");
    };
    let stream = TcpStream::connect(address).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    stream
}

#[test]
fn silent_connections_keep_nobody_out() {
    let scene = Scene::new(on_a_port);
    let mut silent: Vec<TcpStream> = (0..100).map(|_| tcp(&scene)).collect();
    let begun = Instant::now();
    scene.printed("bob", &["SHOW VERSION"]);
    assert_within(begun, AT_ONCE);
    // The oldest connection was closed silently.
    let begun = Instant::now();
    assert_eq!(silent[0].read(&mut [0; 9]).unwrap_or_default(), 0);
    assert_within(begun, AT_ONCE);
    // Sessions are unaffected.
    scene.stage.plain().ok("SELECT 1");
}

/// Readers do not block admins, nor the other way round.
#[test]
fn readers_take_no_place_of_an_admin() {
    let scene = Scene::new(on_a_port);
    let mut readers: Vec<Wire> = (0..16).map(|_| log_in(&scene, "bob")).collect();
    let said = scene.refused("bob", "pencil", "SHOW VERSION");
    assert!(said.contains("16 operators who may read"), "{said}");
    let admins: Vec<Wire> = (0..16).map(|_| log_in(&scene, "ann")).collect();
    let said = scene.refused("ann", "pencil", "SHOW VERSION");
    assert!(said.contains("16 admins"), "{said}");
    drop(admins);
    wait_until("a place of an admin", || {
        let output = scene.psql("ann", "pencil", &["RELOAD"]);
        output.status.success()
    });
    show(&mut readers[0], "VERSION");
}

/// Logs in with the common password.
fn log_in(scene: &Scene, user: &str) -> Wire {
    let mut wire = Wire::connect(&scene.console);
    wire.startup(196_608, &[("user", user), ("database", "pgpalisade")]);
    wire.read();
    let mut scram = ScramSha256::new(b"pencil", ChannelBinding::unsupported());
    let len = u32::try_from(scram.message().len()).unwrap().to_be_bytes();
    let first = [b"SCRAM-SHA-256\0", &len[..], scram.message()].concat();
    wire.send(&Batch::new().message(b'p', &first));
    scram.update(&wire.read().body[4..]).unwrap();
    wire.send(&Batch::new().message(b'p', scram.message()));
    assert_eq!(wire.until_ready().last().unwrap().tag, b'Z');
    wire
}

#[test]
fn there_is_one_database() {
    let scene = Scene::new(on_a_socket);
    for parameters in [
        &[("user", "me"), ("database", "postgres")][..],
        &[("user", "me")],
    ] {
        let mut operator = Wire::connect(&scene.console);
        operator.startup(196_608, parameters);
        assert_eq!(operator.until_closed()[0].sqlstate(), "3D000");
    }
    // A client with a newer protocol is told the supported version.
    let mut newer = Wire::connect(&scene.console);
    newer.startup(
        196_611,
        &[("user", "me"), ("database", "pgpalisade"), ("_pq_.x", "1")],
    );
    let answer = newer.until_ready();
    assert_eq!(&answer[0].body[..], b"\0\x03\0\x02\0\0\0\x01_pq_.x\0");
}

#[test]
fn garbage_is_closed_and_takes_no_memory() {
    let scene = Scene::new(on_a_port);
    let login = startup_packet(196_608, &[("user", "ann"), ("database", "pgpalisade")]);
    let long_query = [&login[..], b"Q\x7f\xff\xff\xff"].concat();
    let long_password = [&login[..], b"p\0\x0f\xff\xff"].concat();
    let before_login = [&login[..], b"Q\0\0\0\x11SHOW LISTS;\0"].concat();
    let truncated = [&login[..], b"p\0\0\0\x04"].concat();
    let early = [&SSL_REQUEST[..], &login].concat();
    for bytes in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        b"\x16\x03\x01\x02\0\x01\0\x01",
        b"\x7f\xff\xff\xff",
        b"\0\0\0\x08\0\x03\0\0",
        b"\0\0\0\x08\0\x02\0\0",
        &long_query,
        &long_password,
        &before_login,
        &truncated,
        &early,
    ] {
        let mut stream = tcp(&scene);
        stream.write_all(bytes).unwrap();
        let mut answer = Vec::new();
        // The proxy may reset some connections, since it does not read their bytes.
        let _ = stream.read_to_end(&mut answer);
        assert!(!answer.ends_with(b"Z\0\0\0\x05I"), "{bytes:?}: {answer:?}");
        // Bytes after an encryption request may come from an attacker in the middle.
        assert!(bytes != early || answer.is_empty(), "{answer:?}");
    }
    let resident = scene.stage.proxy.resident_kib();
    scene.printed("ann", &["SHOW VERSION"]);
    assert!(resident < 200 * 1024, "{resident} KiB");
}

/// A hostile client that has logged in gets error messages, and is closed.
#[test]
fn operators_can_be_hostile_too() {
    let scene = Scene::new(on_a_socket);
    for bytes in [
        &b"Q\0\x10\0\0x"[..],
        b"Q\0\0\0\x03",
        b"z\0\0\0\x04",
        b"p\0\0\0\x05x",
    ] {
        let mut operator = scene.operator();
        operator.send_bytes(bytes);
        let said = operator.until_closed();
        assert_eq!(said[0].sqlstate(), "08P01", "{bytes:?}");
    }
    for bytes in [
        &b"Q\0\0\0\x04"[..],
        b"Q\0\0\0\x06\xff\0",
        b"Q\0\0\0\x07a\0b",
    ] {
        let mut operator = scene.operator();
        operator.send_bytes(bytes);
        assert_eq!(operator.until_ready()[0].tag, b'E', "{bytes:?}");
        show(&mut operator, "VERSION");
    }
    // A client that never reads its replies does not delay the others.
    let mut deaf = scene.operator();
    let questions = b"Q\0\0\0\x10SHOW CONFIG\0".repeat(2000);
    let _ = deaf.try_send_bytes(&questions);
    let begun = Instant::now();
    scene.show("LISTS");
    assert_within(begun, AT_ONCE);
}

#[test]
fn another_user_of_the_machine_is_nobody() {
    let scene = Scene::new(on_a_socket);
    // Makes the socket reachable.
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(scene.dir.path(), open).unwrap();
    let mut psql = program("psql", &scene.console);
    let nobody = 65_534;
    psql.env("PGDATABASE", "pgpalisade")
        .args(["-XAtqc", "SHOW VERSION"])
        .uid(nobody)
        .gid(nobody)
        .current_dir("/");
    let output = psql.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_says(&said, "only the user that runs pgpalisade and root");
}

/// The console moves with the listeners: the socket always exists, and connected operators are served to the end.
#[test]
fn an_upgrade_takes_the_console_along() {
    for place in [on_a_socket, on_a_port] {
        let scene = Scene::with(place, |options| options.flag("--shutdown-grace", "20s"));
        let is_local = matches!(scene.console, Endpoint::Unix(_));
        let mut leader = scene.stage.leader("1");
        leader.ok("BEGIN");
        let mut before = is_local.then(|| scene.operator());
        let old = scene.stage.proxy.pid();
        signal(old, Signal::USR2);
        wait_until("a new process", || {
            let output = scene.stage.proxy.output();
            output.contains("a new process starts")
        });
        // With an embedded store the new process waits for the old one.
        leader.ok("COMMIT");
        if let Some(before) = &mut before {
            let rows = before.query("SHOW SESSIONS");
            assert!(
                matches!(rows[0].tag, b'T' | b'X') || rows[0].is_closed(),
                "{rows:?}"
            );
        }
        let pid = wait_for("the new process to serve", || {
            let output = scene.stage.proxy.output();
            let lines = output
                .lines()
                .filter(|line| line.contains("the console is open"));
            (lines.count() == 2).then_some(())?;
            let line = output
                .lines()
                .find(|line| line.contains("the new process has taken over"))?;
            let line: serde_json::Value = serde_json::from_str(line).ok()?;
            u32::try_from(line["pid"].as_u64()?).ok()
        });
        if is_local {
            assert!(scene.show("SESSIONS").is_empty());
        } else {
            assert_eq!(scene.printed("bob", &["SHOW SESSIONS"]), "");
        }
        signal(pid, Signal::TERM);
        wait_until("the end of the new process", || {
            Wire::try_connect(&scene.console).is_err()
        });
    }
}
