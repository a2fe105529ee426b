//! Reads a policy file and reports every error at once, each with its place.

mod check;
mod draft;
mod election;
mod key;
mod reader;
#[cfg(test)]
pub(super) mod tests;

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
use reader::{KeyName, PolicyReader};

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

const MODES: [(&str, Mode); 2] = [("enforce", Mode::Enforce), ("observe", Mode::Observe)];
const READS: [(&str, Reads); 2] = [("allow", Reads::Allow), ("current", Reads::Current)];
const WRITES: [(&str, Writes); 3] = [
    ("token", Writes::Token),
    ("allow", Writes::Allow),
    ("refuse", Writes::Refuse),
];
const POOLS: [(&str, PoolMode); 1] = [("session", PoolMode::Session)];
const UNKNOWN_TABLES: [(&str, UnknownTables); 2] = [
    ("every-scope", UnknownTables::EveryScope),
    ("session-scope", UnknownTables::SessionScope),
];

const DECLARE: [(&str, DeclareFor); 2] = [
    ("session", DeclareFor::Session),
    ("transaction", DeclareFor::Transaction),
];
const SCOPES: [(&str, Listing); 2] = [("any", Listing::Any), ("listed", Listing::Listed)];
const NUMBERS: [(&str, Numbers); 2] = [("any", Numbers::Any), ("issued", Numbers::Issued)];
const PREPARED: [(&str, PreparedTransactions); 3] = [
    ("report", PreparedTransactions::Report),
    ("refuse", PreparedTransactions::Refuse),
    ("roll-back", PreparedTransactions::RollBack),
];

type TomlKey<'a> = Spanned<DeString<'a>>;
type Value<'a> = Spanned<DeValue<'a>>;

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

/// Entries in the order of the file; the table is sorted by name.
fn from_the_top<'v, 'a>(table: &'v DeTable<'a>) -> Vec<(&'v TomlKey<'a>, &'v Value<'a>)> {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    entries
}

impl PolicyReader<'_> {
    fn file(&mut self, table: &DeTable<'_>) -> Draft {
        let mut draft = Draft::default();
        for (key, value) in from_the_top(table) {
            match &**key.get_ref() {
                "defaults" => draft.defaults = self.defaults(value),
                "tokens" => {
                    let to_do = "write it below [tokens]";
                    let table = self.table("tokens", value, to_do);
                    for (key, value) in table.into_iter().flat_map(from_the_top) {
                        self.tokens(key, value, &mut draft);
                    }
                }
                "scope" => draft.scopes = self.scopes(value),
                "session" => draft.rules = self.rules(value),
                _ => self.unknown("", "", key),
            }
        }
        draft
    }

    fn tokens(&mut self, key: &TomlKey<'_>, value: &Value<'_>, draft: &mut Draft) {
        let same = |key| KeyName { key, written: key };
        match &**key.get_ref() {
            "scopes" => draft.scopes_may_be = self.word(same("tokens.scopes"), value, &SCOPES),
            "max_scopes" => draft.max_scopes = self.number(same("tokens.max_scopes"), value),
            _ => self.bound("tokens", "tokens", key, value, &mut draft.tokens),
        }
    }

    fn defaults(&mut self, value: &Value<'_>) -> Section {
        let mut section = Section::default();
        let to_do = "write its keys below [defaults]";
        let table = self.table("defaults", value, to_do);
        for (key, value) in table.into_iter().flat_map(from_the_top) {
            self.section("defaults", key, value, &mut section);
        }
        section
    }

    fn section(
        &mut self,
        table: &str,
        key: &TomlKey<'_>,
        value: &Value<'_>,
        section: &mut Section,
    ) {
        let written = format!("{table}.{}", key.get_ref());
        let name = KeyName {
            key: &written,
            written: &written,
        };
        match &**key.get_ref() {
            "writes" => section.writes = self.word(name, value, &WRITES),
            "reads" => section.reads = self.word(name, value, &READS),
            "mode" => section.mode = self.word(name, value, &MODES),
            "unknown_tables" => section.unknown_tables = self.word(name, value, &UNKNOWN_TABLES),
            "scope" => section.scope = self.scope(name, value),
            "refuse" => section.refuse = self.list(name, value, category),
            "allow" => section.allow = self.list(name, value, category),
            "declare" => section.declare = self.declare(name, value),
            _ => self.unknown(table, table, key),
        }
    }

    fn declare(&mut self, name: KeyName<'_>, value: &Value<'_>) -> Option<Spanned<Declare>> {
        let declare = match value.get_ref() {
            // An empty list is allowed here.
            DeValue::Array(array) if array.is_empty() => Declare::Scopes(Vec::new()),
            DeValue::Array(_) => {
                let check = self.check_scope;
                Declare::Scopes(self.list(name, value, |text| {
                    check(text).map_err(|why| {
                        ValueError::new(format!("{text:?} is not a valid scope name"), why)
                    })?;
                    Ok(Box::from(text))
                }))
            }
            _ => Declare::For(self.word(name, value, &DECLARE)?.into_inner()),
        };
        Some(Spanned::new(value.span(), declare))
    }

    /// Reads a key that `[tokens]` and scopes share. `table` is its place in the table of keys, `written` that in the
    /// file.
    fn bound(
        &mut self,
        table: &str,
        written: &str,
        key: &TomlKey<'_>,
        value: &Value<'_>,
        bounds: &mut TokenBounds,
    ) {
        let (known, written_key) = (
            format!("{table}.{}", key.get_ref()),
            format!("{written}.{}", key.get_ref()),
        );
        let name = KeyName {
            key: &known,
            written: &written_key,
        };
        match &**key.get_ref() {
            "max_step" => bounds.max_step = self.number(name, value),
            "max_token" => bounds.max_token = self.number(name, value),
            "numbers" => {
                let word = self.word(name, value, &NUMBERS);
                bounds.numbers = word.map(Spanned::into_inner);
            }
            "prepared_transactions" => {
                let word = self.word(name, value, &PREPARED);
                bounds.prepared = word.map(Spanned::into_inner);
            }
            "lock_delay" => bounds.lock_delay = self.seconds(name, value),
            _ => self.unknown(table, written, key),
        }
    }

    fn scopes(&mut self, value: &Value<'_>) -> Vec<ScopeDraft> {
        let mut scopes = Vec::new();
        let to_do = "write [scope.NAME], with the name of the scope";
        let table = self.table("scope", value, to_do);
        for (key, value) in table.into_iter().flat_map(from_the_top) {
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
            scopes.extend(self.scope_table(key, value));
        }
        scopes
    }

    fn scope_table(&mut self, key: &TomlKey<'_>, value: &Value<'_>) -> Option<ScopeDraft> {
        let written = format!("scope.{}", key.get_ref());
        let to_do = format!("write its keys below [{written}]");
        let table = self.table(&written, value, &to_do)?;
        let mut scope = ScopeDraft {
            name: Spanned::new(key.span(), key.get_ref().as_ref().into()),
            tables: Vec::new(),
            mode: None,
            bounds: TokenBounds::default(),
            election: None,
            holders: None,
        };
        for (key, value) in from_the_top(table) {
            let written_key = format!("{written}.{}", key.get_ref());
            let name = |key| KeyName {
                key,
                written: &written_key,
            };
            match &**key.get_ref() {
                "tables" => {
                    scope.tables = self.list(name("scope.NAME.tables"), value, TablePattern::parse);
                }
                "mode" => scope.mode = self.word(name("scope.NAME.mode"), value, &MODES),
                "numbers" if matches!(value.get_ref(), DeValue::Table(_)) => {
                    scope.election = self.election(&written_key, value);
                }
                "holders" => {
                    let mut who = WhoPattern::default();
                    self.who(&written_key, value, &mut who);
                    scope.holders = Some(Spanned::new(value.span(), who));
                }
                _ => self.bound("scope.NAME", &written, key, value, &mut scope.bounds),
            }
        }
        Some(scope)
    }

    fn rules(&mut self, value: &Value<'_>) -> Vec<RuleDraft> {
        let DeValue::Array(array) = value.get_ref() else {
            let message =
                "session is not a list (write [[session]], with two brackets, for each rule)";
            self.error(&value.span(), message);
            return Vec::new();
        };
        let mut rules = Vec::new();
        for rule in array.iter() {
            if rules.len() == LIST_MAX {
                let message = format!("there are more than {LIST_MAX} rules (use patterns with *)");
                self.error(&rule.span(), message);
                break;
            }
            rules.extend(self.rule(rule));
        }
        rules
    }

    fn rule(&mut self, value: &Value<'_>) -> Option<RuleDraft> {
        let table = self.table("session", value, "write [[session]] for each rule")?;
        let mut rule = RuleDraft {
            at: Spanned::new(value.span(), ()),
            name: None,
            who: WhoPattern::default(),
            pool: None,
            section: Section::default(),
        };
        let entries = from_the_top(table);
        let mut keys = entries.iter().map(|(key, _)| key.get_ref());
        let has_match = keys.any(|key| key == "match");
        for (key, value) in entries {
            let name = KeyName {
                key: "session.name",
                written: "session.name",
            };
            match &**key.get_ref() {
                "match" => self.who("session.match", value, &mut rule.who),
                "pool" => {
                    let name = KeyName {
                        key: "session.pool",
                        written: "session.pool",
                    };
                    let word = self.word(name, value, &POOLS);
                    rule.pool = word.map(Spanned::into_inner);
                }
                "name" => {
                    let text = self.text(name, value, rule_name);
                    rule.name = text.map(Spanned::into_inner);
                }
                _ => self.section("session", key, value, &mut rule.section),
            }
        }
        if !has_match {
            let message = "the rule has no match (write match = { user = \"...\" }; \
                           what holds for every session belongs below [defaults])";
            self.error(&value.span(), message);
        }
        Some(rule)
    }

    fn who(&mut self, written: &str, value: &Value<'_>, who: &mut WhoPattern) {
        let (_, last) = written.rsplit_once('.').unwrap_or_default();
        let to_do = format!("write {last} = {{ user = \"...\" }}");
        let Some(table) = self.table(written, value, &to_do) else {
            return;
        };
        if table.is_empty() {
            let what = match last {
                "match" => "what holds for every session belongs below [defaults]",
                _ => "leave the key out if every session may hold it",
            };
            let message = format!(
                "{written} is empty (name a user, database, application_name, cn or network; {what})"
            );
            self.error(&value.span(), message);
        }
        for (key, value) in from_the_top(table) {
            let known = format!("session.match.{}", key.get_ref());
            let written_key = format!("{written}.{}", key.get_ref());
            let name = KeyName {
                key: &known,
                written: &written_key,
            };
            match &**key.get_ref() {
                "user" => who.user = self.globs(name, value, nonempty_glob),
                "database" => who.database = self.globs(name, value, nonempty_glob),
                "application_name" => {
                    who.application_name = self.globs(name, value, |text| Ok(Glob::new(text)));
                }
                // Here `*` requires a certificate.
                "cn" => {
                    let read = self.list(name, value, nonempty_glob);
                    who.common_name = read.into_iter().map(Spanned::into_inner).collect();
                }
                "network" => {
                    let read = self.list(name, value, Network::read);
                    who.network = read.into_iter().map(Spanned::into_inner).collect();
                }
                _ => self.unknown("session.match", written, key),
            }
        }
    }

    /// A `*` among them removes the condition.
    fn globs(
        &mut self,
        name: KeyName<'_>,
        value: &Value<'_>,
        parse: impl Fn(&str) -> Result<Glob, ValueError>,
    ) -> Vec<Glob> {
        let read = self.list(name, value, parse);
        let globs: Vec<Glob> = read.into_iter().map(Spanned::into_inner).collect();
        if globs.iter().any(Glob::is_any) {
            Vec::new()
        } else {
            globs
        }
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
    text.parse().map_err(|_| {
        let names = Category::ALL.iter().map(|category| category.as_str());
        let to_do = match nearest(text, names.clone()) {
            Some(near) => format!("did you mean {near:?}?"),
            None => format!("write some of: {}", names.collect::<Vec<_>>().join(", ")),
        };
        ValueError::new(format!("{text:?} is not a kind of statement"), to_do)
    })
}
