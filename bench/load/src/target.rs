//! The two paths to the server: their logins, and the tokens of their sessions.

use std::fmt;
use std::str::FromStr;

use pgpalisade_authority::{Claim, Scope, Token, TokenValue};
use pgpalisade_tls::{Login, Secret};
use pgpalisade_wire::startup_options;
use serde::Serialize;
use tokio_postgres::Config;

use crate::BenchError;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, strum::Display)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Path {
    Direct,
    Proxied,
}

#[derive(Debug, Clone)]
pub struct BenchTarget {
    pub(crate) path: Path,
    pub(crate) address: String,
    login: Secret<Login>,
}

impl BenchTarget {
    /// The address is for people.
    #[must_use]
    pub const fn new(path: Path, address: String, login: Login) -> Self {
        let login = Secret::new(login);
        Self {
            path,
            address,
            login,
        }
    }

    /// Declares a token in the startup packet, in place of one in the DSN.
    #[must_use]
    pub fn declaring(self, token: &TokenFlag) -> Self {
        self.with_options(&format!("-c fencing.token={}", token.0))
    }

    pub(crate) const fn login(&self) -> &Login {
        self.login.expose()
    }

    fn config(&self) -> &Config {
        &self.login().config
    }

    /// Tokens that a session declares at its login, each with its scope; a bare number is for the session's own.
    pub(crate) fn tokens(&self, own: &Scope) -> Result<Vec<(Scope, Token)>, BenchError> {
        let options = self.config().get_options().unwrap_or_default();
        let settings = startup_options::from_switches(options.as_bytes());
        let wrong = |reason: &dyn fmt::Display| {
            BenchError::Dsn(self.path, format!("declares an invalid token: {reason}"))
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

    /// The same login without a token, in a scope of its choice, to read the mark.
    pub(crate) fn undeclared(&self, scope: Option<&Scope>) -> Self {
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

#[derive(Debug, Clone)]
pub struct TokenFlag(String);

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

    fn target(options: Option<&str>) -> BenchTarget {
        let mut login = Login::default();
        if let Some(options) = options {
            login.config.options(options);
        }
        BenchTarget::new(Path::Proxied, "db:5432".to_owned(), login)
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
        let plain = target(None);
        assert!(tokens(&plain).is_empty());
        assert_eq!(tokens(&plain.clone().declaring(&flag("34"))), ["own=34"]);
        let own = target(Some("-c a.b=1 -c fencing.token=3,b=4"));
        assert_eq!(tokens(&own), ["own=3", "b=4"]);
        assert_eq!(
            tokens(&own.clone().declaring(&flag("a=1, b=2"))),
            ["a=1", "b=2"]
        );
        assert!(tokens(&own.undeclared(None)).is_empty());
        let wrong = target(Some("-c fencing.token=x"));
        assert!(wrong.tokens(&Scope::default()).is_err());
        for wrong in ["", "x", "0", "a=b", "a b=-1"] {
            assert!(wrong.parse::<TokenFlag>().is_err(), "{wrong}");
        }
    }
}
