//! Frontend messages.

use bytes::BytesMut;
use pgwire::messages::simplequery::Query;
use pgwire::messages::{DecodeContext, Message};

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

/// A Query as pgwire's type. Bytes that are not UTF-8 become U+FFFD.
///
/// # Errors
///
/// As [`query`]. pgwire panics at a body without its NUL.
pub fn read_query(mut body: BytesMut) -> Result<Query, WireError> {
    query(&body)?;
    let length = body.len() + 4;
    Query::decode_body(&mut body, length, &DecodeContext::default())
        .map_err(|_| WireError::Malformed(b'Q'))
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
        let read = |body: &[u8]| read_query(body.into()).map(|read| read.query);
        assert_eq!(read(b"SELECT 1\0"), Ok("SELECT 1".into()));
        assert_eq!(query(b"\0"), Ok(&b""[..]));
        // A decoder that does not stop at the frame would take what follows the NUL for a second statement.
        for bad in [&b""[..], b"SELECT 1", b"SELECT 1\0DELETE FROM t\0"] {
            assert_eq!(query(bad), Err(WireError::Malformed(b'Q')), "{bad:?}");
            assert_eq!(read(bad), Err(WireError::Malformed(b'Q')), "{bad:?}");
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

    #[test]
    fn every_byte_is_a_known_tag_or_an_error() {
        let known = (0..=u8::MAX)
            .filter(|&byte| FrontendTag::from_byte(byte).is_ok())
            .count();
        assert_eq!(known, 14);
    }
}
