//! Things that a client may leave in its server connection, in all forms that SQL has for them.

use rand::Rng;
use rand::rngs::StdRng;

use super::conversation::{Cycle, Kind, Who};
use crate::mediation::conversation::Message;
use crate::mediation::words::{in_function, once_in, one};

/// Objects that do hidden things. A row of `texts` is what [`LEAVINGS`] has there.
pub const WORLD: &str = "
    CREATE PROCEDURE does(statement text) LANGUAGE plpgsql AS $$ BEGIN EXECUTE statement; END $$;
    CREATE FUNCTION traps() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN EXECUTE NEW.sql; RETURN NEW; END $$;
    CREATE TABLE trap (sql text);
    CREATE TRIGGER traps BEFORE INSERT ON trap FOR EACH ROW EXECUTE FUNCTION traps();
    CREATE TABLE late (sql text);
    CREATE CONSTRAINT TRIGGER traps AFTER INSERT ON late DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION traps();
    CREATE TABLE texts (who text, n int, sql text);
    CREATE VIEW leaves AS SELECT who, n, runs(sql) FROM texts;";

/// `~` stands for the front of a name.
const LEAVINGS: [&str; 43] = [
    "SET work_mem = '#kB'",
    "SET statement_timeout = '#min'",
    "SET search_path = %, public",
    "SET app.name = '%'",
    "SET default_transaction_isolation = 'repeatable read'",
    "SET SESSION CHARACTERISTICS AS TRANSACTION DEFERRABLE",
    "SELECT set_config('geqo_threshold', '#', false)",
    "SELECT set_config('geqo_' || 'effort', '7', false)",
    "SELECT set_config('TimeZone', 'ZZZ#', false)",
    "SET work_mem = '#kB'; SET app.name = '%'; SHOW work_mem",
    "UPDATE pg_settings SET setting = '#' WHERE name = 'vacuum_cost_limit'",
    "SET ROLE %",
    "SET SESSION AUTHORIZATION %",
    "SET application_name = '%'",
    "SET TimeZone = 'ZZZ#'",
    "SET DateStyle = 'German'",
    "SET IntervalStyle = 'iso_8601'",
    "SET client_encoding = 'LATIN1'",
    "SET standard_conforming_strings = off",
    "SET LOCAL DateStyle = 'German'",
    "SET LOCAL application_name = '%'",
    "SET LOCAL work_mem = '#kB'",
    "SELECT set_config('app.name', '%', true)",
    "SELECT set_config('app.name', '%'::text, true)",
    "PREPARE ~p AS SELECT '%'",
    "DECLARE ~c CURSOR WITH HOLD FOR SELECT '%' FROM generate_series(1, 9)",
    "DECLARE ~d CURSOR FOR SELECT '%'",
    "CREATE TEMP TABLE ~t AS SELECT '%' AS owner",
    "CREATE TEMP TABLE ~d ON COMMIT DROP AS SELECT '%' AS owner",
    "CREATE TEMP VIEW ~v AS SELECT '%' AS owner",
    "CREATE TEMP SEQUENCE ~q",
    "CREATE FUNCTION pg_temp.~f() RETURNS int RETURN #",
    "SELECT '%' AS owner INTO TEMP ~i",
    "LISTEN ~n",
    "SELECT pg_advisory_lock(#)",
    "SELECT (#::bigint).pg_advisory_lock",
    "SELECT x.pg_try_advisory_lock FROM generate_series(#::bigint, #) AS x",
    "SELECT pg_try_advisory_lock_shared(#)",
    "SELECT pg_advisory_xact_lock(#)",
    "SELECT setseed(0.#)",
    "SELECT (0.#::float8).setseed",
    "SELECT nextval('public.counter') > 0",
    // No reset removes it, so no function may do it.
    "LOAD 'auto_explain'",
];

/// Settings on which the meaning of a text depends, and what may set any.
const DECIDE_MEANING: [&str; 7] = [
    "'geqo_' ||",
    "UPDATE pg_settings",
    "TimeZone",
    "DateStyle",
    "IntervalStyle",
    "client_encoding",
    "standard_conforming_strings",
];

/// Front of the names of what is left unseen.
pub const UNSEEN: &str = "u";
/// Front of the names of what is left by a text.
pub const SEEN: &str = "s";

/// Rows of `texts`: what has no name.
pub fn texts() -> String {
    let mut rows = String::new();
    for who in Who::BOTH {
        for (n, text) in LEAVINGS.iter().enumerate() {
            let text = who.says(text).replace('\'', "''");
            rows.push_str(&format!(
                "INSERT INTO texts VALUES ('{who:?}', {n}, '{text}'); "
            ));
        }
    }
    rows
}

/// A request that leaves something. `nth` makes names unique of what is left unseen.
pub fn leaving(random: &mut StdRng, who: Who, nth: &mut u32) -> Cycle {
    let n = random.random_range(0..LEAVINGS.len());
    let pattern = LEAVINGS[n];
    let is_hidden = once_in(random, 2) && !pattern.starts_with("LOAD");
    if is_hidden {
        *nth += 1;
        let text = who.says(&pattern.replace('~', &format!("{UNSEEN}{nth}")));
        return hidden(random, (who, n), &text, pattern.contains('~'));
    }
    let kind = if pattern.starts_with("LOAD") {
        Kind::Loads
    } else if DECIDE_MEANING.iter().any(|name| pattern.contains(name)) {
        Kind::Unsettling
    } else {
        Kind::Plain
    };
    let text = who.says(&pattern.replace('~', SEEN));
    match random.random_range(0..4) {
        0 => Cycle::extended(kind, unnamed(&text, &[])),
        1 if pattern.contains("set_config('geqo_threshold'") => {
            let text = "SELECT set_config('geqo_threshold', $1, false)";
            Cycle::extended(kind, unnamed(text, &[who.says("#")]))
        }
        _ => Cycle::query(kind, text),
    }
}

fn hidden(random: &mut StdRng, (who, n): (Who, usize), text: &str, has_name: bool) -> Cycle {
    let quoted = text.replace('\'', "''");
    let sql = match random.random_range(0..8) {
        0 => format!("DO 'BEGIN EXECUTE ''{}''; END'", quoted.replace('\'', "''")),
        1 => format!("CALL public.does('{quoted}')"),
        2 => format!("INSERT INTO public.trap VALUES ('{quoted}')"),
        3 => format!("INSERT INTO public.late VALUES ('{quoted}')"),
        4 if !has_name => format!("SELECT * FROM public.leaves WHERE who = '{who:?}' AND n = {n}"),
        5 => {
            let values = [text.to_owned()];
            return Cycle::extended(Kind::Hidden, unnamed("SELECT public.runs($1)", &values));
        }
        6 => {
            let name = one(random, &["work_mem", "app.name", "TimeZone", "lc_monetary"]);
            let value = if name == "work_mem" { "777" } else { "POSIX" };
            let call = Message::FunctionCall("sets(text, text)", vec![name, value]);
            return Cycle {
                kind: Kind::Hidden,
                messages: vec![call],
            };
        }
        _ => return Cycle::query(Kind::Hidden, in_function(text.as_bytes())),
    };
    Cycle::query(Kind::Hidden, sql)
}

/// Parse, Bind and Execute of an unnamed statement.
fn unnamed(sql: &str, values: &[String]) -> [Message; 3] {
    let values = values.iter().map(|value| value.clone().into_bytes());
    [
        Message::Parse(Vec::new(), sql.into()),
        Message::Bind(Vec::new(), Vec::new(), values.collect()),
        Message::Execute(Vec::new(), 0),
    ]
}
