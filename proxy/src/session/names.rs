//! Prepared statements and portals: what a name stands for, so that an Execute can be judged.
//!
//! Statements of the protocol and of SQL (PREPARE, EXECUTE, DEALLOCATE) share one name space. A name
//! that is not known, or that may stand for one of two texts, is a write.
//!
//! Source: <https://www.postgresql.org/docs/current/protocol-flow.html#PROTOCOL-FLOW-EXT-QUERY>

use std::collections::BTreeMap;
use std::sync::Arc;

use pgpalisade_policies::scan::NeedsParse;
use pgpalisade_policies::{Class, Effects, Verdict};

/// Names and excerpts of a session may take this many bytes together; what does not fit is unknown.
const NAMES_BYTES_MAX: usize = 4 * 1024 * 1024;

/// As much of a statement's text is kept for the rejection log.
pub const EXCERPT_MAX: usize = 1024;

/// What a prepared statement or portal does, as far as the proxy looked.
#[derive(Debug, Clone, Default)]
pub enum Meaning {
    /// The text was classified.
    Classified {
        /// What the text does.
        verdict: Arc<Verdict>,
        /// The front of the text.
        excerpt: Option<Arc<[u8]>>,
        /// Whether a byte scan would have done: a session that may write anyway has nothing to learn from it.
        scan: NeedsParse,
    },
    /// A byte scan showed that the text does nothing to the session; read or write was not asked.
    Plain,
    /// Made by SQL PREPARE.
    Sql(Arc<Effects>),
    /// Nothing is known.
    #[default]
    Unknown,
}

impl Meaning {
    /// The verdict, where there is one.
    #[must_use]
    pub const fn verdict(&self) -> Option<&Arc<Verdict>> {
        match self {
            Self::Classified { verdict, .. } => Some(verdict),
            Self::Plain | Self::Sql(_) | Self::Unknown => None,
        }
    }

    /// Whether executing it does nothing to the session, whatever it does to data.
    #[inline]
    #[must_use]
    pub const fn is_plain(&self) -> bool {
        matches!(
            self,
            Self::Plain
                | Self::Classified {
                    scan: NeedsParse::No,
                    ..
                }
        )
    }

    /// The front of the text, where it was kept.
    #[must_use]
    pub fn excerpt(&self) -> &[u8] {
        match self {
            Self::Classified {
                excerpt: Some(excerpt),
                ..
            } => excerpt,
            _ => &[],
        }
    }

    /// Read, or write where it could be one.
    #[must_use]
    pub fn class(&self) -> Class {
        match self {
            Self::Classified { verdict, .. } => verdict.class(),
            Self::Sql(effects) => effects.class,
            Self::Plain | Self::Unknown => Class::Write,
        }
    }

    /// What executing it does; anything, where that is not known.
    #[must_use]
    pub fn effects(&self) -> Arc<Effects> {
        match self {
            Self::Sql(effects) => Arc::clone(effects),
            Self::Classified { .. } | Self::Plain | Self::Unknown => {
                Arc::new(Effects::unknown(None))
            }
        }
    }

    fn bytes(&self) -> usize {
        self.excerpt().len()
    }
}

/// What noting a name has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Noted {
    /// It is new, and known from now on.
    New,
    /// It keeps its old meaning, or there is no room for it: then it is not known.
    No,
}

/// The unnamed statement that the server has, where it is another than the client takes it for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum ServerUnnamed {
    /// They agree.
    #[default]
    Same,
    /// The client's Parse of another one was refused before it was sent.
    Older,
}

/// The names of one session.
#[derive(Debug, Default)]
pub struct Names {
    unnamed_statement: Meaning,
    unnamed_portal: Meaning,
    server_unnamed: ServerUnnamed,
    // Ordered: they are few, so that to compare costs a third of hashing, and no choice of names makes it slow.
    statements: BTreeMap<Box<[u8]>, Meaning>,
    portals: BTreeMap<Box<[u8]>, Meaning>,
    bytes: usize,
}

impl Names {
    /// A Parse, or a PREPARE that has completed. A name that exists keeps its meaning, as the server
    /// refuses the new one.
    pub fn prepare(&mut self, name: &[u8], meaning: Meaning) -> Noted {
        if name.is_empty() {
            self.unnamed_statement = meaning;
            self.server_unnamed = ServerUnnamed::Same;
            return Noted::No;
        }
        let bytes = name.len() + meaning.bytes();
        if self.statements.contains_key(name) || self.bytes.saturating_add(bytes) > NAMES_BYTES_MAX
        {
            return Noted::No;
        }
        self.bytes += bytes;
        self.statements.insert(name.into(), meaning);
        Noted::New
    }

    /// Whether a statement of this name is known.
    #[must_use]
    pub fn has_statement(&self, name: &[u8]) -> bool {
        self.statements.contains_key(name)
    }

    /// Whether a portal of this name is known.
    #[must_use]
    pub fn has_portal(&self, name: &[u8]) -> bool {
        self.portals.contains_key(name)
    }

    /// A Bind.
    pub fn bind(&mut self, portal: &[u8], statement: &[u8]) {
        let meaning = self.statement(statement).cloned().unwrap_or_default();
        if portal.is_empty() {
            self.unnamed_portal = meaning;
        } else if self.bytes.saturating_add(portal.len()) <= NAMES_BYTES_MAX {
            // A Bind of a portal that exists fails, so the first meaning may still be the right one.
            let twice = self.portals.contains_key(portal);
            if !twice {
                self.bytes += portal.len();
            }
            let meaning = if twice { Meaning::Unknown } else { meaning };
            self.portals.insert(portal.into(), meaning);
        }
    }

    /// A Parse of the unnamed statement was refused, and the server has not heard of it: it may still have the one
    /// before.
    pub fn refuse_unnamed(&mut self) {
        self.unnamed_statement = Meaning::Unknown;
        self.server_unnamed = ServerUnnamed::Older;
    }

    /// Whether the server may have another statement under this name than the client believes. Once: it must be closed
    /// there before the name is used.
    #[inline]
    pub fn take_older(&mut self, statement: &[u8]) -> bool {
        statement.is_empty() && std::mem::take(&mut self.server_unnamed) == ServerUnnamed::Older
    }

    /// What a prepared statement does; `None` where the name is not known.
    #[must_use]
    pub fn statement(&self, name: &[u8]) -> Option<&Meaning> {
        match name {
            [] => Some(&self.unnamed_statement),
            name => self.statements.get(name),
        }
    }

    /// What a portal does; `None` where the name is not known.
    #[must_use]
    pub fn portal(&self, name: &[u8]) -> Option<&Meaning> {
        match name {
            [] => Some(&self.unnamed_portal),
            name => self.portals.get(name),
        }
    }

    /// A Close of a statement, or a DEALLOCATE, has completed; or a Parse has failed.
    pub fn remove_statement(&mut self, name: &[u8]) {
        if name.is_empty() {
            self.unnamed_statement = Meaning::Unknown;
        } else if let Some(meaning) = self.statements.remove(name) {
            self.bytes = self.bytes.saturating_sub(name.len() + meaning.bytes());
        }
    }

    /// DEALLOCATE ALL, or DISCARD ALL, has completed.
    pub fn remove_all_statements(&mut self) {
        self.statements.clear();
        self.bytes = self.portals.keys().map(|name| name.len()).sum();
    }

    /// A Close of a portal has completed.
    pub fn remove_portal(&mut self, name: &[u8]) {
        if name.is_empty() {
            self.unnamed_portal = Meaning::Unknown;
        } else if self.portals.remove(name).is_some() {
            self.bytes = self.bytes.saturating_sub(name.len());
        }
    }

    /// A simple Query destroys the unnamed statement and portal.
    #[inline]
    pub fn on_simple_query(&mut self) {
        self.server_unnamed = ServerUnnamed::Same;
        if !matches!(self.unnamed_statement, Meaning::Unknown) {
            self.unnamed_statement = Meaning::Unknown;
            self.unnamed_portal = Meaning::Unknown;
        }
    }

    /// Portals end with their transaction.
    #[inline]
    pub fn end_transaction(&mut self) {
        if !self.portals.is_empty() {
            self.bytes = self
                .bytes
                .saturating_sub(self.portals.keys().map(|name| name.len()).sum());
            self.portals.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read() -> Meaning {
        Meaning::Sql(Arc::new(Effects::none()))
    }

    fn write() -> Meaning {
        Meaning::Sql(Arc::new(Effects::unknown(None)))
    }

    fn class(names: &Names, statement: &[u8]) -> Class {
        names
            .statement(statement)
            .map_or(Class::Write, Meaning::class)
    }

    #[test]
    fn a_name_means_what_was_prepared_under_it() {
        let mut names = Names::default();
        assert_eq!(class(&names, b"s"), Class::Write);
        names.prepare(b"s", read());
        assert_eq!(class(&names, b"s"), Class::Read);
        names.bind(b"p", b"s");
        assert_eq!(names.portal(b"p").map(Meaning::class), Some(Class::Read));
        names.end_transaction();
        assert!(names.portal(b"p").is_none());
    }

    #[test]
    fn a_name_keeps_its_meaning_until_it_is_closed() {
        let mut names = Names::default();
        assert_eq!(names.prepare(b"s", write()), Noted::New);
        // Refused by the server: the name exists.
        assert_eq!(names.prepare(b"s", read()), Noted::No);
        assert_eq!(class(&names, b"s"), Class::Write);
        names.remove_statement(b"s");
        assert_eq!(names.bytes, 0);
        assert_eq!(names.prepare(b"s", read()), Noted::New);
        assert_eq!(class(&names, b"s"), Class::Read);
        names.remove_all_statements();
        assert_eq!(class(&names, b"s"), Class::Write);
    }

    #[test]
    fn an_unnamed_statement_that_was_refused_is_not_the_one_before() {
        let mut names = Names::default();
        names.prepare(b"", read());
        assert!(!names.take_older(b""));
        names.refuse_unnamed();
        assert_eq!(class(&names, b""), Class::Write);
        assert!(!names.take_older(b"s"));
        assert!(names.take_older(b""));
        assert!(!names.take_older(b""));
        // A new one takes its place, and a simple Query destroys it.
        for replace in [
            |names: &mut Names| _ = names.prepare(b"", read()),
            Names::on_simple_query,
        ] {
            names.refuse_unnamed();
            replace(&mut names);
            assert!(!names.take_older(b""));
        }
    }

    #[test]
    fn a_portal_that_may_mean_two_things_is_a_write() {
        let mut names = Names::default();
        names.prepare(b"r", read());
        names.prepare(b"w", write());
        names.bind(b"p", b"w");
        names.bind(b"p", b"r");
        assert_eq!(names.portal(b"p").map(Meaning::class), Some(Class::Write));
        names.remove_portal(b"p");
        names.bind(b"p", b"r");
        assert_eq!(names.portal(b"p").map(Meaning::class), Some(Class::Read));
        assert_eq!(names.bytes, 3);
    }

    #[test]
    fn memory_is_bounded() {
        let mut names = Names::default();
        let long = vec![b'x'; NAMES_BYTES_MAX + 1];
        names.prepare(&long, read());
        assert_eq!(class(&names, &long), Class::Write);
        assert_eq!(names.bytes, 0);
    }
}
