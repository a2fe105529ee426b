//! The two paths to the server: their connection strings, completed from the environment, and their addresses.

use std::fmt;
use std::str::FromStr;

use pgpalisade_authority::{Claim, Scope, Token};
use pgpalisade_tls::{Login, Secret};
use serde::Serialize;
use tokio_postgres::Config;

use super::BenchError;
use crate::config::{Environment, address_of, parse_dsn};
use crate::fence::TokenValue;
use crate::server::hosts::UpstreamAddr;
use crate::wire::startup_options;

/// The bench's `application_name`, unless the DSN has one.
const APPLICATION_NAME: &str = "pgpalisade bench";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Path {
    /// To PostgreSQL itself.
    Direct,
    /// Through pgpalisade.
    Proxied,
}

impl Path {
    /// The flag that names the path.
    pub(crate) const fn flag(self) -> &'static str {
        match self {
            Self::Direct => "--direct",
            Self::Proxied => "--proxied",
        }
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Direct => "direct",
            Self::Proxied => "proxied",
        })
    }
}

/// Address and login of a path.
#[derive(Debug, Clone)]
pub(crate) struct BenchTarget {
    pub(super) path: Path,
    pub(super) address: UpstreamAddr,
    login: Secret<Login>,
}

impl BenchTarget {
    /// Parses a DSN, completed from the environment. No error quotes it.
    pub(crate) fn parse(
        path: Path,
        dsn: &str,
        environment: &Environment,
    ) -> Result<Self, BenchError> {
        let login = parse_dsn(dsn, APPLICATION_NAME, environment);
        let login = login.map_err(|reason| BenchError::Dsn { path, reason })?;
        Ok(Self {
            path,
            address: address_of(&login.config),
            login: Secret::new(login),
        })
    }

    /// Declares a token in the startup packet, in place of one in the DSN.
    pub(crate) fn declaring(self, token: &TokenFlag) -> Self {
        self.with_options(&format!("-c fencing.token={}", token.0))
    }

    pub(super) const fn login(&self) -> &Login {
        self.login.expose()
    }

    fn config(&self) -> &Config {
        &self.login().config
    }

    /// Tokens that a session declares at its login, each with its scope; a bare number is for the session's own.
    pub(super) fn tokens(&self, own: &Scope) -> Result<Vec<(Scope, Token)>, BenchError> {
        let options = self.config().get_options().unwrap_or_default();
        let settings = startup_options::from_switches(options.as_bytes());
        let wrong = |reason: &dyn fmt::Display| BenchError::Dsn {
            path: self.path,
            reason: format!("declares an invalid token: {reason}"),
        };
        let text = startup_options::last(&settings, "fencing.token").unwrap_or_default();
        let text = String::from_utf8_lossy(text);
        let tokens = TokenValue::parse(&text, own).map_err(|error| wrong(&error))?;
        let claims = tokens.as_ref().map_or(&[][..], TokenValue::claims);
        let number = |(scope, claim): &(Scope, Claim)| match claim {
            Claim::Token(token) => Ok((scope.clone(), *token)),
            Claim::After(_) | Claim::Next | Claim::Lease(_) => Err(wrong(&format!(
                "\"{claim}\" takes a new one; write a number"
            ))),
        };
        claims.iter().map(number).collect()
    }

    /// The same login without a token, in a scope of its choice: it declares nothing, and can read the mark.
    pub(super) fn undeclared(&self, scope: Option<&Scope>) -> Self {
        let bare = self.clone().with_options("-c fencing.token=");
        match scope {
            Some(scope) => bare.with_options(&format!("-c fencing.scope={scope}")),
            None => bare,
        }
    }

    /// Later options override earlier ones.
    fn with_options(self, more: &str) -> Self {
        let mut login = self.login().clone();
        let options = login.config.get_options().unwrap_or_default();
        let options = format!("{options} {more}");
        login.config.options(options.trim_start());
        Self {
            login: Secret::new(login),
            ..self
        }
    }
}

/// `34`, or `scheduler=34,billing=7`. Without white space, so that it is one word of the options.
#[derive(Debug, Clone)]
pub(crate) struct TokenFlag(String);

impl FromStr for TokenFlag {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text: String = text.split_whitespace().collect();
        match TokenValue::parse(&text, &Scope::default()) {
            Ok(Some(value)) if value.takes() => {
                Err("takes a new token: write a number, such as 34".to_owned())
            }
            Ok(Some(_)) => Ok(Self(text)),
            Ok(None) => Err("is empty: write 34, or scheduler=34".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(pairs: &[(&str, &str)]) -> Environment {
        Environment::from_pairs(
            pairs
                .iter()
                .map(|(name, value)| ((*name).into(), (*value).into())),
        )
    }

    fn target(dsn: &str, pairs: &[(&str, &str)]) -> BenchTarget {
        BenchTarget::parse(Path::Proxied, dsn, &environment(pairs)).unwrap()
    }

    #[test]
    fn what_is_missing_comes_from_the_environment() {
        let pairs = [
            ("PGHOST", "/run"),
            ("PGPORT", "7"),
            ("PGUSER", "u"),
            ("PGPASSWORD", "p"),
            ("PGDATABASE", "d"),
            ("PGOPTIONS", "-c fencing.token=3"),
        ];
        let all = target("", &pairs);
        assert_eq!(all.address.to_string(), "/run/.s.PGSQL.7");
        let config = all.config();
        assert_eq!(
            (config.get_user(), config.get_dbname()),
            (Some("u"), Some("d"))
        );
        assert_eq!(config.get_password(), Some(&b"p"[..]));
        assert_eq!(config.get_options(), Some("-c fencing.token=3"));
        let none = target(
            "postgres://me:mine@db:9/x?options=-c%20fencing.token%3D4&application_name=own",
            &pairs,
        );
        assert_eq!(none.address.to_string(), "db:9");
        let config = none.config();
        assert_eq!(
            (config.get_user(), config.get_dbname()),
            (Some("me"), Some("x"))
        );
        assert_eq!(config.get_password(), Some(&b"mine"[..]));
        assert_eq!(config.get_options(), Some("-c fencing.token=4"));
        assert_eq!(config.get_application_name(), Some("own"));
        assert_eq!(target("host=db", &[]).address.to_string(), "db:5432");
        assert_eq!(target("host=db", &pairs).address.to_string(), "db:7");
    }

    #[test]
    fn errors_and_debug_hold_no_secret() {
        for dsn in [
            "password=hunter2",
            "host=a,b password=hunter2",
            "host=db password=hunter2 x=1",
        ] {
            let error = BenchTarget::parse(Path::Direct, dsn, &environment(&[])).unwrap_err();
            assert!(error.to_string().starts_with("--direct "), "{error}");
            assert!(
                !format!("{error} {error:?}").contains("hunter2"),
                "{error:?}"
            );
        }
        assert!(!format!("{:?}", target("host=db password=hunter2", &[])).contains("hunter2"));
    }

    fn tokens(target: &BenchTarget) -> Vec<String> {
        let tokens = target.tokens(&Scope::new("own").unwrap()).unwrap();
        tokens
            .iter()
            .map(|(scope, token)| format!("{scope}={token}"))
            .collect()
    }

    #[test]
    fn tokens_are_those_of_the_startup_packet() {
        let flag = |text: &str| text.parse::<TokenFlag>().unwrap();
        let plain = target("host=db", &[]);
        assert!(tokens(&plain).is_empty());
        assert_eq!(tokens(&plain.clone().declaring(&flag("34"))), ["own=34"]);
        let own = target("host=db options='-c a.b=1 -c fencing.token=3,b=4'", &[]);
        assert_eq!(tokens(&own), ["own=3", "b=4"]);
        assert_eq!(
            tokens(&own.clone().declaring(&flag("a=1, b=2"))),
            ["a=1", "b=2"]
        );
        assert!(tokens(&own.undeclared(None)).is_empty());
        let wrong = target("host=db options='-c fencing.token=x'", &[]);
        assert!(wrong.tokens(&Scope::default()).is_err());
        for wrong in ["", "x", "0", "a=b", "a b=-1"] {
            assert!(wrong.parse::<TokenFlag>().is_err(), "{wrong}");
        }
    }
}
