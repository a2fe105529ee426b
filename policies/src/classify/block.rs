//! DO: whether its body seems to declare a token.
//!
//! The body is in another language, so this only helps its author and guards nothing: no statement in it declares a
//! token.

use pg_query::NodeEnum;
use pg_query::protobuf::{DoStmt, Token};

use crate::control::Mistake;
use crate::settings::{Setting, reserved};

/// The first `SET fencing.token`, or set_config of it with a literal name, in the body.
pub(super) fn mistake(block: &DoStmt) -> Option<Mistake> {
    let body = body(block)?;
    let lower = body.to_ascii_lowercase();
    if !lower.contains("fencing") {
        return None;
    }
    // PL/pgSQL uses the lexer of SQL.
    let tokens = pg_query::scan(&lower).ok()?.tokens;
    let is_comment = |kind: i32| kind == Token::SqlComment as i32 || kind == Token::CComment as i32;
    let words: Vec<&str> = tokens
        .iter()
        .filter(|token| !is_comment(token.token))
        .filter_map(|token| {
            let place = usize::try_from(token.start).ok()?..usize::try_from(token.end).ok()?;
            lower.get(place)
        })
        .collect();
    (0..words.len()).find_map(|at| {
        let before = at.checked_sub(1).and_then(|before| words.get(before));
        named(before.copied(), words.get(at..)?)
    })
}

fn body(block: &DoStmt) -> Option<&str> {
    block.args.iter().find_map(|arg| match &arg.node {
        Some(NodeEnum::DefElem(option)) if option.defname == "as" => {
            match &option.arg.as_deref()?.node {
                Some(NodeEnum::String(text)) => Some(text.sval.as_str()),
                _ => None,
            }
        }
        _ => None,
    })
}

/// Mistake in the statement or call that begins here. The SET of an UPDATE is not at the front.
fn named(before: Option<&str>, words: &[&str]) -> Option<Mistake> {
    let begins = matches!(
        before,
        None | Some(";" | "begin" | "then" | "else" | "loop" | ">>")
    );
    let name = match words {
        ["set_config", "(", name, ..] => name.trim_matches('\'').to_owned(),
        ["set", "local" | "session", "fencing", ".", name, ..]
        | ["set", "fencing", ".", name, ..]
            if begins =>
        {
            format!("fencing.{name}")
        }
        _ => return None,
    };
    match Setting::named(&name) {
        Setting::Fencing(variable) => Some(Mistake::DoesNotDeclare(variable)),
        Setting::Reserved => Some(reserved(&name)),
        _ => None,
    }
}
