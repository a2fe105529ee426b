//! The last takeovers, as clients and operators see them.

use std::fmt::Write as _;

use pgpalisade_authority::{Scope, TakeoverEnd, TakeoverRecord, Token};
use pgpalisade_fence::readable::without_controls;
use pgpalisade_rejection_log::{moment, rfc3339};
use serde::Serialize;

/// One takeover, with control characters removed from the texts that others chose.
#[derive(Debug, Serialize)]
pub struct ShownTakeover {
    pub scope: String,
    /// `None` for the first takeover.
    pub from: Option<u64>,
    pub to: u64,
    /// In RFC 3339.
    pub raised_at: Option<String>,
    pub raised_by: String,
    pub outcome: &'static str,
    pub sessions: u64,
    pub transactions: u64,
    /// Microseconds.
    pub took_us: u64,
    pub why: Option<String>,
}

impl From<(Scope, TakeoverRecord)> for ShownTakeover {
    fn from((scope, record): (Scope, TakeoverRecord)) -> Self {
        let (outcome, why) = match record.end {
            TakeoverEnd::Complete => ("complete", None),
            TakeoverEnd::Incomplete(why) => ("incomplete", Some(why)),
            TakeoverEnd::Observed => ("observed", None),
        };
        Self {
            scope: scope.as_str().to_owned(),
            from: record.from.map(Token::get),
            to: record.to.get(),
            raised_at: moment(record.raised_at).map(rfc3339),
            raised_by: without_controls(&record.raised_by),
            outcome,
            sessions: record.work.sessions,
            transactions: record.work.transactions,
            took_us: record.work.took_us,
            why: why.as_deref().map(without_controls),
        }
    }
}

/// Takeovers as a JSON array, one per line, in ASCII, which every session encoding contains.
pub(crate) fn as_json(all: Vec<(Scope, TakeoverRecord)>) -> String {
    // Serialization fails only for maps with other keys, or a failing writer.
    let line = |record| serde_json::to_string(&ShownTakeover::from(record)).unwrap_or_default();
    let lines: Vec<String> = all.into_iter().map(line).collect();
    in_ascii(&format!("[{}]", lines.join(",\n ")))
}

/// Escapes all characters of a JSON text beyond ASCII: RFC 8259, 7.
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
