//! The log at its default level tells the story of a proxy, in consistently named fields.

use std::collections::BTreeSet;

use pgpalisade_test_servers::etcd::Etcd;
use pgpalisade_test_servers::machine::{repository, wait_for};
use pgpalisade_test_servers::policy::PolicyFile;
use pgpalisade_test_servers::postgres::Postgres;
use pgpalisade_test_servers::proxy::{Options, Proxy};
use pgpalisade_test_servers::stage::{Stage, leader};
use serde_json::{Value, json};

const SEEN: &str = "the mark was raised through another proxy";

/// Lines with this message so far, without values that differ between runs.
fn lines(proxy: &Proxy, message: &str) -> Vec<Value> {
    let output = proxy.output();
    let parsed = output
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    parsed.filter(|line| line["message"] == message).collect()
}

#[track_caller]
fn first(proxy: &Proxy, message: &str) -> Value {
    wait_for(message, || lines(proxy, message).into_iter().next())
}

#[test]
fn one_line_says_what_runs() {
    let stage = Stage::start();
    let version = stage.value("SHOW server_version");
    let line = first(&stage.proxy, "pgpalisade serves");
    assert_eq!(line["level"], "INFO");
    assert_eq!(line["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(line["postgres"], version);
    let primary = line["primary"].as_str().unwrap();
    assert!(
        primary.contains(&stage.postgres.port().to_string()),
        "{line}"
    );
    assert!(line["authority"].as_str().unwrap().starts_with("embedded:"));
    assert_eq!(
        (&line["policy"], &line["mode"]),
        (&Value::Null, &json!("enforce"))
    );
    assert_eq!(lines(&stage.proxy, "pgpalisade serves").len(), 1);
    let policy = PolicyFile::new("");
    let path = policy.path().display().to_string();
    for (flags, mode) in [
        (&[("--policy", path.as_str())][..], "as the policy says"),
        (
            &[("--observe=on", "--log=info")],
            "observe: nothing is refused",
        ),
    ] {
        let stage = Stage::with_flags("", flags);
        let line = first(&stage.proxy, "pgpalisade serves");
        assert_eq!(line["mode"], mode);
    }
}

/// Each raise of a mark is in the log of both proxies, once: who raised it, from where to where, and through which
/// proxy.
#[test]
fn each_mark_that_is_raised() {
    let (etcd, postgres) = (Etcd::start(1), Postgres::start());
    let options = Options::new(&postgres).store(etcd.authority());
    let one = Proxy::start_with(options.clone());
    let other = Proxy::start_with(options);
    for (proxy, witness, token, seen_there) in [
        (&one, &other, "33", 1),
        (&other, &one, "34", 1),
        (&one, &other, "35", 2),
    ] {
        let mut wire = leader(&proxy.endpoint(), token);
        wire.ok("SELECT 1");
        // A mark that is overtaken before the authority reports it is not logged.
        wait_for("what the other has seen", || {
            (lines(witness, SEEN).len() == seen_there).then_some(())
        });
    }
    let raises = |proxy: &Proxy, message: &str| -> Vec<(Value, Value)> {
        let lines = lines(proxy, message);
        lines
            .iter()
            .map(|line| {
                assert_eq!(line["scope"], "default", "{line}");
                assert!(
                    line["raised_by"]
                        .as_str()
                        .unwrap()
                        .starts_with("postgres@127.0.0.1:"),
                    "{line}"
                );
                (line["from"].clone(), line["to"].clone())
            })
            .collect()
    };
    let (own, seen) = ("the mark is raised", SEEN);
    let (first, second, third) = (
        (Value::Null, json!(33)),
        (json!(33), json!(34)),
        (json!(34), json!(35)),
    );
    assert_eq!(raises(&one, own), [first.clone(), third.clone()]);
    assert_eq!(raises(&one, seen), std::slice::from_ref(&second));
    assert_eq!(raises(&other, own), [second]);
    assert_eq!(raises(&other, seen), [first, third]);
    let told = &lines(&one, seen)[0]["raised_by"];
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let via = format!("via pgpalisade {} {}", host.trim(), other.pid());
    assert!(told.as_str().unwrap().ends_with(&via), "{told}");
}

/// Fields of one `tracing` macro, whose arguments begin here.
fn fields(text: &str) -> Vec<String> {
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    let (mut arguments, mut argument) = (Vec::new(), String::new());
    for character in text.chars() {
        match character {
            _ if escaped => escaped = false,
            '\\' if in_string => escaped = true,
            '"' => in_string = !in_string,
            _ if in_string => {}
            '(' | '{' | '[' => depth += 1,
            ')' if depth == 0 => break,
            ')' | '}' | ']' => depth -= 1,
            ',' if depth == 0 => {
                arguments.push(std::mem::take(&mut argument));
                continue;
            }
            _ => {}
        }
        argument.push(character);
    }
    arguments.push(argument);
    let arguments = arguments.iter().map(|argument| argument.trim());
    let arguments = arguments.filter(|argument| {
        !argument.starts_with("target:") && !argument.starts_with("tracing::Level")
    });
    // Arguments after the message are formatted into it.
    let fields = arguments.take_while(|argument| !argument.starts_with(['"', '$']));
    fields
        .map(|argument| {
            let name = argument.split('=').next().unwrap_or_default();
            name.trim().trim_start_matches(['%', '?', '&']).to_owned()
        })
        .filter(|name| !name.is_empty())
        .collect()
}

/// The table in the docs names every field of any log line, and no other.
#[test]
fn every_field_is_in_the_docs() {
    let mut used = BTreeSet::new();
    for (path, text) in super::tidy::sources() {
        let is_shipped = ["proxy", "token-authority", "policies"]
            .iter()
            .any(|root| path.starts_with(root))
            && !path.iter().any(|part| part == "tests")
            && !path.ends_with("tests.rs");
        if !is_shipped {
            continue;
        }
        for level in ["error", "warn", "info", "debug", "trace", "event"] {
            let text = super::tidy::before_tests(&text);
            for call in text.split(&format!("tracing::{level}!(")).skip(1) {
                used.extend(fields(call));
            }
        }
    }
    assert!(used.len() > 20, "{used:?}");
    let page = std::fs::read_to_string(repository().join("docs/observe.md")).unwrap();
    let (_, table) = page.split_once("## Fields of the log").unwrap();
    let table = table.split("\n## ").next().unwrap();
    let rows = table.lines().filter(|line| line.starts_with("| `"));
    let first = rows.filter_map(|row| row.split('|').nth(1));
    let named: BTreeSet<String> = first
        .flat_map(|cell| cell.split('`').skip(1).step_by(2))
        .map(str::to_owned)
        .collect();
    assert_eq!(used, named, "used (left), in docs/observe.md (right)");
}
