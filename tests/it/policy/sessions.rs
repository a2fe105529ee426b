//! Session rules: exempt users, users that never write, and users that may read only as the current leader.

use pgpalisade_test_servers::policy::PolicyFile;
use pgpalisade_test_servers::stage::Stage;
use pgpalisade_test_servers::wire::Wire;

use super::{SETUP, assert_passes, assert_refused};

const ROLES: &str = "CREATE ROLE migrator SUPERUSER LOGIN; CREATE ROLE reporting SUPERUSER LOGIN";

fn stage(policy: &str) -> Stage {
    Stage::governed(&format!("{SETUP}; {ROLES}"), &PolicyFile::new(policy))
}

/// A migration runner needs no token, even for tables of a scope, and its hidden writes are not checked.
#[test]
fn an_exempt_user() {
    let stage = stage(
        "[scope.scheduler]\ntables = [\"jobs.*\"]\n\n\
         [[session]]\nmatch = { user = \"migrator\" }\nwrites = \"allow\"\n",
    );
    let mut migrator = stage.user("migrator");
    migrator.ok("INSERT INTO jobs.queue VALUES (1)");
    migrator.ok("SELECT hidden(2)");
    migrator.ok("CREATE TABLE more ()");
    assert_passes(&migrator.extended("INSERT INTO notes VALUES (3)"));
    let found = migrator.rows("SHOW default_transaction_read_only");
    assert_eq!(found, [["off"]]);
    // A token that it declares anyway does apply.
    let mut leader = stage.user("migrator");
    leader.ok("SET fencing.token = 33");
    leader.ok("INSERT INTO notes VALUES (4)");
    let _new = stage.leader("34");
    leader.fails("INSERT INTO notes VALUES (5)", "PF001");
    assert_refused(
        &mut stage.plain(),
        "INSERT INTO jobs.queue VALUES (6)",
        "PF002",
    );
    assert_eq!(stage.value("SELECT count(*) FROM notes"), "3");
}

/// PostgreSQL truncates user and database to 63 bytes, and so does the proxy before it looks for a rule. So no longer
/// name escapes a rule, or matches another user's.
#[test]
fn names_that_are_too_long() {
    let names = ["n", "m"].map(|letter| letter.repeat(63));
    let [reader, exempt] = &names;
    let setup = names
        .each_ref()
        .map(|name| format!("CREATE ROLE {name} SUPERUSER LOGIN"))
        .join("; ");
    let policy = PolicyFile::new(&format!(
        "[defaults]\nwrites = \"allow\"\n\n\
         [[session]]\nmatch = {{ user = \"{reader}\" }}\nwrites = \"refuse\"\n\n\
         [[session]]\nmatch = {{ database = \"{exempt}\" }}\nwrites = \"refuse\"\n\n\
         [[session]]\nmatch = {{ user = \"{exempt}-\" }}\nwrites = \"refuse\"\n"
    ));
    let stage = Stage::governed(&format!("{SETUP}; {setup}"), &policy);
    stage.sql(&format!("CREATE DATABASE {exempt}"));
    let login = |user: &str, database: &str| {
        let parameters = [("user", user), ("database", database)];
        Wire::login(&stage.proxy.endpoint(), &parameters)
    };
    for more in ["", "-", "\u{e4}", "and much more, which is of no use"] {
        let longer = |name: &str| format!("{name}{more}");
        let mut refused = login(&longer(reader), "postgres");
        assert_eq!(refused.rows("SELECT current_user"), [[reader.as_str()]]);
        assert_refused(&mut refused, "INSERT INTO notes VALUES (1)", "PF005");
        let mut refused = login("postgres", &longer(exempt));
        let found = refused.rows("SELECT current_database()");
        assert_eq!(found, [[exempt.as_str()]]);
        assert_refused(&mut refused, "CREATE TABLE t ()", "PF005");
        let mut allowed = login(&longer(exempt), "postgres");
        assert_eq!(allowed.rows("SELECT current_user"), [[exempt.as_str()]]);
        allowed.ok("INSERT INTO notes VALUES (1)");
    }
    let mut users: Vec<_> = stage
        .proxy
        .rejections()
        .iter()
        .map(|r| r["user"].clone())
        .collect();
    users.dedup();
    assert!(
        users
            .iter()
            .all(|user| user == reader.as_str() || user == "postgres"),
        "{users:?}"
    );
}

/// No token helps against a rule that refuses every write, and the read-only guard stays on.
#[test]
fn a_user_that_only_reads() {
    let rule = "[[session]]\nmatch = { user = \"reporting\" }\nwrites = \"refuse\"\n";
    let strict = stage(rule);
    let mut stranger = strict.user("reporting");
    assert_refused(&mut stranger, "SET fencing.token = 33", "PF005");
    let stage = stage(&format!("{rule}declare = [\"default\"]\n"));
    let mut reporting = stage.user("reporting");
    for _ in 0..2 {
        reporting.ok("SELECT * FROM notes");
        assert_refused(&mut reporting, "INSERT INTO notes VALUES (1)", "PF005");
        assert_refused(&mut reporting, "SELECT hidden(1)", "25006");
        reporting.ok("SET fencing.token = 33");
    }
    assert_eq!(stage.value("SELECT count(*) FROM notes"), "0");
}
