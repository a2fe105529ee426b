//! SET, RESET and SHOW of the settings that matter here.
//!
//! <https://www.postgresql.org/docs/current/sql-set.html>

use std::str::FromStr;

use pg_query::NodeEnum;
use pg_query::protobuf::{Node, VariableSetKind, VariableSetStmt, a_const};

use crate::control::{
    Access, AccessShow, Control, FencingShow, FencingVariable, Lifetime, Mistake,
};
use crate::effects::ANY_SETTING;
use crate::found::Found;
use crate::write_reason::WriteReason;

/// Default access mode of transactions:
/// <https://www.postgresql.org/docs/current/runtime-config-client.html#GUC-DEFAULT-TRANSACTION-READ-ONLY>
pub const DEFAULT_READ_ONLY: &str = "default_transaction_read_only";

/// A setting that matters here. PostgreSQL ignores ASCII case in their names, even in quoted ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Setting {
    Fencing(FencingVariable),
    /// Another name below `fencing.`, which no session can set.
    Reserved,
    TransactionReadOnly,
    DefaultReadOnly,
    Other,
}

impl Setting {
    pub(crate) fn named(name: &str) -> Self {
        let is = |known: &str| name.eq_ignore_ascii_case(known);
        if is("fencing.token") {
            Self::Fencing(FencingVariable::Token)
        } else if is("fencing.scope") {
            Self::Fencing(FencingVariable::Scope)
        } else if below_fencing(name).is_some() {
            Self::Reserved
        } else if is("transaction_read_only") {
            Self::TransactionReadOnly
        } else if is(DEFAULT_READ_ONLY) {
            Self::DefaultReadOnly
        } else {
            Self::Other
        }
    }
}

/// SET and RESET, in all their forms.
pub(crate) fn variable_set(stmt: &VariableSetStmt) -> Found {
    use Setting::{DefaultReadOnly, TransactionReadOnly};
    use VariableSetKind as K;
    let lifetime = if stmt.is_local {
        Lifetime::Local
    } else {
        Lifetime::Session
    };
    let kind = K::try_from(stmt.kind).unwrap_or(K::Undefined);
    match (kind, Setting::named(&stmt.name)) {
        (K::VarResetAll, _) => Found::control(Control::ResetAll),
        (K::VarSetMulti, _) => set_multi(stmt, lifetime),
        (K::Undefined, _) => Found::nothing().because(Some(WriteReason::Kind("SET"))),
        (_, Setting::Other) => Found::nothing(),
        (_, Setting::Reserved) => mistake(reserved(&stmt.name)),
        (K::VarSetValue, Setting::Fencing(variable)) => match stmt.args.as_slice() {
            [only] => match stored_text(only) {
                Some(value) => Found::control(Control::SetFencing {
                    variable,
                    value,
                    lifetime,
                }),
                None => mistake(Mistake::DoesNotDeclare(variable)),
            },
            // The server refuses more than one value.
            _ => Found::nothing(),
        },
        (K::VarSetDefault | K::VarReset, Setting::Fencing(variable)) => {
            Found::control(Control::ResetFencing { variable, lifetime })
        }
        // Keeps the current value and changes its lifetime.
        (K::VarSetCurrent, Setting::Fencing(variable)) => {
            mistake(Mistake::DoesNotDeclare(variable))
        }
        (K::VarSetValue, setting @ (TransactionReadOnly | DefaultReadOnly)) => {
            let scope = match setting {
                TransactionReadOnly => Scope::Transaction,
                _ => Scope::Default(lifetime),
            };
            access_of(&stmt.args).map_or_else(sets_read_write, |access| set_access(access, scope))
        }
        (K::VarSetDefault | K::VarReset, DefaultReadOnly) => match lifetime {
            Lifetime::Session => Found::control(Control::ResetDefaultAccess),
            Lifetime::Local => Found::nothing(),
        },
        // The reset value of transaction_read_only is off, whatever the default for transactions is. PostgreSQL 15
        // switches read-only mode off by it; later versions refuse it.
        (K::VarSetDefault | K::VarReset, TransactionReadOnly)
        | (K::VarSetCurrent, TransactionReadOnly | DefaultReadOnly) => sets_read_write(),
    }
}

fn mistake(mistake: Mistake) -> Found {
    Found::control(Control::Mistake(mistake))
}

fn sets_read_write() -> Found {
    Found::nothing().because(Some(WriteReason::SetsReadWrite))
}

/// Transactions to which a mode applies.
#[derive(Clone, Copy)]
enum Scope {
    Transaction,
    Default(Lifetime),
}

fn set_access(access: Access, scope: Scope) -> Found {
    let found = match scope {
        Scope::Transaction => Found::control(Control::SetTransactionAccess(access)),
        Scope::Default(Lifetime::Session) => Found::control(Control::SetDefaultAccess(access)),
        // Ends before a later transaction begins.
        Scope::Default(Lifetime::Local) => Found::nothing(),
    };
    found.because((access == Access::ReadWrite).then_some(WriteReason::SetsReadWrite))
}

/// SET TRANSACTION and SET SESSION CHARACTERISTICS AS TRANSACTION.
fn set_multi(stmt: &VariableSetStmt, lifetime: Lifetime) -> Found {
    let scope = match stmt.name.as_str() {
        "TRANSACTION" => Scope::Transaction,
        "SESSION CHARACTERISTICS" => Scope::Default(lifetime),
        "TRANSACTION SNAPSHOT" => return Found::nothing(),
        _ => return Found::nothing().because(Some(WriteReason::Kind("SET"))),
    };
    let modes = transaction_modes(&stmt.args);
    let last = modes.last.map(|access| set_access(access, scope));
    let found = last.unwrap_or_else(Found::nothing);
    if modes.sets_read_write {
        found.because(Some(WriteReason::SetsReadWrite))
    } else {
        found
    }
}

/// The settings that SET or RESET changes, in lower case.
pub(crate) fn names(stmt: &VariableSetStmt) -> Vec<Box<str>> {
    let kind = VariableSetKind::try_from(stmt.kind).unwrap_or(VariableSetKind::Undefined);
    match (kind, stmt.name.as_str()) {
        (VariableSetKind::VarResetAll | VariableSetKind::Undefined, _) => vec![ANY_SETTING.into()],
        (VariableSetKind::VarSetMulti, "TRANSACTION") => mode_names(&stmt.args, ""),
        (VariableSetKind::VarSetMulti, "SESSION CHARACTERISTICS") => {
            mode_names(&stmt.args, "default_")
        }
        (VariableSetKind::VarSetMulti, "TRANSACTION SNAPSHOT") => Vec::new(),
        (VariableSetKind::VarSetMulti, _) => vec![ANY_SETTING.into()],
        (_, name) => vec![name.to_ascii_lowercase().into()],
    }
}

/// Settings for the options of BEGIN or SET TRANSACTION.
pub(crate) fn mode_names(options: &[Node], prefix: &str) -> Vec<Box<str>> {
    let name = |option: &Node| match &option.node {
        Some(NodeEnum::DefElem(option)) => format!("{prefix}{}", option.defname).into(),
        _ => ANY_SETTING.into(),
    };
    options.iter().map(name).collect()
}

/// The access modes in the options of BEGIN or SET TRANSACTION.
pub(crate) struct Modes {
    /// PostgreSQL applies them in order, so the last one stays.
    pub(crate) last: Option<Access>,
    /// Whether any of them is READ WRITE.
    pub(crate) sets_read_write: bool,
}

pub(crate) fn transaction_modes(options: &[Node]) -> Modes {
    let mut modes = Modes {
        last: None,
        sets_read_write: false,
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
        modes.sets_read_write |= access == Access::ReadWrite;
        modes.last = Some(access);
    }
    modes
}

/// Access mode for the value of a read-only setting. `None` if the value is not one boolean literal.
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

/// Like PostgreSQL's `parse_bool`: a prefix of true, false, yes or no, or enough of on or off; 1, 0.
/// <https://www.postgresql.org/docs/current/config-setting.html>
#[must_use]
pub fn parse_bool(text: &str) -> Option<bool> {
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

impl Mistake {
    /// Mistake in giving a value to the setting of this name, if it is one.
    #[must_use]
    pub fn in_setting(name: &str) -> Option<Self> {
        match Setting::named(name) {
            Setting::Reserved => Some(reserved(name)),
            _ => None,
        }
    }
}

/// Mistake in giving a value to a [`Setting::Reserved`].
pub(crate) fn reserved(name: &str) -> Mistake {
    match below_fencing(name).map(FencingShow::from_str) {
        Some(Ok(_)) => Mistake::ShowOnly(name.into()),
        _ => Mistake::UnknownSetting(name.into()),
    }
}

/// Mistake in a value that another statement gives, such as ALTER ROLE.
pub(crate) fn elsewhere(stmt: &VariableSetStmt) -> Option<Mistake> {
    match variable_set(stmt).controls.pop()? {
        Control::SetFencing { variable, .. } => Some(Mistake::DoesNotDeclare(variable)),
        Control::Mistake(mistake) => Some(mistake),
        _ => None,
    }
}

/// Control for a SHOW that concerns the proxy.
pub(crate) fn show(name: &str) -> Option<Control> {
    match Setting::named(name) {
        Setting::TransactionReadOnly => Some(Control::ShowAccess(AccessShow::Transaction)),
        Setting::DefaultReadOnly => Some(Control::ShowAccess(AccessShow::Default)),
        Setting::Fencing(_) | Setting::Reserved | Setting::Other => {
            let shown = FencingShow::from_str(below_fencing(name)?).map(Control::ShowFencing);
            let unknown = |_| Control::Mistake(Mistake::UnknownSetting(name.into()));
            Some(shown.unwrap_or_else(unknown))
        }
    }
}

/// The rest of a name after `fencing.`.
fn below_fencing(name: &str) -> Option<&str> {
    name.split_at_checked("fencing.".len())
        .filter(|(class, _)| class.eq_ignore_ascii_case("fencing."))
        .map(|(_, what)| what)
}

/// A constant of the text.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Literal<'a> {
    Null,
    Text(&'a str),
    Integer(i32),
    /// Also an integer that does not fit into 32 bits.
    Float(&'a str),
    Boolean(bool),
}

/// The constant that a node holds. Names such as option words are constants too.
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
