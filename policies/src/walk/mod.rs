//! Examines everything inside a statement: reasons for a write, tables, functions.
//!
//! The walk uses `Serialize`, which every type of the parse tree derives, so it also reaches nodes that this code
//! does not know. The decoder bounds its depth: it refuses more than 100 levels.

mod attributes;
mod fields;
mod scope;
mod serializer;
mod trace;

use std::fmt;

use pg_query::protobuf::SelectStmt;
use serde::Serialize;
use serde::ser;

use crate::control::Mistake;
use crate::effects::{ANY_SETTING, Category, Computes, Tables};
use crate::found::Found;
use crate::functions::{self, Reach};
use crate::object_name::ObjectName;
use crate::settings::{Setting, reserved};
use crate::write_reason::WriteReason;
use attributes::Attributes;
use scope::NameScopes;
use trace::{Token, TokenTrace};

/// Role of a table's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TableUse {
    /// Its rows are read.
    Read,
    /// Its rows are written, or it is locked or changed.
    Write,
    /// Not a table, but the name of one in FROM, after FOR UPDATE OF.
    LockedAlias,
}

/// Examines a statement, or a part of one. Tables outside of inner queries have the role `direct`. The error stands
/// for a tree of a shape that protobuf cannot have.
///
/// The result is a write if its content makes it one. Its mistake is the first call of `set_config` for a `fencing.`
/// setting: the walk does not know whether that call declares a token.
pub(crate) fn examine<T: Serialize + ?Sized>(
    node: &T,
    direct: TableUse,
) -> Result<Found, UnknownShape> {
    Ok(Found {
        // The node may be only a part of the statement.
        computes: Computes::Anything,
        ..walk(node, direct)?
    })
}

/// Examines a whole query.
pub(crate) fn examine_query(select: &SelectStmt) -> Result<Found, UnknownShape> {
    walk(select, TableUse::Read)
}

fn walk<T: Serialize + ?Sized>(node: &T, direct: TableUse) -> Result<Found, UnknownShape> {
    let mut walk = Walk {
        direct,
        override_role: None,
        at: At::Root,
        scopes: NameScopes::default(),
        trace: None,
        first_arg: FirstArg::NotWanted,
        attributes: Attributes::default(),
        write: None,
        category: None,
        writes: Vec::new(),
        unseen: Unseen::Nothing,
        functions: Vec::new(),
        settings: Vec::new(),
        mistake: None,
        computes: Computes::Nothing,
    };
    node.serialize(&mut walk)?;
    Ok(walk.finish())
}

/// The parse tree has a shape that the walk does not know.
#[derive(Debug)]
pub(crate) struct UnknownShape;

impl fmt::Display for UnknownShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the parse tree has an unknown shape")
    }
}

impl std::error::Error for UnknownShape {}

impl ser::Error for UnknownShape {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self
    }
}

struct Walk {
    direct: TableUse,
    /// Role of tables in the current field, if the field has its own.
    override_role: Option<TableUse>,
    at: At,
    scopes: NameScopes,
    /// The start of a subtree, while a list of it is wanted.
    trace: Option<TokenTrace>,
    first_arg: FirstArg,
    attributes: Attributes,
    write: Option<WriteReason>,
    category: Option<Category>,
    writes: Vec<ObjectName>,
    unseen: Unseen,
    functions: Vec<ObjectName>,
    settings: Vec<Box<str>>,
    mistake: Option<Mistake>,
    computes: Computes,
}

/// Position of the walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// Before the first message, which is the statement itself.
    Root,
    Inside,
}

/// Whether something in the statement may touch tables that the text does not name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Unseen {
    Nothing,
    /// May write or read any table.
    Anything,
}

/// The first argument of a call.
#[derive(Debug)]
enum FirstArg {
    NotWanted,
    /// The next list holds the arguments.
    Wanted,
    Found(TokenTrace),
}

impl Walk {
    fn note(&mut self, token: impl FnOnce() -> Token) {
        if let Some(trace) = &mut self.trace {
            trace.push(token);
        }
    }

    /// Walks through `value` and returns its start as a list.
    fn traced<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<TokenTrace, UnknownShape> {
        let outer = self.trace.replace(TokenTrace::default());
        value.serialize(&mut *self)?;
        std::mem::replace(&mut self.trace, outer).ok_or(UnknownShape)
    }

    fn found(&mut self, why: WriteReason) {
        self.write.get_or_insert(why);
    }

    fn found_statement(&mut self, what: &'static str) {
        self.found(WriteReason::Contains(what));
        self.unseen = Unseen::Anything;
    }

    fn table(&mut self, name: ObjectName, alias: Option<Box<str>>) -> Result<(), UnknownShape> {
        let role = match self.override_role {
            Some(role) => role,
            None if self.scopes.in_query() => TableUse::Read,
            None => self.direct,
        };
        match role {
            TableUse::Read => self.scopes.mention(name, alias),
            TableUse::Write => self.writes.push(name),
            TableUse::LockedAlias => self.scopes.lock_of(name.name)?,
        }
        Ok(())
    }

    /// Records a call, with its first argument if that was wanted.
    fn call(&mut self, name: ObjectName, first: Option<&TokenTrace>) {
        if &*name.name == functions::SET_CONFIG {
            self.set_config(first);
        } else if let Some(writer) = functions::writer(&name.name) {
            self.found(WriteReason::Function(name.name.clone(), writer.why));
            match writer.reach {
                Reach::NoTable(category) => {
                    self.category = self.category.or(category);
                }
                Reach::Sequence => match sequence(&name, first) {
                    Some(sequence) => self.writes.push(sequence),
                    None => self.unseen = Unseen::Anything,
                },
                Reach::Anything | Reach::Text => self.unseen = Unseen::Anything,
            }
        }
        self.functions.push(name);
    }

    /// Counts in any schema: a function outside of `pg_catalog` can only hide its own effects.
    fn set_config(&mut self, first: Option<&TokenTrace>) {
        let name = first.and_then(|first| first.constant(&["text"]));
        match name.map(Setting::named) {
            None => self.found(WriteReason::ComputedSetting),
            Some(Setting::TransactionReadOnly | Setting::DefaultReadOnly) => {
                self.found(WriteReason::SetsReadWrite);
            }
            Some(Setting::Fencing(variable)) => {
                let mistake = Mistake::DoesNotDeclare(variable);
                self.mistake.get_or_insert(mistake);
            }
            Some(Setting::Reserved) => {
                let mistake = name.map(reserved);
                self.mistake = self.mistake.take().or(mistake);
            }
            Some(Setting::Other) => {}
        }
        self.settings
            .push(name.unwrap_or(ANY_SETTING).to_ascii_lowercase().into());
    }

    fn finish(mut self) -> Found {
        for name in std::mem::take(&mut self.attributes).into_called() {
            self.call(ObjectName { schema: None, name }, None);
        }
        let tables = self.scopes.resolve();
        let mut writes = self.writes;
        writes.extend(tables.locked);
        let (writes, reads) = (Tables::named(writes), Tables::named(tables.read));
        let (writes, reads) = match self.unseen {
            Unseen::Anything => (writes.and_others(), reads.and_others()),
            Unseen::Nothing => (writes, reads),
        };
        let mut functions = self.functions;
        functions.sort_unstable();
        functions.dedup();
        Found {
            why: self.write,
            category: self.category,
            writes,
            reads,
            functions: functions.into(),
            settings: self.settings,
            mistake: self.mistake,
            computes: self.computes,
            ..Found::nothing()
        }
    }
}

/// The sequence that nextval or setval moves, if the text names it and the function is PostgreSQL's own.
fn sequence(function: &ObjectName, first: Option<&TokenTrace>) -> Option<ObjectName> {
    if function
        .schema
        .as_deref()
        .is_some_and(|schema| schema != "pg_catalog")
    {
        return None;
    }
    trace::regclass(first?.constant(&["regclass", "text"])?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Statements that today's grammar does not allow in a query would be writes too.
    #[test]
    fn any_statement_but_select_is_a_write() {
        let found = |text: &str| {
            let found = examine(
                &pg_query::parse(text, 0).unwrap().protobuf.stmts,
                TableUse::Read,
            )
            .unwrap();
            (found.why, found.writes)
        };
        assert_eq!(found("select 1"), (None, Tables::none()));
        for (text, name) in [
            ("select 1; call p()", "CallStmt"),
            ("select 1; notify x", "NotifyStmt"),
            ("select 1; analyze t", "VacuumStmt"),
        ] {
            let expected = (Some(WriteReason::Contains(name)), Tables::unknown());
            assert_eq!(found(text), expected, "{text}");
        }
    }
}
