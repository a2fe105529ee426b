//! Analysis of a SQL text.

mod block;
mod copy;
mod explain;
mod names;
mod statement;
mod transaction;
mod utility;
mod weight;

use std::panic::{AssertUnwindSafe, catch_unwind};

use pg_query::ParserOptions;

use crate::analysis::Analysis;
use crate::unread::{self, may_name_ours};
use crate::walk::UnknownShape;
use crate::write_reason::{Opaque, SyntaxError, WriteReason};
use statement::statement;

pub(crate) use weight::OPERATOR_RUN_MAX;
pub use weight::{MAX_PARSED, MAX_PARSED_INLINE, Weight, weigh};

/// Bytes of stack that [`classify`] needs for the worst text. With less left, it allocates a stack, which costs about
/// ten microseconds: give worker threads twice this much.
pub const PARSER_STACK: usize = 4 * 1024 * 1024;

/// Meaning of the bytes beyond ASCII in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TextEncoding {
    /// UTF-8 for client and server: nothing is converted, and the server folds and truncates names as the grammar
    /// here does.
    Utf8,
    /// Another or an unknown encoding. The server converts the text, or folds and truncates names differently.
    Other,
}

/// Analyzes a text. Never fails: a text that is not understood is one write of kind "unparsed".
///
/// Takes 5 to 20 microseconds for a short statement, and up to a second for the longest; [`weigh`] tells which. A
/// text with a backslash is parsed twice, once for each value of `standard_conforming_strings`: the value can change
/// before the server reports it.
#[must_use]
pub fn classify(text: &[u8], encoding: TextEncoding) -> Analysis {
    understand(text, encoding).unwrap_or_else(|why| unread::analysis(text, why))
}

/// Whether a text is ASCII and has no names with escapes, such as `U&"\00e9"`.
#[must_use]
pub fn is_ascii(text: &[u8]) -> bool {
    // No early exit, so that the compiler can vectorize the loop.
    let pairs = text.iter().zip(text.get(1..).unwrap_or_default());
    let escapes = pairs.fold(false, |found, (a, b)| {
        found | ((a | 0x20 == b'u') & (*b == b'&'))
    });
    text.is_ascii() && !escapes
}

fn understand(text: &[u8], encoding: TextEncoding) -> Result<Analysis, WriteReason> {
    if text.len() > MAX_PARSED {
        return Err(Opaque::TooLong.into());
    }
    if text.contains(&0) {
        return Err(Opaque::Nul.into());
    }
    // ASCII is the same in every client encoding.
    if encoding == TextEncoding::Other && !is_ascii(text) {
        return Err(Opaque::Encoding.into());
    }
    let text = str::from_utf8(text).map_err(|_| Opaque::NotUtf8)?;
    weight::check(text)?;
    let on = ParserOptions::DEFAULT;
    // With the setting off, the parser warns of each string with a backslash, which takes longer than the parse.
    let off = ParserOptions::DISABLE_STANDARD_CONFORMING_STRINGS
        | ParserOptions::DISABLE_ESCAPE_STRING_WARNING;
    let analysis = parse(text, on);
    if !text.contains('\\') {
        return analysis;
    }
    let other = match parse(text, off) {
        // An escape that makes no character here but may make one on the server. Strings end elsewhere only if a
        // backslash precedes a quote, so only the content of the string can differ. Outside of strings, a brace is as
        // wrong as a backslash.
        Err(WriteReason::Syntax(_)) if !text.contains("\\'") => parse(&text.replace('\\', "{"), on),
        other => other,
    };
    match (&analysis, &other) {
        (Err(WriteReason::Syntax(_)), Err(WriteReason::Syntax(_))) => analysis,
        _ if analysis == other => analysis,
        _ => Err(Opaque::Backslash.into()),
    }
}

fn parse(text: &str, options: ParserOptions) -> Result<Analysis, WriteReason> {
    // The decoder of the tree recurses up to 100 levels of about 25 KiB each and does not check the stack. It panics
    // on a tree that pg_query does not expect. A stack that cannot be allocated is a panic too.
    let parsed = catch_unwind(AssertUnwindSafe(|| {
        stacker::maybe_grow(PARSER_STACK, 2 * PARSER_STACK, || parse_here(text, options))
    }));
    parsed.unwrap_or(Err(Opaque::Parser.into()))
}

fn parse_here(text: &str, options: ParserOptions) -> Result<Analysis, WriteReason> {
    let tree = pg_query::parse(text, options).map_err(|error| refused(text, error))?;
    let statements = tree
        .protobuf
        .stmts
        .iter()
        .map(|raw| statement(raw, text).map_err(|UnknownShape| Opaque::Parser))
        .collect::<Result<Box<[_]>, _>>()?;
    weight::check_statements(&statements)?;
    Ok(Analysis::new(statements))
}

/// Reason why the parser refuses a text. The quoted token is left out unless it is a word or an operator. A literal
/// may be secret, and texts that differ only in literals share an analysis.
fn refused(text: &str, error: pg_query::Error) -> WriteReason {
    let pg_query::Error::Parse(error) = error else {
        return Opaque::Parser.into();
    };
    let shown = match error.split_once(" at or near \"") {
        Some((what, token)) if !is_word_or_operator(token.trim_end_matches('"')) => what,
        _ => &*error,
    };
    WriteReason::Syntax(SyntaxError {
        error: shown.into(),
        names_ours: may_name_ours(text.as_bytes()),
    })
}

fn is_word_or_operator(token: &str) -> bool {
    let is_in_word = |char: char| char.is_alphanumeric() || char == '_';
    let is_word =
        !token.starts_with(|first: char| first.is_numeric()) && token.chars().all(is_in_word);
    let is_in_operator = |char: char| char.is_ascii_punctuation() && !"'\"$\\".contains(char);
    token.len() < 64 && (is_word || token.chars().all(is_in_operator))
}

#[cfg(test)]
mod tests;
