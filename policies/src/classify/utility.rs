//! Statements that are neither queries nor control: the tables that they write, lock or alter, and their category.
//!
//! A kind that is not listed may write any table, and counts as DDL.

use pg_query::NodeEnum;
use pg_query::protobuf::{
    DropBehavior, DropStmt, GrantStmt, GrantTargetType, Node, ObjectType, ReindexObjectType,
    RenameStmt,
};

use crate::effects::{Category, Tables};
use crate::found::Found;
use crate::kinds;
use crate::object_name::ObjectName;
use crate::walk::{TableUse, UnknownShape, examine};
use crate::write_reason::WriteReason;

pub(super) fn look(node: &NodeEnum) -> Result<Found, UnknownShape> {
    let found = examine(node, TableUse::Write)?;
    let (writes, reads) = match touched(node) {
        // A kind that names tables but here names none: plain VACUUM.
        Touched::Named if found.writes == Tables::none() => (Tables::unknown(), Tables::unknown()),
        Touched::Named => {
            let new = Tables::named(new_name(node).into_iter().collect());
            (found.writes.and(new), found.reads)
        }
        Touched::Seen => (found.writes.and(found.reads.clone()), found.reads),
        Touched::Objects(names) => (Tables::named(names), found.reads),
        Touched::NoTable => (Tables::none(), Tables::none()),
        Touched::AndOthers => (found.writes.and_others(), found.reads.and_others()),
        Touched::Unknown => (Tables::unknown(), Tables::unknown()),
    };
    // CASCADE also reaches unknown objects that depend on the tables.
    let (writes, reads) = if cascades(node) {
        (writes.and_others(), reads.and_others())
    } else {
        (writes, reads)
    };
    Ok(Found {
        why: Some(WriteReason::Kind(kinds::name(node))),
        category: Some(category(node)),
        writes,
        reads,
        ..found
    })
}

/// Way in which a statement names the tables that it writes, locks or alters.
enum Touched {
    /// By their names in it.
    Named,
    /// By their names in it. A view counts as a write to the tables that it shows: naming the view can write them.
    /// <https://www.postgresql.org/docs/current/sql-createview.html#SQL-CREATEVIEW-UPDATABLE-VIEWS>
    Seen,
    /// By these names of objects.
    Objects(Vec<ObjectName>),
    /// No table is touched.
    NoTable,
    /// By their names in it, and others.
    AndOthers,
    /// The text does not say, or names another object.
    Unknown,
}

fn touched(node: &NodeEnum) -> Touched {
    use NodeEnum as N;
    match node {
        N::NotifyStmt(_) => Touched::NoTable,
        N::AlterTableStmt(alter) => of_table_like(alter.objtype),
        N::RenameStmt(rename) => rename_of(rename),
        N::AlterObjectSchemaStmt(alter) => of_table_like(alter.object_type),
        N::GrantStmt(grant) => grant_on(grant),
        N::ReindexStmt(reindex) if reindex.kind == ReindexObjectType::ReindexObjectTable as i32 => {
            Touched::Named
        }
        N::ReindexStmt(_) | N::CompositeTypeStmt(_) => Touched::Unknown,
        N::DropStmt(drop) => dropped(drop),
        N::CommentStmt(comment) => objects(comment.objtype, comment.object.as_deref()),
        N::SecLabelStmt(label) => objects(label.objtype, label.object.as_deref()),
        // A rule "_RETURN" makes a view up to PostgreSQL 15.
        N::ViewStmt(_) | N::RuleStmt(_) => Touched::Seen,
        N::TruncateStmt(_)
        | N::CreateStmt(_)
        | N::CreateForeignTableStmt(_)
        | N::CreateTableAsStmt(_)
        | N::IndexStmt(_)
        | N::CreateTrigStmt(_)
        | N::CreatePolicyStmt(_)
        | N::AlterPolicyStmt(_)
        | N::CreateStatsStmt(_)
        | N::CreateSeqStmt(_)
        | N::AlterSeqStmt(_)
        | N::VacuumStmt(_)
        | N::ClusterStmt(_)
        | N::RefreshMatViewStmt(_) => Touched::Named,
        _ => Touched::AndOthers,
    }
}

/// The new name of a table. It counts as written, as it would if the table were created under it.
fn new_name(node: &NodeEnum) -> Option<ObjectName> {
    let full = |schema: &str, name: &str| ObjectName {
        schema: (!schema.is_empty()).then(|| schema.into()),
        name: name.into(),
    };
    match node {
        NodeEnum::RenameStmt(rename) if is_table_like(rename.rename_type) => {
            let old = rename.relation.as_ref()?;
            Some(full(&old.schemaname, &rename.newname))
        }
        NodeEnum::AlterObjectSchemaStmt(alter) => {
            let old = alter.relation.as_ref()?;
            Some(full(&alter.newschema, &old.relname))
        }
        _ => None,
    }
}

fn cascades(node: &NodeEnum) -> bool {
    let is_cascade = |behavior: i32| behavior == DropBehavior::DropCascade as i32;
    match node {
        NodeEnum::TruncateStmt(truncate) => is_cascade(truncate.behavior),
        NodeEnum::DropStmt(drop) => is_cascade(drop.behavior),
        NodeEnum::AlterTableStmt(alter) => alter.cmds.iter().any(|command| match &command.node {
            Some(NodeEnum::AlterTableCmd(command)) => is_cascade(command.behavior),
            _ => true,
        }),
        _ => false,
    }
}

/// Whether policies know such an object by its name as a table. An index does not count: the text does not name its
/// table.
fn is_table_like(object_type: i32) -> bool {
    use ObjectType as O;
    matches!(
        O::try_from(object_type),
        Ok(O::ObjectTable
            | O::ObjectForeignTable
            | O::ObjectView
            | O::ObjectMatview
            | O::ObjectSequence)
    )
}

/// Whether such an object is named together with its table, the table first.
fn is_part_of_table(object_type: i32) -> bool {
    use ObjectType as O;
    matches!(
        O::try_from(object_type),
        Ok(O::ObjectColumn
            | O::ObjectTabconstraint
            | O::ObjectTrigger
            | O::ObjectRule
            | O::ObjectPolicy)
    )
}

fn of_table_like(object_type: i32) -> Touched {
    if is_table_like(object_type) {
        Touched::Named
    } else {
        Touched::Unknown
    }
}

/// Renaming a part of a table alters the table. An attribute belongs to a type, which many tables may use.
fn rename_of(rename: &RenameStmt) -> Touched {
    if is_part_of_table(rename.rename_type) && rename.rename_type != ObjectType::ObjectColumn as i32
    {
        Touched::Named
    } else if rename.rename_type == ObjectType::ObjectColumn as i32 {
        of_table_like(rename.relation_type)
    } else {
        of_table_like(rename.rename_type)
    }
}

fn grant_on(grant: &GrantStmt) -> Touched {
    if grant.targtype == GrantTargetType::AclTargetObject as i32 {
        of_table_like(grant.objtype)
    } else {
        Touched::Unknown
    }
}

fn dropped(drop: &DropStmt) -> Touched {
    let names = drop
        .objects
        .iter()
        .map(|object| object_name(drop.remove_type, object))
        .collect::<Option<Vec<_>>>();
    names
        .filter(|names| !names.is_empty())
        .map_or(Touched::Unknown, Touched::Objects)
}

fn objects(object_type: i32, object: Option<&Node>) -> Touched {
    object
        .and_then(|object| object_name(object_type, object))
        .map_or(Touched::Unknown, |name| Touched::Objects(vec![name]))
}

/// The table that an object is or belongs to.
fn object_name(object_type: i32, object: &Node) -> Option<ObjectName> {
    let Some(NodeEnum::List(list)) = &object.node else {
        return None;
    };
    let names = if is_table_like(object_type) {
        list.items.as_slice()
    } else if is_part_of_table(object_type) {
        list.items.split_last()?.1
    } else {
        return None;
    };
    let text = |node: &Node| match &node.node {
        Some(NodeEnum::String(text)) => Some(Box::from(text.sval.as_str())),
        _ => None,
    };
    // The database may precede the schema.
    let (schema, name) = match names {
        [name] => (None, name),
        [schema, name] | [_, schema, name] => (Some(text(schema)?), name),
        _ => return None,
    };
    Some(ObjectName {
        schema,
        name: text(name)?,
    })
}

fn category(node: &NodeEnum) -> Category {
    use NodeEnum as N;
    match node {
        N::TruncateStmt(_) => Category::Truncate,
        N::DoStmt(_) => Category::Do,
        N::CallStmt(_) => Category::Call,
        N::NotifyStmt(_) => Category::Notify,
        N::VacuumStmt(_)
        | N::ClusterStmt(_)
        | N::ReindexStmt(_)
        | N::RefreshMatViewStmt(_)
        | N::CheckPointStmt(_) => Category::Maintenance,
        N::CreateRoleStmt(_)
        | N::AlterRoleStmt(_)
        | N::AlterRoleSetStmt(_)
        | N::DropRoleStmt(_)
        | N::GrantRoleStmt(_) => Category::Roles,
        N::CreatedbStmt(_)
        | N::AlterDatabaseStmt(_)
        | N::AlterDatabaseSetStmt(_)
        | N::AlterDatabaseRefreshCollStmt(_)
        | N::DropdbStmt(_)
        | N::CreateTableSpaceStmt(_)
        | N::AlterTableSpaceOptionsStmt(_)
        | N::DropTableSpaceStmt(_)
        | N::AlterSystemStmt(_)
        | N::LoadStmt(_) => Category::Server,
        N::RenameStmt(rename) => of_object(rename.rename_type),
        N::AlterOwnerStmt(alter) => of_object(alter.object_type),
        N::GrantStmt(grant) => of_object(grant.objtype),
        N::CommentStmt(comment) => of_object(comment.objtype),
        N::SecLabelStmt(label) => of_object(label.objtype),
        _ => Category::Ddl,
    }
}

/// Roles, databases and tablespaces belong to the whole server, whatever is done to them.
fn of_object(object_type: i32) -> Category {
    use ObjectType as O;
    match O::try_from(object_type) {
        Ok(O::ObjectRole) => Category::Roles,
        Ok(O::ObjectDatabase | O::ObjectTablespace | O::ObjectParameterAcl) => Category::Server,
        _ => Category::Ddl,
    }
}
