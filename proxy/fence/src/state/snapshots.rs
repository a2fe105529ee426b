//! Values that a rollback restores, and their snapshots.

use std::collections::VecDeque;
use std::iter::once;
use std::sync::Arc;

use pgpalisade_authority::Scope;
use pgpalisade_policies::Lifetime;

use crate::{HeldTokens, TokenValue};

/// Text that the server has for a value of `fencing.token`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum ServerText {
    /// The tokens.
    #[default]
    Tokens,
    /// Something else: a take, which only the proxy understands, or nothing, because another client had the server
    /// connection.
    Other,
}

impl ServerText {
    /// Text of a value as a client declares it.
    #[must_use]
    pub fn of(value: &TokenValue) -> Self {
        if value.takes() {
            Self::Other
        } else {
            Self::Tokens
        }
    }
}

/// Number of savepoints that are kept. A text of several statements copies them, and searches them for a name.
pub(super) const SAVEPOINTS_MAX: usize = 64;

/// A setting: its value for the session and, inside a transaction, a local one that hides it.
#[derive(Debug, Clone, Default)]
pub(super) struct Setting<T> {
    pub(super) session: T,
    pub(super) local: Option<T>,
}

/// A local value that hides an equal one changes nothing.
impl<T: PartialEq> PartialEq for Setting<T> {
    fn eq(&self, other: &Self) -> bool {
        self.get() == other.get() && self.session == other.session
    }
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

/// Tokens of a value of `fencing.token`.
#[derive(Debug, Clone, Default)]
pub(super) enum Tokens {
    /// None were accepted.
    #[default]
    None,
    /// Accepted for the server connection in use.
    Here(Arc<HeldTokens>),
    /// Accepted for an earlier server connection. They count once they are declared for this one.
    Elsewhere(Arc<HeldTokens>),
}

impl Tokens {
    pub(super) const fn here(&self) -> Option<&Arc<HeldTokens>> {
        match self {
            Self::Here(held) => Some(held),
            Self::None | Self::Elsewhere(_) => None,
        }
    }

    pub(super) const fn elsewhere(&self) -> Option<&Arc<HeldTokens>> {
        match self {
            Self::Elsewhere(held) => Some(held),
            Self::None | Self::Here(_) => None,
        }
    }

    /// Whether a new acceptance of a value takes their place.
    pub(super) fn gives_way_to(&self, value: &TokenValue) -> bool {
        match self {
            Self::None => false,
            Self::Here(held) => held.is_for(value),
            Self::Elsewhere(held) => held.value() == *value,
        }
    }

    /// Leaves the server connection. A stale token is declared nowhere else, and goes on to refuse writes.
    pub(super) fn leave(&mut self) {
        if let Self::Here(held) = self
            && held.stale().is_none()
        {
            *self = Self::Elsewhere(Arc::clone(held));
        }
    }
}

impl From<Option<Arc<HeldTokens>>> for Tokens {
    fn from(held: Option<Arc<HeldTokens>>) -> Self {
        held.map_or(Self::None, Self::Here)
    }
}

impl PartialEq for Tokens {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::None, Self::None) => true,
            (Self::Here(one), Self::Here(two)) | (Self::Elsewhere(one), Self::Elsewhere(two)) => {
                Arc::ptr_eq(one, two)
            }
            _ => false,
        }
    }
}

/// A value of `fencing.token`.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Declared {
    pub(super) tokens: Tokens,
    pub(super) text: ServerText,
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
                        tokens: Tokens::None,
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
