//! The form of a text: its parts without the values of constants.
//!
//! `SELECT a FROM t WHERE id = 4711` and `.. = 4712` have one form, and [`classify`](crate::classify) says the same
//! of both. This holds for three reasons:
//!
//! 1. **The same tokens.** PostgreSQL's lexer must read a constant as a token of its own, of the same kind whatever
//!    its value. It is a run of decimal digits that fits into an int4, or a plain quoted string, and the signs beside
//!    it belong to neither. A text keeps all its constants if it has a comment, a dollar quote, or a byte that is not
//!    plain ASCII. So does a text with a backslash: its strings depend on `standard_conforming_strings`.
//! 2. **The same tree, except for the values.** Only texts that begin with SELECT, INSERT, UPDATE, DELETE, MERGE,
//!    WITH or VALUES have forms. Elsewhere the grammar looks at numbers (`ALTER COLUMN 0 SET STATISTICS`), and so
//!    does this crate (`EXPLAIN (ANALYZE 0)`). In these statements the grammar looks at one number: n of `FLOAT(n)`.
//! 3. **The same result.** The walk looks at no number, and at strings only as arguments of nextval, setval or
//!    `set_config`. Texts with the first two have no form. Neither have texts in which the scan finds a possible
//!    [`Control`](crate::Control).
//!
//! In doubt, a text has no form, or keeps the constant. That costs one parse.

use std::ops::Range;

use crate::classify::{MAX_PARSED_INLINE, OPERATOR_RUN_MAX, is_ascii};
use crate::scan::{any_three, needs_parse};

/// First words of texts that may have a form.
const FIRST_WORDS: [&[u8]; 7] = [
    b"select", b"insert", b"update", b"delete", b"with", b"values", b"merge",
];

/// A constant whose value does not matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Constant {
    /// An `Iconst` of the grammar.
    Integer,
    /// An `Sconst`.
    Text,
}

/// Whether every text with the same [`constants`] has the same analysis.
///
/// Texts too long to be parsed on the thread of their session have no form. Shorter ones are never refused for their
/// number of tokens, whatever their strings contain.
pub(crate) fn has_form(text: &[u8]) -> bool {
    text.len() <= MAX_PARSED_INLINE
        && begins_as_query(text)
        && !any_three(text, is_doubtful).unwrap_or(true)
        && !needs_parse(text)
}

/// Constants of a text whose values do not matter, with their places, in order. Only meaningful for texts that
/// [have a form](has_form).
pub(crate) const fn constants(text: &[u8]) -> Constants<'_> {
    Constants { text, at: 0 }
}

/// The text with `x` for each byte beyond ASCII, if `classify` says the same of both, whatever the encodings of client
/// and server: all these bytes are in constants whose values do not matter.
///
/// No character of any encoding contains a quote, and no conversion makes ASCII of what is not: with one exception, a
/// backslash in `SHIFT_JIS_2004` (tests/oracle/encodings.rs asks PostgreSQL).
#[must_use]
pub fn with_ascii_constants(text: &[u8]) -> Option<Vec<u8>> {
    const BECOMES_BACKSLASH: &[u8] = b"\x81_";
    if text.len() > MAX_PARSED_INLINE {
        return None;
    }
    let ascii = |byte: &u8| if byte.is_ascii() { *byte } else { b'x' };
    let ascii: Vec<u8> = text.iter().map(ascii).collect();
    if !has_form(&ascii)
        || !is_ascii(&ascii)
        || text.windows(2).any(|pair| pair == BECOMES_BACKSLASH)
    {
        return None;
    }
    let mut outside = 0;
    for (place, _) in constants(&ascii) {
        if !text.get(outside..place.start)?.is_ascii() {
            return None;
        }
        outside = place.end;
    }
    text.get(outside..)?.is_ascii().then_some(ascii)
}

/// Whether two texts that have a form have the same one. `constants` are those of the first.
pub(crate) fn are_alike(text: &[u8], constants: &[(Range<usize>, Constant)], other: &[u8]) -> bool {
    let (mut text_at, mut rest) = (0, other);
    for (place, constant) in constants {
        let before = text.get(text_at..place.start).unwrap_or_default();
        // What is equal so far has no constant, so this one is the first.
        let found = rest
            .starts_with(before)
            .then(|| token_at(rest, before.len()));
        match found.flatten() {
            Some((end, Some(found))) if found == *constant => {
                rest = rest.get(end..).unwrap_or_default();
            }
            _ => return false,
        }
        text_at = place.end;
    }
    text.get(text_at..) == Some(rest)
}

fn begins_as_query(text: &[u8]) -> bool {
    let text = text.trim_ascii_start();
    let length = text.iter().position(|byte| class(*byte) != ByteClass::Word);
    text.get(..length.unwrap_or(text.len()))
        .is_some_and(|word| {
            FIRST_WORDS
                .iter()
                .any(|known| known.eq_ignore_ascii_case(word))
        })
}

/// Whether these three bytes may make PostgreSQL read the text differently from [`constants`], or make a value matter.
#[inline]
const fn is_doubtful(a: u8, b: u8, c: u8) -> bool {
    let plain = ((a >= b' ') & (a < 0x7f)) | (a == b'\n') | (a == b'\t') | (a == b'\r');
    let comment = ((a == b'-') & (b == b'-')) | ((a == b'/') & (b == b'*'));
    // Digits after a dollar sign are a parameter. Anything else may be a dollar quote.
    let dollar = (a == b'$') & ((b < b'0') | (b > b'9'));
    // Part of nextval and setval.
    let sequence = (a | 0x20 == b't') & (b | 0x20 == b'v') & (c | 0x20 == b'a');
    !plain | comment | dollar | sequence | (a == b'\\') | (a == b';')
}

/// See [`constants`].
#[derive(Clone, Debug)]
pub(crate) struct Constants<'a> {
    text: &'a [u8],
    /// Start of the rest.
    at: usize,
}

impl Iterator for Constants<'_> {
    type Item = (Range<usize>, Constant);

    fn next(&mut self) -> Option<Self::Item> {
        let begin = self.at;
        let rest = self.text.get(begin..)?;
        let mut at = 0;
        while at < rest.len() {
            let (end, constant) = token_at(rest, at)?;
            if let Some(constant) = constant {
                self.at = begin + end;
                return Some((begin + at..self.at, constant));
            }
            at = end;
        }
        None
    }
}

/// End of a token, or of a part of one, and its kind if it is a constant. `text` begins at the start of a token.
/// `None` if it has no end.
fn token_at(text: &[u8], at: usize) -> Option<(usize, Option<Constant>)> {
    let byte = *text.get(at)?;
    let (end, constant) = match class(byte) {
        ByteClass::Word => {
            let end = end_of_word(text, at);
            let is_number = byte.is_ascii_digit() && is_integer(text, at..end);
            (end, is_number.then_some(Constant::Integer))
        }
        ByteClass::Quote => {
            let end = end_of_quoted(text, at, byte)?;
            (
                end,
                is_plain_string(text, at..end).then_some(Constant::Text),
            )
        }
        ByteClass::DoubleQuote => (end_of_quoted(text, at, byte)?, None),
        ByteClass::Beside | ByteClass::Other => (at + 1, None),
    };
    Some((end, constant.filter(|_| stands_alone(text, at..end))))
}

/// End of the run of bytes that may be one identifier, number or parameter.
fn end_of_word(text: &[u8], begin: usize) -> usize {
    let rest = text.get(begin..).unwrap_or_default();
    let length = rest.iter().position(|byte| class(*byte) != ByteClass::Word);
    begin + length.unwrap_or(rest.len())
}

/// End of a quoted text, after its closing quote, if it has one. Two quotes stand for one inside.
fn end_of_quoted(text: &[u8], begin: usize, quote: u8) -> Option<usize> {
    let mut at = begin + 1;
    loop {
        let closing = at + text.get(at..)?.iter().position(|byte| *byte == quote)?;
        if text.get(closing + 1) != Some(&quote) {
            return Some(closing + 1);
        }
        at = closing + 2;
    }
}

/// Whether a whole word is an `Iconst`. A larger number is another token, which not all of the grammar accepts.
fn is_integer(text: &[u8], place: Range<usize>) -> bool {
    const DIGITS_MAX: usize = 10;
    let before = text.get(..place.start).unwrap_or_default();
    let Some(word) = text.get(place).filter(|word| word.len() <= DIGITS_MAX) else {
        return false;
    };
    let value = word.iter().try_fold(0_i32, |value, byte| {
        let digit = byte.is_ascii_digit().then(|| i32::from(byte - b'0'))?;
        value.checked_mul(10)?.checked_add(digit)
    });
    value.is_some() && !is_exponent(before) && !is_precision_of_float(before)
}

/// Whether it is an exponent, such as 5 in `1e-5`. Also matches `balance-5`, which does no harm.
fn is_exponent(before: &[u8]) -> bool {
    matches!(before, [.., b'e' | b'E', b'+' | b'-'])
}

/// Whether it is n of `FLOAT(n)`: up to 24 is another type than up to 53, and more is an error.
fn is_precision_of_float(before: &[u8]) -> bool {
    const FLOAT: &[u8] = b"float";
    let Some(before) = before.trim_ascii_end().strip_suffix(b"(") else {
        return false;
    };
    let before = before.trim_ascii_end();
    before
        .last_chunk::<{ FLOAT.len() }>()
        .is_some_and(|word| word.eq_ignore_ascii_case(FLOAT))
}

/// Whether a string is not continued after white space, and too short for a run of operator characters that the
/// parser is not given.
fn is_plain_string(text: &[u8], place: Range<usize>) -> bool {
    let after = text.get(place.end..).unwrap_or_default();
    let before = text.get(..place.start).unwrap_or_default();
    // Without text before it, the string follows another constant.
    let is_first = matches!(before.trim_ascii_end(), [.., last] if *last != b'\'');
    let is_last = !after.trim_ascii_start().starts_with(b"'");
    place.len() <= OPERATOR_RUN_MAX && is_first && is_last
}

/// Whether the bytes on both sides cannot belong to it. The left side always has one: the first word.
fn stands_alone(text: &[u8], place: Range<usize>) -> bool {
    let left = place.start.checked_sub(1).and_then(|left| text.get(left));
    let right = text.get(place.end);
    left.is_some_and(|byte| class(*byte) == ByteClass::Beside)
        && right.is_none_or(|byte| class(*byte) == ByteClass::Beside)
}

/// Class of a byte, as it matters to constants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ByteClass {
    /// May be in an identifier, a number or a parameter.
    Word,
    /// Begins and ends a string.
    Quote,
    /// Begins and ends an identifier.
    DoubleQuote,
    /// A token, or part of an operator or of white space: never part of a constant beside it.
    Beside,
    /// Any other byte.
    Other,
}

const BYTE_CLASSES: [ByteClass; 256] = {
    let mut classes = [ByteClass::Other; 256];
    let mut byte = 0;
    while byte < 256 {
        #[expect(
            clippy::indexing_slicing,
            reason = "evaluated by the compiler, bounded above"
        )]
        {
            classes[byte] = match byte as u8 {
                b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'_' | b'$' | b'.' | 0x80.. => {
                    ByteClass::Word
                }
                b'\'' => ByteClass::Quote,
                b'"' => ByteClass::DoubleQuote,
                b' ' | b'\t' | b'\n' | b'\r' | b'(' | b')' | b'[' | b']' | b',' | b':' | b';'
                | b'=' | b'<' | b'>' | b'+' | b'-' | b'*' | b'/' | b'%' | b'|' => ByteClass::Beside,
                _ => ByteClass::Other,
            };
        }
        byte += 1;
    }
    classes
};

fn class(byte: u8) -> ByteClass {
    BYTE_CLASSES
        .get(usize::from(byte))
        .copied()
        .unwrap_or(ByteClass::Other)
}

#[cfg(test)]
mod tests;
