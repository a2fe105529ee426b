//! Effects of a policy file on sessions: allowed writes, observing, and reloads.

use pgpalisade_test_servers::wire::{Message, Wire, errors, pretty};

mod altered;
mod bounds;
mod declare;
mod encodings;
mod long_texts;
mod observe;
mod prepared;
mod reload;
mod replication;
mod sessions;
mod unqualified;

const SETUP: &str = "CREATE SCHEMA jobs; CREATE TABLE jobs.queue (id int); CREATE TABLE notes (id int); \
    CREATE TABLE jobs.notes (id int); \
    CREATE FUNCTION hidden(n int) RETURNS int LANGUAGE sql AS 'INSERT INTO public.notes VALUES (n) RETURNING id'";

/// Asserts that the reply has no error.
#[track_caller]
fn assert_passes(answer: &[Message]) {
    assert!(errors(answer).is_empty(), "{}", pretty(answer));
}

/// Asserts that the reply is one ERROR with this SQLSTATE, and the session goes on.
#[track_caller]
fn assert_refused(wire: &mut Wire, sql: &str, sqlstate: &str) {
    let answer = wire.fails(sql, sqlstate);
    assert_eq!(answer.last().map(|last| last.tag), Some(b'Z'), "{sql}");
}
