//! Failovers by Patroni with synchronous replication: no confirmed write is lost, a stale leader stays refused, and
//! the proxy needs no help.

use std::sync::Mutex;
use std::time::Instant;

use pgpalisade_judges::proof::client::Client;
use pgpalisade_judges::proof::history::Answer;
use pgpalisade_judges::proof::stop::Stop;
use pgpalisade_test_servers::machine::wait_until;
use pgpalisade_test_servers::patroni::Patroni;
use pgpalisade_test_servers::proxy::Proxy;
use pgpalisade_test_servers::stage::leader;

use super::{AT_MOST, SETUP, assert_clear, attempt, first_write};

/// Writes one number after the other, and records the confirmed ones.
fn write(proxy: &Proxy, token: &str, confirmed: &Mutex<Vec<u32>>, stop: &Stop) {
    let mut ids = (100..).map(|id| (id, format!("INSERT INTO jobs VALUES ({id})")));
    let patience = std::time::Duration::from_secs(2);
    while !stop.is_stopped() {
        let own = [("database", "postgres"), ("fencing.token", token)];
        let Ok(mut client) = Client::login(&proxy.endpoint(), &own, patience) else {
            continue;
        };
        for (id, sql) in &mut ids {
            if client.query(&sql).answer != Answer::Ok {
                break;
            }
            confirmed.lock().unwrap().push(id);
            if stop.sleep(std::time::Duration::from_millis(5)) {
                return;
            }
        }
    }
}

/// Runs an event under a writer with this token. Then a new leader comes with the next one.
fn survive(
    (servers, proxy): (&mut Patroni, &Proxy),
    token: u32,
    event: impl FnOnce(&mut Patroni, usize),
) {
    let (confirmed, stop) = (Mutex::default(), Stop::default());
    let primary = servers.wait_until_whole();
    let old = token.to_string();
    let mut idle = leader(&proxy.endpoint(), &old);
    idle.ok(&format!("INSERT INTO jobs VALUES ({token})"));
    let began = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| write(proxy, &old, &confirmed, &stop));
        wait_until("a confirmed write", || {
            !confirmed.lock().unwrap().is_empty()
        });
        event(servers, primary);
        let promoted = Instant::now();
        let next = (token + 1).to_string();
        let (_, refusals) = first_write(proxy, &next, token + 50);
        println!(
            "promoted after {:?}, the first write {:?} later",
            promoted - began,
            promoted.elapsed()
        );
        assert_clear(&refusals);
        assert!(promoted.elapsed() < AT_MOST);
        stop.stop();
    });
    assert!(!idle.until_closed().is_empty());
    let stale = attempt(proxy, &old, "INSERT INTO jobs VALUES (0)");
    assert_eq!(stale, Err("PF001".to_owned()));
    servers.revive(primary);
    assert_ne!(servers.wait_until_whole(), primary);
    let there = servers
        .admin("postgres")
        .rows("SELECT id FROM jobs")
        .concat();
    let confirmed = confirmed.into_inner().unwrap();
    for id in [token, token + 50].iter().chain(&confirmed) {
        assert!(there.contains(&id.to_string()), "{id} is lost");
    }
    servers.admin("postgres").ok("DELETE FROM jobs");
}

#[test]
fn a_switchover_and_a_crash_under_patroni() {
    let mut servers = Patroni::start();
    servers.admin("postgres").ok(SETUP);
    let proxy = Proxy::start_with(servers.options());
    survive((&mut servers, &proxy), 1, |servers, primary| {
        servers.switchover();
        servers.wait_for_promotion(1 - primary);
    });
    survive((&mut servers, &proxy), 3, |servers, primary| {
        servers.kill(primary);
        servers.wait_for_promotion(1 - primary);
    });
}
