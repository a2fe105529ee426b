//! The programs of docs/drivers.md: through the proxy each writes, with its token; at PostgreSQL itself, and with a
//! stale token, it says why it does not.

use std::path::Path;
use std::process::Command;

use pgpalisade_test_servers::machine::{assert_says, repository};
use pgpalisade_test_servers::programs::{connect_by_environment, feed, program, stdout};
use pgpalisade_test_servers::stage::Stage;

use crate::interpreters::{go, java, node, node_packages, python};

/// As on the page before.
const DATABASE: &str = "CREATE ROLE app LOGIN;
CREATE DATABASE app OWNER app;
\\c app app
CREATE TABLE jobs (name text, leader text, token text DEFAULT current_setting('fencing.token'));
";

/// What a program has written.
const WRITTEN: &str = "invoice 1|B|34\n";

/// Blocks of a language that are programs.
fn programs(language: &str) -> Vec<String> {
    let page = std::fs::read_to_string(repository().join("docs/drivers.md")).unwrap();
    let fence = format!("```{language} shown: tests/it/snippets runs it\n");
    let blocks = page.split(&fence).skip(1);
    let blocks = blocks.map(|rest| rest.split_once("```\n").unwrap().0.to_owned());
    blocks.collect()
}

fn psql(stage: &Stage, sql: &str) -> String {
    let mut psql = program("psql", &stage.postgres.tcp());
    psql.args(["-XAtq", "-v", "ON_ERROR_STOP=1"]);
    stdout(&feed(psql, sql))
}

/// Runs each program of a language three times.
fn run(language: &str, extension: &str, command: &dyn Fn(&Path) -> Command) {
    let (stage, dir) = (Stage::start(), tempfile::tempdir().unwrap());
    psql(&stage, DATABASE);
    let run = |text: &str, port: u16| {
        let file = dir.path().join("program").with_extension(extension);
        std::fs::write(&file, text.replace("6432", &port.to_string())).unwrap();
        let mut command = command(&file);
        connect_by_environment(&mut command, &stage.postgres.tcp());
        let output = command.output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        String::from_utf8_lossy(&said).into_owned()
    };
    let proxy = stage.proxy.endpoint().port();
    let programs = programs(language);
    assert!(!programs.is_empty(), "no program in {language}");
    for (index, text) in programs.iter().enumerate() {
        let said = run(text, proxy);
        let rows = psql(&stage, "\\c app\nTABLE jobs");
        assert_eq!(rows, WRITTEN.repeat(index + 1), "{text}{said}");
        let missing = "unrecognized configuration parameter \"fencing.status\"";
        assert_says(&run(text, stage.postgres.port()), missing);
    }
    drop(stage.leader("35"));
    for text in &programs {
        assert_says(&run(text, proxy), "PF001");
    }
    let rows = psql(&stage, "\\c app\nTABLE jobs");
    assert_eq!(rows, WRITTEN.repeat(programs.len()));
}

#[test]
fn in_python() {
    run("python", "py", &python);
}

#[test]
fn in_node() {
    let packages = node_packages("examples", "snippets");
    run("js", "js", &|file| node(&packages, file));
}

#[test]
fn in_java() {
    run("java", "java", &java);
}

#[test]
fn in_go() {
    run("go", "go", &go);
}

#[test]
fn in_ruby() {
    run("ruby", "rb", &|file| {
        let mut command = Command::new("ruby");
        command.arg(file);
        command
    });
}
