//! A token opens a session for writes, also hidden ones, and its loss closes it. `tests/oracle` has every form of a
//! write without a token.

use pgpalisade_test_servers::stage::Stage;
use pgpalisade_test_servers::wire::{Batch, pretty};

use super::{SETUP, assert_refused, committed};

/// A write hidden from any parser.
const HIDDEN: &str = "CREATE FUNCTION writes() RETURNS int LANGUAGE sql AS 'INSERT INTO jobs VALUES (99) RETURNING id'";

fn stage() -> Stage {
    Stage::with(&format!("{SETUP}; {HIDDEN}"))
}

/// Declaring makes the session read-write, inside and outside of a transaction; clearing the token reverts that.
#[test]
fn a_token_opens_and_its_loss_closes() {
    let stage = stage();
    let mut wire = stage.plain();
    wire.ok("SET fencing.token = 5");
    assert_eq!(wire.rows("SELECT writes()"), [["99"]]);
    wire.ok("DELETE FROM jobs");
    wire.ok("RESET fencing.token");
    assert_refused(&wire.query("SELECT writes()"), "25006", b'I');
    assert_refused(&wire.query("INSERT INTO jobs VALUES (1)"), "PF002", b'I');
    wire.ok("BEGIN");
    wire.ok("SET fencing.token = 5");
    wire.ok("SELECT writes()");
    wire.ok("COMMIT");
    wire.ok("DISCARD ALL");
    assert_refused(&wire.query("SELECT writes()"), "25006", b'I');
    wire.ok("BEGIN; SET LOCAL fencing.token = 5; INSERT INTO jobs VALUES (7); COMMIT");
    assert_refused(&wire.query("SELECT writes()"), "25006", b'I');
    assert_eq!(committed(&stage), ["7", "99"]);
    let mut wire = stage.leader("5");
    for token in ["''", "'other=1'"] {
        wire.ok(&format!("SET fencing.token = {token}"));
        wire.ok("RESET fencing.token; INSERT INTO jobs SELECT count(*) FROM jobs");
        wire.ok("SET fencing.token = ''");
        wire.ok("BEGIN; SELECT 1");
        wire.ok("COMMIT; RESET fencing.token; SELECT 1");
    }
}

/// After its first query a read-only transaction cannot change its mode; the error says what to do.
#[test]
fn declaring_after_the_first_query_of_a_transaction() {
    let stage = stage();
    let mut wire = stage.plain();
    wire.ok("BEGIN");
    wire.ok("SELECT count(*) FROM jobs");
    let answer = wire.query("SET fencing.token = 5");
    let error = answer
        .iter()
        .find(|message| message.tag == b'E')
        .map(|error| error.field(b'H').unwrap_or_default());
    assert!(
        error.is_some_and(|hint| hint.contains("right after BEGIN")),
        "{}",
        pretty(&answer)
    );
    wire.ok("ROLLBACK");
    // The refused declaration has deposed nobody: a lower token is still accepted.
    stage.plain().ok("SET fencing.token = 4");
    wire.ok("SET fencing.token = 5");
    wire.ok("INSERT INTO jobs VALUES (1)");
    // A declaration that fails in a transaction fails the transaction, whatever was prepared for it.
    wire.ok("RESET fencing.token");
    wire.ok("BEGIN");
    assert_refused(&wire.query("SET fencing.token = 3"), "PF001", b'E');
    wire.ok("ROLLBACK");
    assert_refused(&wire.query("INSERT INTO jobs VALUES (2)"), "PF002", b'I');
}

/// The token at Execute counts, not that at Parse: the verdict of a statement belongs to its name.
#[test]
fn statements_outlive_the_token_they_were_parsed_with() {
    let stage = stage();
    let mut wire = stage.plain();
    let run = Batch::new().bind("", "w", &[]).execute("", 0).sync();
    wire.run(
        &Batch::new()
            .parse("w", "INSERT INTO jobs VALUES (1)")
            .sync(),
    );
    assert_refused(&wire.run(&run), "PF002", b'I');
    wire.ok("SET fencing.token = 5");
    wire.run(&run);
    assert_eq!(committed(&stage), ["1"]);
    wire.ok("DELETE FROM jobs; PREPARE p AS INSERT INTO jobs VALUES (2)");
    wire.ok("RESET fencing.token");
    assert_refused(&wire.run(&run), "PF002", b'I');
    assert_refused(&wire.query("EXECUTE p"), "PF002", b'I');
    assert_refused(&wire.query("EXECUTE w"), "PF002", b'I');
    let of_sql = Batch::new().bind("", "p", &[]).execute("", 0).sync();
    assert_refused(&wire.run(&of_sql), "PF002", b'I');
    // The name is reused: the new statement counts.
    wire.ok("DEALLOCATE w");
    let read = Batch::new().parse("w", "SELECT 1").sync();
    wire.run(&read);
    assert_eq!(
        wire.run(&run).last().map(|last| last.body.clone()),
        Some(b"I".to_vec())
    );
    assert!(committed(&stage).is_empty());
}
