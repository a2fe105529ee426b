//! Finds the scopes that list a table.
//!
//! Every table of every statement is looked up, so the time must not grow with the number of scopes. A pattern is
//! found by whichever of its two parts is a plain name; only patterns with a `*` in both are tried one by one. A name
//! without a schema is compared with all patterns for its table.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher};

use super::glob::Glob;
use super::tables::Listed;
use crate::object_name::ObjectName;

type ByName<T> = HashMap<Box<str>, T, BuildHasherDefault<DefaultHasher>>;

type PatternIndex = u32;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TablePatterns {
    all: Box<[Listed]>,
    /// Patterns whose schema is a plain name.
    by_schema: ByName<ByTable>,
    /// Patterns whose schema has a `*`.
    others: ByTable,
    /// All patterns, for a name without a schema.
    of_any_schema: ByTable,
}

/// Patterns by their table, in the order of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ByTable {
    /// Patterns whose table is a plain name.
    named: ByName<Vec<PatternIndex>>,
    /// Patterns whose table has a `*`.
    others: Vec<PatternIndex>,
}

impl ByTable {
    fn add(&mut self, place: PatternIndex, table: &Glob) {
        match table.exact() {
            Some(name) => self.named.entry(name.into()).or_default().push(place),
            None => self.others.push(place),
        }
    }

    /// Patterns that match a table if they match its schema, in the order of the file.
    fn matching<'a, 't>(
        &'a self,
        all: &'a [Listed],
        table: &'t str,
    ) -> impl Iterator<Item = &'a Listed> + use<'a, 't> {
        let listed = |place: &PatternIndex| Some((*place, all.get(*place as usize)?));
        let named = self.named.get(table).into_iter().flatten();
        let mut named = named.filter_map(listed).peekable();
        let others = self.others.iter().filter_map(listed);
        let others = others.filter(move |(_, listed)| listed.pattern.table.matches(table));
        let mut others = others.peekable();
        std::iter::from_fn(move || {
            let next = match (named.peek(), others.peek()) {
                (Some((one, _)), Some((other, _))) if other < one => others.next(),
                (None, _) => others.next(),
                (Some(_), _) => named.next(),
            };
            next.map(|(_, listed)| listed)
        })
    }
}

impl TablePatterns {
    pub(super) fn new(listed: impl IntoIterator<Item = Listed>) -> Self {
        let mut tables = Self {
            all: listed.into_iter().collect(),
            ..Self::default()
        };
        for (place, listed) in (0..).zip(&tables.all) {
            let (schema, table) = (&listed.pattern.schema, &listed.pattern.table);
            let of_schema = match schema.exact() {
                Some(name) => tables.by_schema.entry(name.into()).or_default(),
                None => &mut tables.others,
            };
            of_schema.add(place, table);
            tables.of_any_schema.add(place, table);
        }
        tables
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Calls `found` for each pattern that matches the name.
    pub(super) fn matching<'a>(&'a self, name: &ObjectName, found: &mut dyn FnMut(&'a Listed)) {
        let table = &*name.name;
        match &name.schema {
            Some(schema) => self.in_schema(schema, table, found),
            None => self
                .of_any_schema
                .matching(&self.all, table)
                .for_each(found),
        }
    }

    fn in_schema<'a>(&'a self, schema: &str, table: &str, found: &mut dyn FnMut(&'a Listed)) {
        if let Some(here) = self.by_schema.get(schema) {
            here.matching(&self.all, table).for_each(&mut *found);
        }
        let others = self.others.matching(&self.all, table);
        others
            .filter(|listed| listed.pattern.schema.matches(schema))
            .for_each(found);
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::seq::IndexedRandom;
    use rand::{Rng, SeedableRng};

    use super::*;
    use crate::policy::ScopeId;
    use crate::policy::tables::TablePattern;

    /// Expected result, by trying all patterns. Those that name the schema come first.
    fn by_going_through_all<'a>(all: &'a [Listed], name: &ObjectName) -> Vec<&'a Listed> {
        let matching = all
            .iter()
            .filter(|one| one.pattern.table.matches(&name.name));
        let Some(schema) = &name.schema else {
            return matching.collect();
        };
        let here = matching.filter(|one| one.pattern.schema.matches(schema));
        let names = |one: &&Listed| one.pattern.schema.exact().is_some();
        let (naming, others): (Vec<_>, Vec<_>) = here.partition(names);
        [naming, others].concat()
    }

    const SCHEMAS: [&str; 5] = ["a", "b", "ab", "pg_catalog", "c"];
    const NAMES: [&str; 6] = ["t", "u", "tu", "pg_t", "\u{f6}", "x"];
    const SCHEMA_PATTERNS: [&str; 8] = ["a", "b", "ab", "pg_catalog", "*", "a*", "*b", "p*g"];
    const TABLE_PATTERNS: [&str; 9] = ["t", "u", "tu", "pg_t", "\u{f6}", "*", "t*", "*u", "\"t\""];

    fn listed(random: &mut StdRng, line: u32) -> Listed {
        let schema = SCHEMA_PATTERNS.choose(random).unwrap();
        let table = TABLE_PATTERNS.choose(random).unwrap();
        Listed {
            pattern: TablePattern::parse(&format!("{schema}.{table}")).unwrap(),
            scope: ScopeId(random.random_range(0..5)),
            line,
        }
    }

    /// `PGPALISADE_SEED` repeats one run.
    #[test]
    fn the_index_says_what_going_through_all_patterns_says() {
        let given = std::env::var("PGPALISADE_SEED").ok();
        let seed: u64 = given.map_or_else(rand::random, |text| text.parse().unwrap());
        println!("PGPALISADE_SEED={seed}");
        let mut random = StdRng::seed_from_u64(seed);
        let mut matches = 0;
        for _ in 0..20_000 {
            let all: Vec<Listed> = (0..random.random_range(0..12))
                .map(|line| listed(&mut random, line))
                .collect();
            let tables = TablePatterns::new(all.clone());
            let name = ObjectName {
                schema: random
                    .random::<bool>()
                    .then(|| (*SCHEMAS.choose(&mut random).unwrap()).into()),
                name: (*NAMES.choose(&mut random).unwrap()).into(),
            };
            let expect = by_going_through_all(&all, &name);
            let mut found = Vec::new();
            tables.matching(&name, &mut |listed| found.push(listed));
            assert_eq!(found, expect, "{name} in {all:?}");
            matches += expect.len();
        }
        assert!(matches > 1_000, "{matches}");
    }
}
