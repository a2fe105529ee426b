//! Leases by SQL: the holder of a scope's lease takes the token after the mark, one session after the other.

use std::time::{Duration, Instant};

use pgpalisade_test_servers::etcd::Etcd;
use pgpalisade_test_servers::http::Http;
use pgpalisade_test_servers::machine::{
    PATIENCE, assert_says, assert_within, wait_for, wait_until,
};
use pgpalisade_test_servers::postgres::Postgres;
use pgpalisade_test_servers::proxy::{Options, Proxy};
use pgpalisade_test_servers::stage::Stage;
use pgpalisade_test_servers::wire::{Batch, Message, TRUSTED, Wire, assert_error, errors, pretty};

use super::{SETUP, assert_holds, assert_refused, stage, value};

const POOLED: &[(&str, &str)] = &[("--pool", "transaction")];
const LEASE: &str = "SET fencing.token = 'lease'";
/// Lifetime of a lease that the proxy no longer renews.
const LIVES: Duration = Duration::from_secs(15);
/// More than a handover takes, and less than an expiry.
pub(super) const SOON: Duration = Duration::from_secs(8);

/// A session that waits in the queue.
fn ask(stage: &Stage, sql: &str) -> Wire {
    let mut wire = stage.plain();
    wire.send(&Batch::new().query(sql));
    wire
}

/// Asserts that no reply has come.
#[track_caller]
fn assert_waits(wire: &mut Wire) {
    wire.set_patience(Duration::from_millis(700));
    if let Ok(answer) = wire.try_read() {
        panic!("it does not wait: {}", pretty(&[answer]));
    }
    wire.set_patience(PATIENCE);
}

#[track_caller]
fn assert_accepted(answer: &[Message]) {
    assert!(answer.iter().all(|m| m.tag != b'E'), "{}", pretty(answer));
}

/// Asserts that it gets the lease soon, with this token.
#[track_caller]
fn assert_gets(wire: &mut Wire, token: &str) {
    let begun = Instant::now();
    let answer = wire.until_ready();
    assert_accepted(&answer);
    assert_within(begun, SOON);
    assert_holds(wire, token);
}

#[test]
fn whoever_waits_gets_it_in_the_order_of_the_line() {
    let stage = stage();
    let mut holder = stage.plain();
    holder.ok(LEASE);
    assert_holds(&mut holder, "1");
    let mut line: Vec<Wire> = Vec::new();
    for _ in 0..3 {
        let mut wire = ask(&stage, LEASE);
        assert_waits(&mut wire);
        line.push(wire);
    }
    for (wire, token) in line.iter_mut().zip(["2", "3", "4"]) {
        drop(std::mem::replace(&mut holder, stage.plain()));
        assert_gets(wire, token);
        holder = std::mem::replace(wire, stage.plain());
    }
    // Repeated, it is the same lease with the same token; other scopes have their own.
    holder.ok(LEASE);
    assert_holds(&mut holder, "4");
    let mut other = stage.plain();
    other.ok("SET fencing.token = 'other=lease'");
    assert_eq!(value(&mut other, "SHOW fencing.token"), "other=1");
    holder.extended(LEASE);
    assert_holds(&mut holder, "4");
}

/// The lease lasts as long as the session holds its token, in whatever way that ends.
#[test]
fn with_the_token_the_lease_is_laid_down() {
    lays_down(&stage());
}

#[test]
fn with_the_token_the_lease_of_a_client_that_shares_is_laid_down() {
    lays_down(&Stage::with_flags(SETUP, POOLED));
}

fn lays_down(stage: &Stage) {
    let outside: [&[&str]; 8] = [
        &[LEASE, "RESET fencing.token"],
        &[LEASE, "SET fencing.token = ''"],
        &[LEASE, "DISCARD ALL"],
        &[LEASE, "SET fencing.token = 'other=7'"],
        &["BEGIN", "SET LOCAL fencing.token = 'lease'", "COMMIT"],
        &["BEGIN", LEASE, "ROLLBACK"],
        &["BEGIN", LEASE, "SELECT 1 / 0", "ROLLBACK"],
        &[
            "SET fencing.token = 'lease,other=lease'",
            "SET fencing.token = 'other=lease'",
        ],
    ];
    for statements in outside {
        let mut holder = stage.plain();
        let mut statements = statements.to_vec();
        let last = statements.pop().unwrap();
        for statement in statements {
            holder.query(statement);
        }
        let mut next = ask(stage, LEASE);
        println!("{last}");
        assert_waits(&mut next);
        holder.query(last);
        let answer = next.until_ready();
        assert!(
            answer.iter().all(|m| m.tag != b'E'),
            "{last}: {}",
            pretty(&answer)
        );
    }
    // The socket is closed abruptly, in the middle of a statement.
    let mut holder = stage.plain();
    holder.ok(LEASE);
    holder.send(&Batch::new().query("SELECT pg_sleep(60)"));
    let mut next = ask(stage, LEASE);
    assert_waits(&mut next);
    drop(holder);
    let begun = Instant::now();
    let answer = next.until_ready();
    assert_accepted(&answer);
    assert_within(begun, SOON);
}

/// Its token comes back, one message after the other.
#[test]
fn a_rollback_to_its_token_keeps_a_lease() {
    for stage in [stage(), Stage::with_flags(SETUP, POOLED)] {
        for statements in [
            &["BEGIN", "RESET fencing.token", "ROLLBACK"][..],
            &["BEGIN", "SET LOCAL fencing.token = 'other=next'", "COMMIT"],
            &[
                "BEGIN",
                "SAVEPOINT s",
                "SET fencing.token = ''",
                "ROLLBACK TO s",
                "COMMIT",
            ],
        ] {
            let mut holder = stage.plain();
            holder.ok(LEASE);
            for statement in statements {
                holder.ok(statement);
            }
            let another = stage.plain().query("SET fencing.token = 'lease:nowait'");
            assert_error(&another, "55P03");
        }
    }
}

/// It is the client's.
#[test]
fn a_lease_outlives_a_server_connection_of_the_pool() {
    let stage = Stage::with_flags(SETUP, POOLED);
    let mut holder = stage.plain();
    holder.ok(LEASE);
    let mut next = ask(&stage, LEASE);
    holder.ok("BEGIN; SAVEPOINT s");
    let pid = value(&mut holder, "SELECT pg_backend_pid()");
    stage.sql(&format!("SELECT pg_terminate_backend({pid}, 5000)"));
    for statement in ["SELECT 1", "SELECT 1", "ROLLBACK TO s", "ROLLBACK"] {
        holder.query(statement);
    }
    assert_waits(&mut next);
    assert_holds(&mut holder, "1");
    assert_waits(&mut next);
    holder.ok("RESET fencing.token");
    assert_gets(&mut next, "2");
}

/// All leases of a value are obtained before any of its tokens is declared.
#[test]
fn a_lease_that_cannot_be_had_changes_nothing() {
    let stage = stage();
    let mut other = stage.plain();
    other.ok("SET fencing.token = 'other=lease'");
    let mut wire = stage.plain();
    for refused in ["default=lease,other=lease:3s", "default=5,other=lease:3s"] {
        let refused = wire.query(&format!("SET fencing.token = '{refused}'"));
        assert_refused(&refused, "55P03");
        assert_eq!(value(&mut wire, "SHOW fencing.mark"), "");
    }
    assert_gets(&mut ask(&stage, LEASE), "1");
}

/// Other scopes in the value have as much time as without the lease.
#[test]
fn a_wait_is_not_at_the_cost_of_other_scopes() {
    let stage = Stage::with_flags(SETUP, &[("--takeover-timeout", "1s")]);
    let mut holder = stage.plain();
    holder.ok(LEASE);
    let mut next = ask(
        &stage,
        "SET fencing.token = 'default=lease,other=5,third=next'",
    );
    std::thread::sleep(Duration::from_secs(2));
    drop(holder);
    next.until_ready();
    let held = value(&mut next, "SHOW fencing.token");
    assert_eq!(held, "default=2,other=5,third=1");
}

#[test]
fn two_that_want_the_same_leases_do_not_wait_for_each_other() {
    let stage = stage();
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for number in 0..6 {
            let value = ["a=lease,b=lease", "b=lease,a=lease"][number % 2];
            let stage = &stage;
            scope.spawn(move || {
                stage.plain().ok(&format!("SET fencing.token = '{value}'"));
            });
        }
    });
    assert_within(begun, SOON);
}

/// A client that leaves while waiting leaves the queue, and takes no token.
#[test]
fn who_has_gone_does_not_lead() {
    let stage = stage();
    let mut holder = stage.plain();
    holder.ok(LEASE);
    let mut waiting = (0..8).map(|_| ask(&stage, "SET fencing.token = 'lease:60s'"));
    drop(waiting.by_ref().take(4).collect::<Vec<Wire>>());
    let mut half_closed: Vec<Wire> = waiting.collect();
    half_closed.iter_mut().for_each(Wire::shut_down_writing);
    let others = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'";
    wait_for("the end of their server processes", || {
        // This one, the holder, and the control connection.
        (stage.value(others).parse::<u32>().unwrap() <= 3).then_some(())
    });
    let mut next = ask(&stage, LEASE);
    assert_waits(&mut next);
    drop(holder);
    assert_gets(&mut next, "2");
}

/// Whatever it has sent ahead, and however long a statement of it runs.
#[test]
fn who_has_gone_in_a_pipeline_does_not_lead() {
    let stage = stage();
    let mut holder = stage.plain();
    holder.ok(LEASE);
    let ahead = Batch::new().query("SELECT pg_sleep(60)").query(LEASE);
    holder.send(&ahead);
    std::thread::sleep(Duration::from_millis(300));
    drop(holder);
    let mut next = ask(&stage, LEASE);
    let begun = Instant::now();
    assert_accepted(&next.until_ready());
    assert_within(begun, LIVES);
    assert_holds(&mut next, "2");
}

/// In observe mode nothing waits, and no session is ended.
#[test]
fn where_it_is_only_observed_nobody_waits() {
    let etcd = Etcd::start(1);
    let stage = Stage::with_options(SETUP, |options| {
        let options = options.variable("PGPALISADE_OBSERVE", "true");
        options.store(etcd.authority())
    });
    let mut holder = stage.plain();
    holder.ok(LEASE);
    let mut other = stage.plain();
    let begun = Instant::now();
    other.ok(LEASE);
    assert_within(begun, Duration::from_secs(2));
    assert_eq!(value(&mut other, "SHOW fencing.token"), "");
    drop(etcd);
    std::thread::sleep(LIVES);
    assert_eq!(value(&mut holder, "SELECT 1"), "1");
}

/// A different time for a held lease does not change the lease.
#[test]
fn a_lease_keeps_its_token_whatever_its_time() {
    let stage = stage();
    let mut holder = stage.plain();
    holder.ok(LEASE);
    let mut next = ask(&stage, LEASE);
    assert_waits(&mut next);
    for time in ["lease:3s", "lease", "lease:600s"] {
        holder.ok(&format!("SET fencing.token = '{time}'"));
        assert_holds(&mut holder, "1");
    }
    assert_waits(&mut next);
}

#[test]
fn who_has_waited_long_enough_is_told() {
    let stage = stage();
    let mut holder = stage.plain();
    holder.ok(LEASE);
    let mut wire = stage.plain();
    for statement in [
        "SET fencing.token = 'lease:3s'",
        "SELECT set_config('fencing.token', 'lease:3s', false)",
    ] {
        let begun = Instant::now();
        let refused = assert_refused(&wire.query(statement), "55P03");
        let waited = begun.elapsed();
        assert!(
            waited >= Duration::from_secs(3) && waited < SOON,
            "{waited:?}"
        );
        for words in [
            "55P03: another session holds the lease of scope \"default\"",
            "The session asked for \"lease:3s\". Nothing was changed.",
            "To keep waiting, ask for the lease again.",
        ] {
            assert!(refused.contains(words), "{words}: {refused}");
        }
        assert_eq!(value(&mut wire, "SHOW fencing.token"), "");
        assert_refused(&wire.query("INSERT INTO jobs VALUES (1)"), "PF002");
    }
    for wrong in ["lease:2s", "lease:4000s", "lease:15", "leases", "Lease"] {
        let refused = wire.query(&format!("SET fencing.token = '{wrong}'"));
        assert_refused(&refused, "PF003");
    }
    // Also at login, where it cannot be repeated.
    let mut late = Wire::open(&stage.proxy.endpoint(), &[("fencing.token", "lease:3s")]);
    assert_refused(&late.until_closed(), "55P03");
    assert_holds(&mut holder, "1");
    drop(holder);
    let mut third = stage.leader("lease:3s");
    assert_holds(&mut third, "2");
    let kinds: Vec<String> = stage
        .records(10)
        .into_iter()
        .map(|(kind, _)| kind)
        .collect();
    assert!(kinds.contains(&"lease_held".to_owned()), "{kinds:?}");
}

#[test]
fn who_does_not_wait_is_told_at_once() {
    const NO_WAIT: &str = "SET fencing.token = 'lease:nowait'";
    let stage = stage();
    let mut holder = stage.plain();
    holder.ok(NO_WAIT);
    assert_holds(&mut holder, "1");
    // Repeated, it is the same.
    holder.ok(NO_WAIT);
    let mut wire = stage.plain();
    let begun = Instant::now();
    for statement in [
        NO_WAIT,
        "SET fencing.token = 'default=lease,other=lease:nowait'",
    ] {
        assert_refused(&wire.query(statement), "55P03");
    }
    assert_within(begun, Duration::from_secs(3));
    holder.ok("RESET fencing.token");
    wait_until("the lease", || {
        wire.query(NO_WAIT).iter().all(|m| m.tag != b'E')
    });
    assert_holds(&mut wire, "2");
}

/// A holder with a time keeps its lease by repeating the statement, and loses it otherwise.
#[test]
fn a_lease_with_a_time_is_the_clients_to_renew() {
    let stage = stage();
    let mut holder = stage.plain();
    let renew = "SET fencing.token = 'lease:3s'";
    holder.ok(renew);
    let begun = Instant::now();
    let mut next = ask(&stage, LEASE);
    while begun.elapsed() < Duration::from_secs(5) {
        holder.ok(renew);
        assert_holds(&mut holder, "1");
        assert_waits(&mut next);
    }
    assert_gets(&mut next, "2");
    let ended = holder.query("INSERT INTO jobs VALUES (1)");
    assert_refused(&ended, "PF001");
}

/// Whenever it is requested: a candidate that waits a second longer gets it.
#[test]
fn a_lease_ends_with_its_time() {
    let stage = stage();
    for (asked_before, token) in [(false, 1), (true, 3)] {
        let mut holder = stage.plain();
        if asked_before {
            holder.ok(LEASE);
        }
        holder.ok("SET fencing.token = 'lease:3s'");
        assert_holds(&mut holder, &token.to_string());
        stage.plain().ok("SET fencing.token = 'lease:4s'");
    }
}

/// The proxy renews, so an idle client keeps its lease beyond its time, whether it would have waited for it or not.
#[test]
fn a_lease_without_a_time_is_the_proxys_to_renew() {
    const AT_ONCE: &str = "SET fencing.token = 'other=lease:nowait'";
    let stage = stage();
    let (mut holder, mut idle) = (stage.plain(), stage.plain());
    holder.ok(LEASE);
    idle.ok(AT_ONCE);
    let begun = Instant::now();
    for waits in [LEASE, "SET fencing.token = 'lease:4s'"] {
        assert_refused(&stage.plain().query(waits), "55P03");
    }
    assert!(begun.elapsed() > LIVES);
    assert_holds(&mut holder, "1");
    assert_refused(&stage.plain().query(AT_ONCE), "55P03");
    // A number deposes a lease holder too, and its lease ends with its session.
    let leader = stage.leader("5");
    assert_refused(&holder.query("INSERT INTO jobs VALUES (1)"), "PF001");
    assert_gets(&mut ask(&stage, LEASE), "6");
    drop(leader);
}

/// Of all waiting sessions only one asks: the authority's load does not grow with the queue.
#[test]
fn only_the_first_in_the_line_asks() {
    let (http, stage) = {
        let postgres = Postgres::start();
        postgres.sql(SETUP);
        let (http, proxy) = Http::with_proxy(&postgres);
        (http, Stage { proxy, postgres })
    };
    let steps = "pgpalisade_authority_answer_seconds_count{operation=\"lease\"}";
    let mut holder = stage.plain();
    holder.ok(LEASE);
    let mut line: Vec<Wire> = (0..200).map(|_| ask(&stage, LEASE)).collect();
    std::thread::sleep(Duration::from_secs(1));
    let (begun, before) = (Instant::now(), http.metrics().of(steps));
    std::thread::sleep(Duration::from_secs(4));
    let asked = http.metrics().of(steps) - before;
    let most = begun.elapsed().as_secs_f64() * 5.0 + 2.0;
    assert!(asked <= most, "{asked} steps for 200 that wait");
    drop(holder);
    let [first, second, ..] = line.as_mut_slice() else {
        unreachable!("they are 200")
    };
    assert_gets(first, "2");
    // One was woken: the others wait on.
    assert_waits(second);
}

/// Two proxies on one store.
pub(super) struct Pair {
    pub(super) first: Proxy,
    pub(super) second: Proxy,
    etcd: Etcd,
    _postgres: Postgres,
}

impl Pair {
    fn start() -> Self {
        Self::with_flags(&[])
    }

    pub(super) fn with_flags(flags: &[(&str, &str)]) -> Self {
        let postgres = Postgres::start();
        postgres.sql(SETUP);
        let etcd = Etcd::start(1);
        let options = Options::new(&postgres).flags(flags);
        let options = options.store(etcd.authority());
        Self {
            first: Proxy::start_with(options.clone()),
            second: Proxy::start_with(options),
            etcd,
            _postgres: postgres,
        }
    }

    pub(super) fn plain(proxy: &Proxy) -> Wire {
        Wire::login(&proxy.endpoint(), &TRUSTED)
    }

    fn kept(&self) -> String {
        self.etcd
            .ctl(&["get", "--prefix", "--keys-only", "/pgpalisade/scope-lease/"])
    }
}

/// The lease expires if the proxy was killed, and the session ends if its store is gone.
#[test]
fn a_lease_that_cannot_be_renewed_is_lost() {
    let mut pair = Pair::start();
    let mut holder = Pair::plain(&pair.first);
    // In the store it lives no longer than any other.
    holder.ok("SET fencing.token = 'lease:3600s'");
    let mut next = Pair::plain(&pair.second);
    pair.first.kill();
    let begun = Instant::now();
    // It may need another wait: etcd ends a lease a little late.
    wait_for("the lease has lapsed", || {
        let answer = next.query(LEASE);
        answer.iter().all(|m| m.tag != b'E').then_some(())
    });
    assert!(begun.elapsed() < LIVES * 2, "{:?}", begun.elapsed());
    assert_holds(&mut next, "2");
    pair.etcd.kill(0);
    let begun = Instant::now();
    let ended: Vec<Message> = next.until_closed();
    let text = assert_refused(&ended, "57P01");
    assert_says(&text, "its lease could not be renewed in time");
    assert!(begun.elapsed() < LIVES, "before it could be another's");
}

/// A short outage of the store ends no waiting session.
#[test]
fn who_waits_outlasts_its_store() {
    let mut pair = Pair::start();
    let mut holder = Pair::plain(&pair.first);
    holder.ok("SET fencing.token = 'lease:3s'");
    let mut next = Pair::plain(&pair.second);
    next.send(&Batch::new().query(LEASE));
    assert_waits(&mut next);
    pair.etcd.kill(0);
    std::thread::sleep(Duration::from_secs(2));
    pair.etcd.restart(0);
    let answer = next.until_ready();
    let codes = errors(&answer);
    // It may not have become free in time; but the session goes on.
    assert!(
        codes.is_empty() || codes == ["55P03"],
        "{}",
        pretty(&answer)
    );
    assert_eq!(value(&mut next, "SELECT 1"), "1");
}

/// A stopping proxy releases its leases, and grants no more: a waiting session of its own would end at once.
#[test]
fn a_proxy_that_stops_leaves_no_lease() {
    let mut pair = Pair::start();
    let asks = |scope| {
        let mut wire = Pair::plain(&pair.first);
        let lease = format!("SET fencing.token = 's{scope}=lease:600s'");
        wire.send(&Batch::new().query(&lease));
        wire
    };
    let mut holders: Vec<Wire> = (0..10).map(asks).collect();
    for holder in &mut holders {
        assert_accepted(&holder.until_ready());
    }
    let mut waiting: Vec<Wire> = (0..10).map(asks).collect();
    assert_waits(&mut waiting[9]);
    assert!(pair.first.terminate().success());
    assert_eq!(pair.kept().trim(), "");
    let mut later = Pair::plain(&pair.second);
    for scope in 0..10 {
        later.ok(&format!("SET fencing.token = 's{scope}=next'"));
        assert_eq!(
            value(&mut later, "SHOW fencing.token"),
            format!("s{scope}=2")
        );
    }
}

/// The sessions of one proxy do not pass a lease among themselves for ever.
#[test]
fn the_other_proxy_has_its_turn() {
    let pair = Pair::start();
    let over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !over.load(std::sync::atomic::Ordering::Relaxed) {
                    let mut wire = Pair::plain(&pair.first);
                    wire.query(LEASE);
                }
            });
        }
        std::thread::sleep(Duration::from_secs(1));
        let answer = Pair::plain(&pair.second).query(LEASE);
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        assert_accepted(&answer);
    });
}

/// It hangs, and a higher token has deposed it.
#[test]
fn a_deposed_client_that_shares_and_says_nothing_loses_its_lease() {
    let stage = Stage::with_flags(SETUP, POOLED);
    let mut hangs = stage.plain();
    hangs.ok(LEASE);
    let mut next = ask(&stage, LEASE);
    assert_waits(&mut next);
    stage.plain().ok("SET fencing.token = 'after:1'");
    assert_gets(&mut next, "3");
    hangs.fails("SELECT 1", "PF001");
}
