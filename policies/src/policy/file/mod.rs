//! Reads a policy file and reports every error at once, each with its place.

mod check;
mod draft;
mod election;
mod key;
mod reader;
#[cfg(test)]
pub(super) mod tests;

use strum::IntoEnumIterator as _;
use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use super::declare::DeclareFor;
use super::glob::Glob;
use super::network::Network;
use super::remark::{Lines, PolicyErrors, Remark, ValueError};
use super::tables::TablePattern;
use super::terms::{PoolMode, Reads, UnknownTables, Writes};
use super::who::WhoPattern;
use super::{Mode, Numbers, Policy, PreparedTransactions, TokenBounds};
use crate::effects::Category;
use reader::{PolicyReader, Table, Value, seconds};

pub(super) use check::shadowed;
pub(super) use draft::{Declare, Draft, Listing, RuleDraft, ScopeDraft, Section};
pub use key::{POLICY_KEYS, PolicyKey, nearest};
pub use reader::type_in_words;

/// More is a mistake, such as a log or a device.
pub const POLICY_BYTES_MAX: usize = 16 * 1024 * 1024;
/// A statement costs the same with all of them as with one.
const SCOPES_MAX: usize = 100_000;
/// Maximum number of rules, and of entries in one list: a session tries the rules in turn, and a list is compared
/// with itself.
const LIST_MAX: usize = 1000;

impl Policy {
    /// Reads the text of a policy file. `check_scope` returns what is wrong with the name of a scope.
    ///
    /// # Errors
    ///
    /// All errors in the text.
    pub fn parse(
        text: &str,
        check_scope: &dyn Fn(&str) -> Result<(), String>,
    ) -> Result<Self, PolicyErrors> {
        let lines = Lines::new(text);
        if text.len() > POLICY_BYTES_MAX {
            let message =
                format!("the file is larger than {POLICY_BYTES_MAX} bytes (is it the right one?)");
            return Err(PolicyErrors(vec![lines.remark(&(0..0), message)]));
        }
        let mut reader = PolicyReader {
            lines: &lines,
            check_scope,
            errors: Vec::new(),
        };
        let (table, syntax_errors) = DeTable::parse_recoverable(text);
        for error in syntax_errors {
            reader.syntax_error(&error.span().unwrap_or_default(), error.message());
        }
        let draft = reader.file(table.get_ref());
        check::check(&draft, &mut reader);
        if reader.errors.is_empty() {
            Ok(Self::compile(&draft, &lines))
        } else {
            Err(PolicyErrors(in_order(reader.errors)))
        }
    }
}

fn in_order(mut remarks: Vec<Remark>) -> Vec<Remark> {
    remarks.sort_by_key(|remark| (remark.line, remark.column));
    remarks.dedup();
    remarks
}

impl PolicyReader<'_> {
    fn file(&mut self, keys: &DeTable<'_>) -> Draft {
        let file = Table {
            known: "",
            written: String::new(),
            keys: Some(keys),
        };
        self.report_unknown(&file);
        let to_do = "write its keys below [defaults]";
        let defaults = self.table("defaults", "defaults".into(), file.value("defaults"), to_do);
        let to_do = "write it below [tokens]";
        let tokens = self.table("tokens", "tokens".into(), file.value("tokens"), to_do);
        Draft {
            defaults: self.section(&defaults),
            tokens: self.bounds(&tokens),
            max_scopes: self.number(&tokens, "max_scopes"),
            scopes_may_be: self.word(&tokens, "scopes", Listing::iter()),
            scopes: file
                .value("scope")
                .map_or_else(Vec::new, |all| self.scopes(all)),
            rules: file
                .value("session")
                .map_or_else(Vec::new, |all| self.rules(all)),
        }
    }

    fn section(&mut self, table: &Table<'_>) -> Section {
        Section {
            writes: self.word(table, "writes", Writes::iter()),
            reads: self.word(table, "reads", Reads::iter()),
            mode: self.word(table, "mode", Mode::iter()),
            scope: inner(self.text(table, "scope", scope_name(self.check_scope))),
            refuse: self.list(table, "refuse", category),
            allow: self.list(table, "allow", category),
            unknown_tables: self.word(table, "unknown_tables", UnknownTables::iter()),
            declare: self.declare(table),
        }
    }

    fn declare(&mut self, table: &Table<'_>) -> Option<Spanned<Declare>> {
        let value = table.value("declare")?;
        let declare = match value.get_ref() {
            // An empty list is allowed here.
            DeValue::Array(array) if array.is_empty() => Declare::Scopes(Vec::new()),
            DeValue::Array(_) => {
                Declare::Scopes(self.list(table, "declare", scope_name(self.check_scope)))
            }
            _ => Declare::For(inner(self.word(table, "declare", DeclareFor::iter()))?),
        };
        Some(Spanned::new(value.span(), declare))
    }

    /// Reads the keys that `[tokens]` and scopes share.
    fn bounds(&mut self, table: &Table<'_>) -> TokenBounds {
        let numbers = match table.election() {
            Some(_) => None,
            None => self.word(table, "numbers", [Numbers::Any, Numbers::Issued]),
        };
        TokenBounds {
            max_step: self.number(table, "max_step"),
            max_token: self.number(table, "max_token"),
            numbers: inner(numbers),
            prepared: inner(self.word(
                table,
                "prepared_transactions",
                PreparedTransactions::iter(),
            )),
            lock_delay: inner(self.text(table, "lock_delay", seconds)),
            max_scopes: None,
        }
    }

    fn scopes(&mut self, value: &Value<'_>) -> Vec<ScopeDraft> {
        let mut scopes = Vec::new();
        let to_do = "write [scope.NAME], with the name of the scope";
        let keys = self.keys("scope", value, to_do);
        let mut entries: Vec<_> = keys.into_iter().flatten().collect();
        // In the order of the file: the table is sorted by name.
        entries.sort_by_key(|(key, _)| key.span().start);
        for (key, value) in entries {
            let known = key::names_in("scope.NAME").any(|known| *known == **key.get_ref());
            if known && !matches!(value.get_ref(), DeValue::Table(_)) {
                let message = format!("scope.{} is not in a scope ({to_do})", key.get_ref());
                self.error(&key.span(), message);
                continue;
            }
            if let Err(why) = (self.check_scope)(key.get_ref()) {
                let message = format!("{:?} is not a valid scope name ({why})", key.get_ref());
                self.error(&key.span(), message);
            }
            if scopes.len() == SCOPES_MAX {
                let message = format!("there are more than {SCOPES_MAX} scopes (use fewer)");
                self.error(&key.span(), message);
                break;
            }
            scopes.push(self.scope(key, value));
        }
        scopes
    }

    fn scope(&mut self, key: &Spanned<DeString<'_>>, value: &Value<'_>) -> ScopeDraft {
        let written = format!("scope.{}", key.get_ref());
        let to_do = format!("write its keys below [{written}]");
        let table = self.table("scope.NAME", written, Some(value), &to_do);
        let holders = table.value("holders").map(|value| {
            let who = self.who(&format!("{}.holders", table.written), value);
            Spanned::new(value.span(), who)
        });
        ScopeDraft {
            name: Spanned::new(key.span(), key.get_ref().as_ref().into()),
            tables: self.list(&table, "tables", TablePattern::parse),
            mode: self.word(&table, "mode", Mode::iter()),
            bounds: self.bounds(&table),
            election: self.election(&table),
            holders,
        }
    }

    fn rules(&mut self, value: &Value<'_>) -> Vec<RuleDraft> {
        let DeValue::Array(array) = value.get_ref() else {
            let message =
                "session is not a list (write [[session]], with two brackets, for each rule)";
            self.error(&value.span(), message);
            return Vec::new();
        };
        if let Some(rule) = array.get(LIST_MAX) {
            let message = format!("there are more than {LIST_MAX} rules (use patterns with *)");
            self.error(&rule.span(), message);
        }
        let rules = array.iter().take(LIST_MAX);
        rules.map(|rule| self.rule(rule)).collect()
    }

    fn rule(&mut self, value: &Value<'_>) -> RuleDraft {
        let to_do = "write [[session]] for each rule";
        let table = self.table("session", "session".into(), Some(value), to_do);
        let matched = table.value("match");
        if table.keys.is_some() && matched.is_none() {
            let message = "the rule has no match (write match = { user = \"...\" }; \
                           what holds for every session belongs below [defaults])";
            self.error(&value.span(), message);
        }
        RuleDraft {
            at: Spanned::new(value.span(), ()),
            name: inner(self.text(&table, "name", rule_name)),
            who: matched.map_or_else(WhoPattern::default, |who| self.who("session.match", who)),
            pool: inner(self.word(&table, "pool", [PoolMode::Session])),
            section: self.section(&table),
        }
    }

    fn who(&mut self, written: &str, value: &Value<'_>) -> WhoPattern {
        let (_, last) = written.rsplit_once('.').unwrap_or_default();
        let to_do = format!("write {last} = {{ user = \"...\" }}");
        let table = self.table("session.match", written.to_owned(), Some(value), &to_do);
        if table.keys.is_some_and(DeTable::is_empty) {
            let what = match last {
                "match" => "what holds for every session belongs below [defaults]",
                _ => "leave the key out if every session may hold it",
            };
            let message = format!(
                "{written} is empty (name a user, database, application_name, cn or network; {what})"
            );
            self.error(&value.span(), message);
        }
        let table = &table;
        WhoPattern {
            user: unless_any(self.list(table, "user", nonempty_glob)),
            database: unless_any(self.list(table, "database", nonempty_glob)),
            application_name: unless_any(
                self.list(table, "application_name", |text| Ok(Glob::new(text))),
            ),
            // Here `*` requires a certificate.
            common_name: plain(self.list(table, "cn", nonempty_glob)),
            network: plain(self.list(table, "network", Network::read)),
        }
    }
}

fn inner<T>(read: Option<Spanned<T>>) -> Option<T> {
    read.map(Spanned::into_inner)
}

fn plain<T>(read: Vec<Spanned<T>>) -> Vec<T> {
    read.into_iter().map(Spanned::into_inner).collect()
}

/// A `*` among them removes the condition.
fn unless_any(read: Vec<Spanned<Glob>>) -> Vec<Glob> {
    let globs = plain(read);
    if globs.iter().any(Glob::is_any) {
        Vec::new()
    } else {
        globs
    }
}

fn scope_name(
    check: &dyn Fn(&str) -> Result<(), String>,
) -> impl Fn(&str) -> Result<Box<str>, ValueError> {
    move |text| {
        let valid = check(text).map(|()| text.into());
        valid.map_err(|why| ValueError::new(format!("{text:?} is not a valid scope name"), why))
    }
}

fn nonempty_glob(text: &str) -> Result<Glob, ValueError> {
    if text.is_empty() {
        Err(ValueError::new(
            "is an empty name",
            "write a name, or a part of it with *",
        ))
    } else {
        Ok(Glob::new(text))
    }
}

fn rule_name(text: &str) -> Result<Box<str>, ValueError> {
    /// Limited because errors and logs quote it.
    const MOST: usize = 63;
    if text.is_empty() || text.len() > MOST || text.chars().any(char::is_control) {
        let to_do = format!("write 1 to {MOST} bytes without control characters, or leave it out");
        return Err(ValueError::new("is not a valid name", to_do));
    }
    Ok(text.into())
}

fn category(text: &str) -> Result<Category, ValueError> {
    let all: Vec<Category> = Category::iter().collect();
    let names: Vec<&str> = all.iter().map(Category::as_ref).collect();
    let found = all.iter().find(|category| category.as_ref() == text);
    found.copied().ok_or_else(|| {
        let to_do = match nearest(text, names.iter().copied()) {
            Some(near) => format!("did you mean {near:?}?"),
            None => format!("write some of: {}", names.join(", ")),
        };
        ValueError::new(format!("{text:?} is not a kind of statement"), to_do)
    })
}
