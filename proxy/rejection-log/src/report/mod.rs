//! What a rejection log says, summed up for the question whether the fence can be switched on.
//!
//! A log may be larger than memory: it is read once, line by line, and what is counted has limits.

mod deposed;
mod shape;
mod tally;
#[cfg(test)]
mod tests;
mod verdict;

use std::io::{self, BufRead};

use serde::Serialize;

use crate::line::{self, Filter, Line, Read, Record};
use crate::overlaps::{Overlap, Overlaps, Writer};
use crate::record::WRITE;
use pgpalisade_fence::rejection::Enforcement;
use pgpalisade_fence::statement_text::{Literals, StatementText};
use tally::Tally;
use verdict::Who;

pub use deposed::Deposed;
pub use tally::{Count, Row, Top};
pub use verdict::{Finding, Verdict};

/// Distinct names that are counted by themselves, for each of scope, user, application, database and address.
const NAMES: usize = 10_000;

/// Distinct shapes of statements that are counted by themselves. Each may be 2 KiB with its example.
const SHAPES: usize = 5_000;

/// How much of the input was understood.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Understood {
    /// Records that are in the report.
    pub(crate) records: u64,
    /// Records that the filters left out.
    pub filtered_out: u64,
    /// Records that the proxy could not write, by its own notes.
    pub dropped: u64,
    /// Refusals before the login was authenticated, under names that nobody has proved. They are in no other count.
    pub unauthenticated: u64,
    /// Lines that are none of a rejection log.
    pub foreign_lines: u64,
    /// Inputs that end in the middle of a line, as while a line is being written.
    pub torn_ends: u64,
}

impl Understood {
    /// Whether anything read was a line of a rejection log.
    #[must_use]
    pub const fn is_a_log(&self) -> bool {
        self.records + self.filtered_out + self.dropped + self.unauthenticated > 0
    }
}

/// Counts of everything read so far.
#[derive(Debug)]
pub struct Report {
    filter: Filter,
    /// Whether a record was of the scope that is wanted.
    has_scope: bool,
    understood: Understood,
    total: Count,
    kinds: Tally<Kind>,
    scopes: Tally<Name>,
    users: Tally<Name>,
    applications: Tally<Name>,
    databases: Tally<Name>,
    clients: Tally<Name>,
    statements: Tally<Shape, First>,
    without_statement: u64,
    who: Tally<Who>,
    overlaps: Overlaps,
    deposed: deposed::Accounts,
}

/// Why something was refused.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Kind {
    /// As in the log.
    pub kind: String,
    /// What the client got, or would get.
    pub sqlstate: String,
}

/// A scope, user, application, database or client address; `null` where a record has none.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Name {
    /// The name, where there is one.
    pub name: Option<String>,
}

/// Statements that differ in nothing that matters.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Shape {
    /// Literals, parameters, lists, case, comments and white space are folded.
    pub shape: String,
}

/// What is shown of a shape.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct First {
    /// The first of them.
    pub example: Example,
}

/// The first record of a shape.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Example {
    /// What it was, in the words of the policy.
    pub(crate) class: Option<String>,
    /// Its text, as it is in the log.
    pub statement: String,
    /// Who sent it.
    pub user: String,
    /// With which program.
    pub application: Option<String>,
    /// From where.
    pub client: Option<String>,
}

impl Report {
    /// An empty one.
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
            overlaps: Overlaps::default(),
            deposed: deposed::Accounts::default(),
        }
    }

    /// Reads one input to its end, and says how much of it was understood.
    ///
    /// # Errors
    /// Where reading fails. What was read before is in the report.
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
                        here.unauthenticated = here.unauthenticated.saturating_add(record.count);
                    }
                }
                (_, Line::Record(record)) if self.filter.takes(&record) => {
                    here.records = here.records.saturating_add(record.count);
                    self.count(*record);
                }
                (_, Line::Record(record)) => {
                    here.filtered_out = here.filtered_out.saturating_add(record.count);
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

    /// Whether any record read was of the scope that is wanted, whatever the other filters say.
    #[must_use]
    pub const fn has_scope(&self) -> bool {
        self.has_scope
    }

    fn count(&mut self, record: Record) {
        self.note_overlap(&record);
        self.deposed.note(&record);
        let one = Count::new(record.count, record.time, record.enforced);
        self.total.add(&one);
        let kind = Kind {
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
            (&mut self.clients, session.client.clone()),
        ] {
            tally.add(Name { name }, &one, || ());
        }
        match &statement.text {
            None => self.without_statement = self.without_statement.saturating_add(record.count),
            Some(text) => {
                let shape = shape::shape(text);
                // A text in the log is cut already; one that another program wrote may not be.
                let text = StatementText::new(text.as_bytes(), Literals::Keep);
                self.statements.add(Shape { shape }, &one, || First {
                    example: Example {
                        class: statement.class,
                        statement: text.as_str().to_owned(),
                        user: session.user.clone(),
                        application: session.application.clone(),
                        client: session.client,
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

    fn note_overlap(&mut self, record: &Record) {
        let is_let_pass = record.enforced == Enforcement::Observed;
        let writes = record.needs.as_deref() == Some(WRITE);
        if let (true, true, Some(scope)) = (is_let_pass, writes, &record.scope) {
            let writer = Writer {
                application: record.session.application.clone(),
                host: record.session.client.clone(),
            };
            self.overlaps.note(scope, writer, record.time);
        }
    }

    /// The highest counts of each table, `top` rows each, and the verdict.
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
            overlaps: self.overlapped(top),
            deposed: self.deposed.list(top),
            verdict: verdict::reach(&self.who, &self.understood, &self.total, top),
        }
    }
}

impl Report {
    fn overlapped(&self, top: usize) -> Overlapped {
        let mut longest = self.overlaps.list();
        longest.sort_by_key(|overlap| std::cmp::Reverse(overlap.duration()));
        let count = longest.len();
        longest.truncate(top);
        Overlapped { count, longest }
    }
}

/// Writers without tokens that have taken turns.
#[derive(Debug, Clone, Serialize)]
pub struct Overlapped {
    /// How often.
    pub count: usize,
    /// The longest first.
    pub longest: Vec<Overlap>,
}

/// A report, ready to be shown.
#[derive(Debug, Clone, Serialize)]
pub struct Summary {
    /// How much of the input was understood.
    #[serde(rename = "read")]
    pub understood: Understood,
    /// All records.
    pub total: Count,
    /// By the reason.
    pub kinds: Vec<Row<Kind>>,
    /// By scope; `null` where a record is about none.
    pub scopes: Top<Name>,
    /// By user.
    pub users: Top<Name>,
    /// By application_name; `null` where the client gave none.
    pub applications: Top<Name>,
    /// By database.
    pub databases: Top<Name>,
    /// By the client's address, without its port.
    pub clients: Top<Name>,
    /// By shape.
    pub statements: Statements,
    /// Who has written beside whom.
    pub overlaps: Overlapped,
    /// What became of the work of deposed leaders, by takeover, the last ones first.
    pub deposed: Vec<Deposed>,
    /// What follows from it.
    pub verdict: Verdict,
}

/// Counts by the shape of the statement.
#[derive(Debug, Clone, Serialize)]
pub struct Statements {
    /// The highest first.
    #[serde(flatten)]
    pub top: Top<Shape, First>,
    /// Records that are about no statement: ended sessions, tokens of a connection string.
    pub without_statement: u64,
}
