//! Bytes to messages and back, without I/O.
//!
//! Frontend and backend messages have different types, because a tag means different things in each direction (`D` is
//! Describe or DataRow). Decoders borrow from their buffer, never read past the frame, and never panic.
//!
//! Source: <https://www.postgresql.org/docs/current/protocol-message-formats.html>

pub mod backend;
pub mod encode;
pub mod frontend;
pub mod header;
pub mod startup;
pub mod startup_options;

use std::ffi::CStr;

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// A length word below four (it counts itself) or above PostgreSQL's limit.
    #[error("invalid message length {length} for message type {}", tag_name(*tag))]
    Length {
        /// 0 for a startup packet.
        tag: u8,
        length: i32,
    },
    #[error("invalid frontend message type {0}")]
    UnknownFrontendTag(u8),
    /// The body does not have the layout of its type.
    #[error("invalid message format for message type {}", tag_name(*.0))]
    Malformed(u8),
    /// A message that must not come while the server reads the data of a COPY:
    /// <https://www.postgresql.org/docs/current/protocol-flow.html#PROTOCOL-COPY>
    #[error("unexpected message type {0:#04X} during COPY from stdin")]
    DuringCopy(u8),
    /// A Query or FunctionCall that ended a pipeline, where an error may be its own or may have skipped it:
    /// <https://www.postgresql.org/docs/current/protocol-flow.html#PROTOCOL-FLOW-EXT-QUERY>
    #[error("a query was sent in a pipeline without a Sync before it, and canceled")]
    WithoutSync,
}

fn tag_name(tag: u8) -> String {
    match tag {
        0 => "startup".to_owned(),
        tag if tag.is_ascii_graphic() => format!("'{}'", char::from(tag)),
        tag => format!("{tag:#04x}"),
    }
}

/// Splits a NUL-terminated name off the front of `body`.
fn split_cstr(body: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = body.iter().position(|&byte| byte == 0)?;
    let (text, rest) = body.split_at_checked(end)?;
    Some((text, rest.get(1..)?))
}

/// Splits a NUL-terminated text off the front of `body`, comparing many bytes in one step.
fn split_text(body: &[u8]) -> Option<(&[u8], &[u8])> {
    let text = CStr::from_bytes_until_nul(body).ok()?.to_bytes();
    Some((text, body.get(text.len() + 1..)?))
}
