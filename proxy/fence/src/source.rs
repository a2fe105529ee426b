//! Source of a prepared statement, from which it is parsed again in another server connection.

use std::sync::{Arc, OnceLock};

/// Text and parameter types of a Parse, and what the client was told about the statement.
#[derive(Debug)]
pub struct Source {
    parse: Box<[u8]>,
    told: [OnceLock<u64>; 2],
    is_outdated: OnceLock<()>,
}

/// Part of the description of a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Described {
    /// Types of its parameters.
    Parameters,
    /// Names and types of its columns.
    Result,
}

impl Source {
    /// The body of a Parse without the name.
    #[must_use]
    pub fn new(parse: &[u8]) -> Arc<Self> {
        Arc::new(Self {
            parse: parse.into(),
            told: [OnceLock::new(), OnceLock::new()],
            is_outdated: OnceLock::new(),
        })
    }

    /// The body of its Parse without the name.
    #[must_use]
    pub const fn parse(&self) -> &[u8] {
        &self.parse
    }

    /// Its text.
    #[must_use]
    pub fn text(&self) -> &[u8] {
        let text = self.parse.split(|&byte| byte == 0).next();
        text.unwrap_or_default()
    }

    /// Notes the hash of a description that the client gets.
    pub fn tell(&self, part: Described, hash: u64) {
        self.told(part).get_or_init(|| hash);
    }

    /// Compares the hash of a description by another server connection with that of the client.
    pub fn compare(&self, part: Described, hash: u64) {
        if self.told(part).get().is_some_and(|&told| told != hash) {
            self.is_outdated.get_or_init(|| ());
        }
    }

    /// Whether the client was told anything.
    #[must_use]
    pub fn is_told(&self) -> bool {
        self.told.iter().any(|hash| hash.get().is_some())
    }

    /// Whether the statement would differ from what the client was told. PostgreSQL refuses to run it from then on.
    #[must_use]
    pub fn is_outdated(&self) -> bool {
        self.is_outdated.get().is_some()
    }

    /// Whether another client's statement will do, too: it is the same, and that client was told all that this one was.
    #[must_use]
    pub fn is_served_by(&self, other: &Self) -> bool {
        let is_known = |(own, other): (&OnceLock<u64>, &OnceLock<u64>)| {
            own.get().is_none_or(|told| other.get() == Some(told))
        };
        self.parse == other.parse && self.told.iter().zip(&other.told).all(is_known)
    }

    const fn told(&self, part: Described) -> &OnceLock<u64> {
        let [parameters, result] = &self.told;
        match part {
            Described::Parameters => parameters,
            Described::Result => result,
        }
    }
}
