//! Unusual directories and files of the embedded store, and group commit.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use redb::Database;
use tokio::sync::oneshot;

use super::tables::META;
use super::*;
use crate::{Incarnation, Repair, Token};

const DAMAGED: &str = "is damaged or not a store of pgpalisade";
const EXPOSED: &str = ", which holds the marks";
const NO_DIRECTORY: &str = "does not exist, and this user cannot create it";

fn open_error(dir: &Path) -> OpenError {
    Embedded::open(dir).map(|_| ()).expect_err("must not open")
}

#[track_caller]
fn says(error: &OpenError, part: &str) {
    assert!(error.to_string().contains(part), "{error}");
}

fn file(dir: &Path) -> std::path::PathBuf {
    dir.join("authority.redb")
}

fn scope() -> Scope {
    Scope::default()
}

const CLUSTER: Cluster = Cluster {
    system_identifier: 1,
    timeline: 1,
    postmaster_us: 1_700_000_000_000_000,
};

fn declaration(scope: &Scope, value: u64, pid: i32) -> Declaration {
    Declaration::new(
        scope,
        Token::new(value).unwrap(),
        Backend { pid, started_us: 1 },
        CLUSTER,
        "test",
    )
}

async fn declare(store: &Embedded, value: u64, pid: i32) -> Result<Declared, AuthorityError> {
    store.enrol(CLUSTER).await?;
    store.declare(&declaration(&scope(), value, pid)).await
}

#[tokio::test]
async fn keeps_everything_over_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a/b");
    let store = Embedded::open(&path).unwrap();
    declare(&store, Token::MAX, 1).await.unwrap();
    let (from, to) = (Token::new(Token::MAX).unwrap(), Token::new(34).unwrap());
    let repair = Repair::new(7, "alice", &"\u{e9}".repeat(900), from, to);
    assert!(repair.reason.len() <= Repair::REASON_MAX);
    let request = RepairRequest {
        scope: scope(),
        expected: from.into(),
        cluster: CLUSTER,
        repair: repair.clone(),
    };
    let repaired = store.repair(&request).await.unwrap();
    assert!(matches!(repaired, Repaired::Done { .. }), "{repaired:?}");
    declare(&store, 34, 2).await.unwrap();
    let before = crate::Contents::read(&store).await.unwrap();
    let (_, mark) = &before.marks[0];
    assert_eq!((mark.token, mark.incarnation), (to, Incarnation::new(1)));
    assert_eq!(mark.repair.as_deref(), Some(&repair));
    drop(store);
    let store = Embedded::open(&path).unwrap();
    assert_eq!(crate::Contents::read(&store).await.unwrap(), before);
    let declared = declare(&store, 34, 2).await.unwrap();
    let Declared::Accepted { lower, .. } = declared else {
        panic!("{declared:?}")
    };
    let old: Vec<_> = lower.iter().map(|old| old.backend.pid).collect();
    assert_eq!(old, [1]);
    let mode = |p: &Path| fs::metadata(p).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&path), mode(&file(&path))), (0o700, 0o600));
    let found = fs::read_dir(&path).unwrap().count();
    assert_eq!(found, 1, "nothing is left of the making");
}

#[test]
fn second_opener_is_refused_until_the_first_closes() {
    let dir = tempfile::tempdir().unwrap();
    let first = Embedded::open(dir.path()).unwrap();
    let second = first.clone();
    drop(first);
    let error = open_error(dir.path());
    assert!(matches!(error, OpenError::InUse(_)), "{error}");
    assert!(
        error
            .to_string()
            .contains(&dir.path().display().to_string()),
        "{error}"
    );
    drop(second);
    Embedded::open(dir.path()).unwrap();
}

#[test]
fn damaged_files_are_an_error_that_names_them() {
    let dir = tempfile::tempdir().unwrap();
    drop(Embedded::open(dir.path()).unwrap());
    let good = fs::read(file(dir.path())).unwrap();
    let cases: Vec<(String, Vec<u8>)> = vec![
        ("empty".into(), vec![]),
        ("text".into(), b"this is not a database".to_vec()),
        ("zeros".into(), vec![0; good.len()]),
        ("ones".into(), vec![0xff; good.len()]),
        (
            "header only".into(),
            good.iter().take(320).copied().collect(),
        ),
        (
            "cut".into(),
            good.iter().take(good.len() / 2).copied().collect(),
        ),
        ("noise after the magic number".into(), {
            let noise = (0..good.len()).map(|i| u8::try_from(i * 31 % 251).unwrap());
            good.iter().take(9).copied().chain(noise).collect()
        }),
    ];
    for (what, bytes) in cases {
        fs::write(file(dir.path()), &bytes).unwrap();
        let error = open_error(dir.path());
        println!("{what}: {error}");
        says(&error, DAMAGED);
        says(&error, "authority.redb");
        says(&read(dir.path()).unwrap_err(), DAMAGED);
        // No store is created from a foreign file, not even from an empty one.
        if bytes.is_empty() {
            assert_eq!(fs::metadata(file(dir.path())).unwrap().len(), 0);
        }
    }
    // A damaged header: redb may repair it or refuse it, but never panics.
    fs::write(file(dir.path()), &good).unwrap();
    let mut refused = 0;
    for at in (0..good.len().min(8192)).step_by(37) {
        let mut bytes = good.clone();
        bytes
            .iter_mut()
            .skip(at)
            .take(64)
            .for_each(|byte| *byte = !*byte);
        fs::write(file(dir.path()), &bytes).unwrap();
        match Embedded::open(dir.path()) {
            Ok(_) => {}
            Err(error) if error.to_string().contains(DAMAGED) => refused += 1,
            Err(error) => panic!("64 bytes turned at {at}: {error}"),
        }
    }
    println!("{refused} of the damaged headers refused");
    assert!(refused > 5, "only {refused} refused");
    fs::write(file(dir.path()), &good).unwrap();
    Embedded::open(dir.path()).unwrap();
}

#[test]
fn what_a_crash_left_of_the_first_start_is_not_used() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("authority.redb.new"), [0; 4096]).unwrap();
    Embedded::open(dir.path()).unwrap();
}

#[test]
fn other_formats_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    drop(Embedded::open(dir.path()).unwrap());
    let set = |format: &str| {
        let database = Database::create(file(dir.path())).unwrap();
        let txn = database.begin_write().unwrap();
        txn.open_table(META)
            .unwrap()
            .insert("format", format.as_bytes())
            .unwrap();
        txn.commit().unwrap();
    };
    for other in ["2", "4"] {
        set(other);
        says(&open_error(dir.path()), &format!("has format {other},"));
    }
    set("one");
    says(&open_error(dir.path()), DAMAGED);
    set("3");
    Embedded::open(dir.path()).unwrap();
    let foreign = tempfile::tempdir().unwrap();
    drop(Database::create(file(foreign.path())).unwrap());
    says(&open_error(foreign.path()), DAMAGED);
}

#[test]
fn directories_that_will_not_do() {
    let dir = tempfile::tempdir().unwrap();
    let exposed = dir.path().join("exposed");
    fs::create_dir(&exposed).unwrap();
    fs::set_permissions(&exposed, fs::Permissions::from_mode(0o777)).unwrap();
    let error = open_error(&exposed);
    says(&error, EXPOSED);
    says(&error, "(mode 777)");
    let not_a_directory = dir.path().join("file");
    fs::write(&not_a_directory, "").unwrap();
    let error = open_error(&not_a_directory);
    assert!(matches!(error, OpenError::Io { .. }), "{error}");
    // Root may write anywhere but here.
    says(&open_error(Path::new("/proc/1/authority")), NO_DIRECTORY);
}

#[tokio::test]
async fn requests_that_wait_together_share_a_commit() {
    let dir = tempfile::tempdir().unwrap();
    let store = Embedded::open(dir.path()).unwrap();
    store.enrol(CLUSTER).await.unwrap();
    // Keep the thread busy so that the others queue up.
    let (entered, is_busy) = oneshot::channel();
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let blocker = tokio::spawn({
        let store = store.clone();
        async move {
            let step = move |_: &mut StoreTables<'_>| {
                entered.send(()).unwrap();
                wait.recv().unwrap();
                Ok(())
            };
            store.call(step).await
        }
    });
    is_busy.await.unwrap();
    let mut calls = tokio::task::JoinSet::new();
    for pid in 1..=50 {
        let store = store.clone();
        calls.spawn(async move {
            let step = move |tables: &mut StoreTables<'_>| {
                // The first step of a transaction finds it unchanged.
                let first = !tables.changed;
                let declared = tables.declare(&declaration(&scope(), 1, pid), 0);
                declared.map(|_| first)
            };
            store.call(step).await.unwrap()
        });
    }
    tokio::task::yield_now().await;
    go.send(()).unwrap();
    let transactions = calls
        .join_all()
        .await
        .into_iter()
        .filter(|first| *first)
        .count();
    blocker.await.unwrap().unwrap();
    assert_eq!(transactions, 1, "fifty declarations, one commit");
    assert_eq!(store.sessions().await.unwrap().len(), 50);
}

/// As of a write to a disk that hangs. The process must be able to end.
#[tokio::test]
async fn a_step_that_hangs_does_not_hold_up_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let store = Embedded::open(dir.path()).unwrap();
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let hanging = store.call(move |_: &mut StoreTables<'_>| {
        let _gone = wait.recv();
        Ok(())
    });
    let moment = Duration::from_millis(100);
    assert!(tokio::time::timeout(moment, hanging).await.is_err());
    let (ends, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        drop(store);
        ends.send(())
    });
    ended.recv_timeout(END_WITHIN * 3).unwrap();
    drop(go);
}

/// Writes to a file without a name are gone at the next start.
#[tokio::test]
async fn a_file_that_is_removed_or_replaced_takes_no_step() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a");
    let store = Embedded::open(&path).unwrap();
    store.enrol(CLUSTER).await.unwrap();
    declare(&store, 1, 1).await.unwrap();
    let copy = dir.path().join("copy");
    fs::copy(file(&path), &copy).unwrap();
    // What hides it for a moment does not remove it.
    let away = dir.path().join("away");
    fs::rename(&path, &away).unwrap();
    fs::write(&path, "").unwrap();
    let hidden = declare(&store, 2, 2).await.unwrap_err();
    assert!(matches!(hidden, AuthorityError::Storage(_)), "{hidden}");
    fs::remove_file(&path).unwrap();
    fs::rename(&away, &path).unwrap();
    declare(&store, 2, 2).await.unwrap();
    fs::remove_file(file(&path)).unwrap();
    let removed = declare(&store, 3, 3).await.unwrap_err();
    assert!(matches!(removed, AuthorityError::WentBack(_)), "{removed}");
    fs::rename(copy, file(&path)).unwrap();
    let replaced = declare(&store, 4, 4).await.unwrap_err();
    assert!(
        matches!(replaced, AuthorityError::WentBack(_)),
        "{replaced}"
    );
}

#[tokio::test]
async fn a_failed_step_undoes_its_transaction_and_the_store_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let store = Embedded::open(dir.path()).unwrap();
    store.enrol(CLUSTER).await.unwrap();
    let failed = store
        .call(|tables| {
            tables.declare(&declaration(&scope(), 9, 1), 0)?;
            Err::<(), _>(StepError::Record("on purpose".into()))
        })
        .await;
    assert!(
        matches!(failed, Err(AuthorityError::Damaged(_))),
        "{failed:?}"
    );
    let panicked: Result<(), _> = store.call(|_| panic!("on purpose")).await;
    assert!(
        matches!(panicked, Err(AuthorityError::Damaged(_))),
        "{panicked:?}"
    );
    assert_eq!(store.marks().await.unwrap(), vec![]);
    declare(&store, 1, 1).await.unwrap();
}

fn bytes_in(dir: &Path) -> Vec<(std::path::PathBuf, Vec<u8>)> {
    let entries = fs::read_dir(dir).unwrap();
    let mut files: Vec<_> = entries
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.clone(), fs::read(path).unwrap()))
        .collect();
    files.sort();
    files
}

#[tokio::test]
async fn reading_tells_all_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a");
    assert_eq!(read(&path).unwrap(), Found::Nothing);
    assert!(!path.exists());
    let store = Embedded::open(&path).unwrap();
    declare(&store, 7, 1).await.unwrap();
    assert_eq!(read(&path).unwrap(), Found::InUse);
    // As a killed process leaves it: redb has to repair it.
    let unclean = dir.path().join("b");
    fs::create_dir(&unclean).unwrap();
    fs::copy(file(&path), file(&unclean)).unwrap();
    let contents = crate::Contents::read(&store).await.unwrap();
    assert_eq!((contents.marks.len(), contents.sessions.len()), (1, 1));
    drop(store);
    for dir in [path, unclean] {
        let before = bytes_in(&dir);
        assert_eq!(read(&dir).unwrap(), Found::Contents(contents.clone()));
        assert_eq!(bytes_in(&dir), before, "{dir:?}");
    }
}

/// Rights of the file system do not apply to root: the end-to-end tests try them as another user.
#[test]
fn trying_to_open_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let files = || fs::read_dir(dir.path()).unwrap().count();
    let missing = dir.path().join("deep/inside");
    try_open(&missing).unwrap();
    try_open(dir.path()).unwrap();
    assert_eq!(files(), 0);
    let store = Embedded::open(&missing).unwrap();
    try_open(&missing).unwrap();
    drop(store);
    fs::write(dir.path().join("file"), "").unwrap();
    let error = try_open(&dir.path().join("file")).unwrap_err();
    assert!(matches!(error, OpenError::Io { .. }), "{error}");
    let error = try_open(Path::new("/proc/authority")).unwrap_err();
    says(&error, NO_DIRECTORY);
    for exposed in [file(&missing), missing.clone()] {
        fs::set_permissions(&exposed, fs::Permissions::from_mode(0o777)).unwrap();
        says(&try_open(&missing).unwrap_err(), EXPOSED);
        says(&open_error(&missing), EXPOSED);
    }
}
