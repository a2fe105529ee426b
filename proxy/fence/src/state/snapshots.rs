//! Values that a rollback restores, and their snapshots.

use std::collections::VecDeque;
use std::iter::once;
use std::sync::Arc;

use pgpalisade_authority::Scope;
use pgpalisade_policies::Lifetime;

use super::ServerText;
use crate::HeldTokens;

/// Number of savepoints that are kept. A text of several statements copies them, and searches them for a name.
pub(super) const SAVEPOINTS_MAX: usize = 64;

/// A setting: its value for the session and, inside a transaction, a local one that hides it.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Setting<T> {
    pub(super) session: T,
    pub(super) local: Option<T>,
}

impl<T> Setting<T> {
    pub(super) const fn new(session: T) -> Self {
        Self {
            session,
            local: None,
        }
    }

    pub(super) const fn get(&self) -> &T {
        match &self.local {
            Some(local) => local,
            None => &self.session,
        }
    }

    pub(super) fn set(&mut self, value: T, lifetime: Lifetime) {
        match lifetime {
            // A SET also ends an earlier SET LOCAL of the same transaction.
            Lifetime::Session => *self = Self::new(value),
            Lifetime::Local => self.local = Some(value),
        }
    }
}

/// A value of `fencing.token`.
#[derive(Debug, Clone, Default)]
pub(super) struct Declared {
    pub(super) held: Option<Arc<HeldTokens>>,
    pub(super) text: ServerText,
}

impl PartialEq for Declared {
    fn eq(&self, other: &Self) -> bool {
        let [one, two] = [self, other].map(|each| each.held.as_ref().map(Arc::as_ptr));
        one == two && self.text == other.text
    }
}

/// Values that a rollback restores.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Scoped {
    pub(super) token: Setting<Declared>,
    pub(super) scope: Setting<Option<Scope>>,
}

/// Snapshots of the open transaction: its start, then its savepoints.
#[derive(Debug, Clone)]
pub(super) struct Transaction {
    pub(super) start: Scoped,
    /// Values that the savepoints before the kept ones restore. If they restore different tokens, there is none.
    forgotten: Option<Scoped>,
    pub(super) savepoints: VecDeque<(Box<str>, Scoped)>,
}

impl Transaction {
    pub(super) const fn begun(start: Scoped) -> Self {
        Self {
            start,
            forgotten: None,
            savepoints: VecDeque::new(),
        }
    }

    /// Snapshot that an error restores.
    pub(super) fn top(&self) -> &Scoped {
        let last = self.savepoints.back().map(|(_, scoped)| scoped);
        last.or(self.forgotten.as_ref()).unwrap_or(&self.start)
    }

    pub(super) fn push(&mut self, name: &str, now: Scoped) {
        if self.savepoints.len() == SAVEPOINTS_MAX
            && let Some((_, oldest)) = self.savepoints.pop_front()
        {
            self.forgotten = Some(match self.forgotten.take() {
                Some(other) if other != oldest => Scoped {
                    token: Setting::new(Declared {
                        held: None,
                        text: other.token.get().text.max(oldest.token.get().text),
                    }),
                    ..oldest
                },
                _ => oldest,
            });
        }
        self.savepoints.push_back((name.into(), now));
    }

    /// Number of kept savepoints up to the last of this name. It may be a forgotten one.
    pub(super) fn find(&self, name: &str) -> Option<usize> {
        let mut savepoints = self.savepoints.iter();
        let at = savepoints.rposition(|(known, _)| **known == *name);
        at.map(|at| at + 1)
            .or_else(|| self.forgotten.is_some().then_some(0))
    }

    pub(super) fn snapshots(&mut self) -> impl Iterator<Item = &mut Scoped> {
        let savepoints = self.savepoints.iter_mut().map(|(_, scoped)| scoped);
        once(&mut self.start)
            .chain(&mut self.forgotten)
            .chain(savepoints)
    }
}
