//! Names of one kind, and the texts that they stand for. Memory is bounded: what could not be kept stays in doubt.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::fence::PreparedText;

/// Bytes counted for each entry besides. They bound the number of entries, because freeing many at once takes time.
const ENTRY_BYTES: usize = 64;

/// Worst text that an unknown name may stand for: some names could not be kept or compared.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Lost {
    /// No text of the protocol.
    #[default]
    Nothing,
    /// A text that changes only data.
    Some,
    /// A text that changes the session.
    MaySteer,
}

impl Lost {
    /// What remains known of a text that cannot be kept.
    pub(super) fn of(meaning: &PreparedText) -> Self {
        let steers = match meaning {
            PreparedText::Classified(classified) => {
                let mut statements = classified.verdict.statements.iter();
                statements.any(|one| !one.controls.is_empty() || one.is_unread())
            }
            PreparedText::MaySteer => true,
            PreparedText::Plain | PreparedText::Sql(_) | PreparedText::Unknown => false,
        };
        if steers { Self::MaySteer } else { Self::Some }
    }

    pub(super) const fn meaning(self) -> Option<&'static PreparedText> {
        match self {
            Self::Nothing => None,
            Self::Some => Some(&PreparedText::Unknown),
            Self::MaySteer => Some(&PreparedText::MaySteer),
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct NameTable {
    // An ordered map: it is small, so comparing costs a third of hashing, and no choice of names makes it slow.
    named: BTreeMap<Box<[u8]>, PreparedText>,
    bytes: usize,
    lost: Lost,
}

impl NameTable {
    pub(super) fn insert(&mut self, name: Box<[u8]>, meaning: PreparedText) {
        self.bytes += entry_bytes(&name, &meaning);
        self.named.insert(name, meaning);
    }

    pub(super) fn remove(&mut self, name: &[u8]) -> Option<PreparedText> {
        let meaning = self.named.remove(name)?;
        self.bytes = self.bytes.saturating_sub(entry_bytes(name, &meaning));
        Some(meaning)
    }

    pub(super) fn kept(&self, name: &[u8]) -> Option<&PreparedText> {
        self.named.get(name)
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &[u8]> {
        self.named.keys().map(|name| &**name)
    }

    /// What an unknown name may stand for.
    pub(super) const fn unknown(&self) -> Option<&'static PreparedText> {
        self.lost.meaning()
    }

    /// Notes that some name has this meaning.
    pub(super) fn lose(&mut self, meaning: &PreparedText) {
        self.lost = Lost::of(meaning).max(self.lost);
    }

    pub(super) fn has_lost(&self) -> bool {
        self.lost != Lost::Nothing
    }

    /// Marks each name as unclear: it stands for its text, or for one that PREPARE takes, which changes only data.
    pub(super) fn doubt(&mut self) {
        for meaning in self.named.values_mut() {
            *meaning = Lost::of(meaning).meaning().cloned().unwrap_or_default();
        }
        self.count();
        self.lost = self.lost.max(Lost::Some);
    }

    /// Notes that such statements are those of nobody. The server has them, so they are closed before their names
    /// are used.
    pub(super) fn disown(&mut self, is_such: impl Fn(&[u8], &PreparedText) -> bool) {
        for (name, meaning) in &mut self.named {
            if is_such(name, meaning)
                && let PreparedText::Classified(statement) = meaning
            {
                Arc::make_mut(statement).source = None;
            }
        }
        self.count();
    }

    fn count(&mut self) {
        let entries = self.named.iter();
        self.bytes = entries
            .map(|(name, meaning)| entry_bytes(name, meaning))
            .sum();
    }

    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn len(&self) -> usize {
        self.named.len()
    }
}

/// Approximate memory of an entry.
pub(super) fn entry_bytes(name: &[u8], meaning: &PreparedText) -> usize {
    let source = meaning.source().map_or(0, |source| source.parse().len());
    ENTRY_BYTES + name.len() + meaning.excerpt().len() + source
}
