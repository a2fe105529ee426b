//! The shape of a statement: its text with everything folded that differs between executions.
//!
//! Records have `?` in place of literals, and long texts are cut, so PostgreSQL's grammar cannot parse them: shapes
//! are built from tokens.

use pgpalisade_fence::statement_text::{Literals, StatementText, Token, is_word, tokens};

/// In place of literals, parameters, and lists of them.
const VALUE: &str = "?";

const CUT: &str = "...";

/// Words before a bracket that is not a call's.
const BEFORE_BRACKET: &[&str] = &[
    "and", "as", "by", "exists", "from", "in", "into", "not", "on", "or", "over", "select", "set",
    "using", "values", "when", "where",
];

/// Folds literals and parameters to `?`, lists of them to one, case outside of quotes, comments and white space.
pub(super) fn shape(statement: &str) -> String {
    let clean = StatementText::new(statement.as_bytes(), Literals::Remove);
    let mut folded = Folded::default();
    for token in tokens(clean.as_str()) {
        match token {
            Token::Space => {}
            Token::Literal | Token::Parameter(_) => folded.push(VALUE.to_owned()),
            Token::Quoted(name) => folded.push(name.to_owned()),
            Token::Plain(text) => folded.push(text.to_lowercase()),
            Token::Doubt => folded.push(CUT.to_owned()),
        }
    }
    folded.end();
    folded.render()
}

/// Tokens so far, lists folded.
#[derive(Default)]
struct Folded {
    tokens: Vec<String>,
    open: Vec<usize>,
}

impl Folded {
    fn push(&mut self, token: String) {
        match token.as_str() {
            VALUE => {
                self.drop_sign();
                // `?, ?` becomes `?`.
                if self.ends_with(&[VALUE, ","]) {
                    self.tokens.pop();
                    return;
                }
            }
            "(" => self.open.push(self.tokens.len()),
            ")" => {
                let start = self.open.pop();
                self.tokens.push(token);
                if let Some(start) = start {
                    self.fold_group(start);
                }
                return;
            }
            _ => {}
        }
        self.tokens.push(token);
    }

    /// `(a), (a)` becomes `(a)`: the rows of an INSERT.
    fn fold_group(&mut self, start: usize) {
        let Some((before, group)) = self.tokens.split_at_checked(start) else {
            return;
        };
        let Some((comma, before)) = before.split_last() else {
            return;
        };
        if comma == "," && before.ends_with(group) {
            self.tokens.truncate(start - 1);
        }
    }

    /// A sign without an operand before it belongs to the literal.
    fn drop_sign(&mut self) {
        let [.., before, sign] = self.tokens.as_slice() else {
            return;
        };
        let operand = |c: char| is_word(c) || matches!(c, ')' | ']' | '"' | '?');
        let keyword = BEFORE_BRACKET.contains(&before.as_str());
        if matches!(sign.as_str(), "-" | "+") && (keyword || !before.ends_with(operand)) {
            self.tokens.pop();
        }
    }

    /// Removes a last semicolon, and an incomplete list before a cut.
    fn end(&mut self) {
        if self.tokens.last().is_some_and(|token| token == CUT) {
            self.tokens.pop();
            while self.ends_with(&[","]) {
                self.tokens.pop();
            }
            self.tokens.push(CUT.to_owned());
        }
        while self.ends_with(&[";"]) {
            self.tokens.pop();
        }
    }

    fn ends_with(&self, tokens: &[&str]) -> bool {
        let start = self.tokens.len().checked_sub(tokens.len());
        start
            .and_then(|start| self.tokens.get(start..))
            .is_some_and(|end| end == tokens)
    }

    fn render(&self) -> String {
        let mut text = String::new();
        let mut before = "";
        for token in &self.tokens {
            if !is_glued(before, token) {
                text.push(' ');
            }
            text.push_str(token);
            before = token;
        }
        text
    }
}

fn is_glued(before: &str, token: &str) -> bool {
    let call = before.starts_with(|c| is_word(c) || c == '"') && !BEFORE_BRACKET.contains(&before);
    matches!(before, "" | "(" | "[" | "." | "::")
        || matches!(token, ")" | "]" | "," | ";" | "." | "::" | "[")
        || (token == "(" && call)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(statements: &[&str], expect: &str) {
        for statement in statements {
            assert_eq!(shape(statement), expect, "{statement}");
        }
    }

    #[test]
    fn literals_parameters_comments_case_and_space_fold() {
        check(
            &[
                "UPDATE jobs SET state = 'done' WHERE id = 7",
                "update jobs  set state=?\n where id=$2;",
                "UPDATE jobs SET state = $$x$$ /* worker 3 */ WHERE id = -1 -- now",
                "UPDATE jobs SET state=-? WHERE id=+1 ;",
            ],
            "update jobs set state = ? where id = ?",
        );
    }

    #[test]
    fn lists_and_rows_fold() {
        check(
            &[
                "DELETE FROM jobs WHERE id IN (1)",
                "DELETE FROM jobs WHERE id IN (1, 2, 3)",
                "delete from jobs where id in ($1,$2)",
                "DELETE FROM jobs WHERE id IN (-1, 2)",
            ],
            "delete from jobs where id in (?)",
        );
        check(
            &[
                "INSERT INTO jobs (id, note, at) VALUES (1, 'a', now())",
                "INSERT INTO jobs (id, note, at) VALUES (1, 'a', now()), (2, 'b', now()), ($1, $2, now())",
            ],
            "insert into jobs(id, note, at) values (?, now())",
        );
        check(
            &["SELECT a FROM t WHERE b = ANY(ARRAY[1,2])"],
            "select a from t where b = any(array[?])",
        );
    }

    #[test]
    fn what_differs_stays_apart() {
        for (one, other) in [
            ("DELETE FROM a", "DELETE FROM b"),
            ("DELETE FROM \"A\"", "DELETE FROM a"),
            ("UPDATE t SET a = 1", "UPDATE t SET b = 1"),
            ("SELECT a - 1", "SELECT a + 1"),
            ("SELECT a <> 1", "SELECT a <= 1"),
            ("SELECT (1), (a)", "SELECT (a), (1)"),
            ("SELECT f(1), f(1)", "SELECT f(1)"),
            (
                "INSERT INTO t VALUES (1)",
                "INSERT INTO t VALUES (1) RETURNING id",
            ),
        ] {
            assert_ne!(shape(one), shape(other), "{one} and {other}");
        }
        check(&["SELECT a-1, (b)-1"], "select a - ?, (b) - ?");
        check(
            &["SELECT a::int, s.\"T\"\"x\".c->>'k'"],
            "select a::int, s.\"T\"\"x\".c ->> ?",
        );
    }

    #[test]
    fn cut_texts_fold_too() {
        let long = |rows: usize| {
            let rows: Vec<String> = (0..rows).map(|row| format!("{row}")).collect();
            let sql = format!("DELETE FROM t WHERE id IN ({})", rows.join(", "));
            StatementText::new(sql.as_bytes(), Literals::Keep)
        };
        check(
            &[long(500).as_str(), long(900).as_str()],
            "delete from t where id in (? ...",
        );
        check(
            &["INSERT INTO t VALUES (?, ..."],
            "insert into t values (? ...",
        );
        check(&["SELECT 'never closed", "SELECT ? ..."], "select ? ...");
        check(&["", " ;; "], "");
    }

    #[test]
    fn any_text_has_a_shape_and_a_shape_is_its_own() {
        let sql =
            "INSERT INTO \"a b\" (x) VALUES (1, -2, 'x', $1), (f(3)) ; SELECT a[1:2] || E'\\n' ...";
        for from in 0..sql.len() {
            for to in from..=sql.len() {
                let once = shape(sql.get(from..to).unwrap_or_default());
                assert_eq!(shape(&once), once, "{:?}", sql.get(from..to));
            }
        }
    }
}
