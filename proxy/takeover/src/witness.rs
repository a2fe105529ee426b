//! The witness: a copy of the marks inside the protected cluster.
//!
//! Marks live in the authority. An authority that is restored from an older snapshot has forgotten the latest ones,
//! and cannot know it. So every mark is also written to a small table of the cluster before its declaration is
//! answered. A proxy refuses to serve if a mark of the authority is below that of the witness. The witness never
//! admits anything. It costs one small transaction for each takeover, none for a write.

use std::collections::HashMap;
use std::sync::Arc;

use dashmap::DashMap;
use pgpalisade_authority::owned::{Objects, PREPARED_GUARD, Strange};
use pgpalisade_authority::{Authority, Mark, Rank, Scope};
use postgres_protocol::escape::escape_literal;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Row, SimpleQueryMessage, SimpleQueryRow};

use super::control::{Control, answer};
use super::control_error::ControlError;
use super::error::{DeclareError, StartError};

/// Setup for a superuser, if the control role may not create the table.
pub const SETUP: &str = "CREATE SCHEMA IF NOT EXISTS pgpalisade; \
    CREATE TABLE IF NOT EXISTS pgpalisade.mark (scope text PRIMARY KEY, token int8 NOT NULL, \
    raised_at int8 NOT NULL, raised_by text NOT NULL, incarnation int8 NOT NULL DEFAULT 0);";

/// Objects used in the control connection's database.
const OWN: Objects = Objects {
    schema: "pgpalisade",
    tables: &["mark"],
    expressions: &["0"],
    advice: "if the witness is yours, let the control role or a superuser own it, and attach nothing to it; if not, \
        have a superuser run: DROP SCHEMA pgpalisade CASCADE. It is a copy, which a proxy creates again",
};

/// Asks the catalogs, because to_regclass fails if the role may not look into the schema.
const IS_THERE: &str = "SELECT EXISTS (SELECT FROM pg_catalog.pg_class c \
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
    WHERE n.nspname = 'pgpalisade' AND c.relname = 'mark')";

const IS_USABLE: &str = "SELECT pg_catalog.has_schema_privilege('pgpalisade', 'USAGE') \
    AND pg_catalog.has_table_privilege('pgpalisade.mark', 'SELECT') \
    AND pg_catalog.has_table_privilege('pgpalisade.mark', 'INSERT') \
    AND pg_catalog.has_table_privilege('pgpalisade.mark', 'UPDATE')";

/// Several statements in one message are one transaction
/// (<https://www.postgresql.org/docs/current/protocol-flow.html#PROTOCOL-FLOW-MULTI-STATEMENT>).
fn read_statements() -> String {
    let guard = OWN.guard();
    format!(
        "LOCK TABLE ONLY pgpalisade.mark IN ACCESS SHARE MODE; {guard}; \
         SELECT m.scope, pg_catalog.row_to_json(m) \
         FROM (SELECT scope, token, raised_at, raised_by, incarnation FROM pgpalisade.mark) m"
    )
}

/// A row that is not lower in rank stays as it is: a mark never falls here either. The conflicting row is locked `FOR
/// UPDATE`, which makes the comparison exact.
fn raise_statements(guard: &str, rows: &[Written<'_>]) -> Result<String, ControlError> {
    let rows = serde_json::to_string(rows)
        .map_err(|error| ControlError::Down(error.to_string().into()))?;
    // A client's name may have letters that the database's encoding lacks.
    let rows = escape_literal(&rows.replace(|c: char| !c.is_ascii(), "?"));
    Ok(format!(
        "LOCK TABLE ONLY pgpalisade.mark IN ROW EXCLUSIVE MODE; {guard}; \
         INSERT INTO pgpalisade.mark AS m (scope, token, raised_at, raised_by, incarnation) \
         SELECT * FROM pg_catalog.json_to_recordset({rows}) AS rows (scope pg_catalog.text, token pg_catalog.int8, \
         raised_at pg_catalog.int8, raised_by pg_catalog.text, incarnation pg_catalog.int8) \
         ON CONFLICT (scope) DO UPDATE SET token = excluded.token, raised_at = excluded.raised_at, \
         raised_by = excluded.raised_by, incarnation = excluded.incarnation \
         WHERE (m.incarnation, m.token) < (excluded.incarnation, excluded.token)"
    ))
}

/// A row to be written. The table does not keep the record of a repair.
#[derive(Serialize)]
struct Written<'a> {
    scope: &'a str,
    #[serde(flatten)]
    mark: &'a Mark,
}

fn row_of<'a>((scope, mark): (&'a Scope, &'a Mark)) -> Written<'a> {
    let scope = scope.as_str();
    Written { scope, mark }
}

#[derive(Deserialize)]
struct Seen {
    scope: Scope,
    #[serde(flatten)]
    mark: Mark,
}

/// The witness, for declarations.
pub(super) struct Witness {
    control: Control,
    /// Ranks known to be written, so that each mark is written once.
    written: DashMap<Scope, Rank>,
    /// Ranks of declarations that were answered with an error, since they could not be written.
    owed: DashMap<Scope, Rank>,
}

impl Witness {
    pub(super) fn new(control: Control) -> Arc<Self> {
        Arc::new(Self {
            control,
            written: DashMap::new(),
            owed: DashMap::new(),
        })
    }

    /// Writes a mark that another proxy may have written already. Does not wait.
    pub(super) fn record_later(self: &Arc<Self>, scope: Scope, mark: Mark, deadline: Instant) {
        if self.has(&scope, mark.rank()) {
            return;
        }
        let witness = Arc::clone(self);
        tokio::spawn(async move {
            if let Err(error) = witness.record(&scope, &mark, deadline).await {
                tracing::debug!(%error, "the next control connection updates the witness");
            }
        });
    }

    fn has(&self, scope: &Scope, rank: Rank) -> bool {
        self.written.get(scope).is_some_and(|seen| *seen >= rank)
    }

    /// Whether a declaration of this mark, or of a higher one, has failed because it could not be written.
    pub(super) fn owes(&self, scope: &Scope, mark: &Mark) -> bool {
        let owed = self.owed.get(scope);
        owed.is_some_and(|owed| *owed >= mark.rank()) && !self.has(scope, mark.rank())
    }

    /// Like [`Self::record`], for a declaration that fails with it.
    pub(super) async fn record_first(
        &self,
        scope: &Scope,
        mark: &Mark,
        deadline: Instant,
    ) -> Result<(), DeclareError> {
        let recorded = self.record(scope, mark, deadline).await;
        if recorded.is_err() {
            let mut owed = self.owed.entry(scope.clone()).or_insert(mark.rank());
            *owed = (*owed).max(mark.rank());
        }
        recorded
    }

    /// Returns after the witness has the mark, or at once if there is no witness.
    pub(super) async fn record(
        &self,
        scope: &Scope,
        mark: &Mark,
        deadline: Instant,
    ) -> Result<(), DeclareError> {
        if self.has(scope, mark.rank()) {
            return Ok(());
        }
        let (has_witness, _) = self.control.has_witness(deadline).await?;
        if has_witness {
            let written = self.write(row_of((scope, mark)), deadline).await;
            written.map_err(|why| DeclareError::Witness {
                scope: scope.clone(),
                why,
            })?;
        }
        let mut written = self.written.entry(scope.clone()).or_insert(mark.rank());
        *written = (*written).max(mark.rank());
        Ok(())
    }

    async fn write(&self, row: Written<'_>, deadline: Instant) -> Result<(), ControlError> {
        let raise = raise_statements(PREPARED_GUARD, &[row])?;
        let refused = match self.control.run(&raise, deadline).await {
            Err(error @ ControlError::Server(_)) => error,
            other => return other,
        };
        strange(&self.control.query(&OWN.question(), &[], deadline).await?)?;
        if refused.is_missing() {
            // It was dropped. The next control connection creates it, if this is not that one already.
            let row = self.control.query(IS_THERE, &[], deadline).await?;
            if !row.first().map_or(Ok(false), |row| answer(row, 0))? {
                self.control.renew();
            }
        }
        Err(refused)
    }
}

/// Prepares a control connection for writing.
pub(super) async fn prepare(client: &Client) -> Result<(), ControlError> {
    Ok(client.batch_execute(&OWN.prepare_guard()).await?)
}

/// Fails if the table, or its schema, could run another role's code.
async fn check(client: &Client) -> Result<(), ControlError> {
    strange(&client.query_typed(&OWN.question(), &[]).await?)
}

fn strange(rows: &[Row]) -> Result<(), ControlError> {
    let read = Strange::read(&OWN, rows);
    match read.map_err(|error| ControlError::Answer(error.into()))? {
        None => Ok(()),
        Some(strange) => Err(ControlError::Strange(strange.into())),
    }
}

/// Creates the table if it is missing, and compares. Refuses an authority with lower marks, and raises lower marks in
/// the witness. Returns whether there is a table that may be used.
pub(super) async fn compare(
    client: &Client,
    authority: &dyn Authority,
) -> Result<bool, StartError> {
    if !open(client).await? {
        return Ok(false);
    }
    // The witness first. It is never ahead of an authority that remembers, because the authority is raised first.
    let witnessed = read(client).await?;
    let marks = authority.marks().await?;
    let marks: HashMap<Scope, Mark> = marks.into_iter().collect();
    check_marks(&witnessed, &marks)?;
    let is_behind = |(scope, mark): &(&Scope, &Mark)| {
        let seen = witnessed.get(*scope);
        seen.is_none_or(|seen| seen.rank() < mark.rank())
    };
    let behind: Vec<_> = marks.iter().filter(is_behind).map(row_of).collect();
    if !behind.is_empty() {
        client
            .batch_execute(&raise_statements(&OWN.guard(), &behind)?)
            .await?;
    }
    Ok(true)
}

/// Checks that the authority has forgotten no mark that the cluster has seen.
///
/// # Errors
///
/// [`StartError::AuthorityWentBack`].
pub fn check_marks(
    witnessed: &HashMap<Scope, Mark>,
    marks: &HashMap<Scope, Mark>,
) -> Result<(), StartError> {
    let lost = forgotten(witnessed, marks);
    let Some((scope, seen, kept)) = lost.first() else {
        return Ok(());
    };
    Err(StartError::AuthorityWentBack {
        scope: Scope::clone(scope),
        witnessed: *seen,
        kept: *kept,
        others: lost.len() - 1,
    })
}

/// Marks that the cluster has seen and the authority lacks: scope, seen, kept. Sorted by scope.
pub fn forgotten<'a>(
    witnessed: &'a HashMap<Scope, Mark>,
    marks: &HashMap<Scope, Mark>,
) -> Vec<(&'a Scope, Rank, Option<Rank>)> {
    let kept = |scope: &Scope| marks.get(scope).map(Mark::rank);
    if witnessed.keys().all(Scope::is_epoch) {
        // No session has ever declared anything, so none can be missing: the authority may be another one than
        // before.
        return Vec::new();
    }
    let mut lost: Vec<_> = witnessed
        .iter()
        .map(|(scope, seen)| (scope, seen.rank(), kept(scope)))
        .filter(|(_, seen, kept)| *kept < Some(*seen))
        .collect();
    lost.sort_unstable();
    lost
}

async fn open(client: &Client) -> Result<bool, ControlError> {
    if is_usable(client).await? {
        return Ok(true);
    }
    match client
        .batch_execute(SETUP)
        .await
        .map_err(ControlError::from)
    {
        Ok(()) => {}
        // Another proxy creates it at the same moment: the catalog's unique index allows only one.
        Err(ControlError::Server(error)) if error.code == Some(SqlState::UNIQUE_VIOLATION) => {}
        Err(ControlError::Server(error)) => {
            tracing::warn!(
                %error,
                setup = SETUP,
                "the cluster keeps no witness of the marks, so an authority restored from an older snapshot would not \
                    be noticed; let a superuser run \"setup\" in the control connection's database and GRANT \
                 the control role USAGE on the schema and SELECT, INSERT, UPDATE on the table, or set witness = \"off\""
            );
            return Ok(false);
        }
        Err(other) => return Err(other),
    }
    is_usable(client).await
}

/// Whether the table exists, and may be read and written. Fails if it could run another role's code.
pub async fn is_usable(client: &Client) -> Result<bool, ControlError> {
    check(client).await?;
    // One after the other, because the privilege functions fail if the table is missing.
    for sql in [IS_THERE, IS_USABLE] {
        let row = &client.query_typed_one(sql, &[]).await?;
        if !answer::<bool>(row, 0)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Every mark of the witness; none if there is no table to read.
pub(super) async fn read_if_there(client: &Client) -> Result<HashMap<Scope, Mark>, ControlError> {
    if is_usable(client).await? {
        read(client).await
    } else {
        Ok(HashMap::new())
    }
}

/// Every mark of the witness. Fails if there is no table.
pub async fn read(client: &Client) -> Result<HashMap<Scope, Mark>, ControlError> {
    let mut marks = HashMap::new();
    for message in client.simple_query(&read_statements()).await? {
        // A row that no proxy has written says nothing.
        if let SimpleQueryMessage::Row(row) = message
            && let Some((scope, mark)) = mark(&row)
        {
            marks.insert(scope, mark);
        }
    }
    Ok(marks)
}

fn mark(row: &SimpleQueryRow) -> Option<(Scope, Mark)> {
    // The guard's row has one column.
    let json = row.try_get(1).ok().flatten()?;
    match serde_json::from_str(json) {
        Ok(Seen { scope, mark }) => Some((scope, mark)),
        Err(error) => {
            tracing::warn!(scope = row.get(0), %error, "a row of pgpalisade.mark is not a mark");
            None
        }
    }
}
