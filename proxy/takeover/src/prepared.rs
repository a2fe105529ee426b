//! Prepared transactions: they outlive their sessions, so no barrier ends them.
//!
//! PostgreSQL does not say which token one was prepared under. Those count as of a lower one that were prepared before
//! the mark was raised, by the time that PostgreSQL has on record and the one that the mark has: of whatever scope.
//! <https://www.postgresql.org/docs/current/view-pg-prepared-xacts.html>

use pgpalisade_authority::{Mark, Scope};
use pgpalisade_policies::PreparedTransactions;
use tokio::time::Instant;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::control::{Control, answer};
use super::error::{ControlError, DeclareError};

/// So many are named, or rolled back by one takeover.
const MOST: i64 = 100;

/// One that PostgreSQL knows.
struct Prepared {
    gid: String,
    /// The gid as SQL writes it.
    literal: String,
    owner: String,
    database: String,
    /// It can be rolled back from where the control connection is.
    is_here: bool,
}

/// Does what the policy says about those that are older than a mark. Returns once none stands in the way.
pub(super) async fn meet(
    control: &Control,
    policy: PreparedTransactions,
    (scope, mark): (&Scope, &Mark),
    deadline: Instant,
) -> Result<(), DeclareError> {
    let mut left = match policy {
        PreparedTransactions::Report => return Ok(()),
        PreparedTransactions::Refuse | PreparedTransactions::RollBack => {
            older(control, mark.raised_at, deadline).await?
        }
    };
    let mut why = "the policy says prepared_transactions = \"refuse\"".to_owned();
    if policy == PreparedTransactions::RollBack && !left.is_empty() {
        why = roll_back(control, &left, deadline).await;
        left = older(control, mark.raised_at, deadline).await?;
    }
    match left.is_empty() {
        true => Ok(()),
        false => Err(DeclareError::Prepared {
            scope: scope.clone(),
            left: left.iter().map(ToString::to_string).collect(),
            why,
        }),
    }
}

/// Rolls them back, and says what stood in the way of those that were not.
async fn roll_back(control: &Control, prepared: &[Prepared], deadline: Instant) -> String {
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

/// Names all that there are in the log.
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
) -> Result<Vec<Prepared>, ControlError> {
    let sql = "SELECT gid, pg_catalog.quote_literal(gid), owner::pg_catalog.text, database::pg_catalog.text, \
                      database OPERATOR(pg_catalog.=) pg_catalog.current_database() \
               FROM pg_catalog.pg_prepared_xacts \
               WHERE (extract(epoch FROM prepared) * 1000000)::pg_catalog.int8 < $1 \
               ORDER BY prepared LIMIT $2";
    let params = [
        (
            &than_us as &(dyn tokio_postgres::types::ToSql + Sync),
            Type::INT8,
        ),
        (&MOST, Type::INT8),
    ];
    let rows = control.query(sql, &params, deadline).await?;
    rows.iter().map(Prepared::read).collect()
}

impl Prepared {
    fn read(row: &Row) -> Result<Self, ControlError> {
        Ok(Self {
            gid: answer(row, 0)?,
            literal: answer(row, 1)?,
            owner: answer(row, 2)?,
            database: answer(row, 3)?,
            is_here: answer(row, 4)?,
        })
    }
}

impl std::fmt::Display for Prepared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Whoever prepared it has chosen the name.
        let gid = self.gid.escape_debug();
        write!(f, "'{gid}' of {} in database {}", self.owner, self.database)
    }
}
