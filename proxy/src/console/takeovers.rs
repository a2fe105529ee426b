//! How the last takeovers went: SHOW TAKEOVERS, and `fencing.history` in a session.

use std::fmt::Write as _;

use pgpalisade_authority::{Scope, TakeoverEnd, TakeoverRecord, Token};
use tokio::time::Instant;

use super::Facts;
use super::table::{Answer, Row, columns, object};
use super::tables::{ANSWER_WITHIN, shown, time};
use crate::rejection_log::moment;

pub(super) const COLUMNS: &str = "\
    scope text, from int8, to int8, raised_at text, raised_by text, outcome text, sessions int8, \
    transactions int8, took_us int8, why text";

/// The rows of SHOW TAKEOVERS.
pub(super) fn takeovers(facts: &Facts) -> Answer<'_> {
    Box::pin(async {
        let deadline = Instant::now() + ANSWER_WITHIN;
        let all = facts.shared.takeover.history(deadline).await;
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

/// Takeovers as a JSON array, each on a line of its own, in ASCII: PostgreSQL reads it in whatever encoding the session
/// has.
pub(crate) fn as_json(all: Vec<(Scope, TakeoverRecord)>) -> String {
    let columns = columns(COLUMNS);
    let line = |record| object(&columns, takeover(record)).to_string();
    let lines: Vec<String> = all.into_iter().map(line).collect();
    in_ascii(&format!("[{}]", lines.join(",\n ")))
}

/// JSON in which whatever is beyond ASCII is escaped: RFC 8259, 7.
fn in_ascii(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for character in json.chars() {
        if character.is_ascii() {
            text.push(character);
        } else {
            for unit in character.encode_utf16(&mut [0; 2]) {
                // Writing to a String cannot fail.
                let _ = write!(text, "\\u{unit:04x}");
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_beyond_ascii_are_escaped() {
        let json = serde_json::json!({"by": "é\u{1F600}\"\\'"}).to_string();
        let text = in_ascii(&json);
        assert_eq!(text, r#"{"by":"\u00e9\ud83d\ude00\"\\'"}"#);
        let read: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(read["by"], "é\u{1F600}\"\\'");
    }
}
