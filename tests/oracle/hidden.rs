//! Writes that the text does not show. The classifier calls them reads, so PostgreSQL's read-only mode must refuse
//! them.

use std::collections::BTreeMap;

use pgpalisade_policies::Class;
use pgpalisade_test_servers::wire::pretty;

use super::corpus::{self, cases};
use super::world::{Around, Protocol, Runner, Watch, changed, class_of, stage};

#[test]
fn the_backstop_refuses_them() {
    let stage = stage();
    let mut watch = Watch::new(&stage);
    let mut oracle = Runner::oracle(&stage);
    let mut plain = Runner::without_token(&stage);
    let before = watch.fingerprint();
    let mut wrong = Vec::new();
    let mut places = BTreeMap::new();
    for case in cases(corpus::HIDDEN) {
        let text = case.text();
        *places.entry(case.tag.clone().unwrap()).or_insert(0) += 1;
        let class = class_of(&case.script);
        if class != Class::Read {
            wrong.push(format!("not hidden, the text shows it: {text}"));
        }
        let by_server = oracle.run(&case.script, Around::Nothing, Protocol::Simple);
        if !by_server.is("25006") {
            wrong.push(format!("PostgreSQL: {by_server:?}: {text}"));
        }
        for by in [Protocol::Simple, Protocol::Extended] {
            let xid = watch.next_xid();
            let outcome = plain.run(&case.script, Around::Nothing, by);
            if !outcome.is("25006") {
                wrong.push(format!("{by:?} {outcome:?}: {text}"));
            }
            if watch.next_xid() != xid {
                wrong.push(format!("{by:?} it wrote: {text}"));
            }
        }
    }
    println!("hidden in: {places:?}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let changes = changed(&before, &watch.fingerprint());
    assert!(changes.is_empty(), "{}", changes.join("\n"));
}

/// Validates the cases: without protection each of them writes.
#[test]
fn each_of_them_writes_where_nothing_stops_it() {
    let stage = stage();
    let mut watch = Watch::new(&stage);
    let mut free = Runner::free(&stage);
    let mut wrong = Vec::new();
    for case in cases(corpus::HIDDEN) {
        let xid = watch.next_xid();
        // A block, so that the next case finds an unchanged database; cursors need a COMMIT.
        let around = match case.tag.as_deref() {
            Some("cursor") => Around::Nothing,
            _ => Around::Block,
        };
        let outcome = free.run(&case.script, around, Protocol::Simple);
        // A script that writes and fails later still proves the write.
        if watch.next_xid() == xid
            && !matches!(case.script.as_slice(), [text] if text.contains("counts()"))
        {
            wrong.push(format!("{outcome:?}, and nothing written: {}", case.text()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A FunctionCall has no text at all.
#[test]
fn function_calls_are_refused_by_oid() {
    use pgpalisade_test_servers::wire::Batch;
    let stage = stage();
    let mut watch = Watch::new(&stage);
    let before = watch.fingerprint();
    let mut wire = stage.plain();
    for (function, arguments) in [
        ("writes()", vec![]),
        // For reading, but the mode is a text.
        ("lo_open(oid, integer)", vec!["4242", "262144"]),
        ("lowrite(integer, bytea)", vec!["0", "x"]),
        ("lo_create(oid)", vec!["0"]),
        ("nextval(regclass)", vec!["counter"]),
        ("pg_notify(text, text)", vec!["news", "x"]),
        ("now()", vec![]),
        (
            "set_config(text, text, boolean)",
            vec!["default_transaction_read_only", "off", "f"],
        ),
    ] {
        let oid = stage.value(&format!("SELECT '{function}'::regprocedure::oid::int8"));
        let oid = oid.parse().unwrap();
        let answer = wire.run(&Batch::new().function_call(oid, &arguments));
        assert!(
            answer.iter().any(|message| message.sqlstate() == "PF002"),
            "{function}: {}",
            pretty(&answer)
        );
    }
    assert_eq!(changed(&before, &watch.fingerprint()), Vec::<String>::new());
}

/// But those that only read large objects, whatever their argument is.
#[test]
fn function_calls_that_read_large_objects() {
    use pgpalisade_policies::reads_large_objects;
    const READ: [u8; 4] = 0x0004_0000_u32.to_be_bytes();
    let stage = stage();
    let mut found = Vec::new();
    for row in stage.sql("SELECT oid::int8, proname FROM pg_proc WHERE oid < 16384 ORDER BY 2") {
        if reads_large_objects(row[0].parse().unwrap(), &[&[0; 4], &READ]) {
            found.push(row[1].clone());
        }
    }
    let readers = "lo_close lo_lseek lo_lseek64 lo_open lo_tell lo_tell64 loread";
    assert_eq!(found.join(" "), readers);
    for mode in [0x0002_0000_u32, 0x0006_0000, 0, u32::MAX] {
        assert!(
            !reads_large_objects(952, &[&[0; 4], &mode.to_be_bytes()]),
            "{mode}"
        );
    }
    for arguments in [
        &[][..],
        &[&READ[..]],
        &[&READ, &READ, &READ],
        &[&READ, b"262144"],
    ] {
        assert!(!reads_large_objects(952, arguments), "{arguments:?}");
    }
}

/// Limit of the guarantee. Functions, views and foreign tables may act outside of the transaction, or on large
/// objects up to PostgreSQL 15. No parser sees that, and read-only mode does not refuse it. If a later version
/// refuses one of these, `docs/guarantee.md` can promise more.
#[test]
fn what_neither_parser_nor_read_only_mode_sees() {
    let stage = stage();
    let by_dblink = stage.postgres.admin_dsn();
    stage.sql(&format!(
        "CREATE VIEW says AS SELECT pg_notify('news', 'x')::text;
         CREATE VIEW calls_out AS SELECT dblink_exec('{by_dblink}', 'INSERT INTO log DEFAULT VALUES');
         CREATE SERVER programs FOREIGN DATA WRAPPER file_fdw;
         CREATE FOREIGN TABLE program (line text) SERVER programs OPTIONS (program 'echo ran');
         CREATE SERVER away FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host '{}', port '{}', dbname 'postgres');
         CREATE USER MAPPING FOR postgres SERVER away OPTIONS (user 'postgres', password_required 'false');
         CREATE FOREIGN TABLE peek_away (id int) SERVER away OPTIONS (table_name 'peek')",
        stage.postgres.socket_dir().display(),
        stage.postgres.port(),
    ));
    let mut wire = stage.plain();
    if stage.postgres.version() < 16 {
        wire.ok("SELECT writes_by_text('SELECT lo_create(4711)')");
        let made = "SELECT count(*) FROM pg_largeobject_metadata WHERE oid = 4711";
        assert_eq!(stage.value(made), "1");
    }
    for sql in [
        "SELECT * FROM says",
        "SELECT * FROM calls_out",
        "SELECT * FROM program",
        "SELECT * FROM peek_away",
    ] {
        println!("{sql}");
        wire.ok(sql);
    }
    assert_eq!(stage.value("SELECT count(*) FROM log"), "2");
}
