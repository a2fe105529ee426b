//! Who may declare which scope and for how long, and statements that only seem to declare.

use std::time::{Duration, Instant};

use pgpalisade_test_servers::machine::assert_says;
use pgpalisade_test_servers::policy::PolicyFile;
use pgpalisade_test_servers::stage::Stage;
use pgpalisade_test_servers::wire::{Batch, PROTOCOL_3_0, Wire, assert_error, errors, pretty};

use super::{SETUP, assert_passes, assert_refused};

const POLICY: &str = "[scope.jobs]\nholders = { user = \"lead*\" }\n\
    [[session]]\nmatch = { user = \"reports\" }\nwrites = \"refuse\"\n\
    [[session]]\nmatch = { user = \"pooled\" }\ndeclare = \"transaction\"\n";

fn stage(policy: &str) -> Stage {
    let roles = "CREATE ROLE leader SUPERUSER LOGIN; CREATE ROLE reports SUPERUSER LOGIN; \
                 CREATE ROLE pooled SUPERUSER LOGIN";
    Stage::governed(&format!("{SETUP}; {roles}"), &PolicyFile::new(policy))
}

/// SQLSTATE of a login with this token.
fn login(stage: &Stage, user: &str, name: &str, value: &str) -> Option<String> {
    let mut wire = Wire::connect(&stage.proxy.endpoint());
    wire.startup(
        PROTOCOL_3_0,
        &[("user", user), ("database", "postgres"), (name, value)],
    );
    errors(&wire.until_closed()).into_iter().next()
}

#[test]
fn only_holders_declare_a_scope() {
    let stage = stage(POLICY);
    let mut leader = stage.user("leader");
    leader.ok("SET fencing.token = 'jobs=33'");
    let mut other = stage.user("postgres");
    for sql in [
        "SET fencing.token = 'jobs=34'",
        "SET fencing.scope = 'jobs'",
        "SELECT set_config('fencing.token', 'default=1,jobs=34', false)",
        "BEGIN; SET LOCAL fencing.token = 'jobs=34'",
    ] {
        assert_refused(&mut other, sql, "PF005");
    }
    let refused = other.extended("SET fencing.token = 'jobs=34'");
    assert_says(&pretty(&refused), "holders of [scope.jobs]");
    for (name, value) in [
        ("fencing.token", "jobs=34"),
        ("options", "-c fencing.token=jobs=34"),
    ] {
        assert_eq!(
            login(&stage, "postgres", name, value).as_deref(),
            Some("PF005")
        );
    }
    other.ok("SET fencing.token = 7");
    // The leader was not ended, and no mark raised.
    leader.ok("SET fencing.scope = 'jobs'");
    assert_eq!(leader.rows("SHOW fencing.mark"), [["33"]]);
}

#[test]
fn who_may_write_nothing_declares_nothing() {
    let stage = stage(POLICY);
    let mut reports = stage.user("reports");
    assert_refused(&mut reports, "SET fencing.token = 34", "PF005");
    assert_eq!(
        login(&stage, "reports", "fencing.token", "34").as_deref(),
        Some("PF005")
    );
    reports.ok("SELECT * FROM notes");
    let file = PolicyFile::new(POLICY);
    let stage = Stage::governed(SETUP, &file);
    let mut plain = stage.plain();
    plain.ok("SET fencing.token = 34");
    file.reload(&stage.proxy, "[defaults]\ndeclare = []\n");
    assert_refused(&mut plain, "SET fencing.token = 35", "PF005");
    // Its existing token stays.
    plain.ok("INSERT INTO notes VALUES (1)");
}

#[test]
fn behind_a_pooler_a_token_is_for_a_transaction() {
    let stage = stage(POLICY);
    let mut pooled = stage.user("pooled");
    for sql in [
        "SET fencing.token = 33",
        "SET SESSION fencing.token = 33",
        "SET fencing.scope = 'other'",
        "SELECT set_config('fencing.token', '33', false)",
    ] {
        assert_refused(&mut pooled, sql, "PF005");
    }
    assert_eq!(
        login(&stage, "pooled", "fencing.token", "33").as_deref(),
        Some("PF005")
    );
    pooled.ok("BEGIN; SET LOCAL fencing.token = 33; INSERT INTO notes VALUES (1); COMMIT");
    pooled.ok("BEGIN");
    pooled.ok("SELECT set_config('fencing.token', '33', true)");
    pooled.ok("INSERT INTO notes VALUES (2)");
    pooled.ok("COMMIT");
    // The connection's next client inherits nothing of it, although the value was accepted.
    assert_refused(&mut pooled, "INSERT INTO notes VALUES (3)", "PF002");
    assert_refused(&mut pooled, "SET fencing.token = 33", "PF005");
    pooled.ok("SET fencing.token = ''");
    assert_eq!(stage.value("SELECT count(*) FROM notes"), "2");
}

#[test]
fn where_it_is_observed_the_set_passes_and_declares_nothing() {
    let policy = format!("[defaults]\nmode = \"observe\"\n{POLICY}");
    let stage = stage(&policy);
    let mut other = stage.user("postgres");
    other.ok("SET fencing.token = 'jobs=34'");
    let mut leader = stage.user("leader");
    leader.ok("SET fencing.token = 'jobs=1'");
    leader.ok("SET fencing.scope = 'jobs'");
    assert_eq!(leader.rows("SHOW fencing.mark"), [["1"]]);
    let records = stage.proxy.first_rejections(1);
    assert!(
        records
            .iter()
            .any(|one| one["sqlstate"] == "PF005" && one["enforced"] == false),
        "{records:?}"
    );
}

#[test]
fn scopes_are_listed_or_limited() {
    let stage = stage("[tokens]\nscopes = \"listed\"\n[scope.jobs]\n");
    let mut wire = stage.plain();
    wire.ok("SET fencing.token = 'jobs=1,default=1'");
    assert_refused(&mut wire, "SET fencing.token = 'job=2'", "PF005");
    let limited = self::stage("[tokens]\nmax_scopes = 3\n[scope.jobs]\n");
    let mut wire = limited.plain();
    for at in 1..=3 {
        wire.ok(&format!("SET fencing.token = 's{at}=1'"));
    }
    assert_refused(&mut wire, "SET fencing.token = 's4=1'", "PF005");
    wire.ok("SET fencing.token = 's3=2,jobs=1,default=1'");
}

/// A session that may not declare is not told to, and one in a transaction is told to begin again first.
#[test]
fn the_hint_can_be_followed() {
    let stage = stage(
        "[scope.jobs]\ntables = [\"jobs.*\"]\nholders = { user = [\"lead*\", \"pooled\"] }\n\
         [[session]]\nmatch = { user = \"pooled\" }\ndeclare = \"transaction\"\n",
    );
    let told = |wire: &mut Wire, parts: &[&str]| {
        let refused = wire.query("INSERT INTO jobs.queue VALUES (1)");
        let shown = pretty(&refused);
        assert_eq!(refused[0].sqlstate(), "PF002", "{shown}");
        for part in parts {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        shown
    };
    let shown = told(&mut stage.plain(), &["Connect as a holder of the scope"]);
    assert!(!shown.contains("Declare the token"), "{shown}");
    told(
        &mut stage.user("pooled"),
        &["BEGIN; SET LOCAL fencing.token"],
    );
    let mut leader = stage.user("leader");
    let shown = told(&mut leader, &["declared no token for it, and"]);
    assert!(!shown.contains("ROLLBACK"), "{shown}");
    leader.ok("SET fencing.token = 1");
    told(
        &mut leader,
        &["declared no token for it, only for \"default\", and"],
    );
    leader.ok("BEGIN; SELECT 1");
    told(
        &mut leader,
        &["ROLLBACK, and begin again", "Declare the token of"],
    );
}

/// Many small steps reach no further than one large one within a period.
#[test]
fn max_step_holds_over_time() {
    let stage = stage("[tokens]\nmax_step = 10\n");
    let mut wire = stage.plain();
    wire.ok("SET fencing.token = 100");
    wire.ok("SET fencing.token = 106");
    let began = Instant::now();
    assert_refused(&mut wire, "SET fencing.token = 112", "PF003");
    let answer = wire.query("SET fencing.token = 112");
    assert_says(&pretty(&answer), "through one proxy in 10 s together");
    wire.ok("SET fencing.token = 110");
    loop {
        let answer = wire.query("SET fencing.token = 112");
        if answer.iter().all(|message| message.tag != b'E') {
            break;
        }
        assert!(
            began.elapsed() < Duration::from_secs(20),
            "{}",
            pretty(&answer)
        );
        std::thread::sleep(Duration::from_millis(200));
    }
    assert!(began.elapsed() > Duration::from_secs(8));
}

/// Statements of drivers in places where SET takes no parameters.
#[test]
fn what_only_seems_to_declare_is_refused() {
    let stage = stage("");
    let mut wire = stage.plain();
    let batch = Batch::new()
        .parse("", "SELECT set_config('fencing.token', $1, false)")
        .bind("", "", &[Some("33")])
        .execute("", 0)
        .sync();
    let answer = wire.run(&batch);
    assert_error(&answer, "PF003");
    assert_says(&pretty(&answer), "SET fencing.token = 34");
    for sql in [
        "SELECT set_config('fencing.token', (30+4)::text, false)",
        "SELECT 1, set_config('fencing.token', '34', false)",
        "WITH x AS (SELECT set_config('fencing.token', '34', false)) SELECT * FROM x",
        "SELECT * FROM set_config('fencing.token', '34', false)",
        "PREPARE p AS SELECT set_config('fencing.token', $1, false)",
        "SET fencing.tokn = 34",
        "RESET fencing.tokn",
        "SHOW fencing.tokn",
        "SET fencing.mark = 34",
    ] {
        assert_refused(&mut wire, sql, "PF003");
    }
    let answer = wire.query("SET fencing.tokn = 34");
    assert_says(&pretty(&answer), "Did you mean fencing.token?");
    assert_eq!(
        login(&stage, "postgres", "fencing.tokn", "34").as_deref(),
        Some("PF003")
    );
    assert_eq!(
        login(&stage, "postgres", "options", "-c fencing.tokn=34").as_deref(),
        Some("PF003")
    );
    wire.ok("SET fencing.token = 34");
    let block = "DO $$ BEGIN PERFORM set_config('fencing.token', '35', false); END $$";
    assert_refused(&mut wire, block, "PF003");
    let found = wire.rows("SELECT current_setting('fencing.token')");
    assert_eq!(found, [["34"]]);
    for name in ["token", "scope", "mark", "status"] {
        wire.ok(&format!("SHOW fencing.{name}"));
    }
    assert_passes(&wire.extended("SELECT set_config('fencing.token', '35', false)"));
    assert_eq!(wire.rows("SHOW fencing.mark"), [["35"]]);
}

/// In these encodings a byte that looks like ASCII may be half a letter, so it is unknown what such a text declares.
#[test]
fn a_text_that_cannot_be_read_declares_nothing() {
    let stage = stage("");
    let mut wire = stage.plain();
    wire.ok("SET fencing.token = 34");
    wire.ok("SET client_encoding = 'SJIS'");
    let text = "SET fencing.token = 35 -- ü";
    for answer in [wire.query(text), wire.extended(text)] {
        let shown = pretty(&answer);
        assert!(shown.contains("PF003"), "{shown}");
        assert_says(&shown, "cannot tell what this query does");
    }
    assert_eq!(wire.rows("SHOW fencing.mark"), [["34"]]);
    wire.ok("SET fencing.token = 35");
}

/// As the pages say, PostgreSQL's refusals before Execute have its own codes.
#[test]
fn some_refusals_of_the_extended_protocol_are_postgresqls() {
    let stage = stage("");
    let mut wire = stage.plain();
    for (sql, simple, extended) in [
        ("SELECT * FROM notes FOR UPDATE", "PF002", "25006"),
        ("SELECT * FROM notes FOR SHARE", "PF002", "25006"),
        ("SHOW fencing.tokn", "PF003", "42704"),
    ] {
        wire.fails(sql, simple);
        assert_error(&wire.extended(sql), extended);
    }
}
