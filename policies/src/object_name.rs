//! Names of what is in a database.

use std::fmt;

use crate::allocation::boxed;

/// The name of a table or function, as PostgreSQL parses it: what was not quoted is in lower case.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectName {
    /// The schema, where the text names one.
    pub schema: Option<Box<str>>,
    /// The name.
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
