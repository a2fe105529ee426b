//! The only table of policy keys.

/// A key of a policy file, for its reader and for the documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicyKey {
    /// With the tables around it. `NAME` stands for the name of a scope.
    pub(crate) name: &'static str,
    /// As a user would write them.
    pub(crate) values: &'static str,
    /// If the key is left out.
    pub(crate) default: &'static str,
}

const fn key(name: &'static str, values: &'static str, default: &'static str) -> PolicyKey {
    PolicyKey {
        name,
        values,
        default,
    }
}

const WRITES: &str = "\"token\", \"allow\" or \"refuse\"";
const READS: &str = "\"allow\" or \"current\"";
const MODE: &str = "\"enforce\" or \"observe\"";
const SCOPE: &str = "the name of a scope";
const KINDS: &str = "kinds of statements";
const UNKNOWN: &str = "\"every-scope\" or \"session-scope\"";
const NUMBER: &str = "a whole number from 1";
const NAMES: &str = "a name or a list of names, each with * for any characters";
const DECLARE: &str = "\"session\", \"transaction\" or a list of scopes";
const ISSUED: &str = "\"any\" or \"issued\"; an election below [scope.NAME]";
const ELECTED: &str = "\"any\", \"issued\" or { etcd_election = \"...\" }";
const PREPARED: &str = "\"report\", \"refuse\" or \"roll-back\"";
const SECONDS: &str = "seconds, as \"30s\"";
const DEFAULTS: &str = "the value of [defaults]";
const TOKENS: &str = "the value of [tokens]";
const ANY: &str = "any";

#[rustfmt::skip] // One key, one row: it is a table.
pub const POLICY_KEYS: [PolicyKey; 40] = [
    key("defaults.writes", WRITES, "\"token\""),
    key("defaults.reads", READS, "\"allow\""),
    key("defaults.mode", MODE, "\"enforce\""),
    key("defaults.scope", SCOPE, "\"default\""),
    key("defaults.refuse", KINDS, "[\"replication\", \"prepare-transaction\"]"),
    key("defaults.allow", KINDS, "none"),
    key("defaults.unknown_tables", UNKNOWN, "\"every-scope\""),
    key("defaults.declare", DECLARE, "\"session\", any scope"),
    key("tokens.max_step", NUMBER, "no limit"),
    key("tokens.max_token", NUMBER, "no limit"),
    key("tokens.numbers", ISSUED, "\"any\""),
    key("tokens.scopes", "\"any\" or \"listed\"", "\"any\""),
    key("tokens.max_scopes", NUMBER, "10000"),
    key("tokens.prepared_transactions", PREPARED, "\"report\""),
    key("tokens.lock_delay", SECONDS, "none"),
    key("scope.NAME.tables", "a pattern schema.table or a list of them", "none"),
    key("scope.NAME.mode", MODE, DEFAULTS),
    key("scope.NAME.max_step", NUMBER, TOKENS),
    key("scope.NAME.max_token", NUMBER, TOKENS),
    key("scope.NAME.numbers", ELECTED, TOKENS),
    key("scope.NAME.numbers.etcd_election", "the name of an election", "required"),
    key("scope.NAME.holders", "a table as session.match", "any session"),
    key("scope.NAME.prepared_transactions", PREPARED, TOKENS),
    key("scope.NAME.lock_delay", SECONDS, TOKENS),
    key("session.match.user", NAMES, ANY),
    key("session.match.database", NAMES, ANY),
    key("session.match.application_name", NAMES, ANY),
    key("session.match.cn", NAMES, ANY),
    key("session.match.network", "a network in CIDR notation or a list of them", ANY),
    key("session.name", "any text", "none"),
    key("session.writes", WRITES, DEFAULTS),
    key("session.reads", READS, DEFAULTS),
    key("session.mode", MODE, "the scope's"),
    key("session.pool", "\"session\"", "the proxy's"),
    key("session.scope", SCOPE, DEFAULTS),
    key("session.refuse", KINDS, "no others"),
    key("session.allow", KINDS, "none"),
    key("session.unknown_tables", UNKNOWN, DEFAULTS),
    key("session.declare", DECLARE, DEFAULTS),
    key("session.match", "a table of these five", "required"),
];

/// Names of the keys directly in a table: `defaults`, `scope.NAME`, `session.match`, or the empty name for the top.
pub(super) fn names_in(table: &str) -> impl Iterator<Item = &'static str> {
    let mut last = "";
    POLICY_KEYS.iter().filter_map(move |key| {
        let inside = match table {
            "" => Some(key.name),
            table => key.name.strip_prefix(table)?.strip_prefix('.'),
        }?;
        let name = inside.split('.').next()?;
        let new = name != last;
        last = name;
        new.then_some(name)
    })
}

pub(super) fn values_of(name: &str) -> &'static str {
    let mut keys = POLICY_KEYS.iter();
    keys.find(|key| key.name == name)
        .map_or("", |key| key.values)
}

/// The candidate that the user most likely meant, if one is close: for names in files, flags and variables.
#[must_use]
pub fn nearest<'a>(wrong: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // Like clap for flags: 0.7 catches a missing or swapped letter, but not a different word.
    const NEAR: f64 = 0.7;
    candidates
        .map(|candidate| (strsim::jaro(wrong, candidate), candidate))
        .filter(|(score, _)| *score > NEAR)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_have_their_keys() {
        let names = |table| names_in(table).collect::<Vec<_>>();
        assert_eq!(names(""), ["defaults", "tokens", "scope", "session"]);
        assert_eq!(names("tokens").len(), 7);
        assert_eq!(
            names("session.match"),
            ["user", "database", "application_name", "cn", "network"]
        );
        assert_eq!(names("scope.NAME").len(), 8);
    }

    #[test]
    fn nearest_finds_slips_only() {
        let names = || POLICY_KEYS.iter().map(|key| key.name);
        assert_eq!(nearest("defaults.mod", names()), Some("defaults.mode"));
        assert_eq!(nearest("tokens.max_setp", names()), Some("tokens.max_step"));
        assert_eq!(nearest("qqq", names()), None);
    }
}
