//! From what a statement does, and whose session it is, to what the session must hold.
//!
//! A [`Policy`] is what an operator has written, or the default. [`Policy::for_session`] looks up what it says about
//! one session. [`SessionPolicy::requirement`] is then asked for each statement.

mod requirement;
mod session;

pub use requirement::{Reason, Requirement, ScopeSet, SearchPath};
pub use session::{Backstop, SessionPolicy, Who};

/// The scope of a session that names none.
pub const DEFAULT_SCOPE: &str = "default";

/// A scope that a policy names: its place in [`Policy::scopes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ScopeId(u32);

impl ScopeId {
    /// Its place in [`Policy::scopes`].
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Whether a refusal is carried out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// It is.
    #[default]
    Enforce,
    /// It is only recorded.
    Observe,
}

/// How far one declaration may go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenBounds {
    /// How far one declaration may raise a mark that there is; `None`: as far as it likes.
    pub max_step: Option<u64>,
    /// The highest token that is accepted; `None`: the highest that there is.
    pub max_token: Option<u64>,
}

/// The rules of one proxy. The default holds without a policy file: every write needs the current token of scope
/// [`DEFAULT_SCOPE`], reads are free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    scopes: Vec<Box<str>>,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            scopes: vec![DEFAULT_SCOPE.into()],
        }
    }
}

impl Policy {
    /// The names of all scopes that it knows. The first is the one of a session that names none.
    #[must_use]
    pub fn scopes(&self) -> &[Box<str>] {
        &self.scopes
    }

    /// What limits the tokens of a scope, also of one that it does not name.
    #[must_use]
    pub fn bounds(&self, _scope: &str) -> TokenBounds {
        TokenBounds::default()
    }
}

/// PLACEHOLDER
#[derive(Debug)]
pub struct PolicyErrors(Vec<String>);
impl PolicyErrors {
    /// x
    pub fn iter(&self) -> impl Iterator<Item = &String> {
        self.0.iter()
    }
}
impl Policy {
    /// x
    /// # Errors
    /// x
    pub fn parse(_: &str, _: &dyn Fn(&str) -> Result<(), String>) -> Result<Self, PolicyErrors> {
        Ok(Self::default())
    }
}
