//! SHOW of the access mode: a session without a token runs read-only internally, and sees the values that it
//! requested.

use pgpalisade_test_servers::machine::wait_until;
use pgpalisade_test_servers::postgres::Postgres;
use pgpalisade_test_servers::proxy::{Options, Proxy};
use pgpalisade_test_servers::stage::Stage;
use pgpalisade_test_servers::wire::{
    Batch, Endpoint, Message, TRUSTED, Wire, errors, pretty, trusted,
};

use super::{check as check_holder, compare};

const BOTH: &str = "SHOW transaction_read_only; SHOW default_transaction_read_only";

/// Runs the scripts on PostgreSQL and through the proxy, without a token, and compares. Reported settings are left
/// out: PostgreSQL reports only changes, and the proxy has already set some values.
#[track_caller]
fn check(stage: &Stage, startup: &[(&str, &str)], scripts: &[Vec<Batch>]) {
    let parameters = trusted(startup);
    let transcript = |endpoint: &Endpoint, script: &[Batch]| {
        let mut wire = Wire::login(endpoint, &parameters);
        let log = script.iter().flat_map(|batch| wire.run(batch));
        let log = log.filter(|message| message.tag != b'S');
        log.collect::<Vec<Message>>()
    };
    for script in scripts {
        let direct = transcript(&stage.postgres.tcp(), script);
        let proxied = transcript(&stage.proxy.endpoint(), script);
        println!("{script:?}\n{}", pretty(&direct));
        assert!(
            direct.iter().any(|message| message.tag == b'D'),
            "it shows something"
        );
        compare(direct, proxied);
    }
}

/// One Query for each text, and one for both settings at the end.
fn queries(texts: &[&str]) -> Vec<Batch> {
    let batches = texts.iter().chain(&[BOTH]);
    batches.map(|sql| Batch::new().query(sql)).collect()
}

#[test]
fn show_in_simple_queries() {
    let stage = Stage::start();
    let one = [
        "SHOW transaction_read_only",
        "show DEFAULT_transaction_read_only",
        "/* which? */ SHOW \"Transaction_Read_Only\" ;",
        "SHOW U&\"transaction_read\\005Fonly\"",
        "SELECT 'on'; SHOW transaction_read_only; SELECT 'on'; SHOW default_transaction_read_only; SELECT 'on'",
        ";; SHOW transaction_read_only; ; SHOW search_path; SHOW transaction_read_only",
        "SELECT 'on' FROM generate_series(1, 3); SHOW transaction_read_only; SELECT 1/0; SHOW transaction_read_only",
        "BEGIN READ ONLY; SHOW transaction_read_only; COMMIT",
        "BEGIN; SHOW transaction_read_only; COMMIT",
        "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY",
        "SET default_transaction_read_only = on; RESET ALL; SHOW default_transaction_read_only",
        "DISCARD ALL",
    ];
    let scripts: Vec<_> = one.iter().map(|sql| queries(&[sql])).collect();
    check(&stage, &[], &scripts);
    let asked = [("default_transaction_read_only", "on")];
    check(&stage, &asked, &scripts);
}

#[test]
fn show_in_transactions() {
    let stage = Stage::start();
    let scripts = [
        queries(&["BEGIN", BOTH, "COMMIT"]),
        queries(&[
            "BEGIN READ ONLY",
            BOTH,
            "COMMIT AND CHAIN",
            BOTH,
            "ROLLBACK",
        ]),
        queries(&["BEGIN", "ROLLBACK AND CHAIN", BOTH, "COMMIT"]),
        queries(&["BEGIN", "SET TRANSACTION READ ONLY", BOTH, "ROLLBACK"]),
        queries(&["BEGIN", "SET transaction_read_only = on", BOTH, "ROLLBACK"]),
        queries(&[
            "BEGIN",
            "SAVEPOINT s",
            BOTH,
            "ROLLBACK TO s",
            BOTH,
            "RELEASE s",
            BOTH,
            "END",
        ]),
        queries(&[
            "BEGIN READ ONLY",
            "SAVEPOINT s",
            BOTH,
            "ROLLBACK TO s",
            BOTH,
            "END",
        ]),
        queries(&[
            "SET default_transaction_read_only = on",
            "BEGIN",
            BOTH,
            "END",
            "RESET default_transaction_read_only",
        ]),
    ];
    check(&stage, &[], &scripts);
}

#[test]
fn show_in_the_extended_protocol() {
    let stage = Stage::start();
    let show = "SHOW transaction_read_only";
    let binary = [b"p\0s\0".as_slice(), &[0, 0, 0, 0, 0, 1, 0, 1]].concat();
    let prepared = Batch::new().parse("s", show).describe_statement("s");
    let run = Batch::new().bind("", "s", &[]).execute("", 0);
    let mut long = Batch::new().parse("n", "SELECT 'on' FROM generate_series(1, 50)");
    for _ in 0..500 {
        long = long.bind("", "n", &[]).execute("", 0);
    }
    let default = Batch::new().statement("SHOW default_transaction_read_only");
    let scripts = [
        vec![Batch::new().statement(show).sync()],
        vec![prepared.clone().then(&run).sync(), run.clone().sync()],
        vec![
            prepared
                .clone()
                .message(b'B', &binary)
                .describe_portal("p")
                .execute("p", 0)
                .sync(),
        ],
        vec![
            prepared
                .clone()
                .bind("p", "s", &[])
                .execute("p", 1)
                .execute("p", 1)
                .sync(),
        ],
        vec![
            prepared.clone().sync(),
            Batch::new().query("BEGIN READ ONLY"),
            run.clone().then(&default).sync(),
            Batch::new().query("COMMIT"),
            run.clone().then(&default).sync(),
        ],
        vec![long.statement(show).statement("SELECT 'on'").sync()],
        vec![
            Batch::new()
                .query("SELECT 'on' FROM generate_series(1, 9)")
                .query(show)
                .query("SELECT 'on'"),
            Batch::new().flush(),
            Batch::new().flush(),
        ],
    ];
    check(&stage, &[], &scripts);
}

/// A token that comes and goes: other queries show the truth.
#[test]
fn show_while_a_token_comes_and_goes() {
    let stage = Stage::start();
    let mut wire = stage.plain();
    let truth = "SELECT current_setting('transaction_read_only'), current_setting('default_transaction_read_only')";
    let check = |wire: &mut Wire, place: &str, really: [&str; 2]| {
        assert_eq!(wire.rows(BOTH), [["off"], ["off"]], "{place}");
        assert_eq!(wire.rows(truth), [really], "{place}");
    };
    check(&mut wire, "without a token", ["on", "on"]);
    wire.ok("BEGIN");
    wire.ok("SET fencing.token = 5");
    check(&mut wire, "declared in a transaction", ["off", "off"]);
    wire.ok("ROLLBACK");
    check(&mut wire, "after its rollback", ["on", "on"]);
    wire.ok("BEGIN; SET LOCAL fencing.token = 5");
    check(&mut wire, "declared for a transaction", ["off", "off"]);
    wire.ok("COMMIT");
    check(&mut wire, "after it", ["on", "on"]);
    wire.ok("SET fencing.token = 5");
    check(&mut wire, "declared", ["off", "off"]);
    wire.ok("RESET fencing.token");
    check(&mut wire, "given back", ["on", "on"]);
    let log = stage.postgres.log();
    assert!(
        !log.contains("WARNING"),
        "what the proxy says itself: {log}"
    );
}

/// The client sees values that it has set itself, and then also those set by the proxy, which does not track the
/// client's. The next declaration restores the values at login.
#[test]
fn show_what_the_client_has_set() {
    let stage = Stage::start();
    for set in [
        "SET default_transaction_read_only = on",
        "BEGIN; SET LOCAL default_transaction_read_only = on; COMMIT",
        "BEGIN; SET default_transaction_read_only = on; ROLLBACK",
    ] {
        let mut wire = stage.plain();
        assert_eq!(wire.rows(BOTH), [["off"], ["off"]]);
        wire.ok(set);
        assert_eq!(wire.rows(BOTH), [["on"], ["on"]], "{set}");
        wire.ok("SET fencing.token = 5");
        assert_eq!(wire.rows(BOTH), [["off"], ["off"]], "{set}");
        wire.ok("DISCARD ALL");
        assert_eq!(wire.rows(BOTH), [["off"], ["off"]], "{set}");
    }
}

/// The client was never told of the guard, and so not of its end.
#[test]
fn a_declaration_in_a_block_reports_nothing() {
    for flags in [&[][..], &[("--pool", "transaction")]] {
        let stage = Stage::with_flags("", flags);
        for set in ["SET LOCAL fencing.token = 5", "SET fencing.token = 5"] {
            let mut wire = stage.plain();
            wire.ok("BEGIN");
            let run = Batch::new().parse("", set).bind("", "", &[]);
            let answer = wire.run(&run.execute("", 0).sync());
            assert!(answer.iter().all(|m| m.tag != b'S'), "{}", pretty(&answer));
            wire.ok("COMMIT");
        }
    }
}

/// A holder controls the settings: its session is PostgreSQL's, with all reports.
#[test]
fn settings_of_a_holder() {
    let scripts: &[&[&str]] = &[
        &[
            "SET default_transaction_read_only = on",
            BOTH,
            "INSERT INTO items VALUES (1)",
        ],
        &[
            "BEGIN",
            "SET LOCAL default_transaction_read_only = on",
            "COMMIT",
        ],
        &[
            "BEGIN; SAVEPOINT s; SET default_transaction_read_only = on",
            "ROLLBACK TO s",
            "COMMIT",
        ],
        &["SELECT set_config('default_transaction_read_only', 'on', true)"],
        &[
            "SELECT set_config('default_transaction_read_only', 'on', false)",
            "DISCARD ALL",
        ],
        &[
            "BEGIN READ ONLY",
            "INSERT INTO items VALUES (1)",
            "ROLLBACK AND CHAIN",
            BOTH,
            "COMMIT",
        ],
        &[
            "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY",
            "RESET default_transaction_read_only",
        ],
        &[
            "BEGIN; SET TRANSACTION READ ONLY",
            "COMMIT AND CHAIN",
            "SHOW transaction_read_only",
            "END",
        ],
    ];
    check_holder(|talk| {
        for script in scripts {
            for sql in *script {
                talk.query(sql);
            }
            talk.query(BOTH);
            talk.query("INSERT INTO items VALUES (2); DELETE FROM items");
            talk.query("DISCARD ALL");
        }
    });
}

/// A standby's transactions are read-only whatever anybody requests.
#[test]
fn show_on_a_standby() {
    let postgres = Postgres::start();
    let standby = postgres.replica();
    let mut options = Options::new(&postgres);
    options.upstream = format!("postgres://127.0.0.1:{}", standby.port());
    let proxy = Proxy::start_with(options);
    let mut wire = Wire::login(&proxy.endpoint(), &TRUSTED);
    assert_eq!(wire.rows(BOTH), [["on"], ["off"]]);
    standby.promote();
    wait_until("the server to say that it is a primary", || {
        wire.rows(BOTH) == [["off"], ["off"]]
    });
}

/// A rollback gives the mode back to the proxy, also in a chain or in a pipeline.
#[test]
fn a_holder_writes_after_a_rollback() {
    for pool in ["session", "transaction"] {
        let stage = Stage::with_flags("CREATE TABLE r (id int)", &[("--pool", pool)]);
        let mut wire = stage.plain();
        for sql in [
            "BEGIN",
            "SET fencing.token = 7",
            "INSERT INTO r VALUES (1)",
            "ROLLBACK AND CHAIN",
            "SET fencing.token = 7",
            "INSERT INTO r VALUES (2)",
            "COMMIT",
            "INSERT INTO r VALUES (3)",
        ] {
            wire.ok(sql);
        }
        let mut wire = stage.plain();
        for end in ["COMMIT", "ROLLBACK"] {
            let texts = [
                "BEGIN",
                "SET LOCAL fencing.token = 7",
                end,
                "BEGIN",
                "SET LOCAL fencing.token = 7",
                "INSERT INTO r VALUES (4)",
                "COMMIT",
            ];
            let pipeline = texts.iter().fold(Batch::new(), |all, sql| {
                all.parse("", sql).bind("", "", &[]).execute("", 0)
            });
            let answer = wire.run(&pipeline.sync());
            assert!(
                errors(&answer).is_empty(),
                "{pool}: {end}: {}",
                pretty(&answer)
            );
        }
    }
}

/// What an error or a rollback undoes in one request cycle, PostgreSQL does not report.
#[test]
fn a_holder_writes_after_what_undid_the_change_without_a_report() {
    for pool in ["session", "transaction"] {
        let stage = Stage::with_flags("CREATE TABLE r (id int)", &[("--pool", pool)]);
        let statements = |texts: &[&str]| {
            let all = texts.iter().fold(Batch::new(), |all, sql| {
                all.parse("", sql).bind("", "", &[]).execute("", 0)
            });
            all.sync()
        };
        let mut wire = stage.plain();
        wire.ok("SELECT 1");
        let reset = ["RESET ALL", "ROLLBACK", "SET fencing.token = 7"];
        assert!(errors(&wire.run(&statements(&reset))).is_empty());
        wire.ok("INSERT INTO r VALUES (1)");
        for reset in ["RESET fencing.token", "SET fencing.token TO DEFAULT"] {
            let mut wire =
                Wire::login(&stage.proxy.endpoint(), &trusted(&[("fencing.token", "7")]));
            for sql in [
                "SET fencing.token = ''",
                "BEGIN",
                reset,
                "INSERT INTO r VALUES (1)",
                "COMMIT",
                "INSERT INTO r VALUES (1)",
            ] {
                wire.ok(sql);
            }
            wire.ok("SET fencing.token = ''");
            let answer = wire.run(&statements(&[reset, "INSERT INTO r VALUES (1)"]));
            assert!(
                errors(&answer).is_empty(),
                "{pool}: {reset}: {}",
                pretty(&answer)
            );
        }
        // Laid down on one connection, taken again on another.
        let holds = trusted(&[("fencing.token", "7")]);
        let [mut one, mut other] = [0, 1].map(|_| Wire::login(&stage.proxy.endpoint(), &holds));
        one.ok("SET fencing.token = ''");
        let fails = [
            "SET fencing.token = 7",
            "SELECT pg_backend_pid()",
            "SELECT 1/0",
        ];
        one.run(&statements(&fails));
        one.ok("RESET fencing.token");
        other.ok("BEGIN");
        other.ok("SELECT 1");
        one.ok("INSERT INTO r VALUES (2)");
        other.ok("ROLLBACK");
    }
}

/// A rollback in a chain does not bring back the guard that the first part has committed. And what a leader resets in
/// its transaction is not the guard.
#[test]
fn a_default_of_the_configuration_file_guards_nobody() {
    let stage = Stage::with(
        "CREATE TABLE r (id int); CREATE FUNCTION f() RETURNS void LANGUAGE sql AS 'INSERT INTO r VALUES (1)'",
    );
    let postgres = &stage.postgres;
    let set = |value| {
        postgres.sql(&format!(
            "ALTER SYSTEM SET default_transaction_read_only = {value}"
        ));
        postgres.sql("SELECT pg_reload_conf()");
        wait_until("the file is read", || {
            postgres.value("SHOW default_transaction_read_only") == value
        });
    };
    let in_a_chain = |wire: &mut Wire| {
        wire.ok("BEGIN");
        wire.ok("SET fencing.token = 7");
        wire.ok("RESET fencing.token");
        wire.ok("COMMIT AND CHAIN");
        wire.ok("ROLLBACK");
    };
    let in_its_transaction = |wire: &mut Wire, resets: Batch| {
        wire.ok("BEGIN");
        wire.ok("SET LOCAL fencing.token = 7");
        let answer = wire.run_all(&resets);
        assert!(errors(&answer).is_empty(), "{}", pretty(&answer));
        wire.ok("COMMIT");
    };
    let name = "'default_transaction_read_only'";
    let by_set_config = format!("set_config({name}, NULL, false)");
    let null = b"\0\0\x08\x1e\0\0\0\x03\0\0\0\x1ddefault_transaction_read_only\xff\xff\xff\xff\0\0\0\x05false\0\0";
    let ways = [
        Batch::new().query(&format!("SELECT {by_set_config}")),
        Batch::new().query(&format!("INSERT INTO r SELECT length({by_set_config})")),
        Batch::new().query(&format!(
            "UPDATE pg_settings SET setting = NULL WHERE name = {name}"
        )),
        Batch::new()
            .query(&format!("PREPARE p AS SELECT {by_set_config}"))
            .query("EXECUTE p"),
        Batch::new()
            .query(&format!("PREPARE q AS SELECT {by_set_config}"))
            .bind("", "q", &[])
            .execute("", 0)
            .sync(),
        Batch::new()
            .statement(&format!("SELECT {by_set_config}"))
            .sync(),
        Batch::new().message(b'F', null),
    ];
    for way in 0..=ways.len() {
        set("on");
        let mut wire = stage.plain();
        wire.ok("SELECT 1");
        match ways.get(way) {
            Some(resets) => in_its_transaction(&mut wire, resets.clone()),
            None => in_a_chain(&mut wire),
        }
        wire.ok("SELECT 1");
        set("off");
        // Its own process reads the file before its next statement, and reports after it.
        wire.fails("SELECT f()", "25006");
    }
}

/// A token of a text makes the transaction read-write in which it arrives. If it counts for the next one, that may
/// write from the next message on, and nothing is declared for a text that writes at once.
#[test]
fn a_token_after_the_end_of_another_transaction() {
    let stage = Stage::with("CREATE TABLE r (id int)");
    let insert = "INSERT INTO r VALUES (1)";
    let arrives = [
        &["BEGIN", "SELECT 1/0"][..],
        &["BEGIN", "SELECT id FROM r"],
        &["BEGIN", "SET fencing.token = 7"],
        &["BEGIN", "SET LOCAL fencing.token = 7", insert],
    ];
    for (at, before) in arrives.into_iter().enumerate() {
        let reach = || {
            let mut wire = stage.plain();
            before.iter().for_each(|sql| drop(wire.query(sql)));
            wire
        };
        let token = 8 + at;
        let set = format!("SET LOCAL fencing.token = {token}");
        let mut wire = reach();
        wire.fails(
            &format!("ROLLBACK; BEGIN; {set}; {insert}; COMMIT"),
            "PF003",
        );
        wire.query("ROLLBACK");
        assert!(wire.rows("SHOW fencing.mark")[0][0].parse().unwrap_or(0) < token);
        for (text, end) in [
            (format!("ROLLBACK; BEGIN; {set}"), "COMMIT"),
            (format!("ROLLBACK; SET fencing.token = {token}"), "SELECT 1"),
        ] {
            let mut wire = reach();
            wire.ok(&text);
            wire.ok(insert);
            wire.ok(end);
        }
    }
}

/// A default in doubt is set again once, for a token of the transaction and for one after its end.
#[test]
fn a_token_while_the_default_is_in_doubt() {
    let stage = Stage::with("CREATE TABLE r (id int)");
    let insert = "INSERT INTO r VALUES (1)";
    let local = "SET LOCAL fencing.token = 7";
    for script in [
        &["BEGIN", "RESET ALL", local, local, insert, "COMMIT"][..],
        &[
            "BEGIN",
            "SET fencing.token = 7",
            "ROLLBACK AND CHAIN",
            local,
            insert,
            "COMMIT",
        ],
        &[
            "BEGIN",
            local,
            "PREPARE s AS SELECT 1",
            "EXECUTE s",
            local,
            insert,
            "COMMIT",
        ],
        &[
            "BEGIN",
            "SET fencing.token = 7",
            "ROLLBACK; SET fencing.token = 7",
            insert,
        ],
        &[
            "BEGIN",
            "SET fencing.token = 7",
            "COMMIT; SET fencing.token = 7",
            insert,
        ],
    ] {
        let mut wire = stage.plain();
        script.iter().for_each(|sql| drop(wire.ok(sql)));
        drop(wire);
        let mut next = stage.plain();
        next.fails(insert, "PF002");
    }
}
