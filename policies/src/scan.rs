//! A byte scan that proves, for most texts, that the session has nothing to learn from them.
//!
//! It is for the fast path: a session that may write anyway needs the parser only where a text could change the
//! session itself. The scan knows words, not SQL: it also finds them in strings and comments. That costs a parse
//! and nothing else.

/// What the scan found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NeedsParse {
    /// No statement of this text has a [`Control`](crate::Control). Says nothing about read or write.
    No,
    /// It may have one.
    Yes,
}

/// Words without which a statement cannot have a control, lower case, by length. Each statement with a control
/// begins with one of them, follows EXPLAIN with one, or calls `set_config`. `fencing` makes sure of our own names.
const WORDS: [&[&[u8]]; 11] = [
    &[],
    &[],
    &[],
    &[b"set", b"end"],
    &[b"show"],
    &[b"begin", b"start", b"reset", b"abort"],
    &[b"commit"],
    &[b"fencing", b"execute", b"prepare", b"release", b"discard"],
    &[b"rollback"],
    &[b"savepoint"],
    &[b"set_config", b"deallocate"],
];

/// Looks for the words that can change a session: transaction control, SET and its kin, prepared statements,
/// `fencing`, `set_config`, and `U&`, which can spell an identifier in escapes.
///
/// Works on bytes of any client encoding. In a text of ASCII bytes only, which is lexed alike in every encoding, a
/// word must stand alone. Otherwise it is found anywhere: what stands before it may be the second byte of a
/// character.
#[must_use]
pub fn needs_parse(text: &[u8]) -> NeedsParse {
    if text.is_ascii() {
        scan_words(text)
    } else {
        scan_anywhere(text)
    }
}

/// What a byte is in a word.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    /// A letter or `_`.
    Letter,
    /// A digit or `$`: goes on with a word, and ends before one. PostgreSQL before 15 reads `1SET` as two tokens.
    Tail,
    /// Anything else.
    Other,
}

const PARTS: [Part; 256] = {
    let mut parts = [Part::Other; 256];
    let mut byte = 0;
    while byte < 128 {
        #[expect(
            clippy::indexing_slicing,
            reason = "evaluated by the compiler, bounded above"
        )]
        {
            parts[byte] = match byte as u8 {
                b'A'..=b'Z' | b'a'..=b'z' | b'_' => Part::Letter,
                b'0'..=b'9' | b'$' => Part::Tail,
                _ => Part::Other,
            };
        }
        byte += 1;
    }
    parts
};

fn part(byte: u8) -> Part {
    PARTS
        .get(usize::from(byte))
        .copied()
        .unwrap_or(Part::Letter)
}

fn scan_words(text: &[u8]) -> NeedsParse {
    let mut rest = text;
    while let Some(start) = rest.iter().position(|byte| part(*byte) == Part::Letter) {
        let (_, from_word) = rest.split_at(start);
        let length = from_word
            .iter()
            .position(|byte| part(*byte) != Part::Letter)
            .unwrap_or(from_word.len());
        let (word, after) = from_word.split_at(length);
        let follows = after.first().copied();
        let ends = follows.is_none_or(|byte| part(byte) != Part::Tail);
        if (ends && is_word(word)) || (is_u(word) && follows == Some(b'&')) {
            return NeedsParse::Yes;
        }
        rest = after;
    }
    NeedsParse::No
}

fn scan_anywhere(text: &[u8]) -> NeedsParse {
    for start in 0..text.len() {
        let (_, here) = text.split_at(start);
        let found = here
            .first_chunk::<2>()
            .is_some_and(|[u, and]| is_u(&[*u]) && *and == b'&')
            || WORDS.iter().enumerate().any(|(length, words)| {
                here.get(..length)
                    .is_some_and(|part| words.iter().any(|word| word.eq_ignore_ascii_case(part)))
            });
        if found {
            return NeedsParse::Yes;
        }
    }
    NeedsParse::No
}

fn is_word(word: &[u8]) -> bool {
    WORDS
        .get(word.len())
        .is_some_and(|words| words.iter().any(|known| known.eq_ignore_ascii_case(word)))
}

fn is_u(word: &[u8]) -> bool {
    word.eq_ignore_ascii_case(b"u")
}
