//! The story: A leads and is paused, B takes over, A wakes up. Every step is checked.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use pgpalisade_harness::system;
use pgpalisade_tls::{ClientSession, Login, Said};
use serde_json::Value;

use super::DemoError;
use super::page::Page;

/// A record is written a moment after the client has its answer.
const RECORD_LIMIT: Duration = Duration::from_secs(5);

/// Bound for one step.
const STEP_LIMIT: Duration = Duration::from_secs(15);

const STALE: &str = "PF001";

pub(super) struct Stage<'a, W> {
    pub(super) direct: tokio_postgres::Config,
    pub(super) proxied: tokio_postgres::Config,
    pub(super) rejection_log: &'a Path,
    pub(super) page: &'a mut Page<W>,
}

impl<W: Write> Stage<'_, W> {
    /// Plays the story. The first unexpected step is an error.
    pub(super) async fn play(&mut self) -> Result<(), DemoError> {
        let direct = self.connect(&self.direct, "a direct connection").await?;
        do_it(
            &direct,
            "CREATE TABLE payments (id int, paid_by text, token text DEFAULT current_setting('fencing.token', true))",
        )
        .await?;

        self.page.step(
            "Leader A has won an election, with token 33. It declares the token, and writes.",
        )?;
        let a = self.connect(&self.proxied, "leader A").await?;
        self.told("A", &a, "SET fencing.token = 33").await?;
        self.told("A", &a, "INSERT INTO payments VALUES (1, 'A')")
            .await?;

        self.page
            .step("A is paused in the middle of a transaction: a long GC, or a VM being moved.")?;
        self.told("A", &a, "BEGIN").await?;
        self.told("A", &a, "INSERT INTO payments VALUES (2, 'A')")
            .await?;
        let backend = do_it(&a, "SELECT pg_backend_pid()")
            .await?
            .concat()
            .concat();
        self.page
            .note("... A is paused. Its connection and its transaction are open, and it believes that it leads.")?;

        self.page
            .step("B wins the next election, with token 34. B declares the token, and writes.")?;
        let b = self.connect(&self.proxied, "leader B").await?;
        let start = Instant::now();
        self.told("B", &b, "SET fencing.token = 34").await?;
        let took = start.elapsed().as_millis();
        // The answer to B's declaration guarantees it, without waiting.
        let state = format!("SELECT state FROM pg_stat_activity WHERE pid = {backend}");
        check(do_it(&direct, &state).await?.is_empty(), || {
            "A's backend was still there after the takeover".to_owned()
        })?;
        self.page.note(&format!(
            "(took {took} ms; A's backend, pid {backend}, is gone from PostgreSQL)"
        ))?;
        self.told("B", &b, "INSERT INTO payments VALUES (2, 'B')")
            .await?;

        self.page
            .step("A wakes up and continues where it stopped.")?;
        self.refused("A", "COMMIT", a.ask("COMMIT", STEP_LIMIT).await)?;

        self.page.step(
            "A does what applications do: it reconnects, still with token 33, and writes again.",
        )?;
        self.reconnect_and_write().await?;

        self.page.step("The rejection log:")?;
        self.show_records().await?;

        self.page
            .step("The table, read from PostgreSQL directly:")?;
        self.show_rows(&direct).await?;
        self.page.line("")?;
        self.page
            .line("A's late writes are not in the table. Only B wrote after its takeover.")?;
        Ok(())
    }

    async fn connect(
        &self,
        login: &tokio_postgres::Config,
        who: &str,
    ) -> Result<ClientSession, DemoError> {
        let mut login = login.clone();
        login.application_name(who);
        let connected = Login::from(login).open_within(STEP_LIMIT).await;
        connected.map_err(|said| DemoError::NotAsTold(format!("{who} could not connect: {said}")))
    }

    async fn told(
        &mut self,
        who: &str,
        leader: &ClientSession,
        sql: &str,
    ) -> Result<(), DemoError> {
        self.page.says(who, sql)?;
        do_it(leader, sql).await?;
        Ok(self.page.answer("ok")?)
    }

    async fn reconnect_and_write(&mut self) -> Result<(), DemoError> {
        let mut login = self.proxied.clone();
        login
            .application_name("leader A")
            .options("-c fencing.token=33");
        let connect = "(connects with PGOPTIONS='-c fencing.token=33')";
        let write = "INSERT INTO payments VALUES (3, 'A')";
        match Login::from(login).open_within(STEP_LIMIT).await {
            Err(said) => self.refused("A", connect, Err(said)),
            Ok(session) => {
                self.page.says("A", connect)?;
                self.refused("A", write, session.ask(write, STEP_LIMIT).await)
            }
        }
    }

    fn refused(
        &mut self,
        who: &str,
        what: &str,
        result: Result<Vec<Vec<String>>, Said>,
    ) -> Result<(), DemoError> {
        self.page.says(who, what)?;
        let refusal = match result {
            Err(Said {
                error: Some(refusal),
                ..
            }) => refusal,
            Ok(_) => {
                let why = format!("{what:?} of the deposed leader succeeded");
                return Err(DemoError::NotAsTold(why));
            }
            Err(said) => {
                let why = format!("{what:?} was not refused as stale: {said}");
                return Err(DemoError::NotAsTold(why));
            }
        };
        self.page.refusal(refusal.severity(), refusal.message())?;
        for (name, text) in [("DETAIL", refusal.detail()), ("HINT", refusal.hint())] {
            check(text.is_some(), || {
                format!("the refusal of {what:?} has no {name}")
            })?;
            self.page.refusal(name, text.unwrap_or_default())?;
        }
        let got = refusal.code().code();
        check(got == STALE, || {
            format!("{what:?} was refused with {got}, not {STALE}")
        })
    }

    async fn show_records(&mut self) -> Result<(), DemoError> {
        let start = Instant::now();
        loop {
            let text = fs::read_to_string(self.rejection_log)
                .map_err(system("cannot read the rejection log"))?;
            let stale = text.lines().filter(|line| is_stale_record(line)).count();
            if stale >= 2 {
                return Ok(text.lines().try_for_each(|line| self.page.note(line))?);
            }
            check(start.elapsed() <= RECORD_LIMIT, || {
                format!(
                    "the rejection log has {stale} records of token 33 against mark 34, not 2:\n{text}"
                )
            })?;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn show_rows(&mut self, direct: &ClientSession) -> Result<(), DemoError> {
        let sql = "SELECT id, paid_by, token FROM payments ORDER BY id, paid_by";
        self.page.says("psql", sql)?;
        let rows = do_it(direct, sql).await?;
        self.page.line("       id | paid_by | token")?;
        self.page.line("      ----+---------+-------")?;
        for row in &rows {
            if let [id, paid_by, token] = row.as_slice() {
                let row = format!("      {id:>3} | {paid_by:<7} | {token}");
                self.page.line(&row)?;
            }
        }
        check(rows == [["1", "A", "33"], ["2", "B", "34"]], || {
            "the table must hold payment 1 of A and payment 2 of B, and no more".to_owned()
        })
    }
}

async fn do_it(leader: &ClientSession, sql: &str) -> Result<Vec<Vec<String>>, DemoError> {
    let done = leader.ask(sql, STEP_LIMIT).await;
    done.map_err(|said| DemoError::NotAsTold(format!("{sql:?} did not succeed: {said}")))
}

fn check(is_as_told: bool, otherwise: impl FnOnce() -> String) -> Result<(), DemoError> {
    if is_as_told {
        Ok(())
    } else {
        Err(DemoError::NotAsTold(otherwise()))
    }
}

fn is_stale_record(line: &str) -> bool {
    let record: Value = serde_json::from_str(line).unwrap_or_default();
    let number = |name: &str| record.get(name).and_then(Value::as_u64);
    let sqlstate = record.get("sqlstate").and_then(Value::as_str);
    sqlstate == Some(STALE) && number("token") == Some(33) && number("mark") == Some(34)
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
