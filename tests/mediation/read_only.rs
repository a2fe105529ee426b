//! Read-only mode that is off and not reported yet: C6, C7, and findings of the oracle.

use super::script::held;

held! {
    /// C6: a function switches the default off, and a hidden write begins before the server has reported it.
    c6_a_default_that_is_on_its_way: NotAsked, "
Bare, Elsewhere, Ungoverned, grouped
    {lift} & {write} = SELECT sets('default_transaction_read_only', 'off') & SELECT w() \
    | SELECT runs('SET default_transaction_read_only = off') & TABLE v \
    | SELECT runs('SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE') & SELECT '{x}'::d[] \
    | SELECT sets('default_transaction_read_only', 'off') & SELECT !!! 1
    queries, pipeline, text: BEGIN ;; {lift} ;; COMMIT ;; {write} \
    | BEGIN ;; SAVEPOINT s ;; {lift} ;; RELEASE s ;; COMMIT ;; {write} \
    | BEGIN ;; {lift} ;; COMMIT AND CHAIN ;; {write} ;; COMMIT \
    | BEGIN ;; {lift} ;; COMMIT ;; BEGIN ;; {write} ;; COMMIT \
    | BEGIN ;; SELECT 1 ;; {lift} ;; SHOW work_mem ;; COMMIT ;; SHOW work_mem ;; {write} \
    | {lift} ;; {write}";

    /// C7: an error while the proxy knows of no request; afterwards it must not mistake one reply for another.
    c7_a_flush_with_a_body: Writes, "
Bare, grouped
    {write} = SELECT w() | TABLE v
    {lift} = SELECT sets('default_transaction_read_only', 'off')
    Malformed H ;; wait
    SELECT 1 | SELECT 1 ;; SELECT 1 | -
    Sync
    BEGIN ;; {lift} ;; COMMIT ;; {write} \
    | {lift} ;; SHOW work_mem ;; {write} \
    | {lift} ;; SHOW work_mem ;; SHOW work_mem ;; {write} ;; COMMIT";

    /// Found by the oracle: a session has a startup token that allows no write here, and its first request follows a
    /// message that does not wait. The session is not read-only yet.
    n1_the_first_request_behind_a_sync: Writes, "
Elsewhere, grouped
    Sync
    {hidden} | > {hidden} ;; Sync";

    /// Found by core conversations: a default set inside a transaction applies to later ones, and the current one keeps
    /// its mode.
    n7_a_default_that_is_for_later_transactions: NotAsked, "
Holder, grouped
    {on} = SET default_transaction_read_only = on \
    | SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY \
    | SELECT set_config('default_transaction_read_only', 'on', false)
    {write} = SELECT w() | TABLE v
    queries, pipeline: BEGIN ;; {on} ;; SET fencing.token = '' ;; {write} ;; COMMIT \
    | BEGIN ;; {on} ;; SET LOCAL fencing.token = '' ;; {write} ;; COMMIT \
    | BEGIN ;; {on} ;; COMMIT AND CHAIN ;; SET fencing.token = '' ;; {write} ;; COMMIT";

    /// Found by core conversations: a default is switched on and undone before the server reports it, so that it
    /// reports nothing.
    n10_a_default_that_is_undone_unreported: NotAsked, "
Holder
    {on} = SET default_transaction_read_only = on
    text, pipeline: {on} ;; SELECT sets('default_transaction_read_only', 'off') \
    | {on} ;; SELECT runs('SET default_transaction_read_only = off') \
    | BEGIN ;; SAVEPOINT s ;; {on} ;; ROLLBACK TO s ;; COMMIT \
    | BEGIN ;; SET LOCAL default_transaction_read_only = on ;; COMMIT
    wait ;; SET fencing.token = '' ;; wait
    {hidden} | > {hidden} ;; Sync";

    /// Found by reading: what seems to be a declaration runs a user's function, or the CHECK of a domain.
    n16_a_declaration_that_the_path_leads_elsewhere: NotAsked, "
Bare, Elsewhere, grouped
    {path} = SET search_path = shadow, public, pg_catalog
    {lift} = SELECT sets('default_transaction_read_only', 'off') | RESET ALL; {path}
    {call} = SELECT set_config('fencing.scope', '', false) | SELECT set_config('fencing.token', '', true) \
    | SELECT pg_catalog.set_config('fencing.scope'::text, '', false)
    {path}
    queries, pipeline, text: BEGIN ;; {lift} ;; COMMIT ;; {call} \
    | {lift} ;; COMMIT ;; {call} \
    | BEGIN ;; {lift} ;; COMMIT AND CHAIN ;; {call} ;; COMMIT";

    /// Found by reading: Bind runs an IMMUTABLE function though the token is declared with Execute, which may never
    /// come or be refused.
    n17_a_declaration_that_is_only_prepared: NotAsked, "
Bare, Elsewhere, grouped
    {lift} = SELECT sets('default_transaction_read_only', 'off')
    {call} = SELECT set_config('fencing.token', '5', false) | SELECT set_config('fencing.token', 'x', true) \
    | SELECT set_config('fencing.token'::text, 'other=@1', true)
    SET search_path = shadow, public, pg_catalog ;; Parse named {call} ;; Sync
    > BEGIN ;; > {lift} ;; > COMMIT | > BEGIN ;; > {lift} ;; > COMMIT AND CHAIN | > {lift} ;; > COMMIT
    Parse . {call} ;; Bind . . | Parse . {call} ;; Bind . . ;; Execute . | Bind . named | Bind . named ;; Execute .
    Sync | > COMMIT ;; Sync";
}
