//! Schedulers and workers that write invoices, in Python, Java and Node.

use std::process::Command;

use pgpalisade_test_servers::postgres::Postgres;
use pgpalisade_test_servers::programs::{connect_by_environment, feed, program, stdout};
use pgpalisade_test_servers::wire::Endpoint;

use super::{Program, file, shows};
use crate::interpreters::{java_path, node, node_packages, python};

const TABLE: &str = "CREATE TABLE invoices (number int)";

/// Its job store has no lock: two schedulers do each job twice.
#[test]
fn apscheduler() {
    let setup = |postgres: &Postgres| {
        postgres.sql(TABLE);
        Vec::new()
    };
    let program = Program {
        command: &|_, _| python(&file("invoices.py")),
        checks: "apscheduler_jobs",
        check: "SELECT%next_run_time <=%",
        writes: ("invoices", "true"),
        expire: "",
    };
    shows(&setup, &program);
}

const TABLES: &str = "org/quartz/impl/jdbcjobstore/tables_postgres.sql";

#[test]
fn quartz() {
    let dir = tempfile::tempdir().unwrap();
    let path = format!("{}:{}", java_path(), dir.path().display());
    let mut javac = Command::new("javac");
    javac.args(["-cp", &path, "-d"]).arg(dir.path());
    stdout(&javac.arg(file("Invoices.java")).output().unwrap());
    let mut unpack = Command::new("jar");
    unpack
        .args(["-xf", "/usr/share/java/quartz2.jar", TABLES])
        .current_dir(&dir);
    stdout(&unpack.output().unwrap());
    let tables = std::fs::read_to_string(dir.path().join(TABLES)).unwrap();
    let setup = |postgres: &Postgres| {
        postgres.sql(TABLE);
        stdout(&feed(program("psql", &postgres.tcp()), &tables));
        Vec::new()
    };
    let program = Program {
        command: &|name, server| java(&path, name, server),
        checks: "invoices",
        check: "SELECT%FROM invoices%",
        writes: ("invoices", "true"),
        expire: "UPDATE qrtz_scheduler_state SET last_checkin_time = 0",
    };
    shows(&setup, &program);
}

fn java(path: &str, name: &str, server: &Endpoint) -> Command {
    let (host, port) = (server.host(), server.port());
    let mut command = Command::new("java");
    command.args(["-cp", path, "Invoices"]);
    command.arg(format!(
        "jdbc:postgresql://{host}:{port}/postgres?ApplicationName={name}"
    ));
    command
}

#[test]
fn graphile_worker() {
    let packages = node_packages("tests/it/replicas", "replicas");
    let program = Program {
        command: &|_, _| node(&packages, &file("invoices.js")),
        checks: "invoices",
        check: "SELECT%FROM invoices%",
        writes: ("invoices", "true"),
        expire: "UPDATE graphile_worker._private_jobs SET locked_at = locked_at - interval '5 hours';
            UPDATE graphile_worker._private_job_queues SET locked_at = locked_at - interval '5 hours'",
    };
    let setup = |postgres: &Postgres| {
        let mut schema = node(&packages, &packages.join(".bin/graphile-worker"));
        schema.args(["--schema-only", "--connection", "postgres://"]);
        connect_by_environment(&mut schema, &postgres.tcp());
        stdout(&schema.output().unwrap());
        postgres.sql(TABLE);
        postgres.sql("SELECT graphile_worker.add_job('invoice', queue_name => 'invoices')");
        Vec::new()
    };
    shows(&setup, &program);
}
