//! Tables without a schema: they belong to the scope of the schema in which the session looks for them.

use pgpalisade_tests::policy::PolicyFile;
use pgpalisade_tests::stage::Stage;
use pgpalisade_tests::wire::{Batch, Message, pretty};

use super::{SETUP, assert_passes, assert_refused};

const POLICY: &str = "[scope.scheduler]\ntables = [\"jobs.*\"]\n";

fn stage() -> Stage {
    Stage::governed(SETUP, &PolicyFile::new(POLICY))
}

/// The scope that an INSERT into `notes` needs now, as the refusal says.
#[track_caller]
fn needs(wire: &mut pgpalisade_tests::wire::Wire) -> String {
    let answer = wire.query("INSERT INTO notes VALUES (1)");
    let error = answer.iter().find(|message| message.tag == b'E');
    let message = error
        .and_then(|error| error.field(b'M'))
        .unwrap_or_default();
    let scope = message.split('"').nth(1).map(str::to_owned);
    scope.unwrap_or_else(|| panic!("should be refused:\n{}", pretty(&answer)))
}

#[test]
fn a_schema_in_front_needs_no_search_path() {
    let stage = stage();
    let mut wire = stage.leader("default=1");
    wire.ok("INSERT INTO public.notes VALUES (1)");
    assert_refused(&mut wire, "INSERT INTO jobs.notes VALUES (1)", "PF002");
    let mut wire = stage.leader("scheduler=1");
    wire.ok("INSERT INTO jobs.notes VALUES (1)");
    assert_refused(&mut wire, "INSERT INTO public.notes VALUES (1)", "PF002");
}

/// Every way of changing it is followed, and so is what undoes the change.
#[test]
fn the_search_path_of_the_session_counts() {
    let stage = stage();
    stage.postgres.sql(
        "CREATE FUNCTION go_to_jobs() RETURNS text LANGUAGE sql AS $$SELECT set_config('search_path', 'jobs', false)$$",
    );
    let mut wire = stage.plain();
    assert_eq!(needs(&mut wire), "default");
    wire.ok("SET search_path = jobs, public");
    assert_eq!(needs(&mut wire), "scheduler");
    wire.ok("RESET search_path");
    assert_eq!(needs(&mut wire), "default");
    wire.ok("SELECT set_config('search_path', 'jobs', false)");
    assert_eq!(needs(&mut wire), "scheduler");
    wire.ok("DISCARD ALL");
    assert_eq!(needs(&mut wire), "default");
    wire.ok("SELECT public.go_to_jobs()");
    assert_eq!(needs(&mut wire), "scheduler");
    wire.ok("RESET ALL");
    // Undone by a rollback.
    wire.ok("BEGIN");
    wire.ok("SET LOCAL search_path = jobs");
    assert_eq!(needs(&mut wire), "scheduler");
    wire.ok("ROLLBACK");
    assert_eq!(needs(&mut wire), "default");
    wire.ok("BEGIN");
    wire.ok("SAVEPOINT a");
    wire.ok("SET search_path = jobs");
    wire.ok("SAVEPOINT b");
    assert_eq!(needs(&mut wire), "scheduler");
    wire.ok("ROLLBACK TO a");
    assert_eq!(needs(&mut wire), "default");
    wire.ok("ROLLBACK");
}

/// `"$user"` is the role in force.
#[test]
fn the_user_in_the_search_path() {
    let setup = format!("{SETUP}; CREATE ROLE jobs SUPERUSER LOGIN");
    let stage = Stage::governed(&setup, &PolicyFile::new(POLICY));
    assert_eq!(needs(&mut stage.user("jobs")), "scheduler");
    let mut wire = stage.plain();
    assert_eq!(needs(&mut wire), "default");
    wire.ok("SET ROLE jobs");
    assert_eq!(needs(&mut wire), "scheduler");
    wire.ok("RESET ROLE");
    assert_eq!(needs(&mut wire), "default");
}

/// It can change within a text, before the table is named: then nobody knows, and the refusal says what to do.
#[test]
fn a_text_that_changes_it_must_name_the_schema() {
    let stage = stage();
    let mut wire = stage.leader("default=1,scheduler=1");
    let text = "SET search_path = jobs; INSERT INTO notes VALUES (1)";
    // Both tokens are held: whatever it is, it passes.
    wire.ok(text);
    let mut wire = stage.leader("default=1");
    assert_refused(&mut wire, text, "PF005");
    wire.ok("SET search_path = jobs; INSERT INTO public.notes VALUES (1)");
}

/// In a pipeline the server is asked too.
#[test]
fn a_pipeline_waits_for_the_answer() {
    let stage = stage();
    let mut wire = stage.leader("scheduler=1");
    let pipeline = Batch::new()
        .statement("SET search_path = jobs")
        .statement("INSERT INTO notes VALUES (1)")
        .statement("INSERT INTO notes VALUES (2)");
    assert_passes(&wire.run(&pipeline.sync()));
    let pipeline = Batch::new()
        .statement("SET search_path = public")
        .statement("INSERT INTO notes VALUES (3)");
    let answer = wire.run(&pipeline.sync());
    let error = answer.iter().find(|message| message.tag == b'E');
    assert_eq!(
        error.map(Message::sqlstate).as_deref(),
        Some("PF002"),
        "{}",
        pretty(&answer)
    );
    assert_eq!(stage.postgres.value("SELECT count(*) FROM jobs.notes"), "2");
}
