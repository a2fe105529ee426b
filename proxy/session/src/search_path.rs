//! Where the session's server looks for names without a schema, as far as it is known.
//!
//! The server does not report it before version 18, so it is asked when a decision depends on it, and the answer is
//! forgotten as soon as anything may have changed it.
//! Source: <https://www.postgresql.org/docs/current/ddl-schemas.html#DDL-SCHEMAS-PATH>

use pgpalisade_policies::SearchPath;

use crate::wire::backend::first_column;

/// What the server is asked, in this order.
pub(crate) const QUESTIONS: [&str; 3] = [
    "SHOW search_path",
    "SHOW role",
    "SHOW session_authorization",
];

/// What is known of a session's search path.
#[derive(Debug, Default)]
pub(crate) struct KnownPath {
    schemas: Option<Box<[Box<str>]>>,
    answers: Vec<String>,
    asking: Asking,
    /// It was forgotten in this transaction, so the end of the transaction may change it again.
    unsettled: Unsettled,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Asking {
    #[default]
    No,
    Yes,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Unsettled {
    #[default]
    No,
    Yes,
}

impl KnownPath {
    /// As a policy takes it.
    #[must_use]
    pub(crate) fn get(&self) -> SearchPath<'_> {
        match &self.schemas {
            Some(schemas) => SearchPath::Known(schemas),
            None => SearchPath::Unknown,
        }
    }

    /// Something was sent that may change it.
    #[inline]
    pub(crate) fn forget(&mut self) {
        self.schemas = None;
        self.unsettled = Unsettled::Yes;
    }

    /// A transaction has ended: a SET in it may be undone.
    #[inline]
    pub(crate) fn end_transaction(&mut self) {
        if self.unsettled == Unsettled::Yes {
            self.schemas = None;
            self.unsettled = Unsettled::No;
        }
    }

    /// The server is asked: [`QUESTIONS`].
    pub(crate) fn ask(&mut self) {
        self.answers.clear();
        self.asking = Asking::Yes;
    }

    /// Whether rows of the proxy's own statements are answers.
    #[inline]
    #[must_use]
    pub(crate) fn is_asking(&self) -> bool {
        self.asking == Asking::Yes
    }

    /// One answer: the body of a DataRow. <https://www.postgresql.org/docs/current/protocol-message-formats.html>
    pub(crate) fn answer(&mut self, data_row: &[u8]) {
        let value = first_column(data_row).map(String::from_utf8_lossy);
        self.answers.push(value.unwrap_or_default().into_owned());
        if let [path, role, user] = self.answers.as_slice() {
            let user = if role == "none" { user } else { role };
            self.schemas = parse(path, user);
            self.answers.clear();
            self.asking = Asking::No;
        }
    }
}

/// Reads the value of `search_path`: names separated by commas, in lower case unless quoted, as PostgreSQL's
/// `SplitIdentifierString` does. `None` where it is not such a list.
fn parse(value: &str, user: &str) -> Option<Box<[Box<str>]>> {
    let mut schemas: Vec<Box<str>> = Vec::new();
    let mut rest = value.trim_ascii_start();
    while !rest.is_empty() {
        let (name, after) = match rest.strip_prefix('"') {
            Some(quoted) => quoted_name(quoted)?,
            None if rest.starts_with(',') => return None,
            None => {
                let end = rest.find(|c: char| c == ',' || c.is_ascii_whitespace());
                let (name, after) = rest.split_at(end.unwrap_or(rest.len()));
                (name.to_ascii_lowercase(), after)
            }
        };
        schemas.push(match name.as_str() {
            "$user" => user.into(),
            name => name.into(),
        });
        rest = match after.trim_ascii_start().strip_prefix(',') {
            Some(more) => more.trim_ascii_start(),
            None if after.trim_ascii().is_empty() => break,
            None => return None,
        };
        if rest.is_empty() {
            return None;
        }
    }
    Some(schemas.into())
}

/// A name up to its closing quote, and what follows.
fn quoted_name(text: &str) -> Option<(String, &str)> {
    let mut name = String::new();
    let mut rest = text;
    loop {
        let (part, after) = rest.split_once('"')?;
        name.push_str(part);
        match after.strip_prefix('"') {
            Some(more) => {
                name.push('"');
                rest = more;
            }
            None => return Some((name, after)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(value: &str, expect: Option<&[&str]>) {
        let found = parse(value, "alice");
        let found: Option<Vec<&str>> = found
            .as_deref()
            .map(|schemas| schemas.iter().map(|schema| &**schema).collect());
        assert_eq!(found.as_deref(), expect, "{value}");
    }

    #[test]
    fn values_are_read_as_postgresql_reads_them() {
        check("\"$user\", public", Some(&["alice", "public"]));
        check("$user,Public", Some(&["alice", "public"]));
        check("", Some(&[]));
        // SET search_path = '' is shown so: a schema without a name, which there is not.
        check("\"\"", Some(&[""]));
        check(",a", None);
        check("\"Jobs\" , \"a\"\"b\",c", Some(&["Jobs", "a\"b", "c"]));
        check("a b", None);
        check("a,", None);
        check("\"a", None);
    }

    fn row(value: &str) -> Vec<u8> {
        let mut body = vec![0, 1];
        body.extend(i32::try_from(value.len()).unwrap().to_be_bytes());
        body.extend(value.as_bytes());
        body
    }

    fn asked(answers: [&str; 3]) -> KnownPath {
        let mut path = KnownPath::default();
        path.ask();
        for answer in answers {
            assert!(path.is_asking());
            path.answer(&row(answer));
        }
        assert!(!path.is_asking());
        path
    }

    #[track_caller]
    fn check_known(path: &KnownPath, expect: &[&str]) {
        let expect: Vec<Box<str>> = expect.iter().map(|schema| Box::from(*schema)).collect();
        assert_eq!(path.get(), SearchPath::Known(&expect));
    }

    #[test]
    fn the_user_is_the_role_in_force() {
        check_known(&asked(["\"$user\"", "none", "bob"]), &["bob"]);
        check_known(&asked(["\"$user\"", "carol", "bob"]), &["carol"]);
    }

    #[test]
    fn what_was_set_in_a_transaction_is_asked_for_again_after_it() {
        let mut path = asked(["a", "none", "u"]);
        path.end_transaction();
        check_known(&path, &["a"]);
        path.forget();
        assert_eq!(path.get(), SearchPath::Unknown);
        path.ask();
        for answer in ["b", "none", "u"] {
            path.answer(&row(answer));
        }
        check_known(&path, &["b"]);
        path.end_transaction();
        assert_eq!(path.get(), SearchPath::Unknown);
    }

    #[test]
    fn a_row_that_is_none_is_an_empty_answer() {
        for body in [
            &[][..],
            &[0, 0],
            &[0, 1, 255, 255, 255, 255],
            &[0, 1, 0, 0, 0, 9, 1],
        ] {
            assert_eq!(first_column(body), None, "{body:?}");
        }
    }
}
