//! A client's settings go with it from server connection to server connection.

use pgpalisade_test_servers::machine::{Signal, pause, signal, wait_until};
use pgpalisade_test_servers::postgres::Postgres;
use pgpalisade_test_servers::stage::Stage;
use pgpalisade_test_servers::wire::{Batch, Message, Wire, errors, pretty, tags, trusted};

use super::{MOMENT, backend, with};

/// A proxy that shares `max` server connections, of which no client may keep one.
fn stage(max: &str, reset: &str) -> Stage {
    with(&[
        ("--backends-max", max),
        ("--backends-leaders", "0"),
        ("--backends-pinned", "0"),
        ("--backends-reset", reset),
    ])
}

#[test]
fn each_client_has_its_own_settings_in_a_shared_connection() {
    for reset in ["always", "auto"] {
        let stage = stage("1", reset);
        let (mut one, mut other, mut third) = (stage.plain(), stage.plain(), stage.plain());
        let default = third.rows("SHOW work_mem");
        one.ok("SET work_mem = '123kB'");
        one.ok(match reset {
            "auto" => "SELECT set_config('TimeZone', 'Asia/Tokyo', false)",
            _ => "SET TimeZone = 'Asia/Tokyo'",
        });
        other.ok("BEGIN; SELECT 1");
        other.ok("SET lock_timeout = '5s'; SET work_mem = '321kB'; SHOW lock_timeout");
        other.ok("COMMIT");
        let parse = Batch::new().parse("s", "SELECT '2020-01-01 00:00+00'::timestamptz::text");
        let run = |batch: Batch| batch.bind("", "s", &[]).execute("", 0).sync();
        one.run(&parse.clone().sync());
        third.run(&parse.clone().sync());
        for _ in 0..3 {
            assert_eq!(one.rows("SHOW work_mem"), [["123kB"]]);
            assert_eq!(other.rows("SHOW work_mem"), [["321kB"]]);
            assert_eq!(other.rows("SHOW lock_timeout"), [["5s"]]);
            assert_eq!(third.rows("SHOW work_mem"), default);
            assert_eq!(one.rows("SHOW TimeZone"), [["Asia/Tokyo"]]);
            assert_ne!(other.rows("SHOW TimeZone"), [["Asia/Tokyo"]]);
            // The same statement, and each client's own time zone.
            let told = one.run(&run(Batch::new()));
            assert!(String::from_utf8_lossy(&told[1].body).contains("09:00:00+09"));
            let told = third.run(&run(Batch::new()));
            assert!(!String::from_utf8_lossy(&told[1].body).contains("+09"));
        }
        one.ok("RESET work_mem");
        other.ok(match reset {
            "auto" => "SELECT 1; RESET ALL",
            _ => "DISCARD ALL",
        });
        for client in [&mut one, &mut other, &mut third] {
            assert_eq!(client.rows("SHOW work_mem"), default);
        }
        assert_eq!(one.rows("SHOW TimeZone"), [["Asia/Tokyo"]]);
        // A setting that was not accepted is none.
        one.fails("SET work_mem = 'much'", "22023");
        assert_eq!(other.rows("SHOW work_mem"), default);
        assert_eq!(one.rows("SHOW work_mem"), default);
    }
}

/// The proxy declares, or opens the session for writes, before the client's first message.
#[test]
fn a_setting_after_the_proxys_own_statements_is_taken_along_too() {
    let stage = stage("1", "always");
    for first in [
        Batch::new().query("SET a.b = 'x'"),
        Batch::new().query("SELECT set_config('a.b', 'x', false)"),
        Batch::new().statement("SET a.b = 'x'").sync(),
    ] {
        let mut leader = stage.leader("1");
        assert_eq!(errors(&leader.run(&first)), [] as [&str; 0]);
        assert_eq!(leader.rows("SHOW a.b"), [["x"]]);
        let mut leader = stage.leader("1");
        leader.ok("SELECT set_config('TimeZone', 'Asia/Tokyo', false)");
        assert_eq!(leader.rows("SHOW TimeZone"), [["Asia/Tokyo"]]);
    }
    let (mut leader, mut other) = (stage.leader("1"), stage.plain());
    leader.fails("SET work_mem = 'much'", "22023");
    other.ok("SELECT 1");
    leader.ok("SELECT 1");
}

/// A setting changes while the client is elsewhere: its older connection has another.
#[test]
fn an_older_connection_of_the_client_is_brought_up_to_date() {
    let stage = stage("2", "always");
    let (mut one, mut other) = (stage.plain(), stage.plain());
    one.ok("SET work_mem = '123kB'");
    let first = backend(&mut one);
    other.ok("SELECT 1");
    // The client finds its own connection in use.
    let mut holder = stage.plain();
    for value in ["124kB", "125kB"] {
        while backend(&mut holder) != first {
            holder.ok("ROLLBACK");
            holder.ok("BEGIN");
        }
        one.ok(&format!("SET work_mem = '{value}'"));
        holder.ok("ROLLBACK");
        for _ in 0..4 {
            assert_eq!(one.rows("SHOW work_mem"), [[value]]);
            assert_ne!(other.rows("SHOW work_mem"), [[value]]);
        }
    }
}

/// PostgreSQL reports it, and again when the transaction ends.
#[test]
fn a_local_setting_keeps_no_connection() {
    let stage = stage("1", "always");
    let (mut one, mut other) = (stage.plain(), stage.plain());
    for end in ["COMMIT", "ROLLBACK", "SELECT 1/0; ROLLBACK"] {
        one.ok("BEGIN");
        one.ok("SET LOCAL TimeZone = 'Asia/Tokyo'");
        one.ok("SET LOCAL search_path = pg_catalog");
        assert_eq!(one.rows("SHOW TimeZone"), [["Asia/Tokyo"]]);
        for text in end.split("; ") {
            one.run(&Batch::new().query(text));
        }
        assert_ne!(other.rows("SHOW TimeZone"), [["Asia/Tokyo"]]);
        assert_ne!(one.rows("SHOW TimeZone"), [["Asia/Tokyo"]]);
    }
}

/// What they say first, or when their pools get a connection back.
#[test]
fn the_settings_of_drivers_and_frameworks_keep_no_connection() {
    let stage = stage("1", "always");
    let mut other = stage.plain();
    for texts in [
        // Rails
        &[
            "SET client_encoding TO 'unicode'",
            "SET client_min_messages TO 'warning'",
            "SET standard_conforming_strings = on",
            "SET SESSION timezone TO 'UTC'",
        ][..],
        // Django, psqlODBC, JDBC
        &["SELECT set_config('TimeZone', 'UTC', false)"],
        &["SET DateStyle = 'ISO';SET extra_float_digits = 2;show transaction_isolation"],
        &["SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL SERIALIZABLE"],
        // asyncpg, Npgsql
        &[
            "SET work_mem = '123kB'",
            "SELECT pg_advisory_unlock_all(); CLOSE ALL; UNLISTEN *; RESET ALL",
        ],
        &[
            "SET SESSION AUTHORIZATION DEFAULT; RESET ALL; CLOSE ALL; UNLISTEN *; \
             SELECT pg_advisory_unlock_all(); DISCARD SEQUENCES; DISCARD TEMP",
        ],
    ] {
        let mut client = stage.plain();
        for text in texts {
            client.ok(text);
            other.ok("SELECT 1");
        }
    }
    // Laravel prepares them.
    let mut client = stage.plain();
    for set in [
        "set names 'utf8'",
        "set time zone 'UTC'",
        "set search_path to public",
    ] {
        let run = Batch::new().bind("", "pdo_1", &[]).execute("", 0).sync();
        client.run(&Batch::new().parse("pdo_1", set).sync());
        assert_eq!(errors(&client.run(&run)), [] as [&str; 0]);
        client.ok("DEALLOCATE pdo_1");
        other.ok("SELECT 1");
    }
}

/// The user may not set it any more.
#[test]
fn a_setting_that_fails_elsewhere_is_an_error() {
    let stage = stage("1", "always");
    stage.sql("CREATE ROLE admin LOGIN SUPERUSER");
    let admin = trusted(&[("user", "admin")]);
    let [mut one, mut other] = [(); 2].map(|()| Wire::login(&stage.proxy.endpoint(), &admin));
    one.ok("SET log_statement = 'none'");
    other.ok("SELECT 1");
    stage.sql("ALTER ROLE admin NOSUPERUSER");
    one.fails("SELECT 1", "58000");
    one.ok("BEGIN");
    one.fails("SELECT 1", "58000");
    one.ok("ROLLBACK");
    one.fails("SELECT 1", "58000");
    other.ok("SELECT 1");
}

/// What runs again must run nothing that was not judged.
#[test]
fn no_function_runs_with_the_settings() {
    let stage = stage("1", "auto");
    stage.sql(
        "CREATE FUNCTION set_config(text, text, boolean) RETURNS text LANGUAGE plpgsql AS $$ BEGIN
             RAISE LOG 'the other set_config'; RETURN ''; END $$;
         ALTER ROLE postgres SET search_path = public, pg_catalog",
    );
    let (mut one, mut other) = (stage.plain(), stage.plain());
    one.ok("SELECT set_config('a.b', 'x', false)");
    for _ in 0..4 {
        other.ok("SELECT 1");
        one.ok("SELECT 1");
    }
    assert_eq!(
        stage
            .postgres
            .log()
            .matches("the other set_config\n")
            .count(),
        1
    );
}

/// Nothing of the client was sent there: it gets another one.
#[test]
fn a_connection_may_end_while_it_gets_settings() {
    let stage = stage("1", "auto");
    for of_other in ["SELECT 1", "SET work_mem = '456kB'"] {
        let (mut one, mut other) = (stage.plain(), stage.plain());
        one.ok("SET work_mem = '123kB'");
        other.ok(of_other);
        let process = backend(&mut other).parse().unwrap();
        pause(process);
        one.send(&Batch::new().query("SHOW work_mem"));
        std::thread::sleep(MOMENT);
        signal(process, Signal::TERM);
        signal(process, Signal::CONT);
        let answer = one.until_ready();
        assert_eq!(tags(&answer), "T D C ZI", "{}", pretty(&answer));
        assert_eq!(answer[1].row(), ["123kB"]);
        assert_ne!(backend(&mut one), process.to_string());
    }
}

#[test]
fn a_lost_connection_takes_no_settings_with_it() {
    let stage = stage("2", "always");
    let mut one = stage.plain();
    one.ok("SET work_mem = '123kB'");
    let pid = backend(&mut one);
    stage.sql(&format!("SELECT pg_terminate_backend({pid})"));
    let answer = one.run(&Batch::new().query("SELECT 1"));
    assert!(errors(&answer).len() <= 1);
    assert_eq!(one.rows("SHOW work_mem"), [["123kB"]]);
}

/// No client may keep its server connection here.
#[test]
fn what_a_rollback_undoes_keeps_no_connection() {
    let stage = stage("1", "always");
    let (mut one, mut other) = (stage.plain(), stage.plain());
    for (name, value) in [
        ("TimeZone", "Asia/Tokyo"),
        ("application_name", "a"),
        ("DateStyle", "German"),
    ] {
        let show = format!("SHOW {name}");
        let default = one.rows(&show);
        for end in ["ROLLBACK", "COMMIT"] {
            one.ok("BEGIN");
            one.ok(&format!("SET {name} = '{value}'"));
            one.ok(end);
            other.ok("SELECT 1");
            assert_eq!(one.rows(&show) == default, end == "ROLLBACK", "{name}");
        }
        one.ok("DISCARD ALL");
    }
}

/// The end of another request cycle says nothing of a SET.
#[test]
fn a_setting_is_adopted_with_its_own_transaction() {
    let stage = with(&[
        ("--backends-max", "1"),
        ("--backends-leaders", "0"),
        ("--backends-wait", "500ms"),
    ]);
    for (first, value, after) in [
        (Batch::new(), "'much'", None),
        (Batch::new(), "'123kB'", Some("1 / 0")),
        (Batch::new().describe_statement("none"), "'123kB'", None),
    ] {
        let (mut one, mut other) = (stage.leader("34"), stage.plain());
        let default = other.rows("SHOW work_mem");
        let set = format!("SET work_mem = {value}");
        one.run(&Batch::new().parse("set", &set).sync());
        let run = first.sync().bind("", "set", &[]).execute("", 0);
        let run = after.map_or(run.clone(), |fails| {
            run.statement(&format!("SELECT {fails}"))
        });
        let answer = one.run_all(&run.sync());
        let is_set = errors(&answer).is_empty() || errors(&answer) == ["26000"];
        // It may keep its connection, but not lose the setting, or keep one that it has not.
        other.query("SELECT 1");
        let shown = one.rows("SHOW work_mem");
        let expect = if is_set {
            vec![vec!["123kB".to_owned()]]
        } else {
            default
        };
        assert_eq!(shown, expect, "{set} {:?}", errors(&answer));
    }
    // Beside the end of another transaction.
    let (mut one, mut other) = (stage.leader("34"), stage.plain());
    one.ok("BEGIN; SELECT 1");
    let ends = Batch::new().statement("COMMIT");
    let answer = one.run(&ends.statement("SET work_mem = '123kB'").sync());
    assert_eq!(errors(&answer), [] as [&str; 0]);
    other.query("SELECT 1");
    assert_eq!(one.rows("SHOW work_mem"), [["123kB"]]);
}

#[test]
fn a_client_is_shown_its_own_scope() {
    let stage = stage("1", "auto");
    let mut of_startup = Wire::login(
        &stage.proxy.endpoint(),
        &trusted(&[("fencing.scope", "billing")]),
    );
    let mut of_text = stage.plain();
    of_text.ok("SET fencing.scope = 'mail'");
    for _ in 0..3 {
        assert_eq!(of_startup.rows("SHOW fencing.scope"), [["billing"]]);
        assert_eq!(of_text.rows("SHOW fencing.scope"), [["mail"]]);
        assert_eq!(stage.plain().rows("SHOW fencing.scope"), [["default"]]);
    }
}

/// The value of a setting that the client believes in after these messages.
fn told(messages: &[Message], name: &str) -> Option<String> {
    let reports = messages.iter().filter(|message| message.tag == b'S');
    let mut values = reports.filter_map(|report| {
        let text = String::from_utf8_lossy(&report.body).into_owned();
        let (of, value) = text.split_once('\0')?;
        (of == name).then(|| value.trim_end_matches('\0').to_owned())
    });
    values.next_back()
}

/// As PostgreSQL tells when it rolls back.
#[test]
fn a_transaction_that_is_lost_takes_its_settings_back() {
    let stage = stage("2", "always");
    let mut web = stage.plain();
    let before = web.rows("SHOW TimeZone").concat().concat();
    for set in [
        "SET LOCAL TimeZone = 'Asia/Tokyo'",
        "SET TimeZone = 'Asia/Tokyo'",
    ] {
        web.ok("BEGIN");
        let answer = web.ok(set);
        assert_eq!(told(&answer, "TimeZone").as_deref(), Some("Asia/Tokyo"));
        let end = format!("SELECT pg_terminate_backend({}, 5000)", backend(&mut web));
        assert_eq!(stage.value(&end), "t");
        let answer = web.query("SELECT 1");
        assert_eq!(errors(&answer), ["57P01"]);
        assert_eq!(told(&answer, "TimeZone"), Some(before.clone()), "{set}");
        web.ok("ROLLBACK");
        assert_eq!(web.rows("SHOW TimeZone").concat().concat(), before);
    }
}

fn move_to_tokyo(postgres: &Postgres) {
    postgres.sql("ALTER SYSTEM SET TimeZone = 'Asia/Tokyo'");
    postgres.sql("SELECT pg_reload_conf()");
    wait_until("the reload", || {
        postgres.value("SHOW TimeZone") == "Asia/Tokyo"
    });
}

/// Of a server that has read its configuration again, and of a connection that was opened later.
#[test]
fn a_client_is_told_of_other_defaults() {
    let stage = stage("2", "always");
    let (mut one, mut other) = (stage.plain(), stage.plain());
    one.ok("SELECT 1");
    other.ok("SELECT 1");
    let postgres = &stage.postgres;
    move_to_tokyo(postgres);
    for client in [&mut one, &mut other] {
        let answer = client.ok("SELECT 1");
        assert_eq!(told(&answer, "TimeZone").as_deref(), Some("Asia/Tokyo"));
        assert_eq!(told(&client.ok("SELECT 1"), "TimeZone"), None);
    }
    // What a client has set itself stays what it is.
    one.ok("SET IntervalStyle = 'iso_8601'");
    postgres.sql("ALTER ROLE CURRENT_USER SET DateStyle = 'German'");
    postgres.sql("ALTER ROLE CURRENT_USER SET IntervalStyle = 'sql_standard'");
    other.ok("BEGIN; SELECT 1");
    let answer = one.ok("SELECT 1");
    assert_eq!(told(&answer, "DateStyle").as_deref(), Some("German, DMY"));
    assert_eq!(told(&answer, "IntervalStyle"), None);
    assert_eq!(one.rows("SHOW IntervalStyle"), [["iso_8601"]]);
    other.ok("COMMIT");
}

/// The connection of a client that was the first to hear of it is reset later, which reports nothing.
#[test]
fn a_client_is_told_no_default_of_before() {
    let stage = with(&[("--backends-max", "2"), ("--backends-leaders", "0")]);
    let mut first = stage.plain();
    first.ok("SELECT 1");
    move_to_tokyo(&stage.postgres);
    let answer = first.ok("SELECT 1");
    assert_eq!(told(&answer, "TimeZone").as_deref(), Some("Asia/Tokyo"));
    let pid = backend(&mut first);
    // It knows the new one.
    let mut late = Wire::login(&stage.proxy.endpoint(), &trusted(&[]));
    late.ok("SELECT 1");
    drop(first);
    std::thread::sleep(MOMENT);
    let mut holders = [stage.plain(), stage.plain()];
    assert_eq!(told(&late.ok("SELECT 1"), "TimeZone"), None);
    for holder in &mut holders {
        holder.ok("BEGIN; SELECT 1");
    }
    for holder in &mut holders {
        if backend(holder) == pid {
            holder.ok("COMMIT");
        }
    }
    assert_eq!(told(&late.ok("SELECT 1"), "TimeZone"), None);
    assert_eq!(backend(&mut late), pid);
}
