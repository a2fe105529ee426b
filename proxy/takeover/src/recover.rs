//! Recovery after a disaster, for an operator: the authority was restored from an older snapshot or lost, or another
//! cluster replaces the one on record. The cluster's lock keeps proxies from serving meanwhile.
//!
//! A restored authority has forgotten marks, and sessions that were registered since. The marks come back from the
//! cluster's witness. The sessions cannot come back, so every client session of the cluster is ended: afterwards the
//! authority knows all that there are.

use std::collections::HashMap;
use std::time::Duration;

use pgpalisade_authority::{
    Authority, AuthorityError, Backend, Cluster, Enrolled, Mark, Rank, Scope,
};
use pgpalisade_fence::readable::counted;
use pgpalisade_tls::Login;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_postgres::Client;

use super::control::STARTED_US;
use super::control_error::ControlError;
use super::error::StartError;
use super::{
    StoreLock, WitnessMode, cluster_lock, control_login, hosts, prepare, sessions, witness,
};

/// Pause between looks at sessions that were told to end.
const LOOK: Duration = Duration::from_millis(20);
/// Pause between attempts to reach the authority.
const RETRY: Duration = Duration::from_millis(200);

/// Reason why a recovery was not completed. It can be run again.
#[derive(Debug, thiserror::Error)]
pub enum RecoverError {
    /// The cluster or the authority cannot be used.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The text says why, and what to do.
    #[error("{0}")]
    NotDone(String),
}

impl From<ControlError> for RecoverError {
    fn from(error: ControlError) -> Self {
        Self::Start(error.into())
    }
}

impl From<AuthorityError> for RecoverError {
    fn from(error: AuthorityError) -> Self {
        Self::Start(error.into())
    }
}

fn not_done(why: impl Into<String>) -> RecoverError {
    RecoverError::NotDone(why.into())
}

/// A recovery that was prepared but not performed.
#[derive(Debug)]
pub struct Recovery {
    /// Cluster of the control connection.
    pub cluster: Cluster,
    /// Cluster on record in the authority.
    pub recorded: Option<Cluster>,
    /// Marks that the authority has forgotten: scope, its mark there, its mark in the witness.
    pub forgotten: Vec<(Scope, Option<Rank>, Mark)>,
    /// Number of client sessions to be ended.
    pub sessions: usize,
    client: Client,
    old: Vec<Backend>,
}

impl Recovery {
    /// Takes the cluster's lock, which no proxy may hold, and looks. Changes nothing.
    ///
    /// # Errors
    ///
    /// A proxy that serves, missing rights, a standby, no connection, or no answer of the authority.
    pub async fn look(
        login: impl Into<Login>,
        authority: &dyn Authority,
        witness: WitnessMode,
        timeout: Duration,
    ) -> Result<Self, RecoverError> {
        let deadline = Instant::now() + timeout;
        let login = control_login(login.into());
        let looking = async {
            let client = the_primary(&login, deadline).await?;
            prepare::check_rights(&client).await?;
            cluster_lock::take(&client, authority.identity(), StoreLock::Exclusive).await?;
            let cluster = prepare::cluster(&client).await?;
            let recorded = authority.cluster().await?;
            let forgotten = forgotten(&client, authority, witness).await?;
            let old = client_sessions(&client).await?;
            Ok(Self {
                cluster,
                recorded,
                forgotten,
                sessions: old.len(),
                client,
                old,
            })
        };
        timeout_at(deadline, looking)
            .await
            .unwrap_or_else(|_| Err(not_done("it was not completed in time; run it again")))
    }

    /// Ends the sessions, then raises the marks and puts the cluster on record.
    ///
    /// # Errors
    ///
    /// Those of [`Self::look`], and sessions that cannot be ended.
    pub async fn perform(
        self,
        authority: &dyn Authority,
        witness: WitnessMode,
        timeout: Duration,
    ) -> Result<(), RecoverError> {
        let deadline = Instant::now() + timeout;
        let performing = async {
            let marks: Vec<(Scope, Mark)> = self
                .forgotten
                .into_iter()
                .map(|(scope, _, mark)| (scope, mark))
                .collect();
            end_sessions(&self.client, &self.old, deadline).await?;
            // An authority inside this cluster has just lost its connection, like the sessions.
            loop {
                let recovering = authority.recover(self.recorded, self.cluster, &marks);
                match recovering.await {
                    Ok(Enrolled::Accepted) => break,
                    Ok(Enrolled::Refused { recorded }) => {
                        return Err(not_done(format!(
                            "cluster {recorded} was put on record meanwhile; nothing was changed in the authority; \
                             run it again"
                        )));
                    }
                    Err(AuthorityError::Unavailable(_)) => sleep(RETRY).await,
                    Err(error) => return Err(error.into()),
                }
            }
            if witness == WitnessMode::Auto {
                witness::compare(&self.client, authority).await?;
            }
            Ok(())
        };
        timeout_at(deadline, performing)
            .await
            .unwrap_or_else(|_| Err(not_done("it was not completed in time; run it again")))
    }
}

/// Connects to the only server that takes writes. Of several, the operator must say which one is right.
async fn the_primary(login: &Login, deadline: Instant) -> Result<Client, RecoverError> {
    let mut found = hosts::primaries(login, deadline).await?;
    // One server may have several addresses.
    found.dedup_by_key(|open| open.writes);
    if found.len() > 1 {
        let named: Vec<String> = found.iter().map(|open| open.at.to_string()).collect();
        return Err(not_done(format!(
            "several hosts take writes ({}): stop those that are not the primary, or name only the primary",
            named.join(", ")
        )));
    }
    let only = found.pop().map(|open| open.link.client);
    Ok(only.ok_or(ControlError::Lost)?)
}

async fn forgotten(
    client: &Client,
    authority: &dyn Authority,
    mode: WitnessMode,
) -> Result<Vec<(Scope, Option<Rank>, Mark)>, StartError> {
    let seen = match mode {
        WitnessMode::Auto => witness::read_if_there(client).await?,
        WitnessMode::Off => HashMap::new(),
    };
    let marks = authority.marks().await?;
    let marks = marks.into_iter().collect();
    let with_mark = |(scope, _, kept): (&Scope, _, _)| {
        let mark = seen.get(scope)?;
        Some((scope.clone(), kept, mark.clone()))
    };
    let forgotten = witness::forgotten(&seen, &marks).into_iter();
    Ok(forgotten.filter_map(with_mark).collect())
}

async fn client_sessions(client: &Client) -> Result<Vec<Backend>, ControlError> {
    let sql = format!(
        "SELECT a.pid, {STARTED_US} FROM pg_catalog.pg_stat_activity a \
         WHERE a.backend_type = 'client backend' AND a.pid <> pg_catalog.pg_backend_pid()"
    );
    let rows = client.query_typed(&sql, &[]).await?;
    rows.iter().map(|row| sessions::backend(row, 0)).collect()
}

/// Ends these sessions and waits until none is left.
async fn end_sessions(
    client: &Client,
    old: &[Backend],
    deadline: Instant,
) -> Result<(), RecoverError> {
    match sessions::terminate_over(client, old).await {
        Err(error) if error.is_not_permitted() => {
            return Err(not_done(format!(
                "the control role cannot end the session of a superuser ({error}); nothing was changed in the \
                 authority; end the sessions of the superusers that \"pgpalisade check\" names, and run it again"
            )));
        }
        told => told?,
    }
    loop {
        let left = sessions::count_alive_over(client, old).await?;
        if left == 0 {
            return Ok(());
        }
        if Instant::now() + LOOK >= deadline {
            return Err(not_done(format!(
                "{} did not end in time; nothing was changed in the authority; run it again",
                counted(left, "client session")
            )));
        }
        sleep(LOOK).await;
    }
}
