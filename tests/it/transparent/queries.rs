//! Queries in the simple and the extended protocol, pipelines, portals, errors.

use pgpalisade_test_servers::wire::Batch;

use super::{Talk, check_all, check_said};

told! {
    check_said;

    simple_queries_and_transactions: "
INSERT INTO items VALUES (1, 'one'), (2, NULL)
SELECT * FROM items ORDER BY id
UPDATE items SET name = 'two' WHERE id = 2 RETURNING *
DELETE FROM items WHERE id > 99
SHOW server_version; SET application_name = 'renamed'
SELECT 1; SELECT 'two'; INSERT INTO items VALUES (3, 'three'); SELECT count(*) FROM items
CREATE TEMP TABLE scratch AS SELECT generate_series(1, 3) AS n; SELECT n+0 FROM scratch

query
;;
-- only a comment
> + sync
sync

SELEKT
BEGIN
INSERT INTO items VALUES (1, 'one')
INSERT INTO items VALUES (1, 'again')
SELECT 1
query
COMMIT
BEGIN; INSERT INTO items VALUES (2, 'two'); SAVEPOINT s; SELECT 1/0
ROLLBACK TO s
COMMIT AND CHAIN
ROLLBACK
COMMIT
INSERT INTO items VALUES (3, 'three'); SELECT 1/0; INSERT INTO items VALUES (4, 'four')
TABLE items

SELECT chatter(3)
DO $$ BEGIN RAISE WARNING 'from a block'; END $$
> SELECT chatter(2) + sync";

    prepared_statements_and_portals: "
parse ins INSERT INTO items VALUES ($1, $2) RETURNING name + describe ins + sync
show ins 1 name + sync
show ins 2 name + sync
show ins 3 name + sync
bind p ins 4 NULL + execute p + close-portal p + sync
parse nothing DELETE FROM items + describe nothing + sync
close ins + close never-there + sync
run ins 5 NULL + sync
PREPARE q AS SELECT $1::int+1
show q 41 + sync
EXECUTE nothing
DEALLOCATE ALL
EXECUTE nothing

parse . SELECT generate_series(1, 7) + bind p . + execute p 3 + execute p 3 + execute p 3 + execute p 3 + sync
BEGIN
parse . INSERT INTO items SELECT generate_series(1, 4) RETURNING id + bind w . + execute w 1 + sync
execute w 2 + sync
execute w + close-portal w + sync
DECLARE c CURSOR FOR SELECT id FROM items ORDER BY id; FETCH 2 FROM c
execute c 1 + sync
CLOSE c; COMMIT";

    /// A failure skips to the Sync, also past further Flush, Close, Describe and Parse errors. The second Sync starts a
    /// new cycle. A Flush brings answers without one.
    pipelines: "
> INSERT INTO items VALUES (1, 'x') + > INSERT INTO items VALUES (1, 'x') \
    + > INSERT INTO items VALUES (2, 'x') + sync
SELECT count(*) FROM items
> INSERT INTO items VALUES (3, 'x') + parse . SELEKT + flush + describe unknown + close unknown + parse . SELEKT \
    + > INSERT INTO items VALUES (4, 'x') + sync
run unknown + sync
execute no-portal + sync
> INSERT INTO items VALUES (5, 'x') + > SELECT 1/0 + sync + > INSERT INTO items VALUES (6, 'x') + sync
TABLE items

> BEGIN + > INSERT INTO items VALUES (1, 'x') + > COMMIT + sync
> INSERT INTO items VALUES (2, 'x') + > BEGIN + > SELECT 1/0 + sync
> ROLLBACK + sync
> INSERT INTO items VALUES (3, 'x') + > COMMIT + > SELECT 1/0 + sync
TABLE items

T: parse s SELECT $1::int + describe s + flush
2: bind . s 7 + flush
C: execute . + flush
C: > INSERT INTO items VALUES (1, 'flushed') + flush
sync";

    /// 870 is lower(text), 154 is int4div.
    function_calls: "
call 870 SHOUT
call 154 7 0
BEGIN
call 154 7 0
call 870 FAILED
ROLLBACK
call 999999";
}

/// Each on the same server.
#[test]
fn long_pipelines_and_ends() {
    check_all(&[
        long_pipelines,
        unknown_messages_end_the_session,
        terminate_closes,
    ]);
}

fn long_pipelines(talk: &mut Talk<'_>) {
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
}

fn unknown_messages_end_the_session(talk: &mut Talk<'_>) {
    talk.send(&Batch::new().message(b'~', b"what is this"));
    let end = talk.wire.until_closed();
    // The proxy itself sends it, without the place in PostgreSQL's source code.
    assert_eq!([end[0].severity(), end[0].sqlstate()], ["FATAL", "08P01"]);
}

fn terminate_closes(talk: &mut Talk<'_>) {
    talk.query("BEGIN; INSERT INTO items VALUES (1, 'lost')");
    talk.send(&Batch::new().terminate());
    talk.read_until(0);
    let none = talk.stage.value("SELECT count(*) FROM items");
    assert_eq!(none, "0");
}
