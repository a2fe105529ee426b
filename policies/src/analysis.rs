//! Result of analyzing a SQL text: its statements, their effects on the session, and why they count as writes.

use std::fmt;
use std::sync::Arc;

use crate::allocation::{boxed, counted};
use crate::effects::{ANY_SETTING, Category, Class, Effects};
use crate::leftover::Leftover;

/// The access mode of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// READ ONLY
    ReadOnly,
    /// READ WRITE
    ReadWrite,
}

/// Lifetime of a value of a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifetime {
    /// Until the session ends (SET, SET SESSION).
    Session,
    /// Until the transaction ends (SET LOCAL).
    Local,
}

/// Whether COMMIT or ROLLBACK begins the next transaction at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chain {
    /// AND CHAIN
    Yes,
    /// AND NO CHAIN, or neither.
    No,
}

/// A setting by which a session declares its token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FencingVariable {
    /// `fencing.token`
    Token,
    /// `fencing.scope`
    Scope,
}

impl FencingVariable {
    /// Name of the setting.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Token => "fencing.token",
            Self::Scope => "fencing.scope",
        }
    }
}

/// A declaration or SHOW of a `fencing.` setting that does not work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// No setting of this name exists, although it begins with `fencing.`.
    UnknownSetting(Box<str>),
    /// The setting can be shown but not set.
    ShowOnly(Box<str>),
    /// The value reaches PostgreSQL but declares no token. Either the text does not contain it, or the statement is
    /// neither SET nor a plain SELECT of set_config.
    DoesNotDeclare(FencingVariable),
    /// The text names a `fencing.` setting but was not understood, so its effect is unknown.
    Unreadable(Opaque),
}

/// Subject of a SHOW that the proxy answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FencingShow {
    /// `SHOW fencing.token`
    Token,
    /// `SHOW fencing.scope`
    Scope,
    /// `SHOW fencing.mark`
    Mark,
    /// `SHOW fencing.status`
    Status,
    /// `SHOW fencing.history`
    History,
}

/// A setting that reports the access mode. The value that PostgreSQL shows may be the proxy's doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessShow {
    /// `SHOW transaction_read_only`
    Transaction,
    /// `SHOW default_transaction_read_only`
    Default,
}

/// Effect of a statement on its session, after PostgreSQL has completed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Control {
    /// BEGIN or START TRANSACTION.
    Begin {
        /// Requested mode; the last one if there are several.
        access: Option<Access>,
    },
    /// COMMIT or END.
    Commit {
        /// Whether AND CHAIN follows.
        chain: Chain,
    },
    /// ROLLBACK or ABORT.
    Rollback {
        /// Whether AND CHAIN follows.
        chain: Chain,
    },
    /// SAVEPOINT name
    Savepoint(Box<str>),
    /// RELEASE SAVEPOINT name
    Release(Box<str>),
    /// ROLLBACK TO SAVEPOINT name
    RollbackTo(Box<str>),
    /// The names of prepared statements may stand for something else afterwards.
    MayChangeNames,
    /// PREPARE TRANSACTION: ends the block; its work stays prepared.
    PrepareTransaction,
    /// The mode of the current transaction: SET TRANSACTION READ .., SET transaction_read_only.
    SetTransactionAccess(Access),
    /// The mode of later transactions: SET default_transaction_read_only, SET SESSION CHARACTERISTICS. SET LOCAL
    /// gives no control: its value ends before a later transaction begins.
    SetDefaultAccess(Access),
    /// A value for a `fencing.` setting: SET, or set_config with literals as the whole of a SELECT.
    SetFencing {
        /// The setting.
        variable: FencingVariable,
        /// The text that PostgreSQL stores, unchecked.
        value: Box<str>,
        /// Lifetime of the value.
        lifetime: Lifetime,
    },
    /// Return to the value at the start of the session: RESET fencing.token, `SET [LOCAL] .. TO DEFAULT`.
    ResetFencing {
        /// The setting.
        variable: FencingVariable,
        /// Lifetime of the value.
        lifetime: Lifetime,
    },
    /// RESET ALL
    ResetAll,
    /// DISCARD ALL, which includes RESET ALL and DEALLOCATE ALL.
    DiscardAll,
    /// RESET default_transaction_read_only, SET .. TO DEFAULT
    ResetDefaultAccess,
    /// A mention of a `fencing.` setting that has no effect.
    Mistake(Mistake),
    /// SHOW of a setting that the proxy answers.
    ShowFencing(FencingShow),
    /// SHOW of a setting that the server answers, but in which the client must see only its own changes.
    ShowAccess(AccessShow),
    /// SQL PREPARE.
    Prepare {
        /// Name as PostgreSQL parses it.
        name: Box<str>,
        /// Effects of executing it.
        effects: Arc<Effects>,
    },
    /// EXECUTE, also inside EXPLAIN. Its class is that of the named statement, or write if the name is unknown.
    Execute {
        /// Name as PostgreSQL parses it.
        name: Box<str>,
    },
    /// FETCH and MOVE, which run a portal, perhaps one that the protocol opened.
    Fetch {
        /// Name as PostgreSQL parses it.
        portal: Box<str>,
    },
    /// DEALLOCATE name
    Deallocate {
        /// Name as PostgreSQL parses it.
        name: Box<str>,
    },
    /// DEALLOCATE ALL
    DeallocateAll,
}

/// Whether a statement may commit work before it completes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitsInside {
    /// Only the end of its transaction commits its work.
    No,
    /// CALL, DO, VACUUM, .. CONCURRENTLY, and any text that could not be parsed.
    Possibly,
}

/// Reason why a text was not understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opaque {
    /// Longer than [`MAX_PARSED`](crate::MAX_PARSED).
    TooLong,
    /// Not kept until complete, because too many long texts were arriving.
    NoRoom,
    /// Contains a NUL byte.
    Nul,
    /// Is not UTF-8.
    NotUtf8,
    /// Has bytes above 0x7F in a client encoding whose characters can contain ASCII bytes.
    Encoding,
    /// Too deeply nested, has too many tokens or too many operator characters in a row, or the parser failed.
    Parser,
    /// Reads differently with `standard_conforming_strings` off.
    Backslash,
}

/// Reason why a statement counts as a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriteReason {
    /// Statement of a kind that is not on the list of reads.
    Kind(&'static str),
    /// Contains a statement other than SELECT.
    Contains(&'static str),
    /// SELECT .. INTO
    Into,
    /// FOR UPDATE, FOR SHARE and similar clauses.
    Locking,
    /// Calls a function that counts as a write: its name, and the reason.
    Function(Box<str>, &'static str),
    /// Switches read-only mode off.
    SetsReadWrite,
    /// Calls set_config for a setting that the text does not name.
    ComputedSetting,
    /// COPY to a file or a program of the server.
    CopyToServer,
    /// LOCK in a mode above ACCESS SHARE.
    LockMode,
    /// EXPLAIN with an unknown option.
    ExplainOption,
    /// The text was not understood.
    Opaque(Opaque),
    /// PostgreSQL's grammar refuses the text.
    Syntax(SyntaxError),
}

/// A refusal by PostgreSQL's grammar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyntaxError {
    /// The parser's message, without literals.
    pub error: Box<str>,
    /// Advice for the client.
    pub hint: &'static str,
}

impl WriteReason {
    /// Whether the text was not parsed. A newer server may know more of SQL than this grammar.
    #[must_use]
    pub const fn is_unparsed(&self) -> bool {
        matches!(self, Self::Opaque(_) | Self::Syntax(_))
    }
}

impl From<Opaque> for WriteReason {
    fn from(why: Opaque) -> Self {
        Self::Opaque(why)
    }
}

impl fmt::Display for WriteReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kind(kind) => write!(f, "{kind} counts as a write"),
            Self::Contains(what) => write!(f, "it contains a {what}"),
            Self::Into => f.write_str("SELECT INTO creates a table"),
            Self::Locking => f.write_str("it locks rows"),
            Self::Function(name, why) => write!(f, "function {name} counts as a write: {why}"),
            Self::SetsReadWrite => f.write_str("it would switch read-only mode off"),
            Self::ComputedSetting => {
                f.write_str("it calls set_config for a setting that is not a literal")
            }
            Self::CopyToServer => f.write_str("it copies to a file or program of the server"),
            Self::LockMode => f.write_str("it locks a table in a mode above ACCESS SHARE"),
            Self::ExplainOption => f.write_str("it has an EXPLAIN option that is not known"),
            Self::Opaque(why) => write!(f, "it counts as a write because {why}"),
            Self::Syntax(syntax) => write!(f, "it cannot be parsed: {}", syntax.error),
        }
    }
}

impl fmt::Display for Opaque {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TooLong => "it is too long to be parsed",
            Self::NoRoom => "it is long, and too many long texts were arriving at the same time",
            Self::Nul => "it contains a NUL byte",
            Self::NotUtf8 => "it is not UTF-8",
            Self::Encoding => {
                "it has characters beyond ASCII, and it is not sure that client and server both use UTF8"
            }
            Self::Parser => "it is too complex to be examined",
            Self::Backslash => "its meaning depends on standard_conforming_strings",
        })
    }
}

/// One statement of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statement {
    /// Effects on data. With a [`Control::Execute`], only those of its arguments.
    pub effects: Effects,
    /// Name for logs: "INSERT", "SELECT", "CALL", "unparsed".
    pub kind: &'static str,
    /// Effects on the session, in order.
    pub controls: Box<[Control]>,
    /// Whether it may commit before it completes.
    pub commits_inside: CommitsInside,
    /// Reason why it is a write; `None` for a read.
    pub why: Option<WriteReason>,
    pub(crate) computes: Computes,
    /// What it leaves in the server's session after its transaction.
    pub leaves: Option<Leftover>,
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

impl Statement {
    /// Whether the statement may set an access mode beyond that of the open transaction, which
    /// [`Control::SetTransactionAccess`] reports.
    #[must_use]
    pub fn may_state_default_access(&self) -> bool {
        if self.may_reset_default_access() {
            return false;
        }
        let is_told = || self.controls.iter().any(Control::tells_transaction_access);
        let states = |setting: &str| match setting {
            ANY_SETTING | "default_transaction_read_only" => true,
            "transaction_read_only" => !is_told(),
            _ => false,
        };
        let is_default = |control: &Control| matches!(control, Control::SetDefaultAccess(_));
        self.effects.settings.iter().any(|setting| states(setting))
            || self.controls.iter().any(is_default)
    }
}

/// Everything known about a whole text. A text without statements, such as comments only, is a read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Analysis {
    /// The statements, in order.
    pub statements: Box<[Statement]>,
    /// Whether a statement has a [`Control`]. Stored, because most texts have none and callers ask for many kinds of
    /// it.
    has_controls: bool,
}

impl Statement {
    /// Whether it runs code in which a write may hide. Statements that only steer the session do not. PREPARE may:
    /// reading a literal can run the checks of a domain.
    #[inline]
    #[must_use]
    pub fn may_hide_a_write(&self) -> bool {
        self.computes == Computes::Anything
    }
}

impl Statement {
    /// Whether it stands for a text that was not understood, but that the server may understand.
    #[must_use]
    pub fn is_unread(&self) -> bool {
        matches!(self.why, Some(WriteReason::Opaque(_)))
    }

    /// Whether it may return the default access mode to its value at the start of the session.
    #[must_use]
    pub fn may_reset_default_access(&self) -> bool {
        let resets = |control: &Control| {
            matches!(
                control,
                Control::ResetAll | Control::DiscardAll | Control::ResetDefaultAccess
            )
        };
        self.is_unread() || self.controls.iter().any(resets)
    }
}

impl Analysis {
    #[must_use]
    pub(crate) fn new(statements: Box<[Statement]>) -> Self {
        let has_controls = statements
            .iter()
            .any(|statement| !statement.controls.is_empty());
        Self {
            statements,
            has_controls,
        }
    }

    /// Whether a statement has an effect on the session that must be followed. Of a text that was not understood,
    /// this covers only names of `fencing.` settings and of prepared statements.
    #[inline]
    #[must_use]
    pub const fn has_controls(&self) -> bool {
        self.has_controls
    }

    /// Whether any control of any statement satisfies `is_such`.
    #[inline]
    #[must_use]
    pub fn any_control(&self, is_such: impl Fn(&Control) -> bool) -> bool {
        let mut statements = self.statements.iter();
        self.has_controls && statements.any(|statement| statement.controls.iter().any(&is_such))
    }

    /// Analysis of a text that was not understood: one write that may do anything.
    #[must_use]
    pub fn opaque(why: Opaque) -> Self {
        Self::unread(why.into(), Box::default())
    }

    pub(crate) fn unread(why: WriteReason, controls: Box<[Control]>) -> Self {
        Self::new(Box::new([Statement {
            effects: Effects::unknown(Some(Category::Unparsed)),
            kind: "unparsed",
            controls,
            commits_inside: CommitsInside::Possibly,
            why: Some(why),
            computes: Computes::Anything,
            leaves: None,
        }]))
    }

    /// Copy for a server that may read the text differently: any effect on data, but the same controls.
    #[must_use]
    pub fn in_doubt(&self, why: Opaque) -> Self {
        let statements = self.statements.iter().map(|statement| Statement {
            effects: Effects::unknown(Some(Category::Unparsed)),
            why: Some(WriteReason::Opaque(why)),
            computes: match statement.computes {
                Computes::Steers => Computes::Steers,
                Computes::Nothing | Computes::Anything => Computes::Anything,
            },
            ..statement.clone()
        });
        Self::new(statements.collect())
    }

    /// Strongest class of the statements.
    #[must_use]
    pub fn class(&self) -> Class {
        self.statements
            .iter()
            .map(|statement| statement.effects.class)
            .max()
            .unwrap_or(Class::Read)
    }

    /// Whether work may be committed before the whole text has completed.
    #[must_use]
    pub fn commits_midway(&self) -> bool {
        let several = self.statements.len() > 1;
        self.statements.iter().any(|statement| {
            statement.commits_inside == CommitsInside::Possibly
                || (several && statement.controls.iter().any(Control::is_transaction))
        })
    }

    /// Reason why the text is a write: that of its first write.
    #[must_use]
    pub fn why(&self) -> Option<&WriteReason> {
        self.statements
            .iter()
            .find_map(|statement| statement.why.as_ref())
    }

    /// Name for logs: the kind of the only statement, "multi" for several, "empty" for none.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match &*self.statements {
            [] => "empty",
            [only] => only.kind,
            _ => "multi",
        }
    }

    /// Approximate bytes on the heap, for a budget.
    pub(crate) fn heap_bytes(&self) -> usize {
        let statements = self.statements.iter().map(|statement| {
            let names: usize = statement.controls.iter().map(Control::heap_bytes).sum();
            let why = match &statement.why {
                Some(WriteReason::Function(name, _)) => boxed(&**name),
                Some(WriteReason::Syntax(syntax)) => boxed(&*syntax.error),
                _ => 0,
            };
            statement.effects.heap_bytes() + boxed(&*statement.controls) + names + why
        });
        boxed(&*self.statements) + statements.sum::<usize>()
    }
}

impl Control {
    /// Whether it begins, ends or splits a transaction.
    #[must_use]
    pub fn is_transaction(&self) -> bool {
        matches!(
            self,
            Self::Begin { .. }
                | Self::Commit { .. }
                | Self::Rollback { .. }
                | Self::Savepoint(_)
                | Self::Release(_)
                | Self::RollbackTo(_)
                | Self::PrepareTransaction
        )
    }

    /// Whether it gives a value to a `fencing.` setting.
    pub(crate) const fn is_fencing(&self) -> bool {
        matches!(self, Self::SetFencing { .. } | Self::ResetFencing { .. })
    }

    const fn tells_transaction_access(&self) -> bool {
        matches!(self, Self::Begin { .. } | Self::SetTransactionAccess(_))
    }

    fn heap_bytes(&self) -> usize {
        match self {
            Self::Savepoint(name)
            | Self::Release(name)
            | Self::RollbackTo(name)
            | Self::SetFencing { value: name, .. }
            | Self::Execute { name }
            | Self::Fetch { portal: name }
            | Self::Deallocate { name }
            | Self::Mistake(Mistake::UnknownSetting(name) | Mistake::ShowOnly(name)) => {
                boxed(&**name)
            }
            Self::Prepare { name, effects } => {
                boxed(&**name) + counted::<Effects>() + effects.heap_bytes()
            }
            _ => 0,
        }
    }
}
