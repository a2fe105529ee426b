//! The console with a Python driver.

use pgpalisade_test_servers::machine::repository;
use pgpalisade_test_servers::programs::{connect_by_environment, feed, stdout};

use super::{Scene, on_a_port};
use crate::interpreters::python;

#[test]
fn drivers() {
    let scene = Scene::new(on_a_port);
    let _session = scene.stage.leader("scheduler=34");
    let mut command = python(&repository().join("tests/it/console/drivers.py"));
    connect_by_environment(&mut command, &scene.console);
    command
        .env("PGUSER", "bob")
        .env("PGPASSWORD", "pencil")
        .env("PGDATABASE", "pgpalisade")
        .env("PGSSLMODE", "prefer");
    let printed = stdout(&feed(command, ""));
    assert_eq!(
        printed,
        "1 scheduler=34 1\nscheduler 34\n0A000\n42501\n0A000\nagain 1\n0A000\n"
    );
}
