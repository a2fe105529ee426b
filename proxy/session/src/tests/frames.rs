//! Frontend and backend messages as bytes.

use crate::wire::header::{self, HEADER_LEN, LARGE_BODY_MAX};

/// A message with its header.
pub(super) fn message(tag: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len() + 4).unwrap();
    let mut bytes = vec![tag];
    bytes.extend(length.to_be_bytes());
    bytes.extend(body);
    bytes
}

/// Splits `bytes` into messages; they end with the last one.
pub(super) fn split(bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut messages = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let header = header::parse(rest, |_| LARGE_BODY_MAX).unwrap().unwrap();
        let (message, behind) = rest.split_at(header.frame_len());
        messages.push(message.to_vec());
        rest = behind;
    }
    messages
}

/// Type and body of a message.
pub(super) fn parts(message: &[u8]) -> (u8, &[u8]) {
    (message[0], &message[HEADER_LEN..])
}

pub(super) fn query(text: &str) -> Vec<u8> {
    message(b'Q', &strings(&[text]))
}

pub(super) fn parse(name: &str, text: &str) -> Vec<u8> {
    message(b'P', &[&strings(&[name, text])[..], &[0, 0]].concat())
}

/// A Bind without parameters.
pub(super) fn bind(portal: &str, statement: &str) -> Vec<u8> {
    message(
        b'B',
        &[&strings(&[portal, statement])[..], &[0; 6]].concat(),
    )
}

/// A Bind with one parameter, in text format.
pub(super) fn bind_one(portal: &str, statement: &str) -> Vec<u8> {
    let values = [0, 0, 0, 1, 0, 0, 0, 1, b'1', 0, 0];
    message(
        b'B',
        &[&strings(&[portal, statement])[..], &values].concat(),
    )
}

pub(super) fn execute(portal: &str, rows: u8) -> Vec<u8> {
    message(b'E', &[&strings(&[portal])[..], &[0, 0, 0, rows]].concat())
}

/// A Describe or Close: `kind` is `S` for a statement, `P` for a portal.
pub(super) fn target(tag: u8, kind: u8, name: &str) -> Vec<u8> {
    message(tag, &[&[kind][..], &strings(&[name])].concat())
}

pub(super) fn function_call() -> Vec<u8> {
    message(b'F', &[0, 0, 0, 1, 0, 0, 0, 0, 0, 0])
}

pub(super) fn empty(tag: u8) -> Vec<u8> {
    message(tag, &[])
}

/// Body of an ErrorResponse.
pub(super) fn error_body(severity: &str, sqlstate: &str, text: &str) -> Vec<u8> {
    let mut body = Vec::new();
    for (letter, value) in [
        (b'S', severity),
        (b'V', severity),
        (b'C', sqlstate),
        (b'M', text),
    ] {
        body.push(letter);
        body.extend(strings(&[value]));
    }
    body.push(0);
    body
}

/// Body of a DataRow with one text.
pub(super) fn row(value: &str) -> Vec<u8> {
    let length = u32::try_from(value.len()).unwrap();
    [&[0, 1][..], &length.to_be_bytes(), value.as_bytes()].concat()
}

pub(super) fn strings(texts: &[&str]) -> Vec<u8> {
    let ended = texts
        .iter()
        .flat_map(|text| [text.as_bytes(), &[0]].concat());
    ended.collect()
}
