//! Replies whose command tag differs from the statement's own: the proxy compares tags with its decision.

use pgpalisade_test_servers::stage::Stage;
use pgpalisade_test_servers::wire::{Batch, Endpoint, Message, TRUSTED, Wire};

use super::{check, compare};

/// EXECUTE and FETCH complete with the tag of the executed statement, COMMIT of a failed transaction with ROLLBACK,
/// and a portal in parts.
fn scripts() -> Vec<Vec<Batch>> {
    let query = |sql: &str| Batch::new().query(sql);
    let prepared = |sql: &str| Batch::new().parse("s", sql).sync();
    let executed = [
        query("EXECUTE s"),
        Batch::new().statement("EXECUTE s").sync(),
    ];
    let mut scripts: Vec<Vec<Batch>> = [
        "",
        ";",
        "/* nothing */",
        "VALUES (1), (2)",
        "SELECT 1 WHERE false",
        "SHOW work_mem",
    ]
    .iter()
    .map(|sql| {
        [
            &[prepared(sql)],
            &executed[..],
            &[query("EXPLAIN (COSTS off) EXECUTE s")],
        ]
        .concat()
    })
    .collect();
    scripts.push(vec![
        query("PREPARE s AS SELECT n FROM generate_series(1, 5) n; EXECUTE s; DEALLOCATE s; DEALLOCATE ALL"),
        query("BEGIN; SELECT 1/0"),
        query("COMMIT"),
        query("BEGIN; SAVEPOINT a; SELECT 1/0"),
        query("ROLLBACK TO a; RELEASE a; END; ABORT"),
        query("BEGIN; DECLARE c CURSOR FOR VALUES (1), (2), (3); FETCH 2 FROM c; MOVE ALL IN c; CLOSE c; CLOSE ALL"),
        query("END"),
        query("SET CONSTRAINTS ALL DEFERRED; SET TRANSACTION ISOLATION LEVEL SERIALIZABLE; RESET ALL; DISCARD PLANS"),
        query("COPY (VALUES (1), (2)) TO STDOUT; LISTEN x; UNLISTEN *; TABLE items; LOCK items IN ACCESS SHARE MODE"),
    ]);
    let portal = |sql: &str| {
        let bound = Batch::new().parse("", sql).bind("c", "", &[]);
        bound
            .execute("c", 2)
            .execute("c", 2)
            .execute("c", 0)
            .execute("c", 0)
    };
    for (sql, then) in [
        ("VALUES (1), (2), (3)", "FETCH ALL FROM c; COMMIT"),
        ("FETCH ALL FROM d", "COMMIT"),
        ("EXECUTE s", "COMMIT"),
        ("EXPLAIN TABLE items", "MOVE ALL IN c; COMMIT"),
    ] {
        let begun = query(
            "BEGIN; DECLARE d CURSOR FOR VALUES (1), (2), (3); PREPARE s AS VALUES (1), (2), (3)",
        );
        scripts.push(vec![begun, portal(sql).sync(), query(then)]);
    }
    scripts
}

#[test]
fn of_a_session_that_may_not_write() {
    let stage = Stage::with(super::SETUP);
    for script in scripts() {
        let transcript = |endpoint: &Endpoint| {
            let mut wire = Wire::login(endpoint, &TRUSTED);
            let log = script.iter().flat_map(|batch| wire.run(batch));
            // Reported settings differ in a session that begins read-only.
            log.filter(|message| message.tag != b'S')
                .collect::<Vec<Message>>()
        };
        let direct = transcript(&stage.postgres.tcp());
        compare(direct, transcript(&stage.proxy.endpoint()));
    }
}

#[test]
fn of_a_holder() {
    check(|talk| {
        for script in scripts() {
            for batch in &script {
                talk.run(batch);
            }
            talk.query("DEALLOCATE ALL");
        }
        // Statements that act on names, executed by name.
        for sql in [
            "FETCH ALL FROM c",
            "MOVE ALL IN c",
            "PREPARE t AS VALUES (9)",
            "DEALLOCATE x",
            "DEALLOCATE ALL",
            "EXECUTE x",
        ] {
            talk.query("BEGIN; DECLARE c CURSOR FOR VALUES (1), (2); PREPARE x AS VALUES (3)");
            talk.run(&Batch::new().parse("p", sql).sync());
            talk.query("EXECUTE p");
            talk.query("FETCH c; EXECUTE x");
            talk.query("ROLLBACK; DEALLOCATE ALL");
        }
        talk.query("PREPARE i AS INSERT INTO items VALUES ($1); EXECUTE i(1); EXECUTE i(2)");
        talk.query("CREATE RULE quiet AS ON DELETE TO items DO INSTEAD NOTHING; DELETE FROM items");
        talk.query("PREPARE d AS DELETE FROM items; EXECUTE d; DROP RULE quiet ON items");
        talk.query(
            "CREATE TABLE made AS VALUES (1), (2); SELECT 1 INTO more; DROP TABLE made, more",
        );
    });
}
