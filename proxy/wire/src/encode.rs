//! Messages that the proxy itself sends to a client: the types of pgwire, and what they lack.
//!
//! Messages to the server are written with `postgres_protocol::message::frontend`.

use bytes::{BufMut, BytesMut};
pub use pgwire::messages::Message;
pub use pgwire::messages::data::{DataRow, FieldDescription, RowDescription};
pub use pgwire::messages::response::{
    CommandComplete, EmptyQueryResponse, ErrorResponse, ReadyForQuery,
};
pub use pgwire::messages::startup::{
    Authentication, BackendKeyData, NegotiateProtocolVersion, ParameterStatus, SecretKey,
};

use super::backend::TransactionStatus;
use super::startup::StartupMessage;

/// Appends a message.
///
/// A message longer than libpq reads is left out: 30,000 bytes, or 2 GiB for errors and rows. Only a server's list of
/// SASL mechanisms could be.
pub fn put(out: &mut BytesMut, message: &impl Message) {
    let before = out.len();
    if message.encode(out).is_err() {
        out.truncate(before);
    }
}

impl From<TransactionStatus> for pgwire::messages::response::TransactionStatus {
    fn from(status: TransactionStatus) -> Self {
        match status {
            TransactionStatus::Idle => Self::Idle,
            TransactionStatus::InTransaction => Self::Transaction,
            TransactionStatus::Failed => Self::Error,
        }
    }
}

/// Of the protocol that the proxy speaks. What 3.2 has beyond 3.0 are longer keys:
/// <https://www.postgresql.org/docs/18/protocol.html#PROTOCOL-VERSIONS-TABLE>.
const NEWEST_MINOR: u16 = 2;

/// The answer to a client that asks for more than protocol 3.2; `None` if it does not.
#[must_use]
pub fn negotiated(message: StartupMessage<'_>) -> Option<NegotiateProtocolVersion> {
    let names = message.pairs().map(|(name, _)| name);
    let options: Vec<String> = names
        .filter(|name| name.starts_with(b"_pq_."))
        .map(|name| String::from_utf8_lossy(name).into_owned())
        .collect();
    let minor = message.minor();
    let asks = minor > NEWEST_MINOR || !options.is_empty();
    let version = 3 << 16 | i32::from(minor.min(NEWEST_MINOR));
    asks.then(|| NegotiateProtocolVersion::new(version, options))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    Error,
    Fatal,
}

impl Severity {
    #[must_use]
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Error => "ERROR",
            Self::Fatal => "FATAL",
        }
    }
}

/// Fields of an ErrorResponse of the proxy.
#[derive(Debug, Clone, Copy)]
pub struct ErrorFields<'a> {
    pub severity: Severity,
    pub sqlstate: &'a str,
    pub message: &'a str,
    /// Empty: left out.
    pub detail: &'a str,
    /// Empty: left out.
    pub hint: &'a str,
}

impl From<&ErrorFields<'_>> for ErrorResponse {
    fn from(fields: &ErrorFields<'_>) -> Self {
        let severity = fields.severity.as_str();
        let all = [
            (b'S', severity),
            (b'V', severity),
            (b'C', fields.sqlstate),
            (b'M', fields.message),
            (b'D', fields.detail),
            (b'H', fields.hint),
        ];
        let said = all.into_iter().filter(|(_, text)| !text.is_empty());
        // A NUL would end the field early, and a client would read the rest as other fields.
        Self::new(
            said.map(|(letter, text)| (letter, text.replace('\0', "")))
                .collect(),
        )
    }
}

/// A message that begins with its code: many drivers do not show the SQLSTATE of a refused or ended connection.
#[must_use]
pub fn with_code(sqlstate: &str, message: &str) -> String {
    format!("{sqlstate}: {message}")
}

/// Appends a fatal error for a client of a protocol before 3 (`send_message_to_frontend` in `elog.c`): one text,
/// without a length.
pub fn plain_fatal_error(out: &mut BytesMut, message: &str) {
    let severity = Severity::Fatal.as_str();
    out.extend_from_slice(format!("E{severity}:  {message}\n\0").as_bytes());
}

/// A DataRow; `None` is NULL.
#[must_use]
pub fn data_row<T: AsRef<[u8]>>(values: impl IntoIterator<Item = Option<T>>) -> DataRow {
    let (mut data, mut count) = (BytesMut::new(), 0);
    for value in values {
        count += 1;
        match value {
            None => data.put_i32(-1),
            Some(value) => {
                let value = value.as_ref();
                data.put_i32(i32::try_from(value.len()).unwrap_or(i32::MAX));
                data.put_slice(value);
            }
        }
    }
    DataRow::new(data, count)
}

pub fn put_raw(out: &mut BytesMut, tag: u8, body: &[u8]) {
    out.put_u8(tag);
    // Bodies fit: they were received in a message, or made for one.
    out.put_i32(i32::try_from(body.len() + 4).unwrap_or(i32::MAX));
    out.put_slice(body);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::startup::{StartupPacket, parse};

    #[test]
    fn messages_have_the_bytes_of_the_protocol() {
        let put = |message: &dyn Fn(&mut BytesMut)| {
            let mut out = BytesMut::new();
            message(&mut out);
            out
        };
        let ready = ReadyForQuery::new(TransactionStatus::Failed.into());
        assert_eq!(put(&|out| super::put(out, &ready))[..], *b"Z\0\0\0\x05E");
        let row = data_row([Some("ab"), None, Some("")]);
        let values = b"\0\0\0\x02ab\xff\xff\xff\xff\0\0\0\0";
        assert_eq!(
            put(&|out| super::put(out, &row))[..],
            [b"D\0\0\0\x14\0\x03", &values[..]].concat()
        );
        let option = NegotiateProtocolVersion::new(3 << 16, vec![String::from("_pq_.a")]);
        assert_eq!(
            put(&|out| super::put(out, &option))[..],
            *b"v\0\0\0\x13\0\x03\0\0\0\0\0\x01_pq_.a\0"
        );
        assert_eq!(
            put(&|out| put_raw(out, b'p', b"c=x"))[..],
            *b"p\0\0\0\x07c=x"
        );
    }

    #[test]
    fn what_is_newer_is_negotiated() {
        for (minor, option, told) in [
            (0, "user", None),
            (2, "user", None),
            (3, "user", Some(2)),
            (9999, "user", Some(2)),
            (0, "_pq_.a", Some(0)),
            (2, "_pq_.a", Some(2)),
        ] {
            let list = format!("{option}\0x\0\0");
            let len = u32::try_from(8 + list.len()).unwrap();
            let version = 3 << 16 | minor;
            let packet = [
                &len.to_be_bytes()[..],
                &u32::to_be_bytes(version),
                list.as_bytes(),
            ];
            let packet = packet.concat();
            let Ok(StartupPacket::Startup(message)) = parse(&packet) else {
                unreachable!()
            };
            let version = negotiated(message).map(|limits| limits.newest_minor_protocol & 0xffff);
            assert_eq!(version, told, "{minor} {option}");
        }
    }

    #[test]
    fn too_long_a_message_leaves_nothing() {
        let mut out = BytesMut::from("before");
        put(&mut out, &CommandComplete::new("x".repeat(30_000)));
        assert_eq!(out, "before");
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
        put(&mut out, &ErrorResponse::from(&fields));
        assert_eq!(&out[5..], b"SERROR\0VERROR\0CPF001\0Mab\0Hh\0\0");
        assert_eq!(out[4] as usize, out.len() - 1);
    }
}
