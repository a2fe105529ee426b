-- Writes that the text does not show: reads for the classifier, refused by PostgreSQL (25006) in a read-only session.
-- The word in brackets says where the write hides. One a line; `;;` separates the statements of a script.
[function] SELECT writes()
[function] SELECT public.writes()
[function] SELECT "writes"()
[function] SELECT counts()
[function] SELECT locks()
[function] SELECT says_stable()
[function] SELECT * FROM writes()
[function] SELECT * FROM writes_rows()
[function] SELECT * FROM jobs, LATERAL writes(jobs.id) w
[function] SELECT * FROM ROWS FROM (writes_rows(), generate_series(1, 2))
[function] SELECT generate_series(1, writes())
[function] VALUES (writes())
[function] SELECT * FROM jobs WHERE writes(id) > 0
[function] SELECT * FROM jobs ORDER BY writes(id)
[function] SELECT count(*) FROM jobs GROUP BY writes(id)
[function] SELECT * FROM jobs LIMIT writes()
[function] SELECT 1 FROM jobs HAVING writes() > 0
[function] SELECT CASE WHEN true THEN writes() END
[function] SELECT coalesce(NULL, writes())
[function] SELECT ARRAY[writes()], ROW(writes()), (ARRAY[1])[writes() * 0 + 1]
[function] WITH x AS (SELECT writes() AS n) SELECT n FROM x
[function] SELECT (SELECT writes())
[function] SELECT sum(writes(id)) OVER () FROM jobs
[function] SELECT with_default()
[function] SELECT writes_by_text('DELETE FROM jobs')
[function] SELECT writes_by_text('DROP TABLE jobs')
[function] SELECT writes_by_text('TRUNCATE jobs')
[function] SELECT writes_by_text('CALL does()')
[function] SELECT writes_by_text('CREATE ROLE made')
[function] SELECT creates()
[function] SELECT creates_temporary()
[function] SELECT catches()
[function] SELECT jobs.summary FROM jobs
[function] SELECT summary(jobs) FROM jobs
[function] SELECT shadow.lower('x')
[function] SET search_path = shadow, pg_catalog, public ;; SELECT lower('x'::text)
[function] EXPLAIN ANALYZE SELECT writes()
[function] EXPLAIN (ANALYZE, FORMAT json) SELECT * FROM peek
[function] COPY (SELECT writes()) TO STDOUT
[planning] EXPLAIN SELECT says_immutable()
[planning] SELECT 1 FROM jobs WHERE says_immutable() < 0
[planning] SELECT says_immutable()
[view] SELECT * FROM peek
[view] TABLE peek
[view] SELECT * FROM peek_twice
[view] SELECT count(*) FROM checked_jobs
[view] SELECT * FROM jobs WHERE id IN (SELECT id FROM peek)
[view] COPY (TABLE peek) TO STDOUT
[policy] SET SESSION AUTHORIZATION app ;; SELECT * FROM guarded
[policy] SET SESSION AUTHORIZATION app ;; COPY guarded TO STDOUT
[policy] SET SESSION AUTHORIZATION app ;; COPY guarded (id) TO STDOUT WITH (FORMAT csv)
[operator] SELECT 1 #=# 2
[operator] SELECT 1 OPERATOR(public.#=#) 2
[operator] SELECT @#@ 1
[operator] SELECT 1 #=# ANY (ARRAY[1, 2])
[operator] SELECT * FROM jobs a JOIN jobs b ON a.id #=# b.id
[cast] SELECT p::int FROM pairs
[cast] SELECT CAST(p AS int) FROM pairs
[cast] SELECT int '5' + p FROM pairs
[cast] SELECT generate_series(0, p) FROM pairs
[domain] SELECT 5::checked
[domain] SELECT CAST('5' AS checked)
[domain] SELECT checked '5'
[domain] SELECT '(5)'::boxed
[domain] SELECT ARRAY[5]::checked[]
[domain] SELECT * FROM json_to_record('{"a": 5}') AS x (a checked)
[domain] SELECT jsonb_populate_record(NULL::boxed, '{"value": 5}')
[domain] SELECT * FROM xmltable('/a' PASSING '<a>5</a>' COLUMNS n checked PATH '.')
[aggregate] SELECT writing_sum(id) FROM jobs
[aggregate] SELECT writing_end(id) FROM jobs
[aggregate] SELECT writing_sum(id) OVER (ORDER BY id) FROM jobs
[operator class] SELECT * FROM pairs ORDER BY p
[operator class] SELECT DISTINCT p FROM pairs
[operator class] SELECT p, count(*) FROM pairs GROUP BY p
[operator class] SELECT p FROM pairs UNION SELECT p FROM pairs
[operator class] SELECT * FROM pairs ORDER BY p USING #<
[operator class] SELECT greatest(ROW(1, 2)::pair, ROW(2, 1)::pair)
[prepared] PREPARE hidden AS SELECT writes() ;; EXECUTE hidden
[prepared] PREPARE hidden AS TABLE peek ;; EXECUTE hidden ;; DEALLOCATE hidden
[prepared] PREPARE hidden (int) AS SELECT $1 ;; EXECUTE hidden (writes())
[prepared] PREPARE hidden (checked) AS SELECT $1 ;; EXECUTE hidden (5)
[prepared] PREPARE hidden AS SELECT writes() ;; EXPLAIN ANALYZE EXECUTE hidden
[cursor] BEGIN ;; DECLARE c CURSOR FOR SELECT writes() ;; FETCH ALL FROM c ;; COMMIT
[cursor] BEGIN ;; DECLARE c CURSOR FOR SELECT writes() FROM jobs ;; MOVE 2 IN c ;; COMMIT
[cursor] BEGIN ;; DECLARE c CURSOR WITH HOLD FOR SELECT writes() ;; COMMIT ;; FETCH ALL FROM c
[cursor] DECLARE c CURSOR WITH HOLD FOR SELECT * FROM peek ;; CLOSE c
[cursor] BEGIN ;; SELECT opens('c') ;; FETCH ALL FROM c ;; COMMIT
