//! Texts of others, fit to be shown to people.

use std::borrow::Cow;

/// Longest name in a text that others read.
const SHOWN_NAME: usize = 63;

/// A name that a client has chosen, fit for a text that others read: no longer than PostgreSQL's own names, and
/// without what a terminal obeys.
#[must_use]
pub fn readable(name: &str) -> String {
    let shown: String = name.chars().take(SHOWN_NAME).collect();
    without_controls(&shown)
}

/// The text without control characters and without those that change the direction of what follows.
#[must_use]
pub fn without_controls(text: &str) -> String {
    let visible = |c: char| if steers(c) { '?' } else { c };
    text.chars().map(visible).collect()
}

/// The text with the same characters escaped as JSON writes them inside of a string. Nothing is lost.
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

/// Whether a terminal or an editor would obey it rather than show it. None of them is beyond U+FFFF.
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
}
