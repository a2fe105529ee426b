//! SQL that the model of PostgreSQL understands, and its effects on settings and on the transaction.

use std::collections::BTreeMap;

use pgpalisade_policies::{Access, Chain};

pub(super) const DEFAULT_ACCESS: &str = "default_transaction_read_only";
pub(super) const TOKEN: &str = "fencing.token";

/// A statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Sql {
    /// `SELECT 1`.
    Select,
    /// `SELECT pg_catalog.pg_backend_pid(), ..`.
    Process,
    /// `SELECT f()`, a function that writes.
    Hidden,
    /// `SELECT g()` or `SELECT h()`, functions that switch read-only mode off or on for later transactions.
    Switch(Access),
    /// `SELECT l()`, a function that does so until the transaction ends.
    SwitchLocal,
    /// `SELECT n()`, a function that does nothing.
    Nothing,
    /// `SELECT 1/0`.
    Divide,
    /// `INSERT INTO t VALUES (1)`.
    Insert,
    /// `COPY t FROM STDIN`.
    Copy,
    Begin(Option<Access>),
    Commit(Chain),
    Rollback(Chain),
    Savepoint,
    RollbackTo,
    Release,
    SetTransaction(Access),
    /// `SET transaction_read_only`.
    SetAccess(Access),
    Set(String, Option<String>, Lifetime),
    ResetAll,
    DiscardAll,
    ShowTransaction,
    Show(String),
    Declare(Keeping, Box<Self>),
    /// Shows the first row of the cursor.
    Fetch,
    /// Moves over the first row of the cursor.
    Move,
    /// Closes the cursor.
    CloseCursor,
    Prepare(String, Box<Self>),
    Execute(String),
    Deallocate(String),
}

/// Lifetime of a portal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keeping {
    /// Until its transaction ends.
    Transaction,
    /// A cursor WITH HOLD, until its transaction commits: then the rest of it runs.
    UntilHeld,
    /// It has outlived its transaction.
    Held,
}

/// The name of the only cursor.
pub(super) const CURSOR: &str = "c";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lifetime {
    Session,
    Local,
}

/// PostgreSQL's refusal: SQLSTATE and message.
pub(super) type ServerError = (&'static str, &'static str);

impl Sql {
    /// Statements of a text.
    pub(super) fn read(text: &str) -> Result<Vec<Self>, ServerError> {
        let statements = text.split(';').map(str::trim);
        // A text that is only a comment is empty.
        let is_empty = |statement: &&str| statement.is_empty() || statement.starts_with("/*");
        let statements = statements.filter(|statement| !is_empty(statement));
        let read: Option<_> = statements.map(Self::read_one).collect();
        read.ok_or(("42601", "syntax error"))
    }

    fn read_one(text: &str) -> Option<Self> {
        Some(match text {
            "SELECT 1" => Self::Select,
            // The level begins anew with each transaction.
            "SET transaction_isolation = 'read committed'" => {
                let level = Some("read committed".to_owned());
                Self::Set("transaction_isolation".to_owned(), level, Lifetime::Local)
            }
            text if text.starts_with("SELECT pg_catalog.pg_backend_pid(), ") => Self::Process,
            "SELECT f()" => Self::Hidden,
            "SELECT g()" => Self::Switch(Access::ReadWrite),
            "SELECT h()" => Self::Switch(Access::ReadOnly),
            "SELECT l()" => Self::SwitchLocal,
            "SELECT n()" => Self::Nothing,
            "FETCH c" => Self::Fetch,
            "MOVE c" => Self::Move,
            "CLOSE c" => Self::CloseCursor,
            "SELECT 1/0" => Self::Divide,
            "INSERT INTO t VALUES (1)" => Self::Insert,
            "COPY t FROM STDIN" => Self::Copy,
            "BEGIN" => Self::Begin(None),
            "BEGIN READ ONLY" => Self::Begin(Some(Access::ReadOnly)),
            "BEGIN READ WRITE" => Self::Begin(Some(Access::ReadWrite)),
            "COMMIT" => Self::Commit(Chain::No),
            "COMMIT AND CHAIN" => Self::Commit(Chain::Yes),
            "ROLLBACK" => Self::Rollback(Chain::No),
            "ROLLBACK AND CHAIN" => Self::Rollback(Chain::Yes),
            "RESET ALL" => Self::ResetAll,
            "DISCARD ALL" => Self::DiscardAll,
            "SAVEPOINT a" => Self::Savepoint,
            "ROLLBACK TO a" => Self::RollbackTo,
            "RELEASE a" => Self::Release,
            "SET TRANSACTION READ ONLY" => Self::SetTransaction(Access::ReadOnly),
            "SET TRANSACTION READ WRITE" => Self::SetTransaction(Access::ReadWrite),
            "SHOW transaction_read_only" => Self::ShowTransaction,
            other => return Self::read_words(other),
        })
    }

    fn read_words(text: &str) -> Option<Self> {
        let (word, rest) = text.split_once(' ')?;
        match word {
            "SHOW" => Some(Self::Show(rest.to_owned())),
            "EXECUTE" => Some(Self::Execute(rest.to_owned())),
            "DEALLOCATE" => Some(Self::Deallocate(rest.to_owned())),
            "RESET" => Some(Self::Set(rest.to_owned(), None, Lifetime::Session)),
            "PREPARE" => {
                let (name, statement) = rest.split_once(" AS ")?;
                Some(Self::Prepare(
                    name.to_owned(),
                    Box::new(Self::read_one(statement)?),
                ))
            }
            "DECLARE" => {
                let (keeping, query) = match rest.strip_prefix("c CURSOR WITH HOLD FOR ") {
                    Some(query) => (Keeping::UntilHeld, query),
                    None => (Keeping::Transaction, rest.strip_prefix("c CURSOR FOR ")?),
                };
                let query = Self::read_one(query)?;
                query
                    .is_select()
                    .then(|| Self::Declare(keeping, Box::new(query)))
            }
            "SET" => {
                let (lifetime, rest) = match rest.strip_prefix("LOCAL ") {
                    Some(rest) => (Lifetime::Local, rest),
                    None => (Lifetime::Session, rest),
                };
                if let Some(name) = rest.strip_suffix(" TO DEFAULT") {
                    return Some(Self::Set(name.to_owned(), None, lifetime));
                }
                let (name, value) = rest.split_once(" = ")?;
                let value = value.trim_matches('\'').to_owned();
                Some(match (name, &*value) {
                    ("transaction_read_only", "on") => Self::SetAccess(Access::ReadOnly),
                    ("transaction_read_only", _) => Self::SetAccess(Access::ReadWrite),
                    _ => Self::Set(name.to_owned(), Some(value), lifetime),
                })
            }
            _ => None,
        }
    }

    /// Whether it is executed in a failed transaction.
    pub(super) const fn ends_failure(&self) -> bool {
        matches!(self, Self::Commit(_) | Self::Rollback(_) | Self::RollbackTo)
    }

    /// Whether a snapshot is taken to analyse or run it: `analyze_requires_snapshot` and
    /// `PlannedStmtRequiresSnapshot` in PostgreSQL's source.
    pub(super) const fn takes_snapshot(&self, step: Step) -> bool {
        match self {
            Self::Insert | Self::Declare(..) => true,
            select if select.is_select() => true,
            Self::Copy
            | Self::Fetch
            | Self::Move
            | Self::CloseCursor
            | Self::Prepare(..)
            | Self::Execute(_)
            | Self::Deallocate(_) => {
                matches!(step, Step::Run)
            }
            _ => false,
        }
    }

    pub(super) const fn is_select(&self) -> bool {
        matches!(
            self,
            Self::Select
                | Self::Process
                | Self::Hidden
                | Self::Switch(_)
                | Self::SwitchLocal
                | Self::Nothing
                | Self::Divide
        )
    }
}

/// Step in the processing of a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Analyse,
    Run,
}

/// A setting: its value, and the one that a COMMIT leaves.
#[derive(Debug, Clone)]
struct Value {
    now: String,
    kept: String,
}

/// Settings of a session, as PostgreSQL keeps them.
#[derive(Debug, Clone, Default)]
pub(super) struct Settings {
    values: BTreeMap<String, Value>,
    startup: BTreeMap<String, String>,
}

impl Settings {
    /// Settings of the startup packet.
    pub(super) fn new(startup: &[(&str, &str)]) -> Self {
        let mut settings = Self::default();
        for (name, value) in startup {
            settings
                .startup
                .insert((*name).to_owned(), (*value).to_owned());
            settings.set(name, Some(value), Lifetime::Session);
        }
        settings
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(|value| &*value.now)
    }

    /// Sets a value; `None` returns to that of the session's start.
    pub(super) fn set(&mut self, name: &str, value: Option<&str>, lifetime: Lifetime) {
        let startup = || self.startup.get(name).cloned().unwrap_or_default();
        let now = value.map_or_else(startup, str::to_owned);
        let known = self.values.get(name).map(|value| value.kept.clone());
        let kept = match lifetime {
            Lifetime::Session => now.clone(),
            Lifetime::Local => known.unwrap_or_default(),
        };
        self.values.insert(name.to_owned(), Value { now, kept });
    }

    /// Returns all settings to the values of the session's start.
    pub(super) fn reset_all(&mut self) {
        let names: Vec<_> = self.values.keys().cloned().collect();
        for name in names {
            self.set(&name, None, Lifetime::Session);
        }
    }

    /// Commits a transaction.
    pub(super) fn commit(&mut self) {
        for value in self.values.values_mut() {
            value.now.clone_from(&value.kept);
        }
    }

    /// Access mode with which transactions begin.
    pub(super) fn access(&self) -> Access {
        match self.get(DEFAULT_ACCESS) {
            Some("on") => Access::ReadOnly,
            _ => Access::ReadWrite,
        }
    }
}

/// End of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Block {
    /// With the request cycle.
    Implicit,
    /// With COMMIT or ROLLBACK.
    Open,
    /// It has failed already.
    Failed,
}

/// Whether any data was read yet: from then on a read-only transaction stays so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Snapshot {
    None,
    Taken,
}

/// An open transaction.
#[derive(Debug, Clone)]
pub(super) struct Transaction {
    pub(super) block: Block,
    pub(super) access: Access,
    /// Access mode with which it began.
    pub(super) began: Access,
    pub(super) snapshot: Snapshot,
    pub(super) before: Settings,
    pub(super) savepoints: Vec<(Settings, Access)>,
    /// Number of writes so far.
    pub(super) writes: usize,
    pub(super) company: Company,
}

/// Whether something else is in the same transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Company {
    Alone,
    Pipeline,
    /// Statements of one text: some of them treat it as a block.
    Text,
}

impl Transaction {
    pub(super) fn new(settings: &Settings) -> Self {
        Self {
            block: Block::Implicit,
            access: settings.access(),
            began: settings.access(),
            snapshot: Snapshot::None,
            before: settings.clone(),
            savepoints: Vec::new(),
            writes: 0,
            company: Company::Alone,
        }
    }

    /// Access mode of the next transaction if this one is rolled back AND CHAIN. What a subtransaction or failed
    /// transaction did to the mode was undone by then: `CommitTransactionCommand` in PostgreSQL's source.
    pub(super) fn chained_access(&self) -> Access {
        let outermost = self.savepoints.first().map(|(_, access)| *access);
        match self.block {
            Block::Failed => outermost.unwrap_or(self.began),
            Block::Implicit | Block::Open => outermost.unwrap_or(self.access),
        }
    }

    /// `check_transaction_read_only` in PostgreSQL's source.
    pub(super) fn set_access(&mut self, access: Access) -> Result<(), ServerError> {
        if access == Access::ReadWrite && self.access == Access::ReadOnly {
            if !self.savepoints.is_empty() {
                let why = "cannot set transaction read-write mode inside a read-only transaction";
                return Err(("25001", why));
            }
            if self.snapshot == Snapshot::Taken {
                let why = "transaction read-write mode must be set before any query";
                return Err(("25001", why));
            }
        }
        self.access = access;
        Ok(())
    }
}
