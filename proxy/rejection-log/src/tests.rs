//! Tests of JSON, the file, reopening, and counts of dropped records.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};

use super::*;
use pgpalisade_fence::rejection::{Enforcement, Rejection, RejectionKind};
use pgpalisade_fence::traceparent::Traceparent;
use pgpalisade_logins::ClientAddr;
use pgpalisade_policies::Class;

const TRACED: &[u8] =
    b"/*traceparent='00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01'*/ SELECT 1";

fn record(token: u64) -> RejectionRecord {
    RejectionRecord {
        time: SystemTime::UNIX_EPOCH + Duration::from_micros(1_700_000_000_123_456),
        kind: RejectionKind::StaleToken,
        scope: Some("default".into()),
        token: Some(token),
        mark: Some(34),
        raised_at: Some(SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000)),
        raised_by: Some("app@10.0.0.2".into()),
        session: SessionLabel {
            user: "app".into(),
            database: "shop\n".into(),
            application_name: None,
            common_name: None,
            client_addr: ClientAddr::Tcp("10.0.0.1:5000".parse().unwrap()),
            backend_pid: Some(77),
        },
        statement: RecordedStatement::new(
            &JudgedText {
                class: "write",
                text: b"INSERT INTO t VALUES ('x')".to_vec(),
                traceparent: Traceparent::of_statement(TRACED),
            },
            Literals::Remove,
        ),
        reason: None,
        needs: None,
        transaction: None,
        enforced: Enforcement::Refused,
        count: 1,
    }
}

fn observed(token: u64) -> RejectionRecord {
    RejectionRecord {
        kind: RejectionKind::NoToken,
        needs: Some(Class::Write),
        enforced: Enforcement::Observed,
        ..record(token)
    }
}

fn lines(text: &str) -> Vec<Value> {
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[track_caller]
fn eventually(mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(10), "not within 10 s");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_record_is_one_json_line() {
    let line = record(33).to_json_line();
    assert!(!line.contains('\n'));
    assert!(
        line.starts_with("{\"time\":\"2023-11-14T22:13:20.123456Z\",\"kind\":\"stale_token\""),
        "{line}"
    );
    let expect = json!({
        "time": "2023-11-14T22:13:20.123456Z", "kind": "stale_token", "sqlstate": "PF001", "scope": "default",
        "token": 33, "mark": 34, "raised_at": "2023-11-14T22:13:20.000000Z", "raised_by": "app@10.0.0.2",
        "user": "app", "database": "shop\n", "application_name": null, "client_addr": "10.0.0.1:5000",
        "backend_pid": 77, "authenticated": true,
        "statement_class": "write", "statement": "INSERT INTO t VALUES (?)",
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "needs": null, "transaction": null,
        "reason": null,
        "enforced": true, "count": 1,
    });
    assert_eq!(lines(&line), [expect]);
}

#[test]
fn what_was_only_observed_says_so() {
    let line = &lines(&observed(33).to_json_line())[0];
    assert_eq!(
        (&line["enforced"], &line["needs"]),
        (&json!(false), &json!("write"))
    );
}

#[test]
fn long_names_are_clipped() {
    let mut session = record(1).session;
    session.user = "é".repeat(10_000);
    session.application_name = Some("x".repeat(10_000));
    let why = "y".repeat(10_000);
    let rejection = Rejection::takeover_incomplete(None, &why);
    let statement = RecordedStatement::default();
    let record = RejectionRecord::new(&rejection, &session, statement, Enforcement::Refused);
    let line = &lines(&record.to_json_line())[0];
    let len = |field: &str| line[field].as_str().unwrap().len();
    assert_eq!(
        [len("user"), len("application_name"), len("reason")],
        [256, 256, 1024]
    );
}

#[test]
fn appends_with_mode_0640_and_flushes_on_drop() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("r.jsonl");
    for round in 0..2 {
        let log = RejectionLog::open(Some(&path), Literals::Remove).unwrap();
        for token in 0..100 {
            log.clone().record(record(round * 100 + token));
        }
    }
    let tokens: Vec<u64> = lines(&std::fs::read_to_string(&path).unwrap())
        .iter()
        .map(|line| line["token"].as_u64().unwrap())
        .collect();
    assert_eq!(tokens, (0..200).collect::<Vec<u64>>());
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o137, 0, "{mode:o}: nothing beyond 0640");
}

#[test]
fn a_file_that_cannot_be_opened_is_an_error() {
    let error = RejectionLog::open(Some(Path::new("/nowhere/r")), Literals::Remove).unwrap_err();
    assert!(error.to_string().contains("/nowhere/r"));
}

/// A disk that hangs or fails on demand: each write waits for a verdict.
struct Disk {
    verdicts: Receiver<io::Result<()>>,
    entered: Sender<()>,
    text: Arc<Mutex<String>>,
}

impl Write for Disk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _ = self.entered.send(());
        // Without a sender the disk works again.
        self.verdicts.recv().unwrap_or(Ok(()))?;
        self.text
            .lock()
            .unwrap()
            .push_str(std::str::from_utf8(bytes).unwrap());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

type Verdicts = Sender<io::Result<()>>;

/// Such a disk, its verdicts, a notice of each write, and the text.
fn disk() -> (Disk, Verdicts, Receiver<()>, Arc<Mutex<String>>) {
    let (verdict, verdicts) = channel();
    let (entered, entries) = channel();
    let text = Arc::new(Mutex::new(String::new()));
    let disk = Disk {
        verdicts,
        entered,
        text: Arc::clone(&text),
    };
    (disk, verdict, entries, text)
}

#[test]
fn a_hanging_disk_blocks_nobody_and_the_gap_is_counted() {
    let (disk, verdict, entries, text) = disk();
    let log = RejectionLog::start(Some(Sink::to(disk)), Literals::Remove, 4).unwrap();
    log.record(record(0));
    entries.recv().unwrap(); // The writer now hangs in its first write.
    let start = Instant::now();
    for token in 1..=10 {
        log.record(record(token));
    }
    assert!(start.elapsed() < Duration::from_secs(1));
    drop(verdict);
    drop(log);
    let lines = lines(&text.lock().unwrap());
    let dropped: u64 = lines
        .iter()
        .filter_map(|line| line["dropped"].as_u64())
        .sum();
    let tokens: Vec<u64> = lines
        .iter()
        .filter_map(|line| line["token"].as_u64())
        .collect();
    assert_eq!((tokens, dropped), (vec![0, 1, 2, 3, 4], 6));
}

#[derive(Clone, Default)]
struct Times(Arc<Mutex<Vec<Instant>>>);

impl Write for Times {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().push(Instant::now());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Otherwise every record of a flood would wake the writer, which costs the session's thread more than the record.
#[test]
fn the_writer_rests_between_two_records() {
    const ROUNDS: usize = 21;
    let times = Times::default();
    let log = RejectionLog::start(Some(Sink::to(times.clone())), Literals::Remove, 4).unwrap();
    let written = || times.0.lock().unwrap().len();
    let mut pauses: Vec<Duration> = (0..ROUNDS)
        .map(|round| {
            let before = written();
            // Distinct records.
            log.record(record(round as u64));
            eventually(|| written() == before + 1);
            // By now the writer waits.
            std::thread::sleep(Duration::from_millis(1));
            log.record(observed(round as u64));
            eventually(|| written() == before + 2);
            std::thread::sleep(2 * writer::REST);
            let times = times.0.lock().unwrap();
            times[before + 1] - times[before]
        })
        .collect();
    pauses.sort();
    // The median: on a busy machine a thread may stall anywhere.
    assert!(pauses[ROUNDS / 2] >= writer::REST, "{pauses:?}");
}

#[test]
fn the_count_is_written_without_a_further_record() {
    let (disk, verdict, entries, text) = disk();
    let log = RejectionLog::start(Some(Sink::to(disk)), Literals::Remove, 1).unwrap();
    log.record(record(0));
    entries.recv().unwrap();
    log.record(record(1));
    log.record(record(2));
    drop(verdict);
    eventually(|| text.lock().unwrap().contains("\"dropped\":1"));
    drop(log);
}

#[test]
fn a_full_disk_is_counted_and_a_torn_line_spoils_no_other() {
    let (disk, verdict, entries, text) = disk();
    let log = RejectionLog::start(Some(Sink::to(disk)), Literals::Remove, 16).unwrap();
    let full = || Err(io::Error::from(io::ErrorKind::StorageFull));
    verdict.send(Ok(())).unwrap();
    verdict.send(full()).unwrap(); // Record 1.
    verdict.send(full()).unwrap(); // The note about the missing record, before record 2.
    drop(verdict);
    for token in 0..4 {
        log.record(record(token));
    }
    drop(log);
    assert_eq!(entries.iter().count(), 5);
    let text = text.lock().unwrap();
    let written: Vec<&str> = text.lines().collect();
    assert_eq!(written[1], "", "the torn line is ended first");
    let lines: Vec<Value> = written
        .iter()
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines[0]["token"], 0);
    assert_eq!(lines[1]["dropped"], 2);
    assert_eq!(lines[2]["token"], 3);
}

#[test]
fn a_full_disk_is_told_without_a_further_refusal() {
    let (disk, verdict, _entries, text) = disk();
    let log = RejectionLog::start(Some(Sink::to(disk)), Literals::Remove, 16).unwrap();
    let full = || Err(io::Error::from(io::ErrorKind::StorageFull));
    (0..2).for_each(|_| verdict.send(full()).unwrap());
    drop(verdict);
    log.record(record(1));
    eventually(|| text.lock().unwrap().contains("\"dropped\":1"));
}

#[test]
fn refusals_before_authentication_are_counted_on_a_full_disk() {
    const LOGINS: u64 = repeats::FIRST + 5;
    let (disk, verdict, _entries, text) = disk();
    let log = RejectionLog::start(Some(Sink::to(disk)), Literals::Remove, 16).unwrap();
    let full = || Err(io::Error::from(io::ErrorKind::StorageFull));
    // The first ones, and the line that counts the others.
    (0..=repeats::FIRST).for_each(|_| verdict.send(full()).unwrap());
    drop(verdict);
    let mut login = record(1);
    login.session.backend_pid = None;
    (0..LOGINS).for_each(|_| log.record(login.clone()));
    drop(log);
    let lines: Vec<Value> = lines(text.lock().unwrap().trim_start());
    assert_eq!((lines.len(), &lines[0]["dropped"]), (1, &json!(LOGINS)));
}

/// A proxy that was killed, or a full disk before SIGHUP.
#[test]
fn half_a_line_in_the_file_spoils_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r");
    for (before, expect) in [("", ""), ("{}\n", "{}\n"), ("{\"ti", "{\"ti\n")] {
        std::fs::write(&path, before).unwrap();
        let sink = Some(Sink::open(&path).unwrap());
        let log = RejectionLog::start(sink, Literals::Remove, 16).unwrap();
        log.record(record(1));
        drop(log);
        let text = std::fs::read_to_string(&path).unwrap();
        let written = text.strip_prefix(expect).unwrap();
        assert_eq!(written.lines().count(), 1, "{text}");
        let line: Value = serde_json::from_str(written).unwrap();
        assert_eq!(line["token"], 1);
    }
}

fn events(level: tracing::Level, work: impl FnOnce(&RejectionLog)) -> Vec<Value> {
    #[derive(Clone, Default)]
    struct Captured(Arc<Mutex<Vec<u8>>>);
    impl Write for Captured {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    // With only one subscriber, tracing asks the first thread at a callsite, which may be another test's.
    let _second = tracing::Dispatch::new(tracing_subscriber::registry());
    let captured = Captured::default();
    let writer = captured.clone();
    let subscriber = tracing_subscriber::fmt()
        .json()
        .with_max_level(level)
        .with_writer(move || writer.clone())
        .finish();
    let directory = tempfile::tempdir().unwrap();
    tracing::subscriber::with_default(subscriber, || {
        let log = RejectionLog::open(Some(&directory.path().join("r")), Literals::Remove).unwrap();
        work(&log);
    });
    let text = String::from_utf8(captured.0.lock().unwrap().clone()).unwrap();
    lines(&text)
}

#[test]
fn each_refused_record_is_one_event() {
    let events = events(tracing::Level::INFO, |log| log.record(record(33)));
    assert_eq!(events.len(), 1, "{events:#?}");
    assert_eq!(events[0]["level"], "WARN");
    assert_eq!(events[0]["target"], "pgpalisade::rejection");
    assert_eq!(events[0]["fields"]["token"], 33);
    assert_eq!(events[0]["fields"]["statement"], "INSERT INTO t VALUES (?)");
}

#[test]
fn what_was_only_observed_does_not_flood_the_log() {
    let many = |log: &RejectionLog| (0..1000).for_each(|token| log.record(observed(token)));
    let told = events(tracing::Level::INFO, many);
    assert_eq!(told.len(), 1, "{told:#?}");
    let first = told[0]["fields"]["message"].as_str().unwrap();
    assert!(first.starts_with("rejections that were only observed"));
    assert_eq!(events(tracing::Level::DEBUG, many).len(), 1001);
    assert_eq!(events(tracing::Level::INFO, |_| {}).len(), 0);
}

/// The writer is slower than the records: most are dropped, and few notes say so.
#[test]
fn a_flood_is_bounded_and_counted_to_the_last_record() {
    const RECORDS: u64 = 20_000;
    let (disk, verdict, entries, text) = disk();
    let log = RejectionLog::start(Some(Sink::to(disk)), Literals::Remove, 64).unwrap();
    let answer = std::thread::spawn(move || {
        // Each write takes a moment until the log is gone, so that the queue is full again.
        while entries.recv().is_ok() {
            std::thread::sleep(Duration::from_micros(200));
            let _ = verdict.send(Ok(()));
        }
    });
    let start = Instant::now();
    for token in 0..RECORDS {
        log.record(observed(token));
        if token % 64 == 0 {
            std::thread::sleep(Duration::from_micros(300));
        }
    }
    drop(log);
    answer.join().unwrap();
    let lines = lines(&text.lock().unwrap());
    let gaps: Vec<u64> = lines
        .iter()
        .filter_map(|line| line["dropped"].as_u64())
        .collect();
    let written = lines.iter().filter(|line| line["token"].is_u64()).count() as u64;
    let dropped: u64 = gaps.iter().sum();
    println!("{written} written, {dropped} dropped, {} notes", gaps.len());
    assert!(dropped > 1_000, "no flood: {dropped}");
    assert_eq!(written + dropped, RECORDS);
    // One note where the queue ran empty, which takes its 64 records, or a second after the last.
    let allowed = 2 + written / 64 + start.elapsed().as_secs();
    assert!(
        gaps.len() as u64 <= allowed,
        "{} notes, a flood of their own",
        gaps.len()
    );
}

fn count_of(lines: &[Value], matches: impl Fn(&Value) -> bool) -> u64 {
    let counts = lines.iter().filter(|line| matches(line));
    counts.map(|line| line["count"].as_u64().unwrap()).sum()
}

/// A leader that retries forever leaves the disk, the log and the memory to others.
#[test]
fn refusals_that_repeat_are_few_records_and_none_is_lost() {
    const STORM: u64 = 50_000;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("r");
    let log = RejectionLog::open(Some(&path), Literals::Remove).unwrap();
    let mut other = record(7);
    other.session.user = "other".to_owned();
    for number in 0..STORM {
        let mut again = record(33);
        // A separate connection and another trace for each.
        again.session.client_addr =
            ClientAddr::Tcp(([10, 0, 0, 1], 1024 + (number % 50_000) as u16).into());
        again.session.backend_pid = Some(number as i32 + 1);
        again.statement.traceparent = None;
        again.time += Duration::from_micros(number);
        log.record(again);
        if number == STORM / 2 {
            log.record(other.clone());
        }
    }
    let recent = log.recent();
    assert_eq!(recent.len() as u64, repeats::FIRST + 1);
    assert_eq!(recent.last().unwrap().session.user, "other");
    drop(log);
    let lines = lines(&std::fs::read_to_string(&path).unwrap());
    assert_eq!(lines.len() as u64, repeats::FIRST + 2);
    assert_eq!(count_of(&lines, |line| line["token"] == 33), STORM);
    assert_eq!(count_of(&lines, |line| line["user"] == "other"), 1);
    let summed_up = lines.last().unwrap();
    assert_eq!(summed_up["count"], STORM - repeats::FIRST);
    // The time of the last one.
    assert_eq!(summed_up["time"], "2023-11-14T22:13:20.173455Z");
}

/// The count needs neither the end nor a further record.
#[test]
fn what_repeats_is_told_after_a_while() {
    let repeats = Repeats::default();
    for _ in 0..3 * repeats::FIRST {
        repeats.admit(record(1));
        repeats.admit(record(2));
    }
    repeats.admit(record(3));
    assert!(repeats.take(Duration::from_secs(60)).is_empty());
    let mut tokens: Vec<(Option<u64>, u64)> = repeats
        .take(Duration::ZERO)
        .into_iter()
        .map(|left_out| match left_out {
            repeats::LeftOut::Repeated(record) => (record.token, record.count),
            other => panic!("{other:?}"),
        })
        .collect();
    tokens.sort_unstable();
    let each = 2 * repeats::FIRST;
    assert_eq!(tokens, [(Some(1), each), (Some(2), each)]);
    assert!(
        repeats.admit(record(1)).is_some(),
        "the first of a new window"
    );
}

/// Further ones have few records too, another user's own ones, and none is lost.
#[test]
fn kinds_that_are_counted_have_a_limit() {
    const RECORDS: u64 = 5_000;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("r");
    let log = RejectionLog::open(Some(&path), Literals::Remove).unwrap();
    let mut other = record(7);
    other.session.user = "other".to_owned();
    for token in 0..RECORDS {
        log.record(record(token));
        log.record(record(RECORDS));
    }
    log.record(other);
    drop(log);
    let lines = lines(&std::fs::read_to_string(&path).unwrap());
    let records = lines.iter().filter(|line| line["kind"].is_string());
    assert!(records.count() <= repeats::KINDS + 2 * repeats::FIRST as usize + 1);
    assert_eq!(count_of(&lines, |line| line["user"] == "other"), 1);
    let dropped = lines.iter().filter_map(|line| line["dropped"].as_u64());
    let told = count_of(&lines, |line| line["kind"].is_string());
    assert_eq!(dropped.sum::<u64>() + told, 2 * RECORDS + 1);
}

#[test]
fn the_last_records_are_in_memory() {
    let log = RejectionLog::open(None, Literals::Remove).unwrap();
    let kept = recent::KEPT as u64;
    for token in 0..kept + 20 {
        log.record(record(token));
    }
    let tokens: Vec<u64> = log.recent().iter().map(|r| r.token.unwrap()).collect();
    assert_eq!(tokens, (20..kept + 20).collect::<Vec<u64>>());
}
