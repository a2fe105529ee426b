//! Analysis of a text that was not parsed.

use crate::analysis::Analysis;
use crate::control::{Control, Mistake};
use crate::effects::Category;
use crate::write_reason::WriteReason;

/// Whether a text may name a `fencing.` setting.
pub(crate) fn may_name_ours(text: &[u8]) -> bool {
    contains(text, b"fencing.")
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
        // Keywords are ASCII in every encoding.
        let may_name: [&[u8]; 4] = [b"prepare", b"deallocate", b"discard", b"execute"];
        if may_name.iter().any(|word| contains(text, word)) {
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
        let is_space = |byte: &u8| b" \t\n\r\x0b\x0c".contains(byte);
        let next = rest.iter().position(|byte| !is_space(byte));
        let next = rest.get(next.unwrap_or(rest.len())..).unwrap_or_default();
        let may_follow: [&[u8]; 3] = [b"transaction", b"--", b"/*"];
        may_follow.iter().any(|word| starts_with(next, word))
    })
}
