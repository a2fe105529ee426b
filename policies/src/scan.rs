//! A byte scan that proves, for most texts, that they do not change the session.
//!
//! A session that may write anyway needs the parser only if a text could change the session itself. The scan knows
//! words, not SQL, and also finds them in strings and comments. Such a match costs only a parse.

use crate::classify::{MAX_PARSED_INLINE, Weight, weigh};

/// First words, in lower case and by length, of statements that have a control or may commit before they complete.
/// The latter are DO, CALL, VACUUM and similar: their outcome is unknown when their session is ended, and the client
/// is told so.
const FIRST_WORDS: [&[&[u8]]; 11] = [
    &[],
    &[],
    &[b"do"],
    &[b"set", b"end"],
    &[b"show", b"call", b"move", b"drop"],
    &[b"begin", b"start", b"reset", b"abort", b"fetch", b"alter"],
    &[b"commit", b"vacuum", b"create"],
    &[
        b"prepare", b"release", b"discard", b"execute", b"cluster", b"reindex", b"analyze",
        b"analyse",
    ],
    &[b"rollback"],
    &[b"savepoint"],
    &[b"deallocate"],
];

/// Words that count anywhere: EXPLAIN EXECUTE, set_config and the view that does the same, the proxy's own settings,
/// CREATE INDEX CONCURRENTLY and similar.
const ANY_WORDS: [&[u8]; 5] = [
    b"execute",
    b"set_config",
    b"pg_settings",
    b"fencing",
    b"concurrently",
];

/// Whether a statement of the text may have a [`Control`](crate::Control) or commit before it completes, or the text is
/// one of several statements that need not [wait](weigh) to be parsed: how many there are tells which completion is the
/// last. `false` says nothing about reads and writes.
///
/// Looks for the words that can change a session: transaction control, SET and similar, prepared statements,
/// `fencing`, `set_config` and `pg_settings`. Also for `U&`, which can spell an identifier in escapes.
///
/// The first word alone decides a text that has no semicolon, no comment, and no part of a word that counts anywhere.
/// That is nearly every text of an application, and this path has no branches inside its loop.
///
/// Works on bytes of any client encoding. A text of ASCII bytes is lexed alike in every encoding. In it a word must
/// stand alone. Most words count only at the start of a statement: at the start of the text, after a semicolon, or
/// anywhere in a text with comments. In other texts all words count anywhere: the byte before a word may be the first
/// half of a character.
#[must_use]
pub fn needs_parse(text: &[u8]) -> bool {
    match first_word_decides(text) {
        Some(needs) => needs,
        None if has_several_statements(text) && is_light(text) => true,
        None if text.is_ascii() => scan_words(text),
        None => scan_anywhere(text),
    }
}

fn is_light(text: &[u8]) -> bool {
    text.len() <= MAX_PARSED_INLINE && weigh(text) == Weight::Light
}

/// Whether there is a semicolon between statements. One may be missed where a quote is escaped in another way than by
/// doubling it.
fn has_several_statements(text: &[u8]) -> bool {
    let mut is_outside = true;
    without_last_semicolons(text).iter().any(|byte| {
        is_outside ^= *byte == b'\'';
        is_outside && *byte == b';'
    })
}

fn without_last_semicolons(text: &[u8]) -> &[u8] {
    let mut text = text.trim_ascii_end();
    while let Some(before) = text.strip_suffix(b";") {
        text = before.trim_ascii_end();
    }
    text
}

/// The answer of [`scan_words`] for an ASCII text in which only the first word can count. `None` for other texts, and
/// for those too short to gain from it.
fn first_word_decides(text: &[u8]) -> Option<bool> {
    if any_three(text, is_suspect)? {
        return None;
    }
    let start = text
        .iter()
        .position(|byte| class(*byte) == CharClass::Letter);
    let from_word = text.get(start.unwrap_or(text.len())..)?;
    let length = from_word
        .iter()
        .position(|byte| class(*byte) != CharClass::Letter)
        .unwrap_or(from_word.len());
    let (word, after) = from_word.split_at(length);
    let ends = after
        .first()
        .is_none_or(|byte| class(*byte) != CharClass::Tail);
    Some(ends && is_first_word(word))
}

/// Whether `is_such` says yes to three bytes in a row, with zeros after the last ones. Spaces and semicolons at the
/// end do not count: no word or statement follows them. `None` for texts that are too short.
#[inline]
pub(crate) fn any_three(text: &[u8], is_such: impl Fn(u8, u8, u8) -> bool) -> Option<bool> {
    let text = without_last_semicolons(text);
    let (&[before_last, last], behind, behind_two) =
        (text.last_chunk()?, text.get(1..)?, text.get(2..)?);
    let in_threes = text
        .iter()
        .zip(behind)
        .zip(behind_two)
        // No early exit: the compiler cannot vectorize a loop that may end early.
        .fold(false, |found, ((a, b), c)| found | is_such(*a, *b, *c));
    Some(in_threes | is_such(before_last, last, 0) | is_such(last, 0, 0))
}

/// Whether these three bytes look like part of a text that counts after the first word. Each of [`ANY_WORDS`] has
/// such a part. The parts are rare in other words and similar to each other, since each comparison costs time. A byte
/// that is not ASCII is suspect too.
#[inline]
const fn is_suspect(a: u8, b: u8, c: u8) -> bool {
    // Lower case. Some control characters become signs by it, which costs only a second look.
    let (a, b, c) = (a | 0x20, b | 0x20, c | 0x20);
    let execute = (a == b'x') & (b == b'e');
    // fe-nci-ng, co-ncu-rrently, set_co-nfi-g, pg_setti-ngs
    let in_c = (b == b'c') & ((c == b'i') | (c == b'u'));
    let in_f = (b == b'f') & (c == b'i');
    let in_g = (b == b'g') & (c == b's');
    let others = (a == b'n') & (in_c | in_f | in_g);
    let comment = ((a == b'-') & (b == b'-')) | (a == b'/');
    execute | others | comment | (a == b'&') | (a == b';') | !a.is_ascii()
}

/// Class of a byte in a word.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CharClass {
    /// A letter or `_`.
    Letter,
    /// A digit or `$`: continues a word, but another word may begin after it. PostgreSQL before 15 reads `1SET` as
    /// two tokens.
    Tail,
    /// Anything else.
    Other,
}

const CHAR_CLASSES: [CharClass; 256] = {
    let mut classes = [CharClass::Other; 256];
    let mut byte = 0;
    while byte < 128 {
        #[expect(
            clippy::indexing_slicing,
            reason = "evaluated by the compiler, bounded above"
        )]
        {
            classes[byte] = match byte as u8 {
                b'A'..=b'Z' | b'a'..=b'z' | b'_' => CharClass::Letter,
                b'0'..=b'9' | b'$' => CharClass::Tail,
                _ => CharClass::Other,
            };
        }
        byte += 1;
    }
    classes
};

fn class(byte: u8) -> CharClass {
    CHAR_CLASSES
        .get(usize::from(byte))
        .copied()
        .unwrap_or(CharClass::Letter)
}

fn scan_words(text: &[u8]) -> bool {
    let comments = text.windows(2).any(|two| two == b"--" || two == b"/*");
    let mut first = true;
    let mut rest = text;
    while let Some(start) = rest
        .iter()
        .position(|byte| class(*byte) == CharClass::Letter)
    {
        let (between, from_word) = rest.split_at(start);
        let length = from_word
            .iter()
            .position(|byte| class(*byte) != CharClass::Letter)
            .unwrap_or(from_word.len());
        let (word, after) = from_word.split_at(length);
        let follows = after.first().copied();
        let ends = follows.is_none_or(|byte| class(byte) != CharClass::Tail);
        let begins = comments || first || between.contains(&b';');
        if (ends && ((begins && is_first_word(word)) || is_any_word(word)))
            || (is_u(word) && follows == Some(b'&'))
        {
            return true;
        }
        first = false;
        rest = after;
    }
    false
}

fn scan_anywhere(text: &[u8]) -> bool {
    let mut rest = text;
    while let Some(start) = rest.iter().position(|byte| starts_word(*byte)) {
        let (_, here) = rest.split_at(start);
        let found = here
            .first_chunk::<2>()
            .is_some_and(|[u, and]| is_u(&[*u]) && *and == b'&')
            || starts_with_word(here);
        if found {
            return true;
        }
        rest = here.split_at(1).1;
    }
    false
}

/// Whether it is the first letter of one of the words, or a `u`.
fn starts_word(byte: u8) -> bool {
    matches!(
        byte.to_ascii_lowercase(),
        b'a' | b'b' | b'c' | b'd' | b'e' | b'f' | b'm' | b'p' | b'r' | b's' | b'u' | b'v'
    )
}

fn is_first_word(word: &[u8]) -> bool {
    FIRST_WORDS
        .get(word.len())
        .is_some_and(|words| words.iter().any(|known| known.eq_ignore_ascii_case(word)))
}

fn is_any_word(word: &[u8]) -> bool {
    ANY_WORDS
        .iter()
        .any(|known| known.eq_ignore_ascii_case(word))
}

fn starts_with_word(here: &[u8]) -> bool {
    let is_here = |word: &&[u8]| {
        here.get(..word.len())
            .is_some_and(|found| found.eq_ignore_ascii_case(word))
    };
    ANY_WORDS.iter().any(is_here) || FIRST_WORDS.iter().any(|words| words.iter().any(is_here))
}

fn is_u(word: &[u8]) -> bool {
    word.eq_ignore_ascii_case(b"u")
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::seq::IndexedRandom;
    use rand::{Rng, SeedableRng};

    use super::*;
    use crate::{TextEncoding, classify};

    #[track_caller]
    fn needs(text: &[u8]) {
        assert!(needs_parse(text), "{}", text.escape_ascii());
    }

    #[track_caller]
    fn needs_none(text: &[u8]) {
        assert!(!needs_parse(text), "{}", text.escape_ascii());
    }

    #[test]
    fn words_are_found_wherever_they_stand() {
        for text in [
            "SET x = 1",
            "select 1;Set x = 1",
            "/**/set x=1",
            "select set_config('a', 'b', false)",
            "select pg_catalog.\"set_config\"('a', 'b', false)",
            "update pg_settings set setting = null",
            "reset all",
            "DISCARD ALL",
            "show x",
            "begin",
            "START TRANSACTION",
            "commit",
            "end",
            "select 1;end",
            "select 1;1end",
            "rollback",
            "abort",
            "savepoint a",
            "release a",
            "prepare a as select 1",
            "explain execute a",
            "execute(a)",
            "deallocate a",
            "select 'fencing.token'",
            "select U&\"set\\005fconfig\"('a', 'b', false)",
            "select u&'x'",
            "select case when a then b end -- comment",
            "/* x */ set a = 1",
            "-- x\nset a = 1",
            "; \t\x0c set a = 1",
            "do $$ begin commit; end $$",
            "call p()",
            "VACUUM",
            "Analyse a, b",
            "create database d",
            "reindex table t",
            "cluster",
            "create index concurrently on t (a)",
            "select 'é' ; commit",
            "INSERT INTO t VALUES (';'); SELECT 1",
            "SELECT 'é'; SELECT 1;",
            "écommit",
        ] {
            needs(text.as_bytes());
        }
        // Second bytes of SJIS characters that look like letters, before and after the word.
        needs(b"\x83acommit\x83b");
        needs(b"select '\x83\x5c';u&\"a\"");
    }

    #[test]
    fn every_word_passes_the_filter_of_first_letters() {
        let first = FIRST_WORDS.iter().flat_map(|words| words.iter());
        for word in first.chain(&ANY_WORDS) {
            needs(word);
            needs(&[b"\xe9x", *word].concat());
            needs_none(&[*word, b"x"].concat());
        }
    }

    /// The short path says what the long one would, on words, parts of words and signs in random order.
    #[test]
    fn the_first_word_decides_only_where_no_other_can() {
        const PIECES: &[&str] = &[
            "execute",
            "EXEC",
            "xe",
            "set_config",
            "SET_CONFIG",
            "pg_settings",
            "PG_SETTINGS",
            "set",
            "onfi",
            "fencing",
            "Fe",
            "nci",
            "ng",
            "concurrently",
            "ConcurrENTLY",
            "ncu",
            "commit",
            "begin",
            "do",
            "end",
            "show",
            "x",
            "u",
            "U",
            "&",
            ";",
            "-",
            "--",
            "/",
            "*",
            "/*",
            " ",
            "\n",
            "\r",
            "\t",
            "1",
            "$",
            "_",
            "'",
            "\"",
            "(",
            ".",
            "\u{1b}",
            "\u{6}",
            "\u{7f}",
            "insert into t values ",
            "select a from b where c = ",
        ];
        let seed: u64 = rand::random();
        println!("seed {seed}");
        let mut random = StdRng::seed_from_u64(seed);
        let mut decided = [0; 2];
        for _ in 0..200_000 {
            let pieces = random.random_range(0..7);
            let text: String = (0..pieces)
                .map(|_| *PIECES.choose(&mut random).unwrap())
                .collect();
            let long = scan_words(text.as_bytes());
            if let Some(short) = first_word_decides(text.as_bytes()) {
                assert_eq!(short, long, "seed {seed}: {text:?}");
                decided[usize::from(short)] += 1;
            }
        }
        println!("decided No {}, Yes {}", decided[0], decided[1]);
        assert!(decided.iter().all(|count| *count > 5_000), "{decided:?}");
        // Texts of applications take the short path.
        for text in [
            "insert into job_result (job_id, worker) values ($1, $2) on conflict do nothing;",
            "SELECT abalance FROM pgbench_accounts WHERE aid = $1",
            "UPDATE t SET balance = balance - 1 WHERE id = -1 ; ",
        ] {
            assert_eq!(first_word_decides(text.as_bytes()), Some(false), "{text}");
        }
    }

    /// Such a text would wait for those of others.
    #[test]
    fn several_statements_are_read_where_that_is_quick() {
        let insert = "INSERT INTO t VALUES (1, 'x'); ";
        needs(insert.repeat(100).as_bytes());
        needs_none(insert.repeat(1000).as_bytes());
    }

    #[test]
    fn ordinary_statements_need_no_parse() {
        for text in [
            "INSERT INTO pages VALUES ('a;b''&nbsp;&eacute;é') ; ;",
            "",
            "select 1",
            "select * from t where id = $1 offset 10",
            "insert into settings (reset_at, showing) values ($1, $2)",
            "update t set_ = 1",
            "delete from ends where begin_ < 3 and t.commits = 'sets'",
            "select set1, a_set, set$ from t",
            "select 'é'",
            "update t set a = 1",
            "select case when a then b end",
            "insert into t values (1) on conflict do nothing",
        ] {
            needs_none(text.as_bytes());
        }
    }

    /// Statements with controls, damaged, cut and combined at random. If the scan says No, the parser must find no
    /// control, and nothing that commits before it completes.
    #[test]
    #[expect(clippy::too_many_lines, reason = "a table")]
    fn no_is_never_wrong() {
        const SEEDS: &[&str] = &[
            "set fencing.token = 34",
            "set local fencing.scope to 'a'",
            "SET U&\"fencing.tok\\0065n\" = 9",
            "select set_config('fencing.token', '34', false)",
            "select \"set_config\"('fencing.token', '34', false)",
            "select U&\"s\\0065t_config\"('fencing.token', '34', false)",
            "select U&\"s!0065t_config\" UESCAPE '!' ('fencing.token', '34', false)",
            "reset fencing.token",
            "reset all",
            "discard all",
            "show fencing.mark",
            "begin read only",
            "start transaction",
            "commit and chain",
            "end",
            "rollback",
            "abort",
            "rollback to a",
            "savepoint a",
            "release a",
            "prepare a as select 1",
            "execute a",
            "explain execute a",
            "deallocate all",
            "prepare transaction 'x'",
            "set transaction read only",
            "set session characteristics as transaction read only",
            "set default_transaction_read_only = on",
            "set transaction_read_only = on",
            "select 1",
            "select 'é' as é",
            "-- x\n",
            "/* é */",
            "select 1 as a",
            "call p()",
            "do 'x'",
            "vacuum t",
            "reindex index concurrently i",
            "drop index concurrently i",
            "cluster",
            "analyze a, b",
            "drop database d",
            "alter database d set tablespace t",
            "create database d",
            "update t set a = 1",
        ];
        const JOINTS: &[&str] = &[
            ";", "; ", "", " ", "\n", ";\r", ";/**/", ";--x\n", ";\u{c}", ";\t", "1", "$", "é",
            ";é", "_", "\\", "'", "\"",
        ];
        let seed: u64 = rand::random();
        println!("seed {seed}");
        let mut random = StdRng::seed_from_u64(seed);
        let (mut with_controls, mut said_no) = (0, 0);
        for _ in 0..15_000 {
            let mut text = String::new();
            for _ in 0..random.random_range(1..4) {
                text.push_str(JOINTS.choose(&mut random).unwrap());
                let part = SEEDS.choose(&mut random).unwrap();
                text.extend(part.chars().map(|c| {
                    if random.random_bool(0.3) {
                        c.to_ascii_uppercase()
                    } else {
                        c
                    }
                }));
            }
            let mut chars: Vec<char> = text.chars().collect();
            for _ in 0..random.random_range(0..3) {
                let at = random.random_range(0..chars.len());
                match random.random_range(0..4) {
                    0 => drop(chars.remove(at)),
                    1 => chars.insert(
                        at,
                        *['é', ' ', ';', '\'', '"', '$', '1', 'x', '/', '*', '\n']
                            .choose(&mut random)
                            .unwrap(),
                    ),
                    2 => chars.truncate(at + 1),
                    _ => chars.swap(0, at),
                }
                if chars.is_empty() {
                    chars.push(';');
                }
            }
            let text: String = chars.into_iter().collect();
            let verdict = classify(text.as_bytes(), TextEncoding::Utf8);
            // The server also refuses what PostgreSQL's grammar refuses.
            let midway = verdict.kind() != "unparsed" && verdict.commits_midway();
            let inert = !verdict.has_controls() && !midway;
            let needs = needs_parse(text.as_bytes());
            with_controls += usize::from(!inert);
            said_no += usize::from(!needs);
            assert!(inert || needs, "seed {seed}: {text:?}");
        }
        // The generator must reach both sides, or the test proves nothing.
        assert!(
            with_controls > 1_000 && said_no > 1_000,
            "{with_controls} {said_no}"
        );
    }
}
