-- One function, view or policy that may leave something in a session although a text that uses it does not say so.
SET LOCAL search_path = pg_catalog;
WITH builtin AS (
    -- Functions of PostgreSQL, pg_trgm and isn that leave something, or run a text.
    SELECT string_agg(oid::text, '|') AS oids, array_agg(prosrc) AS sources FROM pg_proc
    WHERE proname IN ('set_limit', 'isn_weak') OR oid < 16384 AND proname ~ ('^(set_config|setseed|pg_(try_)?advisory_lock(_shared)?|ts_stat|ts_rewrite'
        || '|(query|cursor|table|schema|database)_to_xml.*|pg_replication_origin_.*|pg_(create|copy)_.*_slot'
        || '|pg_backup_start|pg_start_backup)$')
), code AS (
    SELECT p.oid, p.prosrc, l.lanname, coalesce(pg_get_function_sqlbody(p.oid), p.prosrc) AS body,
        concat(p.prosqlbody, p.proargdefaults) AS tree
    FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang WHERE p.oid >= 16384
), loud AS (
    SELECT 'pg_proc'::regclass AS class, code.oid FROM code, builtin
    WHERE CASE
        WHEN lanname IN ('sql', 'plpgsql') THEN
            -- The SET of an UPDATE is none. A comment, text or word may hide where one ends.
            regexp_replace(body, '\mupdate\s+((only\s+)?(?!(of|loop|nowait|skip|then|else|begin)\M)[\w$.]+\s+'
                || '(as\s+)?((?!(loop|then|else|begin)\M)[\w$]+\s+)?)?set\M', '', 'gi')
            ~* ('\m(set|set_config|setseed|execute|prepare|deallocate|discard|listen|load|temp|temporary|pg_temp.*|hold'
                || '|pg_settings|set_limit|isn_weak|dblink.*|pg_(try_)?advisory_lock.*|.*_to_xml.*|ts_stat|ts_rewrite|crosstab.*|connectby'
                || '|xpath_table|pg_replication_.*|pg_.*_slot|pg_backup_start|pg_start_backup)\M'
                || '|\m(loop|begin|then|else)\s+set\M|u&["'']')
            OR (body ~ '--|/\*' AND body ~* '\mset\M')
        WHEN lanname = 'internal' THEN prosrc = ANY (sources)
        WHEN lanname = 'c' THEN NOT EXISTS (
            SELECT FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid
            WHERE d.classid = 'pg_proc'::regclass AND d.objid = code.oid
                AND d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e'
                AND e.extname IN ('bloom', 'btree_gin', 'btree_gist', 'citext', 'cube', 'dict_int', 'dict_xsyn',
                    'earthdistance', 'fuzzystrmatch', 'hstore', 'intarray', 'isn', 'ltree', 'pg_stat_statements',
                    'pg_trgm', 'pgcrypto', 'plpgsql', 'postgis', 'postgres_fdw', 'seg', 'unaccent', 'uuid-ossp', 'vector'))
        ELSE true
        END
    UNION ALL SELECT 'pg_proc', code.oid FROM code, builtin WHERE tree ~ ('funcid (' || oids || ')\M')
    UNION ALL SELECT 'pg_class', ev_class FROM pg_rewrite, builtin
        WHERE oid >= 16384 AND concat(ev_action, ev_qual) ~ ('funcid (' || oids || ')\M')
    UNION ALL SELECT 'pg_class', polrelid FROM pg_policy, builtin WHERE polqual::text ~ ('funcid (' || oids || ')\M')
    UNION ALL SELECT 'pg_type', contypid FROM pg_constraint, builtin
        WHERE contypid <> 0 AND conbin::text ~ ('funcid (' || oids || ')\M')
    UNION ALL SELECT 'pg_operator', o.oid FROM pg_operator o, builtin
        WHERE o.oid >= 16384 AND o.oprcode::oid::text ~ ('^(' || oids || ')$')
    UNION ALL SELECT 'pg_cast', c.oid FROM pg_cast c, builtin
        WHERE c.oid >= 16384 AND c.castfunc::text ~ ('^(' || oids || ')$')
    UNION ALL SELECT 'pg_proc', a.aggfnoid::oid FROM pg_aggregate a, builtin
        WHERE a.aggfnoid::oid >= 16384 AND (a.aggtransfn::oid::text ~ ('^(' || oids || ')$')
            OR a.aggfinalfn::oid::text ~ ('^(' || oids || ')$') OR a.aggcombinefn::oid::text ~ ('^(' || oids || ')$'))
)
SELECT pg_describe_object(class, oid, 0) FROM loud LIMIT 1
