//! Prepared transactions: they outlive their sessions, so no barrier ends them.
//!
//! PostgreSQL does not say under which token a transaction was prepared. One counts as older if it was prepared
//! before the mark was raised, in whatever scope. That compares the time that PostgreSQL has on record with that of
//! the mark.
//! <https://www.postgresql.org/docs/current/view-pg-prepared-xacts.html>

use pgpalisade_authority::{Mark, Scope};
use pgpalisade_policies::PreparedTransactions;
use serde::Deserialize;
use tokio::time::Instant;
use tokio_postgres::types::{ToSql, Type};

use super::control::Control;
use super::control_error::ControlError;
use super::error::DeclareError;

/// Maximum number that is named, or rolled back by one takeover.
const MOST: i64 = 100;

/// A prepared transaction that PostgreSQL knows.
#[derive(Deserialize)]
struct PreparedTransaction {
    gid: String,
    /// The gid as an SQL literal.
    literal: String,
    owner: String,
    database: String,
    /// Whether the control connection can roll it back.
    is_here: bool,
}

/// Applies the policy to those that are older than a mark. Returns after none stands in the way.
pub(super) async fn meet(
    control: &Control,
    policy: PreparedTransactions,
    (scope, mark): (&Scope, &Mark),
    deadline: Instant,
) -> Result<(), DeclareError> {
    if policy == PreparedTransactions::Report {
        return Ok(());
    }
    let mut left = older(control, mark.raised_at, deadline).await?;
    let mut why = "the policy says prepared_transactions = \"refuse\"".to_owned();
    if policy == PreparedTransactions::RollBack && !left.is_empty() {
        why = roll_back(control, &left, deadline).await;
        left = older(control, mark.raised_at, deadline).await?;
    }
    if left.is_empty() {
        Ok(())
    } else {
        Err(DeclareError::Prepared {
            scope: scope.clone(),
            left: left.iter().map(ToString::to_string).collect(),
            why,
        })
    }
}

/// Rolls them back, and says what stood in the way of the rest.
async fn roll_back(
    control: &Control,
    prepared: &[PreparedTransaction],
    deadline: Instant,
) -> String {
    let mut why = "they are in another database than the control connection".to_owned();
    for one in prepared.iter().filter(|one| one.is_here) {
        let sql = format!("ROLLBACK PREPARED {}", one.literal);
        match control.query(&sql, &[], deadline).await {
            Ok(_) => tracing::warn!(
                gid = one.gid,
                owner = one.owner,
                database = one.database,
                "a takeover rolled back a prepared transaction"
            ),
            Err(error) => why = format!("{} could not be rolled back: {error}", one.gid),
        }
    }
    why
}

/// Logs all prepared transactions.
pub(super) async fn report(control: &Control, deadline: Instant) {
    let all = match older(control, i64::MAX, deadline).await {
        Ok(all) => all,
        Err(error) => return tracing::warn!(%error, "cannot read the prepared transactions"),
    };
    for one in all {
        tracing::warn!(
            gid = one.gid,
            owner = one.owner,
            database = one.database,
            "a prepared transaction outlives this takeover; only the current token can finish it"
        );
    }
}

async fn older(
    control: &Control,
    than_us: i64,
    deadline: Instant,
) -> Result<Vec<PreparedTransaction>, ControlError> {
    let sql = "SELECT gid, pg_catalog.quote_literal(gid) AS literal, owner, database, \
                      database OPERATOR(pg_catalog.=) pg_catalog.current_database() AS is_here \
               FROM pg_catalog.pg_prepared_xacts \
               WHERE (extract(epoch FROM prepared) * 1000000)::pg_catalog.int8 < $1 \
               ORDER BY prepared LIMIT $2";
    let params: [(&(dyn ToSql + Sync), Type); 2] = [(&than_us, Type::INT8), (&MOST, Type::INT8)];
    control.rows(sql, &params, deadline).await
}

impl std::fmt::Display for PreparedTransaction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The client that prepared it has chosen the name.
        let gid = self.gid.escape_debug();
        write!(f, "'{gid}' of {} in database {}", self.owner, self.database)
    }
}
