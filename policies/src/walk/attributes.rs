//! Functions in the notation of attributes: `(expr).f` and `alias.f` call `f(expr)`.
//!
//! <https://www.postgresql.org/docs/current/sql-expressions.html#SQL-EXPRESSIONS-FUNCTION-CALLS>

use crate::{functions, leftover};

/// What the names that follow may be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Notation {
    #[default]
    None,
    /// A column's: the next one is a column or a table.
    ColumnStart,
    /// Of a table's row, or of what a function in FROM returns.
    ColumnRest,
    /// Of an expression.
    Expression,
}

#[derive(Default)]
pub(super) struct Attributes {
    pub(super) notation: Notation,
    /// Functions that matter. Others are not told from columns.
    called: Vec<Box<str>>,
    /// Names of columns that would be such functions, if FROM has a value that is not a row.
    columns: Vec<Box<str>>,
    pub(super) has_function_in_from: bool,
}

impl Attributes {
    /// Notes a name that may be a column's or a function's.
    pub(super) fn note(&mut self, name: &str) {
        let matters = || functions::writer(name).is_some() || leftover::of_name(name).is_some();
        match self.notation {
            Notation::ColumnStart => self.notation = Notation::ColumnRest,
            Notation::ColumnRest if matters() => self.columns.push(name.into()),
            Notation::Expression if matters() => self.called.push(name.into()),
            _ => {}
        }
    }

    /// The functions that are called so.
    pub(super) fn into_called(self) -> impl Iterator<Item = Box<str>> {
        let columns = self.has_function_in_from.then_some(self.columns);
        self.called.into_iter().chain(columns.into_iter().flatten())
    }
}
