//! Whether a function of a database may leave something in a session that the texts of clients do not show.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use pgpalisade_wire::backend;

use super::SharedLogin;

/// Asks for one thing of the database that may leave something; no row if there is none. Calls of PostgreSQL's own
/// functions are seen in a client's text (`pgpalisade_policies::Leftover`).
pub(crate) const QUERY: &str = include_str!("census.sql");

/// Time for which an answer counts.
const COUNTS_FOR: Duration = Duration::from_secs(60);

/// One for each database of a worker.
#[derive(Default)]
pub(crate) struct Censuses(RefCell<HashMap<String, Rc<Census>>>);

impl Censuses {
    pub(crate) fn of(&self, login: &SharedLogin) -> Rc<Census> {
        let database = login.names().database;
        let mut all = self.0.borrow_mut();
        let census = all.entry(database).or_insert_with_key(|name| {
            Rc::new(Census {
                database: name.as_str().into(),
                until: Cell::new(None),
                found: RefCell::new(Found::Unknown),
                told: RefCell::default(),
            })
        });
        Rc::clone(census)
    }
}

/// What a database has answered last.
pub(crate) struct Census {
    database: Box<str>,
    until: Cell<Option<Instant>>,
    found: RefCell<Found>,
    /// Name that was logged last.
    told: RefCell<Box<str>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Unknown,
    Nothing,
    /// Name of what may leave something.
    One(Box<str>),
}

impl Found {
    /// Finding in the body of a DataRow.
    pub(crate) fn of(row: &[u8]) -> Self {
        let name = backend::first_column(row).unwrap_or_default();
        Self::One(String::from_utf8_lossy(name).into())
    }
}

impl Census {
    /// Whether what has only read has left nothing.
    pub(crate) fn is_quiet(&self) -> bool {
        self.is_in_force() && *self.found.borrow() == Found::Nothing
    }

    fn is_in_force(&self) -> bool {
        let until = self.until.get();
        until.is_some_and(|until| Instant::now() < until)
    }

    /// Whether the next reset is to ask.
    pub(crate) fn is_due(&self) -> bool {
        !self.is_in_force()
    }

    /// Whether it is to be asked for. Until [`Self::note`], or for its time if there is no answer, nothing is quiet.
    pub(crate) fn begin(&self) -> bool {
        let is_due = self.is_due();
        if is_due {
            self.found.replace(Found::Unknown);
            self.until.set(Some(Instant::now() + COUNTS_FOR));
        }
        is_due
    }

    pub(crate) fn note(&self, found: Found) {
        if let Found::One(name) = &found
            && self.told.replace(name.clone()) != *name
        {
            tracing::info!(
                database = &*self.database,
                leftover = &**name,
                "server connections are reset after each client, because something in the database may leave a trace"
            );
        }
        self.found.replace(found);
    }
}
