//! Tokens that a transaction has left behind: moved to the next (H1), or laid down (L2).

use pgpalisade_tests::mediation::conversation::{Message, Session};

use super::script::{HIDDEN, Script, Worth, check, grouped};

/// H1: a transaction that has written under one token goes on under the next, which another session holds by then.
#[test]
fn h1_a_transaction_that_moves_to_another_token() {
    let mut scripts = Vec::new();
    let next = [
        "SET fencing.token = '@1'",
        "SET LOCAL fencing.token = '@1'",
        "SELECT set_config('fencing.token', '@1', false)",
    ];
    for written in ["INSERT INTO log VALUES ('x')", "SELECT w()", "TABLE v"] {
        for (set, by) in next
            .into_iter()
            .flat_map(|set| ["@1", "@2"].map(|by| (set, by)))
        {
            for texts in [
                &["BEGIN", written, set][..],
                &["BEGIN", written, "SELECT 1", set],
                &["BEGIN", "SAVEPOINT s", "RELEASE s", written, set],
                &["BEGIN", "SAVEPOINT s", written, "SAVEPOINT t", set],
                &[
                    "BEGIN",
                    written,
                    "SAVEPOINT s",
                    "SELECT 1/0",
                    "ROLLBACK TO s",
                    set,
                ],
                &["BEGIN", written, "SAVEPOINT s", set, "ROLLBACK TO s"],
            ] {
                let what = format!("{}; then {by}", texts.join("; "));
                let begun = Script::of(Session::Holder);
                let simple = begun.clone().queries(texts);
                let parts = texts.iter().map(|sql| sql.as_bytes().to_vec()).collect();
                let text = begun.clone().say(Message::Query(parts));
                let pipeline = texts
                    .iter()
                    .fold(begun, |script, sql| script.extended(*sql))
                    .sync();
                for script in simple.groupings().into_iter().chain([text, pipeline]) {
                    scripts.push((
                        what.clone(),
                        script.wait().declare(by).query("COMMIT").wait(),
                    ));
                }
            }
        }
    }
    check(Worth::NotAsked, scripts);
}

/// L2: the token is laid down, and what stands behind it in the same text or transaction still writes.
#[test]
fn l2_what_writes_after_the_token_is_laid_down() {
    let mut scripts = Vec::new();
    let down = [
        "SET fencing.token = ''",
        "SELECT set_config('fencing.token', '', false)",
        "SET SESSION fencing.token TO ''",
    ];
    for (down, hidden) in down
        .into_iter()
        .flat_map(|down| HIDDEN.map(|hidden| (down, hidden)))
    {
        let held = format!(
            "DECLARE h CURSOR WITH HOLD FOR {}",
            if hidden == "TABLE v" {
                "SELECT * FROM v"
            } else {
                hidden
            }
        );
        let local = down
            .replace("SET fencing", "SET LOCAL fencing")
            .replace("false", "true");
        for texts in [
            &[down, hidden][..],
            &["BEGIN", down, hidden, "COMMIT"],
            &["BEGIN", &local, hidden, "COMMIT"],
            &["BEGIN", "SELECT 1", down, hidden, "COMMIT"],
            &["BEGIN", &held, down, "COMMIT"],
            &[
                "BEGIN",
                "SAVEPOINT s",
                down,
                "SAVEPOINT t",
                hidden,
                "RELEASE s",
                "COMMIT",
            ],
            &["BEGIN", down, "COMMIT", hidden],
        ] {
            let what = texts.join("; ");
            let begun = Script::of(Session::Holder);
            let parts = texts.iter().map(|sql| sql.as_bytes().to_vec()).collect();
            scripts.push((
                format!("{what}, one text"),
                begun.clone().say(Message::Query(parts)),
            ));
            scripts.extend(grouped(&what, begun.clone().queries(texts)));
            let pipeline = texts
                .iter()
                .fold(begun, |script, sql| script.extended(*sql))
                .sync();
            scripts.extend(grouped(&format!("{what}, a pipeline"), pipeline));
        }
    }
    check(Worth::NotAsked, scripts);
}
