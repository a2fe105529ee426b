//! Icinga DB, which copies what Icinga 2 leaves in Redis into PostgreSQL, in two instances.
//!
//! One is responsible. Each second it asks, in a transaction, whether another is, and renews its own row; its writes of
//! the meantime are not bound to the answer.

use std::path::Path;
use std::process::Command;

use pgpalisade_harness::child::Running;
use pgpalisade_test_servers::machine::{TERM, free_port};
use pgpalisade_test_servers::postgres::{Postgres, scratch_dir, unprivileged};
use pgpalisade_test_servers::programs::{feed, program, stdout};
use pgpalisade_test_servers::tls::Authority;
use pgpalisade_test_servers::wire::Endpoint;

use super::{Program, shows};

const SCHEMA: &str = "/usr/share/icingadb/schema/pgsql/schema.sql";

/// Hosts that are up or down by chance. Icinga 2 passes changes on.
const HOSTS: &str = r#"include <itl>
object CheckerComponent "checker" { }
for (n in range(20)) {
    object Host "host " + n { check_command = "random", check_interval = 1, retry_interval = 1 }
}
"#;

/// Starts Icinga 2, and the Redis that it writes into.
fn icinga(dir: &Path, redis: u16) -> Vec<Running> {
    let mut server = unprivileged("redis-server");
    server.args([
        "--bind",
        "127.0.0.1",
        "--save",
        "",
        "--port",
        &redis.to_string(),
    ]);
    let server = Running::spawn(server.current_dir(dir), dir.join("redis.log"), TERM).unwrap();

    let configuration = dir.join("icinga2.conf");
    let object =
        format!("object IcingaDB \"icingadb\" {{ host = \"127.0.0.1\", port = {redis} }}\n");
    std::fs::write(&configuration, format!("{HOSTS}{object}")).unwrap();
    let mut icinga = unprivileged("icinga2");
    icinga.args(["daemon", "-c"]).arg(configuration);
    for (name, place) in [
        ("DataDir", "data"),
        ("CacheDir", "cache"),
        ("InitRunDir", "run"),
        ("LogDir", "log"),
        ("SpoolDir", "spool"),
        ("PidPath", "run/pid"),
        ("VarsPath", "cache/vars"),
        ("ObjectsPath", "cache/objects"),
        ("StatePath", "data/state"),
        ("ModAttrPath", "data/modified"),
    ] {
        icinga.arg(format!("-D{name}={}", dir.join(place).display()));
    }
    let user = stdout(&unprivileged("id").arg("-un").output().unwrap());
    let group = stdout(&unprivileged("id").arg("-gn").output().unwrap());
    icinga
        .arg(format!("-DRunAsUser={}", user.trim()))
        .arg(format!("-DRunAsGroup={}", group.trim()));
    let icinga = Running::spawn(icinga.current_dir(dir), dir.join("icinga2.log"), TERM);
    vec![icinga.unwrap(), server]
}

/// What Icinga 2 expects to find.
fn directories(dir: &Path) {
    let mut make = unprivileged("mkdir");
    make.args(["-p", "data/certs", "cache", "run", "log", "spool"]);
    stdout(&make.current_dir(dir).output().unwrap());
    std::fs::copy(
        Authority::new().certificate(),
        dir.join("data/certs/ca.crt"),
    )
    .unwrap();
}

#[test]
fn icingadb() {
    let (dir, redis) = (scratch_dir(), free_port());
    directories(dir.path());
    let setup = |postgres: &Postgres| {
        postgres.sql("CREATE EXTENSION citext");
        let schema = std::fs::read_to_string(SCHEMA).unwrap();
        stdout(&feed(program("psql", &postgres.tcp()), &schema));
        icinga(dir.path(), redis)
    };
    let command = |name: &str, server: &Endpoint| {
        let file = dir.path().join(name).with_extension("yml");
        let (host, port) = (server.host(), server.port());
        let settings = format!(
            "database: {{type: pgsql, host: {host}, port: {port}, database: postgres, user: postgres}}\n\
             redis: {{host: 127.0.0.1, port: {redis}}}\n"
        );
        std::fs::write(&file, settings).unwrap();
        let mut command = Command::new("icingadb");
        command.arg("--config").arg(file);
        command
    };
    let program = Program {
        command: &command,
        checks: "icingadb_instance",
        check: "SELECT%FROM icingadb_instance%",
        writes: ("host_state", "true"),
        expire: "UPDATE icingadb_instance SET heartbeat = 0",
    };
    shows(&setup, &program);
}
