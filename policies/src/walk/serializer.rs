//! Traversal of the tree: every type in it derives `Serialize`, so none can be forgotten.

use serde::Serialize;
use serde::ser::{self, Impossible};

use super::fields::{Fields, Of};
use super::{UnknownShape, Walk};
use crate::walk::trace::Token;

/// Values that cannot contain nodes.
macro_rules! nothing_in {
    ($($method:ident($($of:ty),*);)*) => {
        $(fn $method(self, $(_: $of),*) -> Result<(), UnknownShape> { Ok(()) })*
    };
}

/// Shapes that no type of the tree has.
macro_rules! not_in_the_tree {
    ($($method:ident($($of:ty),*) -> $shape:ident;)*) => {
        $(type $shape = Impossible<(), UnknownShape>;)*
        $(fn $method(self, $(_: $of),*) -> Result<Self::$shape, UnknownShape> { Err(UnknownShape) })*
    };
}

impl<'a> ser::Serializer for &'a mut Walk {
    type Ok = ();
    type Error = UnknownShape;
    type SerializeSeq = Fields<'a>;
    type SerializeStruct = Fields<'a>;

    nothing_in! {
        serialize_i8(i8); serialize_i16(i16); serialize_i32(i32); serialize_i64(i64);
        serialize_u8(u8); serialize_u16(u16); serialize_u32(u32); serialize_u64(u64);
        serialize_f32(f32); serialize_f64(f64); serialize_char(char); serialize_bytes(&[u8]);
        serialize_none(); serialize_unit(); serialize_unit_struct(&'static str);
        serialize_unit_variant(&'static str, u32, &'static str);
    }

    not_in_the_tree! {
        serialize_tuple(usize) -> SerializeTuple;
        serialize_tuple_struct(&'static str, usize) -> SerializeTupleStruct;
        serialize_tuple_variant(&'static str, u32, &'static str, usize) -> SerializeTupleVariant;
        serialize_map(Option<usize>) -> SerializeMap;
        serialize_struct_variant(&'static str, u32, &'static str, usize) -> SerializeStructVariant;
    }

    fn serialize_bool(self, value: bool) -> Result<(), UnknownShape> {
        self.note(|| Token::Bool(value));
        Ok(())
    }

    fn serialize_str(self, value: &str) -> Result<(), UnknownShape> {
        self.note(|| Token::Text(value.into()));
        self.attributes.note(value);
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
        let of = self.list();
        Ok(Fields { walk: self, of })
    }

    fn serialize_struct(self, name: &'static str, _: usize) -> Result<Fields<'a>, UnknownShape> {
        self.note(|| Token::Struct(name));
        let of = Of::enter(self, name);
        Ok(Fields { walk: self, of })
    }
}
