//! SET, RESET, SHOW and set_config: which settings matter here, and what becomes of them.
//!
//! <https://www.postgresql.org/docs/current/sql-set.html>

use pg_query::NodeEnum;
use pg_query::protobuf::{
    FuncCall, Node, SelectStmt, SetOperation, TypeName, VariableSetKind, VariableSetStmt, a_const,
};
use serde_json::Value;

use crate::verdict::{Access, Control, FencingShow, FencingVariable, Lifetime, WriteReason};

/// What a SET does here.
#[derive(Debug, Default)]
pub(crate) struct Effect {
    pub(crate) control: Option<Control>,
    pub(crate) why: Option<WriteReason>,
}

impl Effect {
    fn control(control: Control) -> Self {
        Self {
            control: Some(control),
            why: None,
        }
    }

    fn lifts() -> Self {
        Self {
            control: None,
            why: Some(WriteReason::LiftsReadOnly),
        }
    }
}

/// A setting that matters here. PostgreSQL compares their names without regard to ASCII case, also quoted ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Setting {
    Fencing(FencingVariable),
    TransactionReadOnly,
    DefaultReadOnly,
    Other,
}

impl Setting {
    fn named(name: &str) -> Self {
        let is = |known: &str| name.eq_ignore_ascii_case(known);
        if is("fencing.token") {
            Self::Fencing(FencingVariable::Token)
        } else if is("fencing.scope") {
            Self::Fencing(FencingVariable::Scope)
        } else if is("transaction_read_only") {
            Self::TransactionReadOnly
        } else if is("default_transaction_read_only") {
            Self::DefaultReadOnly
        } else {
            Self::Other
        }
    }
}

/// SET and RESET, in all their forms.
pub(crate) fn variable_set(stmt: &VariableSetStmt) -> Effect {
    let lifetime = if stmt.is_local {
        Lifetime::Local
    } else {
        Lifetime::Session
    };
    let kind = VariableSetKind::try_from(stmt.kind).unwrap_or(VariableSetKind::Undefined);
    let setting = Setting::named(&stmt.name);
    match (kind, setting) {
        (VariableSetKind::VarResetAll, _) => Effect::control(Control::ResetAll),
        (VariableSetKind::VarSetMulti, _) => set_multi(stmt, lifetime),
        (VariableSetKind::Undefined, _) => Effect {
            control: None,
            why: Some(WriteReason::Kind("SET")),
        },
        (_, Setting::Other) => Effect::default(),
        (VariableSetKind::VarSetValue, Setting::Fencing(variable)) => match stmt.args.as_slice() {
            [only] => stored_text(only).map_or_else(Effect::default, |value| {
                Effect::control(Control::SetFencing {
                    variable,
                    value,
                    lifetime,
                })
            }),
            // More than one value: the server refuses it.
            _ => Effect::default(),
        },
        (
            VariableSetKind::VarSetDefault | VariableSetKind::VarReset,
            Setting::Fencing(variable),
        ) => Effect::control(Control::ResetFencing { variable, lifetime }),
        // FROM CURRENT gives the value that is there; it does not bind.
        (VariableSetKind::VarSetCurrent, Setting::Fencing(_)) => Effect::default(),
        (VariableSetKind::VarSetValue, Setting::TransactionReadOnly) => access_of(&stmt.args)
            .map_or_else(Effect::lifts, |access| {
                set_access(access, Scope::Transaction)
            }),
        (VariableSetKind::VarSetValue, Setting::DefaultReadOnly) => access_of(&stmt.args)
            .map_or_else(Effect::lifts, |access| {
                set_access(access, Scope::Default(lifetime))
            }),
        // The reset value of transaction_read_only is off, whatever the default for transactions is: PostgreSQL 15
        // lifts read-only mode by it. Later ones refuse it.
        (
            VariableSetKind::VarSetDefault | VariableSetKind::VarReset,
            Setting::TransactionReadOnly,
        ) => Effect::lifts(),
        (VariableSetKind::VarSetDefault | VariableSetKind::VarReset, Setting::DefaultReadOnly) => {
            match lifetime {
                Lifetime::Session => Effect::control(Control::ResetDefaultAccess),
                Lifetime::Local => Effect::default(),
            }
        }
        (
            VariableSetKind::VarSetCurrent,
            Setting::TransactionReadOnly | Setting::DefaultReadOnly,
        ) => Effect::lifts(),
    }
}

/// Which transactions a mode is for.
#[derive(Clone, Copy)]
enum Scope {
    Transaction,
    Default(Lifetime),
}

fn set_access(access: Access, scope: Scope) -> Effect {
    let control = match scope {
        Scope::Transaction => Some(Control::SetTransactionAccess(access)),
        Scope::Default(Lifetime::Session) => Some(Control::SetDefaultAccess(access)),
        // Over before a later transaction begins.
        Scope::Default(Lifetime::Local) => None,
    };
    let why = (access == Access::ReadWrite).then_some(WriteReason::LiftsReadOnly);
    Effect { control, why }
}

/// SET TRANSACTION and SET SESSION CHARACTERISTICS AS TRANSACTION.
fn set_multi(stmt: &VariableSetStmt, lifetime: Lifetime) -> Effect {
    let modes = transaction_modes(&stmt.args);
    let scope = match stmt.name.as_str() {
        "TRANSACTION" => Scope::Transaction,
        "SESSION CHARACTERISTICS" => Scope::Default(lifetime),
        "TRANSACTION SNAPSHOT" => return Effect::default(),
        _ => {
            return Effect {
                control: None,
                why: Some(WriteReason::Kind("SET")),
            };
        }
    };
    let mut effect = modes
        .last
        .map_or_else(Effect::default, |access| set_access(access, scope));
    if modes.lifts {
        effect.why = Some(WriteReason::LiftsReadOnly);
    }
    effect
}

/// The access modes in the options of BEGIN or SET TRANSACTION.
pub(crate) struct Modes {
    /// PostgreSQL applies them in order: the last one stays.
    pub(crate) last: Option<Access>,
    /// Does any of them say READ WRITE?
    pub(crate) lifts: bool,
}

pub(crate) fn transaction_modes(options: &[Node]) -> Modes {
    let mut modes = Modes {
        last: None,
        lifts: false,
    };
    for option in options {
        let Some(NodeEnum::DefElem(option)) = &option.node else {
            continue;
        };
        if option.defname != "transaction_read_only" {
            continue;
        }
        let access = match option.arg.as_deref().and_then(literal) {
            Some(Literal::Integer(1)) => Access::ReadOnly,
            _ => Access::ReadWrite,
        };
        modes.lifts |= access == Access::ReadWrite;
        modes.last = Some(access);
    }
    modes
}

/// The access that a value of a read-only setting stands for. `None` where it is not one literal boolean.
fn access_of(args: &[Node]) -> Option<Access> {
    let [only] = args else { return None };
    let on = match literal(only)? {
        Literal::Integer(number) => parse_bool(&number.to_string())?,
        Literal::Text(text) => parse_bool(text)?,
        Literal::Boolean(value) => value,
        Literal::Float(_) | Literal::Null => return None,
    };
    Some(if on {
        Access::ReadOnly
    } else {
        Access::ReadWrite
    })
}

/// As PostgreSQL's `parse_bool`: a prefix of true, false, yes or no, or enough of on or off; 1, 0.
/// <https://www.postgresql.org/docs/current/config-setting.html>
pub(crate) fn parse_bool(text: &str) -> Option<bool> {
    let text = text.to_ascii_lowercase();
    let starts = |word: &str, least: usize| text.len() >= least && word.starts_with(&text);
    if starts("true", 1) || starts("yes", 1) || text == "on" || text == "1" {
        Some(true)
    } else if starts("false", 1) || starts("no", 1) || starts("off", 2) || text == "0" {
        Some(false)
    } else {
        None
    }
}

/// The variable that a SHOW asks the proxy for.
pub(crate) fn fencing_show(name: &str) -> Option<FencingShow> {
    let (_, what) = name
        .split_at_checked("fencing.".len())
        .filter(|(class, _)| class.eq_ignore_ascii_case("fencing."))?;
    let is = |known: &str| what.eq_ignore_ascii_case(known);
    if is("token") {
        Some(FencingShow::Token)
    } else if is("scope") {
        Some(FencingShow::Scope)
    } else if is("mark") {
        Some(FencingShow::Mark)
    } else if is("status") {
        Some(FencingShow::Status)
    } else {
        None
    }
}

/// A constant of the text.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Literal<'a> {
    Null,
    Text(&'a str),
    Integer(i32),
    /// Also an integer that is too long for 32 bits.
    Float(&'a str),
    Boolean(bool),
}

/// The constant that a node is. Names such as option words are constants too.
pub(crate) fn literal(node: &Node) -> Option<Literal<'_>> {
    match node.node.as_ref()? {
        NodeEnum::AConst(constant) if constant.isnull => Some(Literal::Null),
        NodeEnum::AConst(constant) => match constant.val.as_ref()? {
            a_const::Val::Ival(value) => Some(Literal::Integer(value.ival)),
            a_const::Val::Fval(value) => Some(Literal::Float(&value.fval)),
            a_const::Val::Boolval(value) => Some(Literal::Boolean(value.boolval)),
            a_const::Val::Sval(value) => Some(Literal::Text(&value.sval)),
            a_const::Val::Bsval(_) => None,
        },
        NodeEnum::Integer(value) => Some(Literal::Integer(value.ival)),
        NodeEnum::Float(value) => Some(Literal::Float(&value.fval)),
        NodeEnum::Boolean(value) => Some(Literal::Boolean(value.boolval)),
        NodeEnum::String(value) => Some(Literal::Text(&value.sval)),
        _ => None,
    }
}

/// The text that SET stores for an argument.
fn stored_text(arg: &Node) -> Option<Box<str>> {
    match literal(arg)? {
        Literal::Text(text) | Literal::Float(text) => Some(text.into()),
        Literal::Integer(number) => Some(number.to_string().into()),
        Literal::Boolean(_) | Literal::Null => None,
    }
}

/// The settings of `SELECT set_config(...), ...`, where the whole statement is nothing else and every argument is a
/// literal. Any other way of calling it does not bind.
pub(crate) fn set_config_select(select: &SelectStmt) -> Vec<Control> {
    let rest_is_plain = select.distinct_clause.is_empty()
        && select.into_clause.is_none()
        && select.from_clause.is_empty()
        && select.where_clause.is_none()
        && select.group_clause.is_empty()
        && select.having_clause.is_none()
        && select.window_clause.is_empty()
        && select.values_lists.is_empty()
        && select.sort_clause.is_empty()
        && select.limit_offset.is_none()
        && select.limit_count.is_none()
        && select.locking_clause.is_empty()
        && select.with_clause.is_none()
        && select.op == SetOperation::SetopNone as i32;
    if !rest_is_plain {
        return Vec::new();
    }
    let mut controls = Vec::new();
    for target in &select.target_list {
        match target_control(target) {
            Target::Binds(control) => controls.push(control),
            Target::Harmless => {}
            Target::Other => return Vec::new(),
        }
    }
    controls
}

enum Target {
    /// Sets one of our variables.
    Binds(Control),
    /// A set_config of something else.
    Harmless,
    /// Not a set_config with literals.
    Other,
}

fn target_control(target: &Node) -> Target {
    let Some(NodeEnum::ResTarget(target)) = &target.node else {
        return Target::Other;
    };
    let Some(NodeEnum::FuncCall(call)) = target.val.as_ref().and_then(|value| value.node.as_ref())
    else {
        return Target::Other;
    };
    set_config_call(call).unwrap_or(Target::Other)
}

fn set_config_call(call: &FuncCall) -> Option<Target> {
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
    let [name, value, local] = call.args.as_slice() else {
        return None;
    };
    if !plain || !called {
        return None;
    }
    let Literal::Text(name) = cast_literal(name, Type::Text)? else {
        return None;
    };
    let value: Option<Box<str>> = match cast_literal(value, Type::Text)? {
        Literal::Null => None,
        Literal::Text(text) => Some(text.into()),
        // Not cast to text, a number is an error of the server; cast, it is stored as it is written only when it is
        // an integer.
        Literal::Integer(number) if is_cast(value) => Some(number.to_string().into()),
        _ => return None,
    };
    let lifetime = match cast_literal(local, Type::Bool)? {
        Literal::Boolean(true) => Lifetime::Local,
        Literal::Boolean(false) | Literal::Null => Lifetime::Session,
        // The type boolean trims its text, and takes the same words as a setting does.
        Literal::Text(text) if parse_bool(text.trim_ascii())? => Lifetime::Local,
        Literal::Text(_) => Lifetime::Session,
        Literal::Integer(_) | Literal::Float(_) => return None,
    };
    let Setting::Fencing(variable) = Setting::named(name) else {
        return Some(Target::Harmless);
    };
    Some(Target::Binds(match value {
        Some(value) => Control::SetFencing {
            variable,
            value,
            lifetime,
        },
        None => Control::ResetFencing { variable, lifetime },
    }))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Type {
    Text,
    Bool,
}

fn is_cast(node: &Node) -> bool {
    matches!(node.node, Some(NodeEnum::TypeCast(_)))
}

/// A literal, or a literal cast to a type that keeps it as it is. `varchar(5)` and `name` would cut it.
fn cast_literal(node: &Node, wanted: Type) -> Option<Literal<'_>> {
    let Some(NodeEnum::TypeCast(cast)) = &node.node else {
        return literal(node);
    };
    if is_type(cast.type_name.as_ref()?, wanted) {
        literal(cast.arg.as_deref()?)
    } else {
        None
    }
}

fn is_type(name: &TypeName, wanted: Type) -> bool {
    let word = match name.names.as_slice() {
        [word] => text_of(word),
        [schema, word] if text_of(schema) == Some("pg_catalog") => text_of(word),
        _ => None,
    };
    let wanted = match wanted {
        Type::Text => "text",
        Type::Bool => "bool",
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

/// What the first argument of a set_config anywhere says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConfigName {
    /// A literal that has nothing to do with read-only mode.
    Harmless,
    /// A literal that has.
    ReadOnly,
    /// Not a literal.
    Computed,
}

/// Reads the arguments of a set_config as the walk hands them over: a list of nodes, as data.
pub(crate) fn config_name(args: &Value) -> ConfigName {
    let Some(first) = args.get(0).and_then(|first| first.get("node")) else {
        return ConfigName::Computed;
    };
    let name = match first.get("TypeCast") {
        None => constant_text(first),
        Some(cast) if casts_to_text(cast) => cast.pointer("/arg/node").and_then(constant_text),
        Some(_) => None,
    };
    match name.map(Setting::named) {
        None => ConfigName::Computed,
        Some(Setting::TransactionReadOnly | Setting::DefaultReadOnly) => ConfigName::ReadOnly,
        Some(Setting::Fencing(_) | Setting::Other) => ConfigName::Harmless,
    }
}

fn constant_text(node: &Value) -> Option<&str> {
    node.pointer("/AConst/val/Sval/sval")?.as_str()
}

fn casts_to_text(cast: &Value) -> bool {
    let Some(of) = cast.get("type_name") else {
        return false;
    };
    let empty = |key: &str| {
        of.get(key)
            .and_then(Value::as_array)
            .is_some_and(Vec::is_empty)
    };
    let names: Vec<_> = of
        .get("names")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .map(|name| name.pointer("/node/String/sval").and_then(Value::as_str))
        .collect();
    matches!(
        names.as_slice(),
        [Some("text")] | [Some("pg_catalog"), Some("text")]
    ) && empty("typmods")
        && empty("array_bounds")
}
