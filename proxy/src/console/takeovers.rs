//! SHOW TAKEOVERS.

use pgpalisade_server::history::ShownTakeover;
use tokio::time::Instant;

use super::Facts;
use super::table::{ANSWER_WITHIN, QueryResult, columns, row_of, unanswered};

pub(super) const COLUMNS: &str = "\
    scope text, from int8, to int8, raised_at text, raised_by text, outcome text, sessions int8, \
    transactions int8, took_us int8, why text";

pub(super) fn takeovers(facts: &Facts) -> QueryResult<'_> {
    Box::pin(async {
        let deadline = Instant::now() + ANSWER_WITHIN;
        let all = facts.shared.takeover.history(deadline).await;
        let all = all.map_err(unanswered)?;
        let columns = columns(COLUMNS);
        let row = |record| row_of(&columns, &ShownTakeover::from(record));
        Ok(all.into_iter().map(row).collect())
    })
}

#[cfg(test)]
mod tests {
    use pgpalisade_authority::{Mark, Scope, TakeoverEnd, TakeoverRecord, Token};

    use super::super::table::object;
    use super::*;

    /// Sessions and operators see takeovers in the same columns.
    #[test]
    fn sessions_and_operators_are_shown_the_same() {
        let (scope, token) = (Scope::default(), |token| Token::new(token).unwrap());
        let mark = Mark::new(token(34), 1_700_000_000_000_000, "app\u{7}".to_owned());
        for end in [
            TakeoverEnd::Complete,
            TakeoverEnd::Observed,
            TakeoverEnd::Incomplete("no answer".to_owned()),
        ] {
            let record = TakeoverRecord::new(Some(token(33)), &mark, end);
            let shown = || ShownTakeover::from((scope.clone(), record.clone()));
            let columns = columns(COLUMNS);
            let row = object(&columns, row_of(&columns, &shown()));
            assert_eq!(row, serde_json::to_value(shown()).unwrap());
        }
    }
}
