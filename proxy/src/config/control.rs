//! The proxy's own login: the DSN, filled up from the upstream's address and the `PG*` environment.

use pgpalisade_tls::{Login, SslSettings};
use tokio_postgres::config::Host;

use super::Environment;
use super::address::UpstreamAddr;

/// Name under which the proxy shows in `pg_stat_activity`, unless the DSN says otherwise.
const APPLICATION_NAME: &str = "pgpalisade control";

/// Parses a control DSN. No error quotes the text, since it may hold a password.
pub(crate) fn parse(text: &str) -> Result<Login, String> {
    let (text, ssl) = SslSettings::take_from(text.trim())?;
    let config: tokio_postgres::Config = text.parse().map_err(|error: tokio_postgres::Error| {
        // The outer error only says "invalid connection string"; the reason below it names the parameter, not its
        // value.
        let reason = std::error::Error::source(&error).map(ToString::to_string);
        match reason {
            Some(reason)
                if reason.starts_with("unknown option")
                    || reason.starts_with("invalid value for option") =>
            {
                format!("is not a connection string: {reason}")
            }
            _ => String::from(
                "is not a connection string: write postgres://user@host:port/db or key=value pairs",
            ),
        }
    })?;
    if config.get_hosts().len() > 1 {
        return Err(String::from(
            "names several hosts: one proxy protects one primary",
        ));
    }
    Ok(Login { config, ssl })
}

/// Fills up what the DSN leaves out, as libpq does:
/// <https://www.postgresql.org/docs/current/libpq-envars.html>. The address is the upstream's rather than `PGHOST`'s:
/// a control connection to another server would end the wrong sessions, or none.
pub(crate) fn complete(
    dsn: Option<Login>,
    upstream: &UpstreamAddr,
    upstream_ssl: &SslSettings,
    environment: &Environment,
) -> Login {
    let Login {
        config: mut control,
        ssl,
    } = dsn.unwrap_or_default();
    if control.get_hosts().is_empty() && control.get_hostaddrs().is_empty() {
        let given_port = control.get_ports().first().copied();
        let port = match upstream {
            UpstreamAddr::Tcp { host, port } => {
                control.host(host);
                *port
            }
            UpstreamAddr::Unix(path) => match UpstreamAddr::socket_directory(path) {
                Some((directory, port)) => {
                    control.host_path(directory);
                    port
                }
                None => 5432,
            },
        };
        if given_port.is_none() {
            control.port(port);
        }
    }
    if control.get_user().is_none()
        && let Some(user) = environment.get("PGUSER")
    {
        control.user(user);
    }
    if control.get_password().is_none()
        && let Some(password) = environment.get("PGPASSWORD")
    {
        control.password(password);
    }
    if control.get_dbname().is_none()
        && let Some(database) = environment.get("PGDATABASE")
    {
        control.dbname(database);
    }
    if control.get_application_name().is_none() {
        control.application_name(APPLICATION_NAME);
    }
    Login {
        config: control,
        ssl: Some(ssl.unwrap_or_else(|| upstream_ssl.clone())),
    }
}

/// Where a control connection goes, without user or password. An IP address that the DSN gives wins over the name, as
/// in libpq.
pub(crate) fn address(control: &tokio_postgres::Config) -> UpstreamAddr {
    let port = control.get_ports().first().copied().unwrap_or(5432);
    let host = control.get_hostaddrs().first().map(ToString::to_string);
    match (host, control.get_hosts().first()) {
        (None, Some(Host::Unix(directory))) => {
            UpstreamAddr::Unix(directory.join(format!(".s.PGSQL.{port}")))
        }
        (None, Some(Host::Tcp(host))) => UpstreamAddr::Tcp {
            host: host.clone(),
            port,
        },
        (host, _) => UpstreamAddr::Tcp {
            host: host.unwrap_or_default(),
            port,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(pairs: &[(&str, &str)]) -> Environment {
        Environment::from_pairs(pairs.iter().map(|(k, v)| ((*k).into(), (*v).into())))
    }

    #[track_caller]
    fn check(
        dsn: Option<&str>,
        upstream: &str,
        env: &[(&str, &str)],
        expect: (&str, Option<&str>, Option<&str>),
    ) {
        let (upstream, ssl) = UpstreamAddr::parse(upstream).unwrap();
        let dsn = dsn.map(|dsn| parse(dsn).unwrap());
        let control = complete(dsn, &upstream, &ssl, &environment(env)).config;
        assert_eq!(
            (
                address(&control).to_string().as_str(),
                control.get_user(),
                control.get_dbname()
            ),
            expect
        );
    }

    #[test]
    fn filled_up_from_upstream_and_environment() {
        let pg = [
            ("PGUSER", "u"),
            ("PGDATABASE", "d"),
            ("PGHOST", "elsewhere"),
            ("PGPORT", "1"),
        ];
        check(
            None,
            "postgres://db:5433",
            &pg,
            ("db:5433", Some("u"), Some("d")),
        );
        check(
            None,
            "/run",
            &pg,
            ("/run/.s.PGSQL.5432", Some("u"), Some("d")),
        );
        check(None, "/run", &[], ("/run/.s.PGSQL.5432", None, None));
        check(
            Some("user=c"),
            "postgres://db",
            &pg,
            ("db:5432", Some("c"), Some("d")),
        );
        check(
            Some("user=c port=9"),
            "postgres://db",
            &pg,
            ("db:9", Some("c"), Some("d")),
        );
        check(
            Some("postgres://c@other:9/x"),
            "postgres://db",
            &pg,
            ("other:9", Some("c"), Some("x")),
        );
    }

    #[test]
    fn password_of_the_dsn_wins() {
        let (upstream, ssl) = UpstreamAddr::parse("/run").unwrap();
        let env = environment(&[("PGPASSWORD", "env")]);
        let control = complete(Some(parse("password=dsn").unwrap()), &upstream, &ssl, &env);
        assert_eq!(control.config.get_password(), Some(&b"dsn"[..]));
        let control = complete(None, &upstream, &ssl, &env);
        assert_eq!(control.config.get_password(), Some(&b"env"[..]));
    }

    #[test]
    fn tls_is_the_upstreams_where_the_dsn_says_nothing() {
        use pgpalisade_tls::SslMode::{Disable, Require};
        let (upstream, ssl) = UpstreamAddr::parse("postgres://db?sslmode=require").unwrap();
        let mode = |dsn: Option<&str>| {
            let dsn = dsn.map(|dsn| parse(dsn).unwrap());
            let control = complete(dsn, &upstream, &ssl, &environment(&[]));
            control.ssl.unwrap().mode
        };
        assert_eq!(mode(None), Require);
        assert_eq!(mode(Some("user=c")), Require);
        assert_eq!(mode(Some("postgres://c@other?sslmode=disable")), Disable);
    }

    #[test]
    fn refusals_do_not_show_the_password() {
        for (dsn, part) in [
            ("password=hunter2 prot=1", "unknown option"),
            ("postgres://u:hunter2@h:x/d", "is not a connection string"),
            ("password=hunter2 port=x", "port"),
            ("host=a,b password=hunter2", "several hosts"),
            ("sslmode=hunter2 password=hunter2", "unknown sslmode"),
            ("password='hunter2", "is not a connection string"),
        ] {
            let message = parse(dsn).unwrap_err();
            assert!(message.contains(part), "{dsn}: {message}");
            assert!(!message.contains("hunter2"), "{message}");
        }
    }
}
