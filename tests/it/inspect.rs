//! `pgpalisade check` and `status`: each finding produced for real, with the real binary.

mod check;
mod check_authority;
mod hosted;
mod hosts;
mod logins;
mod ready;
mod status;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use pgpalisade_test_servers::machine::repository;
use pgpalisade_test_servers::postgres::Postgres;
use pgpalisade_test_servers::proxy::subcommand;
use serde_json::Value;

/// Ids of all checks, in the order in which they run.
const IDS: [&str; 17] = [
    "config",
    "files",
    "declare",
    "logins",
    "control",
    "primary",
    "rights",
    "superusers",
    "direct",
    "same-server",
    "connections",
    "prepared",
    "witness",
    "authority",
    "elections",
    "listeners",
    "ways-in",
];

#[derive(Clone)]
struct Settings {
    upstream: String,
    control: String,
    authority: String,
    flags: Vec<String>,
}

impl Settings {
    fn new(postgres: &Postgres, store: &Path) -> Self {
        Self {
            upstream: format!("postgres://127.0.0.1:{}", postgres.port()),
            control: format!(
                "host=127.0.0.1 port={} user=postgres dbname=postgres",
                postgres.port()
            ),
            authority: format!("embedded:{}", store.display()),
            flags: vec!["--connections-max=100".to_owned()],
        }
    }

    fn upstream(mut self, upstream: String) -> Self {
        self.upstream = upstream;
        self
    }

    fn control(mut self, control: String) -> Self {
        self.control = control;
        self
    }

    fn authority(mut self, authority: String) -> Self {
        self.authority = authority;
        self
    }

    fn flag(mut self, flag: &str) -> Self {
        self.flags.push(flag.to_owned());
        self
    }

    fn arguments(&self) -> Vec<String> {
        let places = [
            format!("--upstream={}", self.upstream),
            format!("--control={}", self.control),
            format!("--authority={}", self.authority),
        ];
        [&places[..], &self.flags].concat()
    }

    fn command(&self, name: &str) -> Command {
        let mut command = subcommand(name);
        command.args(self.arguments());
        // Used if no flag says otherwise.
        command.env("PGPALISADE_LISTEN", "127.0.0.1:0");
        command
    }

    fn run(&self, name: &str) -> Output {
        let output = self.command(name).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!said.contains("panicked"), "{said}");
        output
    }

    #[track_caller]
    fn check(&self) -> Checked {
        let began = Instant::now();
        let output = self.clone().flag("--json").run("check");
        let took = began.elapsed();
        let text = String::from_utf8(output.stdout).unwrap();
        let report: Value = serde_json::from_str(&text)
            .unwrap_or_else(|error| panic!("{error}: {text}\n{:?}", output.stderr));
        let checked = Checked {
            code: output.status.code().unwrap(),
            report,
            took,
        };
        let ids: Vec<&str> = checked
            .all()
            .map(|finding| text_of(finding, "id"))
            .collect();
        assert_eq!(ids, IDS, "every check is told, once, in its order");
        checked
    }

    #[track_caller]
    fn status(&self) -> Value {
        let output = self.clone().flag("--json").run("status");
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

/// Output of `check --json`.
struct Checked {
    code: i32,
    report: Value,
    took: Duration,
}

impl Checked {
    fn all(&self) -> impl Iterator<Item = &Value> {
        self.report["checks"].as_array().unwrap().iter()
    }

    fn finding(&self, id: &str) -> &Value {
        self.all().find(|finding| finding["id"] == id).unwrap()
    }

    /// Asserts that a check ended so, and both texts contain these parts: `warn config: seen -> advice`.
    #[track_caller]
    fn finds(&self, row: &str) -> &Self {
        let (row, advice) = row.split_once(" -> ").unwrap_or((row, ""));
        let (check, seen) = row.split_once(": ").unwrap();
        let (outcome, id) = check.split_once(' ').unwrap();
        let finding = self.finding(id);
        assert_eq!(finding["outcome"], outcome, "{finding:#}");
        assert!(text_of(finding, "seen").contains(seen), "{finding:#}");
        let advised = finding["advice"].as_str().unwrap_or_default();
        assert!(advised.contains(advice), "{finding:#}");
        // A warning comes with advice.
        let is_bad = outcome == "warn" || outcome == "fail";
        assert_eq!(is_bad, !advised.is_empty(), "{finding:#}");
        self
    }

    /// Asserts that only these checks ended in a warning or failure, and that the exit code agrees.
    #[track_caller]
    fn expect_bad(&self, ids: &[&str]) -> &Self {
        let bad: Vec<&str> = self
            .all()
            .filter(|finding| finding["outcome"] == "warn" || finding["outcome"] == "fail")
            .map(|finding| text_of(finding, "id"))
            .collect();
        assert_eq!(bad, ids, "{:#}", self.report);
        let failed = self.all().any(|finding| finding["outcome"] == "fail");
        assert_eq!(self.code, i32::from(failed), "{:#}", self.report);
        assert_eq!(self.report["passed"], !failed);
        self
    }
}

fn text_of<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap()
}

/// Path for a store that does not exist yet.
fn fresh_store() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    (dir, store)
}

#[test]
fn operations_lists_every_check() {
    let page = std::fs::read_to_string(repository().join("docs/operations.md")).unwrap();
    let section = page
        .split("\n## ")
        .find(|s| s.starts_with("Check the set-up"));
    let rows = section.unwrap().lines().filter_map(|line| {
        let (id, _) = line.strip_prefix("| `")?.split_once('`')?;
        Some(id.to_owned())
    });
    assert_eq!(rows.collect::<Vec<_>>(), IDS);
}
