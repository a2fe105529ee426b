-- Actions that PostgreSQL 15 allows in a read-only session although their effect outlives the transaction, or concerns
-- others. Each must be a write by its name. One a line. `[alone]`: it cannot run in a transaction block.
-- `[also 25006]`: later versions refuse it. `[error X]`: it lacks something here and fails later with SQLSTATE X.
NOTIFY news
NOTIFY news, 'x'
SELECT pg_notify('news', 'x')
[also 25006] SELECT lo_create(0)
[also 25006] SELECT lo_creat(-1)
[also 25006] SELECT lo_from_bytea(0, 'x')
[also 25006] SELECT lo_put(4242, 0, 'y')
[also 25006] SELECT lo_unlink(4242)
[also 25006] SELECT (4242::oid).lo_unlink
[also 25006] SELECT x.lo_unlink FROM generate_series(4242, 4242) AS x
SELECT ('made'::text).pg_create_restore_point
[also 25006] SELECT lowrite(lo_open(4242, 131072), 'z')
[also 25006] SELECT lo_truncate(lo_open(4242, 131072), 1)
[also 25006] SELECT lo_import('/dev/null')
[also 25006] SELECT set_config(name, 'view, foreign-table', false) FROM pg_settings WHERE name = 'restrict_nonsystem_relation_kind' LIMIT lo_unlink(4242)
[also 25006] SELECT set_config(name, 'view, foreign-table', false) FROM pg_settings WHERE name = 'restrict_nonsystem_relation_kind' OFFSET lo_unlink(4242) - 1
[also 25006] SELECT set_config(name, 'view, foreign-table', false) FROM pg_settings WHERE name = 'restrict_nonsystem_relation_kind' ORDER BY lo_unlink(4242)
[also 25006] PREPARE one(int) AS SELECT $1 ;; EXPLAIN EXECUTE one(lo_unlink(4242))
[also 25006] PREPARE two(int) AS SELECT $1 ;; EXPLAIN CREATE TABLE made AS EXECUTE two(lo_unlink(4242))
SELECT lo_export(4242, '/dev/null')
SELECT pg_logical_emit_message(false, 'a', 'b')
SELECT pg_logical_emit_message(true, 'a', 'b')
SELECT pg_create_restore_point('made')
SELECT pg_switch_wal()
SELECT pg_create_physical_replication_slot('made')
SELECT pg_drop_replication_slot('kept')
SELECT pg_replication_origin_create('made')
SELECT pg_replication_origin_drop('kept')
SELECT pg_stat_reset()
SELECT pg_stat_reset_shared('bgwriter')
SELECT pg_stat_reset_slru(NULL)
SELECT pg_stat_reset_single_table_counters('jobs'::regclass)
SELECT pg_stat_reset_single_function_counters('writes()'::regprocedure)
SELECT pg_reload_conf()
SELECT pg_rotate_logfile()
SELECT pg_terminate_backend(0)
SELECT pg_cancel_backend(0)
SELECT txid_current()
SELECT pg_current_xact_id()
SELECT dblink_exec('host=' || split_part(current_setting('unix_socket_directories'), ',', 1) || ' port=' || current_setting('port') || ' user=postgres dbname=postgres', 'INSERT INTO log DEFAULT VALUES')
SELECT * FROM dblink('host=' || split_part(current_setting('unix_socket_directories'), ',', 1) || ' port=' || current_setting('port') || ' user=postgres dbname=postgres', 'INSERT INTO log DEFAULT VALUES RETURNING id') AS t (id int)
ANALYZE jobs, docs
ANALYZE jobs (who)
REINDEX TABLE jobs
REINDEX INDEX jobs_pkey
CLUSTER jobs USING jobs_pkey
CHECKPOINT
LOAD 'auto_explain'
LOCK TABLE jobs IN ROW SHARE MODE
COPY jobs TO PROGRAM 'cat > /dev/null'
COPY (SELECT 1) TO PROGRAM 'cat > /dev/null'
COPY jobs TO '/dev/null'
COPY (SELECT 1) TO '/dev/null'
DO 'BEGIN NOTIFY news; END'
CALL does_nothing()
PREPARE TRANSACTION 'made'
[alone] COMMIT PREPARED 'kept'
[alone] ROLLBACK PREPARED 'kept too'
[alone] VACUUM
[alone] VACUUM FULL jobs
[alone] VACUUM (FREEZE, ANALYZE) jobs
[alone] ALTER SYSTEM SET work_mem = '5MB'
[alone] ALTER SYSTEM RESET ALL
[alone] CLUSTER
[alone] REINDEX DATABASE postgres
[alone] REINDEX TABLE CONCURRENTLY jobs
[alone] REINDEX SCHEMA public
[alone] SELECT pg_export_snapshot(), txid_current()
