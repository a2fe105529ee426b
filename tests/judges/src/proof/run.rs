//! One run from its start to its verdict: elects leaders, breaks things, and checks the result.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::RwLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use pgpalisade_test_servers::wire::Endpoint;

use super::checker::{self, Report};
use super::cluster::Cluster;
use super::declaration::{Declarer, Reach};
use super::history::{self, Event, Recorder};
use super::leader::{self, Number, Task};
use super::leaders::Leaders;
use super::nemesis::Nemesis;
use super::plan::{ELECTED, LED, Plan, Pooler, Route, TAKEN};
use super::row_writers::{self, Election};
use super::stop::Stop;
use super::truth::Decoder;

/// Maximum number of leaders of one scope that believe in themselves at once.
const LEADERS_MAX: usize = 5;
/// Between progress reports.
const PROGRESS: Duration = Duration::from_secs(10);
/// First id of the driver's own declarations.
const DRIVER: u32 = 1 << 29;
/// Above all elected tokens of a run.
const LAST_TOKEN: u64 = 1 << 40;

#[derive(Debug)]
pub struct Outcome {
    pub report: Report,
    pub history: PathBuf,
}

struct Run<'a> {
    plan: &'a Plan,
    dir: &'a Path,
    cluster: &'a Cluster,
    leaders: &'a Leaders,
    recorder: &'a Recorder,
    next_leader: AtomicU32,
    faults: AtomicU64,
    whole: RwLock<()>,
    quiet: RwLock<()>,
    elected: BTreeMap<&'static str, AtomicU64>,
    stop: Stop,
}

/// Runs a plan. The history is `dir/history.jsonl`, with the servers' logs beside it.
///
/// # Panics
///
/// When something fails that the proxy is not responsible for, or a proxy does not serve again after the
/// last fault.
pub fn run(plan: &Plan, dir: &Path) -> Outcome {
    let parts = dir.join("parts");
    // An earlier run may have been killed.
    let _not_there = std::fs::remove_dir_all(&parts);
    std::fs::create_dir_all(&parts).expect("create the history's directory");
    let recorder = Recorder::open(&parts.join("driver.jsonl")).expect("open the history");
    recorder.record(&Event::Run {
        seed: plan.seed,
        route: plan.route.to_string(),
        takeover_timeout_ms: milliseconds(plan.takeover_timeout),
        slack_ms: milliseconds(plan.slack),
        shares: plan.shared.is_some() || plan.pooler == Some(Pooler::Transaction),
        pooled: plan.pooler.is_some(),
    });
    let cluster = Cluster::start(plan);
    let leaders = Leaders::new();
    let names = plan.scope_names().iter();
    let run = Run {
        plan,
        dir: &parts,
        cluster: &cluster,
        leaders: &leaders,
        recorder: &recorder,
        next_leader: AtomicU32::new(1),
        faults: AtomicU64::new(0),
        whole: RwLock::default(),
        quiet: RwLock::default(),
        elected: names.map(|name| (*name, AtomicU64::new(0))).collect(),
        stop: Stop::default(),
    };
    let mut decoder = cluster.pair().is_none().then(|| {
        let socket = cluster.socket().clone();
        Decoder::new(socket, &recorder)
    });
    run.break_and_write(decoder.as_mut());
    run.serves_again();
    run.end_sessions();
    match &mut decoder {
        Some(decoder) => decoder.finish(),
        None => cluster.record_survivors(&recorder),
    }
    run.look_at_the_end();
    let elected = run.next_leader.load(Ordering::Relaxed);
    cluster.keep_logs(dir).expect("keep the logs");
    drop(cluster);
    let path = dir.join("history.jsonl");
    merge(&parts, &path).expect("put the history together");
    let events = history::read(&path).expect("read the history");
    println!("{elected} leaders, {} events", events.len());
    Outcome {
        report: checker::check(&events),
        history: path,
    }
}

impl Run<'_> {
    /// Runs everything at once, for the planned time. Everything is repaired when it returns.
    fn break_and_write(&self, decoder: Option<&mut Decoder<'_>>) {
        let election = Election::new(
            self.cluster.addresses(),
            self.plan.pooler,
            self.plan.patience(),
            self.recorder,
            &self.quiet,
        );
        let nemesis = Nemesis {
            cluster: self.cluster,
            leaders: self.leaders,
            recorder: self.recorder,
            count: &self.faults,
            plan: self.plan,
            whole: &self.whole,
            elected: &self.elected,
            quiet: &self.quiet,
            stop: &self.stop,
        };
        let failed = std::thread::scope(|scope| {
            if let Some(decoder) = decoder {
                scope.spawn(|| decoder.follow(&self.stop));
            }
            for (number, name) in (0..).zip(self.plan.scope_names()) {
                scope.spawn(move || self.elect(name, self.plan.seed ^ (number << 48)));
            }
            let is_direct = self.plan.route == Route::Direct || self.plan.pooler.is_some();
            if self.plan.scopes > 0 && !is_direct {
                scope.spawn(|| self.elect(TAKEN, self.plan.seed ^ (7 << 48)));
                scope.spawn(|| self.elect(ELECTED, self.plan.seed ^ (8 << 48)));
            }
            if !self.cluster.listeners().is_empty() {
                scope.spawn(|| self.elect(LED, self.plan.seed ^ (9 << 48)));
            }
            for number in [1, 2] {
                let (election, seed) = (&election, self.plan.seed ^ (u64::from(number) << 56));
                scope.spawn(move || row_writers::write(election, number, seed, &self.stop));
            }
            nemesis.start(scope);
            self.print_progress();
            self.stop.stop();
            self.leaders.end()
        });
        assert!(failed.is_empty(), "clients have failed: {failed:?}");
    }

    fn print_progress(&self) {
        let begin = Instant::now();
        loop {
            let left = self.plan.duration.saturating_sub(begin.elapsed());
            std::thread::sleep(left.min(PROGRESS));
            println!(
                "{:5} s: {} leaders elected, {} faults",
                begin.elapsed().as_secs(),
                self.next_leader.load(Ordering::Relaxed) - 1,
                self.faults.load(Ordering::Relaxed),
            );
            if begin.elapsed() >= self.plan.duration {
                return;
            }
        }
    }

    /// Elects one leader of a scope after the other, without telling the old ones. Each has a number if the election
    /// gives one.
    fn elect(&self, scope: &str, seed: u64) {
        let mut random = StdRng::seed_from_u64(seed);
        loop {
            let pause = random.random_range(200..1_800);
            if self.stop.sleep(Duration::from_millis(pause)) {
                return;
            }
            let (seed, sessions) = (random.random(), random.random_range(2..6));
            let lifetime = Duration::from_millis(random.random_range(3_000..12_000));
            if self.leaders.count(scope) >= LEADERS_MAX {
                continue;
            }
            let _not_quiet = self.quiet.read().expect("elections");
            let numbers = self.elected.get(scope);
            let proxies = self.cluster.addresses();
            let number = match numbers {
                Some(last) => Number::Given(last.fetch_add(1, Ordering::Relaxed) + 1),
                None if scope == ELECTED => {
                    Number::Elected(proxies[random.random_range(0..proxies.len())])
                }
                None if scope == LED => {
                    let listeners = self.cluster.listeners();
                    Number::Led(listeners[random.random_range(0..listeners.len())])
                }
                None => Number::Taken,
            };
            let leader = self.next_leader.fetch_add(1, Ordering::Relaxed);
            self.leaders.start(&Task {
                leader,
                scope: scope.to_owned(),
                number,
                proxies: proxies.to_vec(),
                pooler: self.plan.pooler,
                direct: self.socket(),
                history: self.dir.join(format!("leader-{leader}.jsonl")),
                seed,
                sessions,
                again: match number {
                    Number::Led(_) => 0.0,
                    _ => self.plan.faults.again(),
                },
                lifetime,
                patience: self.plan.patience(),
            });
        }
    }

    fn socket(&self) -> Option<PathBuf> {
        if self.cluster.pair().is_some() {
            return None;
        }
        match self.cluster.socket() {
            Endpoint::Unix(path) => Some(path.clone()),
            Endpoint::Tcp(address) => panic!("{address} is no unix socket"),
        }
    }

    /// Asserts that every proxy accepts a new leader after the last fault.
    fn serves_again(&self) {
        for (number, address) in self.cluster.addresses().iter().enumerate() {
            let place = u32::try_from(number).expect("few proxies");
            let reach = Reach {
                proxies: &[*address],
                first: number,
                pooler: self.plan.pooler,
                patience: self.plan.patience(),
                recorder: self.recorder,
                ids: &AtomicU64::new(1),
            };
            let of_row = ("row", LAST_TOKEN + u64::from(place));
            let database = row_writers::DATABASE;
            let declarer = Declarer::announced(DRIVER + place, of_row, database, reach);
            let mut random = StdRng::seed_from_u64(self.plan.seed);
            pgpalisade_test_servers::machine::wait_for(
                "a proxy to serve after the last fault",
                || declarer.declare(&mut random).ok(),
            );
        }
    }

    /// Waits until remaining requests of the clients have ended.
    fn end_sessions(&self) {
        let others = "FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
        let mut admin = self.cluster.admin("postgres");
        admin.rows(&format!(
            "SELECT pg_terminate_backend(pid, 5000) {others} AND application_name NOT LIKE 'pgpalisade%'"
        ));
    }

    fn look_at_the_end(&self) {
        let mut admin = self.cluster.admin("postgres");
        let rows = admin.rows("SELECT count(*), coalesce(bit_xor(id), 0) FROM writes");
        let rows = leader::tally(&rows).expect("a tally");
        self.recorder.record(&Event::Table { rows });
        let mut wire = self.cluster.admin(row_writers::DATABASE);
        let text = wire.rows("SELECT entries FROM shared").concat().concat();
        self.recorder.record(&Event::SharedRow {
            entries: row_writers::entries(&text),
        });
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).expect("a short time")
}

/// A killed process may leave an incomplete last line.
fn merge(parts: &Path, whole: &Path) -> io::Result<()> {
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(parts)? {
        paths.push(entry?.path());
    }
    // The driver's file comes first, with the options of the run.
    paths.sort();
    let mut file = io::BufWriter::new(File::create(whole)?);
    for path in &paths {
        let bytes = std::fs::read(path)?;
        let end = bytes.iter().rposition(|byte| *byte == b'\n');
        file.write_all(&bytes[..end.map_or(0, |end| end + 1)])?;
    }
    file.flush()?;
    std::fs::remove_dir_all(parts)
}
