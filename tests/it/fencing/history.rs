//! `SHOW fencing.history`: earlier leaders, in any session.

use pgpalisade_test_servers::machine::{wait_for, wait_until};
use pgpalisade_test_servers::stage::Stage;
use pgpalisade_test_servers::wire::{Batch, Wire, trusted};
use serde_json::{Value, json};

use super::{SETUP, assert_refused, take_over};

fn history(session: &mut Wire) -> Vec<Value> {
    let rows = session.rows("SHOW fencing.history");
    serde_json::from_str(&rows[0][0]).unwrap_or_else(|error| panic!("{error}: {rows:?}"))
}

/// The history once it has `takeovers` takeovers: they are recorded after their replies.
fn history_of(session: &mut Wire, takeovers: usize) -> Vec<Value> {
    wait_for("the takeovers to be noted", || {
        let all = history(session);
        let is_noted = |one: &Value| one["outcome"] == "complete";
        (all.len() == takeovers && all.iter().all(is_noted)).then_some(all)
    })
}

#[test]
fn it_tells_of_the_scopes_of_the_session() {
    let stage = Stage::with(SETUP);
    let mut anybody = stage.plain();
    assert_eq!(history(&mut anybody), [] as [Value; 0]);
    let mut old = take_over(&stage, "33");
    old.ok("BEGIN; INSERT INTO jobs VALUES (1)");
    let mut new = take_over(&stage, "34");
    let _other = take_over(&stage, "other=7");
    let all = history_of(&mut anybody, 2);
    let facts = |one: &Value| {
        let of = |name: &str| one[name].clone();
        [
            of("scope"),
            of("from"),
            of("to"),
            of("sessions"),
            of("transactions"),
        ]
    };
    let ended = json!(["default", 33, 34, 1, 1]);
    assert_eq!(json!(facts(&all[0])), ended, "the newest first");
    let found = json!(facts(&all[1]));
    assert_eq!(found, json!(["default", null, 33, 0, 0]), "{all:?}");
    assert!(all[0]["raised_by"].as_str().unwrap().contains("postgres@"));
    // With a token the session's scopes count, otherwise the scope of a bare number.
    let mut both = take_over(&stage, "default=34,other=7");
    let scopes: Vec<Value> = history_of(&mut both, 3)
        .iter()
        .map(|one| one["scope"].clone())
        .collect();
    assert_eq!(json!(scopes), json!(["other", "default", "default"]));
    anybody.ok("SET fencing.scope = other");
    assert_eq!(history(&mut anybody)[0]["to"], 7);
    // PostgreSQL's copy can be read as a table, even in a transaction.
    new.ok("BEGIN");
    new.rows("SHOW fencing.history");
    let read = "SELECT \"from\", \"to\" FROM json_to_recordset(current_setting('fencing.history')::json) \
                AS history(\"from\" int, \"to\" int)";
    assert_eq!(new.rows(read)[0], ["33", "34"]);
    new.ok("COMMIT");
}

/// Each Execute queries again, even of a statement prepared long ago.
#[test]
fn a_prepared_statement_tells_what_is_so_by_now() {
    let stage = Stage::with(SETUP);
    let mut watcher = stage.plain();
    let parse = Batch::new().parse("h", "SHOW fencing.history").sync();
    watcher.run_all(&parse);
    let mut told = || {
        let execute = Batch::new().bind("", "h", &[]).execute("", 0).sync();
        let answer = watcher.run_all(&execute);
        let row = answer.iter().find(|message| message.tag == b'D');
        row.expect("a row").row()[0].clone()
    };
    assert_eq!(told(), "[]");
    let _leader = take_over(&stage, "33");
    wait_until("the takeover to be noted", || told().contains("\"to\":33"));
}

/// PostgreSQL refuses it in a failed transaction, like everything.
#[test]
fn a_failed_transaction_tells_nothing() {
    let stage = Stage::with(SETUP);
    let mut session = stage.plain();
    session.ok("BEGIN");
    session.query("SELECT 1/0");
    let answer = session.query("SHOW fencing.history");
    assert_refused(&answer, "25P02", b'E');
}

/// PostgreSQL reads the history in the session's encoding, whatever characters a name has.
#[test]
fn names_of_all_alphabets_are_told() {
    let stage = Stage::with(SETUP);
    let name = "調度\u{1F600}京\"\\' --";
    let leader = trusted(&[("application_name", name), ("fencing.token", "33")]);
    let _leader = Wire::login(&stage.proxy.endpoint(), &leader);
    let mut session = stage.plain();
    let told = history_of(&mut session, 1);
    let by = told[0]["raised_by"].as_str().unwrap();
    assert!(by.contains(name), "{by}");
    let read = "SELECT current_setting('fencing.history')::json -> 0 ->> 'raised_by' LIKE '%調度%'";
    session.rows("SHOW fencing.history");
    assert_eq!(session.rows(read), [["t"]]);
    for encoding in [
        "SJIS", "GBK", "GB18030", "BIG5", "UHC", "JOHAB", "EUC_JP", "LATIN1",
    ] {
        session.ok(&format!(
            "SET client_encoding = '{encoding}'; SET backslash_quote = on"
        ));
        assert_eq!(history(&mut session), told, "{encoding}");
    }
}
