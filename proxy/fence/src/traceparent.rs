//! Trace that a statement belongs to, from a comment at its beginning or end:
//! <https://google.github.io/sqlcommenter/spec/>, <https://www.w3.org/TR/trace-context/#traceparent-header>.

/// Bytes at either end of a text in which a comment is searched.
const LOOK: usize = 2048;

/// Length of `00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01`.
const LEN: usize = 55;

/// A valid `traceparent`: hexadecimal digits and hyphens only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Traceparent([u8; LEN]);

impl Traceparent {
    /// Finds it in the comment that begins or ends a text. The rest of the comment is ignored.
    #[must_use]
    pub fn of_statement(sql: &[u8]) -> Option<Self> {
        leading_comment(sql)
            .and_then(Self::of_comment)
            .or_else(|| trailing_comment(sql).and_then(Self::of_comment))
    }

    /// Parses `key='value',key='value'`: keys and values are percent-encoded, so they contain no comma or quote.
    fn of_comment(comment: &[u8]) -> Option<Self> {
        comment.split(|byte| *byte == b',').find_map(|pair| {
            let value = pair.trim_ascii().strip_prefix(b"traceparent=")?;
            Self::parse(value.strip_prefix(b"'")?.strip_suffix(b"'")?)
        })
    }

    fn parse(text: &[u8]) -> Option<Self> {
        let valid: [u8; LEN] = text.try_into().ok()?;
        let mut parts = text.split(|byte| *byte == b'-');
        let mut part = |len: usize| {
            let part = parts.next().filter(|part| part.len() == len)?;
            let is_hex = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
            part.iter().all(is_hex).then_some(part)
        };
        let (version, trace, parent) = (part(2)?, part(32)?, part(16)?);
        part(2)?;
        let is_zero = |part: &[u8]| part.iter().all(|byte| *byte == b'0');
        (version != b"ff" && !is_zero(trace) && !is_zero(parent)).then_some(Self(valid))
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        // It is ASCII.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

fn leading_comment(sql: &[u8]) -> Option<&[u8]> {
    let look = sql.get(..LOOK).unwrap_or(sql);
    let body = look.trim_ascii_start().strip_prefix(b"/*")?;
    body.get(..find(body, b"*/")?)
}

fn trailing_comment(sql: &[u8]) -> Option<&[u8]> {
    let look = sql.get(sql.len().saturating_sub(LOOK)..)?;
    let mut text = look.trim_ascii_end();
    while let Some(before) = text.strip_suffix(b";") {
        text = before.trim_ascii_end();
    }
    let body = text.strip_suffix(b"*/")?;
    let begin = body.windows(2).rposition(|two| two == b"/*")?;
    body.get(begin + 2..)
}

fn find(text: &[u8], two: &[u8; 2]) -> Option<usize> {
    text.windows(2).position(|found| found == two)
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALID: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[track_caller]
    fn check(sql: &str, expect: Option<&str>) {
        let found = Traceparent::of_statement(sql.as_bytes());
        assert_eq!(found.as_ref().map(Traceparent::as_str), expect, "{sql}");
    }

    #[test]
    fn in_a_comment_at_either_end() {
        for sql in [
            format!("SELECT 1 /*traceparent='{VALID}'*/"),
            format!("SELECT 1 /*action='run%2Cit',traceparent='{VALID}',tracestate='a%3Db'*/ ; "),
            format!("SELECT '/* x' /* app='a', traceparent='{VALID}' */;;"),
            format!("  /*dddbs='x',traceparent='{VALID}'*/ INSERT INTO t VALUES (1)"),
            format!("/*a='b'*/ SELECT 1 /*traceparent='{VALID}'*/"),
            format!("SELECT '{}' /*traceparent='{VALID}'*/", "x".repeat(100_000)),
            format!("/*traceparent='{VALID}'*/ SELECT '{}'", "x".repeat(100_000)),
        ] {
            check(&sql, Some(VALID));
        }
    }

    #[test]
    fn only_a_valid_one_and_only_there() {
        let zeros = format!("00-{}-b7ad6b7169203331-01", "0".repeat(32));
        for value in [
            "",
            "00-1-2-3",
            zeros.as_str(),
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0\u{1b}",
            "00-0af7651916cd43dd8448eb211c80319cb-7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\n",
        ] {
            check(&format!("SELECT 1 /*traceparent='{value}'*/"), None);
        }
        for sql in [
            format!("SELECT 1 /*traceparent={VALID}*/"),
            format!("SELECT 1 /*xtraceparent='{VALID}'*/"),
            format!("SELECT 'traceparent=''{VALID}'''"),
            format!("SELECT '/*traceparent=\\'{VALID}\\'*/' AS a"),
            format!("SELECT /*traceparent='{VALID}'*/ 1"),
            format!("SELECT 1 -- traceparent='{VALID}'"),
            format!("traceparent='{VALID}'*/"),
            "/*".to_owned(),
            "*/".to_owned(),
            "/*/".to_owned(),
            String::new(),
        ] {
            check(&sql, None);
        }
    }
}
