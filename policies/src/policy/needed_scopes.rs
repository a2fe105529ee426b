//! Scopes whose tokens a session may need.

use std::collections::HashMap;
use std::sync::Arc;

use super::terms::{Follows, Reads, Terms, Writes};
use super::{Mode, Modes, ScopeId};
use crate::effects::Category;

pub(super) struct PolicyScopes {
    pub(super) names: Vec<Box<str>>,
    pub(super) with_tables: Box<[ScopeId]>,
    pub(super) modes: Modes,
    /// Sets computed so far, which many rules share.
    sets: HashMap<Needed, SharedScopes>,
}

/// Scopes whose tokens may be needed. Each variant includes the one before.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Needed {
    Nothing,
    Tables,
    TablesAnd(ScopeId),
}

#[derive(Clone)]
struct SharedScopes {
    scopes: Arc<[ScopeId]>,
    /// Number of scopes that are only observed if no rule sets another mode.
    observed: usize,
}

impl SharedScopes {
    /// Number of scopes that are only observed for the sessions of a rule.
    fn observed(&self, terms: &Terms) -> usize {
        match terms.mode {
            Some(Mode::Observe) => self.scopes.len(),
            Some(Mode::Enforce) => 0,
            None => self.observed,
        }
    }
}

impl PolicyScopes {
    pub(super) fn new(names: Vec<Box<str>>, with_tables: Box<[ScopeId]>, modes: Modes) -> Self {
        Self {
            names,
            with_tables,
            modes,
            sets: HashMap::new(),
        }
    }

    pub(super) fn follows(&mut self, terms: &Terms) -> Follows {
        // Replication is a separate kind of connection. PREPARE TRANSACTION has a control, so every text with it is
        // examined, and read-only mode does not refuse it.
        let looked_at =
            |kind: Category| !matches!(kind, Category::Replication | Category::PrepareTransaction);
        let refuses_a_text = terms.refused.iter().any(|(kind, _)| looked_at(*kind));
        let refuses = refuses_a_text || terms.writes.value == Writes::Refuse;
        let refuses_more = terms.refuses(Category::PrepareTransaction).is_some();
        let (for_writes, for_reads) = (for_writes(terms), for_reads(terms));
        let all = self.set(for_writes.max(for_reads));
        let for_writes = self.set(for_writes);

        let observes = self.modes.of(terms, None) == Mode::Observe;
        let observes_refusals = refuses && observes;
        let observed = for_writes.observed(terms) > 0 || observes_refusals;
        let free = terms.writes.value == Writes::Allow;
        let guarded = (!free).then_some(for_writes.scopes);
        // Scopes that count if refused statements are treated as if they needed tokens.
        let behind = self.set(Needed::TablesAnd(terms.scope));
        let all_observed = behind.observed(terms) == behind.scopes.len();
        Follows {
            unlooked: (!refuses).then_some(all.scopes),
            read_only_until: guarded.clone().filter(|_| !observed),
            read_only_if_enforced: guarded,
            enforced_behind_refusals: observes && (refuses || refuses_more) && !all_observed,
        }
    }

    fn set(&mut self, needed: Needed) -> SharedScopes {
        if let Some(known) = self.sets.get(&needed) {
            return known.clone();
        }
        let scopes = match needed {
            Needed::Nothing => Box::default(),
            Needed::Tables => self.with_tables.clone(),
            Needed::TablesAnd(scope) => match self.with_tables.binary_search(&scope) {
                Ok(_) => return self.set(Needed::Tables),
                Err(_) => union(&self.with_tables, &[scope]),
            },
        };
        let observed = scopes.iter().filter(|scope| {
            let name = self.names.get(scope.index());
            name.is_some_and(|name| self.modes.of_scope(name) == Mode::Observe)
        });
        let set = SharedScopes {
            observed: observed.count(),
            scopes: scopes.into(),
        };
        self.sets.insert(needed, set.clone());
        set
    }
}

fn for_writes(terms: &Terms) -> Needed {
    if terms.is_exempt() || terms.refuses_all_writes() {
        return Needed::Nothing;
    }
    match terms.writes.value {
        Writes::Token => Needed::TablesAnd(terms.scope),
        Writes::Allow | Writes::Refuse => Needed::Tables,
    }
}

fn for_reads(terms: &Terms) -> Needed {
    match terms.reads.value {
        Reads::Current => Needed::TablesAnd(terms.scope),
        Reads::Allow => Needed::Nothing,
    }
}

fn union(one: &[ScopeId], other: &[ScopeId]) -> Box<[ScopeId]> {
    let mut all = [one, other].concat();
    all.sort();
    all.dedup();
    all.into()
}
