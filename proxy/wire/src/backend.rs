//! Backend messages, as far as the proxy must understand them.

use super::split_cstr;
use crate::header::LARGE_BODY_MAX;

/// Limit of the server for every message type.
#[inline]
#[must_use]
pub const fn body_max(_tag: u8) -> usize {
    LARGE_BODY_MAX
}

pub mod tag {
    pub const AUTHENTICATION: u8 = b'R';
    pub const BACKEND_KEY_DATA: u8 = b'K';
    pub const PARSE_COMPLETE: u8 = b'1';
    pub const BIND_COMPLETE: u8 = b'2';
    pub const CLOSE_COMPLETE: u8 = b'3';
    pub const COMMAND_COMPLETE: u8 = b'C';
    pub const COPY_IN_RESPONSE: u8 = b'G';
    pub const DATA_ROW: u8 = b'D';
    pub const EMPTY_QUERY: u8 = b'I';
    pub const ERROR: u8 = b'E';
    pub const NO_DATA: u8 = b'n';
    pub const NOTICE: u8 = b'N';
    pub const NOTIFICATION: u8 = b'A';
    pub const PARAMETER_DESCRIPTION: u8 = b't';
    pub const PARAMETER_STATUS: u8 = b'S';
    pub const PORTAL_SUSPENDED: u8 = b's';
    pub const READY_FOR_QUERY: u8 = b'Z';
    pub const ROW_DESCRIPTION: u8 = b'T';
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransactionStatus {
    /// `I`
    Idle,
    /// `T`
    InTransaction,
    /// `E`
    Failed,
}

impl TransactionStatus {
    #[inline]
    #[must_use]
    pub const fn from_body(body: &[u8]) -> Option<Self> {
        match body {
            [b'I'] => Some(Self::Idle),
            [b'T'] => Some(Self::InTransaction),
            [b'E'] => Some(Self::Failed),
            _ => None,
        }
    }
}

#[must_use]
pub fn parameter_status(body: &[u8]) -> Option<(&[u8], &[u8])> {
    let (name, rest) = split_cstr(body)?;
    let (value, _) = split_cstr(rest)?;
    Some((name, value))
}

/// Process id at the front of a BackendKeyData. The key after it has 4 to 256 bytes and reaches the client unchanged.
#[must_use]
pub fn backend_pid(body: &[u8]) -> Option<i32> {
    body.first_chunk::<4>()
        .map(|bytes| i32::from_be_bytes(*bytes))
}

/// The type of an authentication message; 0 is AuthenticationOk.
#[must_use]
pub fn authentication_kind(body: &[u8]) -> Option<i32> {
    backend_pid(body)
}

#[must_use]
pub fn command_tag(body: &[u8]) -> &[u8] {
    split_cstr(body).map_or(&[], |(text, _)| text)
}

/// Name of a column, and its type and type modifier as one number.
pub type Column<'a> = (&'a [u8], u64);

/// The columns of a RowDescription; `None` in place of one that is cut off.
pub fn columns(body: &[u8]) -> impl Iterator<Item = Option<Column<'_>>> {
    let (count, mut rest) = body.split_first_chunk().unwrap_or((&[0, 1], &[]));
    let mut column = move || {
        let (name, fields) = split_cstr(rest)?;
        let (&[_, _, _, _, _, _, a, b, c, d, _, _, e, f, g, h, _, _], next) =
            fields.split_first_chunk::<18>()?;
        rest = next;
        Some((name, u64::from_be_bytes([a, b, c, d, e, f, g, h])))
    };
    (0..u16::from_be_bytes(*count)).map(move |_| column())
}

/// First value of a DataRow; `None` if it is NULL.
#[must_use]
pub fn first_column(body: &[u8]) -> Option<&[u8]> {
    let (columns, rest) = body.split_first_chunk::<2>()?;
    let (len, rest) = rest.split_first_chunk::<4>()?;
    let len = usize::try_from(i32::from_be_bytes(*len)).ok()?;
    (u16::from_be_bytes(*columns) > 0).then(|| rest.get(..len))?
}

/// A field of an ErrorResponse or NoticeResponse by its letter:
/// <https://www.postgresql.org/docs/current/protocol-error-fields.html>
#[must_use]
pub fn error_field(body: &[u8], letter: u8) -> Option<&[u8]> {
    let mut rest = body;
    loop {
        let (&field, after) = rest.split_first()?;
        if field == 0 {
            return None;
        }
        let (value, next) = split_cstr(after)?;
        if field == letter {
            return Some(value);
        }
        rest = next;
    }
}

/// Whether an ErrorResponse ends the session. `V` is the severity that is never translated (PostgreSQL 9.6 and
/// later).
#[must_use]
pub fn is_fatal(body: &[u8]) -> bool {
    matches!(
        error_field(body, b'V').or_else(|| error_field(body, b'S')),
        Some(b"FATAL" | b"PANIC")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_fields_are_found_in_bounds() {
        let body = b"SFATAL\0VFATAL\0C57P01\0Mterminating\0\0";
        assert_eq!(error_field(body, b'C'), Some(&b"57P01"[..]));
        assert_eq!(error_field(body, b'H'), None);
        assert!(is_fatal(body));
        assert!(!is_fatal(b"SFEHLER\0VERROR\0C42601\0\0"));
        for cut in 0..body.len() {
            let _ = error_field(&body[..cut], b'H');
        }
    }

    #[test]
    fn columns_are_their_names_and_types() {
        let body = b"\0\x02a\0tabl\0\x01typA\0\x04modA\0\0b\0tabl\0\x02typB\0\x04modB\0\x01";
        let a = (&b"a"[..], u64::from_be_bytes(*b"typAmodA"));
        let b = (&b"b"[..], u64::from_be_bytes(*b"typBmodB"));
        assert!(columns(body).eq([Some(a), Some(b)]));
        for cut in 0..body.len() {
            assert!(
                columns(&body[..cut]).any(|column| column.is_none()),
                "{cut}"
            );
        }
    }

    #[test]
    fn bodies_are_read_or_refused() {
        assert_eq!(
            TransactionStatus::from_body(b"T"),
            Some(TransactionStatus::InTransaction)
        );
        assert_eq!(TransactionStatus::from_body(b"X"), None);
        assert_eq!(TransactionStatus::from_body(b""), None);
        assert_eq!(parameter_status(b"a\0b\0"), Some((&b"a"[..], &b"b"[..])));
        assert_eq!(parameter_status(b"a\0b"), None);
        assert_eq!(backend_pid(&[0, 0, 1, 0, 9, 9, 9, 9]), Some(256));
        assert_eq!(backend_pid(&[0, 0, 1]), None);
        assert_eq!(command_tag(b"INSERT 0 1\0"), b"INSERT 0 1");
    }
}
