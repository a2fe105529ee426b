//! Settings that a client takes along from server connection to server connection.

use super::super::ServerHalf;
use super::frames::{bind, execute, message, parse, query, strings};
use super::subject::{Holds, INITIAL, Subject, fence, session, sync};

fn fresh() -> Box<ServerHalf> {
    session(fence()).part().unwrap().1
}

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

/// Runs texts, each with the status after it; `!` in front of one that fails.
fn run(subject: &mut Subject, texts: &[(&str, u8)]) {
    for (text, status) in texts {
        if let Some(fails) = text.strip_prefix('!') {
            subject.send(&query(fails));
            let _ = subject.fail();
            subject.answer("", *status);
        } else {
            let tag = text.split(' ').next().unwrap();
            let tag = if tag == "SELECT" { "SELECT 1" } else { tag };
            let tag = if tag == "DISCARD" { "DISCARD ALL" } else { tag };
            subject.run(
                &query(text),
                if tag == "RESET" { "RESET" } else { tag },
                *status,
            );
        }
    }
}

#[test]
fn what_a_client_sets_goes_with_it() {
    let (idle, inside, failed) = (b'I', b'T', b'E');
    let table: &[(&[(&str, u8)], &str)] = &[
        (&[("SET work_mem = '1MB'", idle)], "SET work_mem = '1MB'"),
        (
            &[("SET Work_Mem TO 5", idle), ("SET work_mem = 6", idle)],
            "SET work_mem = 6",
        ),
        (
            &[("SET a.b = 'x'", idle), ("SET TIME ZONE 'UTC'", idle)],
            "SET a.b = 'x'; SET TIME ZONE 'UTC'",
        ),
        // In the order of the last texts.
        (
            &[
                ("SET a.b = 1", idle),
                ("SET standard_conforming_strings = off", idle),
                ("SET a.b = 2", idle),
            ],
            "SET standard_conforming_strings = off; SET a.b = 2",
        ),
        (&[("SET work_mem = 5", idle), ("RESET work_mem", idle)], ""),
        (
            &[
                (
                    "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL SERIALIZABLE",
                    idle,
                ),
                ("SET Default_Transaction_Isolation = 'read committed'", idle),
            ],
            "SET Default_Transaction_Isolation = 'read committed'",
        ),
        (
            &[(
                "SET SESSION CHARACTERISTICS AS TRANSACTION DEFERRABLE",
                idle,
            )],
            "SET SESSION CHARACTERISTICS AS TRANSACTION DEFERRABLE",
        ),
        (
            &[("SET DateStyle = 'ISO'; SET TimeZone = 'UTC'", idle)],
            "SET DateStyle = 'ISO'; SET TimeZone = 'UTC'",
        ),
        // psqlODBC's first text.
        (
            &[(
                "SET DateStyle = 'ISO';SET extra_float_digits = 2;show transaction_isolation",
                idle,
            )],
            "SET DateStyle = 'ISO'; SET extra_float_digits = 2",
        ),
        (
            &[
                ("SET a.b = 1; /* two */ SET a.c = 2 ;RESET a.b;", idle),
                ("SET a.c = 3", idle),
            ],
            "SET a.c = 3",
        ),
        (&[("!SET a.b = 1; SET work_mem = 'x'", idle)], ""),
        (
            &[
                ("SET work_mem = 5", idle),
                ("SET work_mem TO DEFAULT", idle),
            ],
            "",
        ),
        (&[("SET work_mem = 5", idle), ("DISCARD ALL", idle)], ""),
        (
            &[
                ("SET work_mem = 5", idle),
                ("RESET ALL", idle),
                ("SET a.b = 1", idle),
            ],
            "SET a.b = 1",
        ),
        (
            &[
                ("SET TimeZone = 'UTC'", idle),
                ("BEGIN", inside),
                ("RESET ALL", inside),
                ("ROLLBACK", idle),
            ],
            "SET TimeZone = 'UTC'",
        ),
        (
            &[
                ("SET a.b = 1", idle),
                ("BEGIN", inside),
                ("SET a.c = 1", inside),
                ("RESET ALL", inside),
                ("SET a.d = 1", inside),
                ("COMMIT", idle),
            ],
            "SET a.d = 1",
        ),
        (
            &[
                ("SET a.b = 1", idle),
                ("BEGIN", inside),
                ("RESET ALL", inside),
                ("!SELECT 1/0", failed),
                ("ROLLBACK", idle),
            ],
            "keeps Setting",
        ),
        (&[("!SET work_mem = 'x'", idle)], ""),
        (
            &[("SET work_mem = 5", idle), ("!SET work_mem = 'x'", idle)],
            "SET work_mem = 5",
        ),
        // In a transaction
        (
            &[
                ("BEGIN", inside),
                ("SET work_mem = 5", inside),
                ("COMMIT", idle),
            ],
            "SET work_mem = 5",
        ),
        (
            &[
                ("BEGIN", inside),
                ("SET work_mem = 5", inside),
                ("ROLLBACK", idle),
            ],
            "",
        ),
        (
            &[
                ("BEGIN", inside),
                ("SET LOCAL work_mem = 5", inside),
                ("COMMIT", idle),
            ],
            "",
        ),
        // What is left of it, only the server knows.
        (
            &[
                ("BEGIN", inside),
                ("SET work_mem = 5", inside),
                ("!SELECT 1/0", failed),
                ("ROLLBACK", idle),
            ],
            "keeps Setting",
        ),
        // Nothing runs there.
        (
            &[
                ("BEGIN", inside),
                ("!SELECT 1/0", failed),
                ("!SET work_mem = 5", failed),
                ("!LISTEN a", failed),
                ("ROLLBACK", idle),
            ],
            "",
        ),
        // Otherwise the client keeps its connection.
        (
            &[
                ("SET datestyle = 'German'", idle),
                ("SET datestyle = 'MDY'", idle),
            ],
            "keeps Setting",
        ),
        (&[("SET ROLE r", idle)], "keeps Setting"),
        (&[("SET SESSION AUTHORIZATION r", idle)], "keeps Setting"),
        (&[("SET client_encoding = 'LATIN1'", idle)], "keeps Setting"),
        (&[("SET client_encoding = 'utf88'", idle)], "keeps Setting"),
        // It is that already.
        (&[("SET NAMES 'Utf-8'", idle)], ""),
        (&[("SET client_encoding TO 'unicode'", idle)], ""),
        (&[("SET work_mem = 5; SELECT 1", idle)], "keeps Setting"),
        (&[("SET work_mem = 5; SET ROLE r", idle)], "keeps Setting"),
        (
            &[("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY", idle)],
            "keeps Setting",
        ),
        (
            &[(
                "SET SESSION CHARACTERISTICS AS TRANSACTION DEFERRABLE, ISOLATION LEVEL SERIALIZABLE",
                idle,
            )],
            "keeps Setting",
        ),
        (
            &[("SET timezone = 'UTC'; SET timezone = 'CET'", idle)],
            "keeps Setting",
        ),
        (
            &[("SET a.b = 1; SET fencing.scope = 'x'", idle)],
            "keeps Setting",
        ),
        (&[("SET a.b = 1; RESET ALL", idle)], "keeps Setting"),
        (&[(r"SET a.b = 'x\\y'", idle)], "keeps Setting"),
        (
            &[
                ("SET Search_Path = a, pg_catalog", idle),
                ("SELECT set_config('a.b', 'x', false)", idle),
            ],
            "keeps Setting",
        ),
        (&[("SET work_mem FROM CURRENT", idle)], "keeps Setting"),
        // The text that runs again can mean no other function.
        (
            &[("SELECT set_config('A.b', 'x y', false)", idle)],
            "SELECT pg_catalog.set_config('A.b', 'x y', false)",
        ),
        (
            &[
                ("SET a.b = 1", idle),
                ("select Pg_Catalog.set_config('A.B'::text, '', 'off')", idle),
            ],
            "SELECT pg_catalog.set_config('A.B', '', false)",
        ),
        (
            &[
                ("SELECT set_config('a.b', 'x', false)", idle),
                ("RESET a.b", idle),
            ],
            "",
        ),
        (&[("SELECT set_config('a.b', 'x', true)", idle)], ""),
        (&[("!SELECT set_config('a.b', 'x', false)", idle)], ""),
        (
            &[("SET default_text_search_config = 'a'", idle)],
            "keeps Setting",
        ),
        (&[("SET sort_mem = 5", idle)], "keeps Setting"),
        (
            &[("SET timezone = 'UTC'", idle), ("RESET timezone", idle)],
            "keeps Setting",
        ),
        (
            &[("SELECT set_config('a.b', 'x', false) FROM t", idle)],
            "keeps Setting",
        ),
    ];
    for (texts, expect) in table {
        let mut subject = client();
        run(&mut subject, texts);
        assert_eq!(taken(&subject), *expect, "{texts:?}");
    }
    // Of its own, which PostgreSQL reports; then another, which a function has set.
    let mut subject = client();
    for (text, reported, expect) in [
        ("SET timezone = 'UTC'", "TimeZone", "SET timezone = 'UTC'"),
        ("RESET ALL", "TimeZone", ""),
        ("SET timezone = 'UTC'", "DateStyle", "keeps Setting"),
    ] {
        reports(&mut subject, text, &[reported], b'I');
        assert_eq!(taken(&subject), expect);
    }
    let long = format!("SET a.b = '{}'", "x".repeat(2000));
    let mut subject = client();
    run(&mut subject, &[(&long, idle)]);
    assert_eq!(taken(&subject), "keeps Setting");
    for at in 0..70 {
        let mut subject = client();
        let texts: Vec<_> = (0..at).map(|at| format!("SET a.b{at} = 1")).collect();
        let texts: Vec<_> = texts.iter().map(|text| (&**text, idle)).collect();
        run(&mut subject, &texts);
        assert_eq!(taken(&subject) == "keeps Setting", at > 64, "{at}");
    }
}

/// Runs a text after which the server reports settings.
fn reports(subject: &mut Subject, text: &str, reported: &[&str], status: u8) {
    let fails = text.strip_prefix('!');
    subject.send(&query(fails.unwrap_or(text)));
    if fails.is_some() {
        let _ = subject.fail();
    } else {
        let tag = text.split(' ').next().unwrap();
        let _ = subject.reply(b'C', &strings(&[tag]));
    }
    for report in reported {
        // The end of a transaction brings the initial value back, any other text makes one of its own, if nothing else
        // is said.
        let (name, value) = report.split_once('=').unwrap_or_else(|| {
            let initial = INITIAL.into_iter().find(|(name, _)| name == report);
            let is_end = text.starts_with("COMMIT") || text.starts_with("ROLLBACK");
            (
                report,
                initial.filter(|_| is_end).map_or(text, |(_, value)| value),
            )
        });
        let _ = subject.reply(b'S', &strings(&[name, value]));
    }
    let _ = subject.reply(b'Z', &[status]);
}

/// One of SET LOCAL is reported twice. What a function has set beside it is not.
#[test]
fn a_setting_that_is_back_at_the_end_of_its_transaction_keeps_nothing() {
    type Text = (&'static str, &'static [&'static str], u8);
    let tables: &[(&[Text], &str)] = &[
        (
            &[
                ("SET LOCAL TimeZone = 'x'", &["TimeZone"], b'T'),
                ("SELECT 1", &[], b'T'),
                ("COMMIT", &["TimeZone"], b'I'),
            ],
            "",
        ),
        (
            &[
                ("SET LOCAL search_path = x", &["search_path"], b'T'),
                ("SET LOCAL search_path = y", &["search_path"], b'T'),
                ("ROLLBACK", &["search_path"], b'I'),
            ],
            "",
        ),
        (
            &[
                ("SET LOCAL NAMES 'LATIN1'", &["client_encoding"], b'T'),
                ("SET NAMES 'UTF8'", &["client_encoding"], b'T'),
                ("COMMIT", &["client_encoding"], b'I'),
            ],
            "keeps Setting",
        ),
        (&[("SELECT f()", &["search_path"], b'I')], "keeps Setting"),
        (
            &[
                ("SELECT f()", &["search_path=x"], b'T'),
                ("SET LOCAL search_path = y", &["search_path=y"], b'T'),
                ("COMMIT", &["search_path=x"], b'I'),
            ],
            "keeps Setting",
        ),
        (
            &[
                ("SELECT f()", &["search_path=x"], b'T'),
                ("SAVEPOINT s", &[], b'T'),
                ("SET LOCAL search_path = y", &["search_path=y"], b'T'),
                ("ROLLBACK TO s", &["search_path=x"], b'T'),
                ("COMMIT", &[], b'I'),
            ],
            "keeps Setting",
        ),
        (
            &[
                ("SELECT f()", &["search_path"], b'T'),
                ("COMMIT", &[], b'I'),
            ],
            "keeps Setting",
        ),
        (
            &[
                ("SET LOCAL TimeZone = 'x'", &["TimeZone"], b'T'),
                ("SELECT f()", &["TimeZone"], b'T'),
                ("COMMIT", &[], b'I'),
            ],
            "keeps Setting",
        ),
        (
            &[
                ("SET LOCAL TimeZone = 'x'", &["TimeZone"], b'T'),
                ("COMMIT", &["DateStyle=German", "TimeZone"], b'I'),
            ],
            "keeps Setting",
        ),
        (
            &[
                ("SET TimeZone = 'x'", &["TimeZone"], b'T'),
                ("ROLLBACK", &["TimeZone"], b'I'),
            ],
            "",
        ),
        (
            &[
                ("SET LOCAL TimeZone = 'x'", &["TimeZone"], b'T'),
                ("SET LOCAL TimeZone TO DEFAULT", &["TimeZone=UTC"], b'T'),
                ("COMMIT", &[], b'I'),
            ],
            "",
        ),
        // A function has set another value for the session, and then the old one for the transaction.
        (
            &[
                ("SELECT f()", &[], b'T'),
                ("COMMIT", &["TimeZone=Asia/Tokyo"], b'I'),
            ],
            "keeps Setting",
        ),
        (
            &[
                ("SET LOCAL TimeZone = 'x'", &["TimeZone"], b'T'),
                ("COMMIT AND CHAIN", &["TimeZone"], b'T'),
                ("COMMIT", &[], b'I'),
            ],
            "",
        ),
        (
            &[
                ("SAVEPOINT s", &[], b'T'),
                ("SET LOCAL TimeZone = 'x'", &["TimeZone"], b'T'),
                ("ROLLBACK TO s", &["TimeZone"], b'T'),
                ("COMMIT", &[], b'I'),
            ],
            "",
        ),
        (
            &[
                ("SET LOCAL TimeZone = 'x'", &["TimeZone"], b'T'),
                ("SAVEPOINT s", &[], b'T'),
                ("!SELECT 1/0", &[], b'E'),
                ("ROLLBACK TO s", &[], b'T'),
                ("COMMIT", &["TimeZone"], b'I'),
            ],
            "",
        ),
        (
            &[
                ("SET LOCAL TimeZone = 'x'", &["TimeZone"], b'T'),
                ("SAVEPOINT s", &[], b'T'),
                ("ROLLBACK TO s", &[], b'T'),
                ("COMMIT", &[], b'I'),
            ],
            "keeps Setting",
        ),
    ];
    for (texts, expect) in tables {
        let mut subject = client();
        subject.run(&query("BEGIN"), "BEGIN", b'T');
        for (text, reported, status) in *texts {
            reports(&mut subject, text, reported, *status);
        }
        assert_eq!(taken(&subject), *expect, "{texts:?}");
    }
    // As a loop over tenants does it.
    let mut subject = client();
    subject.run(&query("BEGIN"), "BEGIN", b'T');
    for value in 0..100 {
        let text = format!("SET LOCAL TimeZone = '{value}'");
        reports(&mut subject, &text, &["TimeZone"], b'T');
    }
    reports(&mut subject, "COMMIT", &["TimeZone"], b'I');
    assert_eq!(taken(&subject), "");
    // By an error.
    let mut subject = client();
    subject.run(&query("BEGIN"), "BEGIN", b'T');
    reports(
        &mut subject,
        "SET LOCAL TimeZone = 'x'",
        &["TimeZone"],
        b'T',
    );
    subject.send(&query("SELECT 1/0"));
    let _ = subject.fail();
    let _ = subject.reply(b'S', &strings(&["TimeZone", "UTC"]));
    let _ = subject.reply(b'Z', b"E");
    subject.run(&query("ROLLBACK"), "ROLLBACK", b'I');
    assert_eq!(taken(&subject), "");
}

/// However long its transaction is.
#[test]
fn resets_take_no_memory() {
    let mut subject = client();
    run(&mut subject, &[("SET a.b = 1", b'I'), ("BEGIN", b'T')]);
    for _ in 0..100 {
        run(&mut subject, &[("RESET ALL", b'T')]);
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
        run(&mut subject, &[(text, b'I')]);
        assert_eq!(taken(&subject), "keeps Setting", "{text}");
    }
}

#[test]
fn by_the_extended_protocol_too() {
    let mut subject = client();
    for message in [
        &parse("", "SET a.b = 'x'")[..],
        &bind("", ""),
        &execute("", 0),
    ] {
        subject.send(message);
    }
    subject.run(&sync(), "SET", b'I');
    assert_eq!(taken(&subject), "SET a.b = 'x'");
    // Another statement of the same transaction fails.
    let mut subject = client();
    for message in [
        &parse("", "SET a.b = 'x'")[..],
        &bind("", ""),
        &execute("", 0),
        &parse("", "x"),
    ] {
        subject.send(message);
    }
    for (tag, body) in [(b'1', vec![]), (b'2', vec![]), (b'C', strings(&["SET"]))] {
        let _ = subject.reply(tag, &body);
    }
    let _ = subject.fail();
    subject.run(&sync(), "", b'I');
    assert_eq!(taken(&subject), "");
}

/// Whether the transaction of a setting beside it is committed, is not known for each.
#[test]
fn beside_another_statement_of_a_pipeline_it_keeps_the_connection() {
    let mut subject = client();
    subject.run(&query("BEGIN"), "BEGIN", b'T');
    for text in ["COMMIT", "SET a.b = 'x'"] {
        for message in [&parse("", text)[..], &bind("", ""), &execute("", 0)] {
            subject.send(message);
        }
    }
    for tag in ["COMMIT", "SET"] {
        for (message, body) in [(b'1', vec![]), (b'2', vec![]), (b'C', strings(&[tag]))] {
            let _ = subject.reply(message, &body);
        }
    }
    subject.run(&sync(), "", b'I');
    assert_eq!(taken(&subject), "keeps Setting");
}

/// Its statements would be read by another setting elsewhere.
#[test]
fn a_setting_that_comes_after_statements_keeps_the_connection_if_they_depend_on_it() {
    for (text, expect) in [
        ("SET datestyle = 'German'", "keeps Setting"),
        ("SET work_mem = 5", "SET work_mem = 5"),
    ] {
        let mut subject = client();
        subject.send(&parse("s", "SELECT '1.2.2020'::date"));
        subject.run(&sync(), "", b'I');
        run(&mut subject, &[(text, b'I')]);
        assert_eq!(taken(&subject), expect);
    }
    // Those that come after it go along.
    let mut subject = client();
    run(&mut subject, &[("SET datestyle = 'German'", b'I')]);
    subject.send(&parse("s", "SELECT '1.2.2020'::date"));
    subject.run(&sync(), "", b'I');
    assert_eq!(subject.session.leftover(), None);
}

#[test]
fn another_server_connection_is_given_the_settings() {
    let mut subject = client();
    run(
        &mut subject,
        &[("SET a.b = 'x'", b'I'), ("SET a.c = 'y'", b'I')],
    );
    let texts = subject.session.client.settings().unwrap().clone();
    let server = subject.lend(fresh());
    assert!(!server.is_tidy());
    assert!(std::sync::Arc::ptr_eq(server.applied().unwrap(), &texts));
    let mut session = super::super::Session::without_client(fence(), fresh());
    session.begin_settings(&texts);
    let sent = session.output().to_server.split();
    let expect = ["DEALLOCATE ALL\0", "SET a.b = 'x'\0", "SET a.c = 'y'\0"];
    let expect = expect.map(|text| message(b'Q', text.as_bytes())).concat();
    assert_eq!(sent, expect);
}
