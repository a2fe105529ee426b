//! The workload, its protocol, and every statement of the bench.
//!
//! All statements are constants, and those that write name only tables of `pg_temp`: the bench cannot change the
//! database.

use clap::ValueEnum;
use serde::Serialize;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Workload {
    /// SELECT of a parameter; reads no table
    Select,
    /// UPDATE of the one row of a temporary table, which each session creates for itself; needs a token
    Write,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// One message, with the value in the text
    Simple,
    /// Parsed each time, with a parameter
    Extended,
    /// Parsed once per session, then executed by name with a parameter
    Prepared,
}

/// Once with the value in the text, once with a parameter.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LoadStatement {
    pub(crate) literal: &'static str,
    /// `$1` is an integer.
    pub(crate) parameterised: &'static str,
}

impl Workload {
    /// Sent once, before the measurement.
    pub(crate) const fn preparation(self) -> &'static [&'static str] {
        match self {
            Self::Select => &[],
            Self::Write => &[CREATE_TABLE, FILL_TABLE],
        }
    }

    pub(crate) const fn statement(self) -> LoadStatement {
        match self {
            Self::Select => LoadStatement {
                literal: "SELECT 1::pg_catalog.int4",
                parameterised: "SELECT $1::pg_catalog.int4",
            },
            Self::Write => LoadStatement {
                literal: "UPDATE pg_temp.pgpalisade_bench SET n = n + 1",
                parameterised: "UPDATE pg_temp.pgpalisade_bench SET n = n + $1",
            },
        }
    }
}

/// Rows survive COMMIT, since every statement is a transaction.
const CREATE_TABLE: &str =
    "CREATE TEMPORARY TABLE pg_temp.pgpalisade_bench (n pg_catalog.int8) ON COMMIT PRESERVE ROWS";
const FILL_TABLE: &str = "INSERT INTO pg_temp.pgpalisade_bench (n) VALUES (0)";

/// The server's version, its start, and whether it is a standby.
pub(crate) const SERVER: &str = "SELECT pg_catalog.current_setting('server_version'), \
    (extract(epoch FROM pg_catalog.pg_postmaster_start_time()) OPERATOR(pg_catalog.*) 1000000)::pg_catalog.int8, \
    pg_catalog.pg_is_in_recovery()";
/// Only the proxy knows the setting.
pub(crate) const STATUS: &str = "SHOW fencing.status";
/// The scope of a bare number.
pub(crate) const SCOPE: &str = "SHOW fencing.scope";
/// Empty before the first token of that scope.
pub(crate) const MARK: &str = "SHOW fencing.mark";

#[cfg(test)]
mod tests {
    use pgpalisade_policies::{Class, ObjectName, Tables, TextEncoding, classify};

    use super::*;

    /// By the fence's own classifier; empty for a read.
    fn written(sql: &str) -> Vec<String> {
        let verdict = classify(sql.as_bytes(), TextEncoding::Utf8);
        assert_eq!(verdict.statements.len(), 1, "{sql}");
        let effects = &verdict.statements[0].effects;
        let schema = |name: &ObjectName| name.schema.as_deref().unwrap_or("?").to_owned();
        match (effects.class, &effects.writes) {
            (Class::Read, _) => Vec::new(),
            (Class::Write, Tables::Named(names)) => {
                assert!(
                    !names.is_empty(),
                    "{sql} writes, and the classifier sees no table"
                );
                let full = |name: &ObjectName| format!("{}.{}", schema(name), name.name);
                names.iter().map(full).collect()
            }
            (Class::Write, _) => vec!["unknown".to_owned()],
        }
    }

    #[test]
    fn nothing_but_its_own_temporary_table_is_written() {
        let both = [Workload::Select, Workload::Write];
        let sent = both.iter().flat_map(|workload| {
            let statement = workload.statement();
            let measured = [statement.literal, statement.parameterised];
            [workload.preparation(), &measured].concat()
        });
        for sql in sent {
            for table in written(sql) {
                assert_eq!(table, "pg_temp.pgpalisade_bench", "{sql}");
            }
        }
        for sql in [SERVER, STATUS, SCOPE, MARK] {
            assert!(written(sql).is_empty(), "{sql}");
        }
    }

    #[test]
    fn only_the_write_workload_writes() {
        let select = Workload::Select.statement();
        assert!(written(select.literal).is_empty() && written(select.parameterised).is_empty());
        let write = Workload::Write.statement();
        for sql in [write.literal, write.parameterised, CREATE_TABLE, FILL_TABLE] {
            assert!(!written(sql).is_empty(), "{sql}");
        }
    }
}
