//! Addresses of listeners and of PostgreSQL.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use pgpalisade_fence::readable::counted;
use pgpalisade_server::hosts::{Hosts, UpstreamAddr};
use pgpalisade_tls::SslSettings;

const DEFAULT_PORT: u16 = 5432;

/// Longest path of a unix socket: `sun_path` is 108 bytes with its NUL on Linux (unix(7)).
pub(super) const MAX_SOCKET_PATH: usize = 107;

const FORMS: &str = "write postgres://host:port, several as postgres://host:port,host:port, or a unix socket directory \
                     such as /var/run/postgresql";

/// Parses `postgres://host:port,host:port`, `postgres:///?host=/dir&port=5433` or `/dir`, with libpq's parameters for
/// TLS.
///
/// User, password and database are errors: clients choose them.
pub(super) fn parse_hosts(text: &str) -> Result<(Hosts, SslSettings), String> {
    let (text, ssl) = SslSettings::take_from(text.trim())?;
    let hosts = parse_addresses(&text)?;
    for (at, host) in hosts.iter().enumerate() {
        if hosts.iter().take(at).any(|before| before == host) {
            return Err(format!("names {host} twice"));
        }
    }
    Ok((Hosts::new(hosts), ssl.unwrap_or_default()))
}

fn parse_addresses(text: &str) -> Result<Vec<UpstreamAddr>, String> {
    if text.starts_with('/') {
        return Ok(vec![unix(text, DEFAULT_PORT)?]);
    }
    let url = ["postgres://", "postgresql://"]
        .iter()
        .find_map(|scheme| text.strip_prefix(scheme));
    let Some(url) = url else {
        // Not quoted: it may be a DSN with a password.
        return Err(format!("is not an address: {FORMS}"));
    };
    if url.contains('@') || url.contains("user=") || url.contains("password=") {
        return Err(String::from(
            "takes an address only: clients bring their own user; put the proxy's own login into \"control\"",
        ));
    }
    let (address, query) = url.split_once('?').unwrap_or((url, ""));
    let (authority, database) = address.split_once('/').unwrap_or((address, ""));
    if !database.is_empty() {
        return Err(format!(
            "names the database {database:?}: clients choose it themselves, leave it out"
        ));
    }
    let named = authority.split(',').map(host_and_port);
    let (mut hosts, mut ports): (Vec<_>, Vec<_>) =
        named.collect::<Result<Vec<_>, _>>()?.into_iter().unzip();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=') {
            Some(("host", value)) if matches!(hosts.as_slice(), [None]) => {
                let names = percent_decode(value)?;
                hosts = names.split(',').map(|name| Some(name.to_owned())).collect();
            }
            Some(("port", value)) if ports.iter().all(Option::is_none) => {
                let given = value.split(',').map(|port| parse_port(port).map(Some));
                ports = given.collect::<Result<_, _>>()?;
            }
            Some((name @ ("host" | "port"), _)) => return Err(format!("gives the {name} twice")),
            _ => {
                return Err(String::from(
                    "takes no parameters but host, port, sslmode, sslrootcert, sslcert and sslkey",
                ));
            }
        }
    }
    pair_up(hosts, &ports)
}

/// A single port applies to all hosts, as in libpq.
fn pair_up(hosts: Vec<Option<String>>, ports: &[Option<u16>]) -> Result<Vec<UpstreamAddr>, String> {
    if ports.len() != 1 && ports.len() != hosts.len() {
        let (hosts, ports) = (hosts.len(), ports.len());
        return Err(format!(
            "gives {} for {}",
            counted(ports, "port"),
            counted(hosts, "host")
        ));
    }
    let ports = ports.iter().chain(std::iter::repeat_n(
        ports.first().unwrap_or(&None),
        hosts.len(),
    ));
    let address = |(host, port): (Option<String>, &Option<u16>)| {
        let port = port.unwrap_or(DEFAULT_PORT);
        match host.filter(|host| !host.is_empty()) {
            Some(host) if host.starts_with('/') => unix(&host, port),
            Some(host) if host.contains([' ', '@']) => Err(format!("names no host: {FORMS}")),
            Some(host) => Ok(UpstreamAddr::Tcp { host, port }),
            None => Err(format!("names no host: {FORMS}")),
        }
    };
    hosts.into_iter().zip(ports).map(address).collect()
}

/// Parses an address to listen on. Port 0 lets the system choose.
pub(crate) fn parse_listen(text: &str) -> Result<SocketAddr, String> {
    let text = text.trim();
    // The one common name. Others would need a resolver.
    if let Some(port) = text.strip_prefix("localhost:") {
        return Ok(SocketAddr::new(
            IpAddr::V4(Ipv4Addr::LOCALHOST),
            parse_listen_port(port, text)?,
        ));
    }
    text.parse().map_err(|_| {
        format!("{text:?} is not an address to listen on: write IP:PORT, such as 127.0.0.1:6432 or [::]:6432, \
             or a directory for a unix socket")
    })
}

fn parse_listen_port(port: &str, text: &str) -> Result<u16, String> {
    port.parse()
        .map_err(|_| format!("{text:?} has no valid port: write 0 to 65535"))
}

fn host_and_port(authority: &str) -> Result<(Option<String>, Option<u16>), String> {
    if let Some(bracketed) = authority.strip_prefix('[') {
        let (host, rest) = bracketed.split_once(']').ok_or("has a [ without a ]")?;
        host.parse::<std::net::Ipv6Addr>()
            .map_err(|_| format!("[{host}] is not an IPv6 address"))?;
        return match rest.strip_prefix(':') {
            Some(port) => Ok((Some(host.to_owned()), Some(parse_port(port)?))),
            None if rest.is_empty() => Ok((Some(host.to_owned()), None)),
            None => Err(String::from("has text after the ]")),
        };
    }
    let (host, port) = match authority.split_once(':') {
        Some((host, port)) => (host, Some(parse_port(port)?)),
        None => (authority, None),
    };
    let host = percent_decode(host)?;
    Ok(((!host.is_empty()).then_some(host), port))
}

fn parse_port(text: &str) -> Result<u16, String> {
    match text.parse() {
        Ok(port) if port > 0 => Ok(port),
        _ => Err(format!("has the port {text:?}: write 1 to 65535")),
    }
}

fn unix(path: &str, port: u16) -> Result<UpstreamAddr, String> {
    let given = PathBuf::from(path);
    let file = if UpstreamAddr::socket_directory(&given).is_some() {
        given
    } else {
        given.join(format!(".s.PGSQL.{port}"))
    };
    let length = file.as_os_str().len();
    if length > MAX_SOCKET_PATH {
        return Err(format!(
            "makes a socket path of {length} bytes; the system allows {MAX_SOCKET_PATH}"
        ));
    }
    Ok(UpstreamAddr::Unix(file))
}

/// Decodes `%2F` and the like (RFC 3986, section 2.1).
fn percent_decode(text: &str) -> Result<String, String> {
    pgpalisade_tls::percent_decode(text)
        .ok_or_else(|| String::from("has a % that does not begin two hexadecimal digits of UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn upstream(text: &str, expect: &str) {
        match parse_hosts(text) {
            Ok((address, _)) => assert_eq!(address.to_string(), expect, "{text}"),
            Err(message) => panic!("{text}: {message}"),
        }
    }

    #[track_caller]
    fn upstream_refused(text: &str, part: &str) {
        let message = parse_hosts(text).unwrap_err();
        assert!(message.contains(part), "{text}: {message}");
        assert!(!message.contains("hunter2"), "{message} shows the password");
    }

    #[test]
    fn upstream_forms() {
        upstream("postgres://db.example:5433", "db.example:5433");
        upstream("postgresql://db.example", "db.example:5432");
        upstream("postgres://db.example:5433/", "db.example:5433");
        upstream("postgres://127.0.0.1", "127.0.0.1:5432");
        upstream("postgres://[::1]:5433", "[::1]:5433");
        upstream("postgres://[::1]", "[::1]:5432");
        upstream("/var/run/postgresql", "/var/run/postgresql/.s.PGSQL.5432");
        upstream("/run/.s.PGSQL.7000", "/run/.s.PGSQL.7000");
        upstream("postgres:///?host=/dir&port=5433", "/dir/.s.PGSQL.5433");
        upstream("postgres:///?host=%2Fdir", "/dir/.s.PGSQL.5432");
        upstream("postgres://%2Frun%2Fpg:5433", "/run/pg/.s.PGSQL.5433");
        upstream("postgres://?host=db&port=1", "db:1");
        upstream("postgres://db?sslmode=require&port=1", "db:1");
        upstream("postgres://a:1,b,[::1]:3", "a:1,b:5432,[::1]:3");
        upstream("postgres://a,b?port=1", "a:1,b:1");
        upstream("postgres:///?host=a,/d&port=1,2", "a:1,/d/.s.PGSQL.2");
    }

    #[test]
    fn upstream_refusals() {
        upstream_refused("db.example:5432", "write postgres://host:port");
        upstream_refused("host=db password=hunter2", "is not an address");
        upstream_refused("postgres://me:hunter2@db", "address only");
        upstream_refused("postgres:///?host=db&password=hunter2", "address only");
        upstream_refused("postgres://db/app", "names the database \"app\"");
        upstream_refused("postgres://", "names no host");
        upstream_refused("postgres://:5432", "names no host");
        upstream_refused("postgres://db:0", "port");
        upstream_refused("postgres://db:65536", "port");
        upstream_refused("postgres://a,,b", "names no host");
        upstream_refused("postgres://a,b:1,a", "names a:5432 twice");
        upstream_refused("postgres:///?host=a,b&port=1,2,3", "3 ports for 2 hosts");
        upstream_refused("postgres://db?host=other", "host twice");
        upstream_refused("postgres://db?dbname=x", "no parameters but host, port");
        upstream_refused("postgres://db?sslmode=hunter2", "unknown sslmode");
        upstream_refused("postgres://[::1", "without a ]");
        upstream_refused("postgres://%zz", "hexadecimal");
        upstream_refused(&format!("/{}", "d".repeat(100)), "socket path of 115 bytes");
    }

    #[test]
    fn listen_addresses() {
        let show = |text: &str| parse_listen(text).map(|address| address.to_string());
        assert_eq!(show("0.0.0.0:6432").as_deref(), Ok("0.0.0.0:6432"));
        assert_eq!(show("[::1]:0").as_deref(), Ok("[::1]:0"));
        assert_eq!(show("localhost:6432").as_deref(), Ok("127.0.0.1:6432"));
        for wrong in [
            "6432",
            "127.0.0.1",
            ":6432",
            "db.example:1",
            "localhost:x",
            "1.2.3.4:65536",
        ] {
            assert!(show(wrong).is_err(), "{wrong}");
        }
    }
}
