//! SQL prepared statements: PREPARE, EXECUTE, DEALLOCATE.

use std::sync::Arc;

use pg_query::protobuf::{DeallocateStmt, ExecuteStmt, PrepareStmt};

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
    let control = Control::Execute {
        name: execute.name.as_str().into(),
    };
    Ok(Found {
        controls: vec![control],
        ..examine(&execute.params, TableUse::Read)?
    })
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
