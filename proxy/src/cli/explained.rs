//! Output of `pgpalisade explain`, as text or JSON.

use std::fmt::Write as _;

use pgpalisade_policies::{ScopeId, SessionPolicy};
use serde::Serialize;

use super::text::plain;

#[derive(Serialize)]
pub(super) struct Explained {
    pub(super) session: ExplainedSession,
    pub(super) statements: Vec<ExplainedStatement>,
}

#[derive(Serialize)]
pub(super) struct ExplainedSession {
    /// The rule that matches; null if the defaults apply.
    rule: Option<String>,
    scope: String,
    /// Scopes whose current token ends the read-only guard; null if the session is never under it.
    read_only_until: Option<Vec<String>>,
    declares: String,
    warnings: Vec<String>,
}

#[derive(Serialize)]
pub(super) struct ExplainedStatement {
    pub(super) kind: &'static str,
    pub(super) class: &'static str,
    /// The reason why it is a write; null for a read.
    pub(super) why: Option<String>,
    pub(super) category: Option<&'static str>,
    pub(super) writes: Option<Vec<String>>,
    pub(super) reads: Option<Vec<String>>,
    pub(super) functions: Vec<String>,
    pub(super) settings: Vec<String>,
    pub(super) because: Vec<String>,
    pub(super) needs: String,
    pub(super) mode: &'static str,
    pub(super) outcome: String,
    /// DETAIL of the refusal; null if there is none.
    pub(super) detail: Option<String>,
    pub(super) hint: Option<String>,
}

pub(super) fn scope_name(session: &SessionPolicy, scope: ScopeId) -> &str {
    let scopes = session.policy().scopes();
    scopes.get(scope.index()).map_or("", |name| &**name)
}

impl ExplainedSession {
    pub(super) fn of(session: &SessionPolicy) -> Self {
        let name = |scope: &ScopeId| scope_name(session, *scope).to_owned();
        let warnings = session.policy().warnings().iter();
        Self {
            rule: session.rule().map(ToString::to_string),
            scope: name(&session.scope()),
            read_only_until: session
                .read_only_until()
                .map(|scopes| scopes.iter().map(name).collect()),
            declares: session.declares(),
            warnings: warnings.map(ToString::to_string).collect(),
        }
    }
}

impl Explained {
    pub(super) fn describe(&self) -> String {
        let session = &self.session;
        let mut text = String::new();
        let rule = session.rule.as_deref();
        line(
            &mut text,
            "session",
            rule.unwrap_or("no rule matches: [defaults]"),
        );
        line(&mut text, "scope", &session.scope);
        let read_only = match session.read_only_until.as_deref() {
            None => "never".to_owned(),
            Some([]) => "always".to_owned(),
            Some(scopes) => format!(
                "until it holds the current token of {}",
                scopes.join(" or ")
            ),
        };
        line(&mut text, "read-only", &read_only);
        line(&mut text, "declares", &session.declares);
        for (index, statement) in self.statements.iter().enumerate() {
            text.push('\n');
            statement.describe(index + 1, &mut text);
        }
        let is_refused = |one: &ExplainedStatement| one.outcome.starts_with("refused");
        if self.statements.len() > 1 && self.statements.iter().any(is_refused) {
            text.push_str("\nOne statement is refused, so the whole query is.\n");
        }
        if self.statements.is_empty() {
            text.push_str("\nThe query has no statement: it passes.\n");
        }
        text
    }
}

impl ExplainedStatement {
    fn describe(&self, number: usize, text: &mut String) {
        line(text, &format!("{number}."), self.kind);
        let class = match &self.why {
            Some(why) => format!("{}: {why}", self.class),
            None => self.class.to_owned(),
        };
        line(text, "class", &class);
        if let Some(category) = self.category {
            line(text, "category", category);
        }
        for (label, names) in [
            ("writes", self.writes.as_ref()),
            ("reads", self.reads.as_ref()),
        ] {
            match names {
                None => line(text, label, "the query does not say which tables"),
                Some(names) => list(text, label, names),
            }
        }
        list(text, "functions", &self.functions);
        list(text, "settings", &self.settings);
        for reason in &self.because {
            line(text, "because", reason);
        }
        line(text, "needs", &self.needs);
        line(text, "mode", self.mode);
        line(text, "outcome", &self.outcome);
        for (label, words) in [("detail", &self.detail), ("hint", &self.hint)] {
            if let Some(words) = words {
                line(text, label, words);
            }
        }
    }
}

fn list(text: &mut String, label: &str, names: &[String]) {
    if !names.is_empty() {
        line(text, label, &names.join(", "));
    }
}

fn line(text: &mut String, label: &str, value: &str) {
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{label:<10} {}", plain(value));
}
