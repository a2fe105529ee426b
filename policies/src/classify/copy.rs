//! COPY in both directions.
//!
//! <https://www.postgresql.org/docs/current/sql-copy.html>

use pg_query::protobuf::CopyStmt;

use super::statement::look_query;
use crate::effects::Category;
use crate::found::Found;
use crate::walk::{TableUse, UnknownShape, examine};
use crate::write_reason::WriteReason;

pub(super) fn look(copy: &CopyStmt) -> Result<Found, UnknownShape> {
    let found = if copy.is_from {
        examine(copy, TableUse::Write)?
            .because(Some(WriteReason::Kind("COPY FROM")))
            .named("COPY FROM")
    } else {
        let found = match copy.query.as_deref() {
            Some(query) => look_query(Some(query))?,
            None => examine(copy, TableUse::Read)?,
        };
        found.named("COPY TO")
    };
    Ok(on_the_server(copy, found))
}

/// Adds effects on the server: a program may do anything, and a written file may be any of the server's.
fn on_the_server(copy: &CopyStmt, found: Found) -> Found {
    let category = match (copy.is_program, copy.filename.is_empty()) {
        (true, _) => Category::CopyProgram,
        (false, false) => Category::CopyFile,
        (false, true) => return found,
    };
    let found = found.in_category(category);
    if copy.is_from && !copy.is_program {
        return found;
    }
    let why = if copy.is_from {
        found.why
    } else {
        Some(WriteReason::CopyToServer)
    };
    Found {
        why,
        writes: found.writes.and_others(),
        ..found
    }
}
