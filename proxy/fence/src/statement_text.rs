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
                let mut lexer = Lexer::new(valid);
                let whole = lexer.run().is_some();
                (lexer.out, whole && all && valid.len() == look.len())
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
    let end = boundary_at_most(&text, MAX_STATEMENT - CUT.len());
    text.truncate(end);
    text.truncate(text.trim_end().len());
    text.push_str(CUT);
    text
}

/// Last character boundary that is not after `limit`.
pub fn boundary_at_most(text: &str, limit: usize) -> usize {
    let mut at = limit.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1; // 0 is a boundary.
    }
    at
}

/// Copies everything but literals and comments. A step returns `None` if the rest must be dropped.
struct Lexer<'a> {
    rest: &'a str,
    out: String,
}

impl<'a> Lexer<'a> {
    fn new(text: &'a str) -> Self {
        Self {
            rest: text,
            out: String::with_capacity(text.len().min(MAX_STATEMENT)),
        }
    }

    /// Runs to the end or until there is enough text. `None`: stopped in doubt.
    fn run(&mut self) -> Option<()> {
        while self.out.len() <= MAX_STATEMENT {
            let Some(next) = self.rest.chars().next() else {
                return Some(());
            };
            self.step(next)?;
        }
        Some(())
    }

    fn step(&mut self, next: char) -> Option<()> {
        match next {
            ' ' | '\t' | '\n' | '\r' | '\x0b' | '\x0c' => {
                self.take(1)?;
                self.space();
            }
            '\'' => self.plain_string()?,
            '"' => self.identifier_in_quotes()?,
            '$' => self.dollar()?,
            '0'..='9' => self.number(),
            '.' if self.rest.as_bytes().get(1).is_some_and(u8::is_ascii_digit) => self.number(),
            '-' if self.rest.starts_with("--") => {
                let end = self.rest.find(['\n', '\r']).unwrap_or(self.rest.len());
                self.take(end)?;
                self.space();
            }
            '/' if self.rest.starts_with("/*") => self.block_comment()?,
            '_' | 'a'..='z' | 'A'..='Z' | '\u{80}'.. => self.word()?,
            '(' | ')' | '[' | ']' | ',' | ';' | ':' | '.' | '+' | '-' | '*' | '/' | '<' | '>'
            | '=' | '~' | '!' | '@' | '#' | '%' | '^' | '&' | '|' | '`' | '?' => {
                self.take(1)?;
                self.out.push(next);
            }
            // A backslash, a brace or a control character outside quotes is no SQL: we may have lost track of a quote.
            _ => return None,
        }
        Some(())
    }

    fn take(&mut self, bytes: usize) -> Option<&'a str> {
        let (taken, rest) = self.rest.split_at_checked(bytes)?;
        self.rest = rest;
        Some(taken)
    }

    fn space(&mut self) {
        if !self.out.is_empty() && !self.out.ends_with(' ') {
            self.out.push(' ');
        }
    }

    /// `'...'`. Whether a backslash escapes depends on standard_conforming_strings: if that moves the end, the rest
    /// is in doubt.
    fn plain_string(&mut self) -> Option<()> {
        self.out.push(GONE);
        let body = self.rest.get(1..)?;
        let standard = end_of_string(body, Backslash::Literal)?;
        let escaping = end_of_string(body, Backslash::Escapes);
        if escaping != Some(standard) {
            return None;
        }
        self.take(1 + standard).map(drop)
    }

    /// `E'...'`, after its letter.
    fn escape_string(&mut self) -> Option<()> {
        self.out.push(GONE);
        let end = end_of_string(self.rest.get(1..)?, Backslash::Escapes)?;
        self.take(1 + end).map(drop)
    }

    fn identifier_in_quotes(&mut self) -> Option<()> {
        let mut from = 1;
        loop {
            let quote = from + self.rest.get(from..)?.find('"')?;
            if self.rest.as_bytes().get(quote + 1) != Some(&b'"') {
                let name = self.take(quote + 1)?;
                self.out.push_str(name);
                return Some(());
            }
            from = quote + 2;
        }
    }

    /// `$1`, or `$tag$...$tag$`.
    fn dollar(&mut self) -> Option<()> {
        let body = self.rest.get(1..)?;
        let digits = body.bytes().take_while(u8::is_ascii_digit).count();
        if digits > 0 {
            let parameter = self.take(1 + digits)?;
            self.out.push_str(parameter);
            return Some(());
        }
        let tag_len = 2 + body.find('$')?;
        let tag = self.rest.get(..tag_len)?;
        let inner = tag.trim_matches('$');
        if !inner
            .chars()
            .all(|c| c == '_' || c.is_ascii_alphanumeric() || !c.is_ascii())
        {
            return None;
        }
        self.out.push(GONE);
        let end = self.rest.get(tag_len..)?.find(tag)?;
        self.take(tag_len + end + tag_len).map(drop)
    }

    /// Decimal or hexadecimal, with `_`, fraction and exponent; what is attached to it goes too.
    fn number(&mut self) {
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
        if self.take(end).is_some() {
            self.out.push(GONE);
        }
    }

    /// `/* ... */`, which nest.
    fn block_comment(&mut self) -> Option<()> {
        let mut depth = 0_usize;
        loop {
            if self.rest.starts_with("/*") {
                depth += 1;
                self.take(2)?;
            } else if self.rest.starts_with("*/") {
                depth -= 1;
                self.take(2)?;
                if depth == 0 {
                    self.space();
                    return Some(());
                }
            } else {
                let next = self.rest.chars().next()?;
                self.take(next.len_utf8())?;
            }
        }
    }

    /// A name or key word, or the letters before a string.
    fn word(&mut self) -> Option<()> {
        let part = |c: char| c == '_' || c == '$' || c.is_ascii_alphanumeric() || !c.is_ascii();
        let end = self
            .rest
            .find(|c: char| !part(c))
            .unwrap_or(self.rest.len());
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
            _ => {
                self.out.push_str(word);
                Some(())
            }
        }
    }
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
