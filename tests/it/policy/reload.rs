//! SIGHUP: a new policy applies to the next statement of every session, or the old one stays.

use pgpalisade_test_servers::policy::PolicyFile;
use pgpalisade_test_servers::stage::Stage;
use pgpalisade_test_servers::wire::{Batch, assert_error, errors};

use super::{SETUP, assert_passes, assert_refused};

const ALLOW: &str = "[defaults]\nwrites = \"allow\"\n";

#[test]
fn sessions_follow_from_their_next_statement_on() {
    let policy = PolicyFile::new("");
    let stage = Stage::governed(SETUP, &policy);
    let mut wire = stage.plain();
    let backend = wire.backend_pid();
    assert_refused(&mut wire, "INSERT INTO notes VALUES (1)", "PF002");
    assert_refused(&mut wire, "SELECT hidden(1)", "25006");
    policy.reload(&stage.proxy, ALLOW);
    wire.ok("INSERT INTO notes VALUES (2)");
    wire.ok("SELECT hidden(3)");
    assert_passes(&wire.extended("INSERT INTO notes VALUES (4)"));
    policy.reload(&stage.proxy, "");
    assert_refused(&mut wire, "INSERT INTO notes VALUES (5)", "PF002");
    assert_refused(&mut wire, "SELECT hidden(5)", "25006");
    let pid = wire.rows("SELECT pg_backend_pid()");
    assert_eq!(pid, [[backend.to_string()]]);
    assert_eq!(stage.value("SELECT count(*) FROM notes"), "3");
}

/// Even in the middle of a transaction, which is then rolled back.
#[test]
fn an_open_transaction_follows() {
    let policy = PolicyFile::new(ALLOW);
    let stage = Stage::governed(SETUP, &policy);
    let mut wire = stage.plain();
    wire.ok("BEGIN; INSERT INTO notes VALUES (1)");
    policy.reload(&stage.proxy, "");
    assert_refused(&mut wire, "COMMIT", "PF002");
    // It has failed now, and a COMMIT ends it as in PostgreSQL.
    wire.ok("COMMIT");
    let mut wire = stage.plain();
    wire.ok("BEGIN; SELECT 1");
    policy.reload(&stage.proxy, ALLOW);
    policy.reload(&stage.proxy, "");
    assert_refused(&mut wire, "SELECT hidden(2)", "25006");
    assert_eq!(stage.value("SELECT count(*) FROM notes"), "0");
}

/// A pool answers a BEGIN before it has a server connection.
#[test]
fn blocks_of_a_pool_follow() {
    for loose in [ALLOW, "[defaults]\nmode = \"observe\"\n"] {
        let policy = PolicyFile::new("");
        let pool = [("--pool", "transaction")];
        let stage = Stage::with_options(SETUP, |options| options.flags(&pool).policy(&policy));
        let mut wire = stage.plain();
        for (file, sql) in [
            ("", "SELECT 1"),
            (loose, "INSERT INTO notes VALUES (1)"),
            ("", "SELECT hidden(NULL)"),
        ] {
            policy.reload(&stage.proxy, file);
            wire.ok("BEGIN");
            let answer = wire.query(sql);
            let expect = if sql.contains("hidden") { "25006" } else { "" };
            assert_eq!(errors(&answer).concat(), expect, "{sql}");
            wire.ok("ROLLBACK");
        }
    }
}

/// A statement prepared under one policy is judged by the one in force when it is executed.
#[test]
fn a_prepared_statement_follows() {
    let policy = PolicyFile::new(ALLOW);
    let stage = Stage::governed(SETUP, &policy);
    let mut wire = stage.plain();
    let execute = |value| {
        Batch::new()
            .bind("", "s", &[Some(value)])
            .execute("", 0)
            .sync()
    };
    let prepare = Batch::new().parse("s", "INSERT INTO notes VALUES ($1::int)");
    assert_passes(&wire.run(&prepare.then(&execute("1"))));
    policy.reload(&stage.proxy, "");
    assert_error(&wire.run(&execute("2")), "PF002");
    assert_eq!(stage.value("SELECT count(*) FROM notes"), "1");
}

#[test]
fn a_bad_file_leaves_the_old_policy_in_force() {
    let policy = PolicyFile::new(ALLOW);
    let stage = Stage::governed(SETUP, &policy);
    let mut wire = stage.plain();
    wire.ok("INSERT INTO notes VALUES (1)");
    policy.reload(&stage.proxy, "[defaults]\nwrites = \"perhaps\"\n");
    wire.ok("INSERT INTO notes VALUES (2)");
    let output = stage.proxy.output();
    let place = format!("{}:2:", policy.path().display());
    assert!(output.contains(&place), "{output}");
    assert!(output.contains("the old policy stays in force"), "{output}");
    std::fs::remove_file(policy.path()).unwrap();
    pgpalisade_test_servers::machine::signal(
        stage.proxy.pid(),
        pgpalisade_test_servers::machine::Signal::HUP,
    );
    pgpalisade_test_servers::machine::wait_until("the missing file to be said", || {
        stage.proxy.output().contains("cannot open the file")
    });
    wire.ok("INSERT INTO notes VALUES (3)");
    policy.reload(&stage.proxy, "");
    assert_refused(&mut wire, "INSERT INTO notes VALUES (4)", "PF002");
}

/// A proxy does not start with an invalid policy.
#[test]
fn a_bad_file_is_no_start() {
    let policy = PolicyFile::new("[defaults]\nwrites = \"perhaps\"\nreads = 3\n");
    let mut stage = Stage::with(SETUP);
    stage.proxy.terminate();
    let flags = &mut stage.proxy.options_mut().flags;
    flags.push(format!("--policy={}", policy.path().display()));
    let said = stage.proxy.try_restart(std::time::Duration::from_secs(20));
    let said = said.unwrap_err();
    for line in ["policy.toml:2:", "policy.toml:3:"] {
        assert!(said.contains(line), "{said}");
    }
}
