//! The start of a subtree as a flat list, for comparison with the few shapes that matter.

use crate::object_name::ObjectName;

/// A piece of a short subtree, in the order of its fields. Numbers are left out.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Token {
    /// A message begins.
    Struct(&'static str),
    Text(Box<str>),
    Bool(bool),
}

/// More than any expected shape has.
const TOKENS_MAX: usize = 24;

#[derive(Debug, Default)]
pub(super) struct TokenTrace {
    tokens: Vec<Token>,
    /// Whether more tokens followed, which are not kept.
    is_cut: bool,
}

impl TokenTrace {
    pub(super) fn push(&mut self, token: impl FnOnce() -> Token) {
        if self.tokens.len() < TOKENS_MAX {
            self.tokens.push(token());
        } else {
            self.is_cut = true;
        }
    }

    /// The text of a field that is one string. `None` if it is empty, since protobuf leaves a field out by making it
    /// empty.
    pub(super) fn into_text(self) -> Option<Box<str>> {
        self.tokens.into_iter().find_map(|token| match token {
            Token::Text(text) if !text.is_empty() => Some(text),
            _ => None,
        })
    }

    pub(super) fn is_true(&self) -> bool {
        self.tokens.contains(&Token::Bool(true))
    }

    /// The name that a list of strings spells; `None` for any other list.
    pub(super) fn into_object_name(self) -> Option<ObjectName> {
        if self.is_cut {
            return None;
        }
        let mut parts = self.tokens.into_iter().filter_map(|token| match token {
            Token::Text(text) => Some(text),
            Token::Struct(_) | Token::Bool(_) => None,
        });
        let mut name = ObjectName {
            schema: None,
            name: parts.next()?,
        };
        for part in parts {
            name.schema = Some(std::mem::replace(&mut name.name, part));
        }
        Some(name)
    }

    /// The string constant of the subtree, plain or cast to one of these types.
    pub(super) fn constant(&self, types: &[&str]) -> Option<&str> {
        use Token::{Bool, Struct, Text};
        if self.is_cut {
            return None;
        }
        // `isnull` of the constant; `setof` and `pct_type` of the type.
        let constant = match self.tokens.as_slice() {
            [Struct("Node"), constant @ ..] if constant.len() == 4 => constant,
            [
                Struct("Node"),
                Struct("TypeCast"),
                Struct("Node"),
                constant @ ..,
            ] => {
                let (constant, cast) = constant.split_at_checked(4)?;
                let [Struct("TypeName"), names @ .., Bool(false), Bool(false)] = cast else {
                    return None;
                };
                let word = match names {
                    [Struct("Node"), Struct("String"), Text(word)] => word,
                    [
                        Struct("Node"),
                        Struct("String"),
                        Text(schema),
                        Struct("Node"),
                        Struct("String"),
                        Text(word),
                    ] if &**schema == "pg_catalog" => word,
                    _ => return None,
                };
                if !types.contains(&&**word) {
                    return None;
                }
                constant
            }
            _ => return None,
        };
        match constant {
            [Struct("AConst"), Bool(false), Struct("String"), Text(value)] => Some(value),
            _ => None,
        }
    }
}

/// The relation that PostgreSQL finds for a text cast to `regclass`.
/// <https://www.postgresql.org/docs/current/datatype-oid.html>
pub(super) fn regclass(text: &str) -> Option<ObjectName> {
    let mut parts: Vec<Box<str>> = Vec::new();
    let mut rest = text.trim_ascii();
    // A number is an oid, and a dash is no relation.
    if rest.is_empty() || rest == "-" || rest.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    loop {
        let (part, after) = identifier(rest)?;
        parts.push(part);
        let after = after.trim_ascii_start();
        if after.is_empty() {
            break;
        }
        rest = after.strip_prefix('.')?.trim_ascii_start();
    }
    let name = parts.pop()?;
    match parts.len() {
        0..=2 => Some(ObjectName {
            schema: parts.pop(),
            name,
        }),
        _ => None,
    }
}

/// Bytes of the longest name: PostgreSQL cuts off the rest.
/// <https://www.postgresql.org/docs/current/sql-syntax-lexical.html#SQL-SYNTAX-IDENTIFIERS>
const LONGEST: usize = 63;

/// The identifier at the front, and the rest. Accepts only plain identifiers.
fn identifier(text: &str) -> Option<(Box<str>, &str)> {
    if let Some(quoted) = text.strip_prefix('"') {
        let (name, after) = quoted.split_once('"')?;
        let is_plain = (1..=LONGEST).contains(&name.len()) && !after.starts_with('"');
        return is_plain.then(|| (name.into(), after));
    }
    let end = text
        .find(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '$'))
        .unwrap_or(text.len());
    let (name, after) = text.split_at_checked(end)?;
    (1..=LONGEST)
        .contains(&name.len())
        .then(|| (name.to_ascii_lowercase().into(), after))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regclass_as_postgresql_reads_it() {
        let check = |text: &str, expected: Option<&str>| {
            let name = regclass(text).map(|name| name.to_string());
            assert_eq!(name.as_deref(), expected, "{text}");
        };
        check("s", Some("s"));
        check(" Jobs . S_1 ", Some("jobs.s_1"));
        check("\"Jobs\".\"a.b\"", Some("Jobs.a.b"));
        check("db.jobs.s", Some("jobs.s"));
        let longest = "s".repeat(LONGEST);
        check(&longest, Some(&longest));
        for text in [
            &format!("{longest}s"),
            &format!("jobs.\"{longest}s\""),
            "",
            "-",
            "123",
            "a.b.c.d",
            "a b",
            "a..b",
            ".a",
            "a.",
            "\"a",
            "\"a\"\"b\"",
            "\"\"",
            "é",
        ] {
            check(text, None);
        }
    }
}
