//! Prepared statements of a client that is lent a server connection for each transaction.
//!
//! A statement keeps its client's name. Where it is missing, it is parsed again.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::name_table::entry_bytes;
use crate::fence::{Classified, PreparedText};

/// Limit in bytes for the names and excerpts of a session, and for the statements that a client keeps. What does not
/// fit is unknown.
pub(super) const NAMES_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Error for a statement past the limit.
#[derive(Debug)]
pub(super) struct NoRoom;

/// All statements of a client, wherever they were parsed.
#[derive(Debug, Default)]
pub(super) struct Statements {
    /// Classified, all of them.
    named: BTreeMap<Box<[u8]>, PreparedText>,
    /// The unnamed statement when the client left its last server connection.
    pub(super) unnamed: Option<Arc<Classified>>,
    bytes: usize,
    /// Number of those without a source.
    unmovable: usize,
}

impl Statements {
    /// Adds a statement that the server has confirmed, unless it was parsed again.
    pub(super) fn insert(&mut self, name: &[u8], meaning: &PreparedText) -> Result<(), NoRoom> {
        // Another reason keeps the connection of a client that has used PREPARE.
        let PreparedText::Classified(statement) = meaning else {
            return Ok(());
        };
        let bytes = entry_bytes(name, meaning);
        if self.named.contains_key(name) {
            return Ok(());
        }
        if self.bytes + bytes > NAMES_BYTES_MAX {
            return Err(NoRoom);
        }
        self.bytes += bytes;
        self.unmovable += usize::from(statement.source.is_none());
        self.named.insert(name.into(), meaning.clone());
        Ok(())
    }

    pub(super) fn get(&self, name: &[u8]) -> Option<&PreparedText> {
        self.named.get(name)
    }

    pub(super) fn remove(&mut self, name: &[u8]) {
        if let Some(meaning) = self.named.remove(name) {
            self.bytes -= entry_bytes(name, &meaning);
            self.unmovable -= usize::from(meaning.source().is_none());
        }
    }

    /// Removes those that have a name.
    pub(super) fn clear(&mut self) {
        self.named.clear();
        (self.bytes, self.unmovable) = (0, 0);
    }

    /// Whether one that has a name may mean something else after a SET. Another SET does not.
    pub(super) fn depend_on_settings(&self) -> bool {
        self.named.values().any(PreparedText::depends_on_settings)
    }

    /// Whether one cannot be parsed again.
    pub(super) const fn has_unmovable(&self) -> bool {
        self.unmovable > 0
    }
}
