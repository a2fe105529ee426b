-- From format 1, which knows no incarnations: all there is, is of the first one. Proxies of the version before are
-- refused from then on, because the functions that they call are gone.

LOCK TABLE @schema@.store IN ACCESS EXCLUSIVE MODE;

ALTER TABLE @schema@.store ADD COLUMN postmaster_us bigint NOT NULL DEFAULT 0;
ALTER TABLE @schema@.marks ADD COLUMN incarnation bigint NOT NULL DEFAULT 0, ADD COLUMN repair text;
ALTER TABLE @schema@.sessions ADD COLUMN incarnation bigint NOT NULL DEFAULT 0;
DROP INDEX @schema@.sessions_by_token;
CREATE INDEX sessions_by_rank ON @schema@.sessions (scope, incarnation, token);

DROP FUNCTION @schema@.begin_step(bytea, bigint, bigint);
DROP FUNCTION @schema@.hello(bytea, bigint, bigint, bigint);
DROP FUNCTION @schema@.declare_and_forget(
    bytea, bigint, bigint, text[], bigint[], integer[], bigint[], bigint[], bigint[], text[], integer[], bigint[]);
DROP FUNCTION @schema@.drained(bytea, bigint, bigint, text, bigint, integer[], bigint[]);
DROP FUNCTION @schema@.enrol(bytea, bigint, bigint, bigint, bigint);
DROP FUNCTION @schema@.recover(bytea, bigint, bigint, bigint, bigint, text[], bigint[], bigint[], text[]);
DROP FUNCTION @schema@.now_us();

UPDATE @schema@.store SET format = @format@;
