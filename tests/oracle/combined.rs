//! Generated combinations: each listed expression and query in each place where SQL allows it, and about a thousand
//! random ones with nested places.

use pgpalisade_policies::Class;
use pgpalisade_test_servers::machine::seed;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use super::corpus::Case;
use super::world::{Around, Outcome, Protocol, Runner, Watch, changed, class_of, stage};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Shows {
    Everything,
    NotAll,
}

use Shows::{Everything, NotAll};

/// Ingredients that show everything, and those that do not.
type Ingredients = [&'static [&'static str]; 2];

fn all(of: Ingredients) -> impl Iterator<Item = (Shows, &'static str)> + Clone {
    let [everything, not_all] = of.map(|texts| texts.iter().copied());
    everything
        .zip(std::iter::repeat(Everything))
        .chain(not_all.zip(std::iter::repeat(NotAll)))
        .map(|(text, shows)| (shows, text))
}

const EXPRESSIONS: Ingredients = [
    &[
        "1",
        "'text'",
        "now()",
        "current_user",
        "random()",
        "(SELECT count(*) FROM jobs)",
        "(SELECT id FROM jobs ORDER BY id LIMIT 1)",
        "pg_try_advisory_xact_lock(1)",
        "set_config('my.own', 'x', true)",
        "nextval('counter')",
        "setval('counter', 7)",
        "(SELECT id FROM jobs ORDER BY id LIMIT 1 FOR UPDATE)",
        "(SELECT id FROM jobs ORDER BY id LIMIT 1 FOR KEY SHARE)",
        "lo_create(0)",
        "lo_put(4242, 0, 'y')::text",
        "pg_notify('a', 'b')::text",
        "txid_current()",
        "pg_logical_emit_message(true, 'a', 'b')",
        "query_to_xml('DELETE FROM jobs', true, true, '')::text",
        "set_config('default_transaction_read_only', 'off', false)",
        "set_config('transaction_' || 'read_only', 'off', true)",
    ],
    &[
        "writes()",
        "public.writes(2)",
        "counts()",
        "locks()",
        "says_stable()",
        "says_immutable()",
        "catches()",
        "creates()::text",
        "writes_by_text('DELETE FROM jobs')::text",
        "with_default()",
        "(1 #=# 2)",
        "(@#@ 1)",
        "5::checked",
        "(ROW(1, 2)::pair)::int",
        "jsonb_populate_record(NULL::boxed, '{\"value\": 5}')::text",
        "(TABLE peek)",
        "(SELECT count(*) FROM checked_jobs)",
        "(SELECT writing_sum(id) FROM jobs)",
        "(SELECT p FROM pairs ORDER BY p LIMIT 1)::text",
    ],
];

/// Each is a query again.
const AROUND_EXPRESSIONS: &[&str] = &[
    "SELECT {} AS id",
    "SELECT ({}) IS NULL",
    "SELECT CASE WHEN true THEN ({})::text ELSE 'x' END",
    "SELECT CASE ({})::text WHEN 'x' THEN 1 END",
    "SELECT coalesce(({})::text, 'x')",
    "SELECT nullif(({})::text, 'x'), greatest(({})::text, 'y')",
    "SELECT ({})::text LIKE '%', ({})::text COLLATE \"C\"",
    "SELECT 'a' IN (({})::text, 'b')",
    "SELECT ({})::text = ANY (ARRAY['a', ({})::text])",
    "SELECT (ARRAY[1, 2])[length(({})::text)]",
    "SELECT ROW(1, ({}))",
    "SELECT jsonb_build_object('a', ({})::text) -> 'a'",
    "SELECT xmlelement(name a, ({})::text)",
    "SELECT count(({})) FROM jobs",
    "SELECT count(*) FILTER (WHERE ({}) IS NOT NULL) FROM jobs",
    "SELECT string_agg(who, ',' ORDER BY ({})::text) FROM jobs",
    "SELECT max(({})::text) OVER (PARTITION BY who) FROM jobs",
    "SELECT sum(id) OVER (ORDER BY ({})::text) FROM jobs",
    "SELECT EXISTS (SELECT ({}))",
    "SELECT (SELECT ({})) AS id",
    "SELECT DISTINCT ({})::text FROM jobs",
    "SELECT DISTINCT ON (({})::text) id FROM jobs",
    "SELECT id FROM jobs WHERE ({}) IS NOT NULL",
    "SELECT id FROM jobs WHERE who = 'x' OR ({})::text > ''",
    "SELECT id FROM jobs ORDER BY ({})::text",
    "SELECT count(*) FROM jobs GROUP BY ({})::text",
    "SELECT 1 AS id FROM jobs HAVING count(({})) > 0",
    "SELECT id FROM jobs LIMIT length(({})::text)",
    "SELECT id FROM jobs OFFSET length(({})::text)",
    "SELECT j.id FROM jobs j LEFT JOIN docs d ON ({})::text = 'x'",
    "SELECT * FROM generate_series(1, length(({})::text)) AS g (id)",
    "SELECT * FROM jobs, LATERAL (SELECT ({})) l",
    "SELECT * FROM ROWS FROM (unnest(ARRAY[({})::text])) AS r (id)",
    "VALUES (({})::text)",
    "SELECT * FROM (VALUES (1, ({})::text)) v (id, t)",
    "SELECT set_config('my.own', ({})::text, true)",
    "SELECT * FROM jobs TABLESAMPLE BERNOULLI (length(({})::text) % 100)",
    "SELECT * FROM xmltable('/a' PASSING '<a/>' COLUMNS n text DEFAULT ({})::text) AS id",
];

/// Queries, and statements that can take a query's place.
const QUERIES: Ingredients = [
    &[
        "SELECT id FROM jobs",
        "TABLE jobs",
        "VALUES (1)",
        "SELECT id FROM working UNION ALL SELECT 1",
        "SELECT count(*) AS id FROM jobs GROUP BY who",
        "SELECT nextval('counter') AS id",
        "SELECT id FROM jobs FOR UPDATE",
        "SELECT lo_create(0) AS id",
        "SELECT 1 AS id INTO made",
        "WITH x AS (DELETE FROM jobs RETURNING id) SELECT id FROM x",
        "WITH x AS (INSERT INTO log DEFAULT VALUES) SELECT 1 AS id",
        "INSERT INTO log DEFAULT VALUES RETURNING id",
        "UPDATE jobs SET who = 'x' RETURNING id",
        "DELETE FROM jobs RETURNING id",
        "MERGE INTO jobs USING docs ON false WHEN NOT MATCHED THEN INSERT VALUES (900)",
    ],
    &[
        "SELECT writes() AS id",
        "SELECT * FROM writes_rows() AS r (id)",
        "TABLE peek",
        "SELECT id FROM checked_jobs",
        "SELECT 5::checked AS id",
        "SELECT p AS id FROM pairs ORDER BY p",
        "SELECT id FROM working UNION ALL SELECT writes()",
        "SELECT writing_sum(id) AS id FROM jobs",
        "SELECT says_immutable() AS id",
    ],
];

/// Places for a query.
const AROUND_QUERIES: Ingredients = [
    &[
        "{}",
        "({})",
        "SELECT * FROM ({}) s",
        "SELECT * FROM ({}) s LIMIT 1",
        "SELECT count(*) FROM ({}) s WHERE true",
        "SELECT row_to_json(s) AS id FROM ({}) s",
        "SELECT 1 AS id WHERE EXISTS ({})",
        "SELECT ARRAY({})",
        "SELECT j.id FROM jobs j, LATERAL ({}) l",
        "SELECT j.id FROM jobs j LEFT JOIN LATERAL ({}) l ON true",
        "WITH x AS ({}) SELECT * FROM x",
        "WITH x AS MATERIALIZED ({}) SELECT count(*) FROM x",
        "WITH x AS ({}) SELECT 1 AS id",
        "WITH RECURSIVE x AS ({}) TABLE x",
        "SELECT (WITH x AS ({}) SELECT count(*) FROM x)",
        "({}) UNION ALL ({})",
        "(SELECT NULL) EXCEPT ALL ({})",
        "EXPLAIN {}",
        "EXPLAIN (ANALYZE false) {}",
        "EXPLAIN ANALYZE {}",
        "EXPLAIN (ANALYZE, COSTS off, TIMING off, FORMAT yaml) {}",
        "COPY ({}) TO STDOUT",
        "COPY ({}) TO STDOUT WITH (FORMAT csv)",
        "COPY ({}) TO '/dev/null'",
        "BEGIN ;; DECLARE c CURSOR FOR {} ;; FETCH ALL FROM c ;; COMMIT",
        "BEGIN ;; DECLARE c SCROLL CURSOR FOR {} ;; FETCH LAST FROM c ;; COMMIT",
        "BEGIN ;; DECLARE c CURSOR FOR {} ;; MOVE ALL IN c ;; COMMIT",
        "DECLARE c CURSOR WITH HOLD FOR {} ;; FETCH ALL FROM c",
        "PREPARE p AS {} ;; EXECUTE p",
        "PREPARE p AS {} ;; EXPLAIN EXECUTE p",
        "PREPARE p AS {} ;; EXPLAIN ANALYZE EXECUTE p",
        "PREPARE p AS {} ;; CREATE TABLE made AS EXECUTE p",
        "PREPARE p AS {}",
        "CREATE TABLE made AS {}",
        "CREATE TEMP TABLE made AS {}",
        "CREATE VIEW made AS {}",
        "CREATE MATERIALIZED VIEW made AS {}",
        "INSERT INTO pairs SELECT NULL FROM ({}) s",
        "DO $do$ BEGIN PERFORM * FROM ({}) s; END $do$",
        "SELECT query_to_xml($q$ {} $q$, true, true, '')",
        "SELECT 1; {}",
        "{}; SELECT 1",
        "BEGIN; {}; COMMIT",
        "/* a comment -- */ {} -- another /*",
    ],
    &["SELECT writes_by_text($q$ {} $q$)"],
];

/// Functions that read-only mode does not stop. Inside a text that a function runs no parser sees them: `hidden`
/// shows that limit.
const PAST_READ_ONLY: [&str; 5] = [
    "lo_create",
    "lo_put",
    "pg_notify",
    "txid_current",
    "pg_logical_emit_message",
];

/// Known limits. Besides those texts, PostgreSQL may call a stable function to plan a query that a plain EXPLAIN does
/// not execute. Of the writes by name `txid_current` is stable; it only takes a transaction id.
fn is_out_of_sight(text: &str) -> bool {
    let only_planned = text.starts_with("EXPLAIN") && !text.starts_with("EXPLAIN ANALYZE");
    let run_as_text = text.contains("writes_by_text($q$");
    run_as_text && PAST_READ_ONLY.iter().any(|name| text.contains(name))
        || only_planned && text.contains("txid_current")
}

fn put(place: &str, text: &str) -> String {
    place.replace("{}", text)
}

fn every_combination() -> Vec<(Shows, String)> {
    let mut combined = Vec::new();
    for (shows, expression) in all(EXPRESSIONS) {
        for place in AROUND_EXPRESSIONS {
            combined.push((shows, put(place, expression)));
        }
        let select = format!("SELECT {expression} AS id");
        for (place_shows, place) in all(AROUND_QUERIES) {
            combined.push((shows.max(place_shows), put(place, &select)));
        }
    }
    for (shows, query) in all(QUERIES) {
        for (place_shows, place) in all(AROUND_QUERIES) {
            combined.push((shows.max(place_shows), put(place, query)));
        }
    }
    combined
}

fn one(of: Ingredients, rng: &mut StdRng) -> (Shows, &'static str) {
    let all: Vec<_> = all(of).collect();
    *all.choose(rng).unwrap()
}

fn at_random(rng: &mut StdRng) -> (Shows, String) {
    let (shows, expression) = one(EXPRESSIONS, rng);
    let mut text = put(AROUND_EXPRESSIONS.choose(rng).unwrap(), expression);
    for _ in 0..rng.random_range(0..3) {
        // Used as a value again.
        let value = format!("(SELECT count(*) FROM ({text}) AS s)");
        text = put(AROUND_EXPRESSIONS.choose(rng).unwrap(), &value);
    }
    let (place_shows, place) = one(AROUND_QUERIES, rng);
    (shows.max(place_shows), put(place, &text))
}

#[derive(Debug, Default)]
struct Counts {
    refused_by_both: usize,
    hidden: usize,
    reads: usize,
    strict: usize,
    /// PostgreSQL reports an error in the text itself.
    senseless: usize,
}

#[test]
fn no_combination_is_a_write_called_a_read() {
    let mut rng = StdRng::seed_from_u64(seed());
    let mut all = every_combination();
    all.extend((0..1_000).map(|_| at_random(&mut rng)));
    all.retain(|(_, text)| !is_out_of_sight(text));
    let stage = stage();
    let mut watch = Watch::new(&stage);
    let before = watch.fingerprint();
    let mut counts = Counts::default();
    let mut wrong = Vec::new();
    let mut plain = Runner::without_token(&stage);
    let mut outcomes = Vec::new();
    // Through the proxy first: writes that the server lets pass would change the checked rows.
    let xid = watch.next_xid();
    for (_, text) in &all {
        let case = Case::new(text);
        let class = class_of(&case.script);
        let outcome = plain.run(&case.script, Around::Nothing, Protocol::Simple);
        if class == Class::Write && !outcome.is("PF002") {
            // A script may fail before its refused statement.
            if outcome == Outcome::Passed || case.script.len() == 1 {
                wrong.push(format!("{outcome:?} by the proxy: {text}"));
            }
        }
        if watch.next_xid() != xid {
            wrong.push(format!("it wrote without a token: {text}"));
            break;
        }
        outcomes.push((class, outcome));
    }
    let changes = changed(&before, &watch.fingerprint());
    assert!(
        changes.is_empty(),
        "{}\n{}",
        changes.join("\n"),
        wrong.join("\n")
    );
    let mut oracle = Runner::oracle(&stage);
    for ((shows, text), (class, by_proxy)) in all.iter().zip(&outcomes) {
        let case = Case::new(text);
        let by_server = oracle.run(&case.script, Around::Nothing, Protocol::Simple);
        let refused = by_server.is("25006");
        match (class, &by_server) {
            (Class::Write, _) if refused => counts.refused_by_both += 1,
            (Class::Write, Outcome::Passed) => counts.strict += 1,
            (Class::Read, _) if refused && *shows == NotAll => counts.hidden += 1,
            (Class::Read, _) if refused => {
                wrong.push(format!("a write is called a read: {text}"));
            }
            (Class::Read, Outcome::Passed) => counts.reads += 1,
            _ => counts.senseless += 1,
        }
        if *class == Class::Read && *by_proxy != by_server {
            wrong.push(format!(
                "{by_proxy:?} by the proxy, {by_server:?} by the server: {text}"
            ));
        }
    }
    println!("{} combinations: {counts:?}", all.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(
        counts.hidden > 500 && counts.reads > 300 && counts.senseless * 4 < all.len(),
        "the combinations are of little use: {counts:?}"
    );
}
