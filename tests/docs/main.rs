//! The documentation is tested as the rest: its code blocks run against a real proxy and a real PostgreSQL.
//!
//! - `toml`: `pgpalisade serve --config` must take the block. Its addresses, directories and certificates are replaced
//!   by flags, which leaves every value of the block checked.
//! - `toml policy`: `pgpalisade check --policy` must take the block.
//! - `sql test`: runs in a psql session of its own. `sh test`: runs in a shell where psql finds the proxy, in the root
//!   of the repository, with `pgpalisade` in its path, and `$CONSOLE` is the directory of the console.
//!   The blocks of a page share one server and run in their order. A `text` block that follows is what they
//!   print, errors as their SQLSTATE. Without one, they must succeed.
//! - All others are shown, not run.
//!
//! Links from page to page must lead somewhere, and the table of flags must be that of `serve --help`.

#![expect(
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

mod alerts;
mod page;

use std::collections::BTreeSet;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use page::{Block, Page, Run};
use pgpalisade_tests::machine;
use pgpalisade_tests::postgres::{Postgres, bin};
use pgpalisade_tests::programs::{connect_by_environment, feed};
use pgpalisade_tests::proxy::{Options, Proxy, subcommand};
use pgpalisade_tests::stage::Stage;
use pgpalisade_tests::tls::Authority;
use tempfile::TempDir;

#[test]
fn blocks_marked_test_do_what_they_say() {
    let mut ran = 0;
    for page in page::all() {
        let blocks: Vec<Block> = page
            .blocks()
            .into_iter()
            .filter(|block| block.run.is_some())
            .collect();
        if blocks.is_empty() {
            continue;
        }
        let scene = Scene::start();
        for block in &blocks {
            check(&page, block, &scene);
            ran += 1;
        }
    }
    assert!(
        ran > 0,
        "no page has a block marked `test`: the marks are read wrongly"
    );
}

/// A server, a proxy, and the directory of its console.
struct Scene {
    stage: Stage,
    console: TempDir,
}

impl Scene {
    fn start() -> Self {
        let console = tempfile::tempdir().expect("a scratch directory");
        let directory = console.path().display().to_string();
        let stage = Stage::with_flags("SELECT 1", &[("--console", &directory)]);
        Self { stage, console }
    }
}

#[track_caller]
fn check(page: &Page, block: &Block, scene: &Scene) {
    let place = format!("{}:{}", page.name, block.line);
    let output = match block.run {
        Some(Run::Sql) => psql(scene, &block.text),
        Some(Run::Sh) => shell(scene, &block.text),
        Some(Run::Policy) => policy(&block.text),
        None => return,
    };
    match &block.prints {
        Some(expect) => assert_eq!(
            output.text.trim_end(),
            expect.trim_end(),
            "{place} prints something else"
        ),
        None => assert!(output.succeeded, "{place} fails:\n{}", output.text),
    }
}

/// What a block printed, standard output and error in the order in which they came.
struct Printed {
    text: String,
    succeeded: bool,
}

fn psql(scene: &Scene, sql: &str) -> Printed {
    // By line, or errors would overtake the rows in front of them.
    let printed = run(
        scene,
        "exec stdbuf -oL psql -XAt -v VERBOSITY=sqlstate 2>&1",
        sql,
    );
    // Without ON_ERROR_STOP psql goes on after an error, as a person would, and ends well.
    let failed = printed
        .text
        .lines()
        .any(|line| line.starts_with("ERROR:") || line.starts_with("FATAL:"));
    Printed {
        succeeded: printed.succeeded && !failed,
        text: printed.text,
    }
}

fn shell(scene: &Scene, script: &str) -> Printed {
    run(scene, &format!("set -eu\nexec 2>&1\n{script}"), "")
}

fn policy(text: &str) -> Printed {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let file = scratch.path().join("policy.toml");
    std::fs::write(&file, text).expect("write the policy");
    let mut command = subcommand("check");
    let output = command.arg("--policy").arg(file).output();
    let output = output.expect("run pgpalisade check");
    Printed {
        text: String::from_utf8_lossy(&output.stderr).into_owned(),
        succeeded: output.status.success(),
    }
}

fn run(scene: &Scene, script: &str, input: &str) -> Printed {
    let mut command = Command::new("sh");
    command.arg("-c").arg(script);
    connect_by_environment(&mut command, &scene.stage.proxy.endpoint());
    // Where there is no file psql is silent; where it is a device psql warns.
    command
        .current_dir(machine::repository())
        .env("PATH", path_with_programs())
        .env("PGPASSFILE", "/nonexistent")
        .env("CONSOLE", scene.console.path());
    let output = feed(command, input);
    Printed {
        text: String::from_utf8_lossy(&output.stdout).into_owned(),
        succeeded: output.status.success(),
    }
}

/// PostgreSQL's programs and ours.
fn path_with_programs() -> std::ffi::OsString {
    let programs = [bin("psql").to_path_buf(), binary()];
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs = programs
        .iter()
        .map(|program| program.parent().expect("a directory").to_path_buf())
        .chain(std::env::split_paths(&path));
    std::env::join_paths(dirs).expect("a path")
}

/// The one that a stage has built.
fn binary() -> PathBuf {
    std::env::var_os("PGPALISADE_BIN")
        .map_or_else(|| machine::profile_dir().join("pgpalisade"), PathBuf::from)
}

/// Of the password `pencil`.
const VERIFIER: &str = "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:\
                        wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=";

#[test]
fn configuration_blocks_are_taken() {
    let postgres = Postgres::start();
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let authority = Authority::new();
    let pair = authority.issue_local("proxy");
    let users = authority.path("userlist.txt");
    std::fs::write(&users, format!("\"app\" \"{VERIFIER}\"\n")).expect("write a users file");
    std::fs::set_permissions(&users, Permissions::from_mode(0o600)).expect("close the users file");
    let text = |path: &Path| path.display().to_string();
    let (certificate, key) = (text(&pair.certificate), text(&pair.key));
    let client_ca = text(&authority.certificate());
    let here = [
        ("auth_file", "--auth-file", text(&users)),
        ("console", "--console", text(scratch.path())),
        ("console_auth_file", "--console-auth-file", text(&users)),
        ("http", "--http", "127.0.0.1:0".to_owned()),
        (
            "http_certificate",
            "--http-certificate",
            certificate.clone(),
        ),
        ("http_key", "--http-key", key.clone()),
        ("http_client_ca", "--http-client-ca", client_ca.clone()),
        ("tls.certificate", "--tls-certificate", certificate),
        ("tls.key", "--tls-key", key),
        ("tls.client_ca", "--tls-client-ca", client_ca),
    ];
    let mut taken = 0;
    for page in page::all() {
        for block in page
            .blocks()
            .iter()
            .filter(|block| block.language == "toml" && block.run.is_none())
        {
            println!("{}:{}", page.name, block.line);
            let file = scratch.path().join(format!("{taken}.toml"));
            std::fs::write(&file, &block.text).expect("write the configuration");
            let mut options = Options::new(&postgres).flag("--config", &file.display().to_string());
            for (key, flag, value) in &here {
                let is_set = block
                    .text
                    .lines()
                    .any(|line| line.starts_with(&format!("{key} =")));
                if is_set {
                    options = options.flag(flag, value);
                }
            }
            // Panics with what the proxy said when it does not begin to listen.
            drop(Proxy::start_with(options));
            taken += 1;
        }
    }
    assert!(
        taken > 0,
        "no page has a toml block: the marks are read wrongly"
    );
}

#[test]
fn the_table_of_flags_is_that_of_the_help() {
    drop(Stage::start()); // builds the binary
    let help = Command::new(binary())
        .args(["serve", "--help"])
        .output()
        .expect("run pgpalisade")
        .stdout;
    let help = String::from_utf8(help).expect("the help is text");
    let real: BTreeSet<String> = help.lines().filter_map(page::leading_flag).collect();
    let real: BTreeSet<&str> = real
        .iter()
        .map(String::as_str)
        .filter(|flag| !["--help", "--version", "--config"].contains(flag))
        .collect();
    let page = page::read("docs/operations.md");
    let rows: BTreeSet<String> = page
        .text
        .lines()
        .filter_map(|line| page::leading_flag(line.strip_prefix("| `")?))
        .collect();
    let rows: BTreeSet<&str> = rows.iter().map(String::as_str).collect();
    assert_eq!(
        rows, real,
        "docs/operations.md has other flags (left) than `serve --help` (right)"
    );
}

#[test]
fn links_lead_somewhere() {
    let broken: Vec<String> = page::all().iter().flat_map(page::broken_links).collect();
    assert!(broken.is_empty(), "broken links:\n{}", broken.join("\n"));
}
