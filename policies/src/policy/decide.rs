//! Decides what a session must hold for a statement.

use smallvec::SmallVec;

use super::requirement::{Reason, Requirement, ScopeSet};
use super::session::SessionPolicy;
use super::tables::Listed;
use super::terms::{By, Reads, Terms, UnknownTables, Writes};
use super::{Mode, Policy, ScopeId};
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

/// Requirement of a table or statement that no scope lists.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unlisted {
    SessionScope,
    Nothing,
    Refused,
}

#[derive(Clone, Copy, PartialEq, Eq, strum::Display)]
#[strum(serialize_all = "lowercase")]
enum Side {
    Writes,
    Reads,
}

/// A side of a statement, and its requirement for tables that no scope lists.
#[derive(Clone, Copy)]
struct Half {
    side: Side,
    unlisted: Unlisted,
}

/// Scopes, each once and in order. One does not allocate.
#[derive(Default)]
struct Needs(SmallVec<[ScopeId; 1]>);

impl Needs {
    fn add(&mut self, scope: ScopeId) {
        if let Err(place) = self.0.binary_search(&scope) {
            self.0.insert(place, scope);
        }
    }

    fn into_requirement(self) -> Requirement {
        match *self.0 {
            [] => Requirement::Free,
            [scope] => Requirement::Current(ScopeSet::One(scope)),
            _ => Requirement::Current(ScopeSet::Several(self.0.into_vec().into())),
        }
    }
}

impl SessionPolicy {
    /// Requirement of a statement with these effects. If no scope of the policy lists tables, only the words of a
    /// refusal allocate.
    #[must_use]
    pub fn requirement(&self, effects: &Effects) -> Requirement {
        Examination::new(self, effects, None).decide()
    }

    /// Like [`Self::requirement`], with the reasons. Slower.
    #[must_use]
    pub fn decision(&self, effects: &Effects) -> Decision {
        let mut examination = Examination::new(self, effects, Some(Vec::new()));
        Decision {
            requirement: examination.decide(),
            because: examination.because.unwrap_or_default(),
        }
    }

    /// Whether the session may run statements of this category, whatever it holds.
    pub fn allows(&self, category: Category) -> Result<(), Reason> {
        match self.terms().refuses(category) {
            None => Ok(()),
            Some(by) => Err(self.refusal(category.as_ref(), by)),
        }
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

/// Examination of one statement.
struct Examination<'a> {
    session: &'a SessionPolicy,
    policy: &'a Policy,
    terms: &'a Terms,
    effects: &'a Effects,
    /// Whether refused statements are treated as if they needed tokens.
    ignores_refusals: bool,
    needs: Needs,
    /// The reasons, for people. Sessions need none, so nothing is allocated for them.
    because: Option<Vec<String>>,
}

impl<'a> Examination<'a> {
    fn new(session: &'a SessionPolicy, effects: &'a Effects, because: Option<Vec<String>>) -> Self {
        Self {
            session,
            policy: session.policy(),
            terms: session.terms(),
            effects,
            ignores_refusals: false,
            needs: Needs::default(),
            because,
        }
    }

    #[inline]
    fn say(&mut self, words: impl FnOnce() -> String) {
        if let Some(because) = &mut self.because {
            let words = words();
            if !because.contains(&words) {
                because.push(words);
            }
        }
    }

    fn decide(&mut self) -> Requirement {
        match self.examine() {
            Ok(()) => std::mem::take(&mut self.needs).into_requirement(),
            Err(reason) => self
                .enforced_behind_refusal()
                .unwrap_or(Requirement::Refuse(reason)),
        }
    }

    /// A refusal that is only observed must not let a write bypass a scope that is enforced. Then the statement needs
    /// the tokens of its scopes.
    fn enforced_behind_refusal(&mut self) -> Option<Requirement> {
        if !self.terms.follows.enforced_behind_refusals {
            return None;
        }
        self.say(|| "that refusal is only observed, so the scopes count".to_owned());
        self.ignores_refusals = true;
        self.needs = Needs::default();
        self.examine().ok()?;
        let requirement = std::mem::take(&mut self.needs).into_requirement();
        let Requirement::Current(scopes) = &requirement else {
            return None;
        };
        let mut scopes = scopes.as_slice().iter();
        let enforced = scopes.any(|scope| self.session.mode_of(*scope) == Mode::Enforce);
        enforced.then_some(requirement)
    }

    fn examine(&mut self) -> Result<(), Reason> {
        let (terms, effects) = (self.terms, self.effects);
        if !self.ignores_refusals {
            // A text that was not understood but may prepare a transaction has both categories.
            let is_unread = !effects.reads.are_named();
            let also = effects.category.filter(|_| is_unread);
            let also = also.map(|_| Category::Unparsed);
            for category in effects.category.into_iter().chain(also) {
                if let Some(by) = terms.refuses(category) {
                    return Err(self.refuse(category.as_ref(), by));
                }
            }
        }
        if effects.class == Class::Write {
            self.writes()?;
        }
        match terms.reads.value {
            Reads::Current => self.reads()?,
            Reads::Allow if effects.class == Class::Read => self.say(|| {
                let source = terms.source(terms.reads.by);
                format!("it is a read: reads = \"allow\" ({source})")
            }),
            Reads::Allow => {}
        }
        Ok(())
    }

    fn writes(&mut self) -> Result<(), Reason> {
        let (terms, effects) = (self.terms, self.effects);
        if terms.is_exempt() {
            self.say(|| {
                let source = terms.source(terms.writes.by);
                format!("writes need nothing: writes = \"allow\" ({source})")
            });
            return Ok(());
        }
        if !self.ignores_refusals && terms.refuses_all_writes() {
            return Err(self.refuse("writes", terms.writes.by));
        }
        let half = Half {
            side: Side::Writes,
            unlisted: match terms.writes.value {
                Writes::Refuse if !self.ignores_refusals => Unlisted::Refused,
                Writes::Token | Writes::Refuse => Unlisted::SessionScope,
                Writes::Allow => Unlisted::Nothing,
            },
        };
        match &effects.writes {
            Tables::Named(names) if names.is_empty() => {
                self.say(|| "it writes, but names no table".to_owned());
                self.unlisted(half)
            }
            tables => self.tables(half, tables),
        }
    }

    fn reads(&mut self) -> Result<(), Reason> {
        let half = Half {
            side: Side::Reads,
            unlisted: Unlisted::SessionScope,
        };
        self.tables(half, &self.effects.reads)?;
        let mut functions = self.effects.functions.iter();
        if let Some(function) = functions.find(|function| !is_about_values(function)) {
            self.say(|| format!("it calls {function}, which may read anything"));
            self.unlisted(half)?;
        }
        if self.needs.0.is_empty() {
            self.say(|| "it reads no data".to_owned());
        }
        Ok(())
    }

    fn tables(&mut self, half: Half, tables: &Tables) -> Result<(), Reason> {
        for name in tables.names() {
            if half.side == Side::Reads && is_systems(name) && !self.policy.lists_by_name(name) {
                continue;
            }
            self.table(half, name)?;
        }
        match tables {
            Tables::Named(_) => Ok(()),
            Tables::AndOthers(_) => self.unknown_tables(half),
            Tables::Any => {
                let words = "no text is known that would say which tables it";
                self.say(|| format!("{words} {}, so every scope counts", half.side));
                self.every_scope(half)
            }
        }
    }

    fn unknown_tables(&mut self, half: Half) -> Result<(), Reason> {
        let (terms, said) = (self.terms, self.terms.unknown_tables);
        self.say(|| {
            format!(
                "the query does not say which tables it {}: unknown_tables = \"{}\" ({})",
                half.side,
                said.value.as_ref(),
                terms.source(said.by)
            )
        });
        match said.value {
            UnknownTables::EveryScope => self.every_scope(half),
            UnknownTables::SessionScope => self.unlisted(half),
        }
    }

    fn every_scope(&mut self, half: Half) -> Result<(), Reason> {
        for scope in &self.policy.table_scopes {
            self.needs.add(*scope);
        }
        self.unlisted(half)
    }

    fn table(&mut self, half: Half, name: &ObjectName) -> Result<(), Reason> {
        let policy = self.policy;
        let mut is_listed = false;
        policy.tables.matching(name, &mut |entry: &Listed| {
            self.needs.add(entry.scope);
            is_listed |= entry.pattern.names(name);
            self.say(|| {
                let scope = policy.name_of(entry.scope);
                let (verb, pattern, line) = (half.side, entry.pattern.written(), entry.line);
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
        self.say(|| {
            let listed = match (policy.tables.is_empty(), &name.schema) {
                (true, _) => "",
                (false, Some(_)) => ", which no scope lists",
                (false, None) => ", which may be a table that no scope lists",
            };
            format!("it {} {name}{listed}", half.side)
        });
        self.unlisted(half)
    }

    fn unlisted(&mut self, half: Half) -> Result<(), Reason> {
        let (policy, terms) = (self.policy, self.terms);
        let (key, value, by) = match half.side {
            Side::Reads => ("reads", "current", terms.reads.by),
            Side::Writes => ("writes", terms.writes.value.as_ref(), terms.writes.by),
        };
        if half.unlisted == Unlisted::Refused {
            return Err(self.refuse("writes to tables that no scope lists", by));
        }
        self.say(|| {
            let source = terms.source(by);
            let scope = match half.unlisted {
                Unlisted::SessionScope => {
                    let scope = policy.name_of(terms.scope);
                    format!(", for the session's scope {scope:?}")
                }
                Unlisted::Nothing | Unlisted::Refused => String::new(),
            };
            format!("{key} = \"{value}\" ({source}){scope}")
        });
        if half.unlisted == Unlisted::SessionScope {
            self.needs.add(terms.scope);
        }
        Ok(())
    }

    fn refuse(&mut self, what: &str, by: By) -> Reason {
        let reason = self.session.refusal(what, by);
        self.say(|| reason.to_string());
        reason
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
