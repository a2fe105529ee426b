-- Texts that only read, from applications, drivers, ORMs, poolers, monitors and people. One a line.
-- Drivers and poolers
SELECT 1
select 1
;
SELECT 1;
/* ping */ SELECT 1
-- ping
SELECT version()
select pg_catalog.version()
select current_schema()
SELECT current_database()
SHOW TRANSACTION ISOLATION LEVEL
show standard_conforming_strings
show server_version_num
SHOW transaction_read_only
SHOW default_transaction_read_only
SHOW search_path
SELECT pg_is_in_recovery()
select pg_backend_pid()
SET extra_float_digits = 3
SET application_name = 'PostgreSQL JDBC Driver'
SET SESSION TIME ZONE 'UTC'
SET client_encoding TO 'UTF8'
SET NAMES 'utf8'
SET statement_timeout = 30000
SET LOCAL statement_timeout = '5s'
SET search_path TO app, public
SET client_min_messages TO warning
SET standard_conforming_strings = on
SET datestyle TO 'ISO'
SET intervalstyle = iso_8601
SELECT set_config('search_path', 'app', false)
SELECT pg_catalog.set_config('search_path', '', false)
SELECT set_config('application_name', 'x', true)
SELECT set_config('TimeZone', 'UTC', false), set_config('bytea_output', 'hex', false), set_config('jit', 'off', false)
SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED
SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY
BEGIN
BEGIN;
BEGIN TRANSACTION
START TRANSACTION
START TRANSACTION ISOLATION LEVEL REPEATABLE READ
BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY DEFERRABLE
BEGIN READ ONLY
COMMIT
ROLLBACK
END
ABORT
SAVEPOINT active_record_1
RELEASE SAVEPOINT active_record_1
ROLLBACK TO SAVEPOINT active_record_1
RESET ALL
DISCARD ALL
UNLISTEN *
CLOSE ALL
DEALLOCATE ALL
SELECT pg_advisory_unlock_all()
SELECT pg_advisory_unlock_all(); CLOSE ALL; UNLISTEN *; RESET ALL;
ABORT; RESET ALL; SET SESSION AUTHORIZATION DEFAULT
RESET SESSION AUTHORIZATION
RESET statement_timeout
LISTEN cache_invalidation
BEGIN; SELECT 1; COMMIT
SELECT NULL AS TABLE_CAT, n.nspname AS TABLE_SCHEM, c.relname AS TABLE_NAME FROM pg_catalog.pg_namespace n, pg_catalog.pg_class c WHERE c.relnamespace = n.oid AND n.nspname LIKE E'public' ORDER BY TABLE_SCHEM, TABLE_NAME
SELECT n.nspname = ANY(current_schemas(true)), n.nspname, t.typname FROM pg_catalog.pg_type t JOIN pg_catalog.pg_namespace n ON t.typnamespace = n.oid WHERE t.oid = $1
SELECT typinput = 'pg_catalog.array_in'::regproc AS is_array, typtype, typname, pg_type.oid FROM pg_catalog.pg_type LEFT JOIN (SELECT ns.oid AS nspoid, ns.nspname, r.r FROM pg_namespace AS ns JOIN (SELECT s.r, (current_schemas(false))[s.r] AS nspname FROM generate_series(1, array_upper(current_schemas(false), 1)) AS s (r)) AS r USING (nspname)) AS sp ON sp.nspoid = typnamespace WHERE typname = $1 ORDER BY sp.r, pg_type.oid DESC
SELECT t.oid, typname, typarray FROM pg_type t WHERE t.oid = to_regtype($1)
SELECT typname AS name, oid, typarray AS array_oid, oid::regtype::text AS regtype, typdelim AS delimiter FROM pg_type t WHERE t.oid = $1 ORDER BY t.oid
SELECT t.typname, t.typtype, t.typelem, r.rngsubtype, t.typbasetype, n.nspname, t.typrelid FROM pg_catalog.pg_type t LEFT OUTER JOIN pg_catalog.pg_range r ON r.rngtypid = t.oid INNER JOIN pg_catalog.pg_namespace n ON t.typnamespace = n.oid WHERE t.oid = $1
WITH RECURSIVE typeinfo_tree (oid, ns, name, kind, basetype, elemtype, depth) AS (SELECT ti.oid, 'x'::name, ti.typname, ti.typtype, ti.typbasetype, ti.typelem, 0 FROM pg_type ti WHERE ti.oid = any($1::oid[]) UNION ALL SELECT ti.oid, 'x', ti.typname, ti.typtype, ti.typbasetype, ti.typelem, tt.depth + 1 FROM pg_type ti, typeinfo_tree tt WHERE tt.elemtype = ti.oid) SELECT DISTINCT * FROM typeinfo_tree ORDER BY depth DESC
SELECT pg_catalog.pg_encoding_to_char(encoding) FROM pg_catalog.pg_database WHERE datname = current_database()
SELECT setting FROM pg_settings WHERE name = 'max_index_keys'
select current_setting('default_transaction_read_only')
SELECT name, setting FROM pg_settings WHERE name IN ('TimeZone', 'server_encoding')
-- ORMs
SELECT "users"."id", "users"."name" FROM "users" WHERE "users"."id" = $1 LIMIT $2
SELECT 1 AS one FROM "users" WHERE "users"."email" = $1 LIMIT $2
SELECT COUNT(*) FROM "users"
SELECT COUNT(*) AS "__count" FROM "auth_user" WHERE ("auth_user"."is_active" AND "auth_user"."date_joined" >= '2024-01-01T00:00:00+00:00'::timestamptz)
SELECT "auth_user"."id", "auth_user"."password" FROM "auth_user" INNER JOIN "auth_group" ON ("auth_user"."id" = "auth_group"."id") WHERE UPPER("auth_user"."username"::text) LIKE UPPER('%x%') ORDER BY "auth_user"."id" DESC LIMIT 21
SELECT (1) AS "a" FROM "django_session" WHERE "django_session"."session_key" = 'abc' LIMIT 1
SELECT "django_migrations"."id", "django_migrations"."app", "django_migrations"."name", "django_migrations"."applied" FROM "django_migrations"
SELECT c.relname, CASE WHEN c.relispartition THEN 'p' WHEN c.relkind IN ('m', 'v') THEN 'v' ELSE 't' END, obj_description(c.oid, 'pg_class') FROM pg_catalog.pg_class c LEFT JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind IN ('f', 'm', 'p', 'r', 'v') AND n.nspname NOT IN ('pg_catalog', 'pg_toast') AND pg_catalog.pg_table_is_visible(c.oid)
SELECT users.id AS users_id, anon_1.count AS c FROM users LEFT OUTER JOIN (SELECT count(*) AS count, user_id FROM addresses GROUP BY user_id) AS anon_1 ON users.id = anon_1.user_id WHERE users.id IN ($1::INTEGER, $2::INTEGER) ORDER BY users.id
SELECT EXISTS (SELECT * FROM information_schema.tables WHERE table_schema = 'public' AND table_name = 'x')
select pg_catalog.pg_class.relname from pg_catalog.pg_class join pg_catalog.pg_namespace on pg_catalog.pg_namespace.oid = pg_catalog.pg_class.relnamespace where pg_catalog.pg_class.relname = $1::varchar and pg_catalog.pg_class.relkind = any (array['r', 'p', 'f', 'v', 'm'])
SELECT a.attname, format_type(a.atttypid, a.atttypmod), pg_get_expr(d.adbin, d.adrelid), a.attnotnull, a.atttypid, a.atttypmod, c.collname, col_description(a.attrelid, a.attnum) AS comment FROM pg_attribute a LEFT JOIN pg_attrdef d ON a.attrelid = d.adrelid AND a.attnum = d.adnum LEFT JOIN pg_type t ON a.atttypid = t.oid LEFT JOIN pg_collation c ON a.attcollation = c.oid AND a.attcollation <> t.typcollation WHERE a.attrelid = '"users"'::regclass AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
SELECT "id", "name" FROM "users" AS "User" WHERE "User"."deletedAt" IS NULL AND "User"."meta"#>>'{a,b}' = 'x' ORDER BY "User"."id" ASC LIMIT 10 OFFSET 20
SELECT "public"."User"."id", "public"."User"."email" FROM "public"."User" WHERE ("public"."User"."email" = $1 AND 1=1) LIMIT $2 OFFSET $3
SELECT u0."id" FROM "users" AS u0 WHERE (u0."id" = ANY($1))
select generatedAlias0.id as col_0_0_ from users generatedAlias0 where generatedAlias0.name like $1 escape '' order by generatedAlias0.id asc fetch first 10 rows only
select u1_0.id,u1_0.name,r1_0.user_id from users u1_0 left join roles r1_0 on u1_0.id=r1_0.user_id where u1_0.id=$1
SELECT * FROM users WHERE id = ANY($1::int[]) AND created_at > now() - interval '1 day'
SELECT * FROM users WHERE data @> '{"a": 1}'::jsonb AND data ? 'k' AND tags && ARRAY['x']
SELECT json_agg(row_to_json(t)) FROM (SELECT id, name FROM users) t
SELECT coalesce(json_agg(x), '[]') FROM (SELECT id FROM users LIMIT 10) x
WITH pgrst_source AS (SELECT "public"."users".* FROM "public"."users" WHERE "id" = $1) SELECT null::bigint AS total_result_set, pg_catalog.count(_postgrest_t) AS page_total, coalesce(json_agg(_postgrest_t), '[]')::text AS body FROM (SELECT * FROM pgrst_source) _postgrest_t
select set_config('role', 'anon', true), set_config('request.jwt.claims', '{}', true), set_config('request.method', 'GET', true)
-- pgbench
SELECT abalance FROM pgbench_accounts WHERE aid = 1
select count(*) from pgbench_branches
select o.n, p.partstrat, pg_catalog.count(i.inhparent) from pg_catalog.pg_class as c join pg_catalog.pg_namespace as n on (n.oid = c.relnamespace) cross join lateral (select pg_catalog.array_position(pg_catalog.current_schemas(true), n.nspname)) as o(n) left join pg_catalog.pg_partitioned_table as p on (p.partrelid = c.oid) left join pg_catalog.pg_inherits as i on (c.oid = i.inhparent) where c.relname = 'pgbench_accounts' and o.n is not null group by 1, 2 order by 1 asc limit 1
-- Reports
SELECT date_trunc('month', o.at) AS m, sum(o.amount), avg(o.amount), percentile_cont(0.5) WITHIN GROUP (ORDER BY o.amount) FROM orders o GROUP BY 1 ORDER BY 1
SELECT region, product, sum(amount) FROM sales GROUP BY CUBE (region, product)
SELECT region, sum(amount) FROM sales GROUP BY ROLLUP (region) HAVING sum(amount) > 100
SELECT *, row_number() OVER (PARTITION BY customer ORDER BY at DESC) AS r, lag(amount) OVER w FROM orders WINDOW w AS (PARTITION BY customer ORDER BY at)
WITH monthly AS (SELECT date_trunc('month', at) m, sum(amount) s FROM orders GROUP BY 1), growth AS (SELECT m, s, lag(s) OVER (ORDER BY m) p FROM monthly) SELECT m, round(100.0 * (s - p) / nullif(p, 0), 2) FROM growth
WITH RECURSIVE tree AS (SELECT id, parent, 1 AS depth FROM nodes WHERE parent IS NULL UNION ALL SELECT n.id, n.parent, t.depth + 1 FROM nodes n JOIN tree t ON n.parent = t.id) SELECT * FROM tree
SELECT string_agg(name, ', ' ORDER BY name), array_agg(DISTINCT id), bool_and(active), jsonb_object_agg(k, v) FROM t
SELECT CASE WHEN age < 18 THEN 'child' WHEN age < 65 THEN 'adult' ELSE 'senior' END AS bracket, count(*) FROM people GROUP BY 1
SELECT d::date, coalesce(c, 0) FROM generate_series('2024-01-01'::date, '2024-12-31', '1 day') d LEFT JOIN (SELECT at::date AS day, count(*) c FROM orders GROUP BY 1) o ON o.day = d
SELECT width_bucket(amount, 0, 100, 10) AS bucket, count(*) FROM orders GROUP BY 1
SELECT corr(x, y), regr_slope(y, x), stddev_samp(x), variance(x), mode() WITHIN GROUP (ORDER BY x) FROM points
SELECT to_char(at, 'YYYY-MM'), extract(dow FROM at), age(at), at AT TIME ZONE 'UTC', make_interval(days => 3) FROM orders
SELECT regexp_replace(name, '[^a-z]', '', 'g'), split_part(email, '@', 2), md5(name), encode(sha256(name::bytea), 'hex'), left(name, 3) FROM users
SELECT ts_rank(words, q), ts_headline('english', body, q) FROM docs, plainto_tsquery('english', 'fence') q WHERE words @@ q ORDER BY 1 DESC
SELECT a.id, b.id FROM a FULL OUTER JOIN b USING (id) WHERE a.id IS DISTINCT FROM b.id
SELECT * FROM a EXCEPT SELECT * FROM b UNION ALL (SELECT * FROM b EXCEPT SELECT * FROM a)
SELECT * FROM orders o WHERE amount > (SELECT avg(amount) FROM orders WHERE customer = o.customer)
SELECT DISTINCT ON (customer) * FROM orders ORDER BY customer, at DESC
SELECT jsonb_path_query(body, '$.a[*] ? (@ > 1)'), body #>> '{a,b}', jsonb_array_elements(body -> 'x') FROM docs
SELECT * FROM jsonb_to_recordset('[{"a": 1}]') AS x (a int)
SELECT random(), gen_random_uuid(), clock_timestamp(), now(), timeofday(), txid_current_snapshot(), pg_current_snapshot()
SELECT * FROM crosstab_report
EXPLAIN SELECT * FROM orders
EXPLAIN ANALYZE SELECT * FROM orders
EXPLAIN (ANALYZE, BUFFERS, FORMAT json) SELECT * FROM orders WHERE id = 1
EXPLAIN (VERBOSE, COSTS OFF) UPDATE orders SET amount = 1
COPY orders TO STDOUT
COPY (SELECT * FROM orders WHERE at > '2024-01-01') TO STDOUT WITH CSV HEADER
DECLARE report CURSOR FOR SELECT * FROM orders
DECLARE report NO SCROLL CURSOR WITH HOLD FOR SELECT * FROM orders
FETCH 100 FROM report
FETCH FORWARD ALL FROM report
MOVE FORWARD 10 IN report
CLOSE report
PREPARE by_id (int) AS SELECT * FROM orders WHERE id = $1
DEALLOCATE by_id
VALUES (1), (2)
TABLE orders
-- Monitors
SELECT * FROM pg_stat_activity WHERE state <> 'idle'
SELECT datname, numbackends, xact_commit, blks_hit, tup_returned FROM pg_stat_database
SELECT relname, seq_scan, idx_scan, n_live_tup, n_dead_tup, last_vacuum FROM pg_stat_user_tables
SELECT indexrelname, idx_scan FROM pg_stat_user_indexes
SELECT * FROM pg_stat_replication
SELECT slot_name, active, pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn) FROM pg_replication_slots
SELECT pid, wait_event, pg_blocking_pids(pid) FROM pg_stat_activity WHERE cardinality(pg_blocking_pids(pid)) > 0
SELECT locktype, mode, granted, relation::regclass FROM pg_locks
SELECT pg_database_size(current_database()), pg_size_pretty(pg_total_relation_size('jobs'))
SELECT count(*) FROM pg_stat_bgwriter
SELECT age(datfrozenxid) FROM pg_database
SELECT name, setting, unit FROM pg_settings
SELECT extract(epoch FROM now() - pg_last_xact_replay_timestamp())
SELECT * FROM pg_stat_get_activity(NULL)
SELECT pg_postmaster_start_time(), pg_conf_load_time(), inet_server_addr()
SELECT has_table_privilege('jobs', 'select'), has_database_privilege(current_database(), 'connect')
SELECT pg_get_functiondef('pg_catalog.now'::regproc)
SELECT pg_sleep(0)
SELECT pg_try_advisory_lock(1), pg_advisory_unlock(1)
SELECT pg_advisory_xact_lock(42)
SELECT currval('counter')
SELECT lastval()
SELECT last_value, is_called FROM counter
SELECT pg_export_snapshot()
SELECT pg_column_size(body) FROM docs
-- Reads of large objects, as JDBC and the psql command \lo_export do
SELECT lo_get(4242)
SELECT loread(lo_open(4242, 262144), 100)
-- Ordinary texts that contain words of other statements
SELECT 'INSERT INTO jobs', "update", 'it''s; DELETE FROM x' FROM t
SELECT $$DROP TABLE x$$, $tag$SET fencing.token$tag$
SELECT U&'d\0061t', E'a\nb', B'101', X'1F'
SELECT '\d+'
SELECT * FROM t WHERE path LIKE 'C:\\temp%'
SELECT regexp_matches(x, '^\d{3}-\d{4}$') FROM t
SELECT n AS "delete" FROM "truncate" WHERE "grant" = 'set'
