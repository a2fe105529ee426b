//! Prepared statements and portals: what a name stands for, so that an Execute can be judged.
//!
//! Statements of the protocol and of SQL (PREPARE, EXECUTE, DEALLOCATE) share one name space. A name
//! that is not known, or that may stand for one of two texts, is a write.
//!
//! Source: <https://www.postgresql.org/docs/current/protocol-flow.html#PROTOCOL-FLOW-EXT-QUERY>

use std::collections::HashMap;
use std::sync::Arc;

use pgpalisade_policies::{Class, Verdict};

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
    },
    /// A byte scan showed that the text does nothing to the session; read or write was not asked.
    Plain,
    /// Made by SQL PREPARE.
    Sql(Class),
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
            Self::Sql(class) => *class,
            Self::Plain | Self::Unknown => Class::Write,
        }
    }

    fn bytes(&self) -> usize {
        self.excerpt().len()
    }
}

/// Whether the server is known to have a statement of the name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Presence {
    Present,
    /// A Close or DEALLOCATE is on its way; an error in front of it may make the server skip it.
    Closing,
}

/// The names of one session.
#[derive(Debug, Default)]
pub struct Names {
    unnamed_statement: Meaning,
    unnamed_portal: Meaning,
    statements: HashMap<Box<[u8]>, (Meaning, Presence)>,
    portals: HashMap<Box<[u8]>, Meaning>,
    bytes: usize,
    closing: usize,
}

impl Names {
    /// A Parse, or a PREPARE that has completed.
    pub fn prepare(&mut self, name: &[u8], meaning: Meaning) {
        if name.is_empty() {
            self.unnamed_statement = meaning;
            return;
        }
        if let Some((known, _)) = self.statements.get_mut(name) {
            // The server keeps the old one unless the Close in front of this worked.
            *known = Meaning::Unknown;
            return;
        }
        let bytes = name.len() + meaning.bytes();
        if self.bytes.saturating_add(bytes) <= NAMES_BYTES_MAX {
            self.bytes += bytes;
            self.statements
                .insert(name.into(), (meaning, Presence::Present));
        }
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

    /// What a prepared statement does; `None` where the name is not known.
    #[must_use]
    pub fn statement(&self, name: &[u8]) -> Option<&Meaning> {
        match name {
            [] => Some(&self.unnamed_statement),
            name => self.statements.get(name).map(|(meaning, _)| meaning),
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

    /// A Close of a statement, or a DEALLOCATE.
    pub fn close_statement(&mut self, name: &[u8]) {
        if name.is_empty() {
            self.unnamed_statement = Meaning::Unknown;
        } else if let Some((_, presence)) = self.statements.get_mut(name)
            && *presence == Presence::Present
        {
            *presence = Presence::Closing;
            self.closing += 1;
        }
    }

    /// DEALLOCATE ALL, or DISCARD ALL, has completed.
    pub fn close_all_statements(&mut self) {
        self.statements.clear();
        self.closing = 0;
        self.bytes = self.portals.keys().map(|name| name.len()).sum();
    }

    /// A Close of a portal.
    pub fn close_portal(&mut self, name: &[u8]) {
        if name.is_empty() {
            self.unnamed_portal = Meaning::Unknown;
        } else {
            // A Close that the server skips leaves a portal of unknown meaning.
            if let Some(meaning) = self.portals.get_mut(name) {
                *meaning = Meaning::Unknown;
            }
        }
    }

    /// A simple Query destroys the unnamed statement and portal.
    #[inline]
    pub fn on_simple_query(&mut self) {
        if !matches!(self.unnamed_statement, Meaning::Unknown) {
            self.unnamed_statement = Meaning::Unknown;
            self.unnamed_portal = Meaning::Unknown;
        }
    }

    /// Everything sent so far has been answered without an error: what was closing is gone.
    #[inline]
    pub fn confirm_closed(&mut self) {
        if self.closing > 0 {
            let bytes = &mut self.bytes;
            self.statements.retain(|name, (meaning, presence)| {
                let stays = *presence == Presence::Present;
                if !stays {
                    *bytes = bytes.saturating_sub(name.len() + meaning.bytes());
                }
                stays
            });
            self.closing = 0;
        }
    }

    /// An error may have made the server skip a Close: what was closing is still there.
    pub fn keep_closing(&mut self) {
        if self.closing > 0 {
            for (_, presence) in self.statements.values_mut() {
                *presence = Presence::Present;
            }
            self.closing = 0;
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

    fn class(names: &Names, statement: &[u8]) -> Class {
        names
            .statement(statement)
            .map_or(Class::Write, Meaning::class)
    }

    #[test]
    fn a_name_means_what_was_prepared_under_it() {
        let mut names = Names::default();
        assert_eq!(class(&names, b"s"), Class::Write);
        names.prepare(b"s", Meaning::Sql(Class::Read));
        assert_eq!(class(&names, b"s"), Class::Read);
        names.bind(b"p", b"s");
        assert_eq!(names.portal(b"p").map(Meaning::class), Some(Class::Read));
        names.end_transaction();
        assert!(names.portal(b"p").is_none());
    }

    #[test]
    fn a_name_that_may_mean_two_things_is_a_write() {
        let mut names = Names::default();
        names.prepare(b"s", Meaning::Sql(Class::Write));
        // Refused by the server: the name exists.
        names.prepare(b"s", Meaning::Sql(Class::Read));
        assert_eq!(class(&names, b"s"), Class::Write);
    }

    #[test]
    fn a_close_counts_only_when_it_was_answered() {
        let mut names = Names::default();
        names.prepare(b"s", Meaning::Sql(Class::Write));
        names.close_statement(b"s");
        names.keep_closing();
        names.prepare(b"s", Meaning::Sql(Class::Read));
        assert_eq!(class(&names, b"s"), Class::Write);

        let mut names = Names::default();
        names.prepare(b"s", Meaning::Sql(Class::Write));
        names.close_statement(b"s");
        names.confirm_closed();
        names.prepare(b"s", Meaning::Sql(Class::Read));
        assert_eq!(class(&names, b"s"), Class::Read);
        assert_eq!(names.bytes, 1);
    }

    #[test]
    fn memory_is_bounded() {
        let mut names = Names::default();
        let long = vec![b'x'; NAMES_BYTES_MAX + 1];
        names.prepare(&long, Meaning::Sql(Class::Read));
        assert_eq!(class(&names, &long), Class::Write);
        assert_eq!(names.bytes, 0);
    }
}
