//! The words in which this crate speaks about a SQL text.

use std::fmt;
use std::sync::Arc;

use crate::allocation::{boxed, counted};
use crate::effects::{ANY_SETTING, Category, Class, Effects};

/// The access mode of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// READ ONLY
    ReadOnly,
    /// READ WRITE
    ReadWrite,
}

/// How long a setting lasts.
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
    /// AND NO CHAIN, or nothing said.
    No,
}

/// A setting by which a session states its token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FencingVariable {
    /// `fencing.token`
    Token,
    /// `fencing.scope`
    Scope,
}

impl FencingVariable {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Token => "fencing.token",
            Self::Scope => "fencing.scope",
        }
    }
}

/// Something that looks like a declaration, or a question, and is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// There is no setting of this name, which begins with `fencing.`.
    UnknownSetting(Box<str>),
    /// The setting of this name can be shown and not be set.
    ShowOnly(Box<str>),
    /// The setting would get a value inside PostgreSQL, and the session would hold no token by it: the value is not
    /// in the text, or the statement is another one than SET and a plain SELECT of set_config.
    DoesNotDeclare(FencingVariable),
    /// The text names a setting of ours and was not understood: nobody can tell what it does with it.
    Unreadable(Opaque),
}

/// What a SHOW of ours asks for.
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

/// A setting that tells which access mode is in force. What SHOW says of it may be the proxy's doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessShow {
    /// `SHOW transaction_read_only`
    Transaction,
    /// `SHOW default_transaction_read_only`
    Default,
}

/// What a statement does to its session, once PostgreSQL has completed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Control {
    /// BEGIN or START TRANSACTION.
    Begin {
        /// The mode it asks for; the last one where it names several.
        access: Option<Access>,
    },
    /// COMMIT or END.
    Commit {
        /// AND CHAIN?
        chain: Chain,
    },
    /// ROLLBACK or ABORT.
    Rollback {
        /// AND CHAIN?
        chain: Chain,
    },
    /// SAVEPOINT name
    Savepoint(Box<str>),
    /// RELEASE SAVEPOINT name
    Release(Box<str>),
    /// ROLLBACK TO SAVEPOINT name
    RollbackTo(Box<str>),
    /// What names of prepared statements stand for afterwards is not known.
    MayChangeNames,
    /// PREPARE TRANSACTION: the block ends, its work lives on.
    PrepareTransaction,
    /// The mode of the current transaction: SET TRANSACTION READ .., SET transaction_read_only.
    SetTransactionAccess(Access),
    /// The mode of later transactions: SET default_transaction_read_only, SET SESSION CHARACTERISTICS.
    /// SET LOCAL of it gives no control: it is over before a later transaction begins.
    SetDefaultAccess(Access),
    /// A value for `fencing.*`: SET, or set_config with literals as the whole of a SELECT.
    SetFencing {
        /// Which one.
        variable: FencingVariable,
        /// The text that PostgreSQL stores. Not checked here.
        value: Box<str>,
        /// For how long.
        lifetime: Lifetime,
    },
    /// Back to the value of the start of the session: RESET fencing.token, `SET [LOCAL] .. TO DEFAULT`.
    ResetFencing {
        /// Which one.
        variable: FencingVariable,
        /// For how long.
        lifetime: Lifetime,
    },
    /// RESET ALL
    ResetAll,
    /// DISCARD ALL: RESET ALL and DEALLOCATE ALL among others.
    DiscardAll,
    /// RESET default_transaction_read_only, SET .. TO DEFAULT
    ResetDefaultAccess,
    /// What names a setting of ours and does nothing by it.
    Mistake(Mistake),
    /// SHOW of a variable that the proxy answers.
    ShowFencing(FencingShow),
    /// SHOW of a variable that the server answers, and in which the client is to see its own doing only.
    ShowAccess(AccessShow),
    /// SQL PREPARE.
    Prepare {
        /// The name, as PostgreSQL parses it.
        name: Box<str>,
        /// What executing it will do.
        effects: Arc<Effects>,
    },
    /// EXECUTE, also inside EXPLAIN: the class of the statement is the class of what the name stands for, and a
    /// write where the name is not known.
    Execute {
        /// The name, as PostgreSQL parses it.
        name: Box<str>,
    },
    /// FETCH and MOVE: they run a portal, which may be one of the protocol.
    Fetch {
        /// Its name, as PostgreSQL parses it.
        portal: Box<str>,
    },
    /// DEALLOCATE name
    Deallocate {
        /// The name, as PostgreSQL parses it.
        name: Box<str>,
    },
    /// DEALLOCATE ALL
    DeallocateAll,
}

/// Whether a statement may commit work before it completes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitsInside {
    /// What it does is committed by the end of its transaction and by nothing else.
    No,
    /// CALL, DO, VACUUM, .. CONCURRENTLY, and whatever could not be parsed.
    Possibly,
}

/// Why a text was not understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opaque {
    /// Longer than [`MAX_PARSED`](crate::MAX_PARSED).
    TooLong,
    /// So many long texts were arriving that it was not kept until it was whole.
    NoRoom,
    /// Has a NUL byte.
    Nul,
    /// Is not UTF-8.
    NotUtf8,
    /// Has bytes above 0x7F in a client encoding whose characters can contain ASCII bytes.
    Encoding,
    /// Nested too deep for the parser, has too many operator characters in a row, or the parser failed.
    Parser,
    /// Reads differently with `standard_conforming_strings` off.
    Backslash,
}

/// Why a statement counts as a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriteReason {
    /// Its kind is not on the list of reads.
    Kind(&'static str),
    /// It contains a statement that is not a SELECT.
    Contains(&'static str),
    /// SELECT .. INTO
    Into,
    /// FOR UPDATE, FOR SHARE and their like.
    Locking,
    /// It calls a function that writes: its name, and why it is one.
    Function(Box<str>, &'static str),
    /// It would switch read-only mode off.
    LiftsReadOnly,
    /// It calls set_config for a setting that the text does not name.
    ComputedSetting,
    /// COPY to a file or a program of the server.
    CopyToServer,
    /// LOCK in a mode above ACCESS SHARE.
    LockMode,
    /// EXPLAIN with an option that is not known.
    ExplainOption,
    /// It was not understood.
    Opaque(Opaque),
    /// PostgreSQL's grammar refuses it.
    Syntax(SyntaxError),
}

/// Why PostgreSQL's grammar refuses a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyntaxError {
    /// The parser's words, without literals.
    pub error: Box<str>,
    /// What to do.
    pub hint: &'static str,
}

impl WriteReason {
    /// Whether it is that nobody has read the text. A newer server may know more of SQL than our grammar.
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
            Self::LiftsReadOnly => f.write_str("it would switch read-only mode off"),
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
    /// What it does to data. With a [`Control::Execute`], what its arguments do.
    pub effects: Effects,
    /// For logs: "INSERT", "SELECT", "CALL", "unparsed".
    pub kind: &'static str,
    /// What it does to the session, in order.
    pub controls: Box<[Control]>,
    /// May it commit before it completes?
    pub commits_inside: CommitsInside,
    /// Why it is a write; `None` for a read.
    pub why: Option<WriteReason>,
    /// What it computes.
    pub(crate) computes: Computes,
}

/// What running a statement may compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Computes {
    /// Nothing: it is a SELECT or VALUES of constants. No function, operator, cast, table or parameter is in it, so no
    /// code of a user's can run.
    Nothing,
    /// Nothing either: it only steers the session. However the server reads its text, it is such a statement.
    Steers,
    /// Whatever is behind its names.
    Anything,
}

impl Statement {
    /// Whether the client states an access mode with it that is not, or not only, that of the open transaction as
    /// [`Control::SetTransactionAccess`] says it.
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

/// What is known about a whole text. An empty text, or one of comments only, has no statements and is a read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// All of them, in order.
    pub statements: Box<[Statement]>,
    /// Whether one of them has a [`Control`]: most texts have none, and are asked for many kinds of it.
    has_controls: bool,
}

impl Statement {
    /// Whether it runs what a writing function may hide in. Statements that only steer the session do not. PREPARE may:
    /// where it reads a literal it can run the checks of a domain.
    #[inline]
    #[must_use]
    pub fn may_hide_a_write(&self) -> bool {
        self.computes == Computes::Anything
    }
}

impl Statement {
    /// Whether it stands for a text that was not understood, and that the server may understand.
    #[must_use]
    pub fn is_unread(&self) -> bool {
        matches!(self.why, Some(WriteReason::Opaque(_)))
    }

    /// Whether it returns the default access mode to the value of the session's start, or may.
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

impl Verdict {
    /// The verdict on a text of these statements.
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

    /// Whether one of its statements does something to the session that has to be followed. Of a text that was not
    /// understood that is only the name of one of our settings: whatever else it may do does not bind anything.
    #[inline]
    #[must_use]
    pub const fn has_controls(&self) -> bool {
        self.has_controls
    }

    /// Whether what one of its statements does to the session is such a thing.
    #[inline]
    #[must_use]
    pub fn any_control(&self, is_such: impl Fn(&Control) -> bool) -> bool {
        let mut statements = self.statements.iter();
        self.has_controls && statements.any(|statement| statement.controls.iter().any(&is_such))
    }

    /// The verdict on a text that was not understood: one write that may do anything.
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
        }]))
    }

    /// The same text where the server may read it otherwise: each statement may do anything to data, and to the session
    /// what it says.
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

    /// The strongest class of its statements.
    #[must_use]
    pub fn class(&self) -> Class {
        self.statements
            .iter()
            .map(|statement| statement.effects.class)
            .max()
            .unwrap_or(Class::Read)
    }

    /// True where work may be committed before the whole text has completed.
    #[must_use]
    pub fn commits_midway(&self) -> bool {
        let several = self.statements.len() > 1;
        self.statements.iter().any(|statement| {
            statement.commits_inside == CommitsInside::Possibly
                || (several && statement.controls.iter().any(Control::is_transaction))
        })
    }

    /// Why the text is a write: the reason of its first write.
    #[must_use]
    pub fn why(&self) -> Option<&WriteReason> {
        self.statements
            .iter()
            .find_map(|statement| statement.why.as_ref())
    }

    /// For logs: the kind of its only statement, "multi" for several, "empty" for none.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match &*self.statements {
            [] => "empty",
            [only] => only.kind,
            _ => "multi",
        }
    }

    /// Bytes on the heap, near enough for a budget.
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
    /// Does it begin, end or split a transaction?
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

    /// Does it give a value to one of our settings?
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
