//! The packets before a session: SSLRequest, GSSENCRequest, CancelRequest, StartupMessage.
//!
//! Source: <https://www.postgresql.org/docs/current/protocol-flow.html#PROTOCOL-FLOW-START-UP>

use std::borrow::Cow;
use std::fmt;
use std::ops::RangeInclusive;

use bytes::{BufMut, BytesMut};

use super::{WireError, split_cstr};

/// Largest startup packet, with its length word; PostgreSQL's `MAX_STARTUP_PACKET_LENGTH` is without it.
pub const STARTUP_PACKET_MAX: usize = 10_004;

/// The longest name of a role or database: `NAMEDATALEN - 1` bytes.
const NAME_MAX: usize = 63;

/// Header, process id and a key of 4 to 256 bytes:
/// <https://www.postgresql.org/docs/current/protocol-message-formats.html#PROTOCOL-MESSAGE-FORMATS-CANCELREQUEST>
const CANCEL_REQUEST_LEN: RangeInclusive<usize> = 16..=268;

const PROTOCOL_3_0: u32 = 3 << 16;
const CANCEL_REQUEST: u32 = 80_877_102;
const SSL_REQUEST: u32 = 80_877_103;
const GSSENC_REQUEST: u32 = 80_877_104;

/// A packet before a session. Borrows its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartupPacket<'a> {
    SslRequest,
    GssEncRequest,
    CancelRequest,
    Startup(StartupMessage<'a>),
    /// Another major version, which no server supports.
    OtherVersion(Version),
}

/// Unsupported version of the protocol, or a request that is out of place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Version(u32);

impl Version {
    /// A second SSLRequest.
    pub const SSL_REQUEST: Self = Self(SSL_REQUEST);
    /// A second GSSENCRequest.
    pub const GSSENC_REQUEST: Self = Self(GSSENC_REQUEST);

    const fn major(self) -> u32 {
        self.0 >> 16
    }

    /// Whether its clients read an error as one text, as before protocol 3. PostgreSQL answers version 0.0 as today's
    /// (`send_message_to_frontend` in `elog.c`).
    #[must_use]
    pub const fn has_plain_errors(self) -> bool {
        self.major() < 3 && self.0 != 0
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major(), self.0 & 0xffff)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StartupMessage<'a> {
    packet: &'a [u8],
}

/// Length of the packet at the front of `buf`, with its length word; `None` if more bytes are needed.
///
/// # Errors
///
/// [`WireError::Length`] below 8 bytes or above [`STARTUP_PACKET_MAX`].
pub fn packet_len(buf: &[u8]) -> Result<Option<usize>, WireError> {
    let Some(word) = buf.first_chunk::<4>() else {
        return Ok(None);
    };
    let length = i32::from_be_bytes(*word);
    match usize::try_from(length) {
        Ok(len) if (8..=STARTUP_PACKET_MAX).contains(&len) => Ok(Some(len)),
        _ => Err(WireError::Length { tag: 0, length }),
    }
}

/// Reads one whole packet of [`packet_len`] bytes.
///
/// # Errors
///
/// [`WireError::Malformed`] for a packet that is not a startup packet, [`WireError::Length`] for a request of a wrong
/// length.
pub fn parse(packet: &[u8]) -> Result<StartupPacket<'_>, WireError> {
    let malformed = WireError::Malformed(0);
    let Some(&[_, _, _, _, a, b, c, d]) = packet.first_chunk::<8>() else {
        return Err(malformed);
    };
    match u32::from_be_bytes([a, b, c, d]) {
        CANCEL_REQUEST if CANCEL_REQUEST_LEN.contains(&packet.len()) => {
            Ok(StartupPacket::CancelRequest)
        }
        SSL_REQUEST if packet.len() == 8 => Ok(StartupPacket::SslRequest),
        GSSENC_REQUEST if packet.len() == 8 => Ok(StartupPacket::GssEncRequest),
        CANCEL_REQUEST | SSL_REQUEST | GSSENC_REQUEST => Err(bad_length(packet.len())),
        version if Version(version).major() == 3 => {
            let message = StartupMessage { packet };
            // The list must end with an empty name exactly at the end of the packet.
            match message.parameters().last() {
                Some(Parameter::End) => Ok(StartupPacket::Startup(message)),
                _ => Err(malformed),
            }
        }
        version => Ok(StartupPacket::OtherVersion(Version(version))),
    }
}

/// The key of a CancelRequest, as the body of BackendKeyData had it.
#[must_use]
pub fn cancel_key(packet: &[u8]) -> Option<&[u8]> {
    match parse(packet) {
        Ok(StartupPacket::CancelRequest) => packet.get(8..),
        _ => None,
    }
}

/// A CancelRequest with the key of a BackendKeyData body.
#[must_use]
pub fn cancel_request(key: &[u8]) -> BytesMut {
    let mut packet = begun(CANCEL_REQUEST);
    packet.put_slice(key);
    ended(packet)
}

/// The user of a startup packet.
#[must_use]
pub fn user(packet: &[u8]) -> &[u8] {
    match parse(packet) {
        Ok(StartupPacket::Startup(message)) => message.get("user").unwrap_or_default(),
        _ => &[],
    }
}

/// A packet without its length.
fn begun(code: u32) -> BytesMut {
    let mut packet = BytesMut::from(&[0; 4][..]);
    packet.put_u32(code);
    packet
}

/// Writes the length of a packet.
fn ended(mut packet: BytesMut) -> BytesMut {
    let len = u32::try_from(packet.len()).unwrap_or(u32::MAX);
    for (byte, len) in packet.iter_mut().zip(len.to_be_bytes()) {
        *byte = len;
    }
    packet
}

fn bad_length(len: usize) -> WireError {
    WireError::Length {
        tag: 0,
        length: i32::try_from(len).unwrap_or(i32::MAX),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Parameter<'a> {
    Pair(&'a [u8], &'a [u8]),
    End,
}

impl<'a> StartupMessage<'a> {
    fn parameters(self) -> impl Iterator<Item = Parameter<'a>> {
        let mut rest = self.packet.get(8..);
        std::iter::from_fn(move || {
            let body = rest.take()?;
            if body == [0] {
                return Some(Parameter::End);
            }
            let (name, body) = split_cstr(body).filter(|(name, _)| !name.is_empty())?;
            let (value, body) = split_cstr(body)?;
            rest = Some(body);
            Some(Parameter::Pair(name, value))
        })
    }

    /// In the client's order, duplicates included.
    pub fn pairs(self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
        self.parameters().filter_map(|parameter| match parameter {
            Parameter::Pair(name, value) => Some((name, value)),
            Parameter::End => None,
        })
    }

    /// The value of a parameter of the protocol (`user`, `database`, ...). The last one counts.
    #[must_use]
    pub fn get(self, name: &str) -> Option<&'a [u8]> {
        self.pairs()
            .filter(|(found, _)| *found == name.as_bytes())
            .last()
            .map(|(_, value)| value)
    }

    /// The minor version that the client asks for.
    pub(crate) fn minor(self) -> u16 {
        let minor = self
            .packet
            .get(6..8)
            .and_then(|minor| minor.try_into().ok());
        minor.map_or(0, u16::from_be_bytes)
    }

    /// Length of the secret that a PostgreSQL puts into the BackendKeyData of this client.
    #[must_use]
    pub fn secret_len(self) -> usize {
        if self.minor() < 2 { 4 } else { 32 }
    }

    /// A packet of protocol 3.0 with some of the parameters, and another value for some.
    #[must_use]
    pub fn with_only(self, kept: impl Fn(&[u8], &'a [u8]) -> Option<Cow<'a, [u8]>>) -> BytesMut {
        let mut packet = begun(PROTOCOL_3_0);
        for (name, value) in self.pairs() {
            let Some(value) = kept(name, value) else {
                continue;
            };
            for text in [name, &value] {
                packet.put_slice(text);
                packet.put_u8(0);
            }
        }
        packet.put_u8(0);
        ended(packet)
    }

    #[must_use]
    pub const fn packet(self) -> &'a [u8] {
        self.packet
    }

    /// Appends a parameter, which overrides all earlier ones: the server applies `options` first, and then the other
    /// parameters in order.
    ///
    /// # Errors
    ///
    /// [`WireError::Length`] if the packet would exceed [`STARTUP_PACKET_MAX`].
    pub fn with_parameter(self, name: &str, value: &[u8]) -> Result<BytesMut, WireError> {
        let list = self
            .packet
            .get(4..self.packet.len().saturating_sub(1))
            .unwrap_or_default();
        let len = 4 + list.len() + name.len() + 1 + value.len() + 1 + 1;
        if len > STARTUP_PACKET_MAX {
            return Err(bad_length(len));
        }
        let mut packet = BytesMut::with_capacity(len);
        packet.put_i32(i32::try_from(len).unwrap_or(i32::MAX));
        packet.put_slice(list);
        for text in [name.as_bytes(), value] {
            packet.put_slice(text);
            packet.put_u8(0);
        }
        packet.put_u8(0);
        Ok(packet)
    }

    /// Packet with user and database cut to [`NAME_MAX`] bytes; `None` if neither is longer. PostgreSQL cuts both,
    /// even in the middle of a character (`ProcessStartupPacket` in `postmaster.c` of 15, `backend_startup.c` since
    /// 17).
    pub fn with_names_cut(self) -> Result<Option<BytesMut>, WireError> {
        let mut cut = None;
        for name in ["user", "database"] {
            let value = self.get(name).unwrap_or_default();
            if let Some((front, [_, ..])) = value.split_at_checked(NAME_MAX) {
                let packet = cut.as_deref().unwrap_or(self.packet);
                cut = Some(StartupMessage { packet }.with_parameter(name, front)?);
            }
        }
        Ok(cut)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(code: u32, body: &[u8]) -> Vec<u8> {
        let mut packet = Vec::new();
        packet.extend_from_slice(&(8 + body.len() as u32).to_be_bytes());
        packet.extend_from_slice(&code.to_be_bytes());
        packet.extend_from_slice(body);
        packet
    }

    #[test]
    fn lengths_are_bounded() {
        for (word, expect) in [
            (7, None),
            (8, Some(8)),
            (10_004, Some(10_004)),
            (10_005, None),
            (-1, None),
        ] {
            let bytes = i32::to_be_bytes(word);
            assert_eq!(packet_len(&bytes).ok().flatten(), expect, "{word}");
        }
        assert_eq!(packet_len(b"\0\0\0"), Ok(None));
    }

    #[test]
    fn requests_are_told_apart() {
        assert_eq!(
            parse(&packet(80_877_103, b"")),
            Ok(StartupPacket::SslRequest)
        );
        assert_eq!(
            parse(&packet(80_877_104, b"")),
            Ok(StartupPacket::GssEncRequest)
        );
        assert_eq!(
            parse(&packet(80_877_102, &[0; 8])),
            Ok(StartupPacket::CancelRequest)
        );
        // Protocol 3.2 has keys of up to 256 bytes.
        assert_eq!(
            parse(&packet(80_877_102, &[0; 260])),
            Ok(StartupPacket::CancelRequest)
        );
    }

    /// A request of a wrong length is refused, not another version.
    #[test]
    fn requests_have_their_length() {
        for (code, body) in [
            (80_877_102, 0),
            (80_877_102, 7),
            (80_877_102, 261),
            (80_877_102, 9_000),
            (80_877_103, 1),
            (80_877_103, 8),
            (80_877_104, 1),
            (80_877_104, 9_000),
        ] {
            let parsed = parse(&packet(code, &vec![0; body])).unwrap_err();
            assert!(matches!(parsed, WireError::Length { .. }), "{code} {body}");
        }
    }

    #[test]
    fn other_versions_are_named() {
        for (code, named, has_plain_errors) in [
            (0, "0.0", false),
            (1, "0.1", true),
            (2 << 16, "2.0", true),
            (4 << 16 | 7, "4.7", false),
            (80_877_101, "1234.5677", false),
            (u32::MAX, "65535.65535", false),
        ] {
            let Ok(StartupPacket::OtherVersion(version)) = parse(&packet(code, b"anything")) else {
                panic!("{code}")
            };
            assert_eq!(version.to_string(), named);
            assert_eq!(version.has_plain_errors(), has_plain_errors, "{named}");
        }
    }

    #[test]
    fn names_are_cut_as_by_postgres() {
        let cut = |list: &str| {
            let bytes = packet(3 << 16, list.as_bytes());
            let Ok(StartupPacket::Startup(message)) = parse(&bytes) else {
                panic!("not a startup: {list:?}")
            };
            let cut = message.with_names_cut().unwrap()?;
            let Ok(StartupPacket::Startup(message)) = parse(&cut) else {
                panic!("not a startup any more: {list:?}")
            };
            let text = |name| message.get(name).map(<[u8]>::to_vec).unwrap_or_default();
            Some((text("user"), text("database")))
        };
        let (long, cut_long) = ("n".repeat(64), "n".repeat(63).into_bytes());
        let fits = "n".repeat(63);
        assert_eq!(cut(&format!("user\0{fits}\0database\0{fits}\0\0")), None);
        // The last one counts.
        assert_eq!(cut(&format!("user\0{long}\0user\0a\0\0")), None);
        assert_eq!(cut(&format!("application_name\0{long}\0user\0a\0\0")), None);
        let both = format!("user\0{long}\0database\0{long}more\0\0");
        assert_eq!(cut(&both), Some((cut_long.clone(), cut_long.clone())));
        let one = format!("database\0{long}\0user\0a\0\0");
        assert_eq!(cut(&one), Some((b"a".to_vec(), cut_long)));
        let character = format!("user\0{}\u{e4}\0\0", "n".repeat(62));
        let half = [&[b'n'; 62][..], &[0xc3]].concat();
        assert_eq!(cut(&character), Some((half, Vec::new())));
    }

    #[test]
    fn parameters_keep_order_and_the_last_one_counts() {
        let bytes = packet(3 << 16, b"user\0a\0options\0-c x=1\0user\0b\0\0");
        let Ok(StartupPacket::Startup(message)) = parse(&bytes) else {
            panic!("not a startup")
        };
        assert_eq!(message.pairs().count(), 3);
        assert_eq!(message.get("user"), Some(&b"b"[..]));
        assert_eq!(message.get("database"), None);
        let more = message.with_parameter("k", b"v").unwrap();
        assert_eq!(
            &more[..],
            &packet(3 << 16, b"user\0a\0options\0-c x=1\0user\0b\0k\0v\0\0")[..]
        );
    }

    #[test]
    fn some_parameters_of_any_protocol() {
        let bytes = packet(3 << 16 | 2, b"user\0a\0_pq_.x\0on\0k\0v\0k\0w\0\0");
        let Ok(StartupPacket::Startup(message)) = parse(&bytes) else {
            panic!("not a startup")
        };
        let kept = message.with_only(|name, value| match name {
            b"user" => Some(Cow::Borrowed(&b"b"[..])),
            name => (!name.starts_with(b"_pq_.")).then_some(Cow::Borrowed(value)),
        });
        assert_eq!(kept, packet(3 << 16, b"user\0b\0k\0v\0k\0w\0\0")[..]);
        assert_eq!(
            (user(&kept), user(&packet(3 << 16, b"\0"))),
            (&b"b"[..], &b""[..])
        );
        assert_eq!(user(&kept[..9]), b"");
    }

    #[test]
    fn cancel_requests_carry_keys() {
        for key in [&b"pid_keys"[..], &[7; 260]] {
            let request = cancel_request(key);
            assert_eq!(request, packet(80_877_102, key)[..]);
            assert_eq!(cancel_key(&request), Some(key));
        }
        assert_eq!(cancel_key(&cancel_request(b"short")), None);
        assert_eq!(cancel_key(&packet(3 << 16, b"user\0a\0\0")), None);
    }

    #[test]
    fn a_list_must_end_where_the_packet_ends() {
        for bad in [
            &b""[..],
            b"user",
            b"user\0a",
            b"user\0a\0",
            b"user\0a\0\0x",
            b"user\0\0",
        ] {
            assert!(parse(&packet(3 << 16, bad)).is_err(), "{bad:?}");
        }
        assert!(parse(&packet(3 << 16, b"\0")).is_ok());
        let full = packet(3 << 16, &[b"user\0", &[b'x'; 9974][..], b"\0\0"].concat());
        let Ok(StartupPacket::Startup(message)) = parse(&full) else {
            panic!("not a startup")
        };
        assert!(
            message
                .with_parameter("default_transaction_read_only", b"on")
                .is_err()
        );
    }
}
