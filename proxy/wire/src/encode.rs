//! Messages that the proxy itself says to a client. What it says to the server is written with
//! `postgres_protocol::message::frontend`.

use bytes::{BufMut, BytesMut};

use super::backend::{TransactionStatus, tag};

/// How bad an error is to the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// The statement fails; the session goes on.
    Error,
    /// The session ends.
    Fatal,
}

impl Severity {
    /// The word that PostgreSQL uses.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Error => "ERROR",
            Self::Fatal => "FATAL",
        }
    }
}

/// The fields of an ErrorResponse.
#[derive(Debug, Clone, Copy)]
pub struct ErrorFields<'a> {
    /// Severity, localized and not: always English.
    pub severity: Severity,
    /// SQLSTATE, five characters.
    pub sqlstate: &'a str,
    /// Primary message.
    pub message: &'a str,
    /// DETAIL; left out where empty.
    pub detail: &'a str,
    /// HINT; left out where empty.
    pub hint: &'a str,
}

/// Appends an ErrorResponse.
pub fn error_response(out: &mut BytesMut, fields: &ErrorFields<'_>) {
    message(out, b'E', |out| {
        let severity = fields.severity.as_str();
        let all = [
            (b'S', severity),
            (b'V', severity),
            (b'C', fields.sqlstate),
            (b'M', fields.message),
            (b'D', fields.detail),
            (b'H', fields.hint),
        ];
        for (letter, text) in all {
            if !text.is_empty() {
                out.put_u8(letter);
                // A NUL would end the field early, and the rest would be read as other fields.
                out.extend(text.bytes().filter(|&byte| byte != 0));
                out.put_u8(0);
            }
        }
        out.put_u8(0);
    });
}

/// An ErrorResponse of the server, as it came.
pub fn error_response_as_sent(out: &mut BytesMut, body: &[u8]) {
    message(out, b'E', |out| out.extend_from_slice(body));
}

/// A reply that has no content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the protocol's own names")]
pub enum Reply {
    ParseComplete,
    BindComplete,
    NoData,
}

/// Appends a reply that has no content.
pub fn reply(out: &mut BytesMut, reply: Reply) {
    let tag = match reply {
        Reply::ParseComplete => tag::PARSE_COMPLETE,
        Reply::BindComplete => tag::BIND_COMPLETE,
        Reply::NoData => tag::NO_DATA,
    };
    message(out, tag, |_| ());
}

/// Appends a ReadyForQuery.
pub fn ready_for_query(out: &mut BytesMut, status: TransactionStatus) {
    message(out, b'Z', |out| out.put_u8(status.byte()));
}

/// Appends a ParameterStatus.
pub fn parameter_status(out: &mut BytesMut, name: &str, value: &str) {
    message(out, b'S', |out| {
        for text in [name, value] {
            out.put_slice(text.as_bytes());
            out.put_u8(0);
        }
    });
}

/// Appends a DataRow of one column: a text, which has the same bytes in both formats.
pub fn data_row(out: &mut BytesMut, text: &str) {
    message(out, b'D', |out| {
        out.put_u16(1);
        out.put_i32(i32::try_from(text.len()).unwrap_or(i32::MAX));
        out.put_slice(text.as_bytes());
    });
}

fn message(out: &mut BytesMut, tag: u8, body: impl FnOnce(&mut BytesMut)) {
    out.put_u8(tag);
    let length_at = out.len();
    out.put_i32(0);
    body(out);
    // Texts here are ours and short, so the length always fits.
    let length = i32::try_from(out.len() - length_at).unwrap_or(i32::MAX);
    if let Some(word) = out.get_mut(length_at..length_at + 4) {
        word.copy_from_slice(&length.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_the_right_length() {
        let mut out = BytesMut::new();
        ready_for_query(&mut out, TransactionStatus::Failed);
        assert_eq!(&out[..], b"Z\0\0\0\x05E");
        out.clear();
        parameter_status(&mut out, "a", "b");
        assert_eq!(&out[..], b"S\0\0\0\x08a\0b\0");
        out.clear();
        reply(&mut out, Reply::BindComplete);
        assert_eq!(&out[..], b"2\0\0\0\x04");
        out.clear();
        data_row(&mut out, "off");
        assert_eq!(&out[..], b"D\0\0\0\x0d\0\x01\0\0\0\x03off");
    }

    #[test]
    fn empty_fields_are_left_out_and_nul_cannot_smuggle() {
        let mut out = BytesMut::new();
        let fields = ErrorFields {
            severity: Severity::Error,
            sqlstate: "PF001",
            message: "a\0b",
            detail: "",
            hint: "h",
        };
        error_response(&mut out, &fields);
        assert_eq!(&out[5..], b"SERROR\0VERROR\0CPF001\0Mab\0Hh\0\0");
        assert_eq!(out[4] as usize, out.len() - 1);
    }
}
