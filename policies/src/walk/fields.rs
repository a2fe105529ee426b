//! Messages of the tree that matter to the walk, and their fields.

use serde::Serialize;
use serde::ser;

use super::attributes::Notation;
use super::scope::LockedClause;
use super::trace::TokenTrace;
use super::{At, FirstArg, TableUse, UnknownShape, Walk};
use crate::effects::{Category, Computes};
use crate::functions;
use crate::object_name::ObjectName;
use crate::write_reason::WriteReason;

/// Messages in a query of constants. PostgreSQL runs only input and output of its own types for it.
const CONSTANTS: [&str; 10] = [
    "Node",
    "SelectStmt",
    "ResTarget",
    "AConst",
    "Integer",
    "Float",
    "Boolean",
    "String",
    "BitString",
    "List",
];

/// The fields of a message, or the elements of a list.
pub(super) struct Fields<'a> {
    pub(super) walk: &'a mut Walk,
    pub(super) of: Of,
}

/// Owner of the fields.
pub(super) enum Of {
    /// A message without a meaning of its own.
    Other(&'static str),
    List,
    /// Arguments of a call whose first one is wanted.
    Args(Option<TokenTrace>),
    /// SELECT, INSERT, UPDATE, DELETE or MERGE.
    Query,
    RangeVar(RangeVar),
    Call {
        name: Option<ObjectName>,
        first: Option<TokenTrace>,
    },
    With,
    Cte {
        name: Option<Box<str>>,
        begin: usize,
    },
    /// FOR UPDATE, with the number of names after OF before it.
    Locking(usize),
}

/// A table's name, as far as it was read.
#[derive(Default)]
pub(super) struct RangeVar {
    schema: Option<Box<str>>,
    name: Option<Box<str>>,
    alias: Option<Box<str>>,
}

impl Of {
    /// Begins a message of this name.
    pub(super) fn enter(walk: &mut Walk, name: &'static str) -> Self {
        let at = std::mem::replace(&mut walk.at, At::Inside);
        if !CONSTANTS.contains(&name) {
            walk.computes = Computes::Anything;
        }
        match name {
            "RangeVar" => return Self::RangeVar(RangeVar::default()),
            "RangeFunction" => {
                walk.attributes.has_function_in_from = true;
                return Self::Other(name);
            }
            "FuncCall" => {
                return Self::Call {
                    name: None,
                    first: None,
                };
            }
            "SelectStmt" => {}
            "InsertStmt" => walk.found(WriteReason::Contains("INSERT")),
            "UpdateStmt" => walk.found(WriteReason::Contains("UPDATE")),
            "DeleteStmt" => walk.found(WriteReason::Contains("DELETE")),
            "MergeStmt" => walk.found(WriteReason::Contains("MERGE")),
            "WithClause" => return Self::With,
            "CommonTableExpr" => {
                return Self::Cte {
                    name: None,
                    begin: walk.scopes.here(),
                };
            }
            "LockingClause" => {
                walk.found(WriteReason::Locking);
                return Self::Locking(walk.scopes.locked_of());
            }
            "IntoClause" => {
                walk.found(WriteReason::Into);
                walk.category = Some(Category::Ddl);
                return Self::Other(name);
            }
            // REPLICA IDENTITY is a part of ALTER TABLE, and CREATE TABLE one of CREATE FOREIGN TABLE.
            "RawStmt" | "ReplicaIdentityStmt" | "CreateStmt" => return Self::Other(name),
            other if other.ends_with("Stmt") && at == At::Inside => {
                walk.found_statement(other);
                return Self::Other(name);
            }
            _ => return Self::Other(name),
        }
        walk.scopes.begin_query();
        Self::Query
    }
}

impl Walk {
    /// Begins a list.
    pub(super) fn list(&mut self) -> Of {
        if let FirstArg::Wanted = self.first_arg {
            self.first_arg = FirstArg::NotWanted;
            Of::Args(None)
        } else {
            Of::List
        }
    }

    /// Walks a field in which tables have a role of their own.
    fn with_role<T: Serialize + ?Sized>(
        &mut self,
        role: TableUse,
        value: &T,
    ) -> Result<(), UnknownShape> {
        let outer = self.override_role.replace(role);
        value.serialize(&mut *self)?;
        self.override_role = outer;
        Ok(())
    }

    /// Walks a field in which the names may be those of functions.
    fn with_notation<T: Serialize + ?Sized>(
        &mut self,
        notation: Notation,
        value: &T,
    ) -> Result<(), UnknownShape> {
        let outer = std::mem::replace(&mut self.attributes.notation, notation);
        value.serialize(&mut *self)?;
        self.attributes.notation = outer;
        Ok(())
    }

    fn query_field<T: Serialize + ?Sized>(
        &mut self,
        key: &'static str,
        value: &T,
    ) -> Result<(), UnknownShape> {
        let part = match key {
            "from_clause" => LockedClause::From,
            "larg" | "rarg" => LockedClause::Side,
            "relation" => return self.with_role(TableUse::Write, value),
            _ => return value.serialize(&mut *self),
        };
        let begin = self.scopes.here();
        value.serialize(&mut *self)?;
        self.scopes.end_part(part, begin)
    }

    fn other_field<T: Serialize + ?Sized>(
        &mut self,
        of: &'static str,
        key: &'static str,
        value: &T,
    ) -> Result<(), UnknownShape> {
        match (of, key) {
            ("IntoClause", "rel") => self.with_role(TableUse::Write, value),
            // LIKE in a CREATE TABLE only reads. A table that a foreign key references gets triggers, so it is
            // altered.
            ("TableLikeClause", "relation") => self.with_role(TableUse::Read, value),
            ("ColumnRef", "fields") => self.with_notation(Notation::ColumnStart, value),
            ("AIndirection", "indirection") => self.with_notation(Notation::Expression, value),
            ("AIndices", _) => self.with_notation(Notation::None, value),
            _ => value.serialize(&mut *self),
        }
    }

    fn cte_field<T: Serialize + ?Sized>(
        &mut self,
        key: &'static str,
        value: &T,
        name: &mut Option<Box<str>>,
    ) -> Result<(), UnknownShape> {
        match key {
            "ctename" => *name = self.traced(value)?.into_text(),
            _ => value.serialize(&mut *self)?,
        }
        Ok(())
    }

    fn with_field<T: Serialize + ?Sized>(
        &mut self,
        key: &'static str,
        value: &T,
    ) -> Result<(), UnknownShape> {
        match key {
            "ctes" => {
                self.scopes.begin_with()?;
                value.serialize(&mut *self)
            }
            "recursive" if self.traced(value)?.is_true() => self.scopes.with_is_recursive(),
            _ => value.serialize(&mut *self),
        }
    }
}

impl RangeVar {
    fn field<T: Serialize + ?Sized>(
        &mut self,
        walk: &mut Walk,
        key: &'static str,
        value: &T,
    ) -> Result<(), UnknownShape> {
        let part = match key {
            "schemaname" => &mut self.schema,
            "relname" => &mut self.name,
            "alias" => &mut self.alias,
            // PostgreSQL accepts only the name of the current database.
            _ => return value.serialize(walk),
        };
        *part = walk.traced(value)?.into_text();
        Ok(())
    }
}

/// Walks a field of a call. The function's name decides whether its first argument matters.
fn call_field<T: Serialize + ?Sized>(
    walk: &mut Walk,
    key: &'static str,
    value: &T,
    name: &mut Option<ObjectName>,
    first: &mut Option<TokenTrace>,
) -> Result<(), UnknownShape> {
    match key {
        "funcname" => {
            *name = walk.traced(value)?.into_object_name();
            Ok(())
        }
        "args" if name.as_ref().is_some_and(functions::looks_at_argument) => {
            walk.first_arg = FirstArg::Wanted;
            value.serialize(&mut *walk)?;
            if let FirstArg::Found(trace) =
                std::mem::replace(&mut walk.first_arg, FirstArg::NotWanted)
            {
                *first = Some(trace);
            }
            Ok(())
        }
        _ => value.serialize(walk),
    }
}

impl ser::SerializeStruct for Fields<'_> {
    type Ok = ();
    type Error = UnknownShape;

    fn serialize_field<T: Serialize + ?Sized>(
        &mut self,
        key: &'static str,
        value: &T,
    ) -> Result<(), UnknownShape> {
        let walk = &mut *self.walk;
        match &mut self.of {
            Of::Other(of) => walk.other_field(of, key, value),
            Of::Query => walk.query_field(key, value),
            Of::RangeVar(range_var) => range_var.field(walk, key, value),
            Of::Call { name, first } => call_field(walk, key, value, name, first),
            Of::With => walk.with_field(key, value),
            Of::Cte { name, .. } => walk.cte_field(key, value, name),
            Of::Locking(_) if key == "locked_rels" => walk.with_role(TableUse::LockedAlias, value),
            Of::Locking(_) | Of::List | Of::Args(_) => value.serialize(walk),
        }
    }

    fn end(self) -> Result<(), UnknownShape> {
        let walk = self.walk;
        match self.of {
            Of::Query => walk.scopes.end_query(),
            Of::RangeVar(RangeVar {
                schema,
                name,
                alias,
            }) => {
                let name = name.ok_or(UnknownShape)?;
                walk.table(ObjectName { schema, name }, alias)
            }
            Of::Call { name, first } => {
                walk.call(name.ok_or(UnknownShape)?, first.as_ref());
                Ok(())
            }
            Of::Cte { name, begin } => walk.scopes.end_cte(name.ok_or(UnknownShape)?, begin),
            Of::Locking(before) if walk.scopes.locked_of() == before => walk.scopes.lock_all(),
            Of::Locking(_) | Of::With | Of::Other(_) | Of::List | Of::Args(_) => Ok(()),
        }
    }
}

impl ser::SerializeSeq for Fields<'_> {
    type Ok = ();
    type Error = UnknownShape;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), UnknownShape> {
        match &mut self.of {
            Of::Args(first @ None) => {
                *first = Some(self.walk.traced(value)?);
                Ok(())
            }
            _ => value.serialize(&mut *self.walk),
        }
    }

    fn end(self) -> Result<(), UnknownShape> {
        if let Of::Args(Some(first)) = self.of {
            self.walk.first_arg = FirstArg::Found(first);
        }
        Ok(())
    }
}
