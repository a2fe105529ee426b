//! Check after the fence: compares what the server says it has done with what was judged.
//!
//! Nothing here refuses a statement. A reply that contradicts the judgement shows that the proxy mistook a name, an
//! encoding or a position in a text.
//!
//! Source: CommandComplete in <https://www.postgresql.org/docs/current/protocol-message-formats.html>

use pgpalisade_policies::{Control, WriteReason};

use super::in_flight::{InFlight, Origin, Request};
use crate::fence::Leave;
use crate::wire::backend::tag;

/// Tags of statements that change no data. Those with a number of rows after them end with a space. EXECUTE is the
/// tag if it ran an empty statement, which has none. All tags: `src/include/tcop/cmdtaglist.h`.
const READS: [&[u8]; 23] = [
    b"SELECT ",
    b"FETCH ",
    b"MOVE ",
    b"COPY ",
    b"SHOW",
    b"SET",
    b"RESET",
    b"SET CONSTRAINTS",
    b"EXPLAIN",
    b"DECLARE CURSOR",
    b"CLOSE CURSOR",
    b"CLOSE CURSOR ALL",
    b"PREPARE",
    b"DEALLOCATE",
    b"DEALLOCATE ALL",
    b"DISCARD ALL",
    b"DISCARD PLANS",
    b"DISCARD TEMP",
    b"DISCARD SEQUENCES",
    b"LISTEN",
    b"UNLISTEN",
    b"LOCK TABLE",
    b"EXECUTE",
];

/// Tags of statements that begin, split or end a transaction.
const TRANSACTION: [&[u8]; 7] = [
    b"BEGIN",
    b"START TRANSACTION",
    b"COMMIT",
    b"ROLLBACK",
    b"SAVEPOINT",
    b"RELEASE",
    b"PREPARE TRANSACTION",
];

/// Whether a reply shows that the server did something other than what was judged. Inlined, as most callers pass a
/// constant reply.
#[inline(always)]
#[must_use]
pub(crate) fn contradicts(request: &InFlight, reply: u8, command_tag: &[u8]) -> bool {
    if request.origin == Origin::Injected {
        return false;
    }
    match (reply, request.leave, &request.verdict) {
        (_, Leave::Write, None) => false,
        (tag::COMMAND_COMPLETE, ..) => is_other_command(request, command_tag),
        (tag::COPY_IN_RESPONSE, Leave::Read | Leave::ReadUnguarded, _) => true,
        _ => matches!(
            request.request,
            Request::Malformed | Request::MalformedQuery
        ),
    }
}

fn is_other_command(request: &InFlight, command_tag: &[u8]) -> bool {
    let statement = request
        .position()
        .and_then(|(verdict, at)| verdict.statements.get(at));
    let controls = statement.map_or(&[][..], |statement| &statement.controls);
    if controls.is_empty() && request.leave != Leave::Write && is_tag(b"SELECT ", command_tag) {
        // Fast path of nearly every read, with the same result as the code below.
        return false;
    }
    if let Some(WriteReason::Syntax(syntax)) = statement.and_then(|found| found.why.as_ref())
        && syntax.names_ours
    {
        // It may have set a token that nobody has declared.
        return true;
    }
    let is_judged = controls.iter().any(Control::is_transaction);
    let is_told = TRANSACTION.contains(&command_tag);
    // A text that was not read, or that the server may read otherwise, was not judged.
    let is_known = statement.is_some_and(|statement| !statement.is_unread());
    let is_write = || !is_told && !READS.iter().any(|read| is_tag(read, command_tag));
    match request.leave {
        Leave::Write => is_known && is_judged != is_told,
        Leave::Read | Leave::ReadUnguarded => is_judged != is_told || is_write(),
    }
}

fn is_tag(tag: &[u8], told: &[u8]) -> bool {
    match tag.last() {
        Some(b' ') => told
            .strip_prefix(tag)
            .is_some_and(|rows| rows.iter().all(u8::is_ascii_digit)),
        _ => tag == told,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::Arc;

    use pgpalisade_policies::{Opaque, TextEncoding, classify};

    use super::*;

    #[track_caller]
    fn check(text: &str, leave: Leave, command_tag: &str, expect: bool) {
        let verdict = Arc::new(classify(text.as_bytes(), TextEncoding::Utf8));
        let mut request = InFlight::client(Request::Query, Some(verdict));
        request.leave = leave;
        let found = contradicts(&request, tag::COMMAND_COMPLETE, command_tag.as_bytes());
        assert_eq!(found, expect, "{text}: {command_tag}");
    }

    #[test]
    fn what_the_server_may_read_otherwise_contradicts_nothing() {
        let text = "SELECT 'é\\'; ROLLBACK --'";
        let verdict = classify(text.as_bytes(), TextEncoding::Utf8);
        let verdict = Arc::new(verdict.in_doubt(Opaque::Encoding));
        let mut request = InFlight::client(Request::Query, Some(verdict));
        request.leave = Leave::Write;
        for told in ["SELECT 1", "SET", "ROLLBACK", "INSERT 0 1"] {
            let found = contradicts(&request, tag::COMMAND_COMPLETE, told.as_bytes());
            assert!(!found, "{told}");
        }
    }

    /// Tags of writes, by their first word, in `src/include/tcop/cmdtaglist.h` of PostgreSQL 18. It has all those of
    /// 15 to 17.
    const WRITES: [(&str, &str); 4] = [
        (
            "ALTER",
            "ACCESS METHOD, AGGREGATE, CAST, COLLATION, CONSTRAINT, CONVERSION, DATABASE, \
            DEFAULT PRIVILEGES, DOMAIN, EVENT TRIGGER, EXTENSION, FOREIGN DATA WRAPPER, \
            FOREIGN TABLE, FUNCTION, INDEX, LANGUAGE, LARGE OBJECT, MATERIALIZED VIEW, \
            OPERATOR, OPERATOR CLASS, OPERATOR FAMILY, POLICY, PROCEDURE, PUBLICATION, ROLE, \
            ROUTINE, RULE, SCHEMA, SEQUENCE, SERVER, STATISTICS, SUBSCRIPTION, SYSTEM, \
            TABLE, TABLESPACE, TEXT SEARCH CONFIGURATION, TEXT SEARCH DICTIONARY, \
            TEXT SEARCH PARSER, TEXT SEARCH TEMPLATE, TRANSFORM, TRIGGER, TYPE, \
            USER MAPPING, VIEW",
        ),
        (
            "CREATE",
            "ACCESS METHOD, AGGREGATE, CAST, COLLATION, CONSTRAINT, CONVERSION, DATABASE, \
            DOMAIN, EVENT TRIGGER, EXTENSION, FOREIGN DATA WRAPPER, FOREIGN TABLE, FUNCTION, \
            INDEX, LANGUAGE, MATERIALIZED VIEW, OPERATOR, OPERATOR CLASS, OPERATOR FAMILY, \
            POLICY, PROCEDURE, PUBLICATION, ROLE, ROUTINE, RULE, SCHEMA, SEQUENCE, SERVER, \
            STATISTICS, SUBSCRIPTION, TABLE, TABLE AS, TABLESPACE, \
            TEXT SEARCH CONFIGURATION, TEXT SEARCH DICTIONARY, TEXT SEARCH PARSER, \
            TEXT SEARCH TEMPLATE, TRANSFORM, TRIGGER, TYPE, USER MAPPING, VIEW",
        ),
        (
            "DROP",
            "ACCESS METHOD, AGGREGATE, CAST, COLLATION, CONSTRAINT, CONVERSION, DATABASE, \
            DOMAIN, EVENT TRIGGER, EXTENSION, FOREIGN DATA WRAPPER, FOREIGN TABLE, FUNCTION, \
            INDEX, LANGUAGE, MATERIALIZED VIEW, OPERATOR, OPERATOR CLASS, OPERATOR FAMILY, \
            OWNED, POLICY, PROCEDURE, PUBLICATION, ROLE, ROUTINE, RULE, SCHEMA, SEQUENCE, \
            SERVER, STATISTICS, SUBSCRIPTION, TABLE, TABLESPACE, TEXT SEARCH CONFIGURATION, \
            TEXT SEARCH DICTIONARY, TEXT SEARCH PARSER, TEXT SEARCH TEMPLATE, TRANSFORM, \
            TRIGGER, TYPE, USER MAPPING, VIEW",
        ),
        (
            "",
            "???, ANALYZE, CALL, CHECKPOINT, CLOSE, CLUSTER, COMMENT, COMMIT PREPARED, \
            COPY FROM, DELETE, DISCARD, DO, GRANT, GRANT ROLE, IMPORT FOREIGN SCHEMA, \
            INSERT, LOAD, LOGIN, MERGE, NOTIFY, REASSIGN OWNED, REFRESH MATERIALIZED VIEW, \
            REINDEX, REVOKE, REVOKE ROLE, ROLLBACK PREPARED, SECURITY LABEL, \
            SELECT FOR KEY SHARE, SELECT FOR NO KEY UPDATE, SELECT FOR SHARE, \
            SELECT FOR UPDATE, SELECT INTO, TRUNCATE TABLE, UPDATE, VACUUM",
        ),
    ];

    /// Tag as the server sends it, with a number of rows if it has one.
    fn told(tag: &[u8]) -> String {
        let tag = str::from_utf8(tag).unwrap();
        match (tag, tag.strip_suffix(' ')) {
            ("INSERT", _) => "INSERT 0 7".to_owned(),
            ("UPDATE" | "DELETE" | "MERGE", _) => format!("{tag} 7"),
            (_, Some(tag)) => format!("{tag} 7"),
            _ => tag.to_owned(),
        }
    }

    #[test]
    fn every_tag_of_postgresql_is_a_read_a_transaction_or_a_write() {
        let writes = WRITES.iter().flat_map(|(word, others)| {
            let others = others.split(", ");
            others.map(move |other| format!("{word} {other}").trim_start().to_owned())
        });
        let writes: Vec<String> = writes.map(|tag| told(tag.as_bytes())).collect();
        let reads = READS.map(told);
        let transaction = TRANSACTION.map(told);
        let all = writes.iter().chain(&reads).chain(&transaction);
        assert_eq!(all.collect::<HashSet<_>>().len(), 193);
        // Whether each contradicts a read, or a COMMIT.
        for (tags, read, commit) in [
            (&writes[..], true, true),
            (&reads, false, true),
            (&transaction, true, false),
        ] {
            for tag in tags {
                check("SELECT 1", Leave::Read, tag, read);
                check("EXECUTE s", Leave::Read, tag, read);
                check("COMMIT", Leave::Read, tag, commit);
                check("SELECT 1", Leave::Write, tag, !commit);
                check("COMMIT", Leave::Write, tag, commit);
            }
        }
    }

    #[test]
    fn a_write_is_not_what_a_read_was_judged_as() {
        for (text, tag) in [
            ("SELECT 1", "SELECT 1"),
            ("FETCH ALL FROM c", "FETCH 0"),
            ("COPY t TO STDOUT", "COPY 12"),
            ("BEGIN", "BEGIN"),
            ("START TRANSACTION", "START TRANSACTION"),
            ("COMMIT", "COMMIT"),
            ("COMMIT", "ROLLBACK"),
            ("ROLLBACK TO a", "ROLLBACK"),
            ("SET a.b = 1", "SET"),
            ("EXECUTE s", "SELECT 4"),
            ("DISCARD ALL", "DISCARD ALL"),
        ] {
            check(text, Leave::Read, tag, false);
        }
        for (text, tag) in [
            ("SELECT 1", "INSERT 0 1"),
            ("SELECT 1", "UPDATE 1"),
            ("SELECT 1", "MERGE 1"),
            ("SELECT 1", "CREATE TABLE"),
            ("SELECT 1", "SELECT"),
            ("SELECT 1", "SELECT x"),
            ("SELECT 1", "NOTIFY"),
            ("SELECT 1", "BEGIN"),
            ("SELECT 1", "COMMIT"),
            ("COMMIT", "COMMIT PREPARED"),
            ("PREPARE p AS SELECT 1", "PREPARE TRANSACTION"),
            ("COMMIT", "SELECT 1"),
            ("EXECUTE s", "DELETE 4"),
        ] {
            check(text, Leave::Read, tag, true);
        }
    }

    #[test]
    fn who_may_write_is_held_to_transactions_only() {
        check(
            "INSERT INTO t VALUES (1)",
            Leave::Write,
            "INSERT 0 1",
            false,
        );
        check("SELECT 1", Leave::Write, "DELETE 1", false);
        check("SELECT 1", Leave::Write, "COMMIT", true);
        check("COMMIT", Leave::Write, "INSERT 0 1", true);
        check("this is no statement", Leave::Write, "BEGIN", false);
    }

    #[test]
    fn data_is_not_asked_for_by_a_read() {
        let mut request = InFlight::client(Request::Query, None);
        assert!(contradicts(&request, tag::COPY_IN_RESPONSE, b""));
        assert!(contradicts(&request, tag::COMMAND_COMPLETE, b"INSERT 0 1"));
        request.leave = Leave::Write;
        assert!(!contradicts(&request, tag::COPY_IN_RESPONSE, b""));
        assert!(!contradicts(&request, tag::COMMAND_COMPLETE, b"INSERT 0 1"));
        for request in [Request::Malformed, Request::MalformedQuery] {
            let malformed = InFlight::client(request, None);
            assert!(contradicts(&malformed, tag::ROW_DESCRIPTION, b""));
        }
        assert!(!contradicts(
            &InFlight::client(Request::Close, None),
            tag::CLOSE_COMPLETE,
            b""
        ));
        assert!(!contradicts(
            &InFlight::proxy(Request::Execute),
            tag::COMMAND_COMPLETE,
            b"SET"
        ));
    }
}
