//! Access modes as the server reports them.

pub use pgpalisade_policies::DEFAULT_READ_ONLY;
use pgpalisade_policies::{Access, parse_bool};

/// Reported by PostgreSQL 14 and later. All transactions of a standby are read-only.
pub const IN_HOT_STANDBY: &str = "in_hot_standby";

/// The two settings that the server reports unasked.
#[derive(Debug, Clone, Copy, Default)]
pub struct Reported {
    /// [`DEFAULT_READ_ONLY`], if reported: PostgreSQL 14 and later do.
    pub(super) default: Option<Access>,
    /// [`IN_HOT_STANDBY`] as an access mode: a standby is read-only.
    pub(super) server: Option<Access>,
}

impl Reported {
    /// Default access mode, if reported.
    #[must_use]
    pub const fn default_access(&self) -> Option<Access> {
        self.default
    }

    /// Notes a report.
    pub fn note(&mut self, name: &[u8], value: &[u8]) {
        if name == DEFAULT_READ_ONLY.as_bytes() {
            self.default = parse(value);
        } else if name == IN_HOT_STANDBY.as_bytes() {
            self.server = parse(value);
        }
    }
}

/// Value as PostgreSQL writes it.
#[must_use]
pub const fn value(access: Access) -> &'static str {
    match access {
        Access::ReadOnly => "on",
        Access::ReadWrite => "off",
    }
}

/// Reads a value as PostgreSQL reads a Boolean: any unambiguous prefix of the words, in any case.
#[must_use]
pub fn parse(value: &[u8]) -> Option<Access> {
    let is_on = parse_bool(str::from_utf8(value).ok()?.trim_ascii())?;
    Some(if is_on {
        Access::ReadOnly
    } else {
        Access::ReadWrite
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use Access::{ReadOnly, ReadWrite};

    #[test]
    fn booleans_are_read_as_postgresql_reads_them() {
        for (value, expect) in [
            ("on", Some(ReadOnly)),
            ("TRUE", Some(ReadOnly)),
            (" y ", Some(ReadOnly)),
            ("1", Some(ReadOnly)),
            ("of", Some(ReadWrite)),
            ("n", Some(ReadWrite)),
            ("0", Some(ReadWrite)),
            ("o", None),
            ("", None),
            ("10", None),
        ] {
            assert_eq!(parse(value.as_bytes()), expect, "{value:?}");
        }
    }
}
