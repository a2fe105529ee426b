//! Tokens that a transaction has given up: changed to the next (H1), or cleared (L2).

use super::script::{Worth, check, conversations, held};

held! {
    /// H1: a transaction has written under one token and continues under the next, which another session holds by then.
    h1_a_transaction_that_moves_to_another_token: NotAsked, "
Holder
    {write} & {set} & {by} = INSERT INTO log VALUES ('x') & SET fencing.token = '@1' & @1 \
    | SELECT w() & SET fencing.token = '@1' & @2 \
    | TABLE v & SET LOCAL fencing.token = '@1' & @1 \
    | INSERT INTO log VALUES ('x') & SET LOCAL fencing.token = '@1' & @2 \
    | SELECT w() & SELECT set_config('fencing.token', '@1', false) & @1 \
    | TABLE v & SELECT set_config('fencing.token', '@1', false) & @2
    sent, answered, queries, text, pipeline: BEGIN ;; {write} ;; {set} \
    | BEGIN ;; {write} ;; SELECT 1 ;; {set} \
    | BEGIN ;; SAVEPOINT s ;; RELEASE s ;; {write} ;; {set} \
    | BEGIN ;; SAVEPOINT s ;; {write} ;; SAVEPOINT t ;; {set} \
    | BEGIN ;; {write} ;; SAVEPOINT s ;; SELECT 1/0 ;; ROLLBACK TO s ;; {set} \
    | BEGIN ;; {write} ;; SAVEPOINT s ;; {set} ;; ROLLBACK TO s
    wait ;; declare {by} ;; COMMIT ;; wait";

    /// L2: the token is cleared, and later statements of the same text or transaction still write.
    l2_what_writes_after_the_token_is_laid_down: NotAsked, "
Holder, grouped
    {down} & {local} & {write} & {held} = SET fencing.token = '' & SET LOCAL fencing.token = '' \
      & SELECT w() & SELECT w() \
    | SELECT set_config('fencing.token', '', false) & SELECT set_config('fencing.token', '', true) \
      & TABLE v & SELECT * FROM v \
    | SET SESSION fencing.token TO '' & SET LOCAL fencing.token = '' & SELECT '{x}'::d[] & SELECT '{x}'::d[] \
    | SET fencing.token = '' & SET LOCAL fencing.token = '' & SELECT !!! 1 & SELECT !!! 1
    text, queries, pipeline: {down} ;; {write} \
    | BEGIN ;; {down} ;; {write} ;; COMMIT \
    | BEGIN ;; {local} ;; {write} ;; COMMIT \
    | BEGIN ;; SELECT 1 ;; {down} ;; {write} ;; COMMIT \
    | BEGIN ;; DECLARE h CURSOR WITH HOLD FOR {held} ;; {down} ;; COMMIT \
    | BEGIN ;; SAVEPOINT s ;; {down} ;; SAVEPOINT t ;; {write} ;; RELEASE s ;; COMMIT \
    | BEGIN ;; {down} ;; COMMIT ;; {write}";

    /// Found by the oracle: the data of a COPY must arrive, although later statements of its text wait for its reply.
    n2_a_copy_in_front_of_a_token: NotAsked, "
Holder, grouped
    {end} & {write} = CopyDone & SELECT w() | CopyFail & SELECT '{x}'::d[]
    {behind} = RESET fencing.token | SET fencing.token = '@0' | SHOW fencing.token | RESET ALL
    COPY log (what) FROM STDIN; {behind} ;; CopyData ;; {end} ;; {write} \
    | COPY log (what) FROM STDIN; {behind} ;; CopyData ;; {end} \
      ;; {behind}; COPY log (what) FROM STDIN ;; CopyData ;; {end} ;; {write} \
    | > COPY log (what) FROM STDIN ;; Sync ;; CopyData ;; {end} ;; > {behind} ;; > {write} ;; Sync";

    /// Found by the oracle: PostgreSQL ends a session that sends anything else instead of a COPY's data.
    n2_a_token_in_the_place_of_the_data_of_a_copy: NotAsked, "
Holder, grouped
    {text} = RESET fencing.token | SET fencing.token = '@1' | SELECT w()
    COPY log (what) FROM STDIN ;; {text} \
    | COPY log (what) FROM STDIN ;; > {text} ;; Sync \
    | > COPY log (what) FROM STDIN ;; > {text} ;; Sync
Holder, grouped
    COPY log (what) FROM STDIN
    Malformed B | Execute p ;; Sync";

    /// Found by the oracle: with a row limit the portal is suspended, not complete, but the setting has changed.
    n3_a_token_laid_down_by_a_portal_that_is_suspended: NotAsked, "
Holder, grouped
    {local} = false | true
    BEGIN ;; Parse . SELECT set_config('fencing.token', '', {local}) ;; Bind p . ;; ExecuteOne p
    Sync ;; {hidden} | > {hidden} ;; Sync
    COMMIT";

    /// N5, found by the oracle: statements before a declaration in the same text run without its token.
    n5_a_write_in_front_of_a_declaration: NotAsked, "
Holder, grouped
    {set} & {write} = SET fencing.token = '@1' & SELECT w() \
    | SET LOCAL fencing.token = '@1' & SELECT '{x}'::d[] \
    | SELECT set_config('fencing.token', '@1', false) & SELECT w()
    {down} = SET fencing.token = ''
    {down} | BEGIN ;; {down} | > {down} | BEGIN ;; > {down}
    {write}; {set} | BEGIN; {write}; {set}; COMMIT | {set}; {down}; {write} | > {write} ;; > {set} ;; Sync";

    /// Found by core conversations: the end of a pipeline may undo a token set in it. Messages sent after it then run
    /// under the earlier token.
    n8_a_token_whose_pipeline_is_undone: NotAsked, "
Holder
    {write} = INSERT INTO log VALUES ('x') | SELECT w()
    > SET fencing.token = '@1' | > SELECT set_config('fencing.token', '@1', false)
    Flush ;; wait ;; declare @1
    SELECT 1/0 | no query | Malformed Q | > SELECT 1/0 ;; Sync \
    | SET fencing.token = 'x' | > SET fencing.token = 'x' ;; Sync
    {write} | > {write} ;; Sync";

    /// Found by random conversations: the session was prepared for a token that allows no write. A hidden write before
    /// its declaration was then not guarded.
    n9_a_write_in_front_of_another_scope_s_token: NotAsked, "
Holder
    {down} = SET fencing.token = '' | SELECT set_config('fencing.token', '', false) \
    | SET LOCAL fencing.token = '' | SET fencing.token = 'other=@1'
    BEGIN ;; {down} | > {down} | > BEGIN ;; > {down} ;; Sync
    SELECT w(); SET fencing.token = 'other=@0' \
    | SELECT w(); SELECT set_config('fencing.token', 'other=@0', false) \
    | SET fencing.token = 'other=@0'; SELECT w() \
    | SELECT w(); SET LOCAL fencing.token = 'other=@0'
    COMMIT";

    /// Found by core conversations: a text clears the token and gets it back, by RESET or by the end of a transaction.
    /// It was taken for a text that declares the token.
    n12_a_write_in_front_of_a_token_that_comes_back: NotAsked, "
Holder
    {down} & {local} = SET fencing.token = '' & SET LOCAL fencing.token = ''
    {down} | BEGIN ;; {down} | BEGIN ;; {local} | BEGIN ;; SAVEPOINT s ;; {down} | BEGIN ;; SAVEPOINT s ;; {local}
    SELECT w(); {down}; RESET fencing.token \
    | SELECT w(); SELECT set_config('fencing.token', '', false); RESET fencing.token \
    | SELECT w(); {local}; RESET ALL \
    | SELECT w(); {down}; ROLLBACK TO s \
    | SELECT w(); {local}; ROLLBACK TO s \
    | SELECT w(); {local}; COMMIT \
    | SELECT w(); {down}; COMMIT AND CHAIN
    COMMIT";

    /// Found by core conversations: COMMIT of a failed block undoes the token set in it. Later statements of the text
    /// were judged by that token.
    n13_a_commit_that_undoes_a_token: NotAsked, "
Holder
    SET fencing.token = ''
    SET fencing.token = '@0'; BEGIN ;; SELECT 1/0 \
    | SET fencing.token = '@0'; SELECT 1; BEGIN; SAVEPOINT s ;; no statement \
    | BEGIN; SET fencing.token = '@0' ;; SELECT 1/0
    wait
    {end} = COMMIT | END | COMMIT AND CHAIN | PREPARE TRANSACTION 'p'
    {end}; INSERT INTO log VALUES ('x') | {end}; SELECT w() | {end}; TABLE v
    COMMIT";

    /// Found by core conversations: the same, before the failure is known.
    n15_a_commit_right_behind_a_failure: NotAsked, "
Holder
    SET fencing.token = '' ;; BEGIN; SET fencing.token = '@0' ;; SELECT 1 ;; wait
    SELECT 1/0 | no statement | SET fencing.token = 'x' | > SELECT 1/0 ;; Sync | Malformed Q
    {end} = COMMIT | COMMIT AND CHAIN | PREPARE TRANSACTION 'p'
    {end}; INSERT INTO log VALUES ('x') | {end}; SELECT w() | {end}; TABLE v
    COMMIT";

    /// Found by core conversations: the proxy made a transaction read-only after its session had cleared the token. A
    /// rollback of that part made the transaction read-write again.
    n14_a_write_behind_a_rollback_that_undoes_the_guard: NotAsked, "
Holder
    {write} = SELECT w() | INSERT INTO log VALUES ('x')
    {middle} & {undo} = SAVEPOINT s & ROLLBACK TO s \
    | SAVEPOINT s ;; SELECT count(*) FROM v & ROLLBACK TO s \
    | SAVEPOINT s ;; SELECT 1/0 & ROLLBACK TO s \
    | SAVEPOINT s ;; no statement & ROLLBACK TO s \
    | SAVEPOINT s ;; RELEASE nowhere & ROLLBACK TO s \
    | COMMIT AND CHAIN ;; SELECT w() & ROLLBACK AND CHAIN \
    | COMMIT AND CHAIN ;; SELECT w() & COMMIT AND CHAIN \
    | COMMIT AND CHAIN ;; SAVEPOINT s ;; SELECT count(*) FROM v & ROLLBACK AND CHAIN \
    | COMMIT AND CHAIN ;; SAVEPOINT s ;; SELECT w() & ROLLBACK AND CHAIN
    BEGIN ;; SET fencing.token = '' ;; {middle}
    {undo}; {write} | {undo} ;; {write} | {undo} ;; wait ;; {write} \
    | > {undo} ;; > {write} ;; Sync | > {undo} ;; Sync ;; {write}
    COMMIT";

    /// Found by core conversations: the same, with a block that begins after DISCARD ALL in its pipeline, and a write
    /// after the server's reply.
    n17_a_write_in_a_block_that_began_behind_discard_all: NotAsked, "
Elsewhere, Taker, Bare
    > DISCARD ALL
    > BEGIN ;; Sync | BEGIN | > BEGIN ;; > COMMIT AND CHAIN ;; Sync | > BEGIN ;; > SAVEPOINT s ;; Sync
    wait
    - | SET LOCAL fencing.token = '' ;; wait | > BEGIN ;; Sync ;; wait
    {hidden} ;; COMMIT | > {hidden} ;; Sync ;; COMMIT";
}

/// Found by the generator: a session whose startup token allows no write began read-write. DISCARD ALL ends its
/// transaction in the middle of a pipeline, and later statements begin with that mode.
#[test]
fn n16_a_write_behind_discard_all_in_a_pipeline() {
    let behind = "> DISCARD ALL
    {hidden} | > {hidden} ;; Sync | Flush ;; wait ;; {hidden} | > COMMIT ;; > {hidden} ;; Sync \
    | > DISCARD ALL ;; {hidden}";
    let all = conversations(&format!(
        "
Elsewhere, Bare
    {behind}
Holder
    SET fencing.token = 'other=@0' ;; wait
    {behind}
"
    ));
    check(Worth::NotAsked, all);
}

held! {
    /// Found by core conversations: COMMIT undoes a default set for one transaction, and the server reports that only
    /// at the end of the pipeline.
    n18_a_write_behind_the_commit_of_a_local_default: NotAsked, "
Holder, Elsewhere
    BEGIN ;; SET LOCAL default_transaction_read_only = on ;; wait
    > COMMIT ;; > SET fencing.token = '' | > COMMIT ;; > SELECT 1
    > {hidden} ;; Sync | {hidden}";
}
