//! Prepared statements of clients that share one server connection: each is parsed again where it is missing, and the
//! client sees what it would see with a server connection of its own.

use pgpalisade_test_servers::stage::Stage;
use pgpalisade_test_servers::wire::{Batch, Message, TRUSTED, Wire, errors, pretty};

use super::with;

/// Proxies that share `max` server connections, for which clients wait shortly. The second one resets them only where
/// it must, so that the statements of other clients stay where a client looks for its own.
fn of(max: &str) -> [Stage; 2] {
    ["always", "auto"].map(|reset| {
        with(&[
            ("--backends-max", max),
            ("--backends-leaders", "0"),
            ("--backends-wait", "500ms"),
            ("--backends-reset", reset),
        ])
    })
}

fn b() -> Batch {
    Batch::new()
}

fn run_in(batch: Batch, name: &str) -> Batch {
    batch.bind("", name, &[]).execute("", 0)
}

fn is_idle(answer: &[Message]) -> bool {
    answer
        .last()
        .is_some_and(|last| last.tag == b'Z' && last.body == b"I")
}

/// What a client reads, without descriptions: the tables are not the same.
fn words(answer: &[Message]) -> String {
    let told = answer
        .iter()
        .filter(|message| message.tag != b't' && message.tag != b'T');
    pretty(&told.cloned().collect::<Vec<_>>())
}

const TABLE: &str = "DROP TABLE IF EXISTS t; CREATE TABLE t (a int); INSERT INTO t VALUES (1), (2)";

/// Runs the steps, divided by ` ;; `: a Query, messages of the protocol and a Sync, or with `table` SQL beside the
/// client. While the client is idle, another one uses the same names for other statements.
fn conversation(
    stage: &Stage,
    client: &mut Wire,
    mut other: Option<&mut Wire>,
    steps: &str,
) -> String {
    stage.sql(TABLE);
    let mut said = String::new();
    let mut steps = steps.split(" ;; ").peekable();
    while let Some(step) = steps.next() {
        if let Some(sql) = step.strip_prefix("table ") {
            stage.sql(sql);
            continue;
        }
        let sync = if step.starts_with(char::is_uppercase) {
            ""
        } else {
            " + sync"
        };
        let answer = client.say(&format!("{step}{sync}"));
        said.push_str(&words(&answer));
        said.push_str("    --\n");
        if is_idle(&answer)
            && steps.peek().is_some()
            && let Some(other) = &mut other
        {
            let own = ["s", "t", "", "u"].iter().fold(b(), |batch, name| {
                let batch = batch
                    .close_statement(name)
                    .parse(name, "SELECT 'of the other'");
                run_in(batch, name)
            });
            let answer = other.run(&own.sync());
            assert_eq!(errors(&answer), [""; 0], "{}", pretty(&answer));
        }
    }
    said
}

/// Each of these must say the same with a server connection that another client had in between.
#[track_caller]
fn are_the_same(conversations: &str) {
    let stages = of("1");
    for steps in conversations.lines().filter(|line| !line.is_empty()) {
        for stage in &stages {
            let mut direct = Wire::login(&stage.postgres.tcp(), &TRUSTED);
            let expect = conversation(stage, &mut direct, None, steps);
            let (mut client, mut other) = (stage.plain(), stage.plain());
            let found = conversation(stage, &mut client, Some(&mut other), steps);
            assert!(
                expect == found,
                "{steps}\ndirect:\n{expect}\npooled:\n{found}"
            );
        }
    }
}

told! {
    are_the_same;

    a_statement_is_where_its_client_is: "
parse s SELECT 1 ;; run s ;; run s ;; run s
parse s SELECT 1 + parse t SELECT 2 ;; run s + run t ;; run s + run t
parse s SELECT 1 + parse t SELECT 2 ;; parse u SELECT 1/0 ;; run s + run u + run t ;; run s + run t
parse s SELECT a, $1::text FROM t + describe s ;; show s x ;; describe s ;; show s x
parse s SELECT 1 ;; parse s SELECT 2 ;; run s
run s ;; describe s ;; close s
parse s SELECT 1 ;; close s + run s ;; run s ;; parse s SELECT 2 ;; run s
parse . SELECT 7 + describe . ;; run . ;; run . ;; SELECT 1 ;; run .
parse . SELECT 7 + describe . ;; close . ;; run .
parse . SELECT 7 ;; BEGIN ;; run .
parse . SELECT 7 ;; parse . SELEC ;; run .
parse . SELECT 7 ;; run nowhere + parse . SELEC ;; run .
parse s SELECT 1 ;; parse . SELECT 7 + describe . ;; run s ;; run .
parse s SELECT * FROM t ;; table DROP TABLE t ;; run s ;; close s ;; run s
BEGIN ;; parse s SELECT 1 ;; ROLLBACK ;; run s
parse s SELECT 1 ;; parse t ROLLBACK ;; BEGIN ;; SELECT 1/0 ;; run s ;; run s ;; run t ;; run s
parse s SELECT 1 ;; BEGIN ;; SELECT 1/0 ;; run s + run t ;; ROLLBACK ;; run s";

    a_statement_of_the_protocol_by_sql: "
parse s SELECT 1 ;; DEALLOCATE s ;; DEALLOCATE s ;; run s ;; parse s SELECT 1 ;; run s
parse s SELECT * FROM t ;; table DROP TABLE t ;; DEALLOCATE s ;; parse s SELECT 1 ;; run s
parse s SELECT 1 ;; DEALLOCATE s; SELECT 1 ;; run s
parse s SELECT 1 ;; SELECT 1/0; DEALLOCATE s ;; run s
parse s SELECT 1 ;; BEGIN ;; DEALLOCATE s ;; ROLLBACK ;; run s
parse s SELECT 1 ;; BEGIN ;; SELECT 1/0 ;; DEALLOCATE s ;; ROLLBACK ;; run s
parse s SELECT 1 ;; > DEALLOCATE s ;; run s
parse s SELECT 1 ;; DEALLOCATE ALL ;; run s ;; parse s SELECT 1 ;; run s
parse s SELECT 1 ;; DISCARD ALL ;; run s ;; parse s SELECT 1 ;; run s
parse s SELECT 1 ;; parse . SELECT 2 ;; DEALLOCATE s ;; run .
parse s SELECT 1 ;; EXECUTE s ;; EXECUTE s ;; run s
parse s SELECT 1 ;; > EXECUTE s ;; > EXECUTE s
parse s SELECT * FROM t ;; table DROP TABLE t ;; EXECUTE s ;; SELECT 1 ;; EXECUTE s; SELECT 1 ;; SELECT 1
parse s SELECT 1 ;; PREPARE s AS SELECT 2
SELECT 1 ;; DEALLOCATE s ;; PREPARE s AS SELECT 3";
}

/// The client was told it of a statement, or of a portal. A table of the same columns is no change.
#[test]
fn a_result_type_stays_what_the_client_was_told() {
    let more = "table ALTER TABLE t ADD COLUMN b text";
    let told = "parse s SELECT * FROM t + describe s";
    let both = [told, "parse s SELECT * FROM t + show s"].map(|first| {
        format!(
            "
{first} ;; run s ;; {more} ;; run s ;; run s ;; describe s ;; close s + {told} + run s ;; run s
{first} ;; table {TABLE} ;; run s"
        )
    });
    are_the_same(&format!(
        "{}
parse s SET LOCAL work_mem = '1MB' + describe s ;; run s ;; run s
{told} ;; {more} ;; BEGIN ;; run s ;; run s ;; ROLLBACK ;; run s
{told} ;; {more} ;; run s ;; DEALLOCATE s ;; {told} ;; run s
{told} ;; {more} ;; run s ;; BEGIN ;; DEALLOCATE s ;; SELECT 1 ;; COMMIT ;; run s",
        both.concat()
    ));
}

/// A write by name needs a token, wherever it was parsed.
#[test]
fn nobody_writes_by_a_statement_without_a_token() {
    let [_, stage] = of("1");
    let (mut one, mut other) = (stage.plain(), stage.plain());
    stage.sql(TABLE);
    one.run(&b().parse("s", "INSERT INTO t VALUES (3)").sync());
    for _ in 0..3 {
        other.run(&b().parse("s", "SELECT 1").sync());
        let answer = one.run(&run_in(b(), "s").sync());
        assert_eq!(errors(&answer), ["PF002"], "{}", pretty(&answer));
        one.fails("EXECUTE s", "PF002");
    }
    other.ok("SET fencing.token = 34");
    other.run(&b().parse("w", "INSERT INTO t VALUES (4)").sync());
    for rows in ["3", "4", "5"] {
        let answer = one.run(&run_in(b(), "s").sync());
        assert_eq!(errors(&answer), ["PF002"], "{}", pretty(&answer));
        let answer = other.run(&run_in(b(), "w").sync());
        assert_eq!(errors(&answer), [""; 0], "{}", pretty(&answer));
        assert_eq!(one.rows("SELECT count(*) FROM t"), [[rows]]);
    }
}

/// Names in an older connection of the client may stand for what it has closed since.
#[test]
fn a_client_that_returns_finds_no_stale_name() {
    let [_, stage] = of("3");
    let mut other = stage.leader("34");
    let mut client = stage.leader("34");
    client.run(&b().parse("s", "SELECT 'old'").sync());
    let first = super::backend(&mut client);
    client.ok("SET fencing.token = ''");
    let second = super::backend(&mut client);
    assert_ne!(first, second);
    let anew = b().close_statement("s").parse("s", "SELECT 'new'");
    client.run(&anew.sync());
    // Its token makes the second connection one of the token, which another leader takes.
    client.ok("RESET fencing.token");
    other.ok("BEGIN");
    assert_eq!(super::backend(&mut other), second);
    assert_eq!(super::backend(&mut client), first);
    let answer = pretty(&client.run(&run_in(b(), "s").sync()));
    assert!(answer.contains("new"), "{answer}");
}

/// A literal is read by the settings at its Parse.
#[test]
fn a_date_keeps_its_meaning_through_a_set_beside_it() {
    const DATE: &str = "SELECT to_char('01/02/2024'::date, 'Mon')";
    const SET: &str = "SET DateStyle TO 'ISO, DMY'";
    let set = b().parse("", SET).bind("", "", &[]).execute("", 0).sync();
    for (cycles, runs) in [
        (
            vec![b().parse("s", DATE).then(&set)],
            run_in(b(), "s").sync(),
        ),
        (
            vec![
                b().parse("set", SET).parse("", DATE).sync(),
                run_in(b(), "set").sync(),
            ],
            run_in(b(), "").sync(),
        ),
    ] {
        for stage in of("1") {
            let (mut one, mut other) = (stage.plain(), stage.plain());
            for cycle in &cycles {
                assert_eq!(errors(&one.run(cycle)), [""; 0]);
            }
            // It may have to wait.
            other.query("SELECT 1");
            let answer = pretty(&one.run(&runs));
            assert!(answer.contains("Jan"), "{answer}");
        }
    }
}

/// As SQL PREPARE does, EXECUTE and FETCH run what has its own effects.
#[test]
fn what_a_statement_leaves_by_its_name_is_kept() {
    for stage in of("1") {
        let lock = "SELECT pg_advisory_lock(1)";
        let of_portal = |bound: Batch, name: &str| {
            let fetch = b().query(&format!("FETCH ALL FROM \"{name}\""));
            bound.sync().then(&fetch).query("COMMIT")
        };
        let executes = b().parse("t", "EXECUTE s").sync();
        let begun = executes.clone().query("BEGIN");
        for (parse, run) in [
            (lock, b().query("EXECUTE s")),
            ("LISTEN c", b().query("EXECUTE s")),
            ("SET work_mem = '123kB'", b().query("EXECUTE s")),
            (lock, executes.query("EXECUTE t")),
            (lock, of_portal(b().query("BEGIN").bind("p", "s", &[]), "p")),
            (lock, of_portal(begun.bind("p", "t", &[]), "p")),
            // The server may read these bytes as another name.
            ("LISTEN c", b().bind("é", "s", &[]).execute("é", 0).sync()),
            (lock, of_portal(b().query("BEGIN").bind("é", "s", &[]), "é")),
        ] {
            let (mut one, mut other) = (stage.leader("34"), stage.plain());
            one.run(&b().parse("s", parse).sync());
            let answer = one.run_all(&run);
            assert_eq!(errors(&answer), [""; 0], "{parse}");
            other.fails("SELECT 1", "53300");
        }
    }
}

/// It may stand for anything, and ran nothing.
#[test]
fn a_portal_of_nothing_changes_nothing() {
    for stage in of("1") {
        let (mut one, mut other) = (stage.leader("34"), stage.plain());
        one.run(&b().parse("s", "SELECT date '1.2.2020'").sync());
        let answer = one.run(&b().bind("", "nowhere", &[]).execute("", 0).sync());
        assert_eq!(errors(&answer), ["26000"]);
        one.ok("EXECUTE s");
        other.ok("SELECT 1");
        one.ok("EXECUTE s");
    }
}

#[test]
fn create_table_as_execute_runs_the_clients_own() {
    for stage in of("1") {
        let (mut one, mut other) = (stage.leader("34"), stage.plain());
        one.run(&b().parse("s", "SELECT 'one' AS whose").sync());
        other.run(&b().parse("s", "SELECT 'other' AS whose").sync());
        for (nth, text) in ["", "EXPLAIN ANALYZE "].into_iter().enumerate() {
            other.ok("SELECT 1");
            one.ok(&format!("{text}CREATE TABLE t{nth} AS EXECUTE s"));
            other.ok("SELECT 1");
            let whose = stage.value(&format!("SELECT whose FROM t{nth}"));
            assert_eq!(whose, "one");
        }
        // Where the name stands for the other's, that stays.
        assert_eq!(other.rows("EXECUTE s"), [["other"]]);
        one.ok("DEALLOCATE s");
        assert_eq!(other.rows("EXECUTE s"), [["other"]]);
        one.fails("EXECUTE s", "26000");
    }
}

/// PostgreSQL does not know it. Whatever another client has left under its name does not run.
#[test]
fn a_name_after_a_failed_transaction_is_nobody_elses() {
    for stage in of("1") {
        let (mut one, mut other) = (stage.leader("34"), stage.plain());
        for text in ["EXECUTE s", "DEALLOCATE s", "CREATE TABLE c AS EXECUTE s"] {
            other.run(&b().parse("s", "SELECT 'other'").sync());
            one.ok("BEGIN");
            one.fails("SELECT 1/0", "22012");
            one.fails(&format!("ROLLBACK; {text}"), "26000");
            let answer = other.run(&run_in(b(), "s").close_statement("s").sync());
            assert_eq!(errors(&answer), [""; 0], "{text}");
        }
    }
}

/// Its client had described another result, and PostgreSQL remembers that.
#[test]
fn a_plan_of_another_client_that_is_outdated_is_used_no_more() {
    let [_, stage] = of("2");
    stage.sql(TABLE);
    let (mut one, mut other, mut holder) = (stage.plain(), stage.plain(), stage.plain());
    let parse = || b().parse("s", "SELECT * FROM t");
    one.run(&run_in(parse(), "s").sync());
    stage.sql("ALTER TABLE t ADD COLUMN b text");
    one.ok("BEGIN; SELECT 1");
    other.run(&parse().sync());
    holder.ok("BEGIN; SELECT 1");
    let of_other = super::backend(&mut holder);
    one.ok("COMMIT");
    assert_ne!(super::backend(&mut other), of_other);
    let mut run = || errors(&other.run(&run_in(b(), "s").sync()));
    assert!(run().iter().all(|error| error == "0A000"));
    assert_eq!(run(), [] as [&str; 0]);
    assert_eq!(run(), [] as [&str; 0]);
}

/// An error after which the proxy does not trust them any more.
#[test]
fn a_statement_that_is_distrusted_is_in_nobodys_way() {
    for stage in of("1") {
        let (mut one, mut other) = (stage.plain(), stage.plain());
        for client in [&mut one, &mut other] {
            let parsed = client.run(&b().parse("s", "SELECT 'one'").sync());
            assert_eq!(errors(&parsed), [""; 0]);
        }
        one.run(&b().bind("", "s", &[]).execute("", 0).sync());
        one.fails("SELECT * FROM x.y.z", "0A000");
        drop((one, other));
        for _ in 0..2 {
            let mut next = stage.plain();
            let answer = next.run(
                &b().parse("s", "SELECT 'next'")
                    .bind("", "s", &[])
                    .execute("", 0)
                    .sync(),
            );
            assert_eq!(errors(&answer), [""; 0]);
            assert!(pretty(&answer).contains("next"));
        }
    }
}
