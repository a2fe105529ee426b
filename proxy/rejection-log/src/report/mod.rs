//! A summary of a rejection log, for the question whether the fence can be switched on.
//!
//! A log may be larger than memory: it is read once, and the number of counters is limited.

mod advice;
mod shape;
mod tally;
#[cfg(test)]
mod tests;

use std::io::{self, BufRead};

use serde::Serialize;

use crate::line::{self, Filter, Line, Read, Record};
use advice::Who;
use pgpalisade_fence::statement_text::{Literals, StatementText};
use tally::Tally;

pub use advice::{Advice, Finding};
pub use tally::{Count, TallyRow, Top};

/// Limit of distinct names with a separate count, for each of scope, user, application, database and address.
const NAMES: usize = 10_000;

/// Limit of distinct statement shapes with a separate count. Each may take 2 KiB.
const SHAPES: usize = 5_000;

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

impl Understood {
    #[must_use]
    pub const fn is_a_log(&self) -> bool {
        self.records + self.filtered_out + self.dropped + self.unauthenticated > 0
    }
}

#[derive(Debug)]
pub struct Report {
    filter: Filter,
    has_scope: bool,
    understood: Understood,
    total: Count,
    kinds: Tally<KindKey>,
    scopes: Tally<NameKey>,
    users: Tally<NameKey>,
    applications: Tally<NameKey>,
    databases: Tally<NameKey>,
    clients: Tally<NameKey>,
    statements: Tally<StatementShape, First>,
    without_statement: u64,
    who: Tally<Who>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct KindKey {
    pub kind: String,
    /// SQLSTATE that the client got, or would get.
    pub sqlstate: String,
}

/// A scope, user, application, database or client address; `null` if a record has none.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct NameKey {
    pub name: Option<String>,
}

/// Statements that differ only in what is folded.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct StatementShape {
    /// Text with literals, parameters, lists, case, comments and white space folded.
    pub shape: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct First {
    pub example: Example,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Example {
    /// Class in the words of the policy.
    pub(crate) class: Option<String>,
    pub statement: String,
    pub user: String,
    pub application: Option<String>,
    pub client: Option<String>,
}

impl Report {
    #[must_use]
    pub fn new(filter: Filter) -> Self {
        Self {
            filter,
            has_scope: false,
            understood: Understood::default(),
            total: Count::default(),
            kinds: Tally::new(NAMES),
            scopes: Tally::new(NAMES),
            users: Tally::new(NAMES),
            applications: Tally::new(NAMES),
            databases: Tally::new(NAMES),
            clients: Tally::new(NAMES),
            statements: Tally::new(SHAPES),
            without_statement: 0,
            who: Tally::new(NAMES),
        }
    }

    /// Reads one input to its end, and returns how it was read.
    ///
    /// # Errors
    ///
    /// Reading fails. The report has what was read before.
    pub fn read(&mut self, from: &mut impl BufRead) -> io::Result<Understood> {
        let mut here = Understood::default();
        let mut line = Vec::new();
        loop {
            let read = line::read(from, &mut line)?;
            let parsed = line::parse(&line);
            if let Line::Record(record) = &parsed {
                self.has_scope |= self.filter.takes_scope(record);
            }
            match (read, parsed) {
                (Read::End, _) => break,
                (Read::TooLong, _) => here.foreign_lines += 1,
                (Read::Torn, Line::Foreign) => here.torn_ends += 1,
                (_, Line::Foreign) => here.foreign_lines += 1,
                (_, Line::Empty) => {}
                (_, Line::Dropped { time, records }) => {
                    if self.filter.takes_time(time) {
                        here.dropped = here.dropped.saturating_add(records);
                    }
                }
                (_, Line::Unauthenticated { time, records }) => {
                    if self.filter.takes_time(time) {
                        here.unauthenticated = here.unauthenticated.saturating_add(records);
                    }
                }
                (_, Line::Record(record)) if !record.session.authenticated => {
                    if self.filter.takes_time(record.time) {
                        here.unauthenticated =
                            here.unauthenticated.saturating_add(record.count.into());
                    }
                }
                (_, Line::Record(record)) if self.filter.takes(&record) => {
                    here.records = here.records.saturating_add(record.count.into());
                    self.count(*record);
                }
                (_, Line::Record(record)) => {
                    here.filtered_out = here.filtered_out.saturating_add(record.count.into());
                }
            }
        }
        let all = &mut self.understood;
        all.records = all.records.saturating_add(here.records);
        all.filtered_out = all.filtered_out.saturating_add(here.filtered_out);
        all.dropped = all.dropped.saturating_add(here.dropped);
        all.unauthenticated = all.unauthenticated.saturating_add(here.unauthenticated);
        all.foreign_lines += here.foreign_lines;
        all.torn_ends += here.torn_ends;
        Ok(here)
    }

    /// Whether the scope of any record passed the filter, whatever the other filters say.
    #[must_use]
    pub const fn has_scope(&self) -> bool {
        self.has_scope
    }

    fn count(&mut self, record: Record) {
        let one = Count::new(record.count.into(), record.time, record.enforced);
        self.total.add(&one);
        let kind = KindKey {
            kind: record.kind.clone(),
            sqlstate: record.sqlstate,
        };
        self.kinds.add(kind, &one, || ());
        let (session, statement) = (record.session, record.statement);
        for (tally, name) in [
            (&mut self.scopes, record.scope.clone()),
            (&mut self.users, Some(session.user.clone())),
            (&mut self.applications, session.application.clone()),
            (&mut self.databases, Some(session.database.clone())),
            (&mut self.clients, Some(session.client.clone())),
        ] {
            tally.add(NameKey { name }, &one, || ());
        }
        match &statement.text {
            None => {
                self.without_statement = self.without_statement.saturating_add(record.count.into())
            }
            Some(text) => {
                let shape = shape::shape(text);
                // The proxy cuts the texts in its log; other programs may not.
                let text = StatementText::new(text.as_bytes(), Literals::Keep);
                self.statements
                    .add(StatementShape { shape }, &one, || First {
                        example: Example {
                            class: statement.class,
                            statement: text.as_str().to_owned(),
                            user: session.user.clone(),
                            application: session.application.clone(),
                            client: Some(session.client),
                        },
                    });
            }
        }
        let who = Who {
            kind: record.kind,
            scope: record.scope,
            user: session.user,
            application: session.application,
            database: session.database,
        };
        self.who.add(who, &one, || ());
    }

    /// The verdict, and the `top` highest counts of each table.
    #[must_use]
    pub fn summary(&self, top: usize) -> Summary {
        Summary {
            understood: self.understood,
            total: self.total,
            kinds: self.kinds.top(NAMES).rows,
            scopes: self.scopes.top(top),
            users: self.users.top(top),
            applications: self.applications.top(top),
            databases: self.databases.top(top),
            clients: self.clients.top(top),
            statements: Statements {
                top: self.statements.top(top),
                without_statement: self.without_statement,
            },
            verdict: advice::reach(&self.who, &self.understood, &self.total, top),
        }
    }
}

#[derive(Debug, Clone, Serialize)]
pub struct Summary {
    #[serde(rename = "read")]
    pub understood: Understood,
    pub total: Count,
    pub kinds: Vec<TallyRow<KindKey>>,
    pub scopes: Top<NameKey>,
    pub users: Top<NameKey>,
    pub applications: Top<NameKey>,
    pub databases: Top<NameKey>,
    pub clients: Top<NameKey>,
    pub statements: Statements,
    pub verdict: Advice,
}

#[derive(Debug, Clone, Serialize)]
pub struct Statements {
    #[serde(flatten)]
    pub top: Top<StatementShape, First>,
    /// Ended sessions, tokens of a connection string.
    pub without_statement: u64,
}
