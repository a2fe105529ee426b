//! SQL prepared statements: PREPARE, EXECUTE, DEALLOCATE.

use std::sync::Arc;

use pg_query::NodeEnum;
use pg_query::protobuf::{DeallocateStmt, ExecuteStmt, Node, PrepareStmt};

use super::statement::look_query;
use crate::control::Control;
use crate::found::Found;
use crate::walk::{TableUse, UnknownShape, examine};

/// PREPARE itself has no effect on data.
pub(super) fn prepare(prepare: &PrepareStmt) -> Result<Found, UnknownShape> {
    let query = look_query(prepare.query.as_deref())?;
    let mistake = query.mistake.clone();
    let prepare = Found::control(Control::Prepare {
        name: prepare.name.as_str().into(),
        effects: Arc::new(query.effects()),
    });
    Ok(Found { mistake, ..prepare })
}

/// Effects of the arguments. The named statement has its own.
pub(super) fn execute(execute: &ExecuteStmt) -> Result<Found, UnknownShape> {
    Ok(Found {
        controls: vec![by_name(execute)],
        ..examine(&execute.params, TableUse::Read)?
    })
}

/// The EXECUTE of a CREATE TABLE AS.
pub(super) fn executed(query: Option<&Node>) -> Vec<Control> {
    match query.and_then(|query| query.node.as_ref()) {
        Some(NodeEnum::ExecuteStmt(execute)) => vec![by_name(execute)],
        _ => Vec::new(),
    }
}

fn by_name(execute: &ExecuteStmt) -> Control {
    let name = execute.name.as_str().into();
    Control::Execute { name }
}

pub(super) fn deallocate(deallocate: &DeallocateStmt) -> Found {
    Found::control(if deallocate.isall {
        Control::DeallocateAll
    } else {
        Control::Deallocate {
            name: deallocate.name.as_str().into(),
        }
    })
}
