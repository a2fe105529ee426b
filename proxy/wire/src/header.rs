//! The five bytes before every message after the startup packet: a type byte and a length.

use super::WireError;

pub const HEADER_LEN: usize = 5;

/// The largest body of a message that carries data (Query, Parse, Bind, FunctionCall, CopyData, and everything from
/// the server): PostgreSQL's `PQ_LARGE_MESSAGE_LIMIT`, `MaxAllocSize - 1`.
pub const LARGE_BODY_MAX: usize = 0x3fff_ffff - 1;

/// The largest body of every other message: PostgreSQL's `PQ_SMALL_MESSAGE_LIMIT`.
pub(crate) const SMALL_BODY_MAX: usize = 10_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    pub tag: u8,
    /// Without the header.
    pub body_len: usize,
}

impl Header {
    #[must_use]
    pub const fn frame_len(self) -> usize {
        HEADER_LEN + self.body_len
    }
}

/// Reads a header off the front of `buf`; `None` if more bytes are needed.
///
/// # Errors
///
/// [`WireError::Length`] for a length below four or a body above `body_max(tag)`.
#[inline]
pub fn parse(buf: &[u8], body_max: impl FnOnce(u8) -> usize) -> Result<Option<Header>, WireError> {
    let Some(&[tag, a, b, c, d]) = buf.first_chunk::<HEADER_LEN>() else {
        return Ok(None);
    };
    let length = i32::from_be_bytes([a, b, c, d]);
    match usize::try_from(length)
        .ok()
        .and_then(|length| length.checked_sub(4))
    {
        Some(body_len) if body_len <= body_max(tag) => Ok(Some(Header { tag, body_len })),
        _ => Err(WireError::Length { tag, length }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_checked_before_they_are_trusted() {
        let header = |body_len| {
            Ok(Some(Header {
                tag: b'Q',
                body_len,
            }))
        };
        let wrong = |length| Err(WireError::Length { tag: b'Q', length });
        for (bytes, expect) in [
            (&b""[..], Ok(None)),
            (b"Q\0\0\0", Ok(None)),
            (b"Q\0\0\0\x04", header(0)),
            (b"Q\0\0\0\x68rest", header(100)),
            (b"Q\0\0\0\x69", wrong(105)),
            (b"Q\0\0\0\x03", wrong(3)),
            (b"Q\0\0\0\0", wrong(0)),
            (b"Q\xff\xff\xff\xff", wrong(-1)),
            (b"Q\x7f\xff\xff\xff", wrong(i32::MAX)),
        ] {
            assert_eq!(parse(bytes, |_| 100), expect, "{bytes:?}");
        }
    }
}
