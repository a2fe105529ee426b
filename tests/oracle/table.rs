//! The table of `docs/policies.md`: each kind of statement, sent by a session without a token, with a stale one, and
//! with the current one.

use std::fmt::Write as _;

use pgpalisade_test_servers::machine::repository;
use pgpalisade_test_servers::stage::Stage;
use pgpalisade_test_servers::wire::{Batch, Message, Wire, pretty};

use super::world::{Watch, stage};

const PAGE: &str = "docs/policies.md";
const BEGIN: &str = "<!-- generated: statements -->";
const END: &str = "<!-- end of generated: statements -->";
/// The test then writes the page instead of comparing it.
const WRITE: &str = "WRITE_DOCS";

const ABOVE: &str = "\
Without a policy file. Every cell was tried on PostgreSQL behind the proxy. A code is that of the refusal; 25006 and
42601 are PostgreSQL's own. A takeover ends sessions with lower tokens (FATAL PF001), so only a session whose ROLLBACK
undid a higher token can hold a stale one.
";

const BELOW: &str = "\
`WRITE_DOCS=1 cargo test -p pgpalisade-tests --test oracle table` writes this table.
";

/// Rows: words for the reader, and indented scripts that must all end alike. ` ;; ` separates the texts of a script.
const ROWS: &str = "
`SELECT`, `VALUES`, `TABLE`, `COPY .. TO STDOUT`, `EXPLAIN`, `EXPLAIN ANALYZE` of a read
    SELECT * FROM jobs
    VALUES (1)
    TABLE jobs
    WITH x AS (SELECT 1) TABLE x
    COPY jobs TO STDOUT
    COPY (SELECT 1) TO STDOUT
    EXPLAIN SELECT 1
    EXPLAIN DELETE FROM jobs
    EXPLAIN (ANALYZE false) DELETE FROM jobs
    EXPLAIN ANALYZE SELECT * FROM jobs
`SELECT` of a function, view, operator, cast or domain that writes
    SELECT writes()
    TABLE peek
    SELECT 1 #=# 2
    SELECT p::int FROM pairs
    SELECT 5::checked
cursors, `PREPARE`, `EXECUTE` of a prepared read
    BEGIN ;; DECLARE c CURSOR FOR TABLE jobs ;; FETCH c ;; MOVE c ;; CLOSE c ;; COMMIT
    PREPARE w AS INSERT INTO log DEFAULT VALUES
    PREPARE r AS SELECT * FROM jobs ;; EXECUTE r
`BEGIN`, `BEGIN READ ONLY`, `COMMIT`, `ROLLBACK`, `SAVEPOINT`
    BEGIN ;; SAVEPOINT s ;; ROLLBACK TO s ;; RELEASE s ;; COMMIT
    START TRANSACTION ;; ROLLBACK
    BEGIN READ ONLY ;; SELECT 1 ;; COMMIT
`LISTEN`, advisory locks, `LOCK TABLE .. IN ACCESS SHARE MODE`
    LISTEN news
    SELECT pg_advisory_lock(1), pg_advisory_unlock(1)
    BEGIN ;; LOCK jobs IN ACCESS SHARE MODE ;; COMMIT
`SET`, `SHOW`, `RESET` of other settings, `RESET ALL`, `DISCARD ALL`, `CLOSE ALL`
    SET work_mem = '5MB'
    RESET work_mem
    SHOW work_mem
    SELECT set_config('work_mem', '5MB', false)
    UNLISTEN *
    CLOSE ALL
    DEALLOCATE ALL
    RESET ALL
    DISCARD ALL
`INSERT`, `UPDATE`, `DELETE`, `MERGE`, `TRUNCATE`, `COPY .. FROM`, also inside others
    INSERT INTO log DEFAULT VALUES
    UPDATE log SET what = 'x'
    DELETE FROM log
    MERGE INTO jobs USING docs ON false WHEN MATCHED THEN DO NOTHING
    TRUNCATE log
    COPY jobs FROM '/dev/null'
    WITH x AS (INSERT INTO log DEFAULT VALUES RETURNING 1) SELECT * FROM x
    COPY (INSERT INTO log DEFAULT VALUES RETURNING id) TO STDOUT
    EXPLAIN ANALYZE INSERT INTO log DEFAULT VALUES
    EXPLAIN (ANALYZE, COSTS off) DELETE FROM log
    PREPARE w AS INSERT INTO log DEFAULT VALUES ;; EXECUTE w
`SELECT .. FOR UPDATE`, `FOR SHARE` or `INTO`, `nextval(..)`, `setval(..)`
    SELECT * FROM jobs FOR UPDATE
    SELECT * FROM jobs FOR SHARE
    SELECT 1 AS n INTO made_by_select
    CREATE TABLE made_by_create AS SELECT 1
    SELECT nextval('counter')
    SELECT setval('counter', 9)
`CREATE`, `ALTER`, `DROP`, also of roles or temporary; `COMMENT`, `GRANT`, `REVOKE`
    CREATE TEMP TABLE made (id int)
    CREATE TABLE public.made (id int)
    ALTER TABLE public.made ADD COLUMN more int
    DROP TABLE public.made
    CREATE VIEW made_view AS SELECT 1
    COMMENT ON TABLE jobs IS 'work'
    GRANT SELECT ON jobs TO other
    REVOKE SELECT ON jobs FROM other
    CREATE ROLE made
    ALTER ROLE made SET work_mem = '5MB'
    DROP ROLE made
`VACUUM`, `ANALYZE`, `REINDEX`, `CLUSTER`, `REFRESH MATERIALIZED VIEW`
    VACUUM jobs
    ANALYZE jobs
    REINDEX TABLE jobs
    CLUSTER jobs USING jobs_pkey
    REFRESH MATERIALIZED VIEW jobs_by_who
`ALTER SYSTEM`, `CHECKPOINT`, `LOAD`
    ALTER SYSTEM SET work_mem = '5MB'
    CHECKPOINT
    LOAD 'plpgsql'
`DO`, `CALL`, `NOTIFY`, other `LOCK TABLE`, `COMMIT PREPARED`, `ROLLBACK PREPARED`
    DO 'BEGIN PERFORM 1; END'
    CALL does()
    NOTIFY news
    SELECT pg_notify('news', 'x')
    BEGIN ;; LOCK TABLE jobs ;; COMMIT
    BEGIN ;; LOCK TABLE jobs IN ROW SHARE MODE ;; COMMIT
    COMMIT PREPARED 'kept'
    ROLLBACK PREPARED 'kept too'
`COPY .. TO` a file or program; `lo_put(..)`, `dblink_exec(..)`, `pg_terminate_backend(..)`
    COPY jobs TO '/dev/null'
    COPY jobs TO PROGRAM 'cat > /dev/null'
    SELECT lo_create(4711)
    SELECT lo_put(4711, 0, 'x')
    SELECT lo_unlink(4711)
    SELECT dblink_exec('host=/nowhere', 'DELETE FROM jobs')
    SELECT dblink_connect('host=/nowhere')
    SELECT pg_cancel_backend(0)
    SELECT pg_terminate_backend(0)
`BEGIN READ WRITE` as a query of its own, which begins a read-only one without a token
    BEGIN READ WRITE ;; COMMIT
`SET TRANSACTION READ WRITE`, `SET default_transaction_read_only = off`
    BEGIN ;; SET TRANSACTION READ WRITE ;; COMMIT
    SET default_transaction_read_only = off
    SELECT set_config('default_transaction_read_only', 'off', false)
several statements in one text, one of them a write
    SELECT 1; INSERT INTO log DEFAULT VALUES
    INSERT INTO log DEFAULT VALUES; SELECT 1
`PREPARE TRANSACTION`
    BEGIN ;; SELECT 1 ;; PREPARE TRANSACTION 'made'
`SET fencing.token` to the current token
    SET fencing.token = {current}
`SET fencing.token` to a lower one
    SET fencing.token = {lower}
a text that PostgreSQL's grammar refuses
    SELEKT 1
";

fn rows() -> Vec<(&'static str, Vec<&'static str>)> {
    let mut rows: Vec<(&str, Vec<&str>)> = Vec::new();
    for line in ROWS.lines().filter(|line| !line.is_empty()) {
        match (line.strip_prefix("    "), rows.last_mut()) {
            (Some(script), Some((_, scripts))) => scripts.push(script),
            _ => rows.push((line, Vec::new())),
        }
    }
    rows
}

struct Tokens {
    lower: String,
    current: String,
}

impl Tokens {
    /// Above those of earlier rows: a mark never falls.
    fn of(row: usize) -> Self {
        Self {
            lower: (2 * row + 1).to_string(),
            current: (2 * row + 2).to_string(),
        }
    }

    fn put_into(&self, text: &str) -> String {
        text.replace("{lower}", &self.lower)
            .replace("{current}", &self.current)
    }
}

fn sessions(stage: &Stage, tokens: &Tokens) -> [Wire; 3] {
    let mut stale = stage.leader(&tokens.lower);
    stale.ok("BEGIN");
    stale.ok(&tokens.put_into("SET fencing.token = {current}"));
    stale.ok("ROLLBACK");
    [stage.plain(), stale, stage.leader(&tokens.current)]
}

fn cell(answer: &[Message]) -> String {
    let Some(error) = answer.iter().find(|message| message.tag == b'E') else {
        return "passes".to_owned();
    };
    let state = error.sqlstate();
    match (state.as_str(), error.severity().as_str()) {
        ("PF001" | "PF005", "FATAL") => format!("{state}, FATAL"),
        ("25006" | "42601", _) => state,
        // dblink connects to an unused address: the proxy has let it through.
        ("08001", _) => "passes".to_owned(),
        (_, "ERROR") if state.starts_with("PF") => state,
        _ => panic!("what is this?\n{}", pretty(answer)),
    }
}

/// Common result of a row's scripts in one session.
fn send(wire: &mut Wire, scripts: &[&str], tokens: &Tokens) -> String {
    let mut cells = Vec::new();
    for script in scripts {
        let refused = script.split(" ;; ").find_map(|text| {
            let cell = cell(&wire.query(&tokens.put_into(text)));
            (cell != "passes").then_some(cell)
        });
        cells.push(refused.unwrap_or_else(|| "passes".to_owned()));
        wire.query("ROLLBACK");
    }
    cells.dedup();
    assert_eq!(cells.len(), 1, "{scripts:?} end in several ways: {cells:?}");
    cells.concat()
}

/// A FunctionCall, a replication connection, a connection with a token in its startup packet.
fn other_rows(stage: &Stage, tokens: &Tokens) -> Vec<(String, [String; 3])> {
    let oid = stage.value("SELECT 'pg_catalog.now()'::regprocedure::oid::int8");
    let call = Batch::new().function_call(oid.parse().unwrap(), &[]);
    let calls = sessions(stage, tokens).map(|mut wire| cell(&wire.run(&call)));
    let connect =
        |more: &[(&str, &str)]| cell(&Wire::open(&stage.proxy.endpoint(), more).until_ready());
    let (lower, current) = (
        ("fencing.token", tokens.lower.as_str()),
        ("fencing.token", tokens.current.as_str()),
    );
    let packets: [&[(&str, &str)]; 3] = [&[], &[lower], &[current]];
    let connections = packets.map(connect);
    let replication = packets.map(|more| connect(&[more, &[("replication", "database")]].concat()));
    vec![
        (
            "FunctionCall of the protocol, unless it reads a large object".to_owned(),
            calls,
        ),
        ("connecting".to_owned(), connections),
        ("connecting for replication".to_owned(), replication),
    ]
}

fn generate() -> String {
    let stage = stage();
    for (id, name) in [(1, "kept"), (2, "kept too")] {
        stage.sql(&format!(
            "BEGIN; INSERT INTO people VALUES ({id}); PREPARE TRANSACTION '{name}'"
        ));
    }
    let mut watch = Watch::new(&stage);
    let mut text = format!("{ABOVE}\n| statement | no token | stale token | current token |\n");
    text.push_str("| --- | --- | --- | --- |\n");
    let mut all = Vec::new();
    let mut rows = rows();
    if stage.postgres.version() < 15 {
        let scripts = rows.iter_mut().map(|(_, scripts)| scripts);
        scripts.for_each(|scripts| scripts.retain(|script| !script.starts_with("MERGE")));
    }
    for (number, (words, scripts)) in rows.iter().enumerate() {
        let tokens = Tokens::of(number);
        let [mut plain, mut stale, mut current] = sessions(&stage, &tokens);
        let before = watch.next_xid();
        let refused = [
            send(&mut plain, scripts, &tokens),
            send(&mut stale, scripts, &tokens),
        ];
        assert_eq!(watch.next_xid(), before, "{scripts:?} wrote: {refused:?}");
        let [none, stale] = refused;
        let current = send(&mut current, scripts, &tokens);
        all.push(((*words).to_owned(), [none, stale, current]));
    }
    all.extend(other_rows(&stage, &Tokens::of(rows.len())));
    for (words, cells) in all {
        writeln!(text, "| {words} | {} |", cells.join(" | ")).unwrap();
    }
    format!("{text}\n{BELOW}")
}

#[test]
fn the_table_of_the_page_is_what_happens() {
    let path = repository().join(PAGE);
    let page = std::fs::read_to_string(&path).unwrap();
    let (above, rest) = page
        .split_once(BEGIN)
        .unwrap_or_else(|| panic!("{PAGE} has no line {BEGIN}"));
    let (inside, below) = rest
        .split_once(END)
        .unwrap_or_else(|| panic!("{PAGE} has no line {END}"));
    let found = generate();
    if std::env::var_os(WRITE).is_some() {
        let page = format!("{above}{BEGIN}\n{found}{END}{below}");
        std::fs::write(&path, page).unwrap();
        return;
    }
    assert_eq!(
        inside.trim(),
        found.trim(),
        "{PAGE} says something else (left) than what happens (right). If what happens is right: {BELOW}"
    );
}
