//! Effects of executing a statement on data, by which a policy decides.

use strum::{AsRefStr, Display, EnumIter, IntoStaticStr};

use crate::allocation::boxed;
use crate::object_name::ObjectName;

/// Stands for any setting in [`Effects::settings`].
pub(crate) const ANY_SETTING: &str = "*";

/// Whether a statement may change data. `Read < Write`, so the strongest of several is their maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum Class {
    /// No write, as far as the text shows. A view, operator or function may still hide one, which the read-only guard
    /// refuses.
    Read,
    /// Writes, or is not known to be a read.
    Write,
}

/// Computation that running a statement may cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Computes {
    /// None: a SELECT or VALUES of constants, without function, operator, cast, table or parameter. No user code can
    /// run.
    Nothing,
    /// None: a statement that only steers the session, however the server reads its text.
    Steers,
    /// Anything that its names may stand for.
    Anything,
}

/// The effects of one statement, as far as its text shows them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effects {
    /// Read or write.
    pub class: Class,
    /// Category by which a policy may refuse the statement, if it has one.
    pub category: Option<Category>,
    /// Tables that it writes, locks or alters; empty for a read. Includes a sequence that it moves by name.
    pub writes: Tables,
    /// Tables whose rows it reads. The target of an UPDATE, DELETE or MERGE is only in `writes`.
    pub reads: Tables,
    /// Names of the functions that it calls, each once.
    pub functions: Box<[ObjectName]>,
    /// Settings of the session that it changes, in lower case, each once; `*` stands for any.
    pub settings: Box<[Box<str>]>,
}

impl Effects {
    /// No effect on data.
    #[must_use]
    pub fn none() -> Self {
        Self {
            class: Class::Read,
            category: None,
            writes: Tables::none(),
            reads: Tables::none(),
            functions: Box::default(),
            settings: Box::default(),
        }
    }

    /// Effects of a statement that may write and read anything.
    #[must_use]
    pub fn unknown(category: Option<Category>) -> Self {
        Self {
            class: Class::Write,
            category,
            writes: Tables::unknown(),
            reads: Tables::unknown(),
            ..Self::none()
        }
    }

    /// Effects of what runs by a name for which no text is known.
    #[must_use]
    pub fn without_text() -> Self {
        Self {
            writes: Tables::Any,
            reads: Tables::Any,
            ..Self::unknown(Some(Category::Unparsed))
        }
    }

    /// Whether it changes the view by an UPDATE of which settings can be changed, too.
    pub(crate) fn writes_pg_settings(&self) -> bool {
        let mut names = self.writes.names().iter();
        names.any(|name| &*name.name == "pg_settings")
    }

    /// Approximate bytes on the heap, for a budget.
    pub(crate) fn heap_bytes(&self) -> usize {
        let settings: usize = self.settings.iter().map(|name| boxed(&**name)).sum();
        let settings = boxed(&*self.settings) + settings;
        let functions = names_bytes(&self.functions);
        self.writes.heap_bytes() + self.reads.heap_bytes() + functions + settings
    }
}

/// A set of tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tables {
    /// Exactly these tables, each once.
    Named(Box<[ObjectName]>),
    /// These, and others that the text does not name.
    AndOthers(Box<[ObjectName]>),
    /// Any table, without a text that could say more.
    Any,
}

impl Tables {
    /// Sorts the names and drops duplicates.
    pub(crate) fn named(mut names: Vec<ObjectName>) -> Self {
        names.sort_unstable();
        names.dedup();
        Self::Named(names.into())
    }

    /// Union of both.
    pub(crate) fn and(self, other: Self) -> Self {
        let names = self.names().iter().chain(other.names()).cloned();
        let all = names.collect();
        match (&self, &other) {
            (Self::Any, _) | (_, Self::Any) => Self::Any,
            (Self::Named(_), Self::Named(_)) => Self::named(all),
            _ => Self::named(all).and_others(),
        }
    }

    /// These, and others.
    pub(crate) fn and_others(self) -> Self {
        match self {
            Self::Named(names) => Self::AndOthers(names),
            more => more,
        }
    }

    /// Those that the text names.
    #[must_use]
    pub fn names(&self) -> &[ObjectName] {
        match self {
            Self::Named(names) | Self::AndOthers(names) => names,
            Self::Any => &[],
        }
    }

    /// Whether the text names all.
    #[must_use]
    pub const fn are_named(&self) -> bool {
        matches!(self, Self::Named(_))
    }

    /// The empty set.
    #[must_use]
    pub fn none() -> Self {
        Self::Named(Box::default())
    }

    /// Tables of which the text names none.
    #[must_use]
    pub fn unknown() -> Self {
        Self::none().and_others()
    }

    fn heap_bytes(&self) -> usize {
        names_bytes(self.names())
    }
}

fn names_bytes(names: &[ObjectName]) -> usize {
    boxed(names) + names.iter().map(ObjectName::heap_bytes).sum::<usize>()
}

/// A kind of statement that a policy may refuse by name.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    AsRefStr,
    Display,
    EnumIter,
    IntoStaticStr,
)]
#[strum(serialize_all = "kebab-case")]
pub enum Category {
    /// CREATE, ALTER, DROP, COMMENT, GRANT and REVOKE on objects of a database.
    Ddl,
    /// Roles and their memberships.
    Roles,
    /// Statements about the whole server: databases, tablespaces, ALTER SYSTEM, LOAD.
    Server,
    /// VACUUM, ANALYZE, CLUSTER, REINDEX, REFRESH MATERIALIZED VIEW, CHECKPOINT.
    Maintenance,
    /// TRUNCATE.
    Truncate,
    /// COPY to or from a program on the server.
    CopyProgram,
    /// COPY to or from a file on the server.
    CopyFile,
    /// DO.
    Do,
    /// CALL.
    Call,
    /// LOCK TABLE.
    Lock,
    /// NOTIFY.
    Notify,
    /// PREPARE TRANSACTION.
    PrepareTransaction,
    /// COMMIT PREPARED, ROLLBACK PREPARED.
    PreparedTransactions,
    /// The protocol's FunctionCall.
    FunctionCall,
    /// A replication connection.
    Replication,
    /// A text that was not understood.
    Unparsed,
}
