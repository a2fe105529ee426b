//! `pgpalisade check --policy` and `explain`, run like a person does: their output, and their exit codes.
//!
//! Nothing here depends on the tables that classification finds; `policy_explain.rs` does.

use std::process::{Command, Output};

use pgpalisade_test_servers::programs::feed;
use pgpalisade_test_servers::proxy::subcommand;
use serde_json::{Value, json};
use tempfile::TempDir;

pub(crate) struct File {
    dir: TempDir,
}

impl File {
    pub(crate) fn new(text: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("policy.toml"), text).unwrap();
        Self { dir }
    }

    /// A subcommand with this file, run in its directory.
    pub(crate) fn command(&self, name: &str) -> Command {
        let mut command = subcommand(name);
        command
            .current_dir(self.dir.path())
            .args(["--policy", "policy.toml"]);
        command
    }
}

pub(crate) struct Printed {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

pub(crate) fn printed(output: Output) -> Printed {
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let printed = Printed {
        code: output.status.code().unwrap(),
        out: text(output.stdout),
        err: text(output.stderr),
    };
    assert!(!printed.err.contains("panicked"), "{}", printed.err);
    printed
}

pub(crate) fn run(command: &mut Command) -> Printed {
    printed(command.output().unwrap())
}

const GOOD: &str = "\
[scope.jobs]
tables = \"jobs.*\"
[[session]]
name = \"reporting\"
match = { user = \"report\" }
writes = \"refuse\"
[[session]]
match = { user = \"migrator\" }
writes = \"allow\"
";

#[test]
fn a_good_file_is_summarised() {
    let file = File::new(GOOD);
    let told = run(&mut file.command("check"));
    assert_eq!(told.code, 0, "{}", told.err);
    let expect = "\
warning   policy.toml:9:10: writes = \"allow\" lets these sessions bypass the fence, even for the \
tables of scopes (give them a scope of their own if they can declare a token)
policy.toml is valid, 1 warning
";
    assert_eq!(told.out, expect);
    assert_eq!(run(file.command("check").arg("--strict")).code, 1);
}

#[test]
fn every_error_has_its_place() {
    let file = File::new("[default]\n[defaults]\nwrites = \"no\"\n");
    let told = run(&mut file.command("check"));
    assert_eq!(told.code, 1);
    assert_eq!(told.out, "");
    let expect = "\
policy.toml:1:2: unknown key \"default\" (did you mean \"defaults\"?)
policy.toml:3:10: defaults.writes: \"no\" is not a valid value (write \"token\", \"allow\" or \"refuse\")
";
    assert_eq!(told.err, expect);
    // Names of scopes follow the authority's rules.
    let file = File::new(&format!("[scope.{}]\n", "a".repeat(201)));
    let told = run(&mut file.command("check"));
    assert!(
        told.err.contains("201 bytes, more than the 200 allowed"),
        "{}",
        told.err
    );
}

#[test]
fn scripts_get_json() {
    let file = File::new(GOOD);
    let told = run(file.command("check").arg("--json"));
    let report: Value = serde_json::from_str(&told.out).unwrap();
    assert_eq!(report["passed"], json!(true));
    assert_eq!(report["warnings"][0]["line"], json!(9));
    assert_eq!(report["errors"], json!([]));
    let told = run(File::new("x").command("check").arg("--json"));
    assert_eq!(told.code, 1);
    let report: Value = serde_json::from_str(&told.out).unwrap();
    assert_eq!(report["passed"], json!(false));
    assert_eq!(report["errors"][0]["line"], json!(1));
}

#[test]
fn a_file_that_cannot_be_read_is_an_error() {
    let told = run(subcommand("check").args(["--policy", "/nowhere/p.toml"]));
    assert_eq!(told.code, 1);
    assert!(
        told.err
            .starts_with("/nowhere/p.toml:1:1: cannot open the file: "),
        "{}",
        told.err
    );
    let told =
        run(subcommand("explain").args(["--policy", "/nowhere/p.toml", "--user", "u", "SELECT 1"]));
    assert_eq!(told.code, 2);
    let told = run(subcommand("check").args(["--policy", "/dev/null"]));
    assert!(told.err.contains("the file is empty"), "{}", told.err);
    let told = run(subcommand("check").args(["--policy", "/dev/zero"]));
    assert!(
        told.err.contains("is larger than") || told.err.contains("not TOML"),
        "{:.200}",
        told.err
    );
    assert_eq!(told.code, 1);
}

#[track_caller]
fn explain(file: &File, user: &str, more: &[&str], sql: &str) -> Value {
    let mut command = file.command("explain");
    command.args(["--json", "--user", user]).args(more).arg(sql);
    let told = run(&mut command);
    assert_eq!(told.code, 0, "{}", told.err);
    serde_json::from_str(&told.out).unwrap()
}

#[test]
fn explain_names_the_rule_and_what_happens() {
    let file = File::new(GOOD);
    let of = |user: &str, more: &[&str]| explain(&file, user, more, "SELECT 1; NOTIFY x");
    let app = of("app", &[]);
    assert_eq!(app["session"]["rule"], Value::Null);
    assert_eq!(
        app["session"]["read_only_until"],
        json!(["default", "jobs"])
    );
    assert_eq!(app["statements"][0]["outcome"], json!("passes"));
    assert_eq!(app["statements"][1]["class"], json!("write"));

    let report = of("report", &["--token", "34"]);
    assert_eq!(
        report["session"]["rule"],
        json!("rule \"reporting\", line 3")
    );
    assert_eq!(report["session"]["read_only_until"], json!([]));
    let write = &report["statements"][1];
    assert_eq!(write["needs"], json!("no token helps"));
    assert_eq!(
        write["outcome"],
        json!("refused: PF005, refused by the fencing policy")
    );
    assert_eq!(
        write["because"][0],
        json!("The policy refuses writes (rule \"reporting\", line 3)")
    );

    let migrator = of("migrator", &[]);
    assert_eq!(migrator["session"]["read_only_until"], Value::Null);
    assert_eq!(migrator["statements"][1]["needs"], json!("nothing"));
}

#[test]
fn explain_follows_tokens_and_prepared_statements() {
    let file = File::new("\n");
    let outcomes = |sql: &str| -> Vec<String> {
        let told = explain(&file, "app", &[], sql);
        let statements = told["statements"].as_array().unwrap().iter();
        statements
            .map(|one| one["outcome"].as_str().unwrap().to_owned())
            .collect()
    };
    let missing = "refused: PF002, this write needs a fencing token for scope \"default\"";
    let current = "passes if its tokens are current, else PF001";
    let hides = "passes; PostgreSQL refuses a write that it hides (25006)";
    let too_late =
        "refused: PF003, cannot change the fencing token of a transaction that may have written";
    let beside = "refused: PF003, cannot take a fencing token in a query that does more";
    for (sql, expect) in [
        (
            "NOTIFY x; SET fencing.token = 7; NOTIFY x; RESET ALL; NOTIFY x",
            &[missing, "passes", current, too_late, current][..],
        ),
        (
            "SET fencing.token = 7; RESET ALL; NOTIFY x",
            &["passes", "passes", missing],
        ),
        (
            "BEGIN; SET LOCAL fencing.token = 7; COMMIT; NOTIFY x",
            &["passes", "passes", "passes", missing],
        ),
        (
            "SAVEPOINT s; SET fencing.token = 7; ROLLBACK TO s; NOTIFY x",
            &["passes", "passes", "passes", missing],
        ),
        ("BEGIN READ WRITE", &["passes; begins read-only"]),
        ("BEGIN READ WRITE; SELECT 1", &[missing, "passes"]),
        ("SELECT f(); SET fencing.token = 7", &[hides, missing]),
        (
            "SET fencing.token = 'default=next'; NOTIFY x",
            &["passes", beside],
        ),
        (
            "PREPARE p AS SELECT 1; EXECUTE p; EXECUTE q",
            &[hides, hides, missing],
        ),
    ] {
        assert_eq!(outcomes(sql), expect, "{sql}");
    }
}

#[test]
fn explain_knows_observe_mode() {
    let file = File::new("[defaults]\nmode = \"observe\"\n");
    let told = explain(&file, "app", &[], "NOTIFY x");
    let statement = &told["statements"][0];
    assert_eq!(statement["mode"], json!("observe"));
    let expect =
        "passes, recorded as: PF002, this write needs a fencing token for scope \"default\"";
    assert_eq!(statement["outcome"], json!(expect));
}

#[test]
fn explain_reads_standard_input_and_needs_no_file() {
    let mut command = subcommand("explain");
    command.args(["--user", "app", "-"]);
    let told = printed(feed(command, "NOTIFY x;\n-- done\n"));
    assert_eq!(told.code, 0, "{}", told.err);
    let expect = "\
session    no rule matches: [defaults]
scope      default
read-only  until it holds the current token of default
declares   any scope

1.         NOTIFY
class      write: NOTIFY counts as a write
";
    assert!(told.out.starts_with(expect), "{}", told.out);
    let nothing = run(subcommand("explain").args(["--user", "app", "/* nothing */"]));
    assert!(
        nothing.out.contains("The query has no statement"),
        "{}",
        nothing.out
    );
}

#[test]
fn explain_refuses_what_it_cannot_use() {
    let code = |args: &[&str]| run(subcommand("explain").args(["--user", "u"]).args(args)).code;
    assert_eq!(code(&["--token", "x", "SELECT 1"]), 2);
    assert_eq!(code(&["--client", "nowhere", "SELECT 1"]), 2);
    assert_eq!(code(&[]), 2);
    assert_eq!(code(&["SELECT 1"]), 0);
    let bad = File::new("[scope.a\n");
    let told = run(bad.command("explain").args(["--user", "u", "SELECT 1"]));
    assert_eq!(told.code, 2);
    assert!(told.err.starts_with("policy.toml:1:"), "{}", told.err);
}
