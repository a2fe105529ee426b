//! Many candidates at once, on two proxies that share a store, while a proxy or the store is killed.

use std::sync::Barrier;

use pgpalisade_test_servers::etcd::Etcd;
use pgpalisade_test_servers::machine::{Signal, wait_for};
use pgpalisade_test_servers::postgres::Postgres;
use pgpalisade_test_servers::proxy::{Options, Proxy, Store};
use pgpalisade_test_servers::wire::{Endpoint, PROTOCOL_3_0, TRUSTED, Wire, trusted};

use super::SETUP;

/// Per round.
const CANDIDATES: usize = 50;
const ROUNDS: u64 = 5;
/// Round in which a proxy is killed.
const PROXY_KILLED: u64 = 2;
/// Round in which the store is killed and restarted.
const STORE_KILLED: u64 = 3;

/// All of them have read the same mark. Returns those that took the token after it.
fn round(proxies: [&Endpoint; 2], mark: u64, killing: impl FnOnce()) -> Vec<(Wire, String)> {
    let claim = format!("after:{mark}");
    let start = Barrier::new(CANDIDATES + 1);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..CANDIDATES)
            .map(|number| {
                let (claim, start, proxy) = (&claim, &start, proxies[number % 2]);
                scope.spawn(move || take(proxy, claim, start))
            })
            .collect();
        start.wait();
        killing();
        let done = threads
            .into_iter()
            .filter_map(|thread| thread.join().unwrap());
        done.collect()
    })
}

/// The session and its token, if it got one: its proxy may be killed at any time.
fn take(proxy: &Endpoint, claim: &str, start: &Barrier) -> Option<(Wire, String)> {
    let connected = Wire::try_connect(proxy);
    start.wait();
    let mut wire = connected.ok()?;
    wire.startup(PROTOCOL_3_0, &trusted(&[("fencing.token", claim)]));
    let mut answer = Vec::new();
    loop {
        let message = wire.try_read().ok()?;
        match message.tag {
            b'Z' => break,
            b'E' => {
                // With PF004 it is unknown whether it was stored.
                let code = message.sqlstate();
                assert!(["PF001", "PF004"].contains(&code.as_str()), "{message:?}");
                return None;
            }
            _ if message.is_closed() => return None,
            _ => answer.push(message),
        }
    }
    wire.try_send_bytes(
        pgpalisade_test_servers::wire::Batch::new()
            .query("SHOW fencing.token")
            .bytes(),
    )
    .ok()?;
    loop {
        let message = wire.try_read().ok()?;
        match message.tag {
            b'D' => return Some((wire, message.row().concat())),
            _ if message.is_closed() => return None,
            _ => {}
        }
    }
}

fn race(store: Store, postgres: &Postgres, kill_store: &mut dyn FnMut()) {
    postgres.sql(SETUP);
    let mut options = Options::new(postgres).flag("--takeover-timeout", "20s");
    options.store = store;
    let mut first = Proxy::start_with(options.clone());
    let second = Proxy::start_with(options);
    let ends = [first.endpoint(), second.endpoint()];
    let mut mark = 0;
    for number in 0..ROUNDS {
        let winners = round([&ends[0], &ends[1]], mark, || match number {
            PROXY_KILLED => first.kill(),
            STORE_KILLED => kill_store(),
            _ => {}
        });
        let tokens: Vec<&str> = winners.iter().map(|(_, token)| token.as_str()).collect();
        let next = mark + 1;
        // The winner may have been at the killed proxy, with its reply.
        let lost = [PROXY_KILLED, STORE_KILLED].contains(&number) && tokens.is_empty();
        let one = [next.to_string()];
        assert!(lost || tokens == one, "after {mark}: {tokens:?}");
        let unknown = number == STORE_KILLED && tokens.is_empty();
        let raised = wait_for("the mark", || {
            if unknown {
                taken(&ends[1])
            } else {
                // A proxy learns of another proxy's mark a moment later.
                value(&ends[1], "SHOW fencing.mark").filter(|mark| *mark == next)
            }
        });
        println!("round {number} after {mark}: {tokens:?}, {raised}");
        mark = raised;
    }
}

fn value(proxy: &Endpoint, sql: &str) -> Option<u64> {
    let mut wire = Wire::login(proxy, &TRUSTED);
    wire.rows(sql).concat().concat().parse().ok()
}

/// Without a reply it is unknown whether the mark was raised. Another take raises it.
fn taken(proxy: &Endpoint) -> Option<u64> {
    let mut wire = Wire::login(proxy, &TRUSTED);
    wire.query("SET fencing.token = 'next'");
    wire.rows("SHOW fencing.token")
        .concat()
        .concat()
        .parse()
        .ok()
}

#[test]
fn one_of_fifty_wins_on_etcd() {
    let (postgres, mut etcd) = (Postgres::start(), Etcd::start(1));
    race(Store::Url(etcd.authority()), &postgres, &mut || {
        etcd.kill(0);
        etcd.restart(0);
    });
}

#[test]
fn one_of_fifty_wins_on_postgresql() {
    let (postgres, mut marks) = (Postgres::start(), Postgres::start());
    let dsn = format!("postgres:{}", marks.admin_dsn());
    race(Store::Url(dsn), &postgres, &mut || {
        marks.crash_by(Signal::KILL);
        marks.start_again(&[]);
    });
}
