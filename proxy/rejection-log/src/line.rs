//! Parsing of the lines of a rejection log.

use std::io::{self, BufRead, Read as _};
use std::net::SocketAddr;

use jiff::Timestamp;
use serde::{Deserialize, Deserializer};

use pgpalisade_fence::rejection::Enforcement;

/// Longest line that is parsed. A record with every name at its limit, all of it escaped, has about 16 KiB.
const MAX_LINE: usize = 64 * 1024;

/// Content of a line. Other fields are ignored, because a newer proxy may write more.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub enum Line {
    /// Number of missing records.
    Dropped {
        time: Timestamp,
        /// The number.
        #[serde(rename = "dropped")]
        records: u64,
    },
    /// Number of refusals before authentication.
    Unauthenticated {
        /// Time of the last count.
        time: Timestamp,
        /// The number.
        #[serde(rename = "unauthenticated")]
        records: u64,
    },
    /// One refusal, or several alike.
    Record(Box<Record>),
    /// An empty line, as after a torn line.
    #[serde(skip)]
    Empty,
    /// Not a line of a rejection log.
    #[serde(skip)]
    Foreign,
}

/// A record as read.
#[derive(Debug, Deserialize)]
pub struct Record {
    pub time: Timestamp,
    /// Reason, in the word of the log.
    pub kind: String,
    /// The SQLSTATE that the client was told.
    pub sqlstate: String,
    /// Scope of the tokens.
    pub scope: Option<String>,
    pub token: Option<u64>,
    pub mark: Option<u64>,
    pub user: String,
    pub(crate) database: String,
    #[serde(rename = "application_name")]
    pub application: Option<String>,
    /// Without the port, which differs for each connection.
    #[serde(rename = "client_addr", deserialize_with = "host")]
    pub client: String,
    pub authenticated: bool,
    /// The refused statement, if there was one.
    pub statement: Option<String>,
    pub reason: Option<String>,
    /// Whether the refusal was carried out.
    #[serde(deserialize_with = "enforcement")]
    pub enforced: Enforcement,
    /// Number of refusals that the record stands for.
    pub count: u32,
}

#[derive(Debug, Clone, Default)]
pub struct Filter {
    pub since: Option<Timestamp>,
    pub scope: Option<String>,
}

impl Filter {
    pub fn takes_time(&self, time: Timestamp) -> bool {
        self.since.is_none_or(|since| time >= since)
    }

    pub fn takes_scope(&self, record: &Record) -> bool {
        self.scope.is_none() || self.scope == record.scope
    }

    pub fn takes(&self, record: &Record) -> bool {
        self.takes_time(record.time) && self.takes_scope(record)
    }
}

fn enforcement<'de, D: Deserializer<'de>>(from: D) -> Result<Enforcement, D::Error> {
    Ok(match bool::deserialize(from)? {
        true => Enforcement::Refused,
        false => Enforcement::Observed,
    })
}

fn host<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    let address = String::deserialize(from)?;
    let socket = address.parse::<SocketAddr>();
    Ok(socket.map_or(address, |socket| socket.ip().to_string()))
}

pub fn parse(line: &[u8]) -> Line {
    if line.trim_ascii().is_empty() {
        return Line::Empty;
    }
    serde_json::from_slice(line).unwrap_or(Line::Foreign)
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
    // With its line end.
    let mut bounded = from.by_ref().take(MAX_LINE as u64 + 1);
    bounded.read_until(b'\n', line)?;
    if line.pop_if(|last| *last == b'\n').is_some() {
        return Ok(Read::Line);
    }
    if line.len() > MAX_LINE {
        line.clear();
        from.skip_until(b'\n')?;
        return Ok(Read::TooLong);
    }
    Ok(if line.is_empty() {
        Read::End
    } else {
        Read::Torn
    })
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
    fn fields_that_a_newer_version_adds_are_ignored() {
        let newer = br#"{"time":"2026-11-21T03:22:04Z","kind":"no_token","sqlstate":"PF002","user":"app","database":"",
            "client_addr":"[::1]:5","authenticated":true,"enforced":false,"count":2,"new_field":[1]}"#;
        let Line::Record(record) = parse(newer) else {
            panic!("no record");
        };
        assert_eq!((record.enforced, record.count), (Enforcement::Observed, 2));
        assert_eq!((record.client.as_str(), record.scope), ("::1", None));
    }
}
