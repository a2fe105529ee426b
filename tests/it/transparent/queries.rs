//! Queries in the simple and the extended protocol, pipelines, portals, errors.

use pgpalisade_test_servers::wire::Batch;

use super::check;

#[test]
fn simple_queries() {
    check(|talk| {
        talk.query("INSERT INTO items VALUES (1, 'one'), (2, NULL)");
        talk.query("SELECT * FROM items ORDER BY id");
        talk.query("UPDATE items SET name = 'two' WHERE id = 2 RETURNING *");
        talk.query("DELETE FROM items WHERE id > 99");
        talk.query("SHOW server_version; SET application_name = 'renamed'");
        talk.query("SELECT 1; SELECT 'two'; INSERT INTO items VALUES (3, 'three'); SELECT count(*) FROM items");
        talk.query("CREATE TEMP TABLE scratch AS SELECT generate_series(1, 3) AS n; SELECT n + 0 FROM scratch");
    });
}

#[test]
fn empty_queries() {
    check(|talk| {
        talk.query("");
        talk.query(";;");
        talk.query("-- only a comment");
        talk.run(&Batch::new().statement("").sync());
        talk.run(&Batch::new().sync());
    });
}

#[test]
fn errors_and_transactions() {
    check(|talk| {
        talk.query("SELEKT");
        talk.query("BEGIN");
        talk.query("INSERT INTO items VALUES (1, 'one')");
        talk.query("INSERT INTO items VALUES (1, 'again')");
        talk.query("SELECT 1");
        talk.query("");
        talk.query("COMMIT");
        talk.query("BEGIN; INSERT INTO items VALUES (2, 'two'); SAVEPOINT s; SELECT 1/0");
        talk.query("ROLLBACK TO s");
        talk.query("COMMIT AND CHAIN");
        talk.query("ROLLBACK");
        talk.query("COMMIT");
        talk.query("INSERT INTO items VALUES (3, 'three'); SELECT 1/0; INSERT INTO items VALUES (4, 'four')");
        talk.query("TABLE items");
    });
}

#[test]
fn notices() {
    check(|talk| {
        talk.query("SELECT chatter(3)");
        talk.query("DO $$ BEGIN RAISE WARNING 'from a block'; END $$");
        talk.run(&Batch::new().statement("SELECT chatter(2)").sync());
    });
}

#[test]
fn prepared_statements_and_describe() {
    check(|talk| {
        let prepare = Batch::new().parse("ins", "INSERT INTO items VALUES ($1, $2) RETURNING name");
        talk.run(&prepare.describe_statement("ins").sync());
        for id in ["1", "2", "3"] {
            let run = Batch::new()
                .bind("", "ins", &[Some(id), Some("a name")])
                .describe_portal("")
                .execute("", 0);
            talk.run(&run.sync());
        }
        talk.run(
            &Batch::new()
                .bind("p", "ins", &[Some("4"), None])
                .execute("p", 0)
                .close_portal("p")
                .sync(),
        );
        talk.run(
            &Batch::new()
                .parse("nothing", "DELETE FROM items")
                .describe_statement("nothing")
                .sync(),
        );
        talk.run(
            &Batch::new()
                .close_statement("ins")
                .close_statement("never there")
                .sync(),
        );
        talk.run(
            &Batch::new()
                .bind("", "ins", &[Some("5"), None])
                .execute("", 0)
                .sync(),
        );
        talk.query("PREPARE q AS SELECT $1::int + 1");
        talk.run(
            &Batch::new()
                .bind("", "q", &[Some("41")])
                .describe_portal("")
                .execute("", 0)
                .sync(),
        );
        talk.query("EXECUTE nothing");
        talk.query("DEALLOCATE ALL");
        talk.query("EXECUTE nothing");
    });
}

#[test]
fn pipelines() {
    check(|talk| {
        let one = |id: &str| {
            Batch::new()
                .parse("", "INSERT INTO items VALUES ($1, 'x')")
                .bind("", "", &[Some(id)])
        };
        let insert = |id: &str| one(id).execute("", 0);
        let many = (1..50).fold(Batch::new(), |all, id| all.then(&insert(&id.to_string())));
        talk.run(&many.statement("SELECT count(*) FROM items").sync());
        // Several Syncs in one write: one ReadyForQuery each.
        talk.send(
            &insert("100")
                .sync()
                .then(&insert("101"))
                .sync()
                .sync()
                .query("SELECT 1")
                .query("SELECT 2"),
        );
        for _ in 0..5 {
            talk.read_until(b'Z');
        }
    });
}

#[test]
fn errors_in_pipelines() {
    check(|talk| {
        let row =
            |id: &str| Batch::new().statement(&format!("INSERT INTO items VALUES ({id}, 'x')"));
        talk.run(&row("1").then(&row("1")).then(&row("2")).sync());
        talk.query("SELECT count(*) FROM items");
        // A failure skips to the Sync, also past further Flush, Close, Describe and Parse errors.
        let rest = Batch::new()
            .flush()
            .describe_statement("unknown")
            .close_statement("unknown")
            .parse("", "SELEKT");
        talk.run(
            &row("3")
                .parse("", "SELEKT")
                .then(&rest)
                .then(&row("4"))
                .sync(),
        );
        talk.run(&Batch::new().bind("", "unknown", &[]).execute("", 0).sync());
        talk.run(&Batch::new().execute("no portal", 0).sync());
        // The second Sync starts a new cycle.
        talk.send(
            &row("5")
                .statement("SELECT 1/0")
                .sync()
                .then(&row("6"))
                .sync(),
        );
        talk.read_until(b'Z');
        talk.read_until(b'Z');
        talk.query("TABLE items");
    });
}

#[test]
fn transaction_control_in_pipelines() {
    check(|talk| {
        let insert = |id: u32| format!("INSERT INTO items VALUES ({id}, 'x')");
        talk.run(
            &Batch::new()
                .statement("BEGIN")
                .statement(&insert(1))
                .statement("COMMIT")
                .sync(),
        );
        talk.run(
            &Batch::new()
                .statement(&insert(2))
                .statement("BEGIN")
                .statement("SELECT 1/0")
                .sync(),
        );
        talk.run(&Batch::new().statement("ROLLBACK").sync());
        talk.run(
            &Batch::new()
                .statement(&insert(3))
                .statement("COMMIT")
                .statement("SELECT 1/0")
                .sync(),
        );
        talk.query("TABLE items");
    });
}

#[test]
fn flush_brings_answers_without_sync() {
    check(|talk| {
        talk.send(
            &Batch::new()
                .parse("s", "SELECT $1::int")
                .describe_statement("s")
                .flush(),
        );
        talk.read_until(b'T');
        talk.send(&Batch::new().bind("", "s", &[Some("7")]).flush());
        talk.read_until(b'2');
        talk.send(&Batch::new().execute("", 0).flush());
        talk.read_until(b'C');
        talk.send(
            &Batch::new()
                .statement("INSERT INTO items VALUES (1, 'flushed')")
                .flush(),
        );
        talk.read_until(b'C');
        talk.run(&Batch::new().sync());
    });
}

#[test]
fn portals_with_row_limits() {
    check(|talk| {
        let series = Batch::new()
            .parse("", "SELECT generate_series(1, 7)")
            .bind("p", "", &[]);
        talk.run(
            &series
                .execute("p", 3)
                .execute("p", 3)
                .execute("p", 3)
                .execute("p", 3)
                .sync(),
        );
        talk.query("BEGIN");
        let rows = Batch::new()
            .parse(
                "",
                "INSERT INTO items SELECT generate_series(1, 4) RETURNING id",
            )
            .bind("w", "", &[]);
        talk.run(&rows.execute("w", 1).sync());
        talk.run(&Batch::new().execute("w", 2).sync());
        talk.run(&Batch::new().execute("w", 0).close_portal("w").sync());
        talk.query("DECLARE c CURSOR FOR SELECT id FROM items ORDER BY id; FETCH 2 FROM c");
        talk.run(&Batch::new().execute("c", 1).sync());
        talk.query("CLOSE c; COMMIT");
    });
}

#[test]
fn function_calls() {
    check(|talk| {
        // 870 is lower(text), 154 is int4div.
        talk.run(&Batch::new().function_call(870, &["SHOUT"]));
        talk.run(&Batch::new().function_call(154, &["7", "0"]));
        talk.query("BEGIN");
        talk.run(&Batch::new().function_call(154, &["7", "0"]));
        talk.run(&Batch::new().function_call(870, &["FAILED"]));
        talk.query("ROLLBACK");
        talk.run(&Batch::new().function_call(999_999, &[]));
    });
}

#[test]
fn unknown_messages_end_the_session() {
    check(|talk| {
        talk.send(&Batch::new().message(b'~', b"what is this"));
        let end = talk.wire.until_closed();
        // The proxy itself sends it, without the place in PostgreSQL's source code.
        assert_eq!([end[0].severity(), end[0].sqlstate()], ["FATAL", "08P01"]);
    });
}

#[test]
fn terminate_closes() {
    check(|talk| {
        talk.query("BEGIN; INSERT INTO items VALUES (1, 'lost')");
        talk.send(&Batch::new().terminate());
        talk.read_until(0);
        let none = talk.stage.postgres.value("SELECT count(*) FROM items");
        assert_eq!(none, "0");
    });
}
