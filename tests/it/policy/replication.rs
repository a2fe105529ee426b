//! Replication connections: refused, unless the policy allows them. Then their bytes are not analysed.

use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use pgpalisade_test_servers::machine::{Signal, assert_says, reap, signal, wait_until};
use pgpalisade_test_servers::policy::PolicyFile;
use pgpalisade_test_servers::postgres::{Auth, Postgres, bin, scratch_dir, unprivileged};
use pgpalisade_test_servers::programs::{connect_by_environment, feed, stdout};
use pgpalisade_test_servers::proxy::{Options, Proxy};
use pgpalisade_test_servers::stage::Stage;
use pgpalisade_test_servers::wire::{
    Batch, Endpoint, Message, PROTOCOL_3_0, Wire, pretty, trusted,
};

use super::SETUP;

const ROLES: &str = "CREATE ROLE backup REPLICATION LOGIN; CREATE ROLE other REPLICATION LOGIN; \
    CREATE ROLE plain LOGIN";

const FOR_EVERYBODY: &str = "[defaults]\nallow = [\"replication\"]\n";

const FOR_SOME: &str =
    "[[session]]\nmatch = { user = [\"backup\", \"plain\"] }\nallow = [\"replication\"]\n";

fn stage(policy: &PolicyFile, flags: &[(&str, &str)]) -> Stage {
    let postgres = Postgres::start_with(Auth::Trust, &["wal_level=logical"]);
    postgres.sql(&format!("{SETUP}; {ROLES}"));
    let proxy = Proxy::start_with(Options::new(&postgres).policy(policy).flags(flags));
    Stage { proxy, postgres }
}

/// One of PostgreSQL's programs, connecting as `user`.
fn program(name: &str, endpoint: &Endpoint, user: &str) -> Command {
    let mut command = unprivileged(bin(name));
    connect_by_environment(&mut command, endpoint);
    command.env("PGUSER", user).current_dir("/");
    command
}

fn base_backup(endpoint: &Endpoint, user: &str, wal: &str, dir: &Path) -> Output {
    program("pg_basebackup", endpoint, user)
        .arg("-D")
        .arg(dir)
        .args(["-c", "fast", "-X", wal])
        .output()
        .unwrap()
}

/// Reply to a startup packet for replication.
fn connect(stage: &Stage, user: &str, more: &[(&str, &str)]) -> (Wire, Vec<Message>) {
    let mut wire = Wire::connect(&stage.proxy.endpoint());
    let packet = [
        &[
            ("user", user),
            ("database", "postgres"),
            ("replication", "database"),
        ],
        more,
    ];
    wire.startup(PROTOCOL_3_0, &packet.concat());
    let answer = wire.until_ready();
    (wire, answer)
}

/// A replication connection that can run SQL, too.
#[track_caller]
fn open(stage: &Stage, user: &str) -> Wire {
    let (wire, answer) = connect(stage, user, &[]);
    let last = answer.last().map(|last| last.tag);
    assert_eq!(last, Some(b'Z'), "{}", pretty(&answer));
    wire
}

/// Asserts that the connection is refused with this code.
#[track_caller]
fn assert_no_entry(stage: &Stage, user: &str, more: &[(&str, &str)], sqlstate: &str) {
    let (_, answer) = connect(stage, user, more);
    let error = answer.iter().find(|message| message.tag == b'E');
    let said = error.map(|error| (error.severity(), error.sqlstate()));
    let expected = ("FATAL".to_owned(), sqlstate.to_owned());
    assert_eq!(said, Some(expected), "{}", pretty(&answer));
}

/// Number of backends with this pid: 1 or 0.
/// A program that runs until it is told to end.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        signal(self.0.id(), Signal::INT);
        reap(&mut self.0, Duration::from_secs(10));
    }
}

/// Writes the stream of a logical decoding slot to a file.
fn follow(endpoint: &Endpoint, to: &Path) -> Running {
    let logical = || {
        let mut command = program("pg_recvlogical", endpoint, "postgres");
        command.args(["-d", "postgres", "-S", "followed"]);
        command
    };
    let created = logical()
        .args(["--create-slot", "-P", "test_decoding"])
        .output();
    stdout(&created.unwrap());
    let mut command = logical();
    command.args(["--start", "--no-loop", "-f"]).arg(to);
    let child = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn();
    Running(child.unwrap())
}

#[track_caller]
fn wait_for_text(file: &Path, text: &str) {
    wait_until(text, || {
        let found = std::fs::read_to_string(file).unwrap_or_default();
        found.contains(text)
    });
}

/// As without a policy file, and recorded.
#[test]
fn refused_where_nothing_is_said() {
    let stage = stage(&PolicyFile::new(""), &[]);
    let dir = scratch_dir();
    let output = base_backup(
        &stage.proxy.endpoint(),
        "backup",
        "none",
        &dir.path().join("b"),
    );
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(said.contains("refused by the fencing policy"), "{said}");
    // A token does not help, and is not declared.
    assert_no_entry(&stage, "backup", &[("fencing.token", "7")], "PF005");
    assert_eq!(stage.plain().rows("SHOW fencing.mark"), [[""]]);
    let enforced = ("policy".to_owned(), true);
    assert_eq!(stage.records(2), [enforced.clone(), enforced]);
    let record = &stage.proxy.rejections()[0];
    assert_eq!(record["user"], "backup");
    assert_eq!(record["application_name"], "pg_basebackup");
    for value in ["true", "on", "1"] {
        let mut wire = Wire::connect(&stage.proxy.endpoint());
        wire.startup(PROTOCOL_3_0, &[("user", "backup"), ("replication", value)]);
        assert_eq!(wire.until_closed()[0].sqlstate(), "PF005", "{value}");
    }
}

/// By a session rule. PostgreSQL's own objections still count.
#[test]
fn allowed_for_some_users() {
    let stage = stage(&PolicyFile::new(FOR_SOME), &[]);
    let mut wire = open(&stage, "backup");
    wire.ok("IDENTIFY_SYSTEM");
    assert_no_entry(&stage, "other", &[], "PF005");
    assert_eq!(stage.records(1), [("policy".to_owned(), true)]);
    assert_no_entry(&stage, "plain", &[], "42501");
}

/// A backup through the proxy is complete: it has the files of its manifest, and PostgreSQL starts with it.
#[test]
fn base_backups() {
    let stage = stage(&PolicyFile::new(FOR_SOME), &[]);
    stage.sql(
        "CREATE TABLE ballast AS SELECT n, repeat(md5(n::text), 20) FROM generate_series(1, 20000) n",
    );
    let rows = "SELECT count(*), md5(string_agg(ballast::text, '' ORDER BY n)) AS sum FROM ballast";
    let sum = stage.sql(rows).concat().pop().unwrap();
    let verifier = bin("pg_verifybackup");
    for wal in ["fetch", "stream"] {
        let dir = scratch_dir();
        let backup = dir.path().join("backup");
        stdout(&base_backup(
            &stage.proxy.endpoint(),
            "backup",
            wal,
            &backup,
        ));
        // Not every build has it.
        if verifier.exists() {
            let mut verified = unprivileged(&verifier);
            stdout(&verified.arg(&backup).current_dir("/").output().unwrap());
        }
        let mut single = unprivileged(bin("postgres"));
        single.args(["--single", "-D"]).arg(&backup).arg("postgres");
        single.current_dir("/");
        assert_says(&stdout(&feed(single, &format!("{rows}\n"))), &sum);
    }
}

/// A stream shows the leader's writes. When the proxy ends it gets the same time as open transactions.
#[test]
fn a_stream_lives_until_the_proxy_is_gone() {
    let policy = PolicyFile::new(FOR_EVERYBODY);
    let mut stage = stage(&policy, &[("--shutdown-grace", "3s")]);
    let dir = scratch_dir();
    let file = dir.path().join("changes");
    let _follower = follow(&stage.proxy.endpoint(), &file);
    let mut leader = stage.leader("34");
    leader.ok("INSERT INTO notes VALUES (1)");
    wait_for_text(&file, "table public.notes: INSERT: id[integer]:1");
    let Stage { proxy, postgres } = &mut stage;
    let streams = "SELECT count(*) FROM pg_stat_replication";
    assert_eq!(postgres.value(streams), "1");
    let address = ("127.0.0.1", proxy.endpoint().port());
    std::thread::scope(|threads| {
        let ending = threads.spawn(|| {
            let begun = Instant::now();
            let status = proxy.terminate();
            (status, begun.elapsed())
        });
        wait_until("the proxy to accept nobody any more", || {
            TcpStream::connect(address).is_err()
        });
        postgres.sql("INSERT INTO notes VALUES (2)");
        wait_for_text(&file, "table public.notes: INSERT: id[integer]:2");
        let (status, took) = ending.join().unwrap();
        assert!(status.success(), "{status}");
        assert!(took >= Duration::from_secs(3), "ended after {took:?}");
        assert!(took < Duration::from_secs(10), "ended after {took:?}");
    });
    wait_until("PostgreSQL to see the stream end", || {
        postgres.value(streams) == "0"
    });
}

/// A slow reader is served, one that does not read at all is disconnected, and neither costs memory.
#[test]
fn a_slow_reader() {
    let policy = PolicyFile::new(FOR_EVERYBODY);
    let stage = stage(&policy, &[("--write-stall-timeout", "2s")]);
    let before = stage.proxy.resident_kib();
    let mut wire = open(&stage, "postgres");
    wire.send(&Batch::new().query("SELECT repeat('x', 8192) FROM generate_series(1, 40000)"));
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(5) {
        for _ in 0..200 {
            let row = wire.read();
            assert!(!row.is_closed(), "given up after {:?}", begun.elapsed());
        }
        std::thread::sleep(Duration::from_millis(400));
    }
    assert!(stage.postgres.has_session(wire.backend_pid()));
    let grown = stage.proxy.resident_kib().saturating_sub(before);
    assert!(grown < 8 * 1024, "it has grown by {grown} KiB");
    let stalled = Instant::now();
    wait_until("the client to be given up", || {
        !stage.postgres.has_session(wire.backend_pid())
    });
    let took = stalled.elapsed();
    assert!(took > Duration::from_secs(1), "given up after {took:?}");
}

/// A client that closes its sending side still gets all replies.
#[test]
fn a_connection_that_was_half_closed_is_answered() {
    let stage = stage(&PolicyFile::new(FOR_EVERYBODY), &[]);
    let text = "SELECT repeat('x', 8192) FROM generate_series(1, 3000)";
    let answer = |endpoint: Endpoint| {
        let parameters = trusted(&[("replication", "database")]);
        let mut wire = Wire::login(&endpoint, &parameters);
        wire.send(&Batch::new().query("SHOW work_mem").query(text));
        wire.shut_down_writing();
        wire.until_closed()
    };
    let direct = answer(stage.postgres.tcp());
    assert!(direct.len() > 3000, "{}", direct.len());
    assert!(
        answer(stage.proxy.endpoint()) == direct,
        "the answers differ"
    );
}

/// Bytes arrive complete in both directions, even the last ones before either side closes.
#[test]
fn both_ends() {
    let stage = stage(&PolicyFile::new(FOR_EVERYBODY), &[]);
    let mut wire = open(&stage, "postgres");
    // More than fits between the two sockets, while the server waits for a lock and reads nothing.
    let mut locker = stage.postgres.admin();
    locker.ok("BEGIN; LOCK TABLE notes");
    let rows = "7\n".repeat(4_000_000);
    let mut batch = Batch::new().query("COPY notes FROM STDIN");
    for chunk in rows.as_bytes().chunks(1 << 16) {
        batch = batch.copy_data(chunk);
    }
    let sending = std::thread::spawn(move || {
        wire.send(&batch.copy_done());
        wire
    });
    std::thread::sleep(Duration::from_millis(300));
    locker.ok("COMMIT");
    let mut wire = sending.join().unwrap();
    wire.until_ready();
    let sum = wire.rows("SELECT count(*), sum(id) FROM notes");
    assert_eq!(sum, [["4000000", "28000000"]]);
    // The client sends its last message and leaves.
    let last = format!(
        "/* {} */ INSERT INTO notes VALUES (8)",
        "x".repeat(16 << 20)
    );
    wire.send(&Batch::new().query(&last).terminate());
    drop(wire);
    wait_until("the last statement to be carried out", || {
        let found = stage.value("SELECT count(*) FROM notes WHERE id = 8");
        found == "1"
    });
    // The server says why it ends.
    let mut wire = open(&stage, "postgres");
    let pid = wire.backend_pid();
    stage.sql(&format!("SELECT pg_terminate_backend({pid})"));
    let answer = wire.until_closed();
    assert_eq!(answer[0].sqlstate(), "57P01", "{}", pretty(&answer));
}

/// The connection is exempt as a whole: its SQL is not fenced, and no takeover ends it. So it can hold no token.
#[test]
fn it_is_not_fenced() {
    let stage = stage(&PolicyFile::new(FOR_EVERYBODY), &[]);
    let mut wire = open(&stage, "postgres");
    let _leader = stage.leader("34");
    wire.ok("INSERT INTO notes VALUES (1)");
    assert_eq!(wire.rows("SHOW default_transaction_read_only"), [["off"]]);
    assert_no_entry(&stage, "postgres", &[("fencing.token", "33")], "PF003");
    let options = ("options", "-c fencing.token=35");
    assert_no_entry(&stage, "postgres", &[options], "PF003");
    assert_eq!(
        stage.records(2),
        [
            ("invalid_token".to_owned(), true),
            ("invalid_token".to_owned(), true)
        ]
    );
    assert_eq!(stage.plain().rows("SHOW fencing.mark"), [["34"]]);
}

/// In observe mode it passes and is recorded, unless it would open an enforced scope.
#[test]
fn observed() {
    let policy = PolicyFile::new("[defaults]\nmode = \"observe\"\n");
    let stage = stage(&policy, &[]);
    open(&stage, "backup").ok("IDENTIFY_SYSTEM");
    let (mut wire, _) = connect(&stage, "postgres", &[("fencing.token", "33")]);
    wire.ok("INSERT INTO notes VALUES (1)");
    let expected = [("policy".to_owned(), false), ("policy".to_owned(), false)];
    assert_eq!(stage.records(2), expected);
    let billing = "[defaults]\nmode = \"observe\"\n\n[scope.billing]\ntables = [\"jobs.*\"]\nmode = \"enforce\"\n";
    policy.reload(&stage.proxy, billing);
    assert_no_entry(&stage, "backup", &[], "PF005");
}

/// A new policy applies to new connections.
#[test]
fn a_reload() {
    let policy = PolicyFile::new(FOR_EVERYBODY);
    let stage = stage(&policy, &[]);
    let mut wire = open(&stage, "backup");
    policy.reload(&stage.proxy, "");
    assert_no_entry(&stage, "backup", &[], "PF005");
    wire.ok("IDENTIFY_SYSTEM");
    policy.reload(&stage.proxy, FOR_SOME);
    open(&stage, "backup").ok("IDENTIFY_SYSTEM");
}
