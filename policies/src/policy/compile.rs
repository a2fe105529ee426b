//! Turns a policy file into rules for sessions.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use toml::Spanned;

use super::declare::{AllowedScopes, Declarable, DeclareFor, Declarers, Holders};
use super::file::{Declare, Draft, Listing, RuleDraft, ScopeDraft, Section};
use super::listing::TablePatterns;
use super::needed_scopes::PolicyScopes;
use super::remark::Lines;
use super::tables::Listed;
use super::terms::{By, Follows, Said, SessionRule, Terms};
use super::warn::warnings;
use super::{DEFAULT_SCOPE, ElectedScope, Modes, Numbers, Policy, Rule, ScopeId, TokenBounds};
use crate::effects::Category;

/// Limit on scopes that the policy does not name. A store with a small quota holds this many.
const MAX_SCOPES: u64 = 10_000;

impl Default for Policy {
    fn default() -> Self {
        Self::compile(&Draft::default(), &Lines::new(""))
    }
}

impl Policy {
    /// Compiles a draft without errors. `lines` are those of its text.
    pub(super) fn compile(draft: &Draft, lines: &Lines<'_>) -> Self {
        let mut names = Names::default();
        let default_scope = names.id(draft.defaults.scope.as_deref().unwrap_or(DEFAULT_SCOPE));
        let (listed, table_scopes) = tables(&draft.scopes, &mut names, lines);
        let mut defaults = default_terms(&draft.defaults, default_scope, lines);
        let mut rules: Vec<Terms> = Vec::new();
        for (index, rule) in draft.rules.iter().enumerate() {
            rules.push(rule_terms(index, rule, &defaults, &mut names, lines));
        }
        let mut scopes = PolicyScopes::new(names.names, table_scopes, modes(draft));
        for terms in rules.iter_mut().chain([&mut defaults]) {
            terms.follows = scopes.follows(terms);
        }
        let patterns = draft.rules.iter().map(|rule| rule.who.clone());
        let rule = |(who, terms)| Rule {
            who,
            terms: Arc::new(terms),
        };
        Self {
            scopes: scopes.names,
            ids: names.ids,
            tables: TablePatterns::new(listed),
            table_scopes: scopes.with_tables,
            modes: scopes.modes,
            bounds: bounds(&draft.scopes, &draft.tokens),
            default_bounds: draft.tokens.clone(),
            max_scopes: draft.max_scopes.unwrap_or(MAX_SCOPES),
            elected: elected(&draft.scopes, lines),
            declarers: declarers(draft, lines),
            defaults: Arc::new(defaults),
            rules: patterns.zip(rules).map(rule).collect(),
            warnings: warnings(draft, lines),
        }
    }
}

/// Names of scopes, in order of appearance.
#[derive(Default)]
struct Names {
    names: Vec<Box<str>>,
    ids: HashMap<Box<str>, ScopeId>,
}

impl Names {
    fn id(&mut self, name: &str) -> ScopeId {
        if let Some(known) = self.ids.get(name) {
            return *known;
        }
        // The reader accepts far fewer scopes than fit.
        let id = ScopeId(u32::try_from(self.names.len()).unwrap_or(u32::MAX));
        self.names.push(name.into());
        self.ids.insert(name.into(), id);
        id
    }
}

fn tables(
    scopes: &[ScopeDraft],
    names: &mut Names,
    lines: &Lines<'_>,
) -> (Vec<Listed>, Box<[ScopeId]>) {
    let mut listed = Vec::new();
    let mut with_tables = Vec::new();
    for scope in scopes {
        let id = names.id(scope.name.get_ref());
        if !scope.tables.is_empty() {
            with_tables.push(id);
        }
        listed.extend(scope.tables.iter().map(|pattern| Listed {
            pattern: pattern.get_ref().clone(),
            scope: id,
            line: lines.line(&pattern.span()),
        }));
    }
    with_tables.sort();
    (listed, with_tables.into())
}

fn value<T: Copy>(written: Option<&Spanned<T>>) -> Option<T> {
    written.map(|written| *written.get_ref())
}

fn by_defaults<T: Copy + Default>(written: Option<&Spanned<T>>, lines: &Lines<'_>) -> Said<T> {
    match written {
        None => Said::default(),
        Some(written) => Said {
            value: *written.get_ref(),
            by: By::Defaults {
                line: lines.line(&written.span()),
            },
        },
    }
}

fn by_rule<T: Copy>(written: Option<&Spanned<T>>, otherwise: Said<T>) -> Said<T> {
    match written {
        None => otherwise,
        Some(written) => Said {
            value: *written.get_ref(),
            by: By::Rule,
        },
    }
}

fn default_terms(section: &Section, scope: ScopeId, lines: &Lines<'_>) -> Terms {
    let said = section.refuse.iter().map(|category| {
        let line = lines.line(&category.span());
        (*category.get_ref(), By::Defaults { line })
    });
    let mut refused: Vec<(Category, By)> = said.collect();
    for category in [Category::Replication, Category::PrepareTransaction] {
        if !refused.iter().any(|(kind, _)| *kind == category) {
            refused.push((category, By::Nobody));
        }
    }
    take_away(&mut refused, &section.allow);
    let by = |written: &Spanned<Declare>| By::Defaults {
        line: lines.line(&written.span()),
    };
    let (declarable, declare_for) = declares(section, by, Default::default());
    Terms {
        rule: None,
        writes: by_defaults(section.writes.as_ref(), lines),
        reads: by_defaults(section.reads.as_ref(), lines),
        unknown_tables: by_defaults(section.unknown_tables.as_ref(), lines),
        // The mode of [defaults] ranks below that of the scopes.
        mode: None,
        pool: None,
        scope,
        refused: refused.into(),
        declarable,
        declare_for,
        follows: Follows::default(),
    }
}

fn rule_terms(
    index: usize,
    rule: &RuleDraft,
    defaults: &Terms,
    names: &mut Names,
    lines: &Lines<'_>,
) -> Terms {
    let section = &rule.section;
    let own = section
        .refuse
        .iter()
        .map(|kind| (*kind.get_ref(), By::Rule));
    let mut refused: Vec<(Category, By)> = own.collect();
    let mut inherited = defaults.refused.to_vec();
    take_away(&mut inherited, &section.allow);
    refused.extend(inherited);
    let scope = section.scope.as_deref();
    let inherited = (defaults.declarable.clone(), defaults.declare_for);
    let (declarable, declare_for) = declares(section, |_| By::Rule, inherited);
    Terms {
        rule: Some(SessionRule {
            name: rule.name.clone(),
            number: index + 1,
            line: lines.line(&rule.at.span()),
        }),
        writes: by_rule(section.writes.as_ref(), defaults.writes),
        reads: by_rule(section.reads.as_ref(), defaults.reads),
        unknown_tables: by_rule(section.unknown_tables.as_ref(), defaults.unknown_tables),
        mode: value(section.mode.as_ref()),
        pool: rule.pool,
        scope: scope.map_or(defaults.scope, |scope| names.id(scope)),
        refused: refused.into(),
        declarable,
        declare_for,
        follows: Follows::default(),
    }
}

fn take_away(refused: &mut Vec<(Category, By)>, allowed: &[Spanned<Category>]) {
    refused.retain(|(kind, _)| !allowed.iter().any(|allowed| allowed.get_ref() == kind));
}

fn modes(draft: &Draft) -> Modes {
    let own = draft.scopes.iter().filter_map(|scope| {
        let mode = value(scope.mode.as_ref())?;
        Some((scope.name.get_ref().clone(), mode))
    });
    Modes {
        of_scopes: own.collect(),
        default: value(draft.defaults.mode.as_ref()).unwrap_or_default(),
    }
}

fn declarers(draft: &Draft, lines: &Lines<'_>) -> Declarers {
    let holders = draft.scopes.iter().filter_map(|scope| {
        let holders = scope.holders.as_ref()?;
        let (who, line) = (holders.get_ref().clone(), lines.line(&holders.span()));
        Some((scope.name.get_ref().clone(), Holders { who, line }))
    });
    let listed = draft.scopes_may_be.as_ref();
    Declarers {
        holders: holders.collect(),
        scopes: match listed.filter(|said| *said.get_ref() == Listing::Listed) {
            Some(said) => AllowedScopes::Listed {
                line: lines.line(&said.span()),
            },
            None => AllowedScopes::Any,
        },
    }
}

/// Scopes and duration of declarations. A value sets one of the two.
fn declares(
    section: &Section,
    by: impl Fn(&Spanned<Declare>) -> By,
    otherwise: (Said<Declarable>, Said<DeclareFor>),
) -> (Said<Declarable>, Said<DeclareFor>) {
    let (declarable, declare_for) = otherwise;
    let Some(written) = &section.declare else {
        return (declarable, declare_for);
    };
    let by = by(written);
    match written.get_ref() {
        Declare::For(value) => (declarable, Said { value: *value, by }),
        Declare::Scopes(scopes) => {
            let scopes = scopes.iter().map(|scope| scope.get_ref().clone());
            let value = Declarable::Listed(scopes.collect());
            (Said { value, by }, declare_for)
        }
    }
}

fn bounds(scopes: &[ScopeDraft], general: &TokenBounds) -> BTreeMap<Box<str>, TokenBounds> {
    let own = scopes.iter().filter_map(|scope| {
        let own = &scope.bounds;
        let election = scope.election.as_ref();
        let election = election.map(|election| Numbers::Election(Arc::clone(election.get_ref())));
        // The number of an election jumps with every change in etcd, and is compared exactly.
        let limits = match election {
            Some(_) => (None, None),
            None => (
                own.max_step.or(general.max_step),
                own.max_token.or(general.max_token),
            ),
        };
        let complete = TokenBounds {
            max_step: limits.0,
            max_token: limits.1,
            numbers: election.or_else(|| own.numbers.clone().or_else(|| general.numbers.clone())),
            prepared: own.prepared.or(general.prepared),
            lock_delay: own.lock_delay.or(general.lock_delay),
            max_scopes: None,
        };
        let name = scope.name.get_ref().clone();
        let has_own = scope.election.is_some() || *own != TokenBounds::default();
        has_own.then_some((name, complete))
    });
    own.collect()
}

fn elected(scopes: &[ScopeDraft], lines: &Lines<'_>) -> Vec<ElectedScope> {
    let elected = scopes.iter().filter_map(|scope| {
        let election = scope.election.as_ref()?;
        let at = lines.remark(&election.span(), "");
        Some(ElectedScope {
            scope: scope.name.get_ref().clone(),
            election: Arc::clone(election.get_ref()),
            line: at.line,
            column: at.column,
        })
    });
    elected.collect()
}
