//! Messages outside of replies: notifications while idle, cancelling, the server ending a session.

use pgpalisade_test_servers::machine::wait_until;
use pgpalisade_test_servers::wire::{Batch, PROTOCOL_3_0, PROTOCOL_3_2, Wire, cancel_request};

use super::{Talk, check_all, check_in};

/// Each on the same server.
#[test]
fn every_scene() {
    check_all(&[
        notifications_while_idle,
        cancel_with_a_wrong_key,
        terminated_while_idle,
        terminated_in_a_statement,
        a_client_that_vanishes,
    ]);
}

fn notifications_while_idle(talk: &mut Talk<'_>) {
    talk.query("LISTEN bell");
    talk.stage.sql("NOTIFY bell, 'from elsewhere'");
    talk.read_until(b'A');
    talk.query("NOTIFY bell, 'from myself'");
    talk.query("BEGIN; NOTIFY bell, 'at commit'");
    talk.query("COMMIT");
}

fn wait_until_running(talk: &Talk<'_>, sql: &str) {
    let look =
        format!("SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query = '{sql}'");
    wait_until("the statement to run", || talk.stage.value(&look) == "1");
}

/// With keys of 4 bytes, and with those of protocol 3.2, which PostgreSQL 18 makes 32 bytes long.
#[test]
fn cancel() {
    let scenario = |talk: &mut Talk<'_>| {
        let sleep = "SELECT pg_sleep(60)";
        talk.send(&Batch::new().query(sleep));
        wait_until_running(talk, sleep);
        let mut other = Wire::connect(&talk.endpoint);
        other.send_bytes(&cancel_request(talk.wire.backend_key()));
        talk.log.extend(other.until_closed());
        talk.read_until(b'Z');
        talk.query("SELECT 'still here'");
    };
    check_in(PROTOCOL_3_0, scenario);
    check_in(PROTOCOL_3_2, scenario);
}

/// A wrong key cancels nothing and gets no reply.
fn cancel_with_a_wrong_key(talk: &mut Talk<'_>) {
    let sleep = "SELECT pg_sleep(0.3)";
    talk.send(&Batch::new().query(sleep));
    wait_until_running(talk, sleep);
    let mut key = talk.wire.backend_key().to_vec();
    key[7] ^= 1;
    let mut other = Wire::connect(&talk.endpoint);
    other.send_bytes(&cancel_request(&key));
    talk.log.extend(other.until_closed());
    talk.read_until(b'Z');
}

/// Ended by an administrator: the client gets the server's own message.
fn terminated_while_idle(talk: &mut Talk<'_>) {
    talk.stage.sql(&format!(
        "SELECT pg_terminate_backend({})",
        talk.wire.backend_pid()
    ));
    talk.read_until(0);
}

fn terminated_in_a_statement(talk: &mut Talk<'_>) {
    let sleep = "SELECT pg_sleep(61)";
    talk.send(&Batch::new().query(sleep));
    wait_until_running(talk, sleep);
    terminated_while_idle(talk);
}

/// A client that vanishes leaves no session behind.
fn a_client_that_vanishes(talk: &mut Talk<'_>) {
    talk.query("BEGIN; INSERT INTO items VALUES (1, 'lost')");
    let pid = talk.wire.backend_pid();
    talk.wire.shut_down_writing();
    talk.read_until(0);
    let postgres = &talk.stage.postgres;
    wait_until("the session to end", || !postgres.has_session(pid));
}
