//! Names of prepared statements and portals, and the texts that they stand for.

use std::sync::Arc;

use pgpalisade_policies::{Analysis, Effects};

use crate::Source;

/// Bytes of a name that PostgreSQL keeps and compares.
/// <https://www.postgresql.org/docs/current/sql-syntax-lexical.html#SQL-SYNTAX-IDENTIFIERS>
const NAME_BYTES: usize = 63;

/// The name space of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum NameSpace {
    /// Prepared statements.
    Statement,
    /// Portals, which are SQL's cursors.
    Portal,
}

/// A name as PostgreSQL compares it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name<'a> {
    kind: NameSpace,
    bytes: &'a [u8],
}

impl<'a> Name<'a> {
    /// The name of a prepared statement.
    #[inline]
    #[must_use]
    pub fn statement(name: &'a [u8]) -> Self {
        Self::new(NameSpace::Statement, name)
    }

    /// The name of a portal.
    #[inline]
    #[must_use]
    pub fn portal(name: &'a [u8]) -> Self {
        Self::new(NameSpace::Portal, name)
    }

    /// A name of this name space.
    #[inline]
    #[must_use]
    pub fn new(kind: NameSpace, name: &'a [u8]) -> Self {
        Self {
            kind,
            bytes: name.get(..NAME_BYTES).unwrap_or(name),
        }
    }

    /// Its bytes.
    #[inline]
    #[must_use]
    pub const fn bytes(self) -> &'a [u8] {
        self.bytes
    }

    /// Its name space.
    #[inline]
    #[must_use]
    pub const fn kind(self) -> NameSpace {
        self.kind
    }

    /// Whether it is the name of the unnamed statement or portal.
    #[inline]
    #[must_use]
    pub const fn is_unnamed(self) -> bool {
        self.bytes.is_empty()
    }

    /// Whether other bytes are sure to be another name. The server first converts a name from the client's encoding.
    #[must_use]
    pub fn is_comparable(self) -> bool {
        self.bytes.is_ascii()
    }
}

/// Text of a prepared statement or portal, as far as the proxy knows it.
#[derive(Debug, Clone, Default)]
pub enum PreparedText {
    /// The text was classified.
    Classified(Arc<Classified>),
    /// A byte scan showed that the text does not change the session; it may read or write.
    Plain,
    /// Made by SQL PREPARE.
    Sql(Arc<Effects>),
    /// Nothing is known.
    #[default]
    Unknown,
    /// Like [`Self::Unknown`], and it may change the session: declare or clear a token, or end the transaction.
    MaySteer,
}

/// A classified text.
#[derive(Debug, Clone)]
pub struct Classified {
    /// Verdict on the text.
    pub verdict: Arc<Analysis>,
    /// Beginning of the text, if it was kept.
    pub excerpt: Option<Box<[u8]>>,
    /// Whether a byte scan would not have done, as it does for a session that may write anyway.
    pub needs_parse: bool,
    /// Its source, if it can be parsed again.
    pub source: Option<Arc<Source>>,
}

impl PreparedText {
    /// Verdict, if the text was classified.
    #[must_use]
    pub fn verdict(&self) -> Option<&Arc<Analysis>> {
        match self {
            Self::Classified(classified) => Some(&classified.verdict),
            Self::Plain | Self::Sql(_) | Self::Unknown | Self::MaySteer => None,
        }
    }

    /// Whether it may mean something else after a SET. Another SET does not.
    #[must_use]
    pub fn depends_on_settings(&self) -> bool {
        self.verdict().is_none_or(|verdict| {
            let mut statements = verdict.statements.iter();
            !statements.all(|statement| statement.assigns.is_some())
        })
    }

    /// Its source, if it can be parsed again.
    #[must_use]
    pub fn source(&self) -> Option<&Arc<Source>> {
        match self {
            Self::Classified(classified) => classified.source.as_ref(),
            Self::Plain | Self::Sql(_) | Self::Unknown | Self::MaySteer => None,
        }
    }

    /// Whether executing it leaves the session unchanged, whatever it does to data.
    #[inline]
    #[must_use]
    pub fn is_plain(&self) -> bool {
        match self {
            Self::Plain => true,
            Self::Classified(classified) => !classified.needs_parse,
            Self::Sql(_) | Self::Unknown | Self::MaySteer => false,
        }
    }

    /// The text, or its beginning, if it was kept.
    #[must_use]
    pub fn text(&self) -> &[u8] {
        self.source()
            .map_or_else(|| self.excerpt(), |source| source.text())
    }

    /// Beginning of the text, if it was kept.
    #[must_use]
    pub fn excerpt(&self) -> &[u8] {
        match self {
            Self::Classified(classified) => classified.excerpt.as_deref().unwrap_or_default(),
            Self::Plain | Self::Sql(_) | Self::Unknown | Self::MaySteer => &[],
        }
    }

    /// Effects of executing it; any, if they are unknown.
    #[must_use]
    pub fn effects(&self) -> Arc<Effects> {
        match self {
            Self::Sql(effects) => Arc::clone(effects),
            Self::Classified(_) | Self::Plain | Self::Unknown | Self::MaySteer => {
                Arc::new(Effects::without_text())
            }
        }
    }
}

/// Names of a session when a text arrives.
pub trait PreparedNames {
    /// What a name stands for, if it is known.
    fn find(&self, name: Name<'_>) -> Option<&PreparedText>;
}
