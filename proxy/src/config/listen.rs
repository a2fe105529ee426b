//! Addresses that clients and operators connect to.

use std::path::Path;

use pgpalisade_server::listener::ListenAddr;

use super::address::{MAX_SOCKET_PATH, parse_listen};
use super::values::Values;

/// Port in the name of a socket without one, as in the default of `listen`.
const DEFAULT_PORT: u16 = 6432;

pub(super) fn parse(text: &str) -> Result<ListenAddr, String> {
    parse_with_default(text, DEFAULT_PORT)
}

pub(super) fn parse_with_default(text: &str, default_port: u16) -> Result<ListenAddr, String> {
    let text = text.trim();
    if !text.starts_with('/') {
        return parse_listen(text).map(ListenAddr::Tcp);
    }
    let (directory, port) = match text.rsplit_once(':') {
        None => (text, default_port),
        Some((directory, port)) => match port.parse() {
            Ok(port @ 1..) => (directory, port),
            _ => return Err(format!("{text:?} has no valid port: write 1 to 65535")),
        },
    };
    let path = Path::new(directory).join(format!(".s.PGSQL.{port}"));
    let len = path.as_os_str().len();
    if len > MAX_SOCKET_PATH {
        Err(format!(
            "the socket's path {} has {len} bytes, and a socket's may have {MAX_SOCKET_PATH}",
            path.display()
        ))
    } else {
        Ok(ListenAddr::Unix(path))
    }
}

/// Whether only one listener can have the address.
pub(super) const fn is_fixed(address: &ListenAddr) -> bool {
    !matches!(address, ListenAddr::Tcp(address) if address.port() == 0)
}

pub(super) fn refuse_shared(values: &mut Values<'_>, services: &[(&str, ListenAddr)]) {
    for (at, (key, address)) in services.iter().enumerate() {
        let mut before = services.iter().take(at);
        let first = before.find(|(_, other)| is_fixed(address) && other == address);
        if let Some((first, _)) = first {
            values.refuse(format!(
                "{key} and {first} have the same address, {address}: give {key} another one"
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_of_sockets() {
        let shown = |text: &str| parse(text).map(|address| address.to_string());
        assert_eq!(shown("/run/x").unwrap(), "/run/x/.s.PGSQL.6432");
        assert_eq!(shown("/run/x/:5432").unwrap(), "/run/x/.s.PGSQL.5432");
        assert_eq!(shown("[::1]:7").unwrap(), "[::1]:7");
        for wrong in [
            "/run/x:0",
            "/run/x:port",
            "/run/x:",
            "/run/x:65536",
            "run/x",
        ] {
            assert!(shown(wrong).is_err(), "{wrong}");
        }
        assert!(shown(&format!("/{}", "x".repeat(92))).is_ok());
        let error = shown(&format!("/{}", "x".repeat(93))).unwrap_err();
        assert!(error.contains("has 108 bytes"), "{error}");
    }

    #[test]
    fn what_can_be_listened_on_only_once() {
        let parse = |text| parse(text).unwrap();
        let is_fixed = |text| is_fixed(&parse(text));
        assert_eq!(parse("/run"), parse("/run/:6432"));
        assert!(is_fixed("/run") && is_fixed("127.0.0.1:1"));
        assert!(!is_fixed("127.0.0.1:0"));
    }
}
