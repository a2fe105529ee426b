//! The console with drivers, which are not there everywhere: the head of `logins/drivers.rs` says how to get them.

use std::path::PathBuf;

use pgpalisade_tests::machine::repository;
use pgpalisade_tests::programs::{connect_by_environment, feed, stdout};
use std::process::Command;

use super::{Scene, on_a_port};

#[test]
#[ignore = "needs the drivers: the head of logins/drivers.rs says how to get them"]
fn drivers() {
    let home = PathBuf::from(std::env::var_os("PGPALISADE_DRIVERS").unwrap());
    let scene = Scene::new(on_a_port);
    let _session = scene.stage.leader("scheduler=34");
    for driver in ["psycopg", "asyncpg"] {
        let mut command = Command::new(home.join("v/bin/python"));
        command
            .arg(repository().join("tests/it/console/drivers.py"))
            .arg(driver);
        connect_by_environment(&mut command, &scene.console);
        command
            .env("PGUSER", "bob")
            .env("PGPASSWORD", "pencil")
            .env("PGDATABASE", "pgpalisade")
            .env("PGSSLMODE", "prefer");
        let printed = stdout(&feed(command, ""));
        assert_eq!(
            printed, "1 scheduler=34 1\nscheduler 34\n0A000\n42501\nagain 1\n",
            "{driver}"
        );
    }
}
