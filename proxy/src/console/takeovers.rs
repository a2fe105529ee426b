//! How the last takeovers went: SHOW TAKEOVERS, and `fencing.history` in a session.

use pgpalisade_authority::{Scope, TakeoverEnd, TakeoverRecord, Token};
use tokio::time::Instant;

use super::Facts;
use super::table::{Answer, Column, Row, number, object, text};
use super::tables::{ANSWER_WITHIN, moment, shown, time};

pub(super) const COLUMNS: [Column; 10] = [
    text("scope"),
    number("from"),
    number("to"),
    text("raised_at"),
    text("raised_by"),
    text("outcome"),
    number("sessions"),
    number("transactions"),
    number("took_us"),
    text("why"),
];

/// The rows of SHOW TAKEOVERS.
pub(super) fn takeovers(facts: &Facts) -> Answer<'_> {
    Box::pin(async {
        let deadline = Instant::now() + ANSWER_WITHIN;
        let all = facts.takeover.history(deadline).await;
        let all = all.map_err(|error| error.to_string())?;
        Ok(all.into_iter().map(takeover).collect())
    })
}

fn takeover((scope, record): (Scope, TakeoverRecord)) -> Row {
    let (outcome, why) = match record.end {
        TakeoverEnd::Complete => ("complete", None),
        TakeoverEnd::Incomplete(why) => ("incomplete", Some(why)),
        TakeoverEnd::Observed => ("observed", None),
    };
    let work = record.work;
    vec![
        scope.as_str().into(),
        record.from.map(Token::get).into(),
        record.to.get().into(),
        moment(record.raised_at).map(time).into(),
        shown(&record.raised_by),
        outcome.into(),
        work.sessions.into(),
        work.transactions.into(),
        work.took_us.into(),
        why.as_deref().map(shown).into(),
    ]
}

/// Takeovers as a JSON array, each on a line of its own.
pub(crate) fn as_json(all: Vec<(Scope, TakeoverRecord)>) -> String {
    let line = |record| object(&COLUMNS, takeover(record)).to_string();
    let lines: Vec<String> = all.into_iter().map(line).collect();
    format!("[{}]", lines.join(",\n "))
}
