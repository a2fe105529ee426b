//! Keys and values in etcd.
//!
//! Below the prefix:
//!
//! | key | value |
//! | --- | --- |
//! | `backend/<pid>\|<started_us>\|<scope>` | empty: the records of a session, found by its backend |
//! | `cluster` | the cluster on record, JSON |
//! | `identity` | identity and format of the store, JSON |
//! | `mark/<scope>` | the mark, JSON |
//! | `scope-lease/<scope>` | holder of the lease; tied to a lease of etcd |
//! | `session/<scope>\|<pid>\|<started_us>` | rank, a space, the time of the declaration |
//! | `sync` | empty: written to learn a revision |
//! | `takeovers/<scope>` | time of the last record, a space, and the last takeovers, JSON |
//! | `takeovers-noted/<time>\|<scope>` | empty: finds the scopes with the latest records; later times are lower |
//!
//! `|` is in no scope's name, so a range over one scope never contains another. A session's value begins with the
//! rank, in a form that sorts as bytes, so that etcd can compare it: the incarnation in 10 digits, `:`, and the token
//! in 19. The watched keys are adjacent.

use serde::Deserialize;

use crate::record::MarkRow;
use crate::{
    Answer, AuthorityError, AuthorityId, Backend, Cluster, Incarnation, Rank, Registered, Scope,
    Token,
};

/// The format that this version writes. Any other is refused.
pub(super) const FORMAT: u32 = 3;

/// Separates the parts of a key. Not in [`Scope`]'s alphabet.
const SEPARATOR: char = '|';
/// Character after [`SEPARATOR`], to end a range of keys with a common part.
const AFTER_SEPARATOR: char = '}';

#[derive(Debug, Clone)]
pub(super) struct Keys {
    prefix: String,
}

/// A half-open range of keys.
#[derive(Debug, Clone)]
pub(super) struct Range {
    pub(super) from: Vec<u8>,
    pub(super) to: Vec<u8>,
}

impl Keys {
    /// `prefix` ends with a slash.
    pub(super) fn new(prefix: &str) -> Self {
        Self {
            prefix: prefix.to_owned(),
        }
    }

    pub(super) fn identity(&self) -> Vec<u8> {
        self.key("identity")
    }

    pub(super) fn cluster(&self) -> Vec<u8> {
        self.key("cluster")
    }

    pub(super) fn sync(&self) -> Vec<u8> {
        self.key("sync")
    }

    pub(super) fn mark(&self, scope: &Scope) -> Vec<u8> {
        self.key(&format!("mark/{scope}"))
    }

    pub(super) fn session(&self, scope: &Scope, backend: Backend) -> Vec<u8> {
        let Backend { pid, started_us } = backend;
        self.key(&format!("session/{scope}|{pid}|{started_us}"))
    }

    pub(super) fn backend(&self, backend: Backend, scope: &Scope) -> Vec<u8> {
        let Backend { pid, started_us } = backend;
        self.key(&format!("backend/{pid}|{started_us}|{scope}"))
    }

    pub(super) fn lease(&self, scope: &Scope) -> Vec<u8> {
        self.key(&format!("scope-lease/{scope}"))
    }

    pub(super) fn takeovers_of(&self, scope: &Scope) -> Vec<u8> {
        self.key(&format!("takeovers/{scope}"))
    }

    /// `noted_at` in microseconds since the Unix epoch.
    pub(super) fn noted(&self, noted_at: i64, scope: &Scope) -> Vec<u8> {
        let until_the_end = i64::MAX - noted_at.max(0);
        self.key(&format!("takeovers-noted/{until_the_end:019}|{scope}"))
    }

    pub(super) fn all_noted(&self) -> Vec<u8> {
        self.key("takeovers-noted/")
    }

    pub(super) fn read_noted(&self, key: &[u8]) -> Option<Scope> {
        let below = self.below(key)?.strip_prefix("takeovers-noted/")?;
        Scope::new(below.split(SEPARATOR).nth(1)?).ok()
    }

    pub(super) fn marks(&self) -> Range {
        self.range("mark/", "mark0")
    }

    pub(super) fn sessions(&self) -> Range {
        self.range("session/", "session0")
    }

    pub(super) fn sessions_of(&self, scope: &Scope) -> Range {
        self.within(&format!("session/{scope}"))
    }

    pub(super) fn records_of(&self, backend: Backend) -> Range {
        let Backend { pid, started_us } = backend;
        self.within(&format!("backend/{pid}|{started_us}"))
    }

    /// Cluster, identity and marks, and nothing else.
    pub(super) fn watched(&self) -> Range {
        self.range("cluster", "mark0")
    }

    pub(super) fn read_mark(&self, key: &[u8]) -> Answer<Scope> {
        let read = || Scope::new(self.below(key)?.strip_prefix("mark/")?).ok();
        read().ok_or_else(|| not_the_key(key, "a mark"))
    }

    pub(super) fn read_session(&self, key: &[u8]) -> Answer<(Scope, Backend)> {
        let read = || {
            let mut parts = self.below(key)?.strip_prefix("session/")?.split(SEPARATOR);
            let scope = Scope::new(parts.next()?).ok()?;
            let backend = Backend {
                pid: parts.next()?.parse().ok()?,
                started_us: parts.next()?.parse().ok()?,
            };
            parts.next().is_none().then_some((scope, backend))
        };
        read().ok_or_else(|| not_the_key(key, "a session"))
    }

    pub(super) fn read_record(&self, key: &[u8]) -> Answer<Scope> {
        let read = || {
            let below = self.below(key)?.strip_prefix("backend/")?;
            Scope::new(below.split(SEPARATOR).nth(2)?).ok()
        };
        read().ok_or_else(|| not_the_key(key, "a record"))
    }

    fn key(&self, below: &str) -> Vec<u8> {
        format!("{}{below}", self.prefix).into_bytes()
    }

    fn range(&self, from: &str, to: &str) -> Range {
        Range {
            from: self.key(from),
            to: self.key(to),
        }
    }

    /// The keys with these parts and more.
    fn within(&self, parts: &str) -> Range {
        self.range(&format!("{parts}|"), &format!("{parts}{AFTER_SEPARATOR}"))
    }

    fn below<'k>(&self, key: &'k [u8]) -> Option<&'k str> {
        std::str::from_utf8(key).ok()?.strip_prefix(&self.prefix)
    }
}

fn not_the_key(key: &[u8], of: &str) -> AuthorityError {
    let key = String::from_utf8_lossy(key);
    AuthorityError::Damaged(format!("{key:?} is not the key of {of}"))
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum NotOurs {
    OtherFormat(u32),
    Damaged(String),
}

pub(super) fn write_identity(identity: AuthorityId) -> Vec<u8> {
    // The order of the keys is the same everywhere: the value is compared.
    let identity = identity.to_string();
    format!(r#"{{"format":{FORMAT},"identity":"{identity}"}}"#).into_bytes()
}

pub(super) fn read_identity(value: &[u8]) -> Result<AuthorityId, NotOurs> {
    /// Every format has the first field.
    #[derive(Deserialize)]
    struct Origin {
        format: u32,
        #[serde(default)]
        identity: serde_json::Value,
    }
    let damaged = |e: &dyn std::fmt::Display| NotOurs::Damaged(format!("identity: {e}"));
    let Origin { format, identity } = serde_json::from_slice(value).map_err(|e| damaged(&e))?;
    if format != FORMAT {
        return Err(NotOurs::OtherFormat(format));
    }
    u128::from_str_radix(identity.as_str().unwrap_or_default(), 16)
        .map(|bits| AuthorityId::from_bytes(bits.to_be_bytes()))
        .map_err(|e| damaged(&e))
}

pub(super) fn read_mark(scope: &Scope, value: &[u8]) -> Answer<MarkRow> {
    let damaged = |e| AuthorityError::Damaged(format!("mark of scope {scope}: {e}"));
    serde_json::from_slice(value).map_err(damaged)
}

pub(super) fn read_cluster(value: &[u8]) -> Answer<Cluster> {
    let damaged = |e| AuthorityError::Damaged(format!("the cluster: {e}"));
    serde_json::from_slice(value).map_err(damaged)
}

/// Rank at the start of a session's value. The texts sort like the ranks. The value of a session with this rank is
/// greater than the text alone.
pub(super) fn rank_text(rank: Rank) -> String {
    let Rank { incarnation, token } = rank;
    format!("{:010}:{:019}", incarnation.get(), token.get())
}

pub(super) fn write_session(rank: Rank, since: i64) -> Vec<u8> {
    format!("{} {since}", rank_text(rank)).into_bytes()
}

pub(super) fn read_session(backend: Backend, value: &[u8]) -> Answer<Registered> {
    let read = || {
        let (rank, since) = std::str::from_utf8(value).ok()?.split_once(' ')?;
        let (incarnation, token) = rank.split_once(':')?;
        Some(Registered {
            backend,
            token: token.parse::<Token>().ok()?,
            incarnation: Incarnation::new(incarnation.parse().ok()?),
            since: since.parse().ok()?,
        })
    };
    read().ok_or_else(|| {
        let value = String::from_utf8_lossy(value);
        AuthorityError::Damaged(format!(
            "session {backend}: {value:?} is not a rank and a time"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Mark;
    use crate::record::json;

    fn scope(name: &str) -> Scope {
        Scope::new(name).unwrap()
    }

    fn within(key: &[u8], range: &Range) -> bool {
        range.from.as_slice() <= key && key < range.to.as_slice()
    }

    #[test]
    fn separators_are_in_no_scope() {
        assert!(Scope::new(&SEPARATOR.to_string()).is_err());
        assert_eq!(u32::from(SEPARATOR) + 1, u32::from(AFTER_SEPARATOR));
    }

    #[test]
    fn scopes_and_backends_that_begin_alike_never_meet() {
        let keys = Keys::new("/p/");
        let names = ["a", "a/", "a/b", "a:", "a-b", "aa", "A", "a.0", "a_"];
        let backend = |pid, started_us| Backend { pid, started_us };
        for one in names {
            for other in names {
                let key = keys.session(&scope(other), backend(1, 2));
                let met = within(&key, &keys.sessions_of(&scope(one)));
                assert_eq!(met, one == other, "{one} {other}");
            }
            let record = keys.backend(backend(1, 2), &scope(one));
            assert!(within(&record, &keys.records_of(backend(1, 2))));
            for other in [
                backend(1, 22),
                backend(1, -2),
                backend(11, 2),
                backend(-1, 2),
            ] {
                assert!(!within(&record, &keys.records_of(other)), "{other}");
            }
        }
    }

    #[test]
    fn keys_are_read_as_they_were_written() {
        let keys = Keys::new("/p/");
        for pid in [i32::MIN, -1, 0, 7, i32::MAX] {
            for started_us in [i64::MIN, 0, i64::MAX] {
                let (s, backend) = (scope("a/b:c"), Backend { pid, started_us });
                let key = keys.session(&s, backend);
                assert_eq!(keys.read_session(&key), Ok((s.clone(), backend)));
                assert_eq!(keys.read_record(&keys.backend(backend, &s)), Ok(s));
            }
        }
        assert_eq!(keys.read_mark(&keys.mark(&scope("x"))), Ok(scope("x")));
        assert!(keys.read_session(b"/p/session/a|1|2|3").is_err());
        assert!(keys.read_session(b"/q/session/a|1|2").is_err());
    }

    #[test]
    fn the_watched_range_has_cluster_identity_and_marks() {
        let keys = Keys::new("/p/");
        let (s, backend) = (
            scope("x"),
            Backend {
                pid: 1,
                started_us: 2,
            },
        );
        let watched = keys.watched();
        for key in [keys.cluster(), keys.identity(), keys.mark(&s)] {
            assert!(within(&key, &watched));
        }
        for key in [
            keys.sync(),
            keys.session(&s, backend),
            keys.backend(backend, &s),
        ] {
            assert!(!within(&key, &watched), "{}", String::from_utf8_lossy(&key));
        }
    }

    fn rank(incarnation: u32, token: u64) -> Rank {
        Rank {
            incarnation: Incarnation::new(incarnation),
            token: Token::new(token).unwrap(),
        }
    }

    #[test]
    fn etcd_can_compare_ranks() {
        let tokens = [1, 2, 9, 10, 99, 1_000_000_007, Token::MAX - 1, Token::MAX];
        let incarnations = [0, 1, 2, 9, 10, u32::MAX];
        let ranks: Vec<Rank> = incarnations
            .iter()
            .flat_map(|i| tokens.map(|token| rank(*i, token)))
            .collect();
        for at in &ranks {
            for other in &ranks {
                for since in [i64::MIN, 0, i64::MAX] {
                    let value = write_session(*other, since);
                    let bar = rank_text(*at).into_bytes();
                    assert_eq!(value < bar, other < at, "{other} {at}");
                    assert_ne!(value, bar);
                }
            }
        }
    }

    #[test]
    fn values_are_read_as_they_were_written() {
        let backend = Backend {
            pid: 1,
            started_us: 2,
        };
        for incarnation in [0, 1, u32::MAX] {
            let registered = Registered {
                backend,
                token: Token::new(7).unwrap(),
                incarnation: Incarnation::new(incarnation),
                since: -5,
            };
            let value = write_session(registered.rank(), registered.since);
            assert_eq!(read_session(backend, &value), Ok(registered));
        }
        // As every version of this format writes it.
        let first = write_session(rank(0, 7), -5);
        assert_eq!(first, b"0000000000:0000000000000000007 -5");
        assert!(read_session(backend, b"0:0 1").is_err());
        assert!(read_session(backend, b"1 1").is_err());
        assert!(read_session(backend, b"\xff").is_err());
        let identity = AuthorityId::random();
        assert_eq!(read_identity(&write_identity(identity)), Ok(identity));
        for other in [2, 4] {
            let written = format!(r#"{{"format":{other},"other":1}}"#);
            let refused = Err(NotOurs::OtherFormat(other));
            assert_eq!(read_identity(written.as_bytes()), refused);
        }
        assert!(matches!(read_identity(b"x"), Err(NotOurs::Damaged(_))));
    }

    #[test]
    fn a_mark_is_read_as_it_was_written() {
        let row = MarkRow {
            drained: true,
            ..MarkRow::raised(Mark::new(Token::new(7).unwrap(), 1, "x".into()))
        };
        assert_eq!(read_mark(&scope("s"), json(&row).as_bytes()), Ok(row));
    }
}
