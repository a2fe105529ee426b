//! Finds out which names in a query are tables, and which of them it locks.
//!
//! <https://www.postgresql.org/docs/current/queries-with.html>,
//! <https://www.postgresql.org/docs/current/sql-select.html#SQL-FOR-UPDATE-SHARE>

use std::collections::HashMap;
use std::ops::Range;

use super::UnknownShape;
use crate::object_name::ObjectName;

/// A name in a FROM or a similar clause.
#[derive(Debug)]
struct Mention {
    name: ObjectName,
    alias: Option<Box<str>>,
    /// Number of queries around it.
    level: usize,
    stands_for: StandsFor,
    is_locked: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StandsFor {
    Table,
    Cte,
}

/// A SELECT, INSERT, UPDATE, DELETE or MERGE that the walk is inside.
#[derive(Debug, Default)]
struct Query {
    begin: usize,
    with: Option<With>,
    /// Names in its FROM.
    from: Range<usize>,
    /// Names in the two sides of its UNION.
    sides: Range<usize>,
    /// FOR UPDATE or a similar clause without OF, which locks all of FROM.
    locks_all: bool,
    /// Names after OF.
    locks_of: Vec<Box<str>>,
}

#[derive(Debug, Default)]
struct With {
    begin: usize,
    is_recursive: bool,
    ctes: Vec<(Box<str>, Range<usize>)>,
    end: usize,
}

/// Clauses of a query whose names FOR UPDATE locks.
#[derive(Clone, Copy, Debug)]
pub(super) enum LockedClause {
    From,
    Side,
}

/// Names met so far.
#[derive(Debug, Default)]
pub(super) struct NameScopes {
    mentions: Vec<Mention>,
    queries: Vec<Query>,
}

/// Tables of a finished walk.
pub(super) struct Resolved {
    pub(super) read: Vec<ObjectName>,
    pub(super) locked: Vec<ObjectName>,
}

impl NameScopes {
    /// Whether the walk is inside a query, and not only in the statement around it.
    pub(super) fn in_query(&self) -> bool {
        !self.queries.is_empty()
    }

    pub(super) fn mention(&mut self, name: ObjectName, alias: Option<Box<str>>) {
        self.mentions.push(Mention {
            name,
            alias,
            level: self.queries.len(),
            stands_for: StandsFor::Table,
            is_locked: false,
        });
    }

    /// Number of names so far, which is the index of the next.
    pub(super) fn here(&self) -> usize {
        self.mentions.len()
    }

    pub(super) fn begin_query(&mut self) {
        let begin = self.here();
        self.queries.push(Query {
            begin,
            from: begin..begin,
            sides: begin..begin,
            ..Query::default()
        });
    }

    /// Assigns the names from `begin` to here to this clause of the innermost query.
    pub(super) fn end_part(
        &mut self,
        clause: LockedClause,
        begin: usize,
    ) -> Result<(), UnknownShape> {
        let end = self.here();
        let query = self.innermost()?;
        match clause {
            LockedClause::From => query.from = begin..end,
            // The two sides are the last fields of a query, in a row.
            LockedClause::Side if query.sides.is_empty() => query.sides = begin..end,
            LockedClause::Side => query.sides.end = end,
        }
        Ok(())
    }

    pub(super) fn begin_with(&mut self) -> Result<(), UnknownShape> {
        let begin = self.here();
        self.innermost()?.with = Some(With {
            begin,
            ..With::default()
        });
        Ok(())
    }

    pub(super) fn end_cte(&mut self, name: Box<str>, begin: usize) -> Result<(), UnknownShape> {
        let end = self.here();
        let with = self.innermost()?.with.as_mut().ok_or(UnknownShape)?;
        with.ctes.push((name, begin..end));
        with.end = end;
        Ok(())
    }

    pub(super) fn with_is_recursive(&mut self) -> Result<(), UnknownShape> {
        let with = self.innermost()?.with.as_mut().ok_or(UnknownShape)?;
        with.is_recursive = true;
        Ok(())
    }

    pub(super) fn lock_all(&mut self) -> Result<(), UnknownShape> {
        self.innermost()?.locks_all = true;
        Ok(())
    }

    pub(super) fn lock_of(&mut self, alias: Box<str>) -> Result<(), UnknownShape> {
        self.innermost()?.locks_of.push(alias);
        Ok(())
    }

    /// Number of names after OF so far.
    pub(super) fn locked_of(&self) -> usize {
        self.queries.last().map_or(0, |query| query.locks_of.len())
    }

    fn innermost(&mut self) -> Result<&mut Query, UnknownShape> {
        self.queries.last_mut().ok_or(UnknownShape)
    }

    /// Ends the innermost query and applies its locks and its WITH to the names in it.
    pub(super) fn end_query(&mut self) -> Result<(), UnknownShape> {
        let level = self.queries.len();
        let query = self.queries.pop().ok_or(UnknownShape)?;
        self.apply_locks(&query, level);
        if let Some(with) = &query.with {
            self.apply_with(with, query.begin);
        }
        Ok(())
    }

    fn apply_locks(&mut self, query: &Query, level: usize) {
        if !query.locks_all && query.locks_of.is_empty() {
            return;
        }
        let mut direct: HashMap<&str, usize> = HashMap::new();
        for (place, mention) in between(&self.mentions, query.from.clone()) {
            if mention.level == level {
                let name = mention.alias.as_ref().unwrap_or(&mention.name.name);
                direct.entry(name).or_insert(place);
            }
        }
        let of = query.locks_of.iter();
        let of: Option<Vec<usize>> = of.map(|alias| direct.get(&**alias).copied()).collect();
        let places: Box<dyn Iterator<Item = usize>> = match of {
            Some(places) if !query.locks_all => Box::new(places.into_iter()),
            // A name after OF that is no table, such as a subquery, may stand for any of them.
            _ => Box::new(query.from.clone().chain(query.sides.clone())),
        };
        for place in places {
            if let Some(mention) = self.mentions.get_mut(place) {
                mention.is_locked = true;
            }
        }
    }

    /// Marks the names that are CTEs. A name without a schema is one if a CTE of that name is visible. It is visible
    /// in the whole query, but inside the WITH only after its definition, unless the WITH is RECURSIVE.
    fn apply_with(&mut self, with: &With, begin: usize) {
        let mut first: HashMap<&str, usize> = HashMap::new();
        for (order, (name, _)) in with.ctes.iter().enumerate() {
            first.entry(name).or_insert(order);
        }
        let mut inside = with.ctes.iter().enumerate().peekable();
        for (place, mention) in self.mentions.iter_mut().enumerate().skip(begin) {
            while inside
                .next_if(|(_, (_, range))| range.end <= place)
                .is_some()
            {}
            let Some(cte) = first.get(&*mention.name.name) else {
                continue;
            };
            let in_sight = match inside.peek() {
                Some((order, (_, range))) if range.contains(&place) => {
                    with.is_recursive || cte < order
                }
                // Inside the WITH but in none of its queries: not known to be a CTE.
                _ => !(with.begin..with.end).contains(&place),
            };
            if mention.name.schema.is_none() && in_sight {
                mention.stands_for = StandsFor::Cte;
            }
        }
    }

    pub(super) fn resolve(self) -> Resolved {
        let mut resolved = Resolved {
            read: Vec::new(),
            locked: Vec::new(),
        };
        for mention in self.mentions {
            if mention.stands_for == StandsFor::Table {
                if mention.is_locked {
                    resolved.locked.push(mention.name.clone());
                }
                resolved.read.push(mention.name);
            }
        }
        resolved
    }
}

fn between(mentions: &[Mention], places: Range<usize>) -> impl Iterator<Item = (usize, &Mention)> {
    let begin = places.start;
    let some = mentions.get(places).unwrap_or_default();
    some.iter()
        .enumerate()
        .map(move |(offset, mention)| (begin + offset, mention))
}
