//! Every text that a user can see, in one list, and the rules for them that a machine can check.
//!
//! The list is `target/tmp/messages.txt`, one text a line, with its place. PostgreSQL's rules apply to the rest:
//! <https://www.postgresql.org/docs/current/error-style-guide.html>.

use std::fmt::Write as _;
use std::path::Path;

use crate::tidy::{before_tests, files};

/// Phrases that read as translated.
const BANNED: &str = "(s)| is no | are no |anew|in vain| own key|nobody knows|is none of|of before|nothing is said|\
    gone back in time|answers there|laid down|hoever |whom | has not two|behind it|not looked at|goes on with|\
    could not be had|stands in the way";
/// Exceptions that are correct English.
const FINE: [&str; 3] = ["is no longer", "here is no", "here are no"];
/// Names that a message may begin with.
const NAMES: [&str; 3] = ["PostgreSQL", "PostgreSQL's", "Kubernetes"];

struct Text {
    place: String,
    words: String,
    /// Whether it is an error or a log line.
    is_message: bool,
}

fn text(path: &Path, line: usize, words: &str, is_message: bool) -> Text {
    Text {
        place: format!("{}:{line}", path.display()),
        words: words.to_owned(),
        is_message,
    }
}

/// End of the string that begins here, or of a comment or character that resembles one.
fn end(rest: &str) -> Option<usize> {
    let closed = |quote: &str| {
        let mut at = 1;
        while !rest.get(at..)?.starts_with(quote) {
            at += if rest[at..].starts_with('\\') { 2 } else { 1 };
            at += (0..).find(|more| rest.is_char_boundary(at + more))?;
        }
        Some(at + 1)
    };
    match rest.get(..2).unwrap_or_default().as_bytes() {
        b"//" => rest.find('\n'),
        b"r\"" => rest[2..].find('"').map(|at| at + 3),
        b"r#" => rest[2..].find("\"#").map(|at| at + 4),
        b"'\\" => closed("'"),
        // A lifetime has no second quote.
        [b'\'', ..] => (3..7).find(|end| rest.get(..*end).is_some_and(|c| c.ends_with('\''))),
        [b'"', ..] => closed("\""),
        [b'`', ..] => closed("`"),
        _ => None,
    }
}

/// String literals of a Rust or JavaScript source.
fn literals(path: &Path, source: &str) -> Vec<Text> {
    let (mut found, mut at) = (Vec::new(), 0);
    while let Some(rest) = source.get(at..).filter(|rest| !rest.is_empty()) {
        let before = &source[..at];
        let is_word = before.ends_with(|c: char| c.is_alphanumeric() || c == '_');
        let Some(length) = end(rest).filter(|_| !is_word || !rest.starts_with('r')) else {
            at += rest.chars().next().map_or(1, char::len_utf8);
            continue;
        };
        let joined = rest[..length].split("\\\n").map(str::trim_start);
        let words = joined.collect::<String>();
        if words.starts_with(['"', '`', 'r']) && words.contains(' ') {
            let code = before.rsplit([';', '{', '}']).next().unwrap_or_default();
            let is_message = code.contains("tracing::") || code.trim_end().ends_with("#[error(");
            let (line, words) = (before.lines().count(), &words[1..words.len() - 1]);
            found.push(text(path, line, words, is_message));
        }
        at += length;
    }
    found
}

/// Output of `--help`: the doc comments of everything that clap derives.
fn help(path: &Path, source: &str) -> Vec<Text> {
    let (mut found, mut docs, mut is_clap) = (Vec::new(), Vec::new(), false);
    for (index, line) in source.lines().enumerate() {
        let derives = line.starts_with("#[derive(");
        is_clap |= derives && (line.contains("clap::") || line.contains("ValueEnum"));
        is_clap &= line != "}";
        if let Some(text) = line.trim_start().strip_prefix("///") {
            docs.push(text.trim());
            continue;
        }
        if is_clap && !docs.is_empty() {
            found.push(text(path, index, &docs.join(" "), false));
        }
        docs.clear();
    }
    found
}

/// Words between and in the tags.
fn markup(path: &Path, source: &str) -> Vec<Text> {
    let mut found = Vec::new();
    for (index, line) in source.lines().enumerate() {
        let parts = line.split(['<', '>', '"']).map(str::trim);
        let words = parts.filter(|part| part.contains(' '));
        found.extend(words.map(|words| text(path, index + 1, words, false)));
    }
    found
}

fn texts() -> Vec<Text> {
    let mut all = Vec::new();
    let shipped = ["policies/src", "proxy", "token-authority", "bench/load"];
    let tests = ["tests", "tests.rs", "conformance"];
    for (path, source) in [".rs", ".js", ".html"].into_iter().flat_map(files) {
        let is_test = path
            .iter()
            .any(|part| tests.iter().any(|test| part == *test));
        if is_test || !shipped.iter().any(|own| path.starts_with(own)) {
            continue;
        }
        let source = before_tests(&source);
        if path.extension().is_some_and(|ending| ending == "html") {
            all.extend(markup(&path, source));
        } else {
            all.extend(
                [literals(&path, source), help(&path, source)]
                    .into_iter()
                    .flatten(),
            );
        }
    }
    all
}

/// The rule that a text breaks.
fn fault(text: &Text) -> Option<&'static str> {
    let (place, words) = (&*text.place, &*text.words);
    let rest = FINE
        .iter()
        .fold(words.to_owned(), |rest, fine| rest.replace(fine, ""));
    if let Some(bad) = BANNED.split('|').find(|bad| rest.contains(*bad)) {
        return Some(bad);
    }
    let first = words.split([' ', ':']).next().unwrap_or_default();
    let is_word = first.chars().skip(1).all(char::is_lowercase) && !NAMES.contains(&first);
    let is_sentence = is_word && first.starts_with(char::is_uppercase);
    // SCRAM uses PostgreSQL's messages.
    if text.is_message && !place.contains("scram") {
        let is_wrong = is_sentence || words.ends_with('.') || words.contains("  ");
        return is_wrong.then_some("a message begins small, has single spaces and no full stop");
    }
    let is_hint = place.contains("fence/src/rejection") || place.contains("src/console");
    let is_whole = words.ends_with(['.', '?', ' ', ':', '}']) || words.matches(' ').count() < 3;
    (is_hint && is_sentence && !is_whole).then_some("DETAIL and HINT are sentences")
}

#[test]
fn texts_are_plain_english() {
    let (mut list, mut report) = (String::new(), String::new());
    let all = texts();
    for text in &all {
        let line = format!("{}: {}", text.place, text.words.replace('\n', "\\n"));
        writeln!(list, "{line}").unwrap();
        if let Some(why) = fault(text) {
            writeln!(report, "{line}\n    {why}").unwrap();
        }
    }
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("messages.txt");
    std::fs::write(file, &list).unwrap();
    let messages = all.iter().filter(|text| text.is_message).count();
    assert!(messages > 330, "only {messages} of {}", all.len());
    for known in [
        "Stop acting",
        "Print one JSON object",
        "not ready",
        "Proxies of the",
    ] {
        assert!(list.contains(known), "{known:?} is not in the list");
    }
    assert!(report.is_empty(), "not plain English:\n{report}");
}

#[test]
fn faults_are_found() {
    let source = r#"#[error("it is no start")] f('"', "two words"); warn("a \
        b"); tracing::warn!(%error, "Nothing  works"); ("Try it again soon")"#;
    let found = literals(Path::new("fence/src/rejection.rs"), source);
    let seen: Vec<_> = found
        .iter()
        .map(|text| (&*text.words, fault(text).is_some()))
        .collect();
    let expect = [
        ("it is no start", true),
        ("two words", false),
        ("a b", false),
        ("Nothing  works", true),
        ("Try it again soon", true),
    ];
    assert_eq!(seen, expect);
}
