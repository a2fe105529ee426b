//! Many candidates at once, over two proxies that share a store, while one of them is killed.

use std::sync::Barrier;

use pgpalisade_tests::etcd::Etcd;
use pgpalisade_tests::postgres::Postgres;
use pgpalisade_tests::proxy::{Options, Proxy, Store};
use pgpalisade_tests::wire::{Endpoint, PROTOCOL_3_0, Wire};

use super::SETUP;

/// Per round.
const CANDIDATES: usize = 50;
const ROUNDS: u64 = 4;
/// In which a proxy is killed.
const KILLED: u64 = 2;

/// All of them have read the same mark. Which took the token after it.
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

/// The session and its token, where it got one: its proxy may be killed at any time.
fn take(proxy: &Endpoint, claim: &str, start: &Barrier) -> Option<(Wire, String)> {
    let connected = Wire::try_connect(proxy);
    start.wait();
    let mut wire = connected.ok()?;
    wire.startup(
        PROTOCOL_3_0,
        &[
            ("user", "postgres"),
            ("database", "postgres"),
            ("fencing.token", claim),
        ],
    );
    let mut answer = Vec::new();
    loop {
        let message = wire.try_read().ok()?;
        match message.tag {
            b'Z' => break,
            b'E' => {
                assert_eq!(message.sqlstate(), "PF001", "{message:?}");
                return None;
            }
            _ if message.is_closed() => return None,
            _ => answer.push(message),
        }
    }
    wire.try_send_bytes(
        pgpalisade_tests::wire::Batch::new()
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

fn race(store: Store, postgres: &Postgres) {
    postgres.sql(SETUP);
    let mut options = Options::new(postgres).flag("--takeover-timeout", "20s");
    options.store = store;
    let mut first = Proxy::start_with(options.clone());
    let second = Proxy::start_with(options);
    let ends = [first.endpoint(), second.endpoint()];
    for mark in 0..ROUNDS {
        let winners = round([&ends[0], &ends[1]], mark, || {
            if mark == KILLED {
                first.kill();
            }
        });
        let tokens: Vec<&str> = winners.iter().map(|(_, token)| token.as_str()).collect();
        let next = (mark + 1).to_string();
        // Whoever got it may have been at the proxy that was killed, with its answer.
        let lost = mark == KILLED && tokens.is_empty();
        assert!(lost || tokens == [&next], "after {mark}: {tokens:?}");
        let mut wire = Wire::login(&ends[1], &[("user", "postgres"), ("database", "postgres")]);
        let raised = wire.rows("SHOW fencing.mark").concat().concat();
        assert_eq!(raised, next, "one has taken it in each round");
        println!("after {mark}: {tokens:?}");
    }
}

#[test]
fn one_of_fifty_wins_on_etcd() {
    let (postgres, etcd) = (Postgres::start(), Etcd::start(1));
    race(Store::Url(etcd.authority()), &postgres);
}

#[test]
fn one_of_fifty_wins_on_postgresql() {
    let (postgres, marks) = (Postgres::start(), Postgres::start());
    let dsn = format!("postgres:{}", marks.admin_dsn());
    race(Store::Url(dsn), &postgres);
}
