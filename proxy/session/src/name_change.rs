//! Changes of prepared statements and portals by messages in flight.

use std::sync::Arc;

use crate::fence::{Name, NameSpace, PreparedText, Source};

/// Change of a name, which applies once the server confirms the message.
#[derive(Debug, Default)]
pub(crate) enum NameChange {
    /// No change.
    #[default]
    None,
    /// Parse of the unnamed statement.
    UnnamedStatement(PreparedText),
    /// Bind of the unnamed portal.
    UnnamedPortal(PreparedText),
    /// Parse or Bind of a name, or a Close.
    Named(Box<NamedChange>),
    /// No change: a Describe, whose reply tells the client about the statement.
    Describe(Arc<Source>),
    /// Close of another client's statement. If the client has one of this name elsewhere, it keeps that.
    Vacate(Box<[u8]>),
}

/// The change of one name.
#[derive(Debug)]
pub(crate) struct NamedChange {
    pub(super) kind: NameSpace,
    pub(super) name: Box<[u8]>,
    pub(super) meaning: Option<PreparedText>,
}

impl NameChange {
    /// Change by a Parse or Bind.
    #[inline]
    #[must_use]
    pub(crate) fn set(name: Name<'_>, meaning: PreparedText) -> Self {
        match (name.kind(), name.is_unnamed()) {
            (NameSpace::Statement, true) => Self::UnnamedStatement(meaning),
            (NameSpace::Portal, true) => Self::UnnamedPortal(meaning),
            _ => Self::named(name, Some(meaning)),
        }
    }

    /// Change by a Close.
    #[must_use]
    pub(crate) fn close(name: Name<'_>) -> Self {
        Self::named(name, None)
    }

    fn named(name: Name<'_>, meaning: Option<PreparedText>) -> Self {
        Self::Named(Box::new(NamedChange {
            kind: name.kind(),
            name: name.bytes().into(),
            meaning,
        }))
    }

    /// Name space of the change.
    #[inline]
    #[must_use]
    pub(crate) fn kind(&self) -> Option<NameSpace> {
        match self {
            Self::None | Self::Describe(_) => None,
            Self::UnnamedStatement(_) => Some(NameSpace::Statement),
            Self::UnnamedPortal(_) => Some(NameSpace::Portal),
            Self::Named(change) => Some(change.kind),
            Self::Vacate(_) => Some(NameSpace::Statement),
        }
    }

    /// The statement that it makes.
    pub(crate) fn statement(&self) -> Option<&PreparedText> {
        match self {
            Self::UnnamedStatement(meaning) => Some(meaning),
            Self::Named(change) if change.kind == NameSpace::Statement => change.meaning.as_ref(),
            _ => None,
        }
    }

    /// The statement that it makes.
    pub(crate) fn statement_mut(&mut self) -> Option<&mut PreparedText> {
        match self {
            Self::UnnamedStatement(meaning) => Some(meaning),
            Self::Named(change) if change.kind == NameSpace::Statement => change.meaning.as_mut(),
            _ => None,
        }
    }

    /// What `name` stands for after the change, if it is about that name; `Some(None)` after a Close.
    #[inline]
    #[must_use]
    pub(crate) fn of(&self, name: Name<'_>) -> Option<Option<&PreparedText>> {
        match self {
            Self::UnnamedStatement(meaning) if name == Name::statement(b"") => Some(Some(meaning)),
            Self::UnnamedPortal(meaning) if name == Name::portal(b"") => Some(Some(meaning)),
            Self::Named(change) if change.kind == name.kind() && *change.name == *name.bytes() => {
                Some(change.meaning.as_ref())
            }
            Self::Vacate(vacated) if name == Name::statement(vacated) => Some(None),
            _ => None,
        }
    }
}
