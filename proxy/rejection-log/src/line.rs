//! Parsing of the lines of a rejection log.

use std::io::{self, BufRead};
use std::net::SocketAddr;

use jiff::Timestamp;
use serde::{Deserialize, Deserializer};

use super::record::clip;
use pgpalisade_fence::rejection::Enforcement;

/// Longest line that is parsed. A record with every name at its limit, all of it escaped, has about 16 KiB.
const MAX_LINE: usize = 64 * 1024;

#[derive(Debug)]
pub enum Line {
    Record(Box<Record>),
    /// Number of refusals before authentication.
    Unauthenticated {
        time: Timestamp,
        records: u64,
    },
    /// Number of missing records.
    Dropped {
        time: Timestamp,
        records: u64,
    },
    /// An empty line, as after a torn line.
    Empty,
    Foreign,
}

/// A record as read, with names no longer than the proxy writes them.
#[derive(Debug)]
pub struct Record {
    pub time: Timestamp,
    /// In the word of the log.
    pub kind: String,
    pub sqlstate: String,
    pub scope: Option<String>,
    pub token: Option<u64>,
    pub mark: Option<u64>,
    pub session: RecordedClient,
    pub statement: LoggedStatement,
    pub reason: Option<String>,
    pub enforced: Enforcement,
    pub count: u64,
}

#[derive(Debug, Deserialize)]
pub struct RecordedClient {
    #[serde(default, deserialize_with = "name_or_empty")]
    pub user: String,
    #[serde(default, deserialize_with = "name_or_empty")]
    pub(crate) database: String,
    #[serde(default, rename = "application_name", deserialize_with = "name")]
    pub application: Option<String>,
    /// Without the port, which differs for each connection.
    #[serde(default, rename = "client_addr", deserialize_with = "host")]
    pub client: Option<String>,
    #[serde(default = "yes")]
    pub authenticated: bool,
}

#[derive(Debug, Deserialize)]
pub struct LoggedStatement {
    /// In the words of the policy.
    #[serde(default, rename = "statement_class", deserialize_with = "name")]
    pub(crate) class: Option<String>,
    #[serde(rename = "statement")]
    pub text: Option<String>,
}

#[derive(Debug, Clone, Default)]
pub struct Filter {
    pub since: Option<Timestamp>,
    pub until: Option<Timestamp>,
    pub scope: Option<String>,
    pub enforced: Option<Enforcement>,
}

impl Filter {
    pub fn takes_time(&self, time: Timestamp) -> bool {
        self.since.is_none_or(|since| time >= since) && self.until.is_none_or(|until| time < until)
    }

    pub fn takes_scope(&self, record: &Record) -> bool {
        self.scope.is_none() || self.scope == record.scope
    }

    pub fn takes(&self, record: &Record) -> bool {
        self.takes_time(record.time)
            && self.takes_scope(record)
            && self.enforced.is_none_or(|only| only == record.enforced)
    }
}

/// The JSON object of a line. Unknown fields are ignored, because a newer proxy may write more.
#[derive(Deserialize)]
struct Fields {
    time: Option<Timestamp>,
    dropped: Option<u64>,
    /// Number of refusals that were not recorded.
    unauthenticated: Option<u64>,
    #[serde(default, deserialize_with = "name")]
    kind: Option<String>,
    #[serde(default, deserialize_with = "name")]
    sqlstate: Option<String>,
    #[serde(default, deserialize_with = "name")]
    scope: Option<String>,
    token: Option<u64>,
    mark: Option<u64>,
    #[serde(flatten)]
    session: RecordedClient,
    #[serde(flatten)]
    statement: LoggedStatement,
    reason: Option<String>,
    enforced: Option<bool>,
    count: Option<u64>,
}

fn name<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    let name = Option::<String>::deserialize(from)?;
    Ok(name.map(|name| clip(&name).to_owned()))
}

fn name_or_empty<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    Ok(name(from)?.unwrap_or_default())
}

fn host<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    let address = name(from)?;
    Ok(address.map(|address| {
        let socket = address.parse::<SocketAddr>();
        socket.map_or(address, |socket| socket.ip().to_string())
    }))
}

const fn yes() -> bool {
    true
}

pub fn parse(line: &[u8]) -> Line {
    if line.trim_ascii().is_empty() {
        return Line::Empty;
    }
    let Ok(fields) = serde_json::from_slice::<Fields>(line) else {
        return Line::Foreign;
    };
    let Some(time) = fields.time else {
        return Line::Foreign;
    };
    match fields {
        Fields {
            dropped: Some(records),
            ..
        } => Line::Dropped { time, records },
        Fields {
            unauthenticated: Some(records),
            ..
        } => Line::Unauthenticated { time, records },
        Fields {
            kind: Some(kind), ..
        } => Line::Record(Box::new(Record {
            time,
            kind,
            sqlstate: fields.sqlstate.unwrap_or_default(),
            scope: fields.scope,
            token: fields.token,
            mark: fields.mark,
            session: fields.session,
            statement: fields.statement,
            reason: fields.reason,
            // Before observe mode existed, all refusals were carried out.
            enforced: match fields.enforced {
                Some(false) => Enforcement::Observed,
                Some(true) | None => Enforcement::Refused,
            },
            // This bound keeps sums from overflowing.
            count: fields.count.unwrap_or(1).clamp(1, u64::from(u32::MAX)),
        })),
        _ => Line::Foreign,
    }
}

#[derive(Debug, PartialEq, Eq)]
pub enum Read {
    /// A complete line, now in the buffer without its end.
    Line,
    /// The input ended in the middle of a line, now in the buffer.
    Torn,
    /// A line longer than any record, skipped.
    TooLong,
    End,
}

/// Reads one line into `line`, which never grows beyond 64 KiB.
pub fn read(from: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<Read> {
    line.clear();
    let mut too_long = false;
    loop {
        let bytes = match from.fill_buf() {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if bytes.is_empty() {
            return Ok(match (too_long, line.is_empty()) {
                (true, _) => Read::TooLong,
                (false, true) => Read::End,
                (false, false) => Read::Torn,
            });
        }
        let end = bytes.iter().position(|byte| *byte == b'\n');
        let part = bytes.get(..end.unwrap_or(bytes.len())).unwrap_or_default();
        too_long |= line.len() + part.len() > MAX_LINE;
        if too_long {
            line.clear();
        } else {
            line.extend_from_slice(part);
        }
        let used = part.len() + usize::from(end.is_some());
        from.consume(used);
        if end.is_some() {
            return Ok(if too_long { Read::TooLong } else { Read::Line });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::BufReader;

    use super::*;

    #[test]
    fn lines_are_read_whatever_the_buffer() {
        let long = "x".repeat(MAX_LINE + 1);
        let exact = "y".repeat(MAX_LINE);
        let text = format!("a\n\n{long}\n{exact}\ntorn");
        for size in [1, 7, 4096, 1 << 20] {
            let mut from = BufReader::with_capacity(size, text.as_bytes());
            let mut line = Vec::new();
            let mut next = || read(&mut from, &mut line).map(|read| (read, line.len()));
            let all: Vec<_> = std::iter::repeat_with(&mut next)
                .map_while(Result::ok)
                .take_while(|(read, _)| *read != Read::End)
                .collect();
            let expect = [
                (Read::Line, 1),
                (Read::Line, 0),
                (Read::TooLong, 0),
                (Read::Line, MAX_LINE),
                (Read::Torn, 4),
            ];
            assert_eq!(all, expect, "buffer of {size}");
        }
    }

    #[test]
    fn what_is_no_record_is_foreign() {
        for line in [
            "x",
            "{}",
            "[1]",
            "17",
            r#"{"time":"2026-11-21T03:22:04Z"}"#,
            r#"{"time":"yesterday","kind":"no_token"}"#,
            r#"{"kind":"no_token"}"#,
            r#"{"time":"2026-11-21T03:22:04Z","kind":17}"#,
            r#"{"time":"2026-11-21T03:22:04Z","kind":"no_tok"#,
        ] {
            assert!(matches!(parse(line.as_bytes()), Line::Foreign), "{line}");
        }
        assert!(matches!(parse(b" \r"), Line::Empty));
        assert!(matches!(parse(b"{\"time\":\"\xff\"}"), Line::Foreign));
    }

    #[test]
    fn records_of_other_versions_are_read() {
        let old = br#"{"time":"2026-11-21T03:22:04Z","kind":"no_token","client_addr":"[::1]:5","new_field":[1]}"#;
        let Line::Record(record) = parse(old) else {
            panic!("no record");
        };
        assert_eq!(record.enforced, Enforcement::Refused);
        assert_eq!(record.session.client.as_deref(), Some("::1"));
        assert_eq!((record.scope, record.session.user.as_str()), (None, ""));
    }
}
