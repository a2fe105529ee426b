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

    /// Analysis of a whole text that took too long to understand.
    #[must_use]
    pub fn given_up(text: &[u8]) -> Self {
        analysis(text, Opaque::Parser.into())
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

/// Whether a statement may change the names of prepared statements that starts so.
fn may_change_names(start: &[u8]) -> bool {
    let Some(start) = after_comments(start) else {
        return true;
    };
    let end = start.iter().position(|byte| !byte.is_ascii_alphabetic());
    // Otherwise not all of the first word is here.
    let word = end.and_then(|end| start.get(..end));
    word.is_none_or(|word| {
        let is_such = |changes: &&[u8]| changes.eq_ignore_ascii_case(word);
        CHANGES_NAMES.iter().any(is_such) || (word.is_empty() && !start.starts_with(b"("))
    })
}

/// The text from its first statement on. `None` if it begins with a comment whose end is not here.
fn after_comments(text: &[u8]) -> Option<&[u8]> {
    let mut rest = text;
    loop {
        // PostgreSQL drops empty statements.
        let is_empty = |byte: &u8| SPACES.contains(byte) || *byte == b';';
        let from = rest.iter().position(|byte| !is_empty(byte));
        rest = rest.get(from.unwrap_or(rest.len())..)?;
        let comment = if rest.starts_with(b"--") {
            1 + rest.iter().position(|byte| b"\n\r".contains(byte))?
        } else if rest.starts_with(b"/*") {
            block_comment(rest)?
        } else {
            return Some(rest);
        };
        rest = rest.get(comment..)?;
    }
}

/// Length of the comment at the front. Comments nest.
fn block_comment(text: &[u8]) -> Option<usize> {
    let (mut depth, mut at) = (0_usize, 0);
    loop {
        match text.get(at..at + 2)? {
            b"/*" => depth += 1,
            b"*/" => depth -= 1,
            _ => {
                at += 1;
                continue;
            }
        }
        at += 2;
        if depth == 0 {
            return Some(at);
        }
    }
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
            ("-- note", true),
            ("-- note\nSELECT 1", false),
            ("-- note\rPREPARE p", true),
            ("/* note */SELECT 1", false),
            ("/* /* */ SELECT 1", true),
            ("/* /* */ */ ; SELECT 1", false),
            ("/**/DEALLOCATE p", true),
            (";PREPARE p", true),
            (" ; ; Deallocate p", true),
            ("\"a\"", true),
            ("select '", false),
            ("SELECT/*", false),
            ("(SELECT 1)", false),
            ("prepared", true),
            ("prepared ", false),
            ("- 1", true),
        ] {
            assert_eq!(may_change_names(start.as_bytes()), may, "{start}");
        }
    }
}
