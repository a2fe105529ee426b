//! A program beside a proxy with a listener. It works all the time, elects nobody and declares nothing. On each new
//! connection it reads the token that it was given.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use pgpalisade_test_servers::wire::{Batch, Endpoint};

use super::client::Client;
use super::declaration::Accepted;
use super::history::{self, Event, now};
use super::leader::{Leader, Task, pause};
use super::listeners::Listener;
use super::plan::LED;

/// A result that fills every buffer.
const LONG: &str = "SELECT repeat('x', 1000) FROM generate_series(1, 100000)";

/// Between two looks at a connection.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Works over several connections until the end of its lifetime.
pub(super) fn work(task: &Task, listener: Listener) {
    let connections = AtomicU32::new(0);
    let end = Instant::now() + task.lifetime;
    std::thread::scope(|scope| {
        for number in 0..task.sessions {
            let mut random = StdRng::seed_from_u64(task.seed.wrapping_add(number));
            let connections = &connections;
            scope.spawn(move || {
                while Instant::now() < end {
                    let number = connections.fetch_add(1, Ordering::Relaxed);
                    connect(task, listener, number, end, &mut random);
                    pause(&mut random, 5..150);
                }
            });
        }
    });
}

/// Connects, and works until the connection ends.
fn connect(task: &Task, listener: Listener, number: u32, end: Instant, random: &mut StdRng) {
    // The kernel shows the state only of a connection without a link.
    let is_deaf = random.random_bool(0.2);
    let address = if is_deaf {
        listener.direct
    } else {
        listener.address
    };
    let (at, parameters) = (now(), [("database", "postgres"), ("application_name", LED)]);
    let Ok(mut client) = Client::login(&Endpoint::Tcp(address), &parameters, task.patience) else {
        return;
    };
    let shown = client.query("SHOW fencing.token");
    let token = shown
        .value()
        .and_then(|value| value.rsplit('=').next()?.parse().ok());
    let leader = history::connection(task.leader, number);
    let Some(token) = token else {
        // Nothing of this is in the history, so if it is committed that is found.
        let id = u64::from(leader) << 24;
        client.query(&format!("INSERT INTO writes VALUES ({id}, '{LED}', 0)"));
        return;
    };
    let own = Task {
        leader,
        lifetime: end.saturating_duration_since(Instant::now()),
        ..task.clone()
    };
    let leader = Leader::new(&own, token);
    let id = leader.declarer().next_id();
    leader.declarer().record_given(id, at, listener.proxy);
    let mut client = leader.look(Accepted { client, id }, random);
    if is_deaf {
        if let Some(client) = client {
            listen_to_nothing(&leader, id, client, listener, random);
        }
        return;
    }
    while let Some(session) = client.take().filter(|_| leader.goes_on()) {
        client = leader.write(session, random);
    }
}

/// Asks for more than it reads, and records how long the proxy keeps the connection.
fn listen_to_nothing(
    leader: &Leader<'_>,
    id: u64,
    mut client: Client,
    listener: Listener,
    random: &mut StdRng,
) {
    client.send(&Batch::new().query(LONG));
    let end = Instant::now() + Duration::from_millis(random.random_range(1_000..5_000));
    let mut last = None;
    while let Some(at) = is_open(listener, &client).filter(|_| Instant::now() < end) {
        last = Some(at);
        std::thread::sleep(LOOK_EVERY);
    }
    if let Some(at) = last {
        leader.recorder.record(&Event::Open { id, at });
    }
}

/// A time at which the proxy's side of a connection was open, if it is: state 01, `TCP_ESTABLISHED`.
/// <https://www.kernel.org/doc/html/latest/networking/proc_net_tcp.html>
fn is_open(listener: Listener, client: &Client) -> Option<u64> {
    let (at, own) = (now(), client.local_port()?);
    let row = format!(
        "0100007F:{:04X} 0100007F:{own:04X} 01 ",
        listener.direct.port()
    );
    let sockets = std::fs::read_to_string("/proc/net/tcp").ok()?;
    sockets.contains(&row).then_some(at)
}
