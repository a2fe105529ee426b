//! Conflicts between values of a policy file.

use std::collections::BTreeMap;

use toml::Spanned;

use super::draft::{Declare, Draft, Listing, RuleDraft, ScopeDraft, Section};
use super::key::nearest;
use super::reader::PolicyReader;
use crate::effects::Category;
use crate::policy::DEFAULT_SCOPE;

pub(super) fn check(draft: &Draft, reader: &mut PolicyReader<'_>) {
    contradictions("defaults", &draft.defaults, reader);
    for rule in &draft.rules {
        contradictions("session", &rule.section, reader);
    }
    scopes_of_the_same_tables(&draft.scopes, reader);
    super::election::check(&draft.scopes, reader);
    names_of_two_rules(&draft.rules, reader);
    let listed = draft.scopes_may_be.as_ref().map(Spanned::get_ref);
    if listed == Some(&Listing::Listed) {
        declared_but_not_listed(draft, reader);
    }
}

/// Reports scopes that may be declared but cannot exist.
fn declared_but_not_listed(draft: &Draft, reader: &mut PolicyReader<'_>) {
    let sections = draft.rules.iter().map(|rule| &rule.section);
    let sections = || sections.clone().chain([&draft.defaults]);
    let own = draft.scopes.iter().map(|scope| &**scope.name.get_ref());
    let used = sections().filter_map(|section| section.scope.as_deref());
    let unless_said = draft.defaults.scope.is_none().then_some(DEFAULT_SCOPE);
    let known: Vec<&str> = own.chain(used).chain(unless_said).collect();
    for section in sections() {
        let Some(Declare::Scopes(scopes)) = section.declare.as_ref().map(Spanned::get_ref) else {
            continue;
        };
        for scope in scopes {
            let name = &**scope.get_ref();
            if !known.contains(&name) {
                let to_do = match nearest(name, known.iter().copied()) {
                    Some(near) => format!("did you mean {near:?}?"),
                    None => format!("add [scope.{name}], or remove the name"),
                };
                let message = format!(
                    "declare names scope {name:?}, which tokens.scopes = \"listed\" does not allow ({to_do})"
                );
                reader.error(&scope.span(), message);
            }
        }
    }
}

fn contradictions(table: &str, section: &Section, reader: &mut PolicyReader<'_>) {
    let refused: Vec<Category> = section.refuse.iter().map(|c| *c.get_ref()).collect();
    for allowed in &section.allow {
        let category = allowed.get_ref();
        if refused.contains(category) {
            let message = format!("{table} refuses and allows \"{category}\" (remove one)");
            reader.error(&allowed.span(), message);
        }
    }
}

/// Reports two scopes with identical patterns: every write would need both tokens.
fn scopes_of_the_same_tables(scopes: &[ScopeDraft], reader: &mut PolicyReader<'_>) {
    let mut known: BTreeMap<Vec<String>, &ScopeDraft> = BTreeMap::new();
    for scope in scopes.iter().filter(|scope| !scope.tables.is_empty()) {
        let tables = scope.tables.iter().map(|table| table.get_ref().written());
        let mut tables: Vec<String> = tables.collect();
        tables.sort();
        if let Some(first) = known.get(&tables) {
            let message = format!(
                "scope {:?} lists exactly the tables of scope {:?}, so a write to them would always need both tokens \
                 (give them different tables, or use one scope)",
                scope.name.get_ref(),
                first.name.get_ref()
            );
            reader.error(&scope.name.span(), message);
        } else {
            known.insert(tables, scope);
        }
    }
}

fn names_of_two_rules(rules: &[RuleDraft], reader: &mut PolicyReader<'_>) {
    let mut known: BTreeMap<&str, u32> = BTreeMap::new();
    for rule in rules {
        let Some(name) = rule.name.as_deref() else {
            continue;
        };
        let line = reader.lines.line(&rule.at.span());
        if let Some(first) = known.get(name) {
            let message =
                format!("two rules are named {name:?}, the first in line {first} (rename one)");
            reader.error(&rule.at.span(), message);
        } else {
            known.insert(name, line);
        }
    }
}

/// Rules that can never match, each with the earlier one that covers it.
pub(in crate::policy) fn shadowed(rules: &[RuleDraft]) -> Vec<(&RuleDraft, &Spanned<()>)> {
    let mut found = Vec::new();
    for (index, rule) in rules.iter().enumerate() {
        let mut earlier = rules.iter().take(index);
        if let Some(first) = earlier.find(|first| first.who.covers(&rule.who)) {
            found.push((rule, &first.at));
        }
    }
    found
}
