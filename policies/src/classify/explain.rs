//! EXPLAIN, and whether it executes its statement.

use pg_query::NodeEnum;
use pg_query::protobuf::{CreateTableAsStmt, ExplainStmt, Node};

use super::statement::look as look_statement;
use crate::found::Found;
use crate::settings::{Literal, literal, parse_bool};
use crate::walk::UnknownShape;
use crate::write_reason::WriteReason;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Executes {
    Nothing,
    TheStatement,
    NotKnown,
}

pub(super) fn look(explain: &ExplainStmt) -> Result<Found, UnknownShape> {
    let query = explain
        .query
        .as_deref()
        .and_then(|query| query.node.as_ref())
        .ok_or(UnknownShape)?;
    let executes = executes(&explain.options);
    let inner = look_statement(query)?;
    let found = match query {
        // PostgreSQL computes the arguments, also for a plan.
        NodeEnum::ExecuteStmt(_) => inner,
        NodeEnum::CreateTableAsStmt(create) if runs_by_name(create) => inner.inside(),
        _ if executes == Executes::Nothing => planned(inner),
        // A set_config that ANALYZE executes declares no token.
        _ => inner.inside(),
    };
    Ok(match executes {
        Executes::Nothing | Executes::TheStatement => found,
        Executes::NotKnown => Found {
            why: Some(WriteReason::ExplainOption),
            writes: found.writes.and_others(),
            ..found
        },
    }
    .named("EXPLAIN"))
}

fn runs_by_name(create: &CreateTableAsStmt) -> bool {
    let query = create
        .query
        .as_deref()
        .and_then(|query| query.node.as_ref());
    matches!(query, Some(NodeEnum::ExecuteStmt(_)))
}

/// A plan reveals something of all its tables and changes none. Planning may call functions that do not write.
fn planned(found: Found) -> Found {
    Found {
        reads: found.reads.and(found.writes),
        functions: found.functions,
        ..Found::nothing()
    }
}

/// ANALYZE counts unless it is explicitly off, even if a later option switches it off.
/// <https://www.postgresql.org/docs/current/sql-explain.html>
fn executes(options: &[Node]) -> Executes {
    const HARMLESS: [&str; 10] = [
        "verbose",
        "costs",
        "settings",
        "generic_plan",
        "buffers",
        "wal",
        "timing",
        "summary",
        "memory",
        "format",
    ];
    let mut executes = Executes::Nothing;
    for option in options {
        let Some(NodeEnum::DefElem(option)) = &option.node else {
            return Executes::NotKnown;
        };
        let switched_off = match option.arg.as_deref().map(literal) {
            Some(Some(Literal::Boolean(value))) => !value,
            Some(Some(Literal::Integer(0))) => true,
            Some(Some(Literal::Text(text))) => parse_bool(text) == Some(false),
            _ => false,
        };
        match option.defname.as_str() {
            "analyze" if switched_off => {}
            "analyze" => executes = Executes::TheStatement,
            // Needs ANALYZE, and sends the rows nowhere.
            "serialize" => {}
            known if HARMLESS.contains(&known) => {}
            _ => return Executes::NotKnown,
        }
    }
    executes
}
