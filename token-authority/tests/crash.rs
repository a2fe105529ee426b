//! Acknowledged steps of the embedded store survive kill -9 during commits, and a full disk does not stop the store.
//! The store runs in a child process: this test binary again.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use pgpalisade_authority::{
    Authority, AuthorityError, Backend, Cluster, Declaration, Declared, Embedded, Scope, Token,
};

const DIR: &str = "PGPALISADE_CRASH_TEST_DIR";

const CLUSTER: Cluster = Cluster {
    system_identifier: 1,
    timeline: 1,
    postmaster_us: 1_700_000_000_000_000,
};

fn backend(pid: i32) -> Backend {
    Backend {
        pid,
        started_us: i64::from(pid) * 10,
    }
}

/// Starts this binary with one of the `child_` tests, through `shell` (the command is `"$@"`).
fn child(test: &str, dir: &Path, shell: &str) -> Child {
    Command::new("sh")
        .args(["-c", shell, "sh"])
        .arg(std::env::current_exe().unwrap())
        .args([
            test,
            "--exact",
            "--ignored",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(DIR, dir)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

fn child_dir() -> PathBuf {
    std::env::var_os(DIR)
        .expect("only the crash tests start this")
        .into()
}

/// Declares ever higher tokens in four scopes concurrently, and prints each acknowledged one.
#[test]
#[ignore = "a child process of the crash test"]
fn child_declares_for_ever() {
    let store = Embedded::open(&child_dir()).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(store.enrol(CLUSTER)).unwrap();
    let begin = runtime.block_on(store.marks()).unwrap();
    let begin = begin
        .into_iter()
        .map(|(_, m)| m.token.get())
        .max()
        .unwrap_or(0);
    runtime.block_on(async {
        let mut tasks = tokio::task::JoinSet::new();
        for task in 0..4_u64 {
            let store = store.clone();
            tasks.spawn(async move {
                let scope = Scope::new(&format!("s{task}")).unwrap();
                for value in begin + 1.. {
                    let pid = i32::try_from(value * 4 + task).unwrap();
                    let (token, backend) = (Token::new(value).unwrap(), backend(pid));
                    let declaration = Declaration::new(&scope, token, backend, CLUSTER, "child");
                    let answer = store.declare(&declaration).await.unwrap();
                    assert!(matches!(answer, Declared::Accepted { .. }));
                    println!("ack {scope} {value} {pid}.");
                }
            });
        }
        tasks.join_all().await;
    });
}

/// Fills a small disk, then prints the result.
#[test]
#[ignore = "a child process of the full-disk test"]
fn child_fills_the_disk() {
    let store = Embedded::open(&child_dir()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(store.enrol(CLUSTER)).unwrap();
    let mut acknowledged = 0;
    let error = loop {
        let scope = Scope::new(&format!("{:0>200}", acknowledged + 1)).unwrap();
        let token = Token::new(1).unwrap();
        let declaration = Declaration::new(&scope, token, backend(1), CLUSTER, "child");
        match runtime.block_on(store.declare(&declaration)) {
            Ok(_) => acknowledged += 1,
            Err(error) => break error,
        }
    };
    let readable = runtime.block_on(store.marks()).map(|marks| marks.len());
    let kind = match error {
        AuthorityError::Storage(_) => "storage",
        _ => "other",
    };
    println!(
        "full {kind} {acknowledged} {} {error}",
        readable.unwrap_or(0)
    );
}

#[test]
fn acknowledged_declarations_survive_kill_9() {
    let dir = tempfile::tempdir().unwrap();
    let mut acknowledged: BTreeMap<String, (u64, i32)> = BTreeMap::new();
    let mut sessions = Vec::new();
    for round in 1..=6 {
        let mut process = child("child_declares_for_ever", dir.path(), "exec \"$@\"");
        let mut lines = BufReader::new(process.stdout.take().unwrap());
        let mut text = String::new();
        for _ in 0..(40 * round) {
            let seen = lines.read_line(&mut text).unwrap();
            assert_ne!(seen, 0, "the child ended: {text}");
        }
        process.kill().unwrap();
        lines.read_to_string(&mut text).unwrap();
        process.wait().unwrap();
        for line in text.lines().filter_map(|l| l.strip_suffix('.')) {
            // The test harness may have begun the line.
            let Some((_, ack)) = line.split_once("ack ") else {
                continue;
            };
            let parts: Vec<&str> = ack.split(' ').collect();
            let [scope, value, pid] = parts.as_slice() else {
                continue;
            };
            let (value, pid) = (value.parse().unwrap(), pid.parse().unwrap());
            acknowledged.insert((*scope).to_owned(), (value, pid));
            sessions.push(pid);
        }
        let store = Embedded::open(dir.path()).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let marks: BTreeMap<String, u64> = runtime
            .block_on(store.marks())
            .unwrap()
            .into_iter()
            .map(|(s, m)| (s.to_string(), m.token.get()))
            .collect();
        let found = runtime.block_on(store.sessions()).unwrap();
        for (scope, (value, _)) in &acknowledged {
            assert!(
                marks.get(scope) >= Some(value),
                "round {round}: {scope} {value}, {marks:?}"
            );
        }
        for pid in &sessions {
            let known = found.iter().any(|(_, r)| r.backend == backend(*pid));
            assert!(
                known,
                "round {round}: session {pid} was acknowledged and is lost"
            );
        }
    }
    assert!(sessions.len() > 100, "only {} acknowledged", sessions.len());
}

#[test]
fn a_full_disk_is_an_error_and_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    drop(Embedded::open(dir.path()).unwrap());
    // A limit on file sizes replaces the full disk: 1.6 MiB, in units of 512 bytes.
    let limited = "trap '' XFSZ; ulimit -f 3300; exec \"$@\"";
    let mut process = child("child_fills_the_disk", dir.path(), limited);
    let mut text = String::new();
    process
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut text)
        .unwrap();
    assert!(process.wait().unwrap().success(), "{text}");
    let line = text
        .lines()
        .find_map(|l| l.split_once("full "))
        .expect(&text)
        .1;
    println!("{line}");
    let parts: Vec<&str> = line.splitn(4, ' ').collect();
    let [kind, acknowledged, readable, message] = parts.as_slice() else {
        unreachable!("four parts: {line}")
    };
    assert_eq!(*kind, "storage", "{message}");
    assert!(message.contains("authority.redb"), "{message}");
    let acknowledged: usize = acknowledged.parse().unwrap();
    assert!(acknowledged > 10);
    assert!(
        readable.parse::<usize>().unwrap() >= acknowledged,
        "still readable: {line}"
    );
    let store = Embedded::open(dir.path()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    assert!(runtime.block_on(store.marks()).unwrap().len() >= acknowledged);
}
