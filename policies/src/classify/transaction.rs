//! Transaction control.
//!
//! <https://www.postgresql.org/docs/current/sql-begin.html>

use pg_query::protobuf::{TransactionStmt, TransactionStmtKind};

use crate::control::{Chain, Control};
use crate::effects::Category;
use crate::found::Found;
use crate::settings;
use crate::write_reason::WriteReason;

pub(super) fn look(stmt: &TransactionStmt) -> Found {
    use TransactionStmtKind as K;
    let chain = if stmt.chain { Chain::Yes } else { Chain::No };
    let savepoint = || stmt.savepoint_name.as_str().into();
    match K::try_from(stmt.kind).unwrap_or(K::Undefined) {
        K::TransStmtBegin | K::TransStmtStart => begin(stmt),
        K::TransStmtCommit => Found::control(Control::Commit { chain }).named("COMMIT"),
        K::TransStmtRollback => Found::control(Control::Rollback { chain }).named("ROLLBACK"),
        K::TransStmtSavepoint => Found::control(Control::Savepoint(savepoint())).named("SAVEPOINT"),
        K::TransStmtRelease => Found::control(Control::Release(savepoint())).named("RELEASE"),
        K::TransStmtRollbackTo => {
            Found::control(Control::RollbackTo(savepoint())).named("ROLLBACK TO")
        }
        K::TransStmtPrepare => Found {
            controls: vec![Control::PrepareTransaction],
            ..of_prepared_ones("PREPARE TRANSACTION", Category::PrepareTransaction)
        },
        K::TransStmtCommitPrepared => {
            of_prepared_ones("COMMIT PREPARED", Category::PreparedTransactions)
        }
        K::TransStmtRollbackPrepared => {
            of_prepared_ones("ROLLBACK PREPARED", Category::PreparedTransactions)
        }
        K::Undefined => Found::unknown(WriteReason::Kind("TRANSACTION")),
    }
}

fn begin(stmt: &TransactionStmt) -> Found {
    let modes = settings::transaction_modes(&stmt.options);
    Found::control(Control::Begin { access: modes.last })
        .because(modes.sets_read_write.then_some(WriteReason::SetsReadWrite))
        .changing(settings::mode_names(&stmt.options, ""))
        .named("BEGIN")
}

/// The text does not say what the prepared transaction has written.
fn of_prepared_ones(kind: &'static str, category: Category) -> Found {
    Found::unknown(WriteReason::Kind(kind))
        .in_category(category)
        .named(kind)
}
