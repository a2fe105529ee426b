//! Portals and statements that are not what they seem. Either a message after an error was skipped (C3), or a cursor
//! of SQL is a portal of the protocol (C4).

use pgpalisade_judges::mediation::conversation::Session;

use super::script::{Script, Worth, check, grouped, pairs, payloads};

/// Failures before the skipped messages: in a Parse, in a Bind, in an Execute.
fn failures() -> [(&'static str, Script); 3] {
    let none = Script::of(Session::Bare);
    [
        ("a failing Parse", none.clone().parse("e", "SELEC")),
        ("a failing Bind", none.clone().bind("e", "nowhere")),
        (
            "a failing Execute",
            none.parse("e", "SELECT 1/0").bind("e", "e").execute("e"),
        ),
    ]
}

/// C3: Parse or Bind of a read that the server has skipped.
#[test]
fn c3_what_is_skipped_behind_an_error() {
    let mut scripts = Vec::new();
    for session in [Session::Bare, Session::Neighbour] {
        for ((what, failure), payload) in pairs(&failures(), &payloads(session)) {
            let made = Script::of(session).parse("", payload).sync();
            let skipped = made.then(&failure).parse("", "SELECT 1").sync();
            let executed = skipped.bind("", "").execute("").sync();
            scripts.extend(grouped(&format!("{what}, a statement"), executed));
            // In a block, with a savepoint before the error: the portal survives it.
            let bound = Script::of(session)
                .query("BEGIN")
                .parse("w", payload)
                .parse("r", "SELECT 1")
                .parse("save", "SAVEPOINT s")
                .parse("back", "ROLLBACK TO s")
                .bind("p", "w")
                .bind("save", "save")
                .execute("save")
                .sync()
                .then(&failure)
                .close_portal("p")
                .bind("p", "r")
                .sync()
                .bind("back", "back")
                .execute("back")
                .execute("p")
                .sync()
                .query("COMMIT");
            scripts.extend(grouped(&format!("{what}, a portal"), bound));
            let named = Script::of(session)
                .parse("s", payload)
                .sync()
                .then(&failure)
                .close_statement("s")
                .parse("s", "SELECT 1")
                .sync()
                .bind("", "s")
                .execute("")
                .sync();
            scripts.extend(grouped(&format!("{what}, a named statement"), named));
        }
    }
    check(Worth::Writes, scripts);
}

/// C4: a portal of the protocol is a cursor of SQL.
#[test]
fn c4_a_portal_as_a_cursor() {
    let mut scripts = Vec::new();
    let runs = [
        "FETCH p",
        "FETCH ALL FROM p",
        "MOVE p",
        "MOVE ALL FROM p",
        "FETCH \"p\"",
    ];
    for session in [Session::Bare, Session::Elsewhere, Session::Neighbour] {
        for (run, payload) in pairs(&runs, &payloads(session)) {
            let bound = Script::of(session)
                .query("BEGIN")
                .parse("s", payload)
                .bind("p", "s");
            let simple = bound.clone().sync().query(run).query("COMMIT");
            scripts.extend(grouped(&format!("{run}, simple"), simple));
            let extended = bound.clone().extended(run).sync().query("COMMIT");
            scripts.extend(grouped(&format!("{run}, extended"), extended));
            let prepared = Script::of(session)
                .parse("f", run)
                .sync()
                .query("BEGIN")
                .parse("s", payload)
                .bind("p", "s")
                .bind("", "f")
                .execute("")
                .sync()
                .query("COMMIT");
            // A Parse of FETCH does not look up the portal, so it may come first.
            scripts.extend(grouped(&format!("{run}, prepared before"), prepared));
            let outside = Script::of(session)
                .parse("s", payload)
                .bind("p", "s")
                .extended(run)
                .sync();
            scripts.extend(grouped(
                &format!("{run}, in a pipeline without a block"),
                outside,
            ));
        }
    }
    check(Worth::Writes, scripts);
}
