//! The main promise: once a newer token is acknowledged, nothing of an older one commits.

mod disasters;
mod faults;
mod hidden;
mod history;
mod register;
mod stale;
mod two_proxies;

use pgpalisade_test_servers::stage::Stage;
use pgpalisade_test_servers::wire::{Message, Wire, pretty};

const SETUP: &str = "CREATE TABLE jobs (id int PRIMARY KEY, who text DEFAULT 'a leader')";

/// A new leader, acknowledged: its session has declared `token` with SET.
#[track_caller]
fn take_over(stage: &Stage, token: &str) -> Wire {
    let mut wire = stage.plain();
    wire.ok(&format!("SET fencing.token = '{token}'"));
    wire
}

/// Ids in the table, as a session outside of the proxy sees them.
#[track_caller]
fn committed(stage: &Stage) -> Vec<String> {
    stage.sql("SELECT id FROM jobs ORDER BY id").concat()
}

/// Asserts that the reply ends with FATAL PF001 and the end of the connection.
#[track_caller]
fn assert_ended(answer: &[Message]) {
    let end: Vec<&Message> = answer.iter().rev().take(2).collect();
    let good = end.len() == 2
        && end[0].is_closed()
        && end[1].sqlstate() == "PF001"
        && end[1].severity() == "FATAL";
    assert!(
        good,
        "the session should have ended with FATAL PF001:\n{}",
        pretty(answer)
    );
}

/// Asserts that the reply is one ERROR with this SQLSTATE, and the session goes on with this transaction status.
#[track_caller]
fn assert_refused(answer: &[Message], sqlstate: &str, state: u8) {
    let errors: Vec<&Message> = answer
        .iter()
        .filter(|message| message.tag == b'E')
        .collect();
    let good = errors.len() == 1
        && errors[0].sqlstate() == sqlstate
        && errors[0].severity() == "ERROR"
        && answer
            .last()
            .is_some_and(|last| last.tag == b'Z' && last.body == [state]);
    assert!(
        good,
        "should be refused with {sqlstate} and go on in {}:\n{}",
        char::from(state),
        pretty(answer)
    );
}
