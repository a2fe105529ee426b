//! How long nobody writes when the proxy of the leader ends: two programs that work all the time, each through a
//! listener of its own proxy, which gives it the token while that proxy leads.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use pgpalisade_test_servers::machine;
use pgpalisade_test_servers::policy::PolicyFile;
use pgpalisade_test_servers::postgres::Postgres;
use pgpalisade_test_servers::proxy::{Options, Proxy};
use pgpalisade_test_servers::wire::Endpoint;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::proof::client::Client;
use crate::proof::history::Answer;
use crate::proof::listeners::Source;
use crate::proof::stop::Stop;
use crate::proof::store::{RunningStore, StoreKind};

/// A program's timeout for a reply, before it reconnects.
const PATIENCE: Duration = Duration::from_secs(1);
/// Between two writes or attempts of a program.
const PAUSE: Duration = Duration::from_millis(10);
const NEXT_WITHIN: Duration = Duration::from_secs(60);

/// Table of the scope, so that its token alone is needed.
const POLICY: &str = "[scope.led]\ntables = [\"public.beats\"]\n";

/// Name of an end, how it comes, and what brings the proxy back.
type End = (&'static str, fn(&mut Proxy), fn(&mut Proxy));

const ENDS: [End; 3] = [
    (
        "stops (SIGTERM)",
        |proxy| _ = proxy.terminate(),
        Proxy::restart,
    ),
    ("is killed", Proxy::kill, Proxy::restart),
    (
        "sleeps (SIGSTOP)",
        |proxy| proxy.pause(),
        |proxy| proxy.resume(),
    ),
];

struct Replica {
    proxy: Mutex<Proxy>,
    listener: Endpoint,
    writes: Mutex<Vec<Instant>>,
}

impl Replica {
    fn start(source: Source, options: Options) -> Self {
        let address = ([127, 0, 0, 1], machine::free_port()).into();
        let options = options.flag("--listener", &source.table(address));
        Self {
            proxy: Mutex::new(Proxy::start_with(options)),
            listener: Endpoint::Tcp(address),
            writes: Mutex::default(),
        }
    }

    /// Writes whenever it can, on a new connection after each refusal.
    fn work(&self, stop: &Stop) {
        while !stop.sleep(PAUSE) {
            let Ok(mut client) =
                Client::login(&self.listener, &[("database", "postgres")], PATIENCE)
            else {
                continue;
            };
            while client.query("INSERT INTO beats DEFAULT VALUES").answer == Answer::Ok {
                self.writes.lock().expect("writes").push(Instant::now());
                if stop.sleep(PAUSE) {
                    return;
                }
            }
        }
    }

    fn first_write(&self, since: Instant) -> Option<Instant> {
        let writes = self.writes.lock().expect("writes");
        let later = writes.partition_point(|at| *at <= since);
        writes.get(later).copied()
    }
}

/// Prints a Markdown table with median and maximum.
///
/// # Panics
///
/// When nobody writes any more.
pub fn measure(source: Source, store: StoreKind, rounds: u32, seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    let postgres = Postgres::start();
    postgres.sql("CREATE TABLE beats (id bigserial)");
    let policy = PolicyFile::new(POLICY);
    let running = RunningStore::start(store);
    let replicas = [(); 2].map(|()| {
        let mut options = Options::new(&postgres);
        options.store = running.direct();
        Replica::start(
            source,
            options.flag("--policy", &policy.path().display().to_string()),
        )
    });
    let stop = Stop::default();
    println!(
        "| s, {}, {} | median | longest |\n| --- | --- | --- |",
        source.name(),
        store.name()
    );
    std::thread::scope(|scope| {
        for replica in &replicas {
            scope.spawn(|| replica.work(&stop));
        }
        for end in ENDS {
            let mut times: Vec<f64> = (0..rounds)
                .map(|_| {
                    // The lease is renewed every 5 s: an end must hit all phases.
                    stop.sleep(Duration::from_millis(random.random_range(2_000..7_000)));
                    after(end, &replicas).as_secs_f64()
                })
                .collect();
            times.sort_by(f64::total_cmp);
            println!(
                "| {} | {:.2} | {:.2} |",
                end.0,
                times[times.len() / 2],
                times[times.len() - 1]
            );
        }
        stop.stop();
    });
}

/// Time from the end of the leader's proxy to the first write through the other.
fn after((_, end, revive): End, replicas: &[Replica; 2]) -> Duration {
    let now = Instant::now();
    let [first, second] = replicas;
    let (leader, next) = machine::wait_for("a leader", || {
        let pairs = [(first, second), (second, first)];
        pairs
            .into_iter()
            .find(|(leader, _)| leader.first_write(now).is_some())
    });
    let mut proxy = leader.proxy.lock().expect("a proxy");
    let begin = Instant::now();
    end(&mut proxy);
    let written = machine::wait_at_most(NEXT_WITHIN, || next.first_write(begin));
    revive(&mut proxy);
    written.expect("the other proxy leads") - begin
}
