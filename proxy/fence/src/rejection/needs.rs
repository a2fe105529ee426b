//! Refusal of a statement for lack of a token.

use std::fmt;

use pgpalisade_authority::Scope;
use pgpalisade_policies::{Class, MayNotDeclare, ObjectName, SyntaxError, WriteReason};

use super::{Rejection, RejectionKind};
use crate::SCOPES_MAX;
use crate::guard::Unguarded;

/// Needs of a statement that was refused for lack of a token.
pub struct Needs<'a> {
    /// Whether it reads or writes.
    pub(crate) class: Class,
    /// Scopes whose tokens it needs, at least one. Of more than [`SCOPES_MAX`] only the first, because no session can
    /// hold so many.
    pub(crate) scopes: &'a [&'a Scope],
    /// Scope of a bare number.
    pub(crate) session_scope: &'a Scope,
    /// Reason why it counts as a write.
    pub(crate) why_write: Option<WhyWrite<'a>>,
    /// Table without a schema that a scope may list.
    pub(crate) unqualified: Option<&'a ObjectName>,
    /// Scopes of the tokens that the session holds.
    pub(crate) held: Vec<&'a Scope>,
    /// Reason why the session may not declare the token, or not for the whole session.
    pub(crate) barred: Option<MayNotDeclare>,
}

/// Reason why a statement counts as a write.
#[derive(Clone, Copy)]
pub(crate) enum WhyWrite<'a> {
    Statement(&'a WriteReason),
    Unguarded(Unguarded),
}

impl fmt::Display for WhyWrite<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Statement(why) => why.fmt(f),
            Self::Unguarded(why) => why.fmt(f),
        }
    }
}

impl Needs<'_> {
    /// Value to declare.
    fn value(&self) -> String {
        match self.scopes {
            [only] if *only == self.session_scope => "<number>".to_owned(),
            several => {
                let all = several.iter().map(|one| format!("{one}=<number>"));
                all.collect::<Vec<_>>().join(",")
            }
        }
    }
}

/// Beginning of the HINT if a token can be declared.
const DECLARE: &str = "Declare the token of your election first:";
/// Maximum number of scopes that one DETAIL names.
const NAMED: usize = 3;

/// Names the scopes of the session's tokens, if it has any.
fn only_for(held: &[&Scope]) -> String {
    let named: Vec<String> = held
        .iter()
        .take(NAMED)
        .map(|one| format!("\"{one}\""))
        .collect();
    match held.len().saturating_sub(NAMED) {
        _ if held.is_empty() => String::new(),
        0 => format!(", only for {}", named.join(", ")),
        more => format!(", only for {} and {more} more", named.join(", ")),
    }
}

impl Rejection {
    /// The session has no token for a scope that a statement needs.
    #[must_use]
    pub(crate) fn no_token(scope: &Scope, needs: &Needs<'_>) -> Self {
        let what = match needs.class {
            Class::Read => "read",
            Class::Write => "write",
        };
        if let Some(WhyWrite::Statement(WriteReason::Syntax(syntax))) = needs.why_write {
            return Self::unparsed(scope, syntax).needing(needs.class);
        }
        let message = format!("this {what} needs a fencing token for scope \"{scope}\"");
        let reason = match (needs.class, needs.why_write) {
            (Class::Read, _) => "the policy requires one to read".to_owned(),
            (Class::Write, Some(why)) => format!("the statement is not a read: {why}"),
            (Class::Write, None) => "the statement is not known to be a read".to_owned(),
        };
        let mut detail = format!(
            "This session has declared no token for it{}, and {reason}.",
            only_for(&needs.held)
        );
        if needs.scopes.len() > SCOPES_MAX {
            detail.push_str(&format!(
                " It needs the tokens of more scopes than the {SCOPES_MAX} that a session can declare."
            ));
            let hint = "Write a statement that names its tables. If the policy asks for all scopes because of \
                unknown_tables = \"every-scope\", an operator can set it to \"session-scope\".";
            return Self::new(RejectionKind::NoToken, message, detail, hint)
                .about(scope, None, None)
                .needing(needs.class);
        }
        if needs.scopes.len() > 1 {
            let all: Vec<String> = needs
                .scopes
                .iter()
                .map(|one| format!("\"{one}\""))
                .collect();
            detail.push_str(&format!(
                " It needs the tokens of scopes {}.",
                all.join(", ")
            ));
        }
        if let Some(name) = needs.unqualified {
            detail.push_str(&format!(
                " \"{name}\" has no schema, so it counts as every listed table of that name: write the schema."
            ));
        }
        if let Some(barred) = &needs.barred {
            let detail = format!("{detail} {}.", barred.why);
            return Self::new(RejectionKind::NoToken, message, detail, &barred.hint)
                .about(scope, None, None)
                .needing(needs.class);
        }
        let value = needs.value();
        let quoted = if value.starts_with('<') {
            value.clone()
        } else {
            format!("'{value}'")
        };
        let hint = format!(
            "{DECLARE} SET fencing.token = {quoted}, or \
                options='-c fencing.token={value}' in the connection string."
        );
        Self::new(RejectionKind::NoToken, message, detail, hint)
            .about(scope, None, None)
            .needing(needs.class)
    }

    /// PostgreSQL itself would most likely reject the text.
    fn unparsed(scope: &Scope, syntax: &SyntaxError) -> Self {
        let message = format!(
            "a query that cannot be parsed needs a fencing token for scope \"{scope}\", as a write does"
        );
        let detail = format!("The parser's error is: {}.", syntax.error);
        let hint = if syntax.names_ours {
            "Correct the query. SET needs quotes around what is not a number: SET fencing.token = 'scheduler=34'."
        } else {
            "Correct the query."
        };
        Self::new(RejectionKind::NoToken, message, detail, hint).about(scope, None, None)
    }

    /// Adds to the HINT that a transaction block must be rolled back before a token can be declared.
    #[must_use]
    pub fn in_transaction(self) -> Self {
        if !self.hint.starts_with(DECLARE) {
            return self;
        }
        let hint = format!(
            "ROLLBACK, and begin again: a transaction can be given a token only before its first query. {}",
            self.hint
        );
        Self { hint, ..self }
    }

    const fn needing(mut self, class: Class) -> Self {
        self.needs = Some(class);
        self
    }
}
