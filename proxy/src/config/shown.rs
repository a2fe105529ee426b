//! The configuration for operators: each key with its value, without passwords.

use super::address::parse_hosts;
use super::authority::AuthorityLocation;
use super::control;
use super::file::RawValue;
use super::key::Key;
use super::raw::RawConfig;

const HIDDEN: &str = "(not shown)";

impl RawConfig {
    /// As written; `None` if it is not set and has no default.
    pub(crate) fn shown(&self, key: Key) -> Option<String> {
        self.texts(key).map(|texts| show(key, &texts))
    }
}

impl RawValue {
    /// Whether the value contains a password. An invalid value counts as having none.
    pub(super) fn holds_password(&self) -> bool {
        let texts: Vec<&str> = self.items.iter().map(|item| item.text.as_str()).collect();
        let text = texts.join(",");
        match self.key {
            Key::Control => {
                control::parse(&text).is_ok_and(|login| login.config.get_password().is_some())
            }
            Key::Authority => {
                AuthorityLocation::parse(&text).is_ok_and(|authority| authority.holds_password())
            }
            _ => false,
        }
    }
}

fn show(key: Key, texts: &[&str]) -> String {
    let text = texts.join(",");
    match key {
        Key::Control => HIDDEN.to_owned(),
        Key::Authority => AuthorityLocation::parse(&text)
            .map_or_else(|_| HIDDEN.to_owned(), |authority| authority.to_string()),
        Key::Upstream => {
            parse_hosts(&text).map_or_else(|_| HIDDEN.to_owned(), |(hosts, _)| hosts.to_string())
        }
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Environment, Flags};
    use super::*;

    #[test]
    fn passwords_are_not_shown() {
        let flags = Flags {
            config_file: None,
            values: vec![
                (Key::Control, vec!["postgres://a:hunter2@h/db".to_owned()]),
                (
                    Key::Authority,
                    vec!["postgres:postgres://b:hunter2@h/db".to_owned()],
                ),
                (
                    Key::Upstream,
                    vec!["postgres://h:1,i:2?sslmode=require".to_owned()],
                ),
                (
                    Key::Listen,
                    vec!["127.0.0.1:1".to_owned(), "/run".to_owned()],
                ),
            ],
        };
        let raw = RawConfig::collect(&flags, &Environment::from_pairs(std::iter::empty()));
        let value = |name: &str| raw.shown(Key::by_name(name).unwrap().key);
        for spec in super::super::KEYS {
            assert!(!format!("{:?}", raw.shown(spec.key)).contains("hunter2"));
        }
        assert_eq!(value("control").as_deref(), Some("(not shown)"));
        assert_eq!(value("listen").as_deref(), Some("127.0.0.1:1,/run"));
        assert_eq!(value("login_timeout").as_deref(), Some("60s"));
        assert_eq!(value("policy"), None);
        assert!(value("upstream").unwrap().contains("i:2"));
        assert!(value("authority").unwrap().starts_with("postgres:"));
    }
}
