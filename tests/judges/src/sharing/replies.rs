//! Comparison of replies through the proxy with direct ones.

use std::collections::BTreeSet;

use crate::mediation::twin::comparable;
use pgpalisade_test_servers::wire::Message;

/// Rows and words, without what differs each time.
pub(super) fn words(messages: &[Message]) -> BTreeSet<String> {
    let texts = messages
        .iter()
        .filter(|message| !matches!(message.tag, b'C' | b'Z'));
    let texts: Vec<_> = texts.map(comparable).collect();
    let words = texts.iter().flat_map(|(_, text)| text.split_whitespace());
    words.map(str::to_owned).collect()
}

pub(super) fn same(one: &[Message], other: &[Message]) -> bool {
    one.iter().map(told).eq(other.iter().map(told))
}

/// The first of February is taken for the second of January.
pub(super) fn same_but_for_dates(one: &[Message], other: &[Message]) -> bool {
    let blurred = |message| {
        let (tag, text) = told(message);
        (tag, text.replace("02", "01"))
    };
    one.iter().map(blurred).eq(other.iter().map(blurred))
}

/// Message without its place in PostgreSQL's source: a statement may have been parsed again.
fn told(message: &Message) -> (u8, String) {
    let (tag, text) = comparable(message);
    let end = text.find("\\x00F").filter(|_| tag == b'E');
    (tag, text[..end.unwrap_or(text.len())].to_owned())
}

pub(super) fn row(messages: &[Message]) -> String {
    let row = messages.iter().find(|message| message.tag == b'D');
    row.map(|row| row.row().concat()).unwrap_or_default()
}
