//! Checks that the objects pgpalisade uses in a database belong to its role. A role that can create an object used by
//! another role's statement runs code as that role: by a trigger, rule, policy, default, check, index, domain, view
//! or function (<https://www.postgresql.org/docs/current/ddl-schemas.html#DDL-SCHEMAS-PATTERNS>).
//!
//! So names without a schema mean PostgreSQL's own ([`FIRST_STATEMENTS`]), and a transaction locks the tables and
//! functions it uses, then checks their owners. A ROW EXCLUSIVE lock keeps out every statement that would add a trigger
//! or the like (<https://www.postgresql.org/docs/current/explicit-locking.html#LOCKING-TABLES>).

use std::fmt;

use tokio_postgres::{Error, Row};

macro_rules! no_timeouts {
    () => {
        "SELECT pg_catalog.set_config('transaction_timeout', '0', false) \
            WHERE pg_catalog.current_setting('transaction_timeout', true) OPERATOR(pg_catalog.<>) '0'; \
         SELECT pg_catalog.set_config('idle_session_timeout', '0', false) \
            WHERE pg_catalog.current_setting('idle_session_timeout', true) OPERATOR(pg_catalog.<>) '0'"
    };
}

/// Frees a session of timeouts that the owner of the database may have set for it. Older servers lack them.
pub const NO_TIMEOUTS: &str = no_timeouts!();

/// First statements of a session. PostgreSQL prefers an operator or function with the exact argument types, from any
/// schema of the path, so its own schema must be the only one. A policy that hides rows is an error. The two others
/// change how defaults and checks are shown, and what a backslash in a string means.
pub const FIRST_STATEMENTS: &str = concat!(
    "SET search_path = pg_catalog, pg_temp; ",
    no_timeouts!(),
    "; SET row_security = off; SET quote_all_identifiers = off; SET standard_conforming_strings = on"
);

/// Query with `@schema@`, `@tables@` and `@expressions@`: one row for each foreign object, with its owner. Only
/// expressions of our own tables are shown, because that locks the table.
const QUESTION: &str = include_str!("owned.sql");

/// Tables and functions of a schema.
#[derive(Debug)]
pub struct Objects {
    /// Name, which needs no quoting.
    pub schema: &'static str,
    /// Its tables.
    pub tables: &'static [&'static str],
    /// Defaults and checks of the tables, as PostgreSQL shows them.
    pub expressions: &'static [&'static str],
    /// Advice to an administrator who finds foreign objects.
    pub advice: &'static str,
}

impl Objects {
    /// Query for foreign objects, for [`Strange::read`].
    #[must_use]
    pub fn question(&self) -> String {
        // No name or expression has a quote or a comma.
        let array = |all: &[&str]| format!("'{{{}}}'", all.join(","));
        QUESTION
            .replace("@schema@", self.schema)
            .replace("@tables@", &array(self.tables))
            .replace("@expressions@", &array(self.expressions))
    }

    /// Statement that fails if it finds a foreign object, so that its transaction stops. To be sent after the locks.
    #[must_use]
    pub fn guard(&self) -> String {
        format!(
            "SELECT 1 / (NOT EXISTS ({}))::pg_catalog.int4",
            self.question()
        )
    }

    /// Prepares [`PREPARED_GUARD`] for a session, since planning it takes some milliseconds.
    #[must_use]
    pub fn prepare_guard(&self) -> String {
        format!("PREPARE pgpalisade_guard AS {}", self.guard())
    }
}

/// As [`Objects::guard`], in a session that has prepared it.
pub const PREPARED_GUARD: &str = "EXECUTE pgpalisade_guard";

/// Foreign objects, or ours with something attached that could run foreign code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Strange {
    found: Vec<String>,
    advice: &'static str,
}

impl Strange {
    /// Answer to [`Objects::question`]. `None`: no foreign object.
    ///
    /// # Errors
    ///
    /// An answer of another form.
    pub fn read(objects: &Objects, rows: &[Row]) -> Result<Option<Self>, Error> {
        let found = |row: &Row| {
            let (what, owner): (&str, &str) = (row.try_get(0)?, row.try_get(1)?);
            // Others chose these names.
            Ok(format!("{what} (role {owner})").escape_debug().to_string())
        };
        let found: Vec<String> = rows.iter().map(found).collect::<Result<_, _>>()?;
        let advice = objects.advice;
        Ok((!found.is_empty()).then_some(Self { found, advice }))
    }
}

const NAMED: usize = 5;

impl fmt::Display for Strange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named: Vec<&str> = self.found.iter().take(NAMED).map(String::as_str).collect();
        write!(
            f,
            "not used, because it could run foreign code with the rights of pgpalisade's role: {}",
            named.join(", ")
        )?;
        if let Some(more @ 1..) = self.found.len().checked_sub(NAMED) {
            write!(f, " and {more} more")?;
        }
        write!(f, "; {}", self.advice)
    }
}

impl std::error::Error for Strange {}
