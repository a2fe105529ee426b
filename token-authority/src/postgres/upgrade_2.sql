-- From format 2, in which a stale session was never registered, and no start of a server was on record. Proxies of the
-- version before are refused from then on.

LOCK TABLE @schema@.store IN ACCESS EXCLUSIVE MODE;

ALTER TABLE @schema@.store ADD COLUMN postmaster_us bigint NOT NULL DEFAULT 0;

DROP FUNCTION @schema@.begin_step(integer, bytea, bigint, bigint);
DROP FUNCTION @schema@.hello(integer, bytea, bigint, bigint, bigint);
DROP FUNCTION @schema@.declare_and_forget(
    integer, bytea, bigint, bigint, text[], bigint[], integer[], bigint[], bigint[], bigint[], text[], bigint[],
    integer[], bigint[]);
DROP FUNCTION @schema@.drained(integer, bytea, bigint, bigint, text, bigint, bigint, integer[], bigint[]);
DROP FUNCTION @schema@.enrol(integer, bytea, bigint, bigint, bigint, bigint);
DROP FUNCTION @schema@.recover(
    integer, bytea, bigint, bigint, bigint, bigint, text[], bigint[], bigint[], text[], bigint[], text[]);
DROP FUNCTION @schema@.repair(
    integer, bytea, bigint, bigint, text, bigint, bigint, bigint, bigint, bigint, bigint, bigint, text, text);
DROP FUNCTION @schema@.now_us();

UPDATE @schema@.store SET format = @format@;
