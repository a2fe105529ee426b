//! One round: old sessions with open write transactions, and the time until all of them are gone.

use std::time::{Duration, Instant};

use pgpalisade_tests::machine;
use pgpalisade_tests::proxy::Proxy;
use pgpalisade_tests::stage::leader;
use pgpalisade_tests::wire::{Message, Wire, pretty};

use crate::error::Error;
use crate::stage::Stage;

const WRITE: &str = "BEGIN; INSERT INTO jobs (who) VALUES (1)";
const ADMIN: [(&str, &str); 2] = [("user", "postgres"), ("database", "postgres")];

/// How PostgreSQL is told to end the sessions, and asked whether it has, where no proxy does it. It looks every 5 ms.
const TERMINATE: &str = "DO $$ BEGIN
    PERFORM pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'alone';
    LOOP
        PERFORM pg_stat_clear_snapshot();
        EXIT WHEN NOT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = 'alone');
        PERFORM pg_sleep(0.005);
    END LOOP;
END $$";

/// The proxy removes the records of ended sessions in the background. What of it is still under way when a round
/// begins would be counted into it.
const SETTLE: Duration = Duration::from_millis(50);

/// Measures one round, and looks that it was a takeover.
///
/// # Errors
/// When the new leader was not let in, or an old session has got its row into the table.
pub(crate) fn measure(stage: &mut Stage, sessions: u16) -> Result<Duration, Error> {
    let (old, new) = stage.next_tokens();
    let took = match stage.proxy() {
        Some(proxy) => takeover(proxy, sessions, old, new)?,
        None => alone(stage, sessions)?,
    };
    let rows = stage.postgres().value("SELECT count(*) FROM jobs");
    if rows != "0" {
        return Err(Error::OldRows { rows });
    }
    settle(stage);
    Ok(took)
}

/// From sending SET with the next token to its answer.
fn takeover(proxy: &Proxy, sessions: u16, old: u64, new: u64) -> Result<Duration, Error> {
    let endpoint = proxy.endpoint();
    let old = writers(sessions, || leader(&endpoint, &old.to_string()));
    let mut next = Wire::login(&endpoint, &ADMIN);
    let set = format!("SET fencing.token = {new}");
    let begin = Instant::now();
    let answer = next.query(&set);
    let took = begin.elapsed();
    // It may write, so it was let in.
    let wrote = next.query("BEGIN; INSERT INTO jobs (who) VALUES (2); ROLLBACK");
    for answer in [answer, wrote] {
        if !succeeded(&answer) {
            return Err(Error::Refused {
                answer: pretty(&answer),
            });
        }
    }
    for mut wire in old {
        let answer = wire.query("COMMIT");
        if answer.first().map(Message::sqlstate).as_deref() != Some("PF001") {
            return Err(Error::OldSession {
                answer: pretty(&answer),
            });
        }
    }
    Ok(took)
}

/// The time that PostgreSQL needs to end as many sessions of the same kind.
fn alone(stage: &Stage, sessions: u16) -> Result<Duration, Error> {
    let endpoint = stage.postgres().tcp();
    let [user, database] = ADMIN;
    let parameters = [user, database, ("application_name", "alone")];
    let old = writers(sessions, || Wire::login(&endpoint, &parameters));
    let mut admin = Wire::login(&endpoint, &ADMIN);
    let begin = Instant::now();
    admin.ok(TERMINATE);
    let took = begin.elapsed();
    for mut wire in old {
        let answer = wire.query("COMMIT");
        if succeeded(&answer) {
            return Err(Error::OldSession {
                answer: pretty(&answer),
            });
        }
    }
    Ok(took)
}

/// Sessions with an open transaction that has written a row.
fn writers(count: u16, login: impl Fn() -> Wire) -> Vec<Wire> {
    let mut writers: Vec<Wire> = (0..count).map(|_| login()).collect();
    for wire in &mut writers {
        wire.ok(WRITE);
    }
    writers
}

fn succeeded(answer: &[Message]) -> bool {
    answer.last().is_some_and(|last| last.tag == b'Z')
        && !answer.iter().any(|message| message.tag == b'E')
}

/// Waits until this round has left nothing behind that the next would find. Sessions come by TCP; the control
/// connection and ours come by unix socket.
fn settle(stage: &Stage) {
    const SESSIONS: &str = "SELECT count(*) FROM pg_stat_activity WHERE client_addr IS NOT NULL";
    let mut admin = stage.postgres().admin();
    machine::wait_for("the sessions of a round to end", || {
        (admin.rows(SESSIONS) == [["0"]]).then_some(())
    });
    std::thread::sleep(SETTLE);
}
