//! Texts by others, made fit to show.

use std::borrow::Cow;
use std::fmt;

/// Longest name that is shown, in characters.
const SHOWN_NAME: usize = 63;

/// Name that a client has chosen, made fit to show: no longer than PostgreSQL's own names, and without characters
/// that a terminal obeys.
#[must_use]
pub fn readable(name: &str) -> String {
    let shown: String = name.chars().take(SHOWN_NAME).collect();
    without_controls(&shown)
}

/// Text without control characters and without those that change the direction of what follows.
#[must_use]
pub fn without_controls(text: &str) -> String {
    let visible = |c: char| if steers(c) { '?' } else { c };
    text.chars().map(visible).collect()
}

/// Text with the same characters escaped as in a JSON string. Nothing is lost.
#[must_use]
pub fn escaped(text: &str) -> Cow<'_, str> {
    if !text.contains(steers) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\n' => shown.push_str("\\n"),
            '\r' => shown.push_str("\\r"),
            '\t' => shown.push_str("\\t"),
            c if steers(c) => shown.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => shown.push(c),
        }
    }
    Cow::Owned(shown)
}

/// Removes the error numbers that Rust adds to the system's own words, as in "No such file (os error 2)".
#[must_use]
pub fn without_error_numbers(text: &str) -> String {
    const NUMBER: &str = " (os error ";
    let mut parts = text.split(NUMBER);
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.split_once(')') {
            Some((number, rest)) if number.parse::<i32>().is_ok() => plain.push_str(rest),
            _ => plain.extend([NUMBER, part]),
        }
    }
    plain
}

/// Reason as a sentence for DETAIL. It begins with a capital letter, unless its first word is a name, and ends with a
/// full stop.
#[must_use]
pub fn sentence(why: &dyn fmt::Display) -> String {
    let mut text = without_error_numbers(&why.to_string());
    let first = text.split(' ').next().unwrap_or_default();
    if first != "etcd" && first.bytes().all(|byte| byte.is_ascii_lowercase()) {
        let length = first.len().min(1);
        if let Some(letter) = text.get_mut(..length) {
            letter.make_ascii_uppercase();
        }
    }
    if !text.ends_with('.') {
        text.push('.');
    }
    text
}

/// "1 session", "2 sessions".
#[must_use]
pub fn counted(count: impl TryInto<u64>, what: &str) -> String {
    match count.try_into().unwrap_or(u64::MAX) {
        1 => format!("1 {what}"),
        count => format!("{count} {what}s"),
    }
}

/// Lines of these words, each with this indent, and no longer than so many columns if its first word allows it.
#[must_use]
pub fn wrapped(words: &str, indent: &str, columns: usize) -> String {
    let mut text = String::from(indent);
    let mut column = indent.len();
    for (number, word) in words.split_whitespace().enumerate() {
        let length = word.chars().count();
        if number > 0 && column + 1 + length > columns {
            text.push('\n');
            text.push_str(indent);
            column = indent.len();
        } else if number > 0 {
            text.push(' ');
            column += 1;
        }
        text.push_str(word);
        column += length;
    }
    text.push('\n');
    text
}

/// Whether a terminal or an editor would obey the character rather than show it. None is beyond U+FFFF.
fn steers(c: char) -> bool {
    let invisible = matches!(
        c,
        '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
    );
    invisible || c.is_control()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_steers_is_escaped_and_nothing_else() {
        let hostile =
            "a\u{1b}[2J\r\n\t\u{7f}\u{9b}1m\u{202e}\u{2028}\u{61c}\u{feff}\0 k\u{e4}se \u{1f600}";
        let shown = escaped(hostile);
        assert_eq!(
            shown,
            r"a\u001b[2J\r\n\t\u007f\u009b1m\u202e\u2028\u061c\ufeff\u0000 käse 😀"
        );
        assert!(matches!(escaped("plain, käse"), Cow::Borrowed(_)));
        assert_eq!(without_controls("a\u{1b}\u{202e}b"), "a??b");
    }

    #[test]
    fn reasons_become_sentences() {
        for (why, expect) in [
            ("the mark is 3", "The mark is 3."),
            ("Stop it. Run it again.", "Stop it. Run it again."),
            ("max_token is 9", "max_token is 9."),
            ("etcd does not answer", "etcd does not answer."),
            ("\u{fc}ber", "\u{fc}ber."),
            ("no such file (os error 2)", "No such file."),
            (
                "no way (os error 2): b (os error x)",
                "No way: b (os error x).",
            ),
        ] {
            assert_eq!(sentence(&why), expect);
        }
    }

    #[test]
    fn one_is_not_many() {
        let counted = |count: u64| counted(count, "old session");
        assert_eq!(
            [0, 1, 2].map(counted),
            ["0 old sessions", "1 old session", "2 old sessions"]
        );
    }
}
