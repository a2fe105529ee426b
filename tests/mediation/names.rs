//! Names that PostgreSQL interprets differently: truncated to 63 bytes (C1), redefined (C5), or not compared by their
//! bytes (N4).

use pgpalisade_judges::mediation::conversation::{Name, Session};

use super::script::{Script, Worth, check, grouped, pairs, payloads};

/// Pairs of names that PostgreSQL considers equal.
fn cut_names() -> Vec<(String, String)> {
    let stem = "n".repeat(63);
    let longer = |tail: &str| format!("{stem}{tail}");
    let umlaut = format!("{}\u{e4}", "n".repeat(62));
    let accent = format!("{}\u{e0}", "n".repeat(62));
    vec![
        (stem.clone(), longer("a")),
        (longer("a"), stem.clone()),
        (longer("a"), longer("b")),
        (longer(&"c".repeat(137)), longer("a")),
        // Truncated in the middle of a letter: both letters begin with the same byte.
        (umlaut, accent),
    ]
}

/// Prepares a read under one name and a write under the other.
fn prepared(begun: Script, [one, other]: &[Name; 2], payload: &str) -> Script {
    begun
        .parse(one.clone(), "SELECT 1")
        .sync()
        .close_statement(other.clone())
        .parse(other.clone(), payload)
}

/// The same with portals, of which it executes the first.
fn as_portals(begun: Script, [one, other]: &[Name; 2], payload: &str) -> Script {
    begun
        .query("BEGIN")
        .parse("r", "SELECT 1")
        .parse("w", payload)
        .bind(one.clone(), "r")
        .close_portal(other.clone())
        .bind(other.clone(), "w")
        .execute(one.clone())
        .sync()
        .query("COMMIT")
}

/// C1: a statement prepared under one of two names that are equal in 63 bytes, and executed under the other.
#[test]
fn c1_statements_whose_names_are_cut() {
    let (mut asked, mut rest) = (Vec::new(), Vec::new());
    for session in [Session::Bare, Session::Neighbour] {
        for ((one, other), payload) in pairs(&cut_names(), &payloads(session)) {
            let names = [&one, &other].map(|name| Name::from(name.as_str()));
            let made = prepared(Script::of(session), &names, payload);
            let bound = made.clone().bind("", one.clone()).execute("").sync();
            asked.extend(grouped("Bind", bound));
            // SQL truncates a name before a partial letter, the protocol inside of it: the two names then differ.
            let replaced = made.sync().query(format!("EXECUTE \"{one}\""));
            rest.extend(grouped("EXECUTE", replaced));
            let by_sql = Script::of(session)
                .query(format!("PREPARE \"{one}\" AS SELECT 1"))
                .query(format!("DEALLOCATE \"{other}\""))
                .query(format!("PREPARE \"{other}\" AS {payload}"))
                .query(format!("EXECUTE \"{one}\""));
            asked.extend(grouped("SQL", by_sql));
        }
    }
    check(Worth::Writes, asked);
    check(Worth::NotAsked, rest);
}

/// C1: the same with portals.
#[test]
fn c1_portals_whose_names_are_cut() {
    let mut scripts = Vec::new();
    for session in [Session::Bare, Session::Neighbour] {
        for ((one, other), payload) in pairs(&cut_names(), &payloads(session)) {
            let script = as_portals(Script::of(session), &[one.into(), other.into()], payload);
            scripts.extend(grouped("a portal", script));
        }
    }
    check(Worth::Writes, scripts);
}

/// C1: the server converts a name before it truncates it. 63 bytes of LATIN1 become 64, so the last one does not count.
#[test]
fn c1_names_that_are_cut_after_their_conversion() {
    let mut scripts = Vec::new();
    let name = |last: u8| [&[b'n'; 61][..], &[0xe4, last]].concat();
    let names = [name(b'a'), name(b'b')];
    for session in [Session::Bare, Session::Neighbour] {
        let begun = Script::of(session).query("SET client_encoding = 'LATIN1'");
        for payload in payloads(session) {
            let made = prepared(begun.clone(), &names, payload);
            let bound = made.bind("", names[0].clone()).execute("").sync();
            scripts.extend(grouped("a statement", bound));
            let portal = as_portals(begun.clone(), &names, payload);
            scripts.extend(grouped("a portal", portal));
        }
    }
    check(Worth::Writes, scripts);
}

const WAYS_TO_GO: [&str; 4] = [
    "DEALLOCATE z",
    "DEALLOCATE ALL",
    "DEALLOCATE PREPARE z",
    "DISCARD ALL",
];

/// C5: a name is redefined before it is executed, in one text and in one pipeline.
#[test]
fn c5_a_name_that_is_made_anew() {
    let mut scripts = Vec::new();
    for session in [Session::Bare, Session::Neighbour] {
        for (gone, payload) in pairs(&WAYS_TO_GO, &payloads(session)) {
            let prepare = format!("PREPARE z AS {payload}");
            let begun = Script::of(session).query("PREPARE z AS SELECT 1");
            if gone != "DISCARD ALL" {
                let texts = [gone, &prepare, "EXECUTE z"];
                let text = begun.clone().text(&texts);
                scripts.extend(grouped(&format!("{gone}, one text"), text));
                let pipeline = begun.clone().pipeline(&texts);
                scripts.extend(grouped(&format!("{gone}, one pipeline"), pipeline));
                let bound = begun.clone().extended(gone).extended(prepare.as_str());
                let bound = bound.bind("", "z").execute("").sync();
                scripts.extend(grouped(&format!("{gone}, bound in the pipeline"), bound));
            }
            let piped = begun.clone().queries(&[gone, &prepare, "EXECUTE z"]);
            scripts.extend(grouped(&format!("{gone}, several texts"), piped));
            let bound = begun
                .queries(&[gone, &prepare])
                .bind("", "z")
                .execute("")
                .sync();
            scripts.extend(grouped(&format!("{gone}, bound"), bound));
        }
        let [payload, ..] = payloads(session);
        let parsed = Script::of(session)
            .query(format!("PREPARE z AS {payload}"))
            .parse("z", "SELECT 1")
            .sync()
            .bind("", "z")
            .execute("")
            .sync();
        scripts.extend(grouped("PREPARE, and a Parse that fails", parsed));
    }
    check(Worth::Writes, scripts);
}

/// Statements that clear the token, or change it to the next.
const STEERING: [&str; 6] = [
    "SET fencing.token = ''",
    "SELECT set_config('fencing.token', '', false)",
    "SET fencing.token = '@1'",
    "RESET ALL",
    "DISCARD ALL",
    "ROLLBACK",
];

/// N4, found by the oracle: the statement that clears the token has a name that the server may read differently.
#[test]
fn n4_a_token_laid_down_by_a_name_beyond_ascii() {
    let mut scripts = Vec::new();
    let longer = format!("{}\u{e4}", "n".repeat(62));
    for (text, name) in STEERING
        .into_iter()
        .flat_map(|text| ["\u{e4}", longer.as_str()].map(|name| (text, name)))
    {
        let after = Script::of(Session::Holder)
            .query("SELECT w()")
            .query("COMMIT");
        for begun in [
            Script::of(Session::Holder),
            Script::of(Session::Holder).queries(&["BEGIN", "SET fencing.token = '@1'"]),
        ] {
            let by_statement = begun
                .clone()
                .parse(name, text)
                .bind("", name)
                .execute("")
                .sync();
            scripts.extend(grouped("a statement", by_statement.then(&after)));
            let by_portal = begun.parse("", text).bind(name, "").execute(name).sync();
            scripts.extend(grouped("a portal", by_portal.then(&after)));
        }
    }
    check(Worth::NotAsked, scripts);
}

/// The same by SQL, which also runs statements and portals of the protocol.
#[test]
fn n4_a_token_laid_down_by_execute_and_fetch() {
    let mut scripts = Vec::new();
    for (text, name) in STEERING
        .into_iter()
        .flat_map(|text| ["s", "\u{e4}"].map(|name| (text, name)))
    {
        let begun = Script::of(Session::Holder).queries(&["BEGIN", "SET fencing.token = '@1'"]);
        let parsed = begun.parse(name, text).sync();
        let execute = format!("EXECUTE \"{name}\"");
        for run in [
            parsed.clone().query(execute.as_str()),
            parsed.clone().extended(execute.as_str()).sync(),
            parsed
                .clone()
                .query(format!("PREPARE t AS {execute}"))
                .query("EXECUTE t"),
            parsed
                .clone()
                .parse("t", execute.as_str())
                .sync()
                .query("EXECUTE t"),
            parsed
                .clone()
                .bind(name, name)
                .sync()
                .query(format!("FETCH ALL FROM \"{name}\"")),
            parsed
                .clone()
                .bind(name, name)
                .extended(format!("MOVE ALL FROM \"{name}\""))
                .sync(),
        ] {
            let after = run.queries(&["SELECT w()", "COMMIT", "SELECT w()"]);
            scripts.extend(grouped(&execute, after));
        }
    }
    check(Worth::NotAsked, scripts);
}
