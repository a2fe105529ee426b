//! What the names of prepared statements and portals stand for.

use std::sync::Arc;

use pgpalisade_policies::scan::NeedsParse;
use pgpalisade_policies::{Analysis, Effects};

/// Bytes of a name that PostgreSQL keeps and compares.
/// <https://www.postgresql.org/docs/current/sql-syntax-lexical.html#SQL-SYNTAX-IDENTIFIERS>
const NAME_BYTES: usize = 63;

/// The name space of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Prepared statements.
    Statement,
    /// Portals, which are SQL's cursors.
    Portal,
}

/// A name as PostgreSQL compares it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name<'a> {
    kind: Kind,
    bytes: &'a [u8],
}

impl<'a> Name<'a> {
    /// The name of a prepared statement.
    #[inline]
    #[must_use]
    pub fn statement(name: &'a [u8]) -> Self {
        Self::new(Kind::Statement, name)
    }

    /// The name of a portal.
    #[inline]
    #[must_use]
    pub fn portal(name: &'a [u8]) -> Self {
        Self::new(Kind::Portal, name)
    }

    /// A name of this name space.
    #[inline]
    #[must_use]
    pub fn new(kind: Kind, name: &'a [u8]) -> Self {
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
    pub const fn kind(self) -> Kind {
        self.kind
    }

    /// Whether it is that of the unnamed statement or portal.
    #[inline]
    #[must_use]
    pub const fn is_unnamed(self) -> bool {
        self.bytes.is_empty()
    }

    /// Whether other bytes are sure to be another name. The server converts a name from the client's encoding first.
    #[must_use]
    pub fn is_comparable(self) -> bool {
        self.bytes.is_ascii()
    }
}

/// What a prepared statement or portal does, as far as the proxy looked.
#[derive(Debug, Clone, Default)]
pub enum Meaning {
    /// The text was classified.
    Classified(Arc<Classified>),
    /// A byte scan showed that the text does nothing to the session; read or write was not asked.
    Plain,
    /// Made by SQL PREPARE.
    Sql(Arc<Effects>),
    /// Nothing is known.
    #[default]
    Unknown,
    /// The same, and it may change the session itself: declare a token or lay one down, end the transaction.
    MaySteer,
}

/// A text that was classified.
#[derive(Debug)]
pub struct Classified {
    /// What the text does.
    pub verdict: Arc<Analysis>,
    /// The front of the text.
    pub excerpt: Option<Box<[u8]>>,
    /// Whether a byte scan would have done: a session that may write anyway has nothing to learn from it.
    pub scan: NeedsParse,
}

impl Meaning {
    /// The verdict, where there is one.
    #[must_use]
    pub fn verdict(&self) -> Option<&Arc<Analysis>> {
        match self {
            Self::Classified(classified) => Some(&classified.verdict),
            Self::Plain | Self::Sql(_) | Self::Unknown | Self::MaySteer => None,
        }
    }

    /// Whether executing it does nothing to the session, whatever it does to data.
    #[inline]
    #[must_use]
    pub fn is_plain(&self) -> bool {
        match self {
            Self::Plain => true,
            Self::Classified(classified) => classified.scan == NeedsParse::No,
            Self::Sql(_) | Self::Unknown | Self::MaySteer => false,
        }
    }

    /// The front of the text, where it was kept.
    #[must_use]
    pub fn excerpt(&self) -> &[u8] {
        match self {
            Self::Classified(classified) => classified.excerpt.as_deref().unwrap_or_default(),
            Self::Plain | Self::Sql(_) | Self::Unknown | Self::MaySteer => &[],
        }
    }

    /// What executing it does; anything, where that is not known.
    #[must_use]
    pub fn effects(&self) -> Arc<Effects> {
        match self {
            Self::Sql(effects) => Arc::clone(effects),
            Self::Classified(_) | Self::Plain | Self::Unknown | Self::MaySteer => {
                Arc::new(Effects::unknown(None))
            }
        }
    }
}

/// The names of a session, where a text arrives.
pub trait PreparedNames {
    /// What a name stands for; `None` if that is nothing that is known.
    fn find(&self, name: Name<'_>) -> Option<&Meaning>;
}
