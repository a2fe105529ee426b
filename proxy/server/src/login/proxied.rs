//! The PROXY protocol, versions 1 and 2: a trusted load balancer sends the client's address first.
//!
//! Source: <https://www.haproxy.org/download/2.9/doc/proxy-protocol.txt>

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use bytes::{Buf, BytesMut};
use pgpalisade_logins::ClientAddr;

use super::{LoginError, Silence};
use crate::transport::Socket;

/// Length limit of a version 1 line, with its end.
const LINE_MAX: usize = 107;

/// Length limit of a version 2 header: up to 216 bytes of addresses, and further fields.
const HEADER_MAX: usize = 4096;

const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

/// Whether these bytes, at least four, begin a header.
pub(super) fn is_header(bytes: &[u8]) -> bool {
    parse(bytes) != Header::Nonsense || bytes.starts_with(b"PROX")
}

#[derive(Debug, PartialEq, Eq)]
enum Header {
    Incomplete,
    /// A header's length, and the client's address if the header has one.
    Whole(usize, Option<SocketAddr>),
    Nonsense,
}

/// Reads the header, and returns the client's address. The caller bounds the wait.
pub(super) async fn read(
    client: &mut Socket,
    carry: &mut BytesMut,
    peer: ClientAddr,
) -> Result<ClientAddr, LoginError> {
    loop {
        match parse(carry) {
            Header::Whole(len, address) => {
                carry.advance(len);
                return Ok(address.map_or(peer, ClientAddr::Tcp));
            }
            Header::Incomplete => {
                let read = client.read_more(carry).await;
                read.map_err(LoginError::of_client)?;
            }
            Header::Nonsense => return Err(LoginError::NoStartup(Silence::NoProxyHeader)),
        }
    }
}

fn parse(bytes: &[u8]) -> Header {
    let begins = |with: &[u8]| with.iter().zip(bytes).all(|(a, b)| a == b);
    if begins(SIGNATURE) {
        parse_binary(bytes).unwrap_or(Header::Nonsense)
    } else if begins(b"PROXY ") {
        parse_line(bytes)
    } else {
        Header::Nonsense
    }
}

/// Version 1: `PROXY TCP4 SOURCE DESTINATION SOURCE-PORT DESTINATION-PORT`, or `PROXY UNKNOWN` and anything.
fn parse_line(bytes: &[u8]) -> Header {
    let front = bytes.get(..LINE_MAX).unwrap_or(bytes);
    let Some(end) = front.windows(2).position(|pair| pair == b"\r\n") else {
        return if bytes.len() < LINE_MAX {
            Header::Incomplete
        } else {
            Header::Nonsense
        };
    };
    let line = bytes.get(..end).and_then(|line| str::from_utf8(line).ok());
    let words: Vec<&str> = line.unwrap_or_default().split(' ').collect();
    let address = match words.as_slice() {
        ["PROXY", "UNKNOWN", ..] => Some(None),
        ["PROXY", "TCP4", words @ ..] => written_source::<Ipv4Addr>(words).map(Some),
        ["PROXY", "TCP6", words @ ..] => written_source::<Ipv6Addr>(words).map(Some),
        _ => None,
    };
    address.map_or(Header::Nonsense, |address| Header::Whole(end + 2, address))
}

fn written_source<A: FromStr + Into<IpAddr>>(words: &[&str]) -> Option<SocketAddr> {
    let [source, to, port, to_port] = words else {
        return None;
    };
    let source = SocketAddr::new(source.parse::<A>().ok()?.into(), port.parse().ok()?);
    let is_sound = to.parse::<A>().is_ok() && to_port.parse::<u16>().is_ok();
    is_sound.then_some(source)
}

fn parse_binary(bytes: &[u8]) -> Option<Header> {
    let Some((front, rest)) = bytes.split_first_chunk::<16>() else {
        return Some(Header::Incomplete);
    };
    let &[.., command, family, high, low] = front;
    let len = usize::from(u16::from_be_bytes([high, low]));
    if front.len() + len > HEADER_MAX {
        return None;
    }
    let Some(body) = rest.get(..len) else {
        return Some(Header::Incomplete);
    };
    let address = match (command, family) {
        // The load balancer's own connection, a health check.
        (0x20, _) => None,
        (0x21, 0x11) => Some(binary_source::<4>(body)?),
        (0x21, 0x21) => Some(binary_source::<16>(body)?),
        // A protocol other than TCP, or none given.
        (0x21, 0x00 | 0x31) => None,
        _ => return None,
    };
    Some(Header::Whole(front.len() + len, address))
}

fn binary_source<const N: usize>(body: &[u8]) -> Option<SocketAddr>
where
    IpAddr: From<[u8; N]>,
{
    let (source, rest) = body.split_first_chunk::<N>()?;
    let (_, ports) = rest.split_first_chunk::<N>()?;
    let [high, low, _, _] = *ports.first_chunk()?;
    let port = u16::from_be_bytes([high, low]);
    Some(SocketAddr::new(IpAddr::from(*source), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(header: &[u8], address: Option<&str>) {
        let expect = Header::Whole(header.len(), address.map(|text| text.parse().unwrap()));
        let with_more = [header, b"\0\0\0\x08"].concat();
        assert_eq!(parse(&with_more), expect);
        for end in 0..header.len() {
            assert_eq!(parse(&header[..end]), Header::Incomplete, "{end}");
        }
    }

    fn binary(command: u8, family: u8, body: &[u8]) -> Vec<u8> {
        let len = u16::try_from(body.len()).unwrap().to_be_bytes();
        [SIGNATURE, &[command, family], &len, body].concat()
    }

    #[test]
    fn lines() {
        whole(
            b"PROXY TCP4 10.1.2.3 10.0.0.1 5000 6432\r\n",
            Some("10.1.2.3:5000"),
        );
        whole(
            b"PROXY TCP6 fd00::1 fd00::2 1 65535\r\n",
            Some("[fd00::1]:1"),
        );
        whole(b"PROXY UNKNOWN\r\n", None);
        whole(b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n", None);
        for wrong in [
            "PROXY TCP4 fd00::1 10.0.0.1 1 2\r\n",
            "PROXY TCP6 10.0.0.1 10.0.0.1 1 2\r\n",
            "PROXY TCP4 10.0.0.1 db 1 2\r\n",
            "PROXY TCP4 10.0.0.1 10.0.0.1 1 65536\r\n",
            "PROXY TCP4 10.0.0.1 10.0.0.1 1\r\n",
            "PROXY TCP4 10.0.0.1 10.0.0.1 1 2 3\r\n",
            "PROXY TCP4  10.0.0.1 10.0.0.1 1 2\r\n",
            "PROXY UDP4 10.0.0.1 10.0.0.1 1 2\r\n",
            "proxy tcp4",
            "GET / HTTP/1.1\r\n",
            "\0\0\0\x08",
        ] {
            assert_eq!(parse(wrong.as_bytes()), Header::Nonsense, "{wrong}");
        }
        let long = [b"PROXY UNKNOWN ".as_slice(), &[b'x'; 200]].concat();
        assert_eq!(parse(&long[..LINE_MAX - 1]), Header::Incomplete);
        assert_eq!(parse(&long[..LINE_MAX]), Header::Nonsense);
    }

    #[test]
    fn binary_headers() {
        let v4 = [10, 1, 2, 3, 10, 0, 0, 1, 0x13, 0x88, 0x19, 0x20];
        whole(&binary(0x21, 0x11, &v4), Some("10.1.2.3:5000"));
        let more = [&v4[..], b"\x04\0\x01x"].concat();
        whole(&binary(0x21, 0x11, &more), Some("10.1.2.3:5000"));
        let mut v6 = [0; 36];
        (v6[0], v6[15], v6[33]) = (0xfd, 1, 7);
        whole(&binary(0x21, 0x21, &v6), Some("[fd00::1]:7"));
        whole(&binary(0x20, 0x11, &v4), None);
        whole(&binary(0x20, 0x00, &[]), None);
        whole(&binary(0x21, 0x00, b"anything"), None);
        whole(&binary(0x21, 0x31, &[b'/'; 230]), None);
        for wrong in [
            binary(0x21, 0x11, &v4[..11]),
            binary(0x21, 0x21, &v6[..35]),
            binary(0x21, 0x12, &v4),
            binary(0x22, 0x11, &v4),
            binary(0x11, 0x11, &v4),
            binary(0x21, 0x00, &[0; HEADER_MAX]),
        ] {
            assert_eq!(parse(&wrong), Header::Nonsense, "{wrong:?}");
        }
        // The length is refused before its bytes arrive.
        let long = binary(0x21, 0x00, &[0; HEADER_MAX - 15]);
        assert_eq!(parse(&long[..16]), Header::Nonsense);
        whole(&binary(0x21, 0x00, &[0; HEADER_MAX - 16]), None);
    }
}
