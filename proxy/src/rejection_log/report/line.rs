//! Lines of a rejection log, as far as they can be understood.

use std::io::{self, BufRead};
use std::net::SocketAddr;

use jiff::Timestamp;
use serde::Deserialize;

use crate::rejection::Enforcement;
use crate::rejection_log::record::clip;

/// Longest line that is looked at. A record with every name at its limit, all of it escaped, has about 16 KiB.
const MAX_LINE: usize = 64 * 1024;

/// What a line says.
#[derive(Debug)]
pub(super) enum Line {
    Record(Box<Record>),
    /// So many refusals before a login was authenticated.
    Unauthenticated {
        time: Timestamp,
        records: u64,
    },
    /// So many records are missing.
    Dropped {
        time: Timestamp,
        records: u64,
    },
    /// It is empty, as after a torn line.
    Empty,
    /// It is no line of a rejection log.
    Foreign,
}

/// A record as it was read. Names are no longer than those that the proxy writes.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) time: Timestamp,
    pub(super) kind: String,
    pub(super) sqlstate: String,
    pub(super) scope: Option<String>,
    pub(super) user: String,
    pub(super) database: String,
    pub(super) application: Option<String>,
    /// Without the port, which is another with each connection.
    pub(super) client: Option<String>,
    pub(super) class: Option<String>,
    pub(super) statement: Option<String>,
    pub(super) enforced: Enforcement,
}

/// The object of a line. What is not here is not needed; a newer proxy may write more.
#[derive(Deserialize)]
struct Fields {
    time: Option<String>,
    dropped: Option<u64>,
    authenticated: Option<bool>,
    /// How many were not recorded.
    unauthenticated: Option<u64>,
    kind: Option<String>,
    sqlstate: Option<String>,
    scope: Option<String>,
    user: Option<String>,
    database: Option<String>,
    application_name: Option<String>,
    client_addr: Option<String>,
    statement_class: Option<String>,
    statement: Option<String>,
    enforced: Option<bool>,
}

pub(super) fn parse(line: &[u8]) -> Line {
    if line.trim_ascii().is_empty() {
        return Line::Empty;
    }
    let Ok(fields) = serde_json::from_slice::<Fields>(line) else {
        return Line::Foreign;
    };
    let time: Option<Timestamp> = fields.time.as_deref().and_then(|time| time.parse().ok());
    let Some(time) = time else {
        return Line::Foreign;
    };
    match (fields.dropped, fields.unauthenticated, &fields.kind) {
        (Some(records), _, _) => Line::Dropped { time, records },
        (None, Some(records), _) => Line::Unauthenticated { time, records },
        (None, None, Some(_)) if fields.authenticated == Some(false) => {
            Line::Unauthenticated { time, records: 1 }
        }
        (None, None, Some(_)) => Line::Record(Box::new(fields.into_record(time))),
        (None, None, None) => Line::Foreign,
    }
}

impl Fields {
    fn into_record(self, time: Timestamp) -> Record {
        let name = |name: Option<String>| name.map(|name| clip(&name).to_owned());
        Record {
            time,
            kind: name(self.kind).unwrap_or_default(),
            sqlstate: name(self.sqlstate).unwrap_or_default(),
            scope: name(self.scope),
            user: name(self.user).unwrap_or_default(),
            database: name(self.database).unwrap_or_default(),
            application: name(self.application_name),
            client: name(self.client_addr).map(|address| {
                let socket = address.parse::<SocketAddr>();
                socket.map_or(address, |socket| socket.ip().to_string())
            }),
            class: name(self.statement_class),
            statement: self.statement,
            // Before there was an observe mode, all were.
            enforced: match self.enforced {
                Some(false) => Enforcement::Observed,
                Some(true) | None => Enforcement::Refused,
            },
        }
    }
}

/// What was read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Read {
    /// A line, now in the buffer without its end.
    Line,
    /// The input ended in the middle of a line, now in the buffer.
    Torn,
    /// A line that is longer than any record. It was skipped.
    TooLong,
    /// There is no more.
    End,
}

/// Reads one line into `line`, which never grows beyond [`MAX_LINE`].
pub(super) fn read(from: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<Read> {
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
        assert_eq!(record.client.as_deref(), Some("::1"));
        assert_eq!((record.scope, record.user.as_str()), (None, ""));
    }
}
