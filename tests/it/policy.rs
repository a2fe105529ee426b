//! Effects of a policy file on sessions: allowed writes, observing, and reloads.

mod altered;
mod bounds;
mod declare;
mod long_texts;
mod observe;
mod prepared;
mod reload;
mod replication;

mod sessions;
mod unqualified;

use pgpalisade_test_servers::wire::{Message, Wire, pretty};

const SETUP: &str = "CREATE SCHEMA jobs; CREATE TABLE jobs.queue (id int); CREATE TABLE notes (id int); \
    CREATE TABLE jobs.notes (id int); \
    CREATE FUNCTION hidden(n int) RETURNS int LANGUAGE sql AS 'INSERT INTO public.notes VALUES (n) RETURNING id'";

/// Asserts that the reply has no error.
#[track_caller]
fn assert_passes(answer: &[Message]) {
    let error = answer.iter().any(|message| message.tag == b'E');
    assert!(!error, "should pass:\n{}", pretty(answer));
}

/// Asserts that the reply is one ERROR with this SQLSTATE, and the session goes on.
#[track_caller]
fn assert_refused(wire: &mut Wire, sql: &str, sqlstate: &str) {
    let answer = wire.query(sql);
    let refused = answer.iter().find(|message| message.tag == b'E');
    assert_eq!(
        refused.map(Message::sqlstate).as_deref(),
        Some(sqlstate),
        "{sql}:\n{}",
        pretty(&answer)
    );
    assert_eq!(answer.last().map(|last| last.tag), Some(b'Z'), "{sql}");
}
