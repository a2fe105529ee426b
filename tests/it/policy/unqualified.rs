//! Tables without a schema: each counts as every listed table of its name, whatever the search path.

use pgpalisade_test_servers::policy::PolicyFile;
use pgpalisade_test_servers::stage::Stage;
use pgpalisade_test_servers::wire::Batch;

use super::{SETUP, assert_refused};

const POLICY: &str = "[scope.scheduler]\ntables = [\"jobs.*\", \"public.cron_lock\"]\n";

fn stage(policy: &str) -> Stage {
    let setup = format!(
        "{SETUP}; CREATE TABLE cron_lock (id int); CREATE TABLE jobs.cron_lock (id int); \
         CREATE FUNCTION go(path text) RETURNS text LANGUAGE sql AS $$SELECT set_config('search_path', path, false)$$"
    );
    Stage::governed(&setup, &PolicyFile::new(policy))
}

#[test]
fn a_name_is_judged_by_its_last_part() {
    let stage = stage(POLICY);
    for (sql, needed) in [
        ("INSERT INTO public.notes VALUES (1)", &["default"][..]),
        ("INSERT INTO jobs.notes VALUES (1)", &["scheduler"]),
        // It may be a table of jobs, or one outside of all scopes.
        ("INSERT INTO notes VALUES (1)", &["default", "scheduler"]),
        // A pattern matches its name.
        ("INSERT INTO cron_lock VALUES (1)", &["scheduler"]),
    ] {
        for held in [&["default"][..], &["scheduler"], &["default", "scheduler"]] {
            let token: Vec<String> = held.iter().map(|scope| format!("{scope}=1")).collect();
            let mut wire = stage.leader(&token.join(","));
            if needed.iter().all(|scope| held.contains(scope)) {
                wire.ok(sql);
            } else {
                assert_refused(&mut wire, sql, "PF002");
            }
        }
    }
}

/// Whatever the search path is, and however it was set: a session that may write tables outside of scopes cannot
/// reach a listed one.
#[test]
fn the_search_path_opens_nothing() {
    let stage = stage(&format!("[defaults]\nwrites = \"allow\"\n{POLICY}"));
    let path = "jobs, public";
    for way in [
        vec![format!("SET search_path = {path}")],
        vec![format!("SELECT set_config('search_path', '{path}', false)")],
        vec![format!("SELECT go('{path}')")],
        vec![
            "BEGIN".to_owned(),
            format!("SET LOCAL search_path = {path}"),
        ],
        vec![
            format!("SET search_path = {path}"),
            "BEGIN; SET LOCAL search_path = public".to_owned(),
            "COMMIT".to_owned(),
        ],
        vec![
            format!("BEGIN; SAVEPOINT s; SELECT go('{path}')"),
            "RELEASE s".to_owned(),
        ],
        vec![
            format!("BEGIN; DECLARE c CURSOR WITH HOLD FOR SELECT go('{path}')"),
            "COMMIT".to_owned(),
        ],
        vec![format!("ALTER ROLE postgres SET search_path = {path}")],
    ] {
        let mut wire = stage.plain();
        for sql in &way {
            if sql.starts_with("ALTER") {
                stage.postgres.sql(sql);
                wire = stage.plain();
            } else {
                wire.ok(sql);
            }
        }
        let bound = Batch::new()
            .parse("", "INSERT INTO queue VALUES (1)")
            .bind("", "", &[])
            .execute("", 0);
        let answer = wire.run(&bound.sync());
        let error = answer.iter().find(|message| message.tag == b'E');
        let error = error.expect("it is refused");
        assert_eq!(error.sqlstate(), "PF002", "{way:?}");
        let detail = error.field(b'D').unwrap_or_default();
        assert!(detail.contains("\"queue\" has no schema"), "{detail}");
        wire.ok("ROLLBACK");
        assert_refused(&mut wire, "INSERT INTO cron_lock VALUES (1)", "PF002");
        wire.ok("ROLLBACK; INSERT INTO public.notes VALUES (1)");
    }
    for table in ["jobs.queue", "jobs.cron_lock", "public.cron_lock"] {
        let rows = stage
            .postgres
            .value(&format!("SELECT count(*) FROM {table}"));
        assert_eq!(rows, "0", "{table}");
    }
}
