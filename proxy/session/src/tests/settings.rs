//! Settings that a client takes along from server connection to server connection.

use super::frames::{parse, query, strings};
use super::subject::{Holds, INITIAL, Subject, fresh};
use crate::wire::backend::TransactionStatus;

fn client() -> Subject {
    let mut subject = Subject::new(Holds::None);
    subject.lend(fresh());
    subject
}

/// Texts that the client takes along, or for what it keeps its connection.
fn taken(subject: &Subject) -> String {
    if let Some(left) = subject.session.leftover() {
        return format!("keeps {left:?}");
    }
    let kept = subject.session.client.settings();
    let texts = kept.into_iter().flat_map(|texts| texts.iter());
    let texts: Vec<_> = texts.map(|text| String::from_utf8_lossy(&text.1)).collect();
    texts.join("; ")
}

/// Runs texts, between ` | `: `!` in front of one that fails, and ` -> ` in front of settings that the server reports
/// after it.
fn run(subject: &mut Subject, texts: &str) {
    for text in texts.split(" | ") {
        let (text, reported) = text.split_once(" -> ").unwrap_or((text, ""));
        let fails = text.strip_prefix('!');
        let before = subject.session.client.state.status();
        let status = match text {
            "BEGIN" => b'T',
            _ if text.starts_with("ROLLBACK TO") || text.ends_with("AND CHAIN") => b'T',
            _ if is_end(text) || before == TransactionStatus::Idle => b'I',
            _ if fails.is_some() || before == TransactionStatus::Failed => b'E',
            _ => b'T',
        };
        subject.send(&query(fails.unwrap_or(text)));
        if fails.is_some() {
            let _ = subject.fail();
        } else {
            let tag = match text.split(' ').next().unwrap() {
                "SELECT" => "SELECT 1",
                "DISCARD" => "DISCARD ALL",
                tag => tag,
            };
            let _ = subject.reply(b'C', &strings(&[tag]));
        }
        for report in reported.split(", ").filter(|report| !report.is_empty()) {
            report_setting(subject, text, report);
        }
        let _ = subject.reply(b'Z', &[status]);
    }
}

fn is_end(text: &str) -> bool {
    text.starts_with("COMMIT") || text.starts_with("ROLLBACK")
}

/// The end of a transaction brings the initial value back, any other text makes one of its own, if nothing else is
/// said.
fn report_setting(subject: &mut Subject, text: &str, report: &str) {
    let (name, value) = report.split_once('=').unwrap_or_else(|| {
        let initial = INITIAL.into_iter().find(|(name, _)| *name == report);
        let initial = initial.filter(|_| is_end(text));
        (report, initial.map_or(text, |(_, value)| value))
    });
    let _ = subject.reply(b'S', &strings(&[name, value]));
}

/// Runs texts in a session that begins with `before`, and compares what is taken along: each row is `texts => taken`.
#[track_caller]
fn check(before: &str, rows: &[&str]) {
    for row in rows {
        let (texts, expect) = row.rsplit_once(" => ").unwrap();
        let mut subject = client();
        run(&mut subject, before);
        run(&mut subject, texts);
        assert_eq!(taken(&subject), expect, "{texts}");
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn what_a_client_sets_goes_with_it() {
    let table = [
        "SET work_mem = '1MB' => SET work_mem = '1MB'",
        "SET Work_Mem TO 5 | SET work_mem = 6 => SET work_mem = 6",
        "SET a.b = 'x' | SET TIME ZONE 'UTC' => SET a.b = 'x'; SET TIME ZONE 'UTC'",
        // In the order of the last texts.
        "SET a.b = 1 | SET standard_conforming_strings = off | SET a.b = 2 \
         => SET standard_conforming_strings = off; SET a.b = 2",
        "SET work_mem = 5 | RESET work_mem => ",
        "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL SERIALIZABLE \
         | SET Default_Transaction_Isolation = 'read committed' \
         => SET Default_Transaction_Isolation = 'read committed'",
        "SET SESSION CHARACTERISTICS AS TRANSACTION DEFERRABLE \
         => SET SESSION CHARACTERISTICS AS TRANSACTION DEFERRABLE",
        "SET DateStyle = 'ISO'; SET TimeZone = 'UTC' => SET DateStyle = 'ISO'; SET TimeZone = 'UTC'",
        // psqlODBC's first text.
        "SET DateStyle = 'ISO';SET extra_float_digits = 2;show transaction_isolation => SET DateStyle = 'ISO'; \
         SET extra_float_digits = 2",
        "SET a.b = 1; /* two */ SET a.c = 2 ;RESET a.b; | SET a.c = 3 => SET a.c = 3",
        "!SET a.b = 1; SET work_mem = 'x' => ",
        "SET work_mem = 5 | SET work_mem TO DEFAULT => ",
        "SET work_mem = 5 | DISCARD ALL => ",
        "SET work_mem = 5 | RESET ALL | SET a.b = 1 => SET a.b = 1",
        "SET TimeZone = 'UTC' | BEGIN | RESET ALL | ROLLBACK => SET TimeZone = 'UTC'",
        "SET a.b = 1 | BEGIN | SET a.c = 1 | RESET ALL | SET a.d = 1 | COMMIT => SET a.d = 1",
        "SET a.b = 1 | BEGIN | RESET ALL | !SELECT 1/0 | ROLLBACK => keeps Setting",
        "!SET work_mem = 'x' => ",
        "SET work_mem = 5 | !SET work_mem = 'x' => SET work_mem = 5",
        // In a transaction
        "BEGIN | SET work_mem = 5 | COMMIT => SET work_mem = 5",
        "BEGIN | SET work_mem = 5 | ROLLBACK => ",
        "BEGIN | SET LOCAL work_mem = 5 | COMMIT => ",
        // What is left of it, only the server knows.
        "BEGIN | SET work_mem = 5 | !SELECT 1/0 | ROLLBACK => keeps Setting",
        // Nothing runs there.
        "BEGIN | !SELECT 1/0 | !SET work_mem = 5 | !LISTEN a | ROLLBACK => ",
        // Otherwise the client keeps its connection.
        "SELECT f() -> search_path => keeps Setting",
        "SET datestyle = 'German' | SET datestyle = 'MDY' => keeps Setting",
        "SET ROLE r => keeps Setting",
        "SET SESSION AUTHORIZATION r => keeps Setting",
        "SET client_encoding = 'LATIN1' => keeps Setting",
        "SET client_encoding = 'utf88' => keeps Setting",
        // It is that already.
        "SET NAMES 'Utf-8' => ",
        "SET client_encoding TO 'unicode' => ",
        "SET work_mem = 5; SELECT 1 => keeps Setting",
        "SET work_mem = 5; SET ROLE r => keeps Setting",
        "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY => keeps Setting",
        "SET SESSION CHARACTERISTICS AS TRANSACTION DEFERRABLE, ISOLATION LEVEL SERIALIZABLE => keeps Setting",
        "SET timezone = 'UTC'; SET timezone = 'CET' => keeps Setting",
        "SET a.b = 1; SET fencing.scope = 'x' => keeps Setting",
        "SET a.b = 1; RESET ALL => keeps Setting",
        r"SET a.b = 'x\\y' => keeps Setting",
        "SET Search_Path = a, pg_catalog | SELECT set_config('a.b', 'x', false) => keeps Setting",
        "SET work_mem FROM CURRENT => keeps Setting",
        // The text that runs again can mean no other function.
        "SELECT set_config('A.b', 'x y', false) => SELECT pg_catalog.set_config('A.b', 'x y', false)",
        "SET a.b = 1 | select Pg_Catalog.set_config('A.B'::text, '', 'off') \
         => SELECT pg_catalog.set_config('A.B', '', false)",
        "SELECT set_config('a.b', 'x', false) | RESET a.b => ",
        "SELECT set_config('a.b', 'x', true) => ",
        "!SELECT set_config('a.b', 'x', false) => ",
        "SET default_text_search_config = 'a' => keeps Setting",
        "SET sort_mem = 5 => keeps Setting",
        "SET exit_on_error = on => keeps Setting",
        "SET transaction_isolation = 'serializable' => ",
        "SET timezone = 'UTC' | RESET timezone => keeps Setting",
        "SELECT set_config('a.b', 'x', false) FROM t => keeps Setting",
    ];
    check("SELECT 1", &table);
    // Of its own, which PostgreSQL reports; then another, which a function has set.
    let mut subject = client();
    for (text, reported, expect) in [
        ("SET timezone = 'UTC'", "TimeZone", "SET timezone = 'UTC'"),
        ("RESET ALL", "TimeZone", ""),
        ("SET timezone = 'UTC'", "DateStyle", "keeps Setting"),
    ] {
        run(&mut subject, &format!("{text} -> {reported}"));
        assert_eq!(taken(&subject), expect);
    }
    let long = format!("SET a.b = '{}'", "x".repeat(2000));
    let mut subject = client();
    run(&mut subject, &long);
    assert_eq!(taken(&subject), "keeps Setting");
    for at in 0..70 {
        let mut subject = client();
        (0..at).for_each(|at| run(&mut subject, &format!("SET a.b{at} = 1")));
        assert_eq!(taken(&subject) == "keeps Setting", at > 64, "{at}");
    }
}

/// One of SET LOCAL is reported twice. What a function has set beside it is not.
#[test]
fn a_setting_that_is_back_at_the_end_of_its_transaction_keeps_nothing() {
    let tables = [
        "SET LOCAL TimeZone = 'x' -> TimeZone | SELECT 1 | COMMIT -> TimeZone => ",
        "SET LOCAL search_path = x -> search_path | SET LOCAL search_path = y -> search_path \
         | ROLLBACK -> search_path => ",
        "SET LOCAL NAMES 'LATIN1' -> client_encoding | SET NAMES 'UTF8' -> client_encoding \
         | COMMIT -> client_encoding => keeps Setting",
        "SELECT f() -> search_path=x | SET LOCAL search_path = y -> search_path=y | COMMIT -> search_path=x \
         => keeps Setting",
        "SELECT f() -> search_path=x | SAVEPOINT s | SET LOCAL search_path = y -> search_path=y \
         | ROLLBACK TO s -> search_path=x | COMMIT => keeps Setting",
        "SELECT f() -> search_path | COMMIT => keeps Setting",
        "SET LOCAL TimeZone = 'x' -> TimeZone | SELECT f() -> TimeZone | COMMIT => keeps Setting",
        "SET LOCAL TimeZone = 'x' -> TimeZone | COMMIT -> DateStyle=German, TimeZone => keeps Setting",
        "SET TimeZone = 'x' -> TimeZone | ROLLBACK -> TimeZone => ",
        "SET LOCAL TimeZone = 'x' -> TimeZone | SET LOCAL TimeZone TO DEFAULT -> TimeZone=UTC | COMMIT => ",
        // A function has set another value for the session, and then the old one for the transaction.
        "SELECT f() | COMMIT -> TimeZone=Asia/Tokyo => keeps Setting",
        "SET LOCAL TimeZone = 'x' -> TimeZone | COMMIT AND CHAIN -> TimeZone | COMMIT => ",
        "SAVEPOINT s | SET LOCAL TimeZone = 'x' -> TimeZone | ROLLBACK TO s -> TimeZone | COMMIT => ",
        // By an error.
        "SET LOCAL TimeZone = 'x' -> TimeZone | !SELECT 1/0 -> TimeZone=UTC | ROLLBACK => ",
        "SET LOCAL TimeZone = 'x' -> TimeZone | SAVEPOINT s | !SELECT 1/0 | ROLLBACK TO s | COMMIT -> TimeZone => ",
        "SET LOCAL TimeZone = 'x' -> TimeZone | SAVEPOINT s | ROLLBACK TO s | COMMIT => keeps Setting",
    ];
    check("BEGIN", &tables);
    // As a loop over tenants does it.
    let mut subject = client();
    run(&mut subject, "BEGIN");
    for value in 0..100 {
        run(
            &mut subject,
            &format!("SET LOCAL TimeZone = '{value}' -> TimeZone"),
        );
    }
    run(&mut subject, "COMMIT -> TimeZone");
    assert_eq!(taken(&subject), "");
}

/// However long its transaction is.
#[test]
fn resets_take_no_memory() {
    let mut subject = client();
    run(&mut subject, "SET a.b = 1 | BEGIN");
    for _ in 0..100 {
        run(&mut subject, "RESET ALL");
    }
    let settings = format!("{:?}", subject.session.client.settings);
    assert_eq!(settings.matches("\"*\"").count(), 1, "{settings}");
}

#[test]
fn other_calls_of_set_config_keep_the_connection() {
    for text in [
        "SELECT set_config('role', 'r', false)",
        "SELECT set_config('Client_Encoding', 'LATIN1', false)",
        "SELECT set_config('a.b', now()::text, false)",
        "SELECT set_config('a.b', NULL, false)",
        "SELECT set_config('a.b', '5'::int::text, false)",
        "SELECT set_config('a.b', 'it''s', false)",
        "SELECT set_config('a.b', E'x\\\\y', false)",
        "SELECT set_config('a.b', 'é', false)",
        "SELECT set_config('a.b', E'x\\ny', false)",
        "SELECT set_config('a.b', 'x', false), 1",
        "SELECT set_config('a.b', 'x', false), set_config('a.c', 'x', false)",
        "SELECT set_config('a.b', 'x', false) WHERE false",
        "SELECT set_config('a.b', 'x', false) LIMIT 0",
        "SELECT public.set_config('a.b', 'x', false)",
        "VALUES (set_config('a.b', 'x', false))",
        "SELECT set_config('a.b', 'x', false); SELECT 1",
    ] {
        let mut subject = client();
        run(&mut subject, text);
        assert_eq!(taken(&subject), "keeps Setting", "{text}");
    }
}

/// Its statements would be read by another setting elsewhere.
#[test]
fn a_setting_that_comes_after_statements_keeps_the_connection_if_they_depend_on_it() {
    for (text, expect) in [
        ("SET datestyle = 'German'", "keeps Setting"),
        ("SET work_mem = 5", "SET work_mem = 5"),
    ] {
        let mut subject = client();
        subject.synced(&parse("s", "SELECT '1.2.2020'::date"));
        run(&mut subject, text);
        assert_eq!(taken(&subject), expect);
    }
    // Those that come after it go along.
    let mut subject = client();
    run(&mut subject, "SET datestyle = 'German'");
    subject.synced(&parse("s", "SELECT '1.2.2020'::date"));
    assert_eq!(subject.session.leftover(), None);
}
