//! Statements that make temporary objects, whatever else they do.

use pg_query::NodeEnum;
use pg_query::protobuf::{Node, OnCommitAction, RangeVar, SelectStmt, VariableSetStmt};

use crate::set_config;
use crate::settings::{Literal, literal};

const KEPT: i32 = OnCommitAction::OncommitNoop as i32;

/// The schema of temporary objects, or the start of its name.
const TEMPORARY_SCHEMA: &str = "pg_temp";

const SEARCH_PATH: &str = "search_path";

/// Whether a statement makes an object in the schema of temporary ones that outlives its transaction, or has later
/// statements do so.
pub(crate) fn is_made_by(node: &NodeEnum) -> bool {
    use NodeEnum as N;
    match node {
        N::VariableSetStmt(set) => is_made_by_set(set),
        N::CreateStmt(create) => is_temporary(create.relation.as_ref(), create.oncommit),
        N::CreateTableAsStmt(create) => {
            let into = create.into.as_ref();
            into.is_some_and(|into| is_temporary(into.rel.as_ref(), into.on_commit))
        }
        N::SelectStmt(select) => {
            let into = first_arm(select).into_clause.as_ref();
            into.is_some_and(|into| is_temporary(into.rel.as_ref(), into.on_commit))
        }
        N::CreateFunctionStmt(create) => is_temporary_name(&create.funcname),
        N::DefineStmt(define) => is_temporary_name(&define.defnames),
        N::CreateDomainStmt(create) => is_temporary_name(&create.domainname),
        N::CreateEnumStmt(create) => is_temporary_name(&create.type_name),
        N::CreateRangeStmt(create) => is_temporary_name(&create.type_name),
        N::CompositeTypeStmt(create) => is_temporary(create.typevar.as_ref(), KEPT),
        N::CreateForeignTableStmt(create) => {
            let base = create.base_stmt.as_ref();
            base.is_some_and(|base| is_temporary(base.relation.as_ref(), KEPT))
        }
        N::ImportForeignSchemaStmt(import) => import.local_schema.starts_with(TEMPORARY_SCHEMA),
        N::CreateConversionStmt(create) => is_temporary_name(&create.conversion_name),
        N::CreateOpClassStmt(create) => is_temporary_name(&create.opclassname),
        N::CreateOpFamilyStmt(create) => is_temporary_name(&create.opfamilyname),
        N::CreateStatsStmt(create) => is_temporary_name(&create.defnames),
        N::ViewStmt(view) => is_temporary(view.view.as_ref(), KEPT),
        N::CreateSeqStmt(create) => is_temporary(create.sequence.as_ref(), KEPT),
        _ => false,
    }
}

/// Whether objects without a schema become temporary.
fn is_made_by_set(set: &VariableSetStmt) -> bool {
    let names = set.args.iter().filter_map(|arg| match literal(arg) {
        Some(Literal::Text(name)) => Some(name),
        _ => None,
    });
    set.name.eq_ignore_ascii_case(SEARCH_PATH) && begins_with_temporary(names)
}

/// Whether the first schema is the temporary one. As a rule, there is none of the user's name.
fn begins_with_temporary<'a>(mut names: impl Iterator<Item = &'a str>) -> bool {
    let first = names.find(|name| *name != "$user");
    first.is_some_and(|name| name.starts_with(TEMPORARY_SCHEMA))
}

/// Whether a call of set_config does that. PostgreSQL folds what is not quoted in the text.
pub(crate) fn is_made_by_call(target: &Node) -> bool {
    let Some([name, value, _]) = set_config::call(target).map(|call| call.args.as_slice()) else {
        return false;
    };
    let is_other =
        |name| !matches!(name, Literal::Text(name) if name.eq_ignore_ascii_case(SEARCH_PATH));
    match constant(value) {
        Some(Literal::Text(path)) if !constant(name).is_some_and(is_other) => {
            let path = path.to_ascii_lowercase();
            let names = path.split(',').map(|name| name.trim().trim_matches('"'));
            begins_with_temporary(names)
        }
        _ => false,
    }
}

fn is_temporary(relation: Option<&RangeVar>, on_commit: i32) -> bool {
    let is_temporary = |relation: &RangeVar| {
        relation.relpersistence == "t" || relation.schemaname.starts_with(TEMPORARY_SCHEMA)
    };
    on_commit != OnCommitAction::OncommitDrop as i32 && relation.is_some_and(is_temporary)
}

/// Whether a name is in the schema of temporary objects.
fn is_temporary_name(names: &[Node]) -> bool {
    let schema = |node: &Node| match &node.node {
        Some(NodeEnum::String(text)) => text.sval.starts_with(TEMPORARY_SCHEMA),
        _ => false,
    };
    // A database may stand in front.
    names.iter().rev().nth(1).is_some_and(schema)
}

/// The arm of UNION and similar that INTO stands in.
fn first_arm(select: &SelectStmt) -> &SelectStmt {
    let mut arm = select;
    while let Some(left) = &arm.larg {
        arm = left;
    }
    arm
}

/// A constant, also with a cast.
fn constant(value: &Node) -> Option<Literal<'_>> {
    match value.node.as_ref()? {
        NodeEnum::TypeCast(cast) => constant(cast.arg.as_deref()?),
        _ => literal(value),
    }
}
