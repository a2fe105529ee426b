//! The story: A leads and is paused, B takes over, A wakes up. Every step is checked.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use pgpalisade_harness::{HarnessError, system};
use serde_json::Value;
use tokio_postgres::error::DbError;
use tokio_util::sync::CancellationToken;

use super::DemoError;
use super::leader::{DemoLeader, StepError};
use super::page::Page;

/// A record is written a moment after the client has its answer.
const RECORD_LIMIT: Duration = Duration::from_secs(5);

const STALE: &str = "PF001";

pub(super) struct Stage<'a> {
    pub(super) direct: tokio_postgres::Config,
    pub(super) proxied: tokio_postgres::Config,
    pub(super) rejection_log: &'a Path,
    pub(super) stop: &'a CancellationToken,
}

/// Plays the story. The first unexpected step is an error.
pub(super) fn play<W: Write>(stage: &Stage<'_>, page: &mut Page<W>) -> Result<(), DemoError> {
    let mut direct = connect(stage, &stage.direct, "a direct connection")?;
    do_it(
        &mut direct,
        "CREATE TABLE payments (id int, paid_by text, token text DEFAULT current_setting('fencing.token', true))",
    )?;

    page.step("Leader A has won an election, with token 33. It declares the token, and writes.")?;
    let mut a = connect(stage, &stage.proxied, "leader A")?;
    told(page, "A", &mut a, "SET fencing.token = 33")?;
    told(page, "A", &mut a, "INSERT INTO payments VALUES (1, 'A')")?;

    page.step("A is paused in the middle of a transaction: a long GC, or a VM being moved.")?;
    told(page, "A", &mut a, "BEGIN")?;
    told(page, "A", &mut a, "INSERT INTO payments VALUES (2, 'A')")?;
    let backend = backend_pid(&mut a)?;
    page.note("... A is paused. Its connection and its transaction are open, and it believes that it leads.")?;

    page.step("B wins the next election, with token 34. B declares the token, and writes.")?;
    let mut b = connect(stage, &stage.proxied, "leader B")?;
    let start = Instant::now();
    told(page, "B", &mut b, "SET fencing.token = 34")?;
    let took = start.elapsed().as_millis();
    check_gone(&mut direct, &backend)?;
    page.note(&format!(
        "(took {took} ms; A's backend, pid {backend}, is gone from PostgreSQL)"
    ))?;
    told(page, "B", &mut b, "INSERT INTO payments VALUES (2, 'B')")?;

    page.step("A wakes up and continues where it stopped.")?;
    refused(page, "A", "COMMIT", a.run("COMMIT").map(drop))?;

    page.step(
        "A does what applications do: it reconnects, still with token 33, and writes again.",
    )?;
    reconnect_and_write(stage, page)?;

    page.step("The rejection log:")?;
    show_records(stage, page)?;

    page.step("The table, read from PostgreSQL directly:")?;
    show_rows(page, &mut direct)?;
    page.line("")?;
    page.title("A's late writes are not in the table. Only B wrote after its takeover.")?;
    Ok(())
}

fn backend_pid(leader: &mut DemoLeader) -> Result<String, DemoError> {
    let rows = do_it(leader, "SELECT pg_backend_pid()")?;
    let pid = rows.into_iter().flatten().next();
    pid.ok_or_else(|| DemoError::NotAsTold(String::from("pg_backend_pid() gave nothing")))
}

/// The answer to B's declaration guarantees it, without waiting.
fn check_gone(direct: &mut DemoLeader, backend: &str) -> Result<(), DemoError> {
    if do_it(
        direct,
        &format!("SELECT state FROM pg_stat_activity WHERE pid = {backend}"),
    )?
    .is_empty()
    {
        Ok(())
    } else {
        Err(DemoError::NotAsTold(String::from(
            "A's backend was still there after the takeover",
        )))
    }
}

fn reconnect_and_write<W: Write>(stage: &Stage<'_>, page: &mut Page<W>) -> Result<(), DemoError> {
    let mut login = stage.proxied.clone();
    login
        .application_name("leader A")
        .options("-c fencing.token=33");
    let connect = "(connects with PGOPTIONS='-c fencing.token=33')";
    let write = "INSERT INTO payments VALUES (3, 'A')";
    match DemoLeader::connect(&login, stage.stop) {
        Err(error) => refused(page, "A", connect, Err(error)),
        Ok(mut session) => {
            page.says("A", connect)?;
            refused(page, "A", write, session.run(write).map(drop))
        }
    }
}

fn connect(
    stage: &Stage<'_>,
    login: &tokio_postgres::Config,
    who: &str,
) -> Result<DemoLeader, DemoError> {
    let mut login = login.clone();
    login.application_name(who);
    DemoLeader::connect(&login, stage.stop)
        .map_err(|error| not_as_told(&format!("{who} could not connect"), error))
}

fn do_it(leader: &mut DemoLeader, sql: &str) -> Result<Vec<Vec<String>>, DemoError> {
    leader
        .run(sql)
        .map_err(|error| not_as_told(&format!("{sql:?} did not succeed"), error))
}

fn told<W: Write>(
    page: &mut Page<W>,
    who: &str,
    leader: &mut DemoLeader,
    sql: &str,
) -> Result<(), DemoError> {
    page.says(who, sql)?;
    do_it(leader, sql)?;
    Ok(page.answer("ok")?)
}

fn refused<W: Write>(
    page: &mut Page<W>,
    who: &str,
    what: &str,
    result: Result<(), StepError>,
) -> Result<(), DemoError> {
    page.says(who, what)?;
    match result {
        Err(StepError::Refused(refusal)) => {
            page.refusal(refusal.severity(), refusal.message())?;
            for (name, text) in [("DETAIL", refusal.detail()), ("HINT", refusal.hint())] {
                page.refusal(name, text.unwrap_or_default())?;
            }
            check_refusal(what, &refusal)
        }
        Ok(()) => Err(DemoError::NotAsTold(format!(
            "{what:?} of the deposed leader succeeded"
        ))),
        Err(error) => Err(not_as_told(
            &format!("{what:?} was not refused as stale"),
            error,
        )),
    }
}

fn check_refusal(what: &str, refusal: &DbError) -> Result<(), DemoError> {
    let got = refusal.code().code();
    if got != STALE {
        return Err(DemoError::NotAsTold(format!(
            "{what:?} was refused with {got}, not {STALE}"
        )));
    }
    if refusal.detail().is_none() || refusal.hint().is_none() {
        return Err(DemoError::NotAsTold(format!(
            "the refusal of {what:?} has no DETAIL or no HINT"
        )));
    }
    Ok(())
}

fn show_records<W: Write>(stage: &Stage<'_>, page: &mut Page<W>) -> Result<(), DemoError> {
    let start = Instant::now();
    loop {
        let text = fs::read_to_string(stage.rejection_log)
            .map_err(system("cannot read the rejection log"))?;
        let stale = text.lines().filter(|line| is_stale_record(line)).count();
        if stale >= 2 {
            for line in text.lines() {
                page.note(line)?;
            }
            return Ok(());
        }
        if stage.stop.is_cancelled() {
            return Err(HarnessError::Interrupted.into());
        }
        if start.elapsed() > RECORD_LIMIT {
            let why = format!(
                "the rejection log has {stale} records of token 33 against mark 34, not 2:\n{text}"
            );
            return Err(DemoError::NotAsTold(why));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn is_stale_record(line: &str) -> bool {
    let Ok(record) = serde_json::from_str::<Value>(line) else {
        return false;
    };
    let number = |name: &str| record.get(name).and_then(Value::as_u64);
    let sqlstate = record.get("sqlstate").and_then(Value::as_str);
    sqlstate == Some(STALE) && number("token") == Some(33) && number("mark") == Some(34)
}

fn show_rows<W: Write>(page: &mut Page<W>, direct: &mut DemoLeader) -> Result<(), DemoError> {
    let sql = "SELECT id, paid_by, token FROM payments ORDER BY id, paid_by";
    page.says("psql", sql)?;
    let rows = do_it(direct, sql)?;
    page.line("       id | paid_by | token")?;
    page.line("      ----+---------+-------")?;
    for row in &rows {
        if let [id, paid_by, token] = row.as_slice() {
            page.line(&format!("      {id:>3} | {paid_by:<7} | {token}"))?;
        }
    }
    if rows == [["1", "A", "33"], ["2", "B", "34"]] {
        Ok(())
    } else {
        Err(DemoError::NotAsTold(String::from(
            "the table must hold payment 1 of A and payment 2 of B, and no more",
        )))
    }
}

fn not_as_told(what: &str, error: StepError) -> DemoError {
    match error {
        StepError::Interrupted => HarnessError::Interrupted.into(),
        error => {
            let cause = std::error::Error::source(&error)
                .map_or_else(String::new, |cause| format!(": {cause}"));
            DemoError::NotAsTold(format!("{what}: {error}{cause}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_that_count() {
        assert!(is_stale_record(
            r#"{"sqlstate":"PF001","token":33,"mark":34}"#
        ));
        assert!(!is_stale_record(
            r#"{"sqlstate":"PF001","token":33,"mark":33}"#
        ));
        assert!(!is_stale_record(
            r#"{"sqlstate":"PF002","token":33,"mark":34}"#
        ));
        assert!(!is_stale_record(r#"{"dropped":1}"#));
        assert!(!is_stale_record("{"));
    }
}
