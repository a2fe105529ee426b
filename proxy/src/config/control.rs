//! The proxy's own login: the DSN, completed from the upstream's address and the `PG*` environment.

use pgpalisade_fence::readable::counted;
use pgpalisade_server::hosts::{Hosts, UpstreamAddr};
use pgpalisade_tls::{Login, SslSettings};
use tokio_postgres::Config;
use tokio_postgres::config::Host;

use super::Environment;

/// Name of the proxy in `pg_stat_activity`, unless the DSN has one.
const APPLICATION_NAME: &str = "pgpalisade control";
const DEFAULT_PORT: u16 = 5432;

/// Parses a control DSN. Errors never quote it, since it may hold a password.
pub(crate) fn parse(text: &str) -> Result<Login, String> {
    let login = Login::parse(text.trim(), "key=value pairs")?;
    let config = &login.config;
    check_ports(config)?;
    let hosts = config.get_hosts().len();
    let addresses = config.get_hostaddrs().len();
    if addresses > 0 && hosts > 0 && addresses != hosts {
        return Err(format!(
            "gives {} for {}",
            counted(addresses, "hostaddr"),
            counted(hosts, "host")
        ));
    }
    Ok(login)
}

pub(super) fn check_ports(config: &Config) -> Result<(), String> {
    let (hosts, ports) = (config.get_hosts().len(), config.get_ports().len());
    if ports > 1 && ports != hosts {
        return Err(format!(
            "gives {} for {}",
            counted(ports, "port"),
            counted(hosts, "host")
        ));
    }
    Ok(())
}

/// Parses a DSN of one server for a client's session. Missing parts come from `PGHOST`, `PGPORT`, `PGUSER`,
/// `PGPASSWORD`, `PGDATABASE` and `PGOPTIONS`, and TLS from `PGSSLMODE` and its files, as in libpq:
/// <https://www.postgresql.org/docs/current/libpq-envars.html>. Errors never quote the text.
pub(crate) fn parse_for_client(
    text: &str,
    application_name: &str,
    environment: &Environment,
) -> Result<Login, String> {
    let mut login = parse(text)?;
    let config = &mut login.config;
    if config.get_hosts().len() > 1 {
        return Err(String::from("names several hosts"));
    }
    if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
        let host = environment.get("PGHOST");
        config.host(host.ok_or("names no host, and PGHOST is not set")?);
    }
    if config.get_ports().is_empty() {
        let port = environment
            .get("PGPORT")
            .map_or(Ok(DEFAULT_PORT), str::parse);
        config.port(port.map_err(|_| "names no port, and PGPORT is not a port")?);
    }
    if config.get_options().is_none()
        && let Some(options) = environment.get("PGOPTIONS")
    {
        config.options(options);
    }
    fill_up(config, environment, application_name);
    if login.ssl.is_none() {
        let ssl = SslSettings::from_variables(|name| environment.get(name));
        login.ssl = ssl.map_err(|why| format!("leaves TLS to PGSSLMODE, which {why}"))?;
    }
    Ok(login)
}

/// Adds the user, the database and the application name that the DSN leaves out.
fn fill_up(config: &mut Config, environment: &Environment, application_name: &str) {
    let fill = |name: &str, missing: bool| environment.get(name).filter(|_| missing);
    if let Some(user) = fill("PGUSER", config.get_user().is_none()) {
        config.user(user);
    }
    if let Some(password) = fill("PGPASSWORD", config.get_password().is_none()) {
        config.password(password);
    }
    if let Some(database) = fill("PGDATABASE", config.get_dbname().is_none()) {
        config.dbname(database);
    }
    if config.get_application_name().is_none() {
        config.application_name(application_name);
    }
}

/// Adds what the DSN leaves out, as libpq does: <https://www.postgresql.org/docs/current/libpq-envars.html>. The
/// address is the upstream's, not `PGHOST`: a control connection to another server would end the wrong sessions.
/// Hosts of the DSN are those of the upstream, in the same order.
///
/// # Errors
///
/// If the numbers of hosts differ.
pub(crate) fn complete(
    dsn: Option<Login>,
    upstream: &Hosts,
    upstream_ssl: &SslSettings,
    environment: &Environment,
) -> Result<Login, String> {
    let dsn = dsn.unwrap_or_default();
    let (mut control, ssl) = (dsn.config, dsn.ssl);
    if control.get_hosts().is_empty() && control.get_hostaddrs().is_empty() {
        let is_port_given = !control.get_ports().is_empty();
        for host in upstream.all() {
            let port = name_host(&mut control, host);
            if !is_port_given {
                control.port(port);
            }
        }
    }
    let (theirs, ours) = (upstream.all().len(), addresses(&control).all().len());
    if theirs != ours {
        return Err(format!(
            "control names {} and upstream {theirs}: name the same hosts in the same order, or leave them out of \
             control",
            counted(ours, "host")
        ));
    }
    fill_up(&mut control, environment, APPLICATION_NAME);
    Ok(Login {
        config: control,
        ssl: Some(ssl.unwrap_or_else(|| upstream_ssl.clone())),
    })
}

fn name_host(control: &mut Config, host: &UpstreamAddr) -> u16 {
    match host {
        UpstreamAddr::Tcp { host, port } => {
            control.host(host);
            *port
        }
        UpstreamAddr::Unix(path) => match UpstreamAddr::socket_directory(path) {
            Some((directory, port)) => {
                control.host_path(directory);
                port
            }
            None => DEFAULT_PORT,
        },
    }
}

pub(crate) fn addresses(control: &Config) -> Hosts {
    let most = control.get_hosts().len().max(control.get_hostaddrs().len());
    Hosts::new((0..most).map(|at| address(control, at)).collect())
}

pub(crate) fn first_address(control: &Config) -> UpstreamAddr {
    address(control, 0)
}

/// An IP address in the DSN (`hostaddr`) overrides the name, as in libpq.
fn address(control: &Config, at: usize) -> UpstreamAddr {
    let ports = control.get_ports();
    let port = ports
        .get(at)
        .or(ports.first())
        .copied()
        .unwrap_or(DEFAULT_PORT);
    let host = control.get_hostaddrs().get(at).map(ToString::to_string);
    match (host, control.get_hosts().get(at)) {
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
    use pgpalisade_tls::SslMode;

    use super::super::address::parse_hosts;
    use super::*;

    fn environment(pairs: &[(&str, &str)]) -> Environment {
        Environment::from_pairs(pairs.iter().map(|(k, v)| ((*k).into(), (*v).into())))
    }

    #[test]
    fn filled_up_from_upstream_and_environment() {
        let pg = "PGUSER=u PGDATABASE=d PGHOST=elsewhere PGPORT=1";
        let pg: Vec<_> = pg
            .split(' ')
            .filter_map(|pair| pair.split_once('='))
            .collect();
        for (dsn, upstream, env, expect) in [
            ("", "postgres://db:5433", &*pg, "db:5433 u d"),
            ("", "/run", &pg, "/run/.s.PGSQL.5432 u d"),
            ("", "/run", &[], "/run/.s.PGSQL.5432 - -"),
            ("user=c", "postgres://db", &pg, "db:5432 c d"),
            ("user=c port=9", "postgres://db", &pg, "db:9 c d"),
            ("", "postgres://a:1,b", &pg, "a:1,b:5432 u d"),
            ("user=c port=9", "postgres://a:1,b", &pg, "a:9,b:9 c d"),
            (
                "host=x,/d port=1,2 user=c",
                "postgres://a,b",
                &pg,
                "x:1,/d/.s.PGSQL.2 c d",
            ),
            (
                "postgres://c@other:9/x",
                "postgres://db",
                &pg,
                "other:9 c x",
            ),
        ] {
            let (upstream, ssl) = parse_hosts(upstream).unwrap();
            let dsn = (!dsn.is_empty()).then(|| parse(dsn).unwrap());
            let control = complete(dsn, &upstream, &ssl, &environment(env)).unwrap();
            let (places, control) = (addresses(&control.config), control.config);
            let [user, database] =
                [control.get_user(), control.get_dbname()].map(|name| name.unwrap_or("-"));
            assert_eq!(format!("{places} {user} {database}"), expect);
        }
    }

    #[test]
    fn password_of_the_dsn_wins() {
        let (upstream, ssl) = parse_hosts("/run").unwrap();
        let env = environment(&[("PGPASSWORD", "env")]);
        let dsn = Some(parse("password=dsn").unwrap());
        let control = complete(dsn, &upstream, &ssl, &env).unwrap();
        assert_eq!(control.config.get_password(), Some(&b"dsn"[..]));
        let control = complete(None, &upstream, &ssl, &env).unwrap();
        assert_eq!(control.config.get_password(), Some(&b"env"[..]));
    }

    #[test]
    fn tls_is_the_upstreams_where_the_dsn_says_nothing() {
        use pgpalisade_tls::SslMode::{Disable, Require};
        let (upstream, ssl) = parse_hosts("postgres://db?sslmode=require").unwrap();
        let mode = |dsn: Option<&str>| {
            let dsn = dsn.map(|dsn| parse(dsn).unwrap());
            let control = complete(dsn, &upstream, &ssl, &environment(&[])).unwrap();
            control.ssl.unwrap().mode
        };
        assert_eq!(mode(None), Require);
        assert_eq!(mode(Some("user=c")), Require);
        assert_eq!(mode(Some("postgres://c@other?sslmode=disable")), Disable);
    }

    #[test]
    fn control_names_as_many_hosts_as_upstream() {
        let (upstream, ssl) = parse_hosts("postgres://a,b").unwrap();
        let dsn = Some(parse("host=a user=c").unwrap());
        let refused = complete(dsn, &upstream, &ssl, &environment(&[])).unwrap_err();
        assert!(
            refused.contains("control names 1 host and upstream 2"),
            "{refused}"
        );
    }

    #[test]
    fn refusals_do_not_show_the_password() {
        for (dsn, part) in [
            ("password=hunter2 prot=1", "unknown option"),
            ("postgres://u:hunter2@h:x/d", "is not a connection string"),
            ("password=hunter2 port=x", "port"),
            (
                "host=a,b port=1,2,3 password=hunter2",
                "3 ports for 2 hosts",
            ),
            ("sslmode=hunter2 password=hunter2", "unknown sslmode"),
            ("password='hunter2", "is not a connection string"),
        ] {
            let message = parse(dsn).unwrap_err();
            assert!(message.contains(part), "{dsn}: {message}");
            assert!(!message.contains("hunter2"), "{message}");
        }
    }

    #[test]
    fn a_client_takes_the_rest_from_the_environment() {
        let pairs = [
            ("PGHOST", "/run"),
            ("PGPORT", "7"),
            ("PGUSER", "u"),
            ("PGPASSWORD", "p"),
            ("PGDATABASE", "d"),
            ("PGOPTIONS", "-c fencing.token=3"),
        ];
        let url = "postgres://me:mine@db:9/x?options=-c%20fencing.token%3D4&application_name=own";
        let all = [
            "/run/.s.PGSQL.7",
            "u",
            "p",
            "d",
            "-c fencing.token=3",
            "name",
        ];
        let none = ["db:9", "me", "mine", "x", "-c fencing.token=4", "own"];
        for (dsn, expect) in [("", all), (url, none)] {
            let config = parse_for_client(dsn, "name", &environment(&pairs))
                .unwrap()
                .config;
            let password = config.get_password().map(String::from_utf8_lossy);
            let found = [
                Some(&*first_address(&config).to_string()),
                config.get_user(),
                password.as_deref(),
                config.get_dbname(),
                config.get_options(),
                config.get_application_name(),
            ];
            assert_eq!(found, expect.map(Some), "{dsn}");
        }
        for (pairs, address) in [(&[][..], "db:5432"), (&pairs, "db:7")] {
            let login = parse_for_client("host=db", "name", &environment(pairs)).unwrap();
            assert_eq!(first_address(&login.config).to_string(), address);
        }
        let modes = |dsn: &str, pairs: &[(&str, &str)]| {
            let login = parse_for_client(dsn, "name", &environment(pairs));
            login.map(|login| login.ssl.map(|ssl| (ssl.mode, ssl.root.is_some())))
        };
        let full = [("PGSSLMODE", "verify-full"), ("PGSSLROOTCERT", "/root.crt")];
        let is_full = Ok(Some((SslMode::VerifyFull, true)));
        assert_eq!(modes("host=db", &full), is_full);
        let own = Ok(Some((SslMode::Disable, false)));
        assert_eq!(modes("host=db sslmode=disable", &full), own);
        let unverified = [("PGSSLMODE", "prefer"), ("PGSSLROOTCERT", "/root.crt")];
        let prefers = Ok(Some((SslMode::Prefer, false)));
        assert_eq!(modes("host=db", &unverified), prefers);
        assert_eq!(modes("host=db", &[("PGSSLROOTCERT", "/r")]), Ok(None));
        let refused = modes("host=db", &[("PGSSLMODE", "verify-full")]).unwrap_err();
        assert!(refused.contains("PGSSLMODE, which verifies the server but trusts no"));
        let refused = parse_for_client("host=a,b password=hunter2", "name", &environment(&[]));
        assert_eq!(refused.unwrap_err(), "names several hosts");
    }
}
