//! From the class of a statement to what the session must hold.

use std::fmt;

use crate::verdict::Class;

/// The scope of a session that names none.
pub const DEFAULT_SCOPE: &str = "default";

/// What a session must hold for a message to pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Requirement {
    /// Nothing: it passes.
    Free,
    /// The current token of the session's own scope ([`DEFAULT_SCOPE`] where it names none).
    Current,
    /// Nothing helps: it is refused whatever the session holds.
    Refuse(Reason),
}

/// Why a policy refuses, in words for the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason(Box<str>);

impl Reason {
    /// Takes the words as they will be shown.
    #[must_use]
    pub fn new(words: impl Into<Box<str>>) -> Self {
        Self(words.into())
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The rules of one proxy. The default holds without a policy file: every write needs the current token, reads
/// are free.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    // A file will add rules: nobody outside builds a policy by literal.
    _rules: (),
}

impl Policy {
    /// What a statement of this class needs. Resolve EXECUTE to the class of its prepared statement first.
    #[must_use]
    pub fn requirement(&self, class: Class) -> Requirement {
        match class {
            Class::Read => Requirement::Free,
            Class::Write => Requirement::Current,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_file_writes_need_the_token_and_reads_nothing() {
        assert_eq!(
            Policy::default().requirement(Class::Read),
            Requirement::Free
        );
        assert_eq!(
            Policy::default().requirement(Class::Write),
            Requirement::Current
        );
    }
}
