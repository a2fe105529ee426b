//! `pgpalisade rejections` as a user runs it: files, hostile contents, and files that grow.

use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, ExitStatus, Output};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use pgpalisade_test_servers::machine::{Signal, signal};
use serde_json::{Value, json};

use crate::{Place, check};

const PATIENCE: Duration = Duration::from_secs(30);

/// With these fields changed.
fn line(changes: &Value) -> String {
    let mut line = json!({
        "time": "2026-11-21T03:00:00.000000Z", "kind": "no_token", "sqlstate": "PF002", "scope": "default",
        "token": null, "mark": null, "raised_at": null, "raised_by": null, "user": "app", "database": "shop",
        "application_name": "worker", "client_addr": "10.0.0.1:5000", "backend_pid": 77, "authenticated": true,
        "statement_class": "INSERT", "statement": "INSERT INTO t VALUES (?)", "traceparent": null, "reason": null,
        "enforced": true, "count": 1,
    });
    for (name, value) in changes.as_object().unwrap() {
        *line.get_mut(name).unwrap() = value.clone();
    }
    format!("{line}\n")
}

impl Place {
    fn append(&self, name: &str, text: &str) {
        let mut options = OpenOptions::new();
        let file = options.append(true).create(true).open(self.path(name));
        file.unwrap().write_all(text.as_bytes()).unwrap();
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.pgpalisade("rejections");
        command.args(arguments);
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }
}

struct Following {
    child: Child,
    lines: Receiver<String>,
}

impl Following {
    fn start(mut command: Command) -> Self {
        let mut child = command.spawn().unwrap();
        let (sender, lines) = channel();
        let out = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            let lines = out.lines().map_while(Result::ok);
            lines
                .map(|line| sender.send(line))
                .take_while(Result::is_ok)
                .for_each(drop);
        });
        Self { child, lines }
    }

    #[track_caller]
    fn expect(&self, part: &str) {
        let line = self.lines.recv_timeout(PATIENCE).unwrap();
        assert!(line.contains(part), "{line} instead of {part}");
    }

    #[track_caller]
    fn ends(mut self) -> ExitStatus {
        let begin = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(begin.elapsed() < PATIENCE, "it goes on");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn a_scope_without_records_is_said() {
    let place = Place::new();
    place.append("r", &line(&json!({})));
    let says = "no record is of scope \"nope\"";
    let output = place.run(&["--scope=nope", "--json", "r"]);
    assert_eq!(check(&output, 1, says), "");
    let later = ["--scope=default", "--since=2026-11-22", "--json", "r"];
    assert_eq!(check(&place.run(&later), 0, ""), "");
}

#[test]
fn a_table_says_what_was_refused_and_why() {
    let place = Place::new();
    place.append("r", &line(&json!({})));
    place.append(
        "r",
        &line(&json!({
            "time": "2026-11-21T03:00:01.5Z", "kind": "session_ended", "sqlstate": "PF001", "scope": "jobs",
            "token": 33, "mark": 34, "statement": null, "application_name": null,
        })),
    );
    place.append(
        "r",
        &line(&json!({
            "kind": "takeover_incomplete", "sqlstate": "PF006", "statement": null, "reason": "pid 7 does not end.",
        })),
    );
    place.append("r", &line(&json!({"enforced": false, "count": 4990})));
    place.append("r", &line(&json!({"authenticated": false})));
    place.append(
        "r",
        "{\"time\":\"2026-11-21T03:00:02Z\",\"dropped\":17}\n\n",
    );
    place.append(
        "r",
        "{\"time\":\"2026-11-21T03:00:02Z\",\"unauthenticated\":9}\n",
    );
    let head =
        "KIND                 SCOPE     TOKEN  MARK   USER      APPLICATION  CLIENT       WHAT";
    let who = "app       worker       10.0.0.1   ";
    let no_token =
        format!("2026-11-21 03:00:00  PF002 no_token       default   -      -      {who}");
    let expect = [
        format!("TIME (UTC)           {head}"),
        format!("{no_token}  INSERT INTO t VALUES (?)"),
        "2026-11-21 03:00:01  PF001 session_ended  jobs      33     34     app       -            10.0.0.1     \
            its session"
            .to_owned(),
        "2026-11-21 03:00:00  PF006 takeover_incomplete  default   -      -      app       worker       10.0.0.1     \
            pid 7 does not end."
            .to_owned(),
        format!("{no_token}  4990 times: observed: INSERT INTO t VALUES (?)"),
        format!("{no_token}  not logged in: INSERT INTO t VALUES (?)"),
        "2026-11-21 03:00:02  17 more, not recorded: came too fast, or could not be written".to_owned(),
        "2026-11-21 03:00:02  9 more, not recorded: before the login was authenticated".to_owned(),
    ];
    let page = check(&place.run(&["r"]), 0, "");
    let trimmed: Vec<&str> = page.lines().map(str::trim_end).collect();
    assert_eq!(trimmed, expect);
}

#[test]
fn only_what_is_wanted() {
    let place = Place::new();
    place.append("r", &line(&json!({"user": "old"})));
    let now = jiff::Timestamp::now().to_string();
    place.append("r", &line(&json!({"time": now, "user": "new"})));
    place.append(
        "r",
        &line(&json!({"time": now, "user": "jobs", "scope": "jobs"})),
    );
    let users = |flags: &[&str]| -> Vec<String> {
        let out = check(&place.run(&[&["--json", "r"], flags].concat()), 0, "");
        let lines = out.lines().map(serde_json::from_str::<Value>);
        let users = lines.map(|line| line.unwrap()["user"].as_str().unwrap().to_owned());
        users.collect()
    };
    assert_eq!(users(&[]), ["old", "new", "jobs"]);
    assert_eq!(users(&["--since=10m"]), ["new", "jobs"]);
    assert_eq!(users(&["--since=10m", "--scope=jobs"]), ["jobs"]);
}

#[test]
fn the_configuration_names_the_file() {
    let place = Place::new();
    place.append("r", &line(&json!({"user": "configured"})));
    place.append(
        "p.toml",
        "rejection_log = \"r\"\nupstream = \"nonsense://\"\n",
    );
    for (name, value) in [
        ("PGPALISADE_CONFIG", "p.toml"),
        ("PGPALISADE_REJECTION_LOG", "r"),
    ] {
        let output = place.command(&[]).env(name, value).output().unwrap();
        assert!(check(&output, 0, "").contains("configured"));
    }
    let page = check(&place.run(&["--config=p.toml"]), 0, "");
    assert!(page.contains("configured"), "{page}");
    check(&place.run(&[]), 2, "which rejection log?");
    check(&place.run(&["--config=nowhere"]), 2, "nowhere");
    check(&place.run(&["nowhere"]), 1, "cannot read nowhere: No such");
    check(&place.run(&["-f", "nowhere"]), 1, "cannot read nowhere");
    check(&place.run(&["-f", "-"]), 2, "cannot be followed");
    check(&place.run(&["p.toml"]), 1, "is not a rejection log");
    place.append("r.gz", "\u{1f}");
    place.write("r.gz", [0x1f, 0x8b, 8, 0]);
    let zcat = "zcat r.gz | pgpalisade rejections -";
    check(&place.run(&["r.gz"]), 1, zcat);
}

/// A client that chooses a name or a statement in the log cannot control the terminal of its reader.
#[test]
fn hostile_names_are_shown_and_not_obeyed() {
    let place = Place::new();
    let hostile = "x\n2026-11-21 forged\r\u{1b}[2J\u{7f}\u{9b}2J\u{202e}\u{2028}\u{feff}";
    let mut fields = json!({});
    for field in [
        "kind",
        "sqlstate",
        "scope",
        "user",
        "application_name",
        "client_addr",
        "statement",
        "reason",
    ] {
        fields[field] = json!(hostile);
    }
    place.append("r", &line(&fields));
    let visible = |c: char| c == '\n' || c == ' ' || c.is_ascii_graphic();
    let page = check(&place.run(&["r"]), 0, "");
    assert!(page.chars().all(visible), "{page:?}");
    assert_eq!(page.lines().count(), 2, "{page}");
    let json = check(&place.run(&["--json", "r"]), 0, "");
    assert!(json.chars().all(visible), "{json:?}");
    assert_eq!(json.lines().count(), 1, "{json}");
    let parsed: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(parsed["user"], hostile);
}

#[test]
fn a_file_that_is_rotated_is_followed_to_the_last_line() {
    let place = Place::new();
    place.append("r", &line(&json!({"user": "before"})));
    let following = Following::start(place.command(&["--follow", "r"]));
    following.expect("TIME");
    let whole = line(&json!({"user": "second"}));
    let (half, rest) = whole.split_at(60);
    // The command starts at the end of the file, which may be later than this line.
    let begin = Instant::now();
    loop {
        place.append("r", &line(&json!({"user": "first"})));
        match following.lines.recv_timeout(Duration::from_millis(300)) {
            Ok(line) if line.contains("first") => break,
            Ok(line) => assert!(!line.contains("before"), "{line}"),
            Err(_) => assert!(begin.elapsed() < PATIENCE),
        }
    }
    place.append("r", half);
    std::thread::sleep(Duration::from_millis(500));
    place.append("r", rest);
    following.expect("second");
    // The writer keeps the old file until it is told to reopen the log.
    fs::rename(place.path("r"), place.path("r.1")).unwrap();
    place.append("r.1", &line(&json!({"user": "third"})));
    following.expect("third");
    place.append("r.1", &line(&json!({"user": "fourth"})));
    place.append("r", &line(&json!({"user": "fifth"})));
    following.expect("fourth");
    following.expect("fifth");
    place.write("r", "");
    std::thread::sleep(Duration::from_millis(500));
    place.append("r", &line(&json!({"user": "sixth"})));
    following.expect("sixth");
    signal(following.child.id(), Signal::INT);
    assert!(following.ends().success());
}

#[test]
fn it_ends_with_its_reader() {
    let place = Place::new();
    place.append("r", &line(&json!({})));
    for flags in [&["--follow", "r"][..], &["--follow", "--since=30d", "r"]] {
        let mut child = place.command(flags).spawn().unwrap();
        let mut out = child.stdout.take().unwrap();
        out.read_exact(&mut [0; 4]).unwrap();
        drop(out);
        let mut err = String::new();
        child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut err)
            .unwrap();
        assert!(child.wait().unwrap().success(), "{err}");
        assert_eq!(err, "");
    }
}

#[test]
fn sigterm_ends_it_while_nobody_takes_what_it_prints() {
    let place = Place::new();
    let lines = line(&json!({})).repeat(5_000);
    place.append("r", &lines);
    let mut child = place
        .command(&["--follow", "--since=2026-01-01", "r"])
        .spawn()
        .unwrap();
    let mut head = [0; 4];
    child
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut head)
        .unwrap();
    std::thread::sleep(Duration::from_millis(300));
    let found = child.try_wait().unwrap();
    assert_eq!(found, None, "it waits for the full pipe");
    signal(child.id(), Signal::TERM);
    let begin = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        assert!(begin.elapsed() < PATIENCE, "it goes on");
        std::thread::sleep(Duration::from_millis(5));
    };
    assert!(status.success(), "{status}");
}
