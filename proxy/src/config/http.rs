//! Where the proxy answers over HTTP: the keys `http` and `http_token_file`, which have to fit each other.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::address::parse_listen;
use super::key::Key;
use super::ready::path;
use super::values::Values;

/// Where, and to whom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HttpAddr {
    /// Port 0 lets the system choose.
    pub address: SocketAddr,
    /// The file of the token that has to be shown. Without it, an address of this machine.
    pub token_file: Option<PathBuf>,
}

impl HttpAddr {
    /// Both keys together: `Some(None)` where there is no HTTP.
    #[expect(clippy::option_option, reason = "no good value, and none at all")]
    pub(super) fn read(values: &mut Values<'_>) -> Option<Option<Self>> {
        let address = values.last(Key::Http, address);
        let token_file = values.last(Key::HttpTokenFile, path);
        let together = fit(address, token_file);
        together.map_err(|message| values.refuse(message)).ok()
    }
}

fn address(text: &str) -> Result<SocketAddr, String> {
    let example = |_| format!("{text:?} is not an address: write IP:PORT, such as 127.0.0.1:6434");
    parse_listen(text).map_err(example)
}

fn fit(
    address: Option<SocketAddr>,
    token_file: Option<PathBuf>,
) -> Result<Option<HttpAddr>, String> {
    match (address, token_file) {
        (None, None) => Ok(None),
        (None, Some(_)) => Err(String::from(
            "http_token_file is set, and http is not: write where to listen, such as http = \"127.0.0.1:6434\"",
        )),
        (Some(address), None) if !address.ip().is_loopback() => Err(format!(
            "http listens on {address}, which other machines may reach, and anybody there could read it: set \
             http_token_file, or listen on 127.0.0.1:{}",
            address.port()
        )),
        (Some(address), token_file) => Ok(Some(HttpAddr {
            address,
            token_file,
        })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_token_only_this_machine_may_ask() {
        let fit = |address: Option<&str>, file: Option<&str>| {
            fit(
                address.map(|text| text.parse().unwrap()),
                file.map(PathBuf::from),
            )
        };
        assert_eq!(fit(None, None), Ok(None));
        for local in ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1"] {
            assert!(fit(Some(local), None).is_ok(), "{local}");
        }
        for open in ["0.0.0.0:1", "10.0.0.1:1", "[::]:1", "[::ffff:127.0.0.1]:1"] {
            let error = fit(Some(open), None).unwrap_err();
            assert!(error.contains("set http_token_file"), "{error}");
            assert!(fit(Some(open), Some("/token")).is_ok(), "{open}");
        }
        let error = fit(None, Some("/token")).unwrap_err();
        assert!(error.contains("http is not"), "{error}");
    }
}
