//! `pgpalisade audit`: whoever has written around the proxy is found, and nobody else.

use std::process::Output;

use pgpalisade_tests::machine::wait_for;
use pgpalisade_tests::programs::connect_by_environment;
use pgpalisade_tests::proxy::subcommand;
use pgpalisade_tests::stage::Stage;

const SETUP: &str = r#"CREATE SCHEMA "Its own"; CREATE TABLE "Its own".outbox (item text,
    token bigint DEFAULT nullif(current_setting('fencing.token', true), '')::bigint,
    written_at timestamptz DEFAULT clock_timestamp())"#;
const TABLE: &str = r#""Its own".outbox"#;

/// Of one clock.
const AT_ONCE: [&str; 2] = ["--clocks-within", "0s"];

fn audit(stage: &Stage, arguments: &[&str]) -> (Option<i32>, String) {
    audit_as("postgres", stage, arguments)
}

fn audit_as(user: &str, stage: &Stage, arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = subcommand("audit");
    connect_by_environment(&mut command, &stage.proxy.endpoint());
    command.env("PGUSER", user).arg(TABLE).args(arguments);
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().unwrap();
    let said = [stdout, stderr].map(|said| String::from_utf8(said).unwrap());
    (status.code(), said.concat())
}

/// Writes as leader, once the takeover is noted, so that what was written can be judged.
fn lead(stage: &Stage, token: u32) {
    let mut leader = stage.leader(&token.to_string());
    let mut looking = stage.plain();
    wait_for("the takeover to be noted", || {
        let history = &looking.rows("SHOW fencing.history")[0][0];
        let is_noted =
            history.contains(&format!("\"to\":{token},")) && !history.contains("incomplete");
        is_noted.then_some(())
    });
    leader.ok(&format!("INSERT INTO {TABLE} VALUES ('by leader {token}')"));
}

#[test]
fn who_has_written_around_the_proxy_is_found() {
    let stage = Stage::with(SETUP);
    stage.postgres.sql(&format!(
        "INSERT INTO {TABLE} VALUES ('long ago', 1, '2026-01-01')"
    ));
    let (code, said) = audit(&stage, &AT_ONCE);
    assert_eq!(code, Some(0), "{said}");
    assert!(
        said.contains("No completed takeover of scope \"default\" is known"),
        "{said}"
    );
    lead(&stage, 33);
    lead(&stage, 34);
    let (code, said) = audit(&stage, &AT_ONCE);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("outbox: 0 of 2 rows since"), "{said}");
    assert!(said.contains("1 rows are not judged"), "{said}");

    let around =
        format!("INSERT INTO {TABLE} (item, token) VALUES ('around', 33), ('nobody', NULL)");
    stage.postgres.sql(&around);
    let (code, said) = audit(&stage, &AT_ONCE);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("outbox: 1 of 4 rows since"), "{said}");
    assert!(said.contains("1 of these rows have no token."), "{said}");
    let late: Vec<&str> = said
        .lines()
        .filter(|line| line.contains("around\""))
        .collect();
    assert_eq!(late.len(), 1, "{said}");
    let [_, token, mark, ..] = late[0].split_whitespace().collect::<Vec<_>>()[..] else {
        panic!("{said}");
    };
    assert_eq!((token, mark), ("33", "34"), "{said}");
    // By another scope's takeovers it is judged otherwise.
    let (code, said) = audit(&stage, &["--scope", "other"]);
    assert_eq!(code, Some(0), "{said}");
}

#[test]
fn what_clocks_allow_is_let_through() {
    let stage = Stage::with(SETUP);
    lead(&stage, 33);
    lead(&stage, 34);
    stage.postgres.sql(&format!(
        "INSERT INTO {TABLE} (item, token) VALUES ('around', 33)"
    ));
    assert_eq!(audit(&stage, &AT_ONCE).0, Some(1));
    let (code, said) = audit(&stage, &["--clocks-within", "1h"]);
    assert_eq!(code, Some(0), "{said}");
}

#[test]
fn what_is_wrong_is_said() {
    let stage = Stage::with(SETUP);
    lead(&stage, 33);
    let (code, said) = audit(&stage, &["--token", "none\"; DROP"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("does not exist"), "{said}");
    let direct = stage.postgres.admin_dsn();
    let (code, said) = audit(&stage, &["--proxied", &direct]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("no pgpalisade"), "{said}");
}

/// A takeover that ends nobody says nothing about who writes behind it.
#[test]
fn nothing_is_judged_by_what_was_only_observed() {
    let stage = Stage::with_flags(SETUP, &[("--observe=on", "--log=info")]);
    let _leaders = ["33", "34"].map(|token| stage.leader(token));
    let mut looking = stage.plain();
    wait_for("the takeovers to be noted", || {
        let history = &looking.rows("SHOW fencing.history")[0][0];
        history.contains("\"to\":34,").then_some(())
    });
    stage
        .leader("33")
        .ok(&format!("INSERT INTO {TABLE} VALUES ('late')"));
    let (code, said) = audit(&stage, &AT_ONCE);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("No completed takeover"), "{said}");
}

/// Functions and operators of others that fit better than PostgreSQL's own, and times that are none.
const HOSTILE: &str = r#"
    CREATE SCHEMA evil;
    CREATE FUNCTION evil.late(bigint, interval) RETURNS interval LANGUAGE sql AS $$ SELECT interval '1000 years' $$;
    CREATE OPERATOR evil.* (LEFTARG = bigint, RIGHTARG = interval, FUNCTION = evil.late);
    CREATE FUNCTION evil.none(bigint, bigint) RETURNS bigint LANGUAGE sql AS $$ SELECT 0::bigint $$;
    CREATE AGGREGATE evil.count(bigint) (SFUNC = evil.none, STYPE = bigint, INITCOND = 0);
    ALTER DATABASE postgres SET search_path = "$user", public, evil;
    INSERT INTO "Its own".outbox VALUES ('never', 1, 'infinity'), ('ever', 1, '-infinity')"#;

#[test]
fn who_owns_the_table_cannot_change_what_is_found() {
    let stage = Stage::with(SETUP);
    lead(&stage, 33);
    lead(&stage, 34);
    stage.postgres.sql(HOSTILE);
    let around = format!("INSERT INTO {TABLE} (item, token) VALUES ('around', 33)");
    stage.postgres.sql(&around);
    let (code, said) = audit(&stage, &AT_ONCE);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("outbox: 1 of 3 rows since"), "{said}");
    assert!(said.contains("2 rows are not judged"), "{said}");

    stage.postgres.sql(&format!(
        "CREATE ROLE auditor LOGIN; GRANT USAGE ON SCHEMA \"Its own\" TO auditor; GRANT SELECT ON {TABLE} TO auditor; \
         ALTER TABLE {TABLE} ENABLE ROW LEVEL SECURITY"
    ));
    let (code, said) = audit_as("auditor", &stage, &AT_ONCE);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("row-level security"), "{said}");
}

/// What a time without a zone means depends on who has written it.
#[test]
fn a_time_without_a_zone_is_refused() {
    let stage = Stage::with(SETUP);
    stage.postgres.sql(&format!(
        "ALTER TABLE {TABLE} ADD local timestamp, ADD exact numeric"
    ));
    lead(&stage, 33);
    for (flag, column) in [("--time", "local"), ("--token", "exact")] {
        let (code, said) = audit(&stage, &[flag, column]);
        assert_eq!(code, Some(1), "{said}");
        assert!(
            said.contains(&format!("column \"{column}\" is of type")),
            "{said}"
        );
    }
}
