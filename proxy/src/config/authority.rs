//! The store of marks.

use std::fmt;
use std::path::PathBuf;

use pgpalisade_authority::{etcd, postgres};

const FORMS: &str = "write embedded:DIR, etcd:URL,URL or postgres:DSN";

#[derive(Clone)]
pub(crate) enum AuthorityLocation {
    Embedded(PathBuf),
    Etcd(Box<etcd::Options>),
    Postgres(Box<postgres::Options>),
}

impl AuthorityLocation {
    /// Parses `embedded:DIR`, `etcd:URL,URL` or `postgres:DSN`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        // A plain URL needs no prefix, in either spelling of its scheme.
        let text = match text.trim() {
            url if url.starts_with("postgresql://") => url.replacen("postgresql:", "postgres:", 1),
            other => other.to_owned(),
        };
        match text.split_once(':') {
            Some(("embedded", directory)) if !directory.is_empty() => {
                std::path::absolute(directory)
                    .map(Self::Embedded)
                    .map_err(|error| format!("cannot find the directory {directory:?}: {error}"))
            }
            Some(("embedded", _)) => Err(String::from("names no directory: write embedded:DIR")),
            Some(("etcd", urls)) => urls.parse().map(|options| Self::Etcd(Box::new(options))),
            Some(("postgres", dsn)) => dsn.parse().map(|options| Self::Postgres(Box::new(options))),
            // Not quoted: a DSN may hold a password.
            _ => Err(format!("is not a store: {FORMS}")),
        }
    }
}

impl AuthorityLocation {
    pub(super) const fn is_etcd(&self) -> bool {
        matches!(self, Self::Etcd(_))
    }

    pub(super) fn holds_password(&self) -> bool {
        matches!(self, Self::Postgres(options) if options.holds_password())
    }
}

impl fmt::Display for AuthorityLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Embedded(directory) => write!(f, "embedded:{}", directory.display()),
            Self::Etcd(options) => write!(f, "{options}"),
            Self::Postgres(options) => write!(f, "{options}"),
        }
    }
}

impl fmt::Debug for AuthorityLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AuthorityLocation({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expect: Result<&str, &str>) {
        match (AuthorityLocation::parse(text), expect) {
            (Ok(location), Ok(shown)) => assert_eq!(location.to_string(), shown),
            (Err(message), Err(part)) => assert!(message.contains(part), "{text}: {message}"),
            (got, expect) => panic!("{text}: {got:?} instead of {expect:?}"),
        }
    }

    #[test]
    fn stores() {
        check("embedded:/var/lib/x", Ok("embedded:/var/lib/x"));
        check(" embedded:/x ", Ok("embedded:/x"));
        let relative = AuthorityLocation::parse("embedded:marks").unwrap();
        assert!(relative.to_string().starts_with("embedded:/"), "{relative}");
        check("embedded:", Err("names no directory"));
        check("/var/lib/x", Err("is not a store"));
        check("consul:http://x", Err("is not a store"));
        check("", Err("is not a store"));
    }

    #[test]
    fn a_password_is_never_shown() {
        for text in [
            "postgres:host=db user=u password=hunter2",
            "postgres://u:hunter2@db/marks",
            "postgresql://u:hunter2@db/marks",
        ] {
            let location = AuthorityLocation::parse(text).unwrap();
            let shown = format!("{location} {location:?}");
            assert!(
                shown.contains("db") && !shown.contains("hunter2"),
                "{shown}"
            );
        }
        for text in ["postgres:password=hunter2 prot=1", "pg:password=hunter2"] {
            let message = AuthorityLocation::parse(text).unwrap_err();
            assert!(!message.contains("hunter2"), "{message}");
        }
    }
}
