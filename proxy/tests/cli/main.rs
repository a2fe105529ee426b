//! The binary as a user runs it.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]
#![allow(clippy::allow_attributes, reason = "a whole file of tests")]

mod programs;
mod rejections;
mod report;

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

fn pgpalisade(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pgpalisade"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("PGPALISADE_") {
            command.env_remove(name);
        }
    }
    command
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

#[track_caller]
fn check(output: &Output, code: i32, on_stderr: &str) -> String {
    let (out, err) = (&output.stdout, &output.stderr);
    let (out, err) = (String::from_utf8_lossy(out), String::from_utf8_lossy(err));
    assert_eq!(output.status.code(), Some(code), "{err}\n{out}");
    assert!(err.contains(on_stderr), "{err}");
    assert!(
        !err.contains("panicked") && !err.contains("RUST_BACKTRACE"),
        "{err}"
    );
    out.into_owned()
}

/// In which a command runs.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        fs::write(self.path(name), content).unwrap();
    }

    fn pgpalisade(&self, command: &str) -> Command {
        let mut command = pgpalisade(&[command]);
        command.current_dir(self.0.path());
        command
    }
}

/// The system's error numbers are for programs.
#[test]
fn a_missing_file_is_said_in_words() {
    let output = pgpalisade(&["check", "--config", "/nowhere/file"]).output();
    let output = output.unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("No such file or directory"), "{said}");
    assert!(!said.contains("os error"), "{said}");
}

/// As with `head`.
#[test]
fn a_reader_that_has_gone_is_no_failure() {
    let dir = tempfile::tempdir().unwrap();
    let (log, policy) = (dir.path().join("r"), dir.path().join("policy.toml"));
    fs::write(&log, "").unwrap();
    fs::write(&policy, "\n").unwrap();
    let (log, policy) = (log.to_str().unwrap(), policy.to_str().unwrap());
    for arguments in [
        &["--help"][..],
        &["explain", "--user", "app", "SELECT 1"],
        &["explain", "--user", "app", "--json", "SELECT 1"],
        &["check", "--policy", policy],
        &["check", "--policy", policy, "--json"],
        &["report", log],
        &["report", "--json", log],
        &["rejections", log],
        &["demo"],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = pgpalisade(arguments).stdout(writer).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success() && said.is_empty(),
            "{arguments:?}: {said}"
        );
    }
}
