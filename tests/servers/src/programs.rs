//! Child processes: psql, pgbench, pg_dump, and haproxy.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::postgres::{bin, unprivileged};
use crate::wire::Endpoint;

pub fn program(name: &str, endpoint: &Endpoint) -> Command {
    let mut command = Command::new(bin(name));
    connect_by_environment(&mut command, endpoint);
    command
}

pub const HAPROXY: &str = "/usr/sbin/haproxy";

/// Settings are written to `dir`.
pub fn haproxy(dir: &Path, settings: &str) -> Command {
    let file = dir.join("haproxy.cfg");
    std::fs::write(&file, settings).expect("write haproxy's settings");
    let mut command = unprivileged(HAPROXY);
    // haproxy resolves its working directory, and may not enter every directory that a test runs from.
    command.arg("-db").arg("-f").arg(file).current_dir(dir);
    command
}

/// Sets the environment of libpq and removes all other `PG*` variables.
pub fn connect_by_environment(command: &mut Command, endpoint: &Endpoint) {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("PG") {
            command.env_remove(name);
        }
    }
    command
        .env("PGHOST", endpoint.host())
        .env("PGPORT", endpoint.port().to_string())
        .env("PGUSER", "postgres")
        .env("PGDATABASE", "postgres")
        .env("PGCONNECT_TIMEOUT", "10")
        .env("PGPASSFILE", "/nowhere")
        .env("PSQLRC", "/dev/null");
}

pub fn feed(mut command: Command, input: &str) -> Output {
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().expect("start a program");
    let mut stdin = child.stdin.take().expect("stdin is piped");
    let input = input.to_owned();
    // On a thread: a program that fills its output first would otherwise block both sides.
    let writer = std::thread::spawn(move || {
        let _ended_before_the_end_of_its_input = stdin.write_all(input.as_bytes());
    });
    let output = child.wait_with_output().expect("wait for a program");
    writer.join().expect("the writer");
    output
}

#[track_caller]
pub fn stdout(output: &Output) -> String {
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{}\nstdout: {out}\nstderr: {err}",
        output.status
    );
    out
}
