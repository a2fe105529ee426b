//! Effects of one statement, with an allow-list of reads by kind.

use std::ops::Range;

use pg_query::protobuf::{DiscardMode, LockStmt, Node, RawStmt, SelectStmt, VariableSetStmt};
use pg_query::{LockMode, NodeEnum};

use super::{block, copy, explain, names, transaction, utility};
use crate::analysis::Statement;
use crate::control::Control;
use crate::effects::{ANY_SETTING, Category, Class, Computes, Tables};
use crate::found::Found;
use crate::kinds;
use crate::leftover;
use crate::set_config;
use crate::settings;
use crate::walk::{TableUse, UnknownShape, examine, examine_query};
use crate::write_reason::WriteReason;

pub(super) fn statement(raw: &RawStmt, text: &str) -> Result<Statement, UnknownShape> {
    let node = raw.stmt.as_ref().and_then(|node| node.node.as_ref());
    let node = node.ok_or(UnknownShape)?;
    let mut found = look(node)?;
    let kind = found.kind.unwrap_or_else(|| kinds::name(node));
    let mut controls = std::mem::take(&mut found.controls);
    controls.extend(found.mistake.take().map(Control::Mistake));
    if found.why == Some(WriteReason::ComputedSetting)
        && let Some(setting) = text
            .get(place(raw, text))
            .and_then(set_config::set_by_pg_dump)
    {
        found.why = None;
        found.settings = vec![setting.into()];
    }
    let why = found.why.clone();
    let computes = match found.computes {
        Computes::Anything if only_steers(node, kind, &controls) => Computes::Steers,
        computes => computes,
    };
    let effects = found.effects();
    let leaves = leftover::of(node, &effects, &controls);
    let assigns = leftover::assignment(node, place(raw, text)).filter(|_| controls.is_empty());
    let may_commit_inside = effects.class == Class::Write && kinds::may_commit_inside(node);
    Ok(Statement {
        effects,
        kind,
        controls: controls.into(),
        may_commit_inside,
        why,
        computes,
        leaves,
        assigns,
    })
}

/// Where a statement is in its text.
fn place(raw: &RawStmt, text: &str) -> Range<usize> {
    let start = usize::try_from(raw.stmt_location).unwrap_or_default();
    let len = usize::try_from(raw.stmt_len).unwrap_or_default();
    // 0: the rest.
    start..if len == 0 { text.len() } else { start + len }
}

/// Whether a statement only steers the session.
fn only_steers(node: &NodeEnum, kind: &str, controls: &[Control]) -> bool {
    match kind {
        "BEGIN" | "COMMIT" | "ROLLBACK" | "SAVEPOINT" | "RELEASE" | "ROLLBACK TO" | "SET"
        | "SHOW" | "DISCARD" | "DEALLOCATE" | "LISTEN" | "UNLISTEN" | "CLOSE CURSOR"
        | "LOCK TABLE" => true,
        // SELECT has these controls only if it is nothing but set_config of literals.
        "SELECT" if controls.iter().any(Control::is_fencing) => {
            matches!(node, NodeEnum::SelectStmt(select) if set_config::is_certain(select))
        }
        _ => false,
    }
}

/// A statement that is not named here is a write.
pub(super) fn look(node: &NodeEnum) -> Result<Found, UnknownShape> {
    use NodeEnum as N;
    Ok(match node {
        N::SelectStmt(select) => look_select(select)?,
        N::InsertStmt(_) | N::UpdateStmt(_) | N::DeleteStmt(_) | N::MergeStmt(_) => {
            examine(node, TableUse::Read)?.because(Some(WriteReason::Kind(kinds::name(node))))
        }
        N::TransactionStmt(transaction) => transaction::look(transaction),
        N::VariableSetStmt(set) => settings::variable_set(set).changing(settings::names(set)),
        N::VariableShowStmt(show) => {
            settings::show(&show.name).map_or_else(Found::nothing, Found::control)
        }
        N::ExplainStmt(explain) => explain::look(explain)?,
        N::CopyStmt(copy) => copy::look(copy)?,
        N::DeclareCursorStmt(declare) => look_query(declare.query.as_deref())?,
        N::FetchStmt(fetch) => Found {
            reads: Tables::unknown(),
            ..Found::control(Control::Fetch {
                portal: fetch.portalname.as_str().into(),
            })
        },
        N::PrepareStmt(prepare) => names::prepare(prepare)?,
        N::ExecuteStmt(execute) => names::execute(execute)?,
        N::DeallocateStmt(deallocate) => names::deallocate(deallocate),
        N::DiscardStmt(discard) if discard.target == DiscardMode::DiscardAll as i32 => {
            Found::control(Control::DiscardAll).changing(vec![ANY_SETTING.into()])
        }
        // DISCARD TEMP drops only this session's tables. PostgreSQL also allows it in a read-only transaction.
        N::DiscardStmt(_)
        | N::ClosePortalStmt(_)
        | N::ListenStmt(_)
        | N::UnlistenStmt(_)
        | N::ConstraintsSetStmt(_) => Found::nothing(),
        N::LockStmt(lock) => look_lock(lock)?,
        N::DoStmt(do_block) => Found {
            mistake: block::mistake(do_block),
            ..utility::look(node)?
        },
        N::AlterRoleSetStmt(alter) => set_elsewhere(node, alter.setstmt.as_ref())?,
        N::AlterDatabaseSetStmt(alter) => set_elsewhere(node, alter.setstmt.as_ref())?,
        N::AlterSystemStmt(alter) => set_elsewhere(node, alter.setstmt.as_ref())?,
        N::CreateTableAsStmt(create) => Found {
            controls: names::executed(create.query.as_deref()),
            ..utility::look(node)?
        },
        other => utility::look(other)?,
    })
}

fn look_select(select: &SelectStmt) -> Result<Found, UnknownShape> {
    let controls = set_config::of_select(select);
    let found = examine_query(select)?;
    Ok(Found {
        // A call that declares a token is no mistake.
        mistake: found.mistake.filter(|_| controls.is_empty()),
        controls,
        ..found
    })
}

/// A SET inside another statement.
fn set_elsewhere(node: &NodeEnum, set: Option<&VariableSetStmt>) -> Result<Found, UnknownShape> {
    Ok(Found {
        mistake: set.and_then(settings::elsewhere),
        ..utility::look(node)?
    })
}

fn look_lock(lock: &LockStmt) -> Result<Found, UnknownShape> {
    let found = if lock.mode == LockMode::AccessShareLock as i32 {
        examine(lock, TableUse::Read)?
    } else {
        examine(lock, TableUse::Write)?.because(Some(WriteReason::LockMode))
    };
    Ok(found.in_category(Category::Lock))
}

/// A query inside another statement: only SELECT is a read. It cannot declare a token.
pub(super) fn look_query(query: Option<&Node>) -> Result<Found, UnknownShape> {
    use NodeEnum as N;
    let query = query
        .and_then(|query| query.node.as_ref())
        .ok_or(UnknownShape)?;
    Ok(match query {
        N::SelectStmt(_) => examine(query, TableUse::Read)?,
        N::InsertStmt(_) | N::UpdateStmt(_) | N::DeleteStmt(_) | N::MergeStmt(_) => {
            examine(query, TableUse::Read)?.because(Some(WriteReason::Contains(kinds::name(query))))
        }
        other => Found::unknown(WriteReason::Contains(kinds::name(other))),
    })
}
