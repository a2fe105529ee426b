//! How long nobody writes when the proxy of the leader ends: two programs that work all the time, each through a
//! listener of its own proxy, which gives it the token while that proxy leads.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
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
use crate::proof::listeners::{Election, Source};
use crate::proof::stop::Stop;
use crate::proof::store::{RunningStore, StoreKind};

/// A program's timeout for a reply, before it reconnects.
const PATIENCE: Duration = Duration::from_secs(1);
/// Between two writes or attempts of a program.
const PAUSE: Duration = Duration::from_millis(10);
/// Of a Lease, by its holder.
const RENEW_EVERY: Duration = Duration::from_millis(300);
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
    fn start(address: SocketAddr, options: Options) -> Self {
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

struct Scene {
    election: Election,
    store: RunningStore,
    replicas: Vec<Replica>,
    terms: AtomicU64,
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
    let title = format!("{source:?}, {store:?}").to_lowercase();
    let (election, store) = (Election::start(Some(source)), RunningStore::start(store));
    let start = |number| {
        let address = ([127, 0, 0, 1], machine::free_port()).into();
        let mut options = Options::new(&postgres)
            .flag("--policy", &policy.path().display().to_string())
            .flag("--listener", &election.table(address, number));
        options.store = store.direct();
        Replica::start(address, options)
    };
    let scene = Scene {
        replicas: (0..2).map(start).collect(),
        election,
        store,
        terms: AtomicU64::default(),
    };
    let stop = Stop::default();
    println!("| s, {title} | median | longest |\n| --- | --- | --- |");
    std::thread::scope(|scope| {
        for replica in &scene.replicas {
            scope.spawn(|| replica.work(&stop));
        }
        scope.spawn(|| {
            while !stop.sleep(RENEW_EVERY) {
                scene.election.renew();
            }
        });
        scene.elect(0);
        for end in ENDS {
            let round = |_| {
                // The lease is renewed every 5 s: an end must hit all phases.
                stop.sleep(Duration::from_millis(random.random_range(2_000..7_000)));
                scene.time(end).as_secs_f64()
            };
            let mut times: Vec<f64> = (0..rounds).map(round).collect();
            times.sort_by(f64::total_cmp);
            let (median, longest) = (times[times.len() / 2], times[times.len() - 1]);
            println!("| {} | {median:.2} | {longest:.2} |", end.0);
        }
        stop.stop();
    });
}

impl Scene {
    /// Where an election is followed. A lease is free when its holder has ended.
    fn elect(&self, proxy: usize) {
        let term = self.terms.fetch_add(1, Ordering::Relaxed) + 1;
        self.election.elect(proxy, term, &self.store);
    }

    /// From the end of the leader's proxy, and the election of the other, to the first write of the other.
    fn time(&self, (_, end, revive): End) -> Duration {
        let now = Instant::now();
        let leader = machine::wait_for("a leader", || {
            let mut all = self.replicas.iter();
            all.position(|replica| replica.first_write(now).is_some())
        });
        let next = &self.replicas[1 - leader];
        let mut proxy = self.replicas[leader].proxy.lock().expect("a proxy");
        let begin = Instant::now();
        self.elect(1 - leader);
        end(&mut proxy);
        let written = machine::wait_at_most(NEXT_WITHIN, || next.first_write(begin));
        revive(&mut proxy);
        written.expect("the other proxy leads") - begin
    }
}
