//! The query of docs/elections.md finds rows written around the proxy, and no others.

use pgpalisade_test_servers::machine::{repository, wait_until};
use pgpalisade_test_servers::programs::{feed, program, stdout};
use pgpalisade_test_servers::stage::Stage;

const SETUP: &str = "CREATE TABLE outbox (item text,
    token bigint DEFAULT nullif(current_setting('fencing.token', true), '')::bigint,
    written_at timestamptz DEFAULT clock_timestamp())";

/// Output of psql for the query.
fn late_rows(stage: &Stage) -> String {
    let page = std::fs::read_to_string(repository().join("docs/elections.md")).unwrap();
    let (_, query) = page.split_once("\\set history").unwrap();
    let (query, _) = query.split_once("```").unwrap();
    let mut psql = program("psql", &stage.proxy.endpoint());
    psql.args(["-XAt", "-v", "ON_ERROR_STOP=1"]);
    let output = feed(
        psql,
        &format!("SET timezone = 'UTC';\n\\set history{query}"),
    );
    assert!(output.status.success(), "{output:?}");
    stdout(&output)
}

/// Writes as leader, once the takeover is recorded.
fn lead(stage: &Stage, token: u32) {
    let mut leader = stage.leader(&token.to_string());
    let mut looking = stage.plain();
    let noted = format!("\"to\":{token},");
    wait_until("the takeover to be noted", || {
        let history = &looking.rows("SHOW fencing.history")[0][0];
        history.contains(&noted) && !history.contains("incomplete")
    });
    leader.ok(&format!("INSERT INTO outbox VALUES ('by leader {token}')"));
}

#[test]
fn rows_written_around_the_proxy_are_found() {
    let stage = Stage::with(SETUP);
    stage.sql("INSERT INTO outbox VALUES ('before', 1, '2026-01-01')");
    lead(&stage, 33);
    lead(&stage, 34);
    assert_eq!(late_rows(&stage), "SET\n");
    stage.sql("INSERT INTO outbox VALUES ('around', 33), ('nobody', NULL), ('now', 34)");
    let found = late_rows(&stage);
    let rows: Vec<&str> = found.lines().skip(1).collect();
    let [row] = rows[..] else { panic!("{found}") };
    assert!(
        row.starts_with("around|33|") && row.ends_with("|34"),
        "{row}"
    );
}
