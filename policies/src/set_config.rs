//! Calls of set_config that declare a token. The walk finds those that switch read-only mode off, and those that only
//! seem to declare a token.
//!
//! <https://www.postgresql.org/docs/current/functions-admin.html#FUNCTIONS-ADMIN-SET>

use std::borrow::Cow;

use pg_query::NodeEnum;
use pg_query::protobuf::{FuncCall, Node, SelectStmt, SetOperation, TypeName};

use crate::control::{Control, Lifetime};
use crate::settings::{Literal, Setting, literal, parse_bool, reserved};

/// The settings of `SELECT set_config(...), ...` if the statement is nothing else and every argument is a literal. No
/// other call declares a token.
pub(crate) fn of_select(select: &SelectStmt) -> Vec<Control> {
    if !is_plain(select) {
        return Vec::new();
    }
    let mut controls = Vec::new();
    for target in &select.target_list {
        match target_control(target) {
            SetConfigCall::Fencing(control) => controls.push(control),
            SetConfigCall::Harmless(_) => {}
            SetConfigCall::Other => return Vec::new(),
        }
    }
    controls
}

/// Name of a setting of the session in `SELECT set_config(...)` with literals, if the statement is nothing else, and a
/// text that sets it again. In that, no other function of the name can be meant. Reading the values depends on no
/// setting.
pub(crate) fn assigned(select: &SelectStmt) -> Option<(Box<str>, Box<str>)> {
    let [target] = select.target_list.as_slice() else {
        return None;
    };
    let SetConfigCall::Harmless(Some((name, value))) = target_control(target) else {
        return None;
    };
    let is_plain_text = |text: &str| {
        let mut bytes = text.bytes();
        bytes.all(|byte| matches!(byte, b' '..=b'~') && byte != b'\'' && byte != b'\\')
    };
    if !is_plain(select) || !is_plain_text(name) || !is_plain_text(value) {
        return None;
    }
    let again = format!("SELECT pg_catalog.set_config('{name}', '{value}', false)");
    Some((name.to_ascii_lowercase().into(), again.into()))
}

/// Whether a SELECT has nothing but its targets.
pub(crate) fn is_plain(select: &SelectStmt) -> bool {
    select.from_clause.is_empty()
        && select.where_clause.is_none()
        && select.distinct_clause.is_empty()
        && select.into_clause.is_none()
        && select.group_clause.is_empty()
        && select.having_clause.is_none()
        && select.window_clause.is_empty()
        && select.values_lists.is_empty()
        && select.sort_clause.is_empty()
        && select.limit_offset.is_none()
        && select.limit_count.is_none()
        && select.locking_clause.is_empty()
        && select.with_clause.is_none()
        && select.op == SetOperation::SetopNone as i32
}

/// Setting that pg_dump sets by a computed name, so that older servers ignore it.
const BY_PG_DUMP: &str = "restrict_nonsystem_relation_kind";

/// That setting, if these are the words of pg_dump.
pub(crate) fn set_by_pg_dump(statement: &str) -> Option<&'static str> {
    let value = statement
        .trim_ascii()
        .strip_prefix("SELECT set_config(name, '")?;
    let value = value.strip_suffix("'")?.strip_suffix(BY_PG_DUMP)?;
    let value = value.strip_suffix("', false) FROM pg_settings WHERE name = '")?;
    (!value.contains(['\'', '\\'])).then_some(BY_PG_DUMP)
}

/// Whether a plain SELECT runs PostgreSQL's own set_config, and nothing of a user: without a schema, the path may lead
/// to another function, or to a domain with a CHECK.
pub(crate) fn is_certain(select: &SelectStmt) -> bool {
    let in_catalog =
        |names: &[Node]| matches!(names, [schema, _] if text_of(schema) == Some("pg_catalog"));
    let is_certain = |arg: &Node| match &arg.node {
        Some(NodeEnum::TypeCast(cast)) => {
            let of_catalog = cast.type_name.as_ref();
            of_catalog.is_some_and(|name| in_catalog(&name.names))
        }
        _ => true,
    };
    let mut targets = select.target_list.iter();
    targets.all(|target| {
        call(target)
            .is_some_and(|call| in_catalog(&call.funcname) && call.args.iter().all(is_certain))
    })
}

enum SetConfigCall<'a> {
    /// Sets a `fencing.` setting.
    Fencing(Control),
    /// Sets another setting. If it does so for the session, and not to its default: the name and the value.
    Harmless(Option<(&'a str, &'a str)>),
    /// Not a set_config with literals.
    Other,
}

/// A target that is nothing but a call of set_config.
pub(crate) fn call(target: &Node) -> Option<&FuncCall> {
    let Some(NodeEnum::ResTarget(target)) = &target.node else {
        return None;
    };
    let Some(NodeEnum::FuncCall(call)) = target.val.as_ref()?.node.as_ref() else {
        return None;
    };
    let plain = call.agg_order.is_empty()
        && call.agg_filter.is_none()
        && call.over.is_none()
        && !call.agg_star
        && !call.agg_distinct
        && !call.func_variadic;
    let called = match call.funcname.as_slice() {
        [name] => text_of(name) == Some("set_config"),
        [schema, name] => {
            text_of(schema) == Some("pg_catalog") && text_of(name) == Some("set_config")
        }
        _ => false,
    };
    (plain && called).then_some(call)
}

fn target_control(target: &Node) -> SetConfigCall<'_> {
    let called = call(target).and_then(control);
    called.unwrap_or(SetConfigCall::Other)
}

fn control(call: &FuncCall) -> Option<SetConfigCall<'_>> {
    let [name, value, local] = call.args.as_slice() else {
        return None;
    };
    let Literal::Text(name) = cast_literal(name, "text")? else {
        return None;
    };
    let value: Option<Cow<'_, str>> = match cast_literal(value, "text")? {
        Literal::Null => None,
        Literal::Text(text) => Some(text.into()),
        // A number without a cast to text is an error of the server. With a cast, only an integer is stored as it is
        // written.
        Literal::Integer(number) if is_cast(value) => Some(number.to_string().into()),
        _ => return None,
    };
    let lifetime = match cast_literal(local, "bool")? {
        Literal::Boolean(true) => Lifetime::Local,
        Literal::Boolean(false) | Literal::Null => Lifetime::Session,
        // The type boolean trims its text, and takes the same words as a setting does.
        Literal::Text(text) if parse_bool(text.trim_ascii())? => Lifetime::Local,
        Literal::Text(_) => Lifetime::Session,
        Literal::Integer(_) | Literal::Float(_) => return None,
    };
    let variable = match Setting::named(name) {
        Setting::Fencing(variable) => variable,
        Setting::Reserved => return Some(SetConfigCall::Fencing(Control::Mistake(reserved(name)))),
        _ => {
            let for_session = match (value, lifetime) {
                (Some(Cow::Borrowed(value)), Lifetime::Session) => Some((name, value)),
                _ => None,
            };
            return Some(SetConfigCall::Harmless(for_session));
        }
    };
    Some(SetConfigCall::Fencing(match value {
        Some(value) => Control::SetFencing {
            variable,
            value: value.into(),
            lifetime,
        },
        None => Control::ResetFencing { variable, lifetime },
    }))
}

fn is_cast(node: &Node) -> bool {
    matches!(node.node, Some(NodeEnum::TypeCast(_)))
}

/// A literal, or a literal cast to a type that keeps it as it is. `varchar(5)` and `name` would cut it.
fn cast_literal<'n>(node: &'n Node, wanted: &str) -> Option<Literal<'n>> {
    let Some(NodeEnum::TypeCast(cast)) = &node.node else {
        return literal(node);
    };
    if is_type(cast.type_name.as_ref()?, wanted) {
        literal(cast.arg.as_deref()?)
    } else {
        None
    }
}

fn is_type(name: &TypeName, wanted: &str) -> bool {
    let word = match name.names.as_slice() {
        [word] => text_of(word),
        [schema, word] if text_of(schema) == Some("pg_catalog") => text_of(word),
        _ => None,
    };
    word == Some(wanted)
        && name.typmods.is_empty()
        && name.array_bounds.is_empty()
        && !name.setof
        && !name.pct_type
}

fn text_of(node: &Node) -> Option<&str> {
    match &node.node {
        Some(NodeEnum::String(text)) => Some(&text.sval),
        _ => None,
    }
}
