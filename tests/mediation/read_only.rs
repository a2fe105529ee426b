//! Read-only mode that is off and not reported yet: C6, C7, and findings of the oracle.

use pgpalisade_judges::mediation::conversation::Session;

use super::script::{HIDDEN, Script, Worth, check, grouped, pairs};

/// Sessions that may change nothing at all.
const STRICT: [Session; 3] = [Session::Bare, Session::Elsewhere, Session::Ungoverned];

const LIFTS: [&str; 3] = [
    "SELECT sets('default_transaction_read_only', 'off')",
    "SELECT runs('SET default_transaction_read_only = off')",
    "SELECT runs('SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE')",
];

/// C6: a function switches the default off, and a hidden write begins before the server has reported it.
#[test]
fn c6_a_default_that_is_on_its_way() {
    let mut scripts = Vec::new();
    for session in STRICT {
        for (lift, hidden) in pairs(&LIFTS, &HIDDEN) {
            let begun = Script::of(session);
            for texts in [
                &["BEGIN", lift, "COMMIT", hidden][..],
                &["BEGIN", "SAVEPOINT s", lift, "RELEASE s", "COMMIT", hidden],
                &["BEGIN", lift, "COMMIT AND CHAIN", hidden, "COMMIT"],
                &["BEGIN", lift, "COMMIT", "BEGIN", hidden, "COMMIT"],
                &[
                    "BEGIN",
                    "SELECT 1",
                    lift,
                    "SHOW work_mem",
                    "COMMIT",
                    "SHOW work_mem",
                    hidden,
                ],
                &[lift, hidden],
            ] {
                scripts.extend(grouped(&texts.join("; "), begun.clone().queries(texts)));
                let pipeline = begun.clone().pipeline(texts);
                scripts.extend(grouped(
                    &format!("{}, a pipeline", texts.join("; ")),
                    pipeline,
                ));
                let text = begun.clone().text(texts);
                scripts.push((format!("{}, one text", texts.join("; ")), text));
            }
        }
    }
    check(Worth::NotAsked, scripts);
}

/// C7: an error while the proxy knows of no request; afterwards it must not mistake one reply for another.
#[test]
fn c7_a_flush_with_a_body() {
    let lift = LIFTS[0];
    let mut scripts = Vec::new();
    for behind in [&["SELECT 1"][..], &["SELECT 1", "SELECT 1"], &[]] {
        for hidden in ["SELECT w()", "TABLE v"] {
            let begun = Script::of(Session::Bare)
                .malformed(b'H', b"x")
                .wait()
                .queries(behind)
                .sync();
            for texts in [
                &["BEGIN", lift, "COMMIT", hidden][..],
                &[lift, "SHOW work_mem", hidden],
                &[lift, "SHOW work_mem", "SHOW work_mem", hidden, "COMMIT"],
            ] {
                let what = format!("{} skipped; {}", behind.len(), texts.join("; "));
                scripts.extend(grouped(&what, begun.clone().queries(texts)));
            }
        }
    }
    check(Worth::Writes, scripts);
}

/// Found by the oracle: a session has a startup token that allows no write here, and its first request follows a
/// message that does not wait. The session is not read-only yet.
#[test]
fn n1_the_first_request_behind_a_sync() {
    let mut scripts = Vec::new();
    for hidden in HIDDEN {
        let begun = Script::of(Session::Elsewhere).sync();
        scripts.extend(grouped(hidden, begun.clone().query(hidden)));
        scripts.extend(grouped(hidden, begun.extended(hidden).sync()));
    }
    check(Worth::Writes, scripts);
}

/// Found by core conversations: a default set inside a transaction applies to later ones, and the current one keeps
/// its mode.
#[test]
fn n7_a_default_that_is_for_later_transactions() {
    let mut scripts = Vec::new();
    for default in [
        "SET default_transaction_read_only = on",
        "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY",
        "SELECT set_config('default_transaction_read_only', 'on', false)",
    ] {
        for hidden in ["SELECT w()", "TABLE v"] {
            for texts in [
                &["BEGIN", default, "SET fencing.token = ''", hidden, "COMMIT"][..],
                &[
                    "BEGIN",
                    default,
                    "SET LOCAL fencing.token = ''",
                    hidden,
                    "COMMIT",
                ],
                &[
                    "BEGIN",
                    default,
                    "COMMIT AND CHAIN",
                    "SET fencing.token = ''",
                    hidden,
                    "COMMIT",
                ],
            ] {
                let begun = Script::of(Session::Holder);
                scripts.extend(grouped(&texts.join("; "), begun.clone().queries(texts)));
                let pipeline = begun.pipeline(texts);
                scripts.extend(grouped(
                    &format!("{}, a pipeline", texts.join("; ")),
                    pipeline,
                ));
            }
        }
    }
    check(Worth::NotAsked, scripts);
}

/// Found by core conversations: a default is switched on and undone before the server reports it, so that it reports
/// nothing.
#[test]
fn n10_a_default_that_is_undone_unreported() {
    let mut scripts = Vec::new();
    let on = "SET default_transaction_read_only = on";
    for texts in [
        &[on, "SELECT sets('default_transaction_read_only', 'off')"][..],
        &[on, "SELECT runs('SET default_transaction_read_only = off')"],
        &["BEGIN", "SAVEPOINT s", on, "ROLLBACK TO s", "COMMIT"],
        &[
            "BEGIN",
            "SET LOCAL default_transaction_read_only = on",
            "COMMIT",
        ],
    ] {
        let begun = Script::of(Session::Holder);
        let text = begun.clone().text(texts);
        let pipeline = begun.pipeline(texts);
        for undone in [text, pipeline] {
            let laid_down = undone.wait().query("SET fencing.token = ''").wait();
            for hidden in HIDDEN {
                let what = format!("{}; {hidden}", texts.join("; "));
                scripts.push((what.clone(), laid_down.clone().query(hidden)));
                scripts.push((what, laid_down.clone().extended(hidden).sync()));
            }
        }
    }
    check(Worth::NotAsked, scripts);
}
