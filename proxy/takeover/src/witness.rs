//! The witness: a copy of the marks inside the protected cluster.
//!
//! Marks live in the authority. An authority that is restored from an older snapshot has forgotten the latest ones,
//! and cannot know it. So every mark is also written to a small table of the cluster before its declaration is
//! answered, and a proxy that finds the authority behind this witness refuses to serve. Nothing is ever admitted by
//! it. It costs one small transaction for each takeover, none for a write.

use std::collections::HashMap;
use std::sync::Arc;

use dashmap::DashMap;
use pgpalisade_authority::{Authority, Incarnation, Mark, Rank, Scope, Token};
use tokio::time::Instant;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row};

use super::control::{Control, answer};
use super::error::{ControlError, DeclareError, StartError};

/// Whether the table can be used over a control connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Table {
    /// It is there and may be written.
    Usable,
    /// There is none.
    Missing,
}

/// What an owner of the database runs where the control role may not create the table itself.
pub const SETUP: &str = "CREATE SCHEMA IF NOT EXISTS pgpalisade; \
    CREATE TABLE IF NOT EXISTS pgpalisade.mark (scope text PRIMARY KEY, token int8 NOT NULL, \
    raised_at int8 NOT NULL, raised_by text NOT NULL, incarnation int8 NOT NULL DEFAULT 0);";

/// In the catalogs, because to_regclass fails where the role may not look into the schema.
const IS_THERE: &str = "SELECT EXISTS (SELECT FROM pg_catalog.pg_class c \
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
    WHERE n.nspname = 'pgpalisade' AND c.relname = 'mark')";

const IS_USABLE: &str = "SELECT pg_catalog.has_schema_privilege('pgpalisade', 'USAGE') \
    AND pg_catalog.has_table_privilege('pgpalisade.mark', 'SELECT') \
    AND pg_catalog.has_table_privilege('pgpalisade.mark', 'INSERT') \
    AND pg_catalog.has_table_privilege('pgpalisade.mark', 'UPDATE')";

const READ: &str = "SELECT scope, token, raised_at, raised_by, incarnation FROM pgpalisade.mark";

/// A row that is not lower in rank stays as it is: a mark never falls here either. `FOR UPDATE` of the conflicting row
/// makes the comparison exact.
const RAISE: &str = "INSERT INTO pgpalisade.mark AS m (scope, token, raised_at, raised_by, incarnation) \
    SELECT * FROM ROWS FROM (pg_catalog.unnest($1), pg_catalog.unnest($2), \
    pg_catalog.unnest($3), pg_catalog.unnest($4), pg_catalog.unnest($5)) \
    ON CONFLICT (scope) DO UPDATE SET token = excluded.token, raised_at = excluded.raised_at, \
    raised_by = excluded.raised_by, incarnation = excluded.incarnation \
    WHERE (m.incarnation, m.token) < (excluded.incarnation, excluded.token)";

/// The columns of rows for [`RAISE`].
#[derive(Default)]
struct Columns {
    scopes: Vec<String>,
    tokens: Vec<i64>,
    raised_at: Vec<i64>,
    raised_by: Vec<String>,
    incarnations: Vec<i64>,
}

impl Columns {
    fn push(&mut self, scope: &Scope, mark: &Mark) {
        self.scopes.push(scope.to_string());
        // A token is at most 2^63-1.
        self.tokens
            .push(i64::try_from(mark.token.get()).unwrap_or(i64::MAX));
        self.raised_at.push(mark.raised_at);
        self.raised_by.push(mark.raised_by.clone());
        self.incarnations.push(mark.incarnation.get().into());
    }

    fn params(&self) -> [(&(dyn ToSql + Sync), Type); 5] {
        [
            (&self.scopes, Type::TEXT_ARRAY),
            (&self.tokens, Type::INT8_ARRAY),
            (&self.raised_at, Type::INT8_ARRAY),
            (&self.raised_by, Type::TEXT_ARRAY),
            (&self.incarnations, Type::INT8_ARRAY),
        ]
    }
}

/// The witness as declarations use it.
pub(super) struct Witness {
    control: Control,
    /// What this proxy has seen to be written, so that it is written once for each mark.
    written: DashMap<Scope, Rank>,
}

impl Witness {
    pub(super) fn new(control: Control) -> Arc<Self> {
        Arc::new(Self {
            control,
            written: DashMap::new(),
        })
    }

    /// Has a mark written that another proxy may have written already. Does not wait.
    pub(super) fn record_later(self: &Arc<Self>, scope: Scope, mark: Mark, deadline: Instant) {
        if self.has(&scope, mark.rank()) {
            return;
        }
        let witness = Arc::clone(self);
        tokio::spawn(async move {
            if let Err(error) = witness.record(&scope, &mark, deadline).await {
                tracing::debug!(%error, "the next control connection brings the witness up");
            }
        });
    }

    fn has(&self, scope: &Scope, rank: Rank) -> bool {
        self.written.get(scope).is_some_and(|seen| *seen >= rank)
    }

    /// Returns when the witness has the mark, or where there is none.
    pub(super) async fn record(
        &self,
        scope: &Scope,
        mark: &Mark,
        deadline: Instant,
    ) -> Result<(), DeclareError> {
        if self.has(scope, mark.rank()) {
            return Ok(());
        }
        let (table, _) = self.control.witness(deadline).await?;
        if table == Table::Usable {
            let mut columns = Columns::default();
            columns.push(scope, mark);
            let written = self.control.query(RAISE, &columns.params(), deadline).await;
            written.map_err(|why| DeclareError::Witness {
                scope: scope.clone(),
                why,
            })?;
        }
        let mut written = self.written.entry(scope.clone()).or_insert(mark.rank());
        *written = (*written).max(mark.rank());
        Ok(())
    }
}

/// Makes the table where it is missing, and compares: an authority that is behind is refused, a witness that is behind
/// is brought up.
pub(super) async fn compare(
    client: &Client,
    authority: &dyn Authority,
) -> Result<Table, StartError> {
    if open(client).await? == Table::Missing {
        return Ok(Table::Missing);
    }
    // The witness first. It never is ahead of an authority that remembers, because the authority is raised first.
    let witnessed = read(client).await?;
    let marks = authority.marks().await?;
    let marks: HashMap<Scope, Mark> = marks.into_iter().collect();
    let lost = forgotten(&witnessed, &marks);
    if let Some((scope, seen, kept)) = lost.first() {
        return Err(StartError::AuthorityWentBack {
            scope: Scope::clone(scope),
            witnessed: *seen,
            kept: *kept,
            others: lost.len() - 1,
        });
    }
    let mut behind = Columns::default();
    for (scope, mark) in &marks {
        if witnessed
            .get(scope)
            .is_none_or(|seen| seen.rank() < mark.rank())
        {
            behind.push(scope, mark);
        }
    }
    if !behind.scopes.is_empty() {
        client.query_typed(RAISE, &behind.params()).await?;
    }
    Ok(Table::Usable)
}

/// The marks that the cluster has seen and the authority does not have: scope, seen, kept. By name of scope.
pub fn forgotten<'a>(
    witnessed: &'a HashMap<Scope, Mark>,
    marks: &HashMap<Scope, Mark>,
) -> Vec<(&'a Scope, Rank, Option<Rank>)> {
    let kept = |scope: &Scope| marks.get(scope).map(Mark::rank);
    if witnessed.keys().all(Scope::is_epoch) {
        // No session has ever declared anything, so none can be missing: the authority may be another one than before.
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

async fn open(client: &Client) -> Result<Table, ControlError> {
    if is_usable(client).await? {
        return Ok(Table::Usable);
    }
    match client
        .batch_execute(SETUP)
        .await
        .map_err(ControlError::from)
    {
        Ok(()) => {}
        // Another proxy makes it at the same moment: the catalog's unique index lets only one.
        Err(ControlError::Server(error)) if error.code() == Some(&SqlState::UNIQUE_VIOLATION) => {}
        Err(ControlError::Server(error)) => {
            tracing::warn!(
                %error,
                setup = SETUP,
                "the cluster keeps no witness of the marks, so an authority that was restored from an older snapshot \
                 would not be noticed; let an owner of the control connection's database run \"setup\" and GRANT \
                 the control role USAGE on the schema and SELECT, INSERT, UPDATE on the table, or set witness = \"off\""
            );
            return Ok(Table::Missing);
        }
        Err(other) => return Err(other),
    }
    match is_usable(client).await? {
        true => Ok(Table::Usable),
        false => Ok(Table::Missing),
    }
}

/// Whether the table is there, and may be read and written.
pub async fn is_usable(client: &Client) -> Result<bool, ControlError> {
    // Asked one after the other, because the privilege functions fail where the table is missing.
    for sql in [IS_THERE, IS_USABLE] {
        let rows = client.query_typed(sql, &[]).await?;
        let row = rows.first().ok_or(ControlError::Lost)?;
        if !answer::<bool>(row, 0)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Every mark that the witness has; none where there is no table to read.
pub(super) async fn read_if_there(client: &Client) -> Result<HashMap<Scope, Mark>, ControlError> {
    match is_usable(client).await? {
        true => read(client).await,
        false => Ok(HashMap::new()),
    }
}

/// Every mark that the witness has. Fails where there is no table.
pub async fn read(client: &Client) -> Result<HashMap<Scope, Mark>, ControlError> {
    let rows = client.query_typed(READ, &[]).await?;
    let mut marks = HashMap::with_capacity(rows.len());
    for row in &rows {
        // A row that nobody of us has written says nothing.
        if let Some((scope, mark)) = mark(row)? {
            marks.insert(scope, mark);
        }
    }
    Ok(marks)
}

fn mark(row: &Row) -> Result<Option<(Scope, Mark)>, ControlError> {
    let scope: String = answer(row, 0)?;
    let token: i64 = answer(row, 1)?;
    let (raised_at, raised_by) = (answer(row, 2)?, answer(row, 3)?);
    let token = u64::try_from(token).ok().and_then(|t| Token::new(t).ok());
    let incarnation = u32::try_from(answer::<i64>(row, 4)?).ok();
    let known = (Scope::new(&scope), token, incarnation.map(Incarnation::new));
    let (Ok(scope), Some(token), Some(incarnation)) = known else {
        tracing::warn!(scope, "a row of pgpalisade.mark is not a mark");
        return Ok(None);
    };
    // The record of a repair is in the authority alone.
    let mark = Mark {
        incarnation,
        ..Mark::new(token, raised_at, raised_by)
    };
    Ok(Some((scope, mark)))
}
