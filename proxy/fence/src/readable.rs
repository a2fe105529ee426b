//! Texts of others, fit to be shown to people.

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
    let visible = |c: char| match c {
        '\u{200b}'..='\u{200f}'
        | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}'
        | '\u{feff}' => '?',
        c if c.is_control() => '?',
        c => c,
    };
    text.chars().map(visible).collect()
}
