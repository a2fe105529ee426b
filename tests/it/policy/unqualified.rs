//! Tables without a schema: each counts as every listed table of its name, whatever the search path.

use pgpalisade_test_servers::policy::PolicyFile;
use pgpalisade_test_servers::stage::Stage;
use pgpalisade_test_servers::wire::{Batch, assert_error, pretty};

use super::{SETUP, assert_refused};

const POLICY: &str = "[scope.scheduler]\ntables = [\"jobs.*\", \"public.cron_lock\"]\n";

fn stage(policy: &str) -> Stage {
    let setup = format!(
        "{SETUP}; CREATE TABLE cron_lock (id int); CREATE TABLE jobs.cron_lock (id int); \
         CREATE FUNCTION go(path text) RETURNS text LANGUAGE sql AS $$SELECT set_config('search_path', path, false)$$"
    );
    Stage::governed(&setup, &PolicyFile::new(policy))
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
                stage.sql(sql);
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
        assert_error(&answer, "PF002");
        let said = pretty(&answer);
        assert!(said.contains("\"queue\" has no schema"), "{way:?}: {said}");
        wire.ok("ROLLBACK");
        assert_refused(&mut wire, "INSERT INTO cron_lock VALUES (1)", "PF002");
        wire.ok("ROLLBACK; INSERT INTO public.notes VALUES (1)");
    }
    for table in ["jobs.queue", "jobs.cron_lock", "public.cron_lock"] {
        let rows = stage.value(&format!("SELECT count(*) FROM {table}"));
        assert_eq!(rows, "0", "{table}");
    }
}
