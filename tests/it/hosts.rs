//! Several hosts: the proxy finds and follows the primary. In every failover a stale leader writes nothing on the
//! surviving timeline.

mod failover;
mod names;
mod patroni;

use std::time::{Duration, Instant};

use pgpalisade_test_servers::machine::PATIENCE;
use pgpalisade_test_servers::postgres::Postgres;
use pgpalisade_test_servers::proxy::{Options, Proxy};
use pgpalisade_test_servers::wire::{Message, Wire, assert_error, errors};

const SETUP: &str = "CREATE TABLE jobs (id int PRIMARY KEY)";

/// Delay that the proxy may add to a failover: a round of the patrol, a query, and a slow machine.
const AT_MOST: Duration = Duration::from_secs(10);

/// A primary with a streaming standby, and a proxy that knows both.
struct Pair {
    proxy: Proxy,
    primary: Postgres,
    standby: Postgres,
}

/// Options for a proxy of these hosts.
fn options(hosts: &[&Postgres]) -> Options {
    let named: Vec<String> = hosts
        .iter()
        .map(|host| format!("127.0.0.1:{}", host.port()))
        .collect();
    Options {
        upstream: format!("postgres://{}", named.join(",")),
        control: "user=postgres dbname=postgres".to_owned(),
        ..Options::new(hosts[0])
    }
}

fn servers() -> (Postgres, Postgres) {
    let primary = Postgres::start();
    primary.sql(SETUP);
    let standby = primary.replica();
    standby.wait_for_replay(&primary);
    (primary, standby)
}

impl Pair {
    fn start() -> Self {
        let (primary, standby) = servers();
        let proxy = Proxy::start_with(options(&[&primary, &standby]));
        Self {
            proxy,
            primary,
            standby,
        }
    }

    fn leader(&self, token: &str) -> Wire {
        pgpalisade_test_servers::stage::leader(&self.proxy.endpoint(), token)
    }

    /// Waits until the standby has everything from the primary.
    fn synchronize(&self) {
        self.standby.wait_for_replay(&self.primary);
    }
}

/// One attempt of a client: connects with a token, and runs one statement. Errors are SQLSTATEs.
fn attempt(proxy: &Proxy, token: &str, sql: &str) -> Result<(), String> {
    let mut wire = Wire::try_connect(&proxy.endpoint()).map_err(|error| error.to_string())?;
    wire.set_patience(PATIENCE);
    let answer = wire.start_as_leader(token);
    let refused = |answer: &[Message]| {
        let is_closed = answer.iter().any(Message::is_closed);
        match (errors(answer).into_iter().next(), is_closed) {
            (Some(error), _) => Err(error),
            (None, true) => Err("closed".to_owned()),
            (None, false) => Ok(()),
        }
    };
    refused(&answer)?;
    refused(&wire.query(sql))
}

/// Retries until a write succeeds, without any restart. Returns the duration, and the errors meanwhile.
#[track_caller]
fn first_write(proxy: &Proxy, token: &str, id: u32) -> (Duration, Vec<String>) {
    let began = Instant::now();
    let mut refusals = Vec::new();
    let sql = format!("INSERT INTO jobs VALUES ({id})");
    loop {
        match attempt(proxy, token, &sql) {
            Ok(()) => return (began.elapsed(), refusals),
            Err(refusal) => refusals.push(refusal),
        }
        assert!(
            began.elapsed() < PATIENCE,
            "no write got through: {refusals:?}"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Asserts that each refusal names the failover as its reason.
#[track_caller]
fn assert_clear(refusals: &[String]) {
    let clear = [
        "PF006", "PF007", "57P01", "57P03", "08006", "57014", "closed",
    ];
    for refusal in refusals {
        assert!(clear.contains(&refusal.as_str()), "{refusals:?}");
    }
}

/// Asserts that the session ends with this SQLSTATE, without a request.
#[track_caller]
fn assert_ended(wire: &mut Wire, sqlstate: &str) {
    assert_error(&wire.until_closed(), sqlstate);
}

#[track_caller]
fn ids(server: &Postgres) -> Vec<String> {
    server.sql("SELECT id FROM jobs ORDER BY id").concat()
}
