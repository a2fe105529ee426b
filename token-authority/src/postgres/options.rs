//! Location of the PostgreSQL store: the text after `postgres:`, parsed, and displayed without its secrets.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use pgpalisade_tls::Login;
use tokio_postgres::config::{Host, TargetSessionAttrs};

use crate::owned::Objects;

/// Schema of the store, and channel of its notifications. Needs no quoting.
pub(super) const SCHEMA: &str = "pgpalisade_authority";
/// Objects that the store uses. The expressions are those of `tables.sql`.
pub(super) const OWN: Objects = Objects {
    schema: SCHEMA,
    tables: &[
        "store",
        "marks",
        "sessions",
        "takeovers",
        "leases",
        "connections",
    ],
    expressions: &[
        "true",
        "false",
        "0",
        "now()",
        "pg_current_xact_id()",
        "one",
        "(token > 0)",
        "(octet_length(identity) = 16)",
    ],
    advice: "let all proxies log in as the owner of the store; if it is not yours, have a superuser run: DROP SCHEMA \
        pgpalisade_authority CASCADE",
};

/// Name in `pg_stat_activity`, unless the DSN sets another.
const APPLICATION_NAME: &str = "pgpalisade authority";
/// Default limit of a call.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Silence after which the kernel probes the server. libpq waits two hours.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_RETRIES: u32 = 3;
/// tokio-postgres's default, which means that the DSN sets no value.
const KEEPALIVE_IDLE_UNSET: Duration = Duration::from_secs(2 * 60 * 60);

/// Location of the store, and limit of a call.
#[derive(Clone)]
pub struct Options {
    pub(super) login: Login,
    pub(super) timeout: Duration,
}

impl Options {
    /// Sets the limit of a call, 5 seconds by default. At least 100 ms.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout.max(Duration::from_millis(100));
        self
    }

    /// The role, if the DSN names one.
    #[must_use]
    pub fn user(&self) -> Option<&str> {
        self.login.config.get_user()
    }

    /// Whether the DSN contains a password.
    #[must_use]
    pub fn holds_password(&self) -> bool {
        self.login.config.get_password().is_some()
    }
}

impl FromStr for Options {
    /// Does not quote the DSN, which may hold a password.
    type Err = String;

    /// Reads the text after `postgres:`: a URL with or without its scheme (`//user@host/db`,
    /// `postgres://user@host/db`), or `key=value` pairs.
    fn from_str(text: &str) -> Result<Self, String> {
        let url = format!("postgres:{text}");
        let dsn = if text.starts_with("//") { &url } else { text };
        let login = parse(dsn).map_err(|why| format!("the DSN of the PostgreSQL authority {why}"));
        let mut login = login?;
        let config = &mut login.config;
        if config.get_application_name().is_none() {
            config.application_name(APPLICATION_NAME);
        }
        if config.get_tcp_user_timeout().is_none() {
            config.tcp_user_timeout(TIMEOUT * 2);
        }
        if config.get_keepalives_idle() == KEEPALIVE_IDLE_UNSET {
            config.keepalives_idle(KEEPALIVE_IDLE);
        }
        if config.get_keepalives_interval().is_none() {
            config.keepalives_interval(KEEPALIVE_INTERVAL);
        }
        if config.get_keepalives_retries().is_none() {
            config.keepalives_retries(KEEPALIVE_RETRIES);
        }
        // Of several servers, use the one that accepts writes.
        if config.get_hosts().len().max(config.get_hostaddrs().len()) > 1 {
            config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        }
        Ok(Self {
            login,
            timeout: TIMEOUT,
        })
    }
}

fn parse(dsn: &str) -> Result<Login, String> {
    let login = Login::parse(dsn, "postgres:host=... user=... dbname=...")?;
    let config = &login.config;
    if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
        return Err("names no host; PG* environment variables are not read".into());
    }
    if config.get_user().is_none() {
        return Err("names no user; PG* environment variables are not read".into());
    }
    Ok(login)
}

impl fmt::Display for Options {
    /// Location without password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let config = &self.login.config;
        let user = config.get_user().unwrap_or_default();
        let database = config.get_dbname().unwrap_or(user);
        let hosts = config.get_hosts().iter().map(|host| match host {
            Host::Tcp(name) => name.clone(),
            Host::Unix(dir) => dir.display().to_string(),
        });
        let mut places: Vec<String> = hosts.collect();
        if places.is_empty() {
            places.extend(config.get_hostaddrs().iter().map(ToString::to_string));
        }
        let ports = config.get_ports();
        for (index, place) in places.iter_mut().enumerate() {
            let port = ports.get(index).or(ports.first()).unwrap_or(&5432);
            *place = format!("{place}:{port}");
        }
        let places = places.join(",");
        write!(f, "postgres://{user}@{places}/{database}, schema {SCHEMA}")
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Options({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn shown(text: &str, expect: &str) {
        let options: Options = text.parse().unwrap();
        assert_eq!(
            options.to_string(),
            format!("{expect}, schema pgpalisade_authority")
        );
        assert!(!format!("{options:?}").contains("hunter2"));
    }

    #[test]
    fn every_form_is_read_and_no_password_shown() {
        shown(
            "host=db user=u password=hunter2 dbname=d",
            "postgres://u@db:5432/d",
        );
        shown("//u:hunter2@db:5433/d", "postgres://u@db:5433/d");
        shown("postgres://u:hunter2@db/d", "postgres://u@db:5432/d");
        shown("postgresql://u@db", "postgres://u@db:5432/u");
        shown("host=/run user=u port=7", "postgres://u@/run:7/u");
        shown(
            "host=a,b user=u port=1,2 dbname=d",
            "postgres://u@a:1,b:2/d",
        );
        shown(
            "hostaddr=127.0.0.1 user=u dbname=d",
            "postgres://u@127.0.0.1:5432/d",
        );
    }

    #[test]
    fn refusals_say_why_and_show_no_password() {
        for (text, part) in [
            ("", "names no host"),
            ("user=u password=hunter2", "names no host"),
            ("host=h password=hunter2", "names no user"),
            ("host=h user=u prot=1 password=hunter2", "unknown option"),
            (
                "//u:hunter2@h:x/d",
                "invalid value for option|is not a connection string",
            ),
            ("host=h user=u password='hunter2", "write postgres://"),
            (
                "//u:hunter2@h/d?sslmode=verify-full",
                "trusts no certificate authority",
            ),
        ] {
            let message = text.parse::<Options>().unwrap_err();
            assert!(
                part.split('|').any(|p| message.contains(p)),
                "{text}: {message}"
            );
            assert!(!message.contains("hunter2"), "{message}");
        }
    }

    #[test]
    fn silence_is_noticed_in_seconds() {
        let config = "host=h user=u".parse::<Options>().unwrap().login.config;
        assert!(config.get_keepalives());
        assert_eq!(config.get_keepalives_idle(), KEEPALIVE_IDLE);
        assert_eq!(config.get_tcp_user_timeout(), Some(&(TIMEOUT * 2)));
        let given = "host=h user=u keepalives_idle=60 tcp_user_timeout=9"
            .parse::<Options>()
            .unwrap()
            .login
            .config;
        assert_eq!(given.get_keepalives_idle(), Duration::from_secs(60));
        assert_eq!(given.get_tcp_user_timeout(), Some(&Duration::from_secs(9)));
    }

    #[test]
    fn of_several_servers_the_primary_is_meant() {
        let attrs = |text: &str| {
            let options: Options = text.parse().unwrap();
            options.login.config.get_target_session_attrs()
        };
        assert_eq!(attrs("host=a,b user=u"), TargetSessionAttrs::ReadWrite);
        assert_eq!(attrs("host=a user=u"), TargetSessionAttrs::Any);
    }
}
