//! Measures how long writes fail: while Patroni changes the primary, on the servers themselves, through haproxy, and
//! through pgpalisade; or after the end of a leader behind a listener.

#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a helper of tests that cannot go on fails them"
)]

use std::sync::Mutex;
use std::time::{Duration, Instant};

use clap::Parser;
use pgpalisade_judges::handover;
use pgpalisade_judges::proof::client::Client;
use pgpalisade_judges::proof::history::Answer;
use pgpalisade_judges::proof::listeners::Source;
use pgpalisade_judges::proof::stop::Stop;
use pgpalisade_judges::proof::store::StoreKind;
use pgpalisade_test_servers::machine;
use pgpalisade_test_servers::patroni::{LOOP_WAIT, Patroni, RETRY_TIMEOUT, TTL, WHOLE_WITHIN};
use pgpalisade_test_servers::postgres::scratch_dir;
use pgpalisade_test_servers::proxy::Proxy;
use pgpalisade_test_servers::wire::Endpoint;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// Measure how long writes fail while Patroni changes the primary, on three routes, or after the end of a leader
#[derive(Debug, Parser)]
struct Arguments {
    /// Number of events of each kind
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Instead, end the proxy of a leader behind a listener, which gets its token from here
    #[arg(long, value_enum)]
    listener: Option<Source>,
    /// The store with a listener; not embedded
    #[arg(long, value_enum, default_value_t = StoreKind::Etcd)]
    store: StoreKind,
    /// Seed of the times between events [default: from the clock]; printed
    #[arg(long)]
    seed: Option<u64>,
}

/// A client's timeout for a reply, before it reconnects.
const PATIENCE: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(20);

/// Name of an event, and its action on the primary with this index.
type Event = (&'static str, fn(&mut Patroni, usize));

const EVENTS: [Event; 3] = [
    ("`patronictl switchover`", |servers, _| servers.switchover()),
    (
        "the primary and its Patroni are killed",
        |servers, primary| {
            servers.kill(primary);
            servers.wait_for_promotion(1 - primary);
            servers.revive(primary);
        },
    ),
    ("the primary and its Patroni hang", |servers, primary| {
        let _frozen = servers.freeze(primary);
        servers.wait_for_promotion(1 - primary);
        // A proxy or haproxy must find the new primary while the old one still hangs.
        std::thread::sleep(Duration::from_secs(20));
    }),
];

/// A route to the primary, with the times of its confirmed writes.
struct Way {
    name: &'static str,
    endpoints: Vec<Endpoint>,
    writes: Mutex<Vec<Instant>>,
}

impl Way {
    fn new(name: &'static str, endpoints: Vec<Endpoint>) -> Self {
        let writes = Mutex::default();
        Self {
            name,
            endpoints,
            writes,
        }
    }

    /// Writes to one of the route's endpoints until the end, ignoring errors.
    fn write(&self, endpoint: &Endpoint, stop: &Stop) {
        let parameters = [("database", "postgres"), ("fencing.token", "1")];
        while !stop.sleep(PAUSE) {
            let Ok(mut client) = Client::login(endpoint, &parameters, PATIENCE) else {
                continue;
            };
            while !stop.sleep(PAUSE) {
                match client.query("INSERT INTO beats DEFAULT VALUES").answer {
                    Answer::Ok => self.writes.lock().expect("writes").push(Instant::now()),
                    // A standby.
                    Answer::Error(_) => {}
                    Answer::Lost | Answer::Silent => break,
                }
            }
        }
    }

    fn has_written(&self, behind: Instant) -> bool {
        self.writes
            .lock()
            .expect("writes")
            .last()
            .is_some_and(|last| *last > behind)
    }

    /// Longest time without a write since `from`.
    fn gap(&self, from: Instant) -> Duration {
        let writes = self.writes.lock().expect("writes");
        let gaps = writes.windows(2).filter(|pair| pair[1] > from);
        gaps.map(|pair| pair[1] - pair[0]).max().unwrap_or_default()
    }
}

fn main() {
    let arguments = Arguments::parse();
    let seed = arguments.seed.unwrap_or_else(machine::seed);
    if let Some(source) = arguments.listener {
        return handover::measure(source, arguments.store, arguments.rounds, seed);
    }
    let mut random = StdRng::seed_from_u64(seed);
    let mut servers = Patroni::start();
    servers
        .admin("postgres")
        .ok("CREATE TABLE beats (id bigserial)");
    let proxy = Proxy::start_with(servers.options());
    let dir = scratch_dir();
    let (_haproxy, balanced) = servers.haproxy(dir.path());
    let ways = [
        Way::new("on the servers", vec![servers.tcp(0), servers.tcp(1)]),
        Way::new("haproxy", vec![balanced]),
        Way::new("pgpalisade", vec![proxy.endpoint()]),
    ];
    let stop = Stop::default();
    let gaps = std::thread::scope(|scope| {
        for way in &ways {
            for endpoint in &way.endpoints {
                scope.spawn(|| way.write(endpoint, &stop));
            }
        }
        let gaps = EVENTS.map(|event| {
            let mut gaps = Vec::new();
            for _ in 0..arguments.rounds {
                // Patroni, haproxy and the proxy poll: events must hit all phases of their intervals.
                stop.sleep(Duration::from_millis(random.random_range(2_000..6_000)));
                gaps.push(measure(&mut servers, event, &ways));
            }
            gaps
        });
        stop.stop();
        gaps
    });
    print(&ways, &gaps);
}

/// Seconds without a write, for each route.
fn measure(servers: &mut Patroni, event: Event, ways: &[Way; 3]) -> [f64; 3] {
    let primary = servers.wait_until_whole();
    let begin = Instant::now();
    event.1(servers, primary);
    assert_ne!(servers.wait_until_whole(), primary);
    let whole = Instant::now();
    for way in ways {
        let written = machine::wait_at_most(WHOLE_WITHIN, || way.has_written(whole).then_some(()));
        assert!(written.is_some(), "{}: no write any more", way.name);
    }
    let gaps = [0, 1, 2].map(|way| ways[way].gap(begin).as_secs_f64());
    println!("{}: {gaps:.2?} s", event.0);
    gaps
}

/// Prints a Markdown table with median and maximum.
fn print(ways: &[Way; 3], gaps: &[Vec<[f64; 3]>; 3]) {
    println!("\nttl {TTL}, loop_wait {LOOP_WAIT}, retry_timeout {RETRY_TIMEOUT}\n");
    let names: Vec<&str> = ways.iter().map(|way| way.name).collect();
    println!(
        "| s without a write | {} |\n| --- | --- | --- | --- |",
        names.join(" | ")
    );
    for ((name, _), gaps) in EVENTS.iter().zip(gaps) {
        let cells = [0, 1, 2].map(|way| {
            let mut own: Vec<f64> = gaps.iter().map(|gaps| gaps[way]).collect();
            own.sort_by(f64::total_cmp);
            let (median, worst) = (own[own.len() / 2], own[own.len() - 1]);
            format!("{median:.1} ({worst:.1})")
        });
        println!("| {name} | {} |", cells.join(" | "));
    }
}
