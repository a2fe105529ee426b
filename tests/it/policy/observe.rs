//! Observe mode: nothing is refused, no session is ended, and the record shows what enforcing would do.

use pgpalisade_test_servers::etcd::Etcd;
use pgpalisade_test_servers::machine::wait_until;
use pgpalisade_test_servers::policy::PolicyFile;
use pgpalisade_test_servers::stage::Stage;
use pgpalisade_test_servers::wire::{Batch, Wire, assert_error, pretty, trusted};

use super::{SETUP, assert_passes, assert_refused};

const OBSERVE: &[(&str, &str)] = &[("--observe=on", "--log=info")];

fn observed(kinds: &[&str]) -> Vec<(String, bool)> {
    kinds
        .iter()
        .map(|kind| ((*kind).to_owned(), false))
        .collect()
}

/// In every form of a statement, even if only PostgreSQL would see the write.
#[test]
fn a_session_without_a_token_may_do_everything() {
    let stage = Stage::with_flags(SETUP, OBSERVE);
    let mut wire = stage.plain();
    wire.ok("INSERT INTO notes VALUES (1)");
    assert_passes(&wire.extended("INSERT INTO notes VALUES (2)"));
    let pipeline = Batch::new()
        .statement("INSERT INTO notes VALUES (3)")
        .statement("INSERT INTO notes VALUES (4)");
    assert_passes(&wire.run(&pipeline.sync()));
    wire.ok("BEGIN; INSERT INTO notes VALUES (5); COMMIT");
    // A hidden write passes, and is not recorded.
    wire.ok("SELECT hidden(6)");
    wire.send(&Batch::new().query("COPY notes FROM STDIN"));
    wire.until(b'G');
    wire.send(&Batch::new().copy_data(b"7\n").copy_done());
    assert_passes(&wire.until_ready());
    assert_eq!(wire.rows("SHOW default_transaction_read_only"), [["off"]]);
    assert_eq!(stage.value("SELECT count(*) FROM notes"), "7");
    assert_eq!(stage.records(6), observed(&["no_token"; 6]));
}

/// The old leader goes on. The takeover that would have ended it is recorded once, and so is each of its writes.
#[test]
fn a_takeover_ends_nobody() {
    let stage = Stage::with_flags(SETUP, OBSERVE);
    let mut old = stage.leader("33");
    old.ok("BEGIN; INSERT INTO notes VALUES (1)");
    let mut new = stage.plain();
    new.ok("SET fencing.token = 34");
    new.ok("INSERT INTO notes VALUES (2)");
    old.ok("SELECT 1");
    old.ok("INSERT INTO notes VALUES (3)");
    old.ok("COMMIT");
    assert_eq!(stage.value("SELECT count(*) FROM notes"), "3");
    let expected = observed(&["session_ended", "stale_token", "stale_token"]);
    assert_eq!(stage.records(3), expected);
    assert_eq!(new.rows("SHOW fencing.mark"), [["34"]]);
    let found = old.rows("SHOW fencing.status");
    assert_eq!(found, [["token=33 scope=default mark=34 state=stale"]]);
}

/// In a SET and in the startup packet.
#[test]
fn a_declaration_that_would_be_refused_passes() {
    let stage = Stage::with_flags(SETUP, OBSERVE);
    let _new = stage.leader("34");
    let mut old = stage.plain();
    old.ok("SET fencing.token = 33");
    let mut wrong = stage.plain();
    wrong.ok("SET fencing.token = 'nonsense'");
    wrong.ok("SET fencing.scope = '!'");
    let _also_old = stage.leader("33");
    let _also_wrong = stage.leader("nonsense");
    let expected = observed(&[
        "stale_token",
        "invalid_token",
        "invalid_token",
        "stale_token",
        "invalid_token",
    ]);
    assert_eq!(stage.records(5), expected);
    old.ok("INSERT INTO notes VALUES (1)");
    assert_eq!(stage.records(6)[5], ("stale_token".to_owned(), false));
}

/// An invalid scope is recorded once, with a token and without.
#[test]
fn an_invalid_scope_at_login_is_recorded_once() {
    let stage = Stage::with_flags(SETUP, OBSERVE);
    let who = trusted(&[("fencing.scope", "!")]);
    let token = [("fencing.token", "34")];
    for more in [&[][..], &token[..]] {
        let mut wire = Wire::login(&stage.proxy.endpoint(), &[&who[..], more].concat());
        wire.ok("INSERT INTO notes VALUES (1)");
    }
    let each = ["invalid_token", "no_token"];
    assert_eq!(stage.records(4), observed(&[each, each].concat()));
}

/// The store is down.
#[test]
fn a_declaration_that_nobody_stores_passes() {
    let etcd = Etcd::start(1);
    let stage = Stage::with_options(SETUP, |options| {
        let options = options.flags(OBSERVE).flag("--takeover-timeout", "1s");
        options.store(etcd.authority())
    });
    etcd.pause(0);
    let mut wire = stage.leader("34");
    wire.ok("INSERT INTO notes VALUES (1)");
    let declaration = &stage.proxy.first_rejections(1)[0];
    assert_eq!(declaration["kind"], "authority_unavailable");
    assert_eq!(declaration["enforced"], false);
    etcd.resume(0);
}

const BILLING: &str = "[scope.billing]\ntables = [\"jobs.*\"]\nmode = \"observe\"\n";

/// One scope is observed: statements that need its token pass, all others are refused as before.
#[test]
fn one_scope_only() {
    let stage = Stage::governed(SETUP, &PolicyFile::new(BILLING));
    let mut wire = stage.plain();
    wire.ok("INSERT INTO jobs.queue VALUES (1)");
    assert_refused(&mut wire, "INSERT INTO public.notes VALUES (1)", "PF002");
    // A statement that needs both is refused.
    let both = "WITH a AS (INSERT INTO jobs.queue VALUES (2)) INSERT INTO public.notes VALUES (2)";
    assert_refused(&mut wire, both, "PF002");
    let mut old = stage.leader("billing=3,default=7");
    let mut new = stage.leader("billing=4");
    new.ok("INSERT INTO jobs.queue VALUES (3)");
    old.ok("INSERT INTO jobs.queue VALUES (4)");
    old.ok("INSERT INTO public.notes VALUES (5)");
    // The other scope of the same session is enforced.
    let _newest = stage.leader("default=8");
    old.fails("SELECT 1", "PF001");
    assert_eq!(stage.value("SELECT count(*) FROM jobs.queue"), "3");
}

/// One rule is observed: no takeover ends its sessions, though the scope is enforced for all others.
#[test]
fn the_sessions_of_one_rule_only() {
    let policy = "[[session]]\nmatch = { user = \"app\" }\nmode = \"observe\"\n";
    let setup = format!("{SETUP}; CREATE ROLE app LOGIN; GRANT ALL ON notes TO app");
    let stage = Stage::governed(&setup, &PolicyFile::new(policy));
    let mut observed = stage.user("app");
    observed.ok("SET fencing.token = 33");
    let mut enforced = stage.leader("33");
    enforced.ok("INSERT INTO notes VALUES (1)");
    let _new = stage.leader("34");
    enforced.fails("INSERT INTO notes VALUES (2)", "PF001");
    observed.ok("INSERT INTO notes VALUES (3)");
    // It can take over itself: enforced sessions are ended.
    observed.ok("SET fencing.token = 40");
    assert_eq!(stage.value("SELECT count(*) FROM notes"), "2");
}

/// Each conversation, in a session of its own, leaves the same records: refusals if enforced, and what would be refused
/// if observed.
#[test]
fn what_enforcing_refuses_is_observed() {
    const INSERT: &str = "INSERT INTO notes VALUES (1)";
    const SET: &str = "SET fencing.token = 5";
    const LOCAL: &str = "SET LOCAL fencing.token = 5";
    let conversations: &[(&[&str], &str)] = &[
        (
            &["BEGIN", "SELECT 1", LOCAL, INSERT, "COMMIT"],
            "invalid_token",
        ),
        (
            &["BEGIN", "SAVEPOINT s", LOCAL, INSERT, "COMMIT"],
            "invalid_token",
        ),
        (
            &[SET, "RESET fencing.token", "BEGIN", "TABLE notes", LOCAL],
            "invalid_token",
        ),
        (
            &[
                "BEGIN",
                "SET statement_timeout = 0",
                "SHOW port",
                LOCAL,
                INSERT,
                "COMMIT",
            ],
            "",
        ),
        (
            &["BEGIN; SELECT 1; SET LOCAL fencing.token = 5; INSERT INTO notes VALUES (1); COMMIT"],
            "",
        ),
        (
            &[
                "BEGIN", "SELECT 1", "COMMIT", "SELECT 1", "BEGIN", LOCAL, INSERT, "COMMIT",
            ],
            "",
        ),
        (&["BEGIN READ WRITE", "TABLE notes", "COMMIT"], ""),
        (&["BEGIN READ WRITE", LOCAL, INSERT, "COMMIT"], ""),
        (&["BEGIN READ WRITE", INSERT, "COMMIT"], "no_token"),
        // Deposes only itself.
        (
            &[
                SET,
                "SET fencing.token = 6",
                INSERT,
                "SET fencing.token = 7",
                INSERT,
            ],
            "",
        ),
    ];
    let expected = conversations.iter().map(|(_, kind)| *kind);
    let expected: Vec<&str> = expected.filter(|kind| !kind.is_empty()).collect();
    let by_policy = PolicyFile::new("[defaults]\nmode = \"observe\"\n");
    for (stage, is_refused) in [
        (Stage::with(SETUP), true),
        (Stage::with_flags(SETUP, OBSERVE), false),
        (Stage::governed(SETUP, &by_policy), false),
    ] {
        for (texts, _) in conversations {
            let mut wire = stage.plain();
            for text in *texts {
                wire.query(text);
            }
        }
        let pipeline = Batch::new()
            .statement("SELECT 1")
            .statement("SET fencing.token = 8");
        stage.plain().run(&pipeline.statement(INSERT).sync());
        let kinds = expected.iter().chain(&["invalid_token"]);
        let kinds: Vec<_> = kinds.map(|kind| ((*kind).to_owned(), is_refused)).collect();
        assert_eq!(stage.records(kinds.len()), kinds);
    }
}

/// An observed declaration counts for nothing once enforced: the session declares again, and the old one ends.
#[test]
fn enforcing_what_was_observed() {
    let policy = PolicyFile::new("[defaults]\nmode = \"observe\"\n");
    let stage = Stage::governed(SETUP, &policy);
    let mut old = stage.leader("33");
    let mut new = stage.leader("34");
    old.ok("BEGIN; INSERT INTO notes VALUES (1)");
    new.ok("INSERT INTO notes VALUES (2)");
    policy.reload(&stage.proxy, "");
    let is_alive = || stage.postgres.has_session(old.backend_pid());
    assert!(is_alive());
    // Its next write declares with enforcement.
    new.ok("INSERT INTO notes VALUES (3)");
    assert!(!is_alive());
    let answer = old.query("COMMIT");
    assert!(
        answer[0].sqlstate().starts_with("PF001"),
        "{}",
        pretty(&answer)
    );
    assert_eq!(stage.value("SELECT count(*) FROM notes"), "2");
}

/// An open transaction: its COMMIT also declares then.
#[test]
fn enforcing_in_the_middle_of_a_transaction() {
    let policy = PolicyFile::new("[defaults]\nmode = \"observe\"\n");
    let stage = Stage::governed(SETUP, &policy);
    let mut leader = stage.leader("34");
    leader.ok("BEGIN; INSERT INTO notes VALUES (1)");
    policy.reload(&stage.proxy, "");
    leader.ok("COMMIT");
    leader.ok("INSERT INTO notes VALUES (2)");
    assert_eq!(stage.value("SELECT count(*) FROM notes"), "2");
}

/// A session whose token became stale while observed does not write once enforced.
#[test]
fn a_stale_session_is_refused_once_it_is_enforced() {
    let policy = PolicyFile::new("[defaults]\nmode = \"observe\"\n");
    let stage = Stage::governed(SETUP, &policy);
    let mut old = stage.leader("33");
    let _new = stage.leader("34");
    old.ok("INSERT INTO notes VALUES (1)");
    policy.reload(&stage.proxy, "");
    assert_refused(&mut old, "INSERT INTO notes VALUES (2)", "PF001");
    // The read-only guard applies to it, too.
    assert_refused(&mut old, "SELECT hidden(3)", "25006");
    assert_eq!(stage.value("SELECT count(*) FROM notes"), "1");
}

/// A proxy that observes, with a store that can be paused.
fn observing_with_etcd(policy: &PolicyFile) -> (Stage, Etcd) {
    let etcd = Etcd::start(1);
    let stage = Stage::with_options(SETUP, |options| {
        let options = options.policy(policy).flag("--takeover-timeout", "2s");
        options.store(etcd.authority())
    });
    (stage, etcd)
}

/// A statement prepared before also triggers the declaration, and is refused once if that fails.
#[test]
fn a_declaration_that_fails_for_a_statement_prepared_before() {
    let policy = PolicyFile::new("[defaults]\nmode = \"observe\"\n");
    let (stage, etcd) = observing_with_etcd(&policy);
    let hidden = stage.value("SELECT 'hidden(int)'::regprocedure::oid");
    let mut wire = stage.leader("34");
    wire.ok("PREPARE by_sql AS INSERT INTO notes VALUES (1)");
    assert_passes(
        &wire.run(
            &Batch::new()
                .parse("", "INSERT INTO notes VALUES (2)")
                .sync(),
        ),
    );
    let execute = |name| Batch::new().bind("", name, &[]).execute("", 0).sync();
    let call = Batch::new().function_call(hidden.parse().unwrap(), &["3"]);
    etcd.pause(0);
    policy.reload(&stage.proxy, "");
    for batch in [execute(""), execute("by_sql"), call] {
        assert_error(&wire.run(&batch), "PF004");
        // Later statements are unaffected.
        wire.ok("SELECT 1");
    }
    etcd.resume(0);
    let found = stage.records(3);
    assert_eq!(found, vec![("authority_unavailable".to_owned(), true); 3]);
    wait_until("the declaration to succeed", || {
        let answer = wire.run(&execute("by_sql"));
        answer.iter().all(|message| message.tag != b'E')
    });
    assert_eq!(stage.value("SELECT count(*) FROM notes"), "1");
}

/// A new policy comes into force during the declaration, and the message passes after all, without a trace.
#[test]
fn a_declaration_that_fails_and_is_not_needed_any_more() {
    const OBSERVED: &str = "[defaults]\nmode = \"observe\"\n";
    let policy = PolicyFile::new(OBSERVED);
    let (stage, etcd) = observing_with_etcd(&policy);
    let mut wire = stage.leader("34");
    etcd.pause(0);
    policy.reload(&stage.proxy, "");
    wire.send(&Batch::new().query("INSERT INTO notes VALUES (1)"));
    // The declaration starts, which is invisible from outside. If it is later, the test only shows less.
    std::thread::sleep(std::time::Duration::from_millis(500));
    policy.reload(&stage.proxy, OBSERVED);
    assert_passes(&wire.until_ready());
    wire.ok("BEGIN; COMMIT");
    etcd.resume(0);
    assert_eq!(stage.value("SELECT count(*) FROM notes"), "1");
}

/// The session was stale when it declared, so it is below the mark, and its statement continues while enforcing
/// begins.
#[test]
fn a_stale_statement_in_flight_when_it_is_enforced() {
    let policy = PolicyFile::new("[defaults]\nmode = \"observe\"\n");
    let stage = Stage::governed(SETUP, &policy);
    let mut new = stage.leader("34");
    let mut old = stage.leader("33");
    let insert = "INSERT INTO notes SELECT 1 FROM pg_sleep(60)";
    old.send(&Batch::new().query(insert));
    let running = format!("SELECT count(*) FROM pg_stat_activity WHERE query = '{insert}'");
    wait_until("the statement to run", || stage.value(&running) == "1");
    policy.reload(&stage.proxy, "");
    new.ok("INSERT INTO notes VALUES (2)");
    assert_eq!(stage.value(&running), "0");
    old.until_closed();
    assert_eq!(stage.value("SELECT count(*) FROM notes"), "1");
}

/// One deadline for all scopes of a value. If none of it is enforced, one scope without an answer is enough.
#[test]
fn many_scopes_while_the_authority_is_away() {
    let policy = PolicyFile::new("[defaults]\nmode = \"observe\"\n");
    let (stage, etcd) = observing_with_etcd(&policy);
    let mut wire = stage.plain();
    etcd.pause(0);
    let begin = std::time::Instant::now();
    wire.ok("SET fencing.token = 'a=1,b=1,c=1,d=1,e=1,f=1,g=1,h=1,i=1,j=1'");
    let took = begin.elapsed();
    assert!(
        took < std::time::Duration::from_secs(10),
        "{took:?}, by a timeout of 2 s"
    );
    etcd.resume(0);
    let found = stage.records(1);
    assert_eq!(found, vec![("authority_unavailable".to_owned(), false)]);
}
