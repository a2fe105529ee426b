//! Names of statements for logs and errors, and which statements may commit before they complete.

use pg_query::NodeEnum;
use pg_query::protobuf::{
    AlterTableStmt, AlterTableType, ObjectType, TransactionStmt, TransactionStmtKind,
};

/// Name of a statement: its command tag, if it has one.
#[expect(clippy::too_many_lines, reason = "a table")]
pub(crate) fn name(node: &NodeEnum) -> &'static str {
    use NodeEnum as N;
    match node {
        N::SelectStmt(_) => "SELECT",
        N::InsertStmt(_) => "INSERT",
        N::UpdateStmt(_) => "UPDATE",
        N::DeleteStmt(_) => "DELETE",
        N::MergeStmt(_) => "MERGE",
        N::TransactionStmt(_) => "TRANSACTION",
        N::VariableSetStmt(_) => "SET",
        N::VariableShowStmt(_) => "SHOW",
        N::ExplainStmt(_) => "EXPLAIN",
        N::CopyStmt(_) => "COPY",
        N::DeclareCursorStmt(_) => "DECLARE CURSOR",
        N::FetchStmt(fetch) if fetch.ismove => "MOVE",
        N::FetchStmt(_) => "FETCH",
        N::ClosePortalStmt(_) => "CLOSE CURSOR",
        N::PrepareStmt(_) => "PREPARE",
        N::ExecuteStmt(_) => "EXECUTE",
        N::DeallocateStmt(_) => "DEALLOCATE",
        N::DiscardStmt(_) => "DISCARD",
        N::ListenStmt(_) => "LISTEN",
        N::UnlistenStmt(_) => "UNLISTEN",
        N::NotifyStmt(_) => "NOTIFY",
        N::LockStmt(_) => "LOCK TABLE",
        N::ConstraintsSetStmt(_) => "SET CONSTRAINTS",
        N::DoStmt(_) => "DO",
        N::CallStmt(_) => "CALL",
        N::VacuumStmt(vacuum) if vacuum.is_vacuumcmd => "VACUUM",
        N::VacuumStmt(_) => "ANALYZE",
        N::ClusterStmt(_) => "CLUSTER",
        N::ReindexStmt(_) => "REINDEX",
        N::IndexStmt(_) => "CREATE INDEX",
        N::TruncateStmt(_) => "TRUNCATE TABLE",
        N::CheckPointStmt(_) => "CHECKPOINT",
        N::LoadStmt(_) => "LOAD",
        N::RefreshMatViewStmt(_) => "REFRESH MATERIALIZED VIEW",
        N::CreateTableAsStmt(_) => "CREATE TABLE AS",
        N::AlterSystemStmt(_) => "ALTER SYSTEM",
        N::GrantStmt(grant) if !grant.is_grant => "REVOKE",
        N::GrantStmt(_) => "GRANT",
        N::GrantRoleStmt(grant) if !grant.is_grant => "REVOKE ROLE",
        N::GrantRoleStmt(_) => "GRANT ROLE",
        N::CommentStmt(_) => "COMMENT",
        N::SecLabelStmt(_) => "SECURITY LABEL",
        N::ImportForeignSchemaStmt(_) => "IMPORT FOREIGN SCHEMA",
        N::ReassignOwnedStmt(_) => "REASSIGN OWNED",
        N::AlterTableStmt(_) => "ALTER TABLE",
        N::AlterRoleStmt(_) | N::AlterRoleSetStmt(_) => "ALTER ROLE",
        N::AlterDatabaseStmt(_)
        | N::AlterDatabaseSetStmt(_)
        | N::AlterDatabaseRefreshCollStmt(_) => "ALTER DATABASE",
        N::AlterSubscriptionStmt(_) => "ALTER SUBSCRIPTION",
        N::CreatedbStmt(_) => "CREATE DATABASE",
        N::CreateStmt(_) | N::CreateForeignTableStmt(_) => "CREATE TABLE",
        N::CreateSubscriptionStmt(_) => "CREATE SUBSCRIPTION",
        N::CreateTableSpaceStmt(_) => "CREATE TABLESPACE",
        N::CreateFunctionStmt(_) => "CREATE FUNCTION",
        N::CreateTrigStmt(_) | N::CreateEventTrigStmt(_) => "CREATE TRIGGER",
        N::CreateSeqStmt(_) => "CREATE SEQUENCE",
        N::CreateSchemaStmt(_) => "CREATE SCHEMA",
        N::CreateRoleStmt(_) => "CREATE ROLE",
        N::CreateExtensionStmt(_) => "CREATE EXTENSION",
        N::ViewStmt(_) => "CREATE VIEW",
        N::RuleStmt(_) => "CREATE RULE",
        N::DropdbStmt(_) => "DROP DATABASE",
        N::DropTableSpaceStmt(_) => "DROP TABLESPACE",
        N::DropSubscriptionStmt(_) => "DROP SUBSCRIPTION",
        N::DropRoleStmt(_) => "DROP ROLE",
        N::DropOwnedStmt(_) => "DROP OWNED",
        N::DropStmt(_) => "DROP",
        N::AlterSeqStmt(_) => "ALTER SEQUENCE",
        N::AlterFunctionStmt(_) => "ALTER FUNCTION",
        N::AlterEnumStmt(_) | N::AlterTypeStmt(_) => "ALTER TYPE",
        N::RenameStmt(_) | N::AlterOwnerStmt(_) | N::AlterObjectSchemaStmt(_) => "ALTER",
        N::CompositeTypeStmt(_) | N::CreateEnumStmt(_) | N::CreateRangeStmt(_) => "CREATE TYPE",
        N::DefineStmt(_) | N::CreateDomainStmt(_) => "CREATE",
        _ => "DDL",
    }
}

/// Whether a write may commit before it completes. Lists the statements that cannot.
pub(crate) fn may_commit_inside(node: &NodeEnum) -> bool {
    use NodeEnum as N;
    let stays = match node {
        N::SelectStmt(_)
        | N::InsertStmt(_)
        | N::UpdateStmt(_)
        | N::DeleteStmt(_)
        | N::MergeStmt(_)
        | N::VariableSetStmt(_)
        | N::ExplainStmt(_)
        | N::DeclareCursorStmt(_)
        // CALL inside EXECUTE may not end a transaction: PostgreSQL does not run it at the top level.
        | N::PrepareStmt(_)
        | N::ExecuteStmt(_)
        | N::NotifyStmt(_)
        | N::LockStmt(_)
        | N::TruncateStmt(_)
        | N::RefreshMatViewStmt(_)
        | N::CreateTableAsStmt(_)
        | N::GrantStmt(_)
        | N::GrantRoleStmt(_)
        | N::CommentStmt(_)
        | N::SecLabelStmt(_)
        | N::AlterRoleStmt(_)
        | N::AlterRoleSetStmt(_)
        | N::AlterDatabaseSetStmt(_)
        | N::CreateStmt(_)
        | N::CreateFunctionStmt(_)
        | N::CreateTrigStmt(_)
        | N::CreateSeqStmt(_)
        | N::CreateSchemaStmt(_)
        | N::CreateRoleStmt(_)
        | N::ViewStmt(_)
        | N::RuleStmt(_)
        | N::DropRoleStmt(_)
        | N::AlterSeqStmt(_)
        | N::AlterFunctionStmt(_)
        | N::AlterEnumStmt(_)
        | N::RenameStmt(_)
        | N::AlterOwnerStmt(_)
        | N::AlterObjectSchemaStmt(_)
        | N::CompositeTypeStmt(_)
        | N::CreateEnumStmt(_)
        | N::CreateDomainStmt(_) => true,
        N::TransactionStmt(transaction) => !ends_a_prepared_one(transaction),
        // COPY data arrives in later messages; the work is committed after the last.
        N::CopyStmt(copy) => copy.filename.is_empty(),
        N::IndexStmt(index) => !index.concurrent,
        N::DropStmt(drop) => {
            !(drop.concurrent && drop.remove_type == ObjectType::ObjectIndex as i32)
        }
        N::AlterTableStmt(alter) => !detaches_concurrently(alter),
        _ => false,
    };
    !stays
}

/// ALTER TABLE .. DETACH PARTITION .. CONCURRENTLY runs in two transactions.
fn detaches_concurrently(alter: &AlterTableStmt) -> bool {
    alter.cmds.iter().any(|command| match &command.node {
        Some(NodeEnum::AlterTableCmd(command)) => {
            command.subtype == AlterTableType::AtDetachPartition as i32
                || command.subtype == AlterTableType::AtDetachPartitionFinalize as i32
        }
        _ => true,
    })
}

/// COMMIT PREPARED takes effect at once, whatever happens to the statements after it.
fn ends_a_prepared_one(transaction: &TransactionStmt) -> bool {
    transaction.kind == TransactionStmtKind::TransStmtCommitPrepared as i32
        || transaction.kind == TransactionStmtKind::TransStmtRollbackPrepared as i32
}
