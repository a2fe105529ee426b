//! Names that mean something else to PostgreSQL: cut to 63 bytes (C1), or made anew (C5).

use pgpalisade_tests::mediation::conversation::{Message, Session};

use super::script::{Script, Worth, check, grouped, payloads};

/// Pairs of names that PostgreSQL takes for one.
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
        // Cut in the middle of a letter: both letters begin with the same byte.
        (umlaut, accent),
    ]
}

/// C1: a statement under one of two names that are equal in 63 bytes, executed by the other.
#[test]
fn c1_statements_whose_names_are_cut() {
    let mut scripts = Vec::new();
    for (session, payload) in [Session::Bare, Session::Neighbour]
        .into_iter()
        .flat_map(|session| payloads(session).map(|payload| (session, payload)))
    {
        for (one, other) in cut_names() {
            let made = Script::of(session)
                .parse(one.clone(), "SELECT 1")
                .sync()
                .close_statement(other.clone())
                .parse(other.clone(), payload);
            let bound = made.clone().bind("", one.clone()).execute("").sync();
            scripts.extend(grouped("Bind", bound));
            let replaced = made.sync().query(format!("EXECUTE \"{one}\""));
            scripts.extend(grouped("EXECUTE", replaced));
            let by_sql = Script::of(session)
                .query(format!("PREPARE \"{one}\" AS SELECT 1"))
                .query(format!("DEALLOCATE \"{other}\""))
                .query(format!("PREPARE \"{other}\" AS {payload}"))
                .query(format!("EXECUTE \"{one}\""));
            scripts.extend(grouped("SQL", by_sql));
        }
    }
    // SQL cuts a name before a letter, and the protocol through it: the two are not the same then.
    let mixed = |(what, _): &(String, Script)| what.starts_with("EXECUTE");
    let (rest, asked) = scripts.into_iter().partition(mixed);
    check(Worth::Writes, asked);
    check(Worth::NotAsked, rest);
}

/// C1: the same with portals.
#[test]
fn c1_portals_whose_names_are_cut() {
    let mut scripts = Vec::new();
    for (session, payload) in [Session::Bare, Session::Neighbour]
        .into_iter()
        .flat_map(|session| payloads(session).map(|payload| (session, payload)))
    {
        for (one, other) in cut_names() {
            let script = Script::of(session)
                .query("BEGIN")
                .parse("r", "SELECT 1")
                .parse("w", payload)
                .bind(one.clone(), "r")
                .close_portal(other.clone())
                .bind(other, "w")
                .execute(one)
                .sync()
                .query("COMMIT");
            scripts.extend(grouped("a portal", script));
        }
    }
    check(Worth::Writes, scripts);
}

/// C5: a name stands for something else before it is executed, in one text and in one pipeline.
#[test]
fn c5_a_name_that_is_made_anew() {
    let mut scripts = Vec::new();
    for (session, payload) in [Session::Bare, Session::Neighbour]
        .into_iter()
        .flat_map(|session| payloads(session).map(|payload| (session, payload)))
    {
        for gone in [
            "DEALLOCATE z",
            "DEALLOCATE ALL",
            "DEALLOCATE PREPARE z",
            "DISCARD ALL",
        ] {
            let prepare = format!("PREPARE z AS {payload}");
            let begun = Script::of(session).query("PREPARE z AS SELECT 1");
            if gone != "DISCARD ALL" {
                let text = begun.clone().say(Message::Query(
                    [gone, &prepare, "EXECUTE z"]
                        .map(|sql| sql.as_bytes().to_vec())
                        .to_vec(),
                ));
                scripts.extend(grouped(&format!("{gone}, one text"), text));
                let pipeline = begun
                    .clone()
                    .extended(gone)
                    .extended(prepare.as_str())
                    .extended("EXECUTE z")
                    .sync();
                scripts.extend(grouped(&format!("{gone}, one pipeline"), pipeline));
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
