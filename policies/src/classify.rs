//! From a SQL text to a verdict.

use crate::verdict::{Opaque, Verdict};

/// Texts longer than this many bytes are not parsed: they are writes.
pub const MAX_PARSED: usize = 64 * 1024;

/// Bytes of stack that [`classify`] needs for the worst text. A caller with less left gets a stack made for it,
/// which costs some ten microseconds: give worker threads twice this much.
pub const PARSER_STACK: usize = 4 * 1024 * 1024;

/// Whether, in the client's encoding, a byte below 0x80 is always a character of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TextEncoding {
    /// UTF-8, the single-byte encodings, EUC: it is.
    AsciiSafe,
    /// SJIS, BIG5, GBK, UHC, GB18030, JOHAB, SHIFT_JIS_2004, or not known: it may be the end of another character.
    Unsafe,
}

/// What the text does.
#[must_use]
pub fn classify(text: &[u8], encoding: TextEncoding) -> Verdict {
    if text.len() > MAX_PARSED {
        return Verdict::opaque(Opaque::TooLong);
    }
    if encoding == TextEncoding::Unsafe && !text.is_ascii() {
        return Verdict::opaque(Opaque::Encoding);
    }
    Verdict::opaque(Opaque::Syntax)
}
