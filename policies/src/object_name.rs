//! Names of database objects.

use std::fmt;

use crate::allocation::boxed;

/// Name of a table or function, as PostgreSQL parses it: unquoted names are in lower case.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectName {
    /// Schema, if the text names one.
    pub schema: Option<Box<str>>,
    /// Name without the schema.
    pub name: Box<str>,
}

impl ObjectName {
    pub(crate) fn heap_bytes(&self) -> usize {
        boxed(&*self.name) + self.schema.as_deref().map_or(0, boxed)
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(schema) = &self.schema {
            write!(f, "{schema}.")?;
        }
        f.write_str(&self.name)
    }
}
