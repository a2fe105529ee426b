//! SHOW TAKEOVERS.

use tokio::time::Instant;

use super::Facts;
use super::table::{Answer, Row};
use super::tables::ANSWER_WITHIN;
use crate::server::history::ShownTakeover;

pub(super) const COLUMNS: &str = "\
    scope text, from int8, to int8, raised_at text, raised_by text, outcome text, sessions int8, \
    transactions int8, took_us int8, why text";

/// Its rows.
pub(super) fn takeovers(facts: &Facts) -> Answer<'_> {
    Box::pin(async {
        let deadline = Instant::now() + ANSWER_WITHIN;
        let all = facts.shared.takeover.history(deadline).await;
        let all = all.map_err(|error| error.to_string())?;
        Ok(all.into_iter().map(|record| row(record.into())).collect())
    })
}

fn row(takeover: ShownTakeover) -> Row {
    vec![
        takeover.scope.into(),
        takeover.from.into(),
        takeover.to.into(),
        takeover.raised_at.into(),
        takeover.raised_by.into(),
        takeover.outcome.into(),
        takeover.sessions.into(),
        takeover.transactions.into(),
        takeover.took_us.into(),
        takeover.why.into(),
    ]
}
