//! Analysis of a text that was not parsed.

use crate::analysis::Analysis;
use crate::control::{Control, Mistake};
use crate::effects::Category;
use crate::write_reason::{Opaque, WriteReason};

/// Whether a text may name a `fencing.` setting.
pub(crate) fn may_name_ours(text: &[u8]) -> bool {
    contains(text, b"fencing.")
}

/// White space of PostgreSQL's lexer.
const SPACES: &[u8] = b" \t\n\r\x0b\x0c";

/// Words in every statement that may change the names of prepared statements. They are ASCII in every encoding.
const CHANGES_NAMES: [&[u8]; 4] = [b"prepare", b"deallocate", b"discard", b"execute"];

impl Analysis {
    /// Analysis of a text that was not understood: one write that may do anything. `start` is the start of its only
    /// statement, and empty if it may have several.
    #[must_use]
    pub fn opaque(why: Opaque, start: &[u8]) -> Self {
        let controls = may_change_names(start).then_some(Control::MayChangeNames);
        Self::unread(why.into(), controls.into_iter().collect())
    }
}

/// A single write that may do anything. If the text names a `fencing.` setting, it counts as a mistake: it may or may
/// not be a declaration. A syntax error needs no controls: PostgreSQL nearly always refuses the text too, and what one
/// that it runs has left is unknown.
pub(crate) fn analysis(text: &[u8], why: WriteReason) -> Analysis {
    let mut controls = Vec::new();
    if let WriteReason::Opaque(why) = why {
        if may_name_ours(text) {
            controls.push(Control::Mistake(Mistake::Unreadable(why)));
        }
        if CHANGES_NAMES.iter().any(|word| contains(text, word)) {
            controls.push(Control::MayChangeNames);
        }
    }
    let mut analysis = Analysis::unread(why, controls.into());
    if may_prepare_transaction(text) {
        for statement in &mut analysis.statements {
            statement.effects.category = Some(Category::PrepareTransaction);
        }
    }
    analysis
}

/// Whether a statement may change the names of prepared statements that starts so, or with a comment that hides it.
fn may_change_names(start: &[u8]) -> bool {
    let is_space = |byte: &u8| SPACES.contains(byte);
    let from = start.iter().position(|byte| !is_space(byte));
    let start = start.get(from.unwrap_or(start.len())..).unwrap_or_default();
    let end = start.iter().position(|byte| !byte.is_ascii_alphabetic());
    let word = start.get(..end.unwrap_or(start.len())).unwrap_or_default();
    let starts_comment = start.starts_with(b"--") || start.starts_with(b"/*");
    let is_such = |changes: &&[u8]| changes.eq_ignore_ascii_case(word);
    // Nothing was seen, or not all of the first word.
    word.len() == start.len() || starts_comment || CHANGES_NAMES.iter().any(is_such)
}

/// Whether a text contains a word of ASCII letters, in any case.
fn contains(text: &[u8], word: &[u8]) -> bool {
    let mut at = text.windows(word.len());
    at.any(|bytes| bytes.eq_ignore_ascii_case(word))
}

/// Whether PREPARE is followed by TRANSACTION, or by a comment, which may hide it.
fn may_prepare_transaction(text: &[u8]) -> bool {
    const PREPARE: &[u8] = b"prepare";
    let starts_with = |text: &[u8], word: &[u8]| {
        let start = text.get(..word.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(word))
    };
    (0..text.len()).any(|at| {
        let rest = text.get(at..).unwrap_or_default();
        if !starts_with(rest, PREPARE) {
            return false;
        }
        let rest = rest.get(PREPARE.len()..).unwrap_or_default();
        let is_space = |byte: &u8| SPACES.contains(byte);
        let next = rest.iter().position(|byte| !is_space(byte));
        let next = rest.get(next.unwrap_or(rest.len())..).unwrap_or_default();
        let may_follow: [&[u8]; 3] = [b"transaction", b"--", b"/*"];
        may_follow.iter().any(|word| starts_with(next, word))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_change_names_by_its_start() {
        for (start, may) in [
            ("", true),
            (" \n\x0b", true),
            ("deall", true),
            ("PREPARE p", true),
            ("\tDeallocate\np", true),
            ("execute(1)", true),
            ("DISCARD/**/ALL", true),
            ("-- note\nSELECT", true),
            ("/* note */SELECT", true),
            ("select '", false),
            ("SELECT/*", false),
            ("(SELECT 1)", false),
            ("prepared", true),
            ("prepared ", false),
            ("- 1", false),
        ] {
            assert_eq!(may_change_names(start.as_bytes()), may, "{start}");
        }
    }
}
