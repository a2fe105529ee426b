//! The shipped policies, each in front of a real PostgreSQL: which user can write what with which token.

use pgpalisade_test_servers::machine::repository;
use pgpalisade_test_servers::postgres::Postgres;
use pgpalisade_test_servers::proxy::{Options, Proxy};
use pgpalisade_test_servers::stage::Stage;
use pgpalisade_test_servers::wire::{Wire, pretty};

/// A stage with one of the shipped policies, and the roles of all of them, with full privileges.
fn stage(example: &str, setup: &str) -> Stage {
    let postgres = Postgres::start();
    let roles = [
        "cron",
        "monitor_1",
        "scheduler",
        "coordinator",
        "relay",
        "app",
        "migrator",
        "reader",
        "writer",
    ];
    for role in roles {
        postgres.sql(&format!("CREATE ROLE {role} LOGIN SUPERUSER"));
    }
    postgres.sql(setup);
    let file = repository().join(format!("policies/examples/{example}.toml"));
    let options = Options::new(&postgres).flag("--policy", &file.display().to_string());
    Stage {
        proxy: Proxy::start_with(options),
        postgres,
    }
}

fn login(stage: &Stage, user: &str, more: &[(&str, &str)]) -> Wire {
    let mut parameters = vec![("user", user), ("database", "postgres")];
    parameters.extend(more);
    Wire::login(&stage.proxy.endpoint(), &parameters)
}

fn holding(stage: &Stage, user: &str, token: &str) -> Wire {
    login(stage, user, &[("fencing.token", token)])
}

/// Asserts that the text is refused with this SQLSTATE, and the session goes on.
#[track_caller]
fn refuse(wire: &mut Wire, sql: &str, sqlstate: &str) {
    let answer = wire.fails(sql, sqlstate);
    assert_eq!(answer.last().map(|last| last.tag), Some(b'Z'), "{sql}");
}

/// Asserts that a takeover has ended the session.
#[track_caller]
fn assert_ended(wire: &mut Wire) {
    let answer = wire.query("SELECT 1");
    let ended = answer
        .iter()
        .any(|m| m.tag == b'E' && m.severity() == "FATAL" && m.sqlstate() == "PF001");
    assert!(ended, "{}", pretty(&answer));
}

const JOBS: &str = "CREATE TABLE jobs (id int)";

#[test]
fn cron_leader() {
    let stage = stage("cron-leader", JOBS);
    let mut old = login(&stage, "cron", &[]);
    refuse(&mut old, "INSERT INTO jobs VALUES (1)", "PF002");
    old.ok("SET fencing.token = 34; INSERT INTO jobs VALUES (1)");
    refuse(&mut old, "COPY jobs TO PROGRAM 'true'", "PF005");
    let mut new = holding(&stage, "cron", "35");
    assert_ended(&mut old);
    new.ok("INSERT INTO jobs VALUES (2)");
    let mut stale = login(&stage, "cron", &[]);
    refuse(&mut stale, "SET fencing.token = 34", "PF001");
    // Only the policy's scope was raised.
    assert_eq!(new.rows("SHOW fencing.scope"), [["cron"]]);

    let mut monitor = login(&stage, "monitor_1", &[]);
    refuse(&mut monitor, "SET fencing.token = 36", "PF005");
    assert_eq!(monitor.rows("SELECT count(*) FROM jobs"), [["2"]]);
    refuse(&mut monitor, "INSERT INTO jobs VALUES (3)", "PF005");
    monitor.ok("BEGIN READ WRITE");
    refuse(&mut monitor, "INSERT INTO jobs VALUES (3)", "PF005");
    monitor.ok("ROLLBACK");
}

#[test]
fn a_mistyped_token_is_refused() {
    let stage = stage("cron-leader", JOBS);
    let mut leader = holding(&stage, "cron", "34");
    let mut typo = login(&stage, "cron", &[]);
    refuse(&mut typo, "SET fencing.token = 35000", "PF003");
    typo.ok("SET fencing.token = 34");
    leader.ok("INSERT INTO jobs VALUES (1)");
}

const SHARDS: &str = "CREATE SCHEMA shard_1; CREATE TABLE shard_1.jobs (id int);
    CREATE SCHEMA shard_2; CREATE TABLE shard_2.jobs (id int);
    CREATE TABLE public.shard_map (id int); CREATE TABLE public.other (id int)";

#[test]
fn sharded_scheduler() {
    let stage = stage("sharded-scheduler", SHARDS);
    let shard = |name: &str, token: &str| {
        let more = [("application_name", name), ("fencing.token", token)];
        login(&stage, "scheduler", &more)
    };
    let mut one = shard("shard-1", "34");
    one.ok("INSERT INTO shard_1.jobs VALUES (1)");
    refuse(&mut one, "INSERT INTO shard_2.jobs VALUES (1)", "PF002");
    refuse(&mut one, "INSERT INTO public.shard_map VALUES (1)", "PF002");
    refuse(&mut one, "DO $$ BEGIN END $$", "PF002");
    let mut two = shard("shard-2", "7");
    two.ok("INSERT INTO shard_2.jobs VALUES (2)");
    refuse(&mut two, "INSERT INTO shard_1.jobs VALUES (2)", "PF002");
    // One statement on both needs both tokens.
    let both = "WITH moved AS (DELETE FROM shard_1.jobs RETURNING id) INSERT INTO shard_2.jobs SELECT id FROM moved";
    refuse(&mut one, both, "PF002");
    let mut leads_both = shard("", "shard-1=34,shard-2=7");
    leads_both.ok(both);

    // The election of one shard does not affect the other.
    let mut next = shard("shard-1", "35");
    assert_ended(&mut one);
    next.ok("INSERT INTO shard_1.jobs VALUES (3)");
    two.ok("INSERT INTO shard_2.jobs VALUES (3)");
    assert_ended(&mut leads_both);

    let mut coordinator = holding(&stage, "coordinator", "1");
    coordinator.ok("INSERT INTO public.shard_map VALUES (1); INSERT INTO public.other VALUES (1)");
    refuse(
        &mut coordinator,
        "INSERT INTO shard_1.jobs VALUES (4)",
        "PF002",
    );
}

/// A name without a schema may be a table of any shard, whatever the search path is.
#[test]
fn sharded_scheduler_without_schemas() {
    let stage = stage("sharded-scheduler", SHARDS);
    let more = [("application_name", "shard-1"), ("fencing.token", "34")];
    let mut one = login(&stage, "scheduler", &more);
    for path in ["shard_1", "shard_2, public"] {
        one.ok(&format!("SET search_path = {path}"));
        refuse(&mut one, "INSERT INTO jobs VALUES (1)", "PF002");
    }
    let rows = "SELECT count(*) FROM (TABLE shard_1.jobs UNION ALL TABLE shard_2.jobs) AS jobs";
    assert_eq!(stage.value(rows), "0");
}

const OUTBOX: &str = "CREATE TABLE public.outbox (id int); INSERT INTO public.outbox VALUES (1), (2);
    CREATE SCHEMA relay; CREATE TABLE relay.position (id int); INSERT INTO relay.position VALUES (0);
    CREATE TABLE public.orders (id int)";

#[test]
fn outbox_relay() {
    let stage = stage("outbox-relay", OUTBOX);
    let mut old = login(&stage, "relay", &[]);
    refuse(&mut old, "SELECT id FROM public.outbox", "PF002");
    refuse(&mut old, "DELETE FROM public.outbox", "PF002");
    old.ok("SELECT version(); SHOW search_path; BEGIN; ROLLBACK");
    old.ok("SET fencing.token = 3");
    let found = old.rows("SELECT id FROM public.outbox ORDER BY id LIMIT 1");
    assert_eq!(found, [["1"]]);
    old.ok(
        "BEGIN; DELETE FROM public.outbox WHERE id = 1; UPDATE relay.position SET id = 1; COMMIT",
    );
    refuse(&mut old, "INSERT INTO public.orders VALUES (1)", "PF005");
    let mut new = holding(&stage, "relay", "4");
    assert_ended(&mut old);
    assert_eq!(new.rows("SELECT id FROM public.outbox"), [["2"]]);

    let mut app = login(&stage, "app", &[]);
    app.ok("SELECT id FROM public.outbox");
    refuse(&mut app, "INSERT INTO public.orders VALUES (1)", "PF005");
    refuse(&mut app, "DELETE FROM public.outbox", "PF002");
}

const MIGRATIONS: &str =
    "CREATE TABLE public.schema_migrations (id int); CREATE TABLE public.orders (id int)";

#[test]
fn migration_runner() {
    let stage = stage("migration-runner", MIGRATIONS);
    let pipeline = |token: &str| {
        let options = format!("-c fencing.token={token}");
        login(&stage, "migrator", &[("options", &options)])
    };
    let mut older = pipeline("1233");
    older.ok("ALTER TABLE public.orders ADD COLUMN a int");
    let mut newer = pipeline("1234");
    assert_ended(&mut older);
    newer.ok("ALTER TABLE public.orders ADD COLUMN b int; INSERT INTO public.schema_migrations VALUES (2)");
    newer.ok("CREATE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT 1'; TRUNCATE public.orders");
    refuse(&mut newer, "COPY public.orders TO PROGRAM 'true'", "PF005");
    refuse(&mut newer, "SET fencing.token = 1000001", "PF003");
    let mut without = login(&stage, "migrator", &[]);
    refuse(&mut without, "CREATE TABLE public.t ()", "PF002");

    let mut app = holding(&stage, "app", "7");
    app.ok("INSERT INTO public.orders (id) VALUES (1); DO $$ BEGIN END $$");
    refuse(
        &mut app,
        "ALTER TABLE public.orders ADD COLUMN c int",
        "PF005",
    );
    refuse(&mut app, "TRUNCATE public.orders", "PF005");
    refuse(
        &mut app,
        "INSERT INTO public.schema_migrations VALUES (3)",
        "PF002",
    );
    let mut both = holding(&stage, "app", "default=7,migrations=1234");
    both.ok("INSERT INTO public.schema_migrations VALUES (3)");
}

#[test]
fn read_replicas() {
    let stage = stage("read-replicas", "CREATE TABLE public.orders (id int)");
    let mut writer = login(&stage, "writer", &[]);
    refuse(&mut writer, "SELECT id FROM public.orders", "PF002");
    refuse(&mut writer, "SELECT md5('A')", "PF002");
    writer.ok("SELECT 1; SELECT current_user; SHOW search_path");
    writer.ok("SET fencing.token = 5");
    writer.ok("INSERT INTO public.orders SELECT count(*) FROM public.orders");
    refuse(&mut writer, "TRUNCATE public.orders", "PF005");

    for _ in 0..2 {
        let mut reader = holding(&stage, "reader", "");
        refuse(&mut reader, "SET fencing.token = 7", "PF005");
        assert_eq!(reader.rows("SELECT count(*) FROM public.orders"), [["1"]]);
        refuse(&mut reader, "INSERT INTO public.orders VALUES (2)", "PF005");
        refuse(
            &mut reader,
            "SELECT id FROM public.orders FOR UPDATE",
            "PF005",
        );
    }
    let _next = holding(&stage, "writer", "6");
    assert_ended(&mut writer);
}
