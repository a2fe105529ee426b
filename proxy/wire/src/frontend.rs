//! Frontend messages.

use bytes::BytesMut;
use pgwire::messages::DecodeContext;
pub use pgwire::messages::Message;
pub use pgwire::messages::extendedquery::{
    Bind, Close, Describe, Execute, Parse, TARGET_TYPE_BYTE_STATEMENT,
};
pub use pgwire::messages::simplequery::Query;

use super::header::{LARGE_BODY_MAX, SMALL_BODY_MAX};
use super::{WireError, split_cstr, split_text};

/// Type of a frontend message.
///
/// <https://www.postgresql.org/docs/current/protocol-message-formats.html>
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrontendTag {
    Bind,
    Close,
    CopyData,
    CopyDone,
    CopyFail,
    Describe,
    Execute,
    Flush,
    FunctionCall,
    Parse,
    /// PasswordMessage, SASLInitialResponse, SASLResponse, GSSResponse: distinguished by context only.
    Password,
    Query,
    Sync,
    Terminate,
}

impl FrontendTag {
    #[inline]
    pub const fn from_byte(byte: u8) -> Result<Self, WireError> {
        Ok(match byte {
            b'B' => Self::Bind,
            b'C' => Self::Close,
            b'd' => Self::CopyData,
            b'c' => Self::CopyDone,
            b'f' => Self::CopyFail,
            b'D' => Self::Describe,
            b'E' => Self::Execute,
            b'H' => Self::Flush,
            b'F' => Self::FunctionCall,
            b'P' => Self::Parse,
            b'p' => Self::Password,
            b'Q' => Self::Query,
            b'S' => Self::Sync,
            b'X' => Self::Terminate,
            other => return Err(WireError::UnknownFrontendTag(other)),
        })
    }

    /// Whether the session's state decides about it: it has a text, runs one, or names one.
    #[inline]
    #[must_use]
    pub const fn is_judged(self) -> bool {
        matches!(
            self,
            Self::Query
                | Self::Parse
                | Self::Bind
                | Self::Describe
                | Self::Execute
                | Self::FunctionCall
        )
    }

    /// Whether it begins no statement and has no text of the client.
    #[inline]
    #[must_use]
    pub const fn runs_nothing(self) -> bool {
        matches!(
            self,
            Self::Sync
                | Self::Flush
                | Self::Terminate
                | Self::CopyData
                | Self::CopyDone
                | Self::CopyFail
        )
    }

    /// Whether it belongs to an extended-query pipeline. After an error the server skips such messages up to the next
    /// Sync.
    #[must_use]
    pub const fn is_extended(self) -> bool {
        matches!(
            self,
            Self::Bind | Self::Close | Self::Describe | Self::Execute | Self::Flush | Self::Parse
        )
    }
}

/// The largest body that PostgreSQL takes for a message type (`SocketBackend` in `postgres.c`).
#[inline]
#[must_use]
pub const fn body_max(tag: u8) -> usize {
    match tag {
        b'Q' | b'P' | b'B' | b'F' | b'd' => LARGE_BODY_MAX,
        // Authentication answers: `PG_MAX_AUTH_TOKEN_LENGTH`.
        b'p' => 65_535,
        _ => SMALL_BODY_MAX,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target<'a> {
    Statement(&'a [u8]),
    Portal(&'a [u8]),
}

/// The text of a Query: everything before the one NUL that must end the body.
///
/// # Errors
///
/// [`WireError::Malformed`] if the NUL is missing or bytes follow it. PostgreSQL refuses both.
pub fn query(body: &[u8]) -> Result<&[u8], WireError> {
    match split_text(body) {
        Some((text, [])) => Ok(text),
        _ => Err(WireError::Malformed(b'Q')),
    }
}

/// Statement name and text at the front of a Parse, before the parameter types.
pub fn parse(body: &[u8]) -> Result<(&[u8], &[u8]), WireError> {
    let (name, rest) = split_cstr(body).ok_or(WireError::Malformed(b'P'))?;
    let (text, _) = split_text(rest).ok_or(WireError::Malformed(b'P'))?;
    Ok((name, text))
}

/// Portal and statement names at the front of a Bind; `None` if the prefix does not contain both.
#[must_use]
pub fn bind(prefix: &[u8]) -> Option<(&[u8], &[u8])> {
    let (portal, rest) = split_cstr(prefix)?;
    let (statement, _) = split_cstr(rest)?;
    Some((portal, statement))
}

/// Number of parameters of a Bind; `None` if the prefix does not contain it.
#[must_use]
pub fn bind_parameters(prefix: &[u8]) -> Option<u16> {
    let (_, rest) = split_cstr(prefix)?;
    let (_, rest) = split_cstr(rest)?;
    let (formats, rest) = rest.split_first_chunk()?;
    let formats = usize::from(u16::from_be_bytes(*formats));
    let count = rest.get(2 * formats..)?.first_chunk()?;
    Some(u16::from_be_bytes(*count))
}

/// Function and arguments of a FunctionCall; `None` unless all of them are binary, and not NULL.
#[must_use]
pub fn function_call(body: &[u8]) -> Option<(u32, Vec<&[u8]>)> {
    let (function, rest) = body.split_first_chunk()?;
    let (formats, rest) = rest.split_first_chunk()?;
    let (formats, rest) = rest.split_at_checked(2 * usize::from(u16::from_be_bytes(*formats)))?;
    // One format stands for all arguments, none for text.
    if formats.is_empty() || formats.chunks(2).any(|format| format != [0, 1]) {
        return None;
    }
    let (count, mut rest) = rest.split_first_chunk()?;
    let mut arguments = Vec::new();
    for _ in 0..u16::from_be_bytes(*count) {
        let (len, values) = rest.split_first_chunk()?;
        let (value, after) = values.split_at_checked(u32::from_be_bytes(*len).try_into().ok()?)?;
        arguments.push(value);
        rest = after;
    }
    (rest.len() == 2).then_some((u32::from_be_bytes(*function), arguments))
}

/// A frontend message with this body, as pgwire's type.
///
/// # Errors
///
/// [`WireError::Malformed`] if the body does not have the layout of the type to its last byte. pgwire would panic.
/// Strings are read as UTF-8; other bytes become U+FFFD.
pub fn read<M: Message>(mut body: BytesMut) -> Result<M, WireError> {
    let tag = M::message_type().unwrap_or_default();
    let malformed = WireError::Malformed(tag);
    if !is_whole(tag, &body) {
        return Err(malformed);
    }
    let length = body.len() + 4;
    M::decode_body(&mut body, length, &DecodeContext::default()).map_err(|_| malformed)
}

/// Whether a body has the layout of its type, to its last byte:
/// <https://www.postgresql.org/docs/current/protocol-message-formats.html>
fn is_whole(tag: u8, body: &[u8]) -> bool {
    let string = |rest| split_cstr(rest).map(|(_, rest)| rest);
    let rest = match tag {
        b'Q' => string(body),
        b'P' => string(body)
            .and_then(string)
            .and_then(|rest| counted(rest, |rest| rest.get(4..))),
        b'B' => string(body)
            .and_then(string)
            .and_then(|rest| counted(rest, |rest| rest.get(2..)))
            .and_then(|rest| counted(rest, value))
            .and_then(|rest| counted(rest, |rest| rest.get(2..))),
        b'E' => return execute(body).is_ok(),
        b'D' | b'C' => return target(tag, body).is_ok(),
        _ => None,
    };
    rest.is_some_and(<[u8]>::is_empty)
}

fn value(body: &[u8]) -> Option<&[u8]> {
    let (len, rest) = body.split_first_chunk()?;
    // A negative length means NULL.
    rest.get(usize::try_from(i32::from_be_bytes(*len)).unwrap_or(0)..)
}

/// Skips a 16-bit count and as many items.
fn counted(body: &[u8], item: impl Fn(&[u8]) -> Option<&[u8]>) -> Option<&[u8]> {
    let (count, rest) = body.split_first_chunk()?;
    (0..u16::from_be_bytes(*count)).try_fold(rest, |rest, _| item(rest))
}

pub fn execute(body: &[u8]) -> Result<&[u8], WireError> {
    match split_cstr(body) {
        Some((portal, [_, _, _, _])) => Ok(portal),
        _ => Err(WireError::Malformed(b'E')),
    }
}

pub fn target(tag: u8, body: &[u8]) -> Result<Target<'_>, WireError> {
    let malformed = WireError::Malformed(tag);
    let (kind, rest) = body.split_first().ok_or(malformed)?;
    match (kind, split_cstr(rest)) {
        (b'S', Some((name, []))) => Ok(Target::Statement(name)),
        (b'P', Some((name, []))) => Ok(Target::Portal(name)),
        _ => Err(malformed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_ends_with_its_only_nul() {
        assert_eq!(query(b"SELECT 1\0"), Ok(&b"SELECT 1"[..]));
        assert_eq!(query(b"\0"), Ok(&b""[..]));
        // A decoder that does not stop at the frame would take what follows the NUL for a second statement.
        for bad in [&b""[..], b"SELECT 1", b"SELECT 1\0DELETE FROM t\0"] {
            assert_eq!(query(bad), Err(WireError::Malformed(b'Q')), "{bad:?}");
        }
    }

    #[test]
    fn names_are_found() {
        assert_eq!(
            parse(b"s\0SELECT $1\0\0\x01\0\0\0\x17"),
            Ok((&b"s"[..], &b"SELECT $1"[..]))
        );
        assert_eq!(parse(b"s\0SELECT"), Err(WireError::Malformed(b'P')));
        assert_eq!(
            bind(b"portal\0statement\0\0\0"),
            Some((&b"portal"[..], &b"statement"[..]))
        );
        assert_eq!(bind(b"portal\0state"), None);
        let parameters = |formats: &[u8]| bind_parameters(&[b"p\0s\0", formats].concat());
        assert_eq!(parameters(b"\0\0\0\0\0\0"), Some(0));
        assert_eq!(parameters(b"\0\x02\0\x01\0\x01\x01\0"), Some(256));
        for short in [&b""[..], b"\0", b"\0\0\0", b"\0\x01\0\0\0"] {
            assert_eq!(parameters(short), None, "{short:?}");
        }
        assert_eq!(execute(b"p\0\0\0\0\x01"), Ok(&b"p"[..]));
        assert_eq!(execute(b"p\0\0\0\0"), Err(WireError::Malformed(b'E')));
        assert_eq!(target(b'D', b"Sx\0"), Ok(Target::Statement(b"x")));
        assert_eq!(target(b'C', b"P\0"), Ok(Target::Portal(b"")));
        for bad in [&b""[..], b"S", b"Xx\0", b"Sx\0y"] {
            assert_eq!(
                target(b'C', bad),
                Err(WireError::Malformed(b'C')),
                "{bad:?}"
            );
        }
    }

    #[test]
    fn a_function_call_has_binary_arguments() {
        let values = [b"\0\0\0\x02ab".as_slice(), b"\0\0\0\0"].concat();
        let call = |formats: &[u8], result: &[u8]| {
            [b"\0\0\x03\xb8", formats, b"\0\x02", &values, result].concat()
        };
        let read = Some((952, vec![&b"ab"[..], b""]));
        for formats in [&b"\0\x01\0\x01"[..], b"\0\x02\0\x01\0\x01"] {
            let body = call(formats, b"\0\x01");
            assert_eq!(function_call(&body), read);
            for cut in 0..body.len() {
                assert_eq!(function_call(&body[..cut]), None, "{cut}");
            }
            assert_eq!(function_call(&call(formats, b"\0\x01\0")), None);
        }
        for formats in [&b"\0\0"[..], b"\0\x01\0\0", b"\0\x02\0\x01\0\0"] {
            assert_eq!(
                function_call(&call(formats, b"\0\x01")),
                None,
                "{formats:?}"
            );
        }
        let null = b"\0\0\x03\xb8\0\x01\0\x01\0\x01\xff\xff\xff\xff\0\x01";
        assert_eq!(function_call(null), None);
    }

    /// pgwire panics at most of these bodies.
    #[test]
    fn a_body_is_read_from_its_first_to_its_last_byte() {
        fn reads<M: Message>(body: &[u8]) -> Result<M, WireError> {
            for cut in 0..body.len() {
                assert!(read::<M>(BytesMut::from(&body[..cut])).is_err(), "{cut}");
            }
            assert!(read::<M>([body, b"\0"].concat().as_slice().into()).is_err());
            read(body.into())
        }
        assert_eq!(reads(b"SELECT 1\0"), Ok(Query::new("SELECT 1".into())));
        let parse = Parse::new(Some("s".into()), "SELECT $1".into(), vec![23]);
        assert_eq!(reads(b"s\0SELECT $1\0\0\x01\0\0\0\x17"), Ok(parse));
        let values = vec![Some("ab".into()), None];
        let bind = Bind::new(Some("p".into()), None, vec![1], values, vec![1, 0]);
        let layout = b"p\0\0\0\x01\0\x01\0\x02\0\0\0\x02ab\xff\xff\xff\xff\0\x02\0\x01\0\0";
        assert_eq!(reads(layout), Ok(bind));
        assert_eq!(
            reads(b"p\0\0\0\0\x01"),
            Ok(Execute::new(Some("p".into()), 1))
        );
        assert_eq!(reads(b"Sx\0"), Ok(Describe::new(b'S', Some("x".into()))));
        assert_eq!(reads(b"P\0"), Ok(Close::new(b'P', None)));
        // The count of the formats says more than there is.
        let short = b"p\0s\0\xff\xff\0\0\0\0";
        assert!(read::<Bind>(BytesMut::from(&short[..])).is_err());
    }

    #[test]
    fn every_byte_is_a_known_tag_or_an_error() {
        let known = (0..=u8::MAX)
            .filter(|&byte| FrontendTag::from_byte(byte).is_ok())
            .count();
        assert_eq!(known, 14);
    }
}
