//! Decides what a session must hold for a statement.

use super::requirement::{Reason, Requirement, ScopeSet};
use super::session::SessionPolicy;
use super::tables::Listed;
use super::terms::{By, Reads, UnknownTables, Writes};
use super::{Mode, ScopeId};
use crate::builtin::is_about_values;
use crate::effects::Class;
use crate::effects::{Category, Effects, Tables};
use crate::object_name::ObjectName;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    pub requirement: Requirement,
    /// At least one sentence.
    pub because: Vec<String>,
}

/// Records how a decision comes about, or ignores it.
trait Explanation {
    fn say(&mut self, words: impl FnOnce() -> String);
}

/// For sessions: records and allocates nothing.
struct Silent;

impl Explanation for Silent {
    #[inline]
    fn say(&mut self, _words: impl FnOnce() -> String) {}
}

impl Explanation for Vec<String> {
    fn say(&mut self, words: impl FnOnce() -> String) {
        let words = words();
        if !self.contains(&words) {
            self.push(words);
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Refusals {
    Count,
    /// Refused statements are treated as if they needed tokens.
    Ignored,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Unlisted {
    SessionScope,
    Nothing,
    Refused,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Writes,
    Reads,
}

impl Side {
    const fn verb(self) -> &'static str {
        match self {
            Self::Writes => "writes",
            Self::Reads => "reads",
        }
    }
}

/// A side of a statement, and its requirement for tables that no scope lists.
#[derive(Clone, Copy)]
struct Half {
    side: Side,
    unlisted: Unlisted,
}

/// Scopes, each once and in order. One does not allocate.
#[derive(Default)]
struct Needs {
    first: Option<ScopeId>,
    several: Vec<ScopeId>,
}

impl Needs {
    fn add(&mut self, scope: ScopeId) {
        match self.first {
            None => self.first = Some(scope),
            Some(first) if self.several.is_empty() => {
                if first != scope {
                    self.several = vec![first.min(scope), first.max(scope)];
                }
            }
            // Usually in order.
            Some(_) if self.several.last() < Some(&scope) => self.several.push(scope),
            Some(_) => {
                if let Err(place) = self.several.binary_search(&scope) {
                    self.several.insert(place, scope);
                }
            }
        }
    }

    fn into_requirement(self) -> Requirement {
        match self.first {
            None => Requirement::Free,
            Some(first) if self.several.is_empty() => Requirement::Current(ScopeSet::One(first)),
            Some(_) => Requirement::Current(ScopeSet::Several(self.several.into())),
        }
    }
}

impl SessionPolicy {
    /// Requirement of a statement with these effects. If no scope of the policy lists tables, only the words of a
    /// refusal allocate.
    #[must_use]
    pub fn requirement(&self, effects: &Effects) -> Requirement {
        self.decide(effects, &mut Silent)
    }

    /// Like [`Self::requirement`], with the reasons. Slower.
    #[must_use]
    pub fn decision(&self, effects: &Effects) -> Decision {
        let mut because = Vec::new();
        let requirement = self.decide(effects, &mut because);
        Decision {
            requirement,
            because,
        }
    }

    /// Whether the session may run statements of this category, whatever it holds.
    pub fn allows(&self, category: Category) -> Result<(), Reason> {
        match self.terms().refuses(category) {
            None => Ok(()),
            Some(by) => Err(self.refusal(category.as_str(), by)),
        }
    }

    fn decide<T: Explanation>(&self, effects: &Effects, explanation: &mut T) -> Requirement {
        match self.walk(effects, Refusals::Count, explanation) {
            Ok(needs) => needs.into_requirement(),
            Err(reason) => self
                .enforced_behind_refusal(effects, explanation)
                .unwrap_or(Requirement::Refuse(reason)),
        }
    }

    /// An observed refusal must not let a write bypass an enforced scope. Then the statement needs the tokens of its
    /// scopes.
    fn enforced_behind_refusal<T: Explanation>(
        &self,
        effects: &Effects,
        explanation: &mut T,
    ) -> Option<Requirement> {
        if !self.terms().follows.enforced_behind_refusals {
            return None;
        }
        explanation.say(|| "that refusal is only observed, so the scopes count".to_owned());
        match self.walk(effects, Refusals::Ignored, explanation) {
            Ok(needs) => {
                let requirement = needs.into_requirement();
                let Requirement::Current(scopes) = &requirement else {
                    return None;
                };
                let mut scopes = scopes.as_slice().iter();
                let enforced = scopes.any(|scope| self.mode_of(*scope) == Mode::Enforce);
                enforced.then_some(requirement)
            }
            Err(_) => None,
        }
    }

    fn walk<T: Explanation>(
        &self,
        effects: &Effects,
        refusals: Refusals,
        explanation: &mut T,
    ) -> Result<Needs, Reason> {
        let terms = self.terms();
        if refusals == Refusals::Count {
            // A text that was not understood but may prepare a transaction has both categories.
            let is_unread = effects.reads == Tables::Unknown;
            let also = effects.category.filter(|_| is_unread);
            let also = also.map(|_| Category::Unparsed);
            for category in effects.category.into_iter().chain(also) {
                if let Some(by) = terms.refuses(category) {
                    return Err(self.refuse(category.as_str(), by, explanation));
                }
            }
        }
        let mut needs = Needs::default();
        if effects.class == Class::Write {
            self.writes(&effects.writes, refusals, &mut needs, explanation)?;
        }
        match terms.reads.value {
            Reads::Current => self.reads(effects, &mut needs, explanation)?,
            Reads::Allow if effects.class == Class::Read => explanation.say(|| {
                let source = terms.source(terms.reads.by);
                format!("it is a read: reads = \"allow\" ({source})")
            }),
            Reads::Allow => {}
        }
        Ok(needs)
    }

    fn writes<T: Explanation>(
        &self,
        tables: &Tables,
        refusals: Refusals,
        needs: &mut Needs,
        explanation: &mut T,
    ) -> Result<(), Reason> {
        let terms = self.terms();
        if terms.is_exempt() {
            explanation.say(|| {
                let source = terms.source(terms.writes.by);
                format!("writes need nothing: writes = \"allow\" ({source})")
            });
            return Ok(());
        }
        if refusals == Refusals::Count && terms.refuses_all_writes() {
            return Err(self.refuse("writes", terms.writes.by, explanation));
        }
        let half = Half {
            side: Side::Writes,
            unlisted: match (terms.writes.value, refusals) {
                (Writes::Token, _) | (Writes::Refuse, Refusals::Ignored) => Unlisted::SessionScope,
                (Writes::Allow, _) => Unlisted::Nothing,
                (Writes::Refuse, Refusals::Count) => Unlisted::Refused,
            },
        };
        match tables {
            Tables::Named(names) if names.is_empty() => {
                explanation.say(|| "it writes, but names no table".to_owned());
                self.unlisted(half, needs, explanation)
            }
            tables => self.tables(half, tables, needs, explanation),
        }
    }

    fn reads<T: Explanation>(
        &self,
        effects: &Effects,
        needs: &mut Needs,
        explanation: &mut T,
    ) -> Result<(), Reason> {
        let half = Half {
            side: Side::Reads,
            unlisted: Unlisted::SessionScope,
        };
        self.tables(half, &effects.reads, needs, explanation)?;
        let mut functions = effects.functions.iter();
        if let Some(function) = functions.find(|function| !is_about_values(function)) {
            explanation.say(|| format!("it calls {function}, which may read anything"));
            self.unlisted(half, needs, explanation)?;
        }
        if needs.first.is_none() {
            explanation.say(|| "it reads no data".to_owned());
        }
        Ok(())
    }

    fn tables<T: Explanation>(
        &self,
        half: Half,
        tables: &Tables,
        needs: &mut Needs,
        explanation: &mut T,
    ) -> Result<(), Reason> {
        let Tables::Named(names) = tables else {
            return self.unknown_tables(half, needs, explanation);
        };
        for name in names {
            if half.side == Side::Reads && is_systems(name) && !self.policy().lists_by_name(name) {
                continue;
            }
            self.table(half, name, needs, explanation)?;
        }
        Ok(())
    }

    fn unknown_tables<T: Explanation>(
        &self,
        half: Half,
        needs: &mut Needs,
        explanation: &mut T,
    ) -> Result<(), Reason> {
        let said = self.terms().unknown_tables;
        explanation.say(|| {
            format!(
                "the query does not say which tables it {}: unknown_tables = \"{}\" ({})",
                half.side.verb(),
                said.value.as_str(),
                self.terms().source(said.by)
            )
        });
        if said.value == UnknownTables::EveryScope {
            for scope in &self.policy().table_scopes {
                needs.add(*scope);
            }
        }
        self.unlisted(half, needs, explanation)
    }

    fn table<T: Explanation>(
        &self,
        half: Half,
        name: &ObjectName,
        needs: &mut Needs,
        explanation: &mut T,
    ) -> Result<(), Reason> {
        let policy = self.policy();
        let mut is_listed = false;
        policy.tables.matching(name, &mut |entry: &Listed| {
            needs.add(entry.scope);
            is_listed |= entry.pattern.names(name);
            explanation.say(|| {
                let scope = policy.name_of(entry.scope);
                let (verb, pattern, line) = (half.side.verb(), entry.pattern.written(), entry.line);
                let which = match name.schema {
                    Some(_) => "",
                    None => ", a name without a schema",
                };
                format!(
                    "it {verb} {name}{which}, listed by scope {scope:?} as {pattern}, line {line}"
                )
            });
        });
        if is_listed {
            return Ok(());
        }
        explanation.say(|| {
            let listed = match (policy.tables.is_empty(), &name.schema) {
                (true, _) => "",
                (false, Some(_)) => ", which no scope lists",
                (false, None) => ", which may be a table that no scope lists",
            };
            format!("it {} {name}{listed}", half.side.verb())
        });
        self.unlisted(half, needs, explanation)
    }

    fn unlisted<T: Explanation>(
        &self,
        half: Half,
        needs: &mut Needs,
        explanation: &mut T,
    ) -> Result<(), Reason> {
        let terms = self.terms();
        let (key, value, by) = match half.side {
            Side::Reads => ("reads", "current", terms.reads.by),
            Side::Writes => ("writes", terms.writes.value.as_str(), terms.writes.by),
        };
        if half.unlisted == Unlisted::Refused {
            return Err(self.refuse("writes to tables that no scope lists", by, explanation));
        }
        explanation.say(|| {
            let source = terms.source(by);
            let scope = match half.unlisted {
                Unlisted::SessionScope => {
                    let scope = self.policy().name_of(self.scope());
                    format!(", for the session's scope {scope:?}")
                }
                Unlisted::Nothing | Unlisted::Refused => String::new(),
            };
            format!("{key} = \"{value}\" ({source}){scope}")
        });
        if half.unlisted == Unlisted::SessionScope {
            needs.add(self.scope());
        }
        Ok(())
    }

    fn refuse<T: Explanation>(&self, what: &str, by: By, explanation: &mut T) -> Reason {
        let reason = self.refusal(what, by);
        explanation.say(|| reason.to_string());
        reason
    }

    fn refusal(&self, what: &str, by: By) -> Reason {
        if matches!(by, By::Nobody) {
            return Reason::new(format!(
                "The policy refuses {what} by default; allow = [\"{what}\"] permits it"
            ));
        }
        let source = self.terms().source(by);
        Reason::new(format!("The policy refuses {what} ({source})"))
    }
}

/// Whether it is one of PostgreSQL's own relations. Without a schema, every name with that prefix counts: PostgreSQL
/// searches its own catalog first.
fn is_systems(name: &ObjectName) -> bool {
    match name.schema.as_deref() {
        Some(schema) => schema == "pg_catalog" || schema == "information_schema",
        None => name.name.starts_with("pg_"),
    }
}
