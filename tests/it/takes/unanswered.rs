//! Takes whose reply is lost: the same session gets its token, and no other does.

use std::time::Duration;

use pgpalisade_test_servers::etcd::Etcd;
use pgpalisade_test_servers::held_relay::{Direction, HeldRelay};
use pgpalisade_test_servers::machine::wait_until;
use pgpalisade_test_servers::postgres::Postgres;
use pgpalisade_test_servers::proxy::{Options, Proxy};
use pgpalisade_test_servers::wire::{TRUSTED, Wire, pretty};

use super::{SETUP, assert_holds, assert_refused, value};

/// A proxy that reaches etcd through a relay.
struct Lossy {
    proxy: Proxy,
    relay: HeldRelay,
    _etcd: Etcd,
    _postgres: Postgres,
}

impl Lossy {
    fn start(timeout: &str) -> Self {
        let (postgres, etcd) = (Postgres::start(), Etcd::start(1));
        postgres.sql(SETUP);
        let address = etcd.urls().concat().replace("http://", "");
        let relay = HeldRelay::start(address.parse().unwrap());
        let options = Options::new(&postgres)
            .flag("--takeover-timeout", timeout)
            .store(format!("etcd:http://{}", relay.address()));
        Self {
            proxy: Proxy::start_with(options),
            relay,
            _etcd: etcd,
            _postgres: postgres,
        }
    }

    /// A session whose backend is already known.
    fn session(&self) -> Wire {
        let mut wire = Wire::login(&self.proxy.endpoint(), &TRUSTED);
        wire.ok("SET fencing.token = 'known=1'");
        wire
    }
}

/// The store retries by itself, and finds the mark that it has raised.
#[test]
fn inside_the_store() {
    let lossy = Lossy::start("5s");
    let (mut one, mut other) = (lossy.session(), lossy.session());
    for (token, claim) in [("1", "after:0"), ("2", "next")] {
        lossy.relay.hold(Direction::ToClient);
        one.ok(&format!("SET fencing.token = '{claim}'"));
        assert!(lossy.relay.held_bytes(Direction::ToClient) > 0);
        lossy.relay.release(Direction::ToClient);
        assert_holds(&mut one, token);
        assert_eq!(value(&mut one, "SHOW fencing.mark"), token);
    }
    for claim in ["after:0", "after:1"] {
        let refused = other.query(&format!("SET fencing.token = '{claim}'"));
        assert_refused(&refused, "PF001");
    }
    other.ok("SET fencing.token = 'after:2'");
    assert_holds(&mut other, "3");
}

/// The client is told that the result is unknown, and repeats the statement.
#[test]
fn of_the_same_session() {
    let lossy = Lossy::start("500ms");
    let (mut one, mut other) = (lossy.session(), lossy.session());
    let take = "SET fencing.token = 'after:0'";
    lossy.relay.hold(Direction::ToClient);
    assert_refused(&one.query(take), "PF004");
    lossy.relay.release(Direction::ToClient);
    wait_until("the take to be heard of", || {
        value(&mut other, "SHOW fencing.mark") == "1"
    });
    assert_refused(&other.query(take), "PF001");
    one.ok(take);
    assert_holds(&mut one, "1");
    assert_refused(&one.query(take), "PF001");
    other.ok("SET fencing.token = 'after:1'");
    assert_holds(&mut other, "2");
}

/// A session that takes any next token: it is unknown at which token the register has it, or will have it.
#[test]
fn whatever_came_next() {
    let lossy = Lossy::start("500ms");
    let mut one = lossy.session();
    one.set_patience(Duration::from_secs(20));
    lossy.relay.hold(Direction::ToClient);
    let answer = one.query("SET fencing.token = 'next'");
    lossy.relay.release(Direction::ToClient);
    assert_refused(&answer, "PF004");
    assert_eq!(answer[0].severity(), "FATAL", "{}", pretty(&answer));
    let mut other = lossy.session();
    wait_until("the take to be heard of", || {
        value(&mut other, "SHOW fencing.mark") == "1"
    });
    other.ok("SET fencing.token = 'after:1'");
    assert_holds(&mut other, "2");
}
