//! `pgpalisade explain` with the tables that classification finds in real SQL.

use std::io::{Seek as _, Write as _};

use serde_json::{Value, json};

use crate::policy_file::{File, run};

const FILE: &str = "\
[defaults]
refuse = [\"copy-program\"]

[scope.jobs]
tables = [\"jobs.*\", \"public.cron_lock\"]

[scope.mail]
tables = [\"*.outbox\"]

[[session]]
name = \"careful\"
match = { user = \"careful\" }
reads = \"current\"
";

#[track_caller]
fn explain(user: &str, more: &[&str], sql: &str) -> Vec<Value> {
    let file = File::new(FILE);
    let mut command = file.command("explain");
    command.args(["--json", "--user", user]).args(more).arg(sql);
    let told = run(&mut command);
    assert_eq!(told.code, 0, "{}", told.err);
    let told: Value = serde_json::from_str(&told.out).unwrap();
    told["statements"].as_array().unwrap().clone()
}

/// Truncating the input must not make a text short enough to be parsed: the proxy would not parse it.
#[test]
fn a_text_from_standard_input_that_is_too_long_is_a_write() {
    let read = "SELECT 1;";
    let padding = " ".repeat(1024 * 1024 - read.len());
    let mut input = tempfile::tempfile().unwrap();
    write!(input, "{read}{padding}DELETE FROM t").unwrap();
    input.rewind().unwrap();
    let file = File::new(FILE);
    let mut command = file.command("explain");
    command.args(["--json", "--user", "app", "-"]);
    let told = run(command.stdin(input));
    assert_eq!(told.code, 0, "{}", told.err);
    let told: Value = serde_json::from_str(&told.out).unwrap();
    assert_eq!(told["statements"][0]["class"], json!("write"), "{told:#}");
}

/// The proxy's own rules beyond the policy: read-only mode, doubts about it, and declarations.
#[test]
fn it_says_what_the_proxy_does() {
    let outcomes = |sql: &str| -> Vec<String> {
        let statements = explain("app", &[], sql);
        let outcomes = statements
            .iter()
            .map(|one| one["outcome"].as_str().unwrap().to_owned());
        outcomes.collect()
    };
    let hidden = "passes; PostgreSQL refuses a write that it hides (25006)";
    assert_eq!(outcomes("SELECT f()"), [hidden]);
    assert_eq!(outcomes("SELECT 1; COMMIT; SELECT 2"), ["passes"; 3]);
    let doubtful = explain("app", &[], "SELECT f(); COMMIT; SELECT f()");
    let detail = doubtful[2]["detail"].as_str().unwrap();
    assert!(
        detail.contains("a transaction or savepoint ended earlier"),
        "{detail}"
    );
    let seems = outcomes("SELECT set_config('fencing.token', $1, false)");
    assert!(seems[0].starts_with("refused: PF003, "), "{seems:?}");
    assert!(outcomes("SET fencing.tokn = 34")[0].starts_with("refused: PF003, "));
    let found = outcomes("SET fencing.token = 34; SELECT f()");
    assert_eq!(found, ["passes"; 2]);
}

#[test]
fn the_text_names_what_it_found() {
    let file = File::new(FILE);
    let mut command = file.command("explain");
    command.args(["--user", "app", "--token", "jobs=7"]);
    let told = run(command.arg("INSERT INTO jobs.queue SELECT id, f(id) FROM public.orders"));
    let expect = "\
session    no rule matches: [defaults]
scope      default
read-only  until it holds the current token of default or jobs or mail
declares   any scope

1.         INSERT
class      write: INSERT counts as a write
writes     jobs.queue
reads      public.orders
functions  f
because    it writes jobs.queue, listed by scope \"jobs\" as jobs.*, line 5
needs      the current token of jobs
mode       enforce
outcome    passes if its tokens are current, else PF001
";
    assert_eq!(told.out, expect);
}
