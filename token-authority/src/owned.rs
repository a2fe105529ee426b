//! What pgpalisade uses of a database has to be its own. Whoever can make an object that another role's statement finds
//! runs code as that role: by a trigger, rule, policy, default, check, index, domain, view or function
//! (<https://www.postgresql.org/docs/current/ddl-schemas.html#DDL-SCHEMAS-PATTERNS>).
//!
//! So names without a schema mean PostgreSQL's own ([`NAMES`]), and tables and functions are used in a transaction that
//! has locked them and then looked whose they are. A lock of ROW EXCLUSIVE keeps out every statement that would add a
//! trigger or the like (<https://www.postgresql.org/docs/current/explicit-locking.html#LOCKING-TABLES>).

use std::fmt;

use tokio_postgres::{Error, Row};

/// The first statement of a session. An operator or function of the right argument types would be taken before one of
/// PostgreSQL's own, from any schema of the path; so PostgreSQL's is the only one. If a policy hides rows, that is an
/// error.
pub const NAMES: &str = "SET search_path = pg_catalog, pg_temp; SET row_security = off";

/// The question, with `@schema@`, `@tables@` and `@expressions@`: one row for each thing in the way, and whose it is.
/// It touches none of them. An expression is looked at only if it is one of our tables', since that locks the table.
const QUESTION: &str = include_str!("owned.sql");

/// The tables and functions of a schema.
#[derive(Debug)]
pub struct Objects {
    /// Its name, which needs no quoting.
    pub schema: &'static str,
    /// Its tables.
    pub tables: &'static [&'static str],
    /// Their defaults and checks, as PostgreSQL shows them.
    pub expressions: &'static [&'static str],
    /// What an administrator does when somebody else's are there.
    pub advice: &'static str,
}

impl Objects {
    /// Asks what is in the way, for [`Strange::read`].
    #[must_use]
    pub fn question(&self) -> String {
        // None of the names and expressions has a quote or a comma.
        let array = |all: &[&str]| format!("'{{{}}}'", all.join(","));
        QUESTION
            .replace("@schema@", self.schema)
            .replace("@tables@", &array(self.tables))
            .replace("@expressions@", &array(self.expressions))
    }

    /// Fails if anything is in the way, so that nothing more of its transaction is run. To be sent after the locks.
    #[must_use]
    pub fn guard(&self) -> String {
        format!(
            "SELECT 1 / (NOT EXISTS ({}))::pg_catalog.int4",
            self.question()
        )
    }

    /// Prepares [`PREPARED_GUARD`] for a session: to plan it takes some milliseconds.
    #[must_use]
    pub fn prepare_guard(&self) -> String {
        format!("PREPARE pgpalisade_guard AS {}", self.guard())
    }
}

/// The same as [`Objects::guard`] in a session that has prepared it.
pub const PREPARED_GUARD: &str = "EXECUTE pgpalisade_guard";

/// Somebody else's objects, or ours with something attached that could run somebody else's code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Strange {
    found: Vec<String>,
    advice: &'static str,
}

impl Strange {
    /// The answer to [`Objects::question`]. `None`: nothing is in the way.
    ///
    /// # Errors
    ///
    /// An answer of another form.
    pub fn read(objects: &Objects, rows: &[Row]) -> Result<Option<Self>, Error> {
        let found = |row: &Row| {
            let (what, owner): (&str, &str) = (row.try_get(0)?, row.try_get(1)?);
            // Somebody has chosen these names.
            Ok(format!("{what} (role {owner})").escape_debug().to_string())
        };
        let found: Vec<String> = rows.iter().map(found).collect::<Result<_, _>>()?;
        let advice = objects.advice;
        Ok((!found.is_empty()).then_some(Self { found, advice }))
    }
}

/// So many are named.
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
