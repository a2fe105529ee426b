//! Patterns for tables.

use super::ScopeId;
use super::glob::Glob;
use super::remark::ValueError;
use crate::object_name::ObjectName;

/// PostgreSQL truncates longer names: <https://www.postgresql.org/docs/current/sql-syntax-lexical.html>.
const NAME_BYTES_MAX: usize = 63;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TablePattern {
    pub(super) schema: Glob,
    pub(super) table: Glob,
}

impl TablePattern {
    /// Reads a pattern.
    ///
    /// # Errors
    ///
    /// The problem, and what to write instead.
    pub(super) fn parse(text: &str) -> Result<Self, ValueError> {
        let parts = split(text)?;
        match <[Glob; 2]>::try_from(parts) {
            Ok([schema, table]) => Ok(Self { schema, table }),
            Err(parts) if parts.len() == 1 => Err(ValueError::new(
                format!("{text:?} names no schema"),
                format!("write schema.table, such as public.{text}, or *.{text} for every schema"),
            )),
            Err(parts) => Err(ValueError::new(
                format!("{text:?} has {} parts", parts.len()),
                "write schema.table; a pattern holds in every database",
            )),
        }
    }

    /// Whether a match settles that the table is listed. `jobs.*` does not settle a name without a schema.
    pub(super) fn names(&self, name: &ObjectName) -> bool {
        name.schema.is_some() || self.table.exact().is_some() || self.schema.is_any()
    }

    pub(super) fn written(&self) -> String {
        format!("{}.{}", self.schema.written(), self.table.written())
    }
}

fn split(text: &str) -> Result<Vec<Glob>, ValueError> {
    let mut parts = Vec::new();
    let mut rest = text;
    loop {
        let (glob, behind) = match rest.strip_prefix('"') {
            Some(quoted) => read_quoted(text, quoted)?,
            None => read_plain(text, rest)?,
        };
        parts.push(glob);
        rest = match behind.strip_prefix('.') {
            Some(next) => next,
            None if behind.is_empty() => return Ok(parts),
            None => {
                return Err(ValueError::new(
                    format!("{text:?} has text after a closing quote"),
                    "write a dot between schema and table",
                ));
            }
        };
    }
}

fn read_quoted<'a>(text: &str, quoted: &'a str) -> Result<(Glob, &'a str), ValueError> {
    let mut name = String::new();
    let mut rest = quoted;
    loop {
        let Some((before, behind)) = rest.split_once('"') else {
            return Err(ValueError::new(
                format!("{text:?} has a quote that is not closed"),
                "write schema.\"Table\"; in single quotes of TOML, as '...', they need no backslash",
            ));
        };
        name.push_str(before);
        match behind.strip_prefix('"') {
            Some(next) => {
                name.push('"');
                rest = next;
            }
            None => {
                check_length(text, &name)?;
                let written = format!("\"{}\"", name.replace('"', "\"\""));
                return Ok((Glob::of_name(&written, &name), behind));
            }
        }
    }
}

fn read_plain<'a>(text: &str, rest: &'a str) -> Result<(Glob, &'a str), ValueError> {
    let end = rest.find('.').unwrap_or(rest.len());
    let (name, behind) = rest.split_at(end);
    if let Some(c) = name
        .chars()
        .find(|c| !c.is_alphanumeric() && !"_$-*".contains(*c))
    {
        return Err(ValueError::new(
            format!("{text:?} contains {c:?}"),
            "* stands for any characters and nothing else is special; write a name with other \
             characters in double quotes",
        ));
    }
    if name.bytes().any(|byte| byte.is_ascii_uppercase()) {
        let (lower, quoted) = (
            name.to_ascii_lowercase(),
            format!("\"{}\"", name.replace('*', "")),
        );
        return Err(ValueError::new(
            format!("{text:?} has capital letters"),
            format!(
                "write {lower}, as PostgreSQL does with a name that is not quoted, or {quoted} for one that \
                 was quoted when it was created"
            ),
        ));
    }
    check_length(text, name)?;
    Ok((Glob::new(name), behind))
}

fn check_length(text: &str, name: &str) -> Result<(), ValueError> {
    if name.is_empty() {
        return Err(ValueError::new(
            format!("{text:?} has an empty part"),
            "write schema.table, such as public.jobs or jobs.*",
        ));
    }
    if name.len() > NAME_BYTES_MAX {
        return Err(ValueError::new(
            format!("a part of {text:?} has {} bytes", name.len()),
            format!("write at most {NAME_BYTES_MAX}: PostgreSQL cuts longer names"),
        ));
    }
    Ok(())
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Listed {
    pub(super) pattern: TablePattern,
    pub(super) scope: ScopeId,
    pub(super) line: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(pattern: &str, schema: &str, table: &str, expect: bool) {
        let parsed = TablePattern::parse(pattern).unwrap();
        let found = parsed.schema.matches(schema) && parsed.table.matches(table);
        assert_eq!(found, expect, "{pattern} and {schema}.{table}");
    }

    #[test]
    fn patterns_match_as_postgresql_names_tables() {
        check("public.jobs", "public", "jobs", true);
        check("public.jobs", "public", "jobs2", false);
        check("public.jobs", "other", "jobs", false);
        check("jobs.*", "jobs", "anything", true);
        check("*.jobs", "any", "jobs", true);
        check("*.*", "any", "thing", true);
        check("shard_*.queue_*", "shard_7", "queue_in", true);
        check("shard_*.queue_*", "shard_7", "log", false);
        check("public.\"Jobs\"", "public", "Jobs", true);
        check("public.\"Jobs\"", "public", "jobs", false);
        check("public.\"a*\"", "public", "a*", true);
        check("public.\"a*\"", "public", "ab", false);
        check("\"a.b\".\"c\"\"d\"", "a.b", "c\"d", true);
        check("öl.größe", "öl", "größe", true);
        check("my-app.t$1", "my-app", "t$1", true);
    }

    #[test]
    fn what_is_no_pattern_is_refused_with_what_to_write() {
        let refuse = |text: &str, what: &str, to_do: &str| {
            let fault = TablePattern::parse(text).unwrap_err();
            assert!(fault.what.contains(what), "{text:?}: {fault:?}");
            assert!(fault.to_do.contains(to_do), "{text:?}: {fault:?}");
        };
        refuse("", "empty part", "public.jobs");
        refuse(".", "empty part", "public.jobs");
        refuse("public.", "empty part", "public.jobs");
        refuse("public.\"\"", "empty part", "public.jobs");
        refuse("jobs", "names no schema", "public.jobs, or *.jobs");
        refuse("db.public.jobs", "has 3 parts", "every database");
        refuse("public.Jobs", "capital letters", "write jobs");
        refuse("public.Jobs", "capital letters", "or \"Jobs\"");
        refuse("public.job?", "contains '?'", "double quotes");
        refuse("public.my jobs", "contains ' '", "double quotes");
        refuse(" public.jobs", "contains ' '", "double quotes");
        refuse("public.\"jobs", "not closed", "schema.\"Table\"");
        refuse("\"public\"jobs", "after a closing quote", "a dot");
        refuse("public.jo\"bs\"", "contains '\"'", "double quotes");
        refuse(
            &format!("public.{}", "x".repeat(64)),
            "64 bytes",
            "at most 63",
        );
    }
}
