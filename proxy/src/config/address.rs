//! Addresses of listeners and of PostgreSQL.

use std::net::SocketAddr;
use std::path::PathBuf;

use pgpalisade_server::hosts::{Hosts, UpstreamAddr};
use pgpalisade_tls::SslSettings;
use tokio_postgres::Config;
use tokio_postgres::config::Host;

use super::control;

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
    let path = PathBuf::from(&text);
    let hosts = match UpstreamAddr::socket_directory(&path) {
        _ if !text.starts_with('/') => parse_addresses(&text)?,
        Some(_) => vec![UpstreamAddr::Unix(path)],
        None => vec![UpstreamAddr::Unix(path.join(".s.PGSQL.5432"))],
    };
    for (at, host) in hosts.iter().enumerate() {
        if hosts.iter().take(at).any(|before| before == host) {
            return Err(format!("names {host} twice"));
        }
        let length = host.to_string().len();
        if matches!(host, UpstreamAddr::Unix(_)) && length > MAX_SOCKET_PATH {
            return Err(format!(
                "makes a socket path of {length} bytes; the system allows {MAX_SOCKET_PATH}"
            ));
        }
    }
    Ok((Hosts::new(hosts), ssl.unwrap_or_default()))
}

fn parse_addresses(text: &str) -> Result<Vec<UpstreamAddr>, String> {
    let schemes = ["postgres://", "postgresql://"];
    let is_url = schemes.iter().any(|scheme| text.starts_with(scheme));
    let config = text.parse::<Config>().ok().filter(|_| is_url);
    // Not quoted: it may be a DSN with a password.
    let config = config.ok_or_else(|| format!("is not an address: {FORMS}"))?;
    if config.get_user().is_some() || config.get_password().is_some() {
        return Err(String::from(
            "takes an address only: clients bring their own user; put the proxy's own login into \"control\"",
        ));
    }
    if let Some(database) = config.get_dbname() {
        return Err(format!(
            "names the database {database:?}: clients choose it themselves, leave it out"
        ));
    }
    let hosts = config.get_hosts();
    let mut plain = Config::new();
    for host in hosts {
        match host {
            Host::Tcp(name) if name.is_empty() || name.contains([' ', '%']) => {
                return Err(format!("names no host: {FORMS}"));
            }
            Host::Tcp(name) => plain.host(name),
            Host::Unix(directory) => plain.host_path(directory),
        };
    }
    for port in config.get_ports() {
        plain.port(*port);
    }
    if plain != config {
        return Err(String::from(
            "takes no parameters but host, port, sslmode, sslrootcert, sslcert and sslkey",
        ));
    }
    if hosts.is_empty() {
        return Err(format!("names no host: {FORMS}"));
    }
    control::check_ports(&config)?;
    if config.get_ports().contains(&0) {
        return Err(String::from("has the port 0: write 1 to 65535"));
    }
    Ok(control::addresses(&config).all().to_vec())
}

/// Parses an address to listen on. Port 0 lets the system choose.
pub(crate) fn parse_listen(text: &str) -> Result<SocketAddr, String> {
    // The one common name. Others would need a resolver.
    let address = text.trim().replace("localhost:", "127.0.0.1:");
    address.parse().map_err(|_| {
        format!("{text:?} is not an address to listen on: write IP:PORT, such as 127.0.0.1:6432 or [::]:6432, \
             or a directory for a unix socket")
    })
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
        upstream("postgres://db:1?sslmode=require", "db:1");
        upstream("postgres://a:1,b,[::1]:3", "a:1,b:5432,[::1]:3");
        upstream("postgres://a:1,%2Fd:2", "a:1,/d/.s.PGSQL.2");
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
        upstream_refused("postgres:///?host=a&port=1,2,3", "3 ports for 1 host");
        upstream_refused("postgres://db?port=1", "2 ports for 1 host");
        upstream_refused("postgres://db?dbname=x", "names the database \"x\"");
        upstream_refused("postgres://db?options=x", "no parameters but host, port");
        upstream_refused("postgres://db?sslmode=hunter2", "unknown sslmode");
        upstream_refused("postgres://[::1", "is not an address");
        upstream_refused("postgres://%zz", "names no host");
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
