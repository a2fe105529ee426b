//! A summary of a rejection log, for the question whether the fence can be switched on.
//!
//! A log may be larger than memory: it is read once, and the number of counters is limited.

mod advice;
mod count;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::io::{self, BufRead};

use serde::Serialize;

use crate::line::{self, Filter, Line, Read, Record};
use advice::Who;

pub use advice::{Advice, Finding};
pub use count::Count;

/// Limit of users, applications and so on with separate counts.
const NAMES: usize = 10_000;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Understood {
    pub(crate) records: u64,
    /// Records that the filters left out.
    pub filtered_out: u64,
    /// Records that the proxy could not write, by its own notes.
    pub dropped: u64,
    /// Refusals before authentication. No other count includes them.
    pub unauthenticated: u64,
    /// Lines of other origin.
    pub foreign_lines: u64,
    /// Inputs that end inside a line.
    pub torn_ends: u64,
}

#[derive(Debug)]
pub struct Report {
    filter: Filter,
    has_scope: bool,
    understood: Understood,
    total: Count,
    who: HashMap<Who, Count>,
    /// Records of all others, beyond the limit.
    beyond: Count,
}

impl Report {
    #[must_use]
    pub fn new(filter: Filter) -> Self {
        Self {
            filter,
            has_scope: false,
            understood: Understood::default(),
            total: Count::default(),
            who: HashMap::new(),
            beyond: Count::default(),
        }
    }

    /// Reads one input to its end. Returns `false` if it is no rejection log: it has lines, and none of them is one of
    /// a log.
    ///
    /// # Errors
    ///
    /// Reading fails. The report has what was read before.
    pub fn read(&mut self, from: &mut impl BufRead) -> io::Result<bool> {
        let foreign_before = self.understood.foreign_lines;
        let (mut line, mut is_log) = (Vec::new(), false);
        loop {
            let read = line::read(from, &mut line)?;
            let parsed = line::parse(&line);
            is_log |= !matches!(parsed, Line::Empty | Line::Foreign);
            if let Line::Record(record) = &parsed {
                self.has_scope |= self.filter.takes_scope(record);
            }
            let understood = &mut self.understood;
            let (counter, more) = match (read, parsed) {
                (Read::End, _) => break,
                (Read::Torn, Line::Foreign) => (&mut understood.torn_ends, 1),
                (Read::TooLong, _) | (_, Line::Foreign) => (&mut understood.foreign_lines, 1),
                (_, Line::Dropped { time, records }) if self.filter.takes_time(time) => {
                    (&mut understood.dropped, records)
                }
                (_, Line::Unauthenticated { time, records }) if self.filter.takes_time(time) => {
                    (&mut understood.unauthenticated, records)
                }
                (_, Line::Empty | Line::Dropped { .. } | Line::Unauthenticated { .. }) => continue,
                (_, Line::Record(record)) => {
                    let count = record.count.into();
                    if record.authenticated && self.filter.takes(&record) {
                        self.count(*record);
                        (&mut self.understood.records, count)
                    } else if record.authenticated {
                        (&mut understood.filtered_out, count)
                    } else if self.filter.takes_time(record.time) {
                        (&mut understood.unauthenticated, count)
                    } else {
                        continue;
                    }
                }
            };
            *counter = counter.saturating_add(more);
        }
        Ok(is_log || self.understood.foreign_lines == foreign_before)
    }

    /// Whether the scope of any record passed the filter, whatever the other filters say.
    #[must_use]
    pub const fn has_scope(&self) -> bool {
        self.has_scope
    }

    fn count(&mut self, record: Record) {
        let one = Count::new(record.count.into(), record.time, record.enforced);
        self.total.add(&one);
        let who = Who {
            kind: record.kind,
            scope: record.scope,
            user: record.user,
            application: record.application,
            database: record.database,
        };
        if let Some(count) = self.who.get_mut(&who) {
            count.add(&one);
        } else if self.who.len() < NAMES {
            self.who.insert(who, one);
        } else {
            self.beyond.add(&one);
        }
    }

    /// The verdict, with the `top` highest counts of each kind.
    #[must_use]
    pub fn summary(&self, top: usize) -> Summary {
        Summary {
            understood: self.understood,
            total: self.total,
            verdict: advice::reach(self, top),
        }
    }
}

#[derive(Debug, Clone, Serialize)]
pub struct Summary {
    #[serde(rename = "read")]
    pub understood: Understood,
    pub total: Count,
    pub verdict: Advice,
}
