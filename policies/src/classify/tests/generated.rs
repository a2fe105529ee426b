//! Statements built at random from known parts. Every part must be found, whatever is around it.

use std::collections::BTreeSet;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use super::of;
use crate::effects::Class;
use crate::effects::Tables;

/// A text and its content.
#[derive(Clone, Debug, Default)]
struct Made {
    text: String,
    reads: BTreeSet<String>,
    writes: BTreeSet<String>,
    functions: BTreeSet<String>,
}

struct Maker {
    random: StdRng,
    ctes: usize,
}

impl Maker {
    fn from_seed() -> (u64, Self) {
        let seed = match std::env::var("SEED") {
            Ok(seed) => seed.parse().unwrap(),
            Err(_) => rand::random(),
        };
        println!("seed {seed}; run again with SEED={seed}");
        let random = StdRng::seed_from_u64(seed);
        (seed, Self { random, ctes: 0 })
    }

    fn one_of(&mut self, words: &[&'static str]) -> &'static str {
        words.choose(&mut self.random).unwrap()
    }

    fn table(&mut self) -> String {
        // Includes tables with the names of CTEs.
        self.one_of(&["a", "b", "jobs.a", "\"A b\"", "c0", "c1", "s.c0"])
            .to_owned()
    }

    fn plain(name: &str) -> String {
        name.replace('"', "")
    }

    /// A SELECT that sees only these CTEs.
    fn select(&mut self, depth: usize, ctes: &[String]) -> Made {
        let mut made = Made::default();
        let from = self.from(depth, ctes, &mut made);
        let what = match self.random.random_range(0..4) {
            0 => {
                let function = self.one_of(&["now", "s.f", "lower"]);
                made.functions.insert(function.to_owned());
                format!("{function}(x)")
            }
            1 if depth > 0 => {
                let inner = self.select(depth - 1, ctes);
                made.take(&inner);
                format!("(select 1 from ({}) q limit 1)", inner.text)
            }
            _ => "*".to_owned(),
        };
        made.text = format!("select {what} from {from}");
        if depth > 0 && self.random.random_bool(0.3) {
            let inner = self.select(depth - 1, ctes);
            made.take(&inner);
            made.text += &format!(" where exists ({})", inner.text);
        }
        if depth > 0 && self.random.random_bool(0.2) {
            let other = self.select(depth - 1, ctes);
            made.take(&other);
            made.text = format!("({}) union all ({})", made.text, other.text);
        }
        if depth > 0 && self.random.random_bool(0.4) {
            made = self.with(depth - 1, ctes, Self::select);
        }
        made
    }

    fn from(&mut self, depth: usize, ctes: &[String], made: &mut Made) -> String {
        let count = self.random.random_range(1..3);
        let mut items = Vec::new();
        for item in 0..count {
            let text = match self.random.random_range(0..4) {
                0 if depth > 0 => {
                    let inner = self.select(depth - 1, ctes);
                    made.take(&inner);
                    format!("({})", inner.text)
                }
                1 if !ctes.is_empty() => ctes.choose(&mut self.random).unwrap().clone(),
                _ => {
                    let table = self.table();
                    if !ctes.contains(&table) {
                        made.reads.insert(Self::plain(&table));
                    }
                    table
                }
            };
            items.push(format!("{text} as x{item}"));
        }
        items.join(self.one_of(&[", ", " cross join "]))
    }

    /// WITH one or two CTEs before what `body` makes. One of three writes.
    fn with(
        &mut self,
        depth: usize,
        ctes: &[String],
        body: fn(&mut Self, usize, &[String]) -> Made,
    ) -> Made {
        let mut made = Made::default();
        let mut known = ctes.to_vec();
        let mut parts = Vec::new();
        for _ in 0..self.random.random_range(1..3) {
            let name = format!("c{}", self.ctes % 3);
            self.ctes += 1;
            if parts
                .iter()
                .any(|part: &String| part.starts_with(&format!("{name} ")))
            {
                continue;
            }
            let inner = self.select(depth, &known);
            made.take(&inner);
            parts.push(format!("{name} as ({})", inner.text));
            known.push(name);
        }
        let inner = body(self, depth, &known);
        made.take(&inner);
        // A WITH of its own replaces a second one before it.
        made.text = format!(
            "with {} {}",
            parts.join(", "),
            Self::in_parentheses(&inner.text)
        );
        made
    }

    fn in_parentheses(text: &str) -> String {
        if text.starts_with("with") {
            format!("select * from ({text}) w")
        } else if text.starts_with("select") {
            format!("({text})")
        } else {
            text.to_owned()
        }
    }

    fn write(&mut self, depth: usize, ctes: &[String]) -> Made {
        let target = self.table();
        let mut made = self.select(depth, ctes);
        made.text = match self.random.random_range(0..4) {
            0 => format!("insert into {target} {} returning 1", made.text),
            1 => format!(
                "update {target} as z set a = 1 where exists ({}) returning 1",
                made.text
            ),
            2 => format!("delete from {target} using ({}) y returning 1", made.text),
            _ => format!(
                "merge into {target} as z using ({}) y on true when matched then delete returning 1",
                made.text
            ),
        };
        made.writes.insert(Self::plain(&target));
        made
    }
}

impl Made {
    fn take(&mut self, other: &Self) {
        self.reads.extend(other.reads.iter().cloned());
        self.writes.extend(other.writes.iter().cloned());
        self.functions.extend(other.functions.iter().cloned());
    }

    #[track_caller]
    fn check(&self, seed: u64) {
        let verdict = of(&self.text);
        let at = || format!("SEED={seed}: {}: {verdict:#?}", self.text);
        assert_ne!(verdict.kind(), "unparsed", "{}", at());
        let names = |tables: &Tables| {
            assert!(tables.are_named(), "{}", at());
            tables.names().iter().map(ToString::to_string).collect()
        };
        let all = |of: fn(&crate::Effects) -> &Tables| -> BTreeSet<String> {
            let statements = verdict.statements.iter();
            statements
                .flat_map(|statement| -> BTreeSet<String> { names(of(&statement.effects)) })
                .collect()
        };
        assert_eq!(all(|effects| &effects.writes), self.writes, "{}", at());
        assert_eq!(all(|effects| &effects.reads), self.reads, "{}", at());
        let functions = verdict.statements.iter();
        let functions: BTreeSet<_> = functions
            .flat_map(|statement| statement.effects.functions.iter().map(ToString::to_string))
            .collect();
        assert_eq!(functions, self.functions, "{}", at());
        assert_eq!(
            verdict.class() == Class::Write,
            !self.writes.is_empty(),
            "{}",
            at()
        );
    }
}

#[test]
fn what_was_put_in_is_found() {
    let (seed, mut maker) = Maker::from_seed();
    let mut with_ctes = 0;
    for _ in 0..3_000 {
        let made = match maker.random.random_range(0..3) {
            0 => maker.select(3, &[]),
            1 => maker.write(2, &[]),
            _ => maker.with(2, &[], Maker::write),
        };
        with_ctes += usize::from(made.text.contains("with c"));
        made.check(seed);
    }
    assert!(with_ctes > 1_000, "{with_ctes}");
}
