//! Result of analyzing a SQL text: its statements and their effects.

use crate::allocation::boxed;
use crate::control::Control;
use crate::effects::{ANY_SETTING, Category, Class, Computes, Effects};
use crate::leftover::{Assignment, Leftover};
use crate::settings::DEFAULT_READ_ONLY;
use crate::write_reason::{Opaque, WriteReason};

/// One statement of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statement {
    /// Effects on data. With a [`Control::Execute`], only those of its arguments.
    pub effects: Effects,
    /// Name for logs: "INSERT", "SELECT", "CALL", "unparsed".
    pub kind: &'static str,
    /// Effects on the session, in order.
    pub controls: Box<[Control]>,
    /// Whether it may commit work before it completes: CALL, DO, VACUUM, .. CONCURRENTLY, and any text that could not
    /// be parsed.
    pub may_commit_inside: bool,
    /// Reason why it is a write; `None` for a read.
    pub why: Option<WriteReason>,
    pub(crate) computes: Computes,
    /// What it leaves in the server's session after its transaction.
    pub leaves: Option<Leftover>,
    /// The setting, if it does nothing but set one for the session.
    pub assigns: Option<Assignment>,
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
            ANY_SETTING | DEFAULT_READ_ONLY => true,
            "transaction_read_only" => !is_told(),
            _ => false,
        };
        let is_default = |control: &Control| matches!(control, Control::SetDefaultAccess(_));
        self.effects.settings.iter().any(|setting| states(setting))
            || self.controls.iter().any(is_default)
    }

    /// Whether it runs code in which a write may hide. Statements that only steer the session do not. PREPARE may:
    /// reading a literal can run the checks of a domain.
    #[inline]
    #[must_use]
    pub fn may_hide_a_write(&self) -> bool {
        self.computes == Computes::Anything
    }

    /// Whether a session that may write may have written by it. What declares a token does not count: it runs with
    /// that, and not with an older one.
    #[inline]
    #[must_use]
    pub fn may_have_written(&self) -> bool {
        self.may_hide_a_write() && !self.controls.iter().any(Control::gives_token)
    }

    /// Whether it is a SELECT or VALUES of constants.
    #[must_use]
    pub fn computes_nothing(&self) -> bool {
        self.computes == Computes::Nothing
    }

    /// Whether it only steers the session, however the server reads its text.
    #[must_use]
    pub fn only_steers(&self) -> bool {
        self.computes == Computes::Steers
    }

    /// Whether it stands for a text that was not understood, but that the server may understand: its grammar may be
    /// older or newer than the one here.
    #[must_use]
    pub fn is_unread(&self) -> bool {
        self.why.as_ref().is_some_and(WriteReason::is_unparsed)
    }

    /// Whether it names the default access mode, and may change it, or runs a prepared statement that may.
    #[must_use]
    pub fn may_change_default_access(&self) -> bool {
        let is_it = |setting: &str| matches!(setting, ANY_SETTING | DEFAULT_READ_ONLY);
        let runs = |control: &Control| matches!(control, Control::Execute { .. });
        self.effects.settings.iter().any(|setting| is_it(setting))
            || self.effects.writes_pg_settings()
            || self.controls.iter().any(runs)
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

/// Everything known about a whole text. A text without statements, such as comments only, is a read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Analysis {
    /// The statements, in order.
    pub statements: Box<[Statement]>,
    /// Whether a statement has a [`Control`]. Stored, because most texts have none and callers ask for many kinds of
    /// it.
    has_controls: bool,
}

impl Analysis {
    /// What is known about a text of these statements.
    #[must_use]
    pub fn new(statements: Box<[Statement]>) -> Self {
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

    pub(crate) fn unread(why: WriteReason, controls: Box<[Control]>) -> Self {
        let is_unread = matches!(why, WriteReason::Opaque(_));
        Self::new(Box::new([Statement {
            effects: Effects::unknown(Some(Category::Unparsed)),
            kind: "unparsed",
            controls,
            may_commit_inside: true,
            why: Some(why),
            computes: Computes::Anything,
            leaves: is_unread.then_some(Leftover::Unread),
            assigns: None,
        }]))
    }

    /// Copy for a server that may read the text differently: any effect on data, but the same controls.
    #[must_use]
    pub fn in_doubt(&self, why: Opaque) -> Self {
        let statements = self.statements.iter().map(|statement| Statement {
            effects: Effects::unknown(Some(match statement.effects.category {
                Some(Category::PrepareTransaction) => Category::PrepareTransaction,
                _ => Category::Unparsed,
            })),
            why: Some(WriteReason::Opaque(why)),
            leaves: statement.leaves.max(Some(Leftover::Unread)),
            assigns: None,
            computes: match statement.computes {
                Computes::Steers => Computes::Steers,
                Computes::Nothing | Computes::Anything => Computes::Anything,
            },
            ..statement.clone()
        });
        Self::new(statements.collect())
    }

    /// What matters most of what the statements leave.
    #[must_use]
    pub fn leaves(&self) -> Option<Leftover> {
        let leaves = self.statements.iter().map(|statement| statement.leaves);
        leaves.max().flatten()
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
            statement.may_commit_inside
                || (several && statement.controls.iter().any(Control::is_transaction))
        })
    }

    /// Whether an open transaction block is sure to be open after it, and during it.
    #[must_use]
    pub fn keeps_transaction(&self) -> bool {
        !self.any_control(Control::is_transaction)
            && !self.statements.iter().any(Statement::is_unread)
    }

    /// Whether it reads, begins and ends transactions, and does nothing else that its text shows.
    #[must_use]
    pub fn only_reads(&self) -> bool {
        let only_reads = |statement: &Statement| {
            let is_plain = statement.leaves.is_none() && statement.effects.settings.is_empty();
            let mut controls = statement.controls.iter();
            statement.effects.class == Class::Read
                && is_plain
                && controls.all(Control::is_transaction)
        };
        self.statements.iter().all(only_reads)
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
