//! Estimate of the work that a text makes, before it is parsed.
//!
//! A tree takes up to 4 KiB for each item of a list, and the time to fill them. So tokens are limited, in addition to
//! bytes.

use super::refused;
use crate::analysis::Statement;
use crate::control::Control;
use crate::effects::Effects;
use crate::write_reason::{Opaque, WriteReason};

/// Maximum bytes of a text that is parsed. Longer texts are writes.
///
/// `make bench-micro` measures the worst allowed texts as `classified_at_most`. Their time and memory are too much
/// for a thread that others wait for, and for many threads at once: see [`weigh`].
pub const MAX_PARSED: usize = 1024 * 1024;

/// Texts longer than this many bytes are [`Weight::Heavy`].
pub const MAX_PARSED_INLINE: usize = 64 * 1024;

/// Maximum tokens of a text that is parsed: about 30,000 values in a list.
const TOKENS_MAX: usize = 64 * 1024;

/// Texts of more tokens are [`Weight::Heavy`]. `make bench-micro` measures the worst of the others as
/// `classified_at_most`.
const TOKENS_MAX_INLINE: usize = 4 * 1024;

/// Maximum [steps](steps) for walking over the statements of a text. The session does that on a thread that others
/// wait for; the worst text takes it 5 milliseconds.
const STEPS_MAX: usize = 16 * 1024;

/// Maximum operator characters in a row.
pub(crate) const OPERATOR_RUN_MAX: usize = 256;

/// Threads on which a text may be classified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weight {
    /// Any thread: it takes milliseconds at most, usually microseconds.
    Light,
    /// No thread that others wait for: it may take up to a second, and more than a hundred megabytes of memory.
    Heavy,
}

/// Says on which threads a text may be classified. Takes less than 100 microseconds, and almost nothing for a short
/// text.
#[must_use]
pub fn weigh(text: &[u8]) -> Weight {
    // A text that is too long is not parsed at all.
    if text.len() > MAX_PARSED {
        return Weight::Light;
    }
    let light = text.len() <= MAX_PARSED_INLINE && tokens_at_most(text) <= TOKENS_MAX_INLINE;
    if light { Weight::Light } else { Weight::Heavy }
}

/// Refuses a text whose tree would be too large.
pub(super) fn check(text: &str) -> Result<(), WriteReason> {
    if has_long_operator_run(text.as_bytes()) {
        return Err(Opaque::Parser.into());
    }
    if tokens_at_most(text.as_bytes()) <= TOKENS_MAX {
        return Ok(());
    }
    // The tokens may be words in a long string. With a backslash, the extent of a string depends on the session.
    if text.contains('\\') {
        return Err(Opaque::Parser.into());
    }
    let scanned = pg_query::scan(text).map_err(|error| refused(text, error))?;
    if scanned.tokens.len() <= TOKENS_MAX {
        Ok(())
    } else {
        Err(Opaque::Parser.into())
    }
}

/// Refuses a text whose statements take long to walk over.
pub(super) fn check_statements(statements: &[Statement]) -> Result<(), Opaque> {
    let steps: usize = statements.iter().map(steps).sum();
    if steps <= STEPS_MAX {
        Ok(())
    } else {
        Err(Opaque::Parser)
    }
}

fn steps(statement: &Statement) -> usize {
    let controls = statement.controls.iter().map(|control| match control {
        // A value is read several times, and may name many scopes.
        Control::SetFencing { value, .. } => 1 + value.len() / 2,
        Control::Prepare { effects, .. } => 1 + names(effects),
        _ => 1,
    });
    1 + controls.sum::<usize>() + names(&statement.effects)
}

fn names(effects: &Effects) -> usize {
    effects.writes.names().len()
        + effects.reads.names().len()
        + effects.functions.len()
        + effects.settings.len()
}

/// Number of tokens if all of the text is SQL. Strings and comments have fewer.
fn tokens_at_most(text: &[u8]) -> usize {
    if text.len() <= TOKENS_MAX_INLINE {
        return text.len();
    }
    let mut tokens = 0;
    let mut is_in_word = false;
    for byte in text {
        let word = byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | 0x80..);
        let begins = if word {
            !is_in_word
        } else {
            !byte.is_ascii_whitespace()
        };
        tokens += usize::from(begins);
        is_in_word = word;
    }
    tokens
}

/// PostgreSQL's lexer takes a run of operator characters as a whole, finds `/*` in it, and reads the rest again. That
/// takes seconds for 60 kB of `/*/*/*`. No operator is longer than 63 bytes, so a long run is a comment, part of one,
/// or an attack.
fn has_long_operator_run(text: &[u8]) -> bool {
    let mut run = 0_usize;
    text.iter().any(|byte| {
        let operator = matches!(
            byte,
            b'~' | b'!'
                | b'@'
                | b'#'
                | b'^'
                | b'&'
                | b'|'
                | b'`'
                | b'?'
                | b'+'
                | b'-'
                | b'*'
                | b'/'
                | b'%'
                | b'<'
                | b'>'
                | b'='
        );
        run = if operator { run + 1 } else { 0 };
        run > OPERATOR_RUN_MAX
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::classify::{TextEncoding, classify};

    /// The cheap count must never be below that of PostgreSQL's lexer.
    #[test]
    fn no_token_is_missed() {
        for text in [
            "select a.b, $1::int from \"t\" where x->>'y' = e'a' and 1.5e3 <= .5 -- z",
            "select 0x1f, 1_000, a$b, $$a b$$, u&'x', x'1f', b'1', n'a', a[1:2], :=, =>, @-1, é",
            "select/**/1;;;(((",
        ] {
            let many = text.repeat(200).replace("-- z", "");
            let found = pg_query::scan(&many).unwrap().tokens.len();
            let at_most = tokens_at_most(many.as_bytes());
            assert!(at_most >= found, "{at_most} < {found}: {text}");
        }
    }

    #[test]
    fn what_is_long_to_walk_over_is_not_understood() {
        let understood = |head: &str, part: &str, between: &str, length: usize| {
            let text = head.to_owned() + &vec![part; length].join(between);
            classify(text.as_bytes(), TextEncoding::Utf8).kind() != "unparsed"
        };
        let prepare = "PREPARE a AS TABLE t";
        let set = format!("SET fencing.token = '{}'", " ".repeat(2 * 1024));
        for (part, steps) in [("SELECT 1", 1), ("END", 2), (prepare, 3), (&set, 1024 + 3)] {
            let most = STEPS_MAX / steps;
            assert!(understood("", part, ";", most), "{part}");
            assert!(!understood("", part, ";", most + 1), "{part}");
        }
        let names: Vec<String> = (0..STEPS_MAX).map(|at| format!("t{at}")).collect();
        let few = names.get(1..).unwrap().join(",");
        assert!(understood("TRUNCATE ", &few, "", 1));
        assert!(!understood("TRUNCATE ", &names.join(","), "", 1));
    }

    #[test]
    fn only_what_is_parsed_soon_is_light() {
        assert_eq!(weigh(b"select 1"), Weight::Light);
        assert_eq!(weigh(&b",a".repeat(2_048)), Weight::Light);
        assert_eq!(weigh(&b",a".repeat(2_049)), Weight::Heavy);
        assert_eq!(weigh(&vec![b'x'; MAX_PARSED_INLINE]), Weight::Light);
        assert_eq!(weigh(&vec![b'x'; MAX_PARSED_INLINE + 1]), Weight::Heavy);
        assert_eq!(weigh(&vec![b'x'; MAX_PARSED]), Weight::Heavy);
        assert_eq!(weigh(&vec![b'x'; MAX_PARSED + 1]), Weight::Light);
    }
}
