//! A statement needs the tokens of every table that it alters, locks or opens to writes, not only of its main one.

use pgpalisade_test_servers::policy::PolicyFile;
use pgpalisade_test_servers::stage::Stage;

use super::{SETUP, assert_refused};

const POLICY: &str = "[scope.jobs]\ntables = [\"jobs.*\"]\n\n[scope.bill]\ntables = [\"bill.*\"]\n";

/// Each would make a DELETE or INSERT of the leader of `jobs` fail or wait, or open a way to write its table.
const ALTERING: [&str; 10] = [
    "CREATE TABLE bill.fk (a int REFERENCES jobs.queue)",
    "CREATE TABLE bill.fk (a int, FOREIGN KEY (a) REFERENCES jobs.queue)",
    "ALTER TABLE bill.items ADD FOREIGN KEY (id) REFERENCES jobs.queue",
    "ALTER TABLE bill.items ADD COLUMN job int REFERENCES jobs.queue",
    "CREATE TABLE bill.child () INHERITS (jobs.queue)",
    "ALTER TABLE bill.items INHERIT jobs.queue",
    "CREATE CONSTRAINT TRIGGER t AFTER INSERT ON bill.items FROM jobs.queue FOR EACH ROW EXECUTE FUNCTION refuse()",
    "CREATE RULE r AS ON INSERT TO bill.items DO ALSO DELETE FROM jobs.queue",
    "ALTER TABLE bill.items SET SCHEMA jobs",
    "CREATE VIEW bill.seen AS SELECT * FROM jobs.queue",
];

#[test]
fn a_table_that_is_altered_beside_another_needs_its_token() {
    let setup = format!(
        "{SETUP}; ALTER TABLE jobs.queue ADD PRIMARY KEY (id); INSERT INTO jobs.queue VALUES (1); \
         CREATE SCHEMA bill; CREATE TABLE bill.items (id int NOT NULL); \
         CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE ''no''; END'"
    );
    let stage = Stage::governed(&setup, &PolicyFile::new(POLICY));
    let mut jobs = stage.leader("jobs=7");
    let mut bill = stage.leader("bill=7");
    let mut both = stage.leader("jobs=7,bill=7");
    for sql in ALTERING {
        assert_refused(&mut bill, sql, "PF002");
        both.ok(&format!("BEGIN; {sql}; ROLLBACK"));
    }
    bill.ok("CREATE TABLE bill.likewise (LIKE jobs.queue INCLUDING ALL)");
    bill.ok("INSERT INTO bill.likewise VALUES (1)");
    jobs.ok("DELETE FROM jobs.queue");
}
