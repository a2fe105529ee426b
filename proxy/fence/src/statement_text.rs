//! SQL text of a record: shortened, and without the literals that it contains.
//!
//! This is not the classifier. It must never show a literal, so in doubt it drops the rest of the text.
//! Rules: <https://www.postgresql.org/docs/current/sql-syntax-lexical.html>.

/// Longest text in a record, in bytes.
const MAX_STATEMENT: usize = 1024;

/// Bytes of a statement that are read. A literal that goes on after them ends the text.
const MAX_LOOK: usize = 16 * 1024;

/// Shown in place of a literal.
const GONE: char = '?';

/// Shown where the rest of the text was dropped.
const CUT: &str = " ...";

/// Whether the SQL text of a rejection record keeps its literals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Literals {
    /// Strings, numbers and comments are removed: they may be personal data or passwords.
    Remove,
    /// The text stays as it was.
    Keep,
}

/// SQL text that is fit for a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatementText(String);

impl StatementText {
    /// Shortens the text to at most `MAX_STATEMENT` bytes, on a character boundary, with or without literals.
    ///
    /// Takes bytes, since the text is in the client's encoding. Without literals, the first byte that is not
    /// UTF-8 ends it.
    pub fn new(sql: &[u8], literals: Literals) -> Self {
        let (look, all) = match sql.get(..MAX_LOOK) {
            Some(start) if sql.len() > MAX_LOOK => (start, false),
            _ => (sql, true),
        };
        let (text, whole) = match literals {
            Literals::Keep => (String::from_utf8_lossy(look).into_owned(), all),
            Literals::Remove => {
                let valid = look.utf8_chunks().next().map_or("", |chunk| chunk.valid());
                let (text, whole) = without_literals(valid);
                (text, whole && all && valid.len() == look.len())
            }
        };
        Self(shorten(text, whole))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn shorten(mut text: String, whole: bool) -> String {
    if whole && text.len() <= MAX_STATEMENT {
        return text;
    }
    text.truncate(text.floor_char_boundary(MAX_STATEMENT - CUT.len()));
    text.truncate(text.trim_end().len());
    text.push_str(CUT);
    text
}

/// The text, and whether it is all of it.
fn without_literals(sql: &str) -> (String, bool) {
    let mut out = String::with_capacity(sql.len().min(MAX_STATEMENT));
    let mut tokens = Tokens { rest: sql };
    let mut of_role = OfRole::default();
    while out.len() <= MAX_STATEMENT
        && let Some(token) = tokens.next()
    {
        match token {
            Token::Space if out.is_empty() || out.ends_with(' ') => {}
            Token::Space => out.push(' '),
            Token::Literal => {
                out.push(GONE);
                of_role.on_literal();
            }
            // A quote is missing, or one too many.
            Token::Kept(text) if out.ends_with(GONE) && text.starts_with(is_word) => {
                return (out, false);
            }
            Token::Kept(text) if of_role.has_password(text) => return (out, false),
            Token::Kept(text) => out.push_str(text),
            Token::Doubt => return (out, false),
        }
    }
    (out, true)
}

/// How far a statement is CREATE or ALTER of a role with a password.
#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum OfRole {
    /// A statement begins.
    #[default]
    Begins,
    /// After CREATE or ALTER.
    Verb,
    /// It is about a role.
    Role,
    /// After PASSWORD: a literal or NULL follows.
    Password,
    Other,
}

impl OfRole {
    /// Notes a word or sign. Returns whether it stands where a password is to be.
    fn has_password(&mut self, text: &str) -> bool {
        let is = |words: &[&str]| words.iter().any(|word| text.eq_ignore_ascii_case(word));
        let before = *self;
        *self = match before {
            _ if text == ";" => Self::Begins,
            Self::Begins if is(&["create", "alter"]) => Self::Verb,
            Self::Verb if is(&["role", "user", "group"]) => Self::Role,
            Self::Role | Self::Password if is(&["password"]) => Self::Password,
            Self::Role | Self::Password => Self::Role,
            Self::Begins | Self::Verb | Self::Other => Self::Other,
        };
        before == Self::Password && text != ";" && !is(&["null"])
    }

    fn on_literal(&mut self) {
        if *self == Self::Password {
            *self = Self::Role;
        }
    }
}

/// Operator characters.
const OPERATORS: &str = "+-*/<>=~!@#%^&|`:";

/// Characters that let an operator of several characters end in a sign.
/// <https://www.postgresql.org/docs/current/sql-createoperator.html>
const LETS_SIGN_END: &str = "~!@#%^&|`";

/// Begins no token.
const NO_TOKEN: &str = "\\";

enum Token<'a> {
    /// White space or a comment.
    Space,
    /// A string or a number.
    Literal,
    /// A name, a parameter, an operator, a bracket or the like.
    Kept(&'a str),
    /// The rest, which may be part of a literal.
    Doubt,
}

/// Tokens of a text, to the first doubt.
struct Tokens<'a> {
    rest: &'a str,
}

impl<'a> Iterator for Tokens<'a> {
    type Item = Token<'a>;

    fn next(&mut self) -> Option<Token<'a>> {
        let next = self.rest.chars().next()?;
        let token = self.token(next);
        if token.is_none() {
            self.rest = "";
        }
        Some(token.unwrap_or(Token::Doubt))
    }
}

impl<'a> Tokens<'a> {
    /// The token that begins with a character; `None` in doubt.
    fn token(&mut self, next: char) -> Option<Token<'a>> {
        let second = self.rest.as_bytes().get(1);
        match next {
            ' ' | '\t' | '\n' | '\r' | '\x0b' | '\x0c' => self.take(1).map(|_| Token::Space),
            '\'' => self.plain_string(),
            '"' => self.identifier_in_quotes(),
            '$' => self.dollar(),
            '0'..='9' => self.number(),
            '.' if second.is_some_and(u8::is_ascii_digit) => self.number(),
            '-' if self.rest.starts_with("--") => {
                let end = self.rest.find(['\n', '\r']).unwrap_or(self.rest.len());
                self.take(end).map(|_| Token::Space)
            }
            '/' if self.rest.starts_with("/*") => self.block_comment(),
            '_' | 'a'..='z' | 'A'..='Z' | '\u{80}'.. => self.word(),
            '(' | ')' | '[' | ']' | ',' | ';' | '.' | '?' => self.take(1).map(Token::Kept),
            _ if OPERATORS.contains(next) => self.operator(),
            // A backslash, a brace or a control character outside quotes is no SQL: we may have lost track of a quote.
            _ => None,
        }
    }

    fn take(&mut self, bytes: usize) -> Option<&'a str> {
        let (taken, rest) = self.rest.split_at_checked(bytes)?;
        self.rest = rest;
        Some(taken)
    }

    /// A literal of this length; without one, what follows is in doubt.
    fn literal(&mut self, length: Option<usize>) -> Token<'a> {
        if length.and_then(|length| self.take(length)).is_none() {
            self.rest = NO_TOKEN;
        }
        Token::Literal
    }

    /// A comment ends an operator, and so does a last sign, unless a character lets it be a part.
    fn operator(&mut self) -> Option<Token<'a>> {
        let no_part = |c| !OPERATORS.contains(c);
        let run = self.rest.split(no_part).next()?;
        let comment = run.find("--").into_iter().chain(run.find("/*")).min();
        let run = run.get(..comment.unwrap_or(run.len()))?;
        let has_sign_end = run.contains(|c| LETS_SIGN_END.contains(c));
        let signs: &[char] = if has_sign_end { &[] } else { &['+', '-'] };
        let length = run.trim_end_matches(signs).len().max(1);
        self.take(length).map(Token::Kept)
    }

    /// `'...'`. Whether a backslash escapes depends on standard_conforming_strings: if that moves the end, the rest
    /// is in doubt.
    fn plain_string(&mut self) -> Option<Token<'a>> {
        let body = self.rest.get(1..)?;
        let standard = end_of_string(body, Backslash::Literal);
        let end = standard.filter(|_| end_of_string(body, Backslash::Escapes) == standard);
        Some(self.literal(end.map(|end| 1 + end)))
    }

    /// `E'...'`, after its letter.
    fn escape_string(&mut self) -> Option<Token<'a>> {
        let end = end_of_string(self.rest.get(1..)?, Backslash::Escapes);
        Some(self.literal(end.map(|end| 1 + end)))
    }

    fn identifier_in_quotes(&mut self) -> Option<Token<'a>> {
        let mut from = 1;
        loop {
            let quote = from + self.rest.get(from..)?.find('"')?;
            if self.rest.as_bytes().get(quote + 1) != Some(&b'"') {
                return self.take(quote + 1).map(Token::Kept);
            }
            from = quote + 2;
        }
    }

    /// `$1`, or `$tag$...$tag$`.
    fn dollar(&mut self) -> Option<Token<'a>> {
        let body = self.rest.get(1..)?;
        let digits = body.bytes().take_while(u8::is_ascii_digit).count();
        if digits > 0 {
            return self.take(1 + digits).map(Token::Kept);
        }
        let tag_len = 2 + body.find('$')?;
        let tag = self.rest.get(..tag_len)?;
        let inner = tag.trim_matches('$');
        if inner.contains(|c| c == '$' || !is_word(c)) {
            return None;
        }
        let end = self.rest.get(tag_len..)?.find(tag);
        Some(self.literal(end.map(|end| tag_len + end + tag_len)))
    }

    /// Decimal or hexadecimal, with `_`, fraction and exponent; what is attached to it goes too.
    fn number(&mut self) -> Option<Token<'a>> {
        let mut before = ' ';
        let end = self.rest.find(|c: char| {
            let sign = matches!(c, '+' | '-') && matches!(before, 'e' | 'E');
            let part = c.is_alphanumeric() || c == '_' || c == '.' || sign;
            before = c;
            !part
        });
        let hexadecimal = self.rest.starts_with("0x") || self.rest.starts_with("0X");
        let mut end = end.unwrap_or(self.rest.len());
        if hexadecimal {
            // In 0xe-1 the sign is an operator. What follows it is read as a number of its own.
            let glued = |c: char| !(c.is_alphanumeric() || c == '_');
            end = self.rest.find(glued).unwrap_or(self.rest.len());
        }
        self.take(end).map(|_| Token::Literal)
    }

    /// `/* ... */`, which nest.
    fn block_comment(&mut self) -> Option<Token<'a>> {
        let mut depth = 0_usize;
        loop {
            if self.rest.starts_with("/*") {
                depth += 1;
                self.take(2)?;
            } else if self.rest.starts_with("*/") {
                depth -= 1;
                self.take(2)?;
                if depth == 0 {
                    return Some(Token::Space);
                }
            } else {
                let next = self.rest.chars().next()?;
                self.take(next.len_utf8())?;
            }
        }
    }

    /// A name or key word, or the letters before a string.
    fn word(&mut self) -> Option<Token<'a>> {
        let end = self.rest.find(|c| !is_word(c));
        let end = end.unwrap_or(self.rest.len());
        let word = self.take(end)?;
        let quoted = self.rest.starts_with('\'');
        match word {
            "E" | "e" if quoted => self.escape_string(),
            "B" | "b" | "X" | "x" | "N" | "n" if quoted => self.plain_string(),
            "U" | "u" if self.rest.starts_with("&'") => {
                self.take(1)?;
                self.plain_string()
            }
            // No name comes directly before a quote: the rest is in doubt.
            _ if quoted => None,
            _ => Some(Token::Kept(word)),
        }
    }
}

/// Whether a character may be in a word.
fn is_word(c: char) -> bool {
    c == '_' || c == '$' || c.is_ascii_alphanumeric() || !c.is_ascii()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Backslash {
    Literal,
    Escapes,
}

/// Length of a string's body with its closing quote; a doubled quote does not close.
fn end_of_string(body: &str, backslash: Backslash) -> Option<usize> {
    let mut bytes = body.bytes().enumerate().peekable();
    while let Some((at, byte)) = bytes.next() {
        match byte {
            b'\\' if backslash == Backslash::Escapes => {
                bytes.next()?;
            }
            b'\'' if bytes.next_if(|(_, next)| *next == b'\'').is_none() => return Some(at + 1),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(sql: &str, expect: &str) {
        assert_eq!(
            StatementText::new(sql.as_bytes(), Literals::Remove).as_str(),
            expect,
            "{sql}"
        );
    }

    #[test]
    fn literals_go() {
        check("SELECT 1", "SELECT ?");
        check("SELECT 'secret', 'it''s', ''", "SELECT ?, ?, ?");
        check("SELECT 'a' 'b'", "SELECT ? ?");
        check(r"SELECT E'a\'b' , e'\\'", "SELECT ? , ?");
        check(r"SELECT 'C:\dir\\'", "SELECT ?");
        check(
            "SELECT b'01', X'ff', n'x', U&'d\\0061t'",
            "SELECT ?, ?, ?, ?",
        );
        check("SELECT $$a'b$$, $t$ $$ x $t$, $1", "SELECT ?, ?, $1");
        check("SELECT $é$secret$é$", "SELECT ?");
        check(
            "SELECT 1.5, .5, 1e-5, 1E+5, 0x1F, 1_000, 5.",
            "SELECT ?, ?, ?, ?, ?, ?, ?",
        );
        check("SELECT 0xe-12, a-12", "SELECT ?-?, a-?");
        check("SELECT a1, t$2, x_9 FROM t1", "SELECT a1, t$2, x_9 FROM t1");
        check(
            "SELECT \"col 1\", \"a\"\"b'c\", U&\"d\\0061\"",
            "SELECT \"col 1\", \"a\"\"b'c\", U&\"d\\0061\"",
        );
        check(
            "SELECT -- secret\n 1 /* secret /* nested */ secret */ + 2",
            "SELECT ? + ?",
        );
        check("a  \n\t b", "a b");
        check("ALTER ROLE r PASSWORD 'p'", "ALTER ROLE r PASSWORD ?");
        check("DO $$ BEGIN secret; END $$", "DO ?");
        check("SELECT größe FROM jobs", "SELECT größe FROM jobs");
        check("", "");
    }

    #[test]
    fn doubt_drops_the_rest() {
        check("SELECT 'secret", "SELECT ? ...");
        check(r"SELECT 'a\', secret, '", "SELECT ? ...");
        check(r"SELECT 'a\'secret', 1", "SELECT ? ...");
        check("SELECT E'a' \n 'b\\'secret'", "SELECT ? ? ...");
        check("SELECT $$secret", "SELECT ? ...");
        check("SELECT $a b$secret$a b$", "SELECT ...");
        check("SELECT \"secret", "SELECT ...");
        check("SELECT 1 /* secret", "SELECT ? ...");
        check("SELECT 1 \\ secret", "SELECT ? ...");
        check("SELECT 1 \0 secret", "SELECT ? ...");
        check("SELECT foo'secret'", "SELECT ...");
        check(
            "ALTER USER u PASSWORD 'it's my secret'",
            "ALTER USER u PASSWORD ? ...",
        );
        check("ALTER USER u PASSWORD secret", "ALTER USER u PASSWORD ...");
        check(
            "/* x */ alter role u password \"secret\"",
            "alter role u password ...",
        );
        check(
            "BEGIN; CREATE USER u PASSWORD secret",
            "BEGIN; CREATE USER u PASSWORD ...",
        );
        check(
            "ALTER USER u PASSWORD 'a' LOGIN; SELECT 1",
            "ALTER USER u PASSWORD ? LOGIN; SELECT ?",
        );
        check("SELECT password FROM users", "SELECT password FROM users");
        check(
            "ALTER ROLE r PASSWORD NULL LOGIN",
            "ALTER ROLE r PASSWORD NULL LOGIN",
        );
        check("SELECT éE'secret'", "SELECT ...");
        let not_utf8 = StatementText::new(b"SELECT a, \xff'secret'", Literals::Remove);
        assert_eq!(not_utf8.as_str(), "SELECT a, ...");
    }

    #[test]
    fn no_prefix_of_a_statement_shows_a_literal() {
        let sql = r#"INSERT INTO t VALUES ('secret', E'\'secret', $q$secret$q$, U&'secret', "a") /* secret */ -- sec"#;
        for end in 0..=sql.len() {
            let text = StatementText::new(
                sql.as_bytes().get(..end).unwrap_or_default(),
                Literals::Remove,
            );
            assert!(!text.as_str().contains("sec"), "{}", text.as_str());
        }
    }

    #[test]
    fn long_texts_are_cut_on_a_character() {
        for literals in [Literals::Keep, Literals::Remove] {
            for shift in 0..3 {
                let sql = format!("{}{}", "x".repeat(shift), "é".repeat(5_000));
                let text = StatementText::new(sql.as_bytes(), literals);
                assert!(
                    text.as_str().len() <= MAX_STATEMENT && text.as_str().len() > MAX_STATEMENT - 8
                );
                assert!(text.as_str().ends_with(CUT));
            }
            let exact = "x".repeat(MAX_STATEMENT);
            assert_eq!(
                StatementText::new(exact.as_bytes(), literals).as_str(),
                exact
            );
        }
        // The literal goes on after the bytes that are read.
        let sql = format!("SELECT '{}', tail", "secret".repeat(10_000));
        check(&sql, "SELECT ? ...");
    }

    #[test]
    fn kept_when_told() {
        let keep = |sql: &[u8]| StatementText::new(sql, Literals::Keep).0;
        assert_eq!(keep(b"SELECT 'a'\n, 1"), "SELECT 'a'\n, 1");
        assert_eq!(keep(b"SELECT '\xff'"), "SELECT '\u{fffd}'");
    }
}
