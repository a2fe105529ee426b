//! An advisory lock of PostgreSQL, held by a session through the proxy that takes the next token with it.
//!
//! Lock and token belong to one session: who loses the one, loses the other. Source:
//! <https://www.postgresql.org/docs/current/explicit-locking.html#ADVISORY-LOCKS>

use std::error::Error as _;
use std::time::Duration;

use pgpalisade_authority::{Claim, Scope, Token};
use pgpalisade_tls::{ConnectError, Login};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_postgres::{Client, SimpleQueryMessage};

use super::lock::LockError;
use crate::config::Secret;
use crate::fence::TokenValue;

/// How often a candidate looks whether the lock is free.
const ATTEMPT_EVERY: Duration = Duration::from_millis(500);
/// What a session gets to say goodbye.
const GOODBYE: Duration = Duration::from_secs(1);

/// Which lock.
#[derive(Debug)]
pub(crate) struct AdvisoryLock {
    /// Through the proxy.
    pub(super) login: Secret<Login>,
    /// The key of `pg_advisory_lock`.
    pub(super) id: i64,
    /// What the token is for.
    pub(super) scope: Scope,
    /// The session is taken for lost where it does not answer for so long.
    pub(super) answers_within: Duration,
}

/// A session that waits for the lock, or holds it.
pub(super) struct Candidate {
    client: Client,
    /// Ends with the session, and says how.
    driver: JoinHandle<Result<(), tokio_postgres::Error>>,
    id: i64,
    scope: Scope,
    answers_within: Duration,
}

impl Candidate {
    pub(super) async fn log_in(lock: &AdvisoryLock) -> Result<Self, LockError> {
        let within = lock.answers_within;
        let login = timeout(within, lock.login.expose().connect()).await;
        let login = login.map_err(|_| LockError::Silent("the proxy", within))?;
        let (client, connection) = login.map_err(|error| match error {
            ConnectError::Server(error) => failed(&error),
            ConnectError::Files(error) => LockError::Session(error.to_string()),
        })?;
        Ok(Self {
            client,
            driver: tokio::spawn(connection),
            id: lock.id,
            scope: lock.scope.clone(),
            answers_within: within,
        })
    }

    pub(super) async fn elected(&mut self) -> Result<Token, LockError> {
        // One that waits inside of PostgreSQL would keep VACUUM from removing anything for as long as others lead.
        let attempt = format!("SELECT pg_catalog.pg_try_advisory_lock({})", self.id);
        while self.ask(&attempt).await?.as_deref() != Some("t") {
            sleep(ATTEMPT_EVERY).await;
        }
        let take = format!("SET fencing.token = '{}={}'", self.scope, Claim::Next);
        self.ask(&take).await?;
        let shown = self.ask("SHOW fencing.token").await?.unwrap_or_default();
        let value = TokenValue::parse(&shown, &self.scope).ok().flatten();
        let mut claims = value.iter().flat_map(TokenValue::claims);
        let own = claims.find(|(scope, _)| *scope == self.scope);
        match own {
            Some((_, Claim::Token(token))) => Ok(*token),
            _ => Err(LockError::Session(
                "what answers there is no pgpalisade: it has given no token; give the proxy's address".to_owned(),
            )),
        }
    }

    /// Asks at intervals whether the session is still there.
    pub(super) async fn lost(&mut self) -> String {
        loop {
            tokio::select! {
                ended = &mut self.driver => return match ended {
                    Ok(Err(error)) => words(&error),
                    Ok(Ok(())) | Err(_) => "the session through the proxy has ended".to_owned(),
                },
                () = sleep(self.answers_within / 3) => {}
            }
            let lives = self.client.simple_query("");
            match timeout(self.answers_within / 3, lives).await {
                // Why it has ended is what the driver says.
                Ok(Ok(_)) | Ok(Err(_)) => {}
                Err(_) => return "the session through the proxy does not answer".to_owned(),
            }
        }
    }

    /// The lock lives as long as its session.
    pub(super) async fn leads(&self) -> bool {
        let lives = timeout(self.answers_within / 3, self.client.simple_query("")).await;
        matches!(lives, Ok(Ok(_)))
    }

    /// The lock goes with its session.
    pub(super) async fn resign(self) {
        drop(self.client);
        let abort = self.driver.abort_handle();
        // What has ended may have told so before, and is not asked again.
        if !self.driver.is_finished() && timeout(GOODBYE, self.driver).await.is_err() {
            abort.abort();
        }
    }

    /// The first value of the answer, where there is one.
    async fn ask(&self, sql: &str) -> Result<Option<String>, LockError> {
        let answer = timeout(self.answers_within, self.client.simple_query(sql)).await;
        let answer = answer.map_err(|_| LockError::Silent("the proxy", self.answers_within))?;
        let rows = answer.map_err(|error| failed(&error))?;
        Ok(rows.iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
            _ => None,
        }))
    }
}

fn failed(error: &tokio_postgres::Error) -> LockError {
    LockError::Session(words(error))
}

/// What the server says, or what is wrong with the way to it.
fn words(error: &tokio_postgres::Error) -> String {
    if let Some(said) = error.as_db_error() {
        let hint = said.hint().map(|hint| format!(" ({hint})"));
        return format!("{}{}", said.message(), hint.unwrap_or_default());
    }
    match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}
