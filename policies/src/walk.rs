//! Looks for writes anywhere inside a statement.
//!
//! The walk goes over `Serialize`, which is derived for every type of the parse tree: it reaches every node, also of
//! that nobody thought of here. Its depth is bounded: the decoder of the tree refuses more than 100 levels.

use std::fmt;

use serde::Serialize;
use serde::ser::{self, Impossible};

use crate::functions::why_writes;
use crate::set_config::{self, ConfigName};
use crate::verdict::WriteReason;

/// What is inside a subtree.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    /// The first thing that makes it a write, where it is executed.
    pub(crate) write: Option<WriteReason>,
}

/// Examines a node and all that is below it. The error stands for a tree of a shape that protobuf cannot have.
pub(crate) fn examine<T: Serialize + ?Sized>(node: &T) -> Result<Findings, UnknownShape> {
    let mut walk = Walk {
        findings: Findings::default(),
        names: Names::Ignore,
        last_name: String::new(),
    };
    node.serialize(&mut walk)?;
    Ok(walk.findings)
}

/// The tree has a shape that the walk does not know.
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
    findings: Findings,
    names: Names,
    last_name: String,
}

/// What strings are, at this point of the tree.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Names {
    /// Nothing of interest.
    Ignore,
    /// Parts of a function's name; the last one counts.
    Keep,
}

impl Walk {
    fn found(&mut self, why: WriteReason) {
        self.findings.write.get_or_insert(why);
    }

    fn enter(&mut self, name: &'static str) {
        match name {
            "SelectStmt" | "RawStmt" => {}
            "InsertStmt" => self.found(WriteReason::Contains("INSERT")),
            "UpdateStmt" => self.found(WriteReason::Contains("UPDATE")),
            "DeleteStmt" => self.found(WriteReason::Contains("DELETE")),
            "MergeStmt" => self.found(WriteReason::Contains("MERGE")),
            "IntoClause" => self.found(WriteReason::Into),
            "LockingClause" => self.found(WriteReason::Locking),
            other if other.ends_with("Stmt") => self.found(WriteReason::Contains(other)),
            _ => {}
        }
    }
}

/// The fields of a message.
struct Fields<'a> {
    walk: &'a mut Walk,
    of: FieldsOf,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum FieldsOf {
    Call,
    CallOfSetConfig,
    Other,
}

impl ser::SerializeStruct for Fields<'_> {
    type Ok = ();
    type Error = UnknownShape;

    fn serialize_field<T: Serialize + ?Sized>(
        &mut self,
        key: &'static str,
        value: &T,
    ) -> Result<(), UnknownShape> {
        match (self.of, key) {
            (FieldsOf::Call, "funcname") => {
                self.walk.names = Names::Keep;
                self.walk.last_name.clear();
                value.serialize(&mut *self.walk)?;
                self.walk.names = Names::Ignore;
                if self.walk.last_name == "set_config" {
                    self.of = FieldsOf::CallOfSetConfig;
                } else if let Some(why) = why_writes(&self.walk.last_name) {
                    let name = self.walk.last_name.as_str().into();
                    self.walk.found(WriteReason::Function(name, why));
                }
                Ok(())
            }
            (FieldsOf::CallOfSetConfig, "args") => {
                let args = serde_json::to_value(value).map_err(|_| UnknownShape)?;
                match set_config::config_name(&args) {
                    ConfigName::Harmless => {}
                    ConfigName::ReadOnly => self.walk.found(WriteReason::LiftsReadOnly),
                    ConfigName::Computed => self.walk.found(WriteReason::ComputedSetting),
                }
                value.serialize(&mut *self.walk)
            }
            _ => value.serialize(&mut *self.walk),
        }
    }

    fn end(self) -> Result<(), UnknownShape> {
        Ok(())
    }
}

impl ser::SerializeSeq for Fields<'_> {
    type Ok = ();
    type Error = UnknownShape;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), UnknownShape> {
        value.serialize(&mut *self.walk)
    }

    fn end(self) -> Result<(), UnknownShape> {
        Ok(())
    }
}

/// Values in which nothing can hide.
macro_rules! nothing_in {
    ($($method:ident: $type:ty),* $(,)?) => {
        $(fn $method(self, _: $type) -> Result<(), UnknownShape> { Ok(()) })*
    };
}

impl<'a> ser::Serializer for &'a mut Walk {
    type Ok = ();
    type Error = UnknownShape;
    type SerializeSeq = Fields<'a>;
    type SerializeStruct = Fields<'a>;
    type SerializeTuple = Impossible<(), UnknownShape>;
    type SerializeTupleStruct = Impossible<(), UnknownShape>;
    type SerializeTupleVariant = Impossible<(), UnknownShape>;
    type SerializeMap = Impossible<(), UnknownShape>;
    type SerializeStructVariant = Impossible<(), UnknownShape>;

    nothing_in! {
        serialize_bool: bool, serialize_i8: i8, serialize_i16: i16, serialize_i32: i32, serialize_i64: i64,
        serialize_u8: u8, serialize_u16: u16, serialize_u32: u32, serialize_u64: u64, serialize_f32: f32,
        serialize_f64: f64, serialize_char: char, serialize_bytes: &[u8], serialize_unit_struct: &'static str,
    }

    fn serialize_str(self, value: &str) -> Result<(), UnknownShape> {
        if self.names == Names::Keep {
            self.last_name.clear();
            self.last_name.push_str(value);
        }
        Ok(())
    }

    fn serialize_none(self) -> Result<(), UnknownShape> {
        Ok(())
    }

    fn serialize_unit(self) -> Result<(), UnknownShape> {
        Ok(())
    }

    fn serialize_unit_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
    ) -> Result<(), UnknownShape> {
        Ok(())
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), UnknownShape> {
        value.serialize(self)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<(), UnknownShape> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        value: &T,
    ) -> Result<(), UnknownShape> {
        value.serialize(self)
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Fields<'a>, UnknownShape> {
        Ok(Fields {
            walk: self,
            of: FieldsOf::Other,
        })
    }

    fn serialize_struct(self, name: &'static str, _: usize) -> Result<Fields<'a>, UnknownShape> {
        self.enter(name);
        let of = if name == "FuncCall" {
            FieldsOf::Call
        } else {
            FieldsOf::Other
        };
        Ok(Fields { walk: self, of })
    }

    fn serialize_tuple(self, _: usize) -> Result<Self::SerializeTuple, UnknownShape> {
        Err(UnknownShape)
    }

    fn serialize_tuple_struct(
        self,
        _: &'static str,
        _: usize,
    ) -> Result<Self::SerializeTupleStruct, UnknownShape> {
        Err(UnknownShape)
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self::SerializeTupleVariant, UnknownShape> {
        Err(UnknownShape)
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Self::SerializeMap, UnknownShape> {
        Err(UnknownShape)
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self::SerializeStructVariant, UnknownShape> {
        Err(UnknownShape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Statements that today's grammar does not let into a query are writes too, should it ever.
    #[test]
    fn any_statement_but_select_is_a_write() {
        let found = |text: &str| {
            examine(&pg_query::parse(text, 0).unwrap().protobuf)
                .unwrap()
                .write
        };
        assert_eq!(found("select 1"), None);
        assert_eq!(found("call p()"), Some(WriteReason::Contains("CallStmt")));
        assert_eq!(found("notify x"), Some(WriteReason::Contains("NotifyStmt")));
    }
}
