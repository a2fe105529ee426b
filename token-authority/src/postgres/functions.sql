-- Steps of the PostgreSQL store. `@schema@` stands for its schema.
--
-- Each step is one function, called in one statement: the server runs it, commits it and only then answers.
-- postgres/mod.rs explains why the steps are atomic. Callers name the format that they know.

CREATE FUNCTION @schema@.now_us() RETURNS bigint
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
$$;

-- Begins a step. Checks that the store is the one that the caller opened, and that the isolation level is the one the
-- steps rely on.
CREATE FUNCTION @schema@.begin_step(a_format integer, a_identity bytea, a_connection bigint, a_step bigint) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'the steps of the store need READ COMMITTED' USING ERRCODE = 'PFA03';
    END IF;
    IF NOT EXISTS (SELECT FROM @schema@.store WHERE identity = a_identity AND format = a_format) THEN
        RAISE EXCEPTION 'another store, or another format of it, has taken the place of this one'
            USING ERRCODE = 'PFA01';
    END IF;
    INSERT INTO @schema@.connections AS c (id, steps) VALUES (a_connection, a_step)
        ON CONFLICT (id) DO UPDATE SET steps = EXCLUDED.steps, seen_at = now();
END
$$;

-- First step of a connection. If answered steps of the previous connection are missing here, the store has gone back
-- in time.
CREATE FUNCTION @schema@.hello(
    a_format integer, a_identity bytea, a_connection bigint, a_before bigint, a_before_steps bigint
) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM @schema@.begin_step(a_format, a_identity, a_connection, 0);
    IF a_before IS NOT NULL
        AND NOT EXISTS (SELECT FROM @schema@.connections WHERE id = a_before AND steps >= a_before_steps)
    THEN
        RAISE EXCEPTION 'step % of connection % was answered and is not here', a_before_steps, a_before
            USING ERRCODE = 'PFA02';
    END IF;
END
$$;

-- Declarations that arrived together, then ended sessions. Returns one row for each declaration, with its place.
CREATE FUNCTION @schema@.declare_and_forget(
    a_format integer, a_identity bytea, a_connection bigint, a_step bigint,
    a_scopes text[], a_tokens bigint[], a_pids integer[], a_starts bigint[],
    a_systems bigint[], a_timelines bigint[], a_postmasters bigint[], a_bys text[], a_max_steps bigint[], a_registers boolean[],
    -- For takes: the mark to follow, if any, the identity of the take, and the highest token.
    a_takes boolean[], a_afters bigint[], a_take_ids text[], a_max_tokens bigint[],
    a_gone_pids integer[], a_gone_starts bigint[]
) RETURNS TABLE (
    o_place bigint, o_verdict text,
    o_token bigint, o_incarnation bigint, o_raised_at bigint, o_raised_by text, o_repair text,
    o_system bigint, o_timeline bigint, o_postmaster bigint,
    o_pids integer[], o_starts bigint[], o_tokens bigint[], o_incarnations bigint[], o_sinces bigint[]
)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v record;
    v_mark record;
    v_token bigint;
    v_raised boolean := false;
BEGIN
    -- The cluster stays the same until this step is committed: enrolment waits for EXCLUSIVE.
    LOCK TABLE @schema@.store IN ROW SHARE MODE;
    PERFORM @schema@.begin_step(a_format, a_identity, a_connection, a_step);
    SELECT system_identifier, timeline, postmaster_us INTO o_system, o_timeline, o_postmaster FROM @schema@.store;
    -- All steps lock scopes in this order.
    FOR v IN
        SELECT * FROM unnest(
            a_scopes, a_tokens, a_pids, a_starts, a_systems, a_timelines, a_postmasters, a_bys, a_max_steps,
            a_registers, a_takes, a_afters, a_take_ids, a_max_tokens) WITH ORDINALITY
            AS d (scope, token, pid, started_us, system, timeline, postmaster, who, max_step, register,
                  takes, after, take_id, max_token, place)
        ORDER BY d.scope COLLATE "C", d.place
    LOOP
        o_place := v.place;
        o_verdict := NULL;
        o_token := NULL; o_incarnation := NULL; o_raised_at := NULL; o_raised_by := NULL; o_repair := NULL;
        o_pids := NULL; o_starts := NULL; o_tokens := NULL; o_incarnations := NULL; o_sinces := NULL;
        IF (o_system, o_timeline, o_postmaster) IS DISTINCT FROM (v.system, v.timeline, v.postmaster) THEN
            o_verdict := 'other';
            RETURN NEXT;
            CONTINUE;
        END IF;
        v_token := v.token;
        SELECT m.* INTO v_mark FROM @schema@.marks m WHERE m.scope = v.scope FOR UPDATE;
        IF NOT FOUND THEN
            IF v.after > 0 THEN
                o_verdict := 'lower';
                RETURN NEXT;
                CONTINUE;
            END IF;
            v_token := coalesce(v.token, 1);
            INSERT INTO @schema@.marks AS m (scope, token, raised_at, raised_by, taken)
                VALUES (v.scope, v_token, @schema@.now_us(), v.who, CASE WHEN v.takes THEN v.take_id END)
                ON CONFLICT (scope) DO NOTHING;
            IF FOUND THEN
                o_verdict := 'raised';
            END IF;
            SELECT m.* INTO STRICT v_mark FROM @schema@.marks m WHERE m.scope = v.scope FOR UPDATE;
        END IF;
        IF v.takes AND o_verdict IS NULL THEN
            IF v_mark.taken = v.take_id AND coalesce(v.token, v_mark.token) = v_mark.token THEN
                -- This take is repeated because its answer was lost.
                v_token := v_mark.token;
            ELSIF v.after < v_mark.token THEN
                o_verdict := 'stale';
            ELSIF v.after > v_mark.token THEN
                o_verdict := 'lower';
            ELSIF v_mark.token = 9223372036854775807 THEN
                o_verdict := 'far';
            ELSE
                v_token := v_mark.token + 1;
            END IF;
        END IF;
        IF o_verdict IS NOT NULL THEN
            NULL;
        ELSIF v_mark.token > v_token THEN
            o_verdict := 'stale';
        ELSIF v_token - v_mark.token > v.max_step
            OR (v.takes AND v_token > v_mark.token AND v_token > v.max_token)
        THEN
            o_verdict := 'far';
        ELSIF v_mark.token < v_token THEN
            o_verdict := 'raised';
            UPDATE @schema@.marks AS m
                SET token = v_token, raised_at = @schema@.now_us(), raised_by = v.who, drained = false,
                    taken = CASE WHEN v.takes THEN v.take_id END, changed = pg_current_xact_id()
                WHERE m.scope = v.scope RETURNING m.* INTO STRICT v_mark;
        END IF;
        o_token := v_mark.token; o_incarnation := v_mark.incarnation;
        o_raised_at := v_mark.raised_at; o_raised_by := v_mark.raised_by; o_repair := v_mark.repair;
        IF o_verdict IN ('far', 'lower') OR (o_verdict = 'stale' AND NOT v.register) THEN
            RETURN NEXT;
            CONTINUE;
        END IF;
        o_verdict := coalesce(o_verdict, 'current');
        v_raised := v_raised OR o_verdict = 'raised';
        -- Never down: a session that moved up and now declares a stale token stays at its rank.
        INSERT INTO @schema@.sessions AS s (scope, pid, started_us, token, since, incarnation)
            VALUES (v.scope, v.pid, v.started_us, v_token, @schema@.now_us(), v_mark.incarnation)
            ON CONFLICT (scope, pid, started_us) DO UPDATE
                SET token = EXCLUDED.token, since = EXCLUDED.since, incarnation = EXCLUDED.incarnation
                WHERE (s.incarnation, s.token) < (EXCLUDED.incarnation, EXCLUDED.token);
        IF o_verdict = 'stale' THEN
            UPDATE @schema@.marks SET drained = false WHERE scope = v.scope AND drained;
        ELSIF NOT v_mark.drained THEN
            SELECT array_agg(s.pid ORDER BY s.pid, s.started_us), array_agg(s.started_us ORDER BY s.pid, s.started_us),
                   array_agg(s.token ORDER BY s.pid, s.started_us),
                   array_agg(s.incarnation ORDER BY s.pid, s.started_us),
                   array_agg(s.since ORDER BY s.pid, s.started_us)
                INTO o_pids, o_starts, o_tokens, o_incarnations, o_sinces
                FROM @schema@.sessions s
                WHERE s.scope = v.scope AND (s.incarnation, s.token) < (v_mark.incarnation, v_token);
        END IF;
        RETURN NEXT;
    END LOOP;
    FOR i IN 1 .. cardinality(a_gone_pids) LOOP
        DELETE FROM @schema@.sessions AS s WHERE s.pid = a_gone_pids[i] AND s.started_us = a_gone_starts[i];
    END LOOP;
    IF v_raised THEN
        PERFORM pg_notify(@channel@, '');
    END IF;
END
$$;

-- Returns the sessions left with a lower rank; none if the scope is drained.
CREATE FUNCTION @schema@.drained(
    a_format integer, a_identity bytea, a_connection bigint, a_step bigint,
    a_scope text, a_incarnation bigint, a_token bigint, a_gone_pids integer[], a_gone_starts bigint[]
) RETURNS TABLE (o_pid integer, o_started_us bigint, o_token bigint, o_incarnation bigint, o_since bigint)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_mark record;
BEGIN
    PERFORM @schema@.begin_step(a_format, a_identity, a_connection, a_step);
    SELECT m.incarnation, m.token INTO v_mark FROM @schema@.marks m WHERE m.scope = a_scope FOR UPDATE;
    IF NOT FOUND THEN
        -- No mark, no sessions. A mark created from now on comes after this step.
        RETURN;
    END IF;
    FOR i IN 1 .. cardinality(a_gone_pids) LOOP
        DELETE FROM @schema@.sessions AS s
            WHERE s.scope = a_scope AND s.pid = a_gone_pids[i] AND s.started_us = a_gone_starts[i]
                AND (s.incarnation, s.token) < (a_incarnation, a_token);
    END LOOP;
    RETURN QUERY SELECT s.pid, s.started_us, s.token, s.incarnation, s.since FROM @schema@.sessions s
        WHERE s.scope = a_scope AND (s.incarnation, s.token) < (a_incarnation, a_token)
        ORDER BY s.pid, s.started_us;
    IF NOT FOUND AND (v_mark.incarnation, v_mark.token) = (a_incarnation, a_token) THEN
        UPDATE @schema@.marks SET drained = true WHERE scope = a_scope AND NOT drained;
    END IF;
END
$$;

-- Replaces the history that the caller read, NULL for none. Returns whether it was still unchanged.
CREATE FUNCTION @schema@.note_takeover(
    a_format integer, a_identity bytea, a_connection bigint, a_step bigint,
    a_scope text, a_seen text, a_history text
) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM @schema@.begin_step(a_format, a_identity, a_connection, a_step);
    INSERT INTO @schema@.takeovers AS t (scope, history, noted_at) VALUES (a_scope, a_history, @schema@.now_us())
        ON CONFLICT (scope) DO UPDATE SET history = EXCLUDED.history, noted_at = EXCLUDED.noted_at
            WHERE t.history = a_seen;
    RETURN FOUND;
END
$$;

-- Acquires a lease, renews it, or releases it if no time is given. Returns whether the holder has it then.
CREATE FUNCTION @schema@.lease(
    a_format integer, a_identity bytea, a_connection bigint, a_step bigint,
    a_scope text, a_holder text, a_acquires boolean, a_time_us bigint
) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM @schema@.begin_step(a_format, a_identity, a_connection, a_step);
    IF a_time_us IS NULL THEN
        DELETE FROM @schema@.leases AS l WHERE l.scope = a_scope AND l.holder = a_holder;
        RETURN false;
    ELSIF a_acquires THEN
        INSERT INTO @schema@.leases AS l (scope, holder, until)
            VALUES (a_scope, a_holder, @schema@.now_us() + a_time_us)
            ON CONFLICT (scope) DO UPDATE SET holder = EXCLUDED.holder, until = @schema@.now_us() + a_time_us
                -- A lease that lives longer than any may, with a lock_delay of an hour, is not ours, or the clock was
                -- set back.
                WHERE l.holder = a_holder OR l.until <= @schema@.now_us()
                    OR l.until > @schema@.now_us() + 2 * 3600 * 1000000::bigint;
    ELSE
        UPDATE @schema@.leases AS l SET until = @schema@.now_us() + a_time_us
            WHERE l.scope = a_scope AND l.holder = a_holder;
    END IF;
    RETURN FOUND;
END
$$;

-- Returns whether the cluster was accepted, and the one recorded before.
CREATE FUNCTION @schema@.enrol(
    a_format integer, a_identity bytea, a_connection bigint, a_step bigint,
    a_system bigint, a_timeline bigint, a_postmaster bigint
) RETURNS TABLE (o_accepted boolean, o_system bigint, o_timeline bigint, o_postmaster bigint)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    LOCK TABLE @schema@.store IN EXCLUSIVE MODE;
    PERFORM @schema@.begin_step(a_format, a_identity, a_connection, a_step);
    SELECT system_identifier, timeline, postmaster_us INTO o_system, o_timeline, o_postmaster FROM @schema@.store;
    o_accepted := o_system IS NULL
        OR (o_system = a_system AND (o_timeline, o_postmaster) <= (a_timeline, a_postmaster));
    IF o_accepted AND (o_system, o_timeline, o_postmaster) IS DISTINCT FROM (a_system, a_timeline, a_postmaster) THEN
        UPDATE @schema@.store
            SET system_identifier = a_system, timeline = a_timeline, postmaster_us = a_postmaster;
        PERFORM pg_notify(@channel@, '');
    END IF;
    RETURN NEXT;
END
$$;

-- Records the cluster if the recorded one is none, the one seen, or already this one; then raises lower marks to
-- these. A scope whose mark rises is not drained. Returns whether the cluster was accepted, and the one recorded
-- before.
CREATE FUNCTION @schema@.recover(
    a_format integer, a_identity bytea, a_connection bigint, a_step bigint,
    a_seen_system bigint, a_seen_timeline bigint, a_seen_postmaster bigint,
    a_system bigint, a_timeline bigint, a_postmaster bigint,
    a_scopes text[], a_tokens bigint[], a_raised_ats bigint[], a_raised_bys text[],
    a_incarnations bigint[], a_repairs text[]
) RETURNS TABLE (o_accepted boolean, o_system bigint, o_timeline bigint, o_postmaster bigint)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    LOCK TABLE @schema@.store IN EXCLUSIVE MODE;
    PERFORM @schema@.begin_step(a_format, a_identity, a_connection, a_step);
    SELECT system_identifier, timeline, postmaster_us INTO o_system, o_timeline, o_postmaster FROM @schema@.store;
    o_accepted := o_system IS NULL
        OR (o_system, o_timeline, o_postmaster) IS NOT DISTINCT FROM (a_seen_system, a_seen_timeline, a_seen_postmaster)
        OR (o_system, o_timeline, o_postmaster) IS NOT DISTINCT FROM (a_system, a_timeline, a_postmaster);
    RETURN NEXT;
    IF NOT o_accepted THEN
        RETURN;
    END IF;
    UPDATE @schema@.store SET system_identifier = a_system, timeline = a_timeline, postmaster_us = a_postmaster;
    INSERT INTO @schema@.marks AS m (scope, token, raised_at, raised_by, incarnation, repair)
        SELECT DISTINCT ON (r.scope COLLATE "C") r.*
            FROM unnest(a_scopes, a_tokens, a_raised_ats, a_raised_bys, a_incarnations, a_repairs)
                AS r (scope, token, raised_at, raised_by, incarnation, repair)
            ORDER BY r.scope COLLATE "C", r.incarnation DESC, r.token DESC
        ON CONFLICT (scope) DO UPDATE
            SET token = EXCLUDED.token, raised_at = EXCLUDED.raised_at, raised_by = EXCLUDED.raised_by,
                incarnation = EXCLUDED.incarnation, repair = EXCLUDED.repair, taken = NULL,
                drained = false, changed = pg_current_xact_id()
            WHERE (m.incarnation, m.token) < (EXCLUDED.incarnation, EXCLUDED.token);
    PERFORM pg_notify(@channel@, '');
END
$$;

-- Sets the mark of a scope in its next incarnation. Returns one row for each session registered before, or one row
-- without a session. The verdict is 'done', 'changed' or 'other'.
CREATE FUNCTION @schema@.repair(
    a_format integer, a_identity bytea, a_connection bigint, a_step bigint,
    a_scope text, a_expected_incarnation bigint, a_expected_token bigint,
    a_system bigint, a_timeline bigint, a_postmaster bigint,
    a_token bigint, a_incarnation bigint, a_raised_at bigint, a_raised_by text, a_repair text
) RETURNS TABLE (
    o_verdict text, o_system bigint, o_timeline bigint, o_postmaster bigint,
    o_token bigint, o_incarnation bigint, o_raised_at bigint, o_raised_by text, o_repair text,
    o_pid integer, o_started_us bigint, o_session_token bigint, o_session_incarnation bigint, o_since bigint
)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_mark record;
BEGIN
    -- As in a declaration: the cluster first, then the scope.
    LOCK TABLE @schema@.store IN ROW SHARE MODE;
    PERFORM @schema@.begin_step(a_format, a_identity, a_connection, a_step);
    SELECT system_identifier, timeline, postmaster_us INTO o_system, o_timeline, o_postmaster FROM @schema@.store;
    IF (o_system, o_timeline, o_postmaster) IS DISTINCT FROM (a_system, a_timeline, a_postmaster) THEN
        o_verdict := 'other';
        RETURN NEXT;
        RETURN;
    END IF;
    SELECT m.* INTO v_mark FROM @schema@.marks m WHERE m.scope = a_scope FOR UPDATE;
    IF NOT FOUND THEN
        o_verdict := 'changed';
        RETURN NEXT;
        RETURN;
    END IF;
    IF (v_mark.incarnation, v_mark.token) = (a_expected_incarnation, a_expected_token) THEN
        UPDATE @schema@.marks AS m
            SET token = a_token, incarnation = a_incarnation, raised_at = a_raised_at, raised_by = a_raised_by,
                repair = a_repair, taken = NULL, drained = false, changed = pg_current_xact_id()
            WHERE m.scope = a_scope RETURNING m.* INTO STRICT v_mark;
        PERFORM pg_notify(@channel@, '');
        o_verdict := 'done';
    ELSIF (v_mark.incarnation, v_mark.token, v_mark.repair) IS NOT DISTINCT FROM (a_incarnation, a_token, a_repair)
    THEN
        -- This repair is repeated because its answer was lost.
        o_verdict := 'done';
    ELSE
        o_verdict := 'changed';
    END IF;
    o_token := v_mark.token; o_incarnation := v_mark.incarnation;
    o_raised_at := v_mark.raised_at; o_raised_by := v_mark.raised_by; o_repair := v_mark.repair;
    IF o_verdict = 'done' THEN
        FOR o_pid, o_started_us, o_session_token, o_session_incarnation, o_since IN
            SELECT s.pid, s.started_us, s.token, s.incarnation, s.since FROM @schema@.sessions s
                WHERE s.scope = a_scope AND (s.incarnation, s.token) < (a_incarnation, a_token)
                ORDER BY s.pid, s.started_us
        LOOP
            RETURN NEXT;
        END LOOP;
        IF FOUND THEN
            RETURN;
        END IF;
    END IF;
    o_pid := NULL;
    RETURN NEXT;
END
$$;
