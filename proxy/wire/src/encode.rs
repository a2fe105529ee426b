//! Messages that the proxy itself sends to a client. Those to the server are written with
//! `postgres_protocol::message::frontend`, except answers to authentication requests.

use bytes::{BufMut, BytesMut};

use super::backend::{TransactionStatus, tag};

/// Effect of an error on the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// The statement fails; the session goes on.
    Error,
    /// The session ends.
    Fatal,
}

impl Severity {
    /// PostgreSQL's word for it.
    #[must_use]
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Error => "ERROR",
            Self::Fatal => "FATAL",
        }
    }
}

/// Fields of an ErrorResponse.
#[derive(Debug, Clone, Copy)]
pub struct ErrorFields<'a> {
    /// Severity, always in English, also in the localized field.
    pub severity: Severity,
    /// SQLSTATE, five characters.
    pub sqlstate: &'a str,
    /// Primary message.
    pub message: &'a str,
    /// DETAIL; left out if empty.
    pub detail: &'a str,
    /// HINT; left out if empty.
    pub hint: &'a str,
}

/// Message of the proxy that begins with its code: many drivers do not show the SQLSTATE of a connection that was
/// refused or ended.
#[must_use]
pub fn with_code(sqlstate: &str, message: &str) -> String {
    format!("{sqlstate}: {message}")
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

/// Appends a fatal error for a client of a protocol before 3, as PostgreSQL does (`send_message_to_frontend` in
/// `elog.c`): one text, without a length.
pub fn plain_fatal_error(out: &mut BytesMut, message: &str) {
    let severity = Severity::Fatal.as_str();
    out.extend_from_slice(format!("E{severity}:  {message}\n\0").as_bytes());
}

/// Appends an ErrorResponse of the server as it came.
pub fn error_response_as_sent(out: &mut BytesMut, body: &[u8]) {
    message(out, b'E', |out| out.extend_from_slice(body));
}

/// A reply without content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the protocol's own names")]
pub enum Reply {
    ParseComplete,
    BindComplete,
    CloseComplete,
    NoData,
    EmptyQuery,
    PortalSuspended,
}

/// Appends a reply without content.
pub fn reply(out: &mut BytesMut, reply: Reply) {
    let tag = match reply {
        Reply::ParseComplete => tag::PARSE_COMPLETE,
        Reply::BindComplete => tag::BIND_COMPLETE,
        Reply::CloseComplete => tag::CLOSE_COMPLETE,
        Reply::NoData => tag::NO_DATA,
        Reply::EmptyQuery => tag::EMPTY_QUERY,
        Reply::PortalSuspended => tag::PORTAL_SUSPENDED,
    };
    message(out, tag, |_| ());
}

/// Appends a ReadyForQuery.
pub fn ready_for_query(out: &mut BytesMut, status: TransactionStatus) {
    message(out, b'Z', |out| out.put_u8(status.byte()));
}

/// Appends an AuthenticationXxx.
pub fn authentication(out: &mut BytesMut, kind: i32, data: &[u8]) {
    message(out, tag::AUTHENTICATION, |out| {
        out.put_i32(kind);
        out.put_slice(data);
    });
}

/// Appends a client's answer to an AuthenticationXxx: PasswordMessage, SASLInitialResponse or SASLResponse.
pub fn authentication_answer(out: &mut BytesMut, body: &[u8]) {
    message(out, b'p', |out| out.put_slice(body));
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

/// Appends a BackendKeyData of protocol 3.0.
pub fn backend_key_data(out: &mut BytesMut, pid: u32, key: u32) {
    message(out, tag::BACKEND_KEY_DATA, |out| {
        out.put_u32(pid);
        out.put_u32(key);
    });
}

/// Appends a NegotiateProtocolVersion: protocol 3.0, without these options.
pub fn negotiate_protocol_version(out: &mut BytesMut, options: &[&[u8]]) {
    message(out, b'v', |out| {
        out.put_u32(3 << 16);
        // The options come from one startup packet, so they are few.
        out.put_u32(u32::try_from(options.len()).unwrap_or_default());
        for option in options {
            out.put_slice(option);
            out.put_u8(0);
        }
    });
}

/// Appends a CommandComplete.
pub fn command_complete(out: &mut BytesMut, command_tag: &str) {
    message(out, tag::COMMAND_COMPLETE, |out| {
        out.put_slice(command_tag.as_bytes());
        out.put_u8(0);
    });
}

/// Appends a ParameterDescription of a statement without parameters.
pub fn no_parameters(out: &mut BytesMut) {
    message(out, b't', |out| out.put_u16(0));
}

/// A column of a result that does not come from a table.
#[derive(Debug, Clone, Copy)]
pub struct Field<'a> {
    /// Its name.
    pub name: &'a str,
    /// The OID of its type.
    pub type_oid: u32,
    /// The size of the type, -1 if it varies.
    pub type_len: i16,
    /// 0 for text, 1 for binary.
    pub format: i16,
}

/// Appends a RowDescription.
pub fn row_description<'a>(out: &mut BytesMut, fields: impl ExactSizeIterator<Item = Field<'a>>) {
    message(out, tag::ROW_DESCRIPTION, |out| {
        out.put_u16(u16::try_from(fields.len()).unwrap_or_default());
        for field in fields {
            out.put_slice(field.name.as_bytes());
            out.put_u8(0);
            // No table, and no column of one.
            out.put_u32(0);
            out.put_u16(0);
            out.put_u32(field.type_oid);
            out.put_i16(field.type_len);
            out.put_i32(-1);
            out.put_i16(field.format);
        }
    });
}

/// Appends a DataRow. A value is NULL if `value` writes nothing and says so.
pub fn row<T>(
    out: &mut BytesMut,
    values: &[T],
    mut value: impl FnMut(usize, &T, &mut BytesMut) -> Nullness,
) {
    message(out, tag::DATA_ROW, |out| {
        out.put_u16(u16::try_from(values.len()).unwrap_or_default());
        for (number, one) in values.iter().enumerate() {
            let length_at = out.len();
            out.put_i32(-1);
            if value(number, one, out) == Nullness::Null {
                continue;
            }
            let length = i32::try_from(out.len() - length_at - 4).unwrap_or(i32::MAX);
            if let Some(word) = out.get_mut(length_at..length_at + 4) {
                word.copy_from_slice(&length.to_be_bytes());
            }
        }
    });
}

/// Whether a column has a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nullness {
    /// It has none.
    Null,
    /// It has one.
    NotNull,
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
    // Texts here are the proxy's own and short, so the length always fits.
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
        out.clear();
        authentication(&mut out, 11, b"r=x");
        assert_eq!(&out[..], b"R\0\0\0\x0b\0\0\0\x0br=x");
        out.clear();
        backend_key_data(&mut out, 1, 2);
        assert_eq!(&out[..], b"K\0\0\0\x0c\0\0\0\x01\0\0\0\x02");
        out.clear();
        negotiate_protocol_version(&mut out, &[b"_pq_.a"]);
        assert_eq!(&out[..], b"v\0\0\0\x13\0\x03\0\0\0\0\0\x01_pq_.a\0");
        out.clear();
        authentication_answer(&mut out, b"c=x");
        assert_eq!(&out[..], b"p\0\0\0\x07c=x");
    }

    #[test]
    fn rows_have_the_length_of_each_value() {
        let mut out = BytesMut::new();
        row(&mut out, &[Some("ab"), None, Some("")], |_, value, out| {
            let Some(text) = value else {
                return Nullness::Null;
            };
            out.put_slice(text.as_bytes());
            Nullness::NotNull
        });
        let values = b"\0\0\0\x02ab\xff\xff\xff\xff\0\0\0\0";
        assert_eq!(&out[..], [b"D\0\0\0\x14\0\x03", &values[..]].concat());
        out.clear();
        let field = Field {
            name: "n",
            type_oid: 25,
            type_len: -1,
            format: 1,
        };
        row_description(&mut out, [field].into_iter());
        let rest = b"n\0\0\0\0\0\0\0\0\0\0\x19\xff\xff\xff\xff\xff\xff\0\x01";
        assert_eq!(&out[..], [b"T\0\0\0\x1a\0\x01", &rest[..]].concat());
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
