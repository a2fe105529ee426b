//! Costs that must not grow: a transaction with thousands of idle sessions, and with many scopes.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use pgpalisade_authority::{Authority, Cluster, Embedded, Mark, Scope, Token, now_us};
use pgpalisade_test_servers::postgres::Postgres;
use pgpalisade_test_servers::proxy::{Options, Store};
use pgpalisade_test_servers::wire::Wire;
use tempfile::TempDir;

use crate::pgbench::{self, Load};
use crate::plan::{BenchPlan, Cell, in_turn};
use crate::process;
use crate::record::{ComparedTarget, Figure, Measurement, Record};
use crate::ways::{TOKEN, Way, server};

const ACTIVE: u32 = 16;

/// For memory to be given back, and written data to be read.
const SETTLE: Duration = Duration::from_millis(500);

/// Each session of PostgreSQL maps all buffers.
const FEW_BUFFERS: &str = "shared_buffers=16MB";

/// Idle sessions behind a proxy, with a separate PostgreSQL.
struct Crowd {
    _idle: Vec<Wire>,
    way: Way,
    _postgres: Postgres,
    number: u32,
    memory: f64,
}

/// Measures the memory of idle sessions. For pgpalisade also the cost of a transaction beside ever more of them.
pub(crate) fn sessions(plan: &BenchPlan) -> Vec<Record> {
    let cell = |number, round| Cell {
        measurement: Measurement::Sessions,
        variant: "prepared",
        number,
        round,
    };
    let mut records = Vec::new();
    let fewest = plan.sessions.iter().copied().min().unwrap_or_default();
    for target in [ComparedTarget::Pgbouncer, ComparedTarget::Haproxy] {
        let memory = (Figure::Memory, Crowd::open(target, fewest).memory);
        records.extend(cell(fewest, 1).records(target, [memory]));
    }
    let numbers = [&[0], plan.sessions].concat();
    let open = |number: &u32| Crowd::open(ComparedTarget::Pgpalisade, *number);
    let crowds: Vec<Crowd> = numbers.iter().map(open).collect();
    for crowd in crowds.iter().filter(|crowd| crowd.number > 0) {
        let memory = (Figure::Memory, crowd.memory);
        records.extend(cell(crowd.number, 1).records(ComparedTarget::Pgpalisade, [memory]));
    }
    for round in 1..=plan.rounds {
        eprintln!("sessions: round {round} of {}", plan.rounds);
        for crowd in in_turn(&crowds, round) {
            let cost = cost(&crowd.way, None, &crowd.way.options(), plan.window);
            records.extend(cell(crowd.number, round).records(ComparedTarget::Pgpalisade, cost));
        }
    }
    records
}

impl Crowd {
    fn open(target: ComparedTarget, number: u32) -> Self {
        eprintln!("sessions: {target}, {number} idle");
        let postgres = server(number + ACTIVE, &[FEW_BUFFERS]);
        pgbench::initialise(&postgres, 1);
        let way = Way::open(target, &postgres, number + ACTIVE);
        let pid = way.pid().unwrap_or_default();
        // Fills caches and the allocator's reserve.
        cost(&way, None, &way.options(), SETTLE);
        let (idle, memory) = open_idle(pid, number, || way.login());
        Self {
            _idle: idle,
            way,
            _postgres: postgres,
            number,
            memory,
        }
    }
}

/// Opens sessions that have run a query, and says how many KiB of a process each has taken.
pub(crate) fn open_idle(pid: u32, number: u32, login: impl Fn() -> Wire) -> (Vec<Wire>, f64) {
    sleep(SETTLE);
    let before = process::resident_kib(pid);
    let login = |_| {
        let mut session = login();
        session.ok("SELECT 1");
        session
    };
    let idle = (0..number).map(login).collect();
    sleep(SETTLE);
    let more = process::resident_kib(pid).saturating_sub(before);
    (idle, more as f64 / f64::from(number.max(1)))
}

/// CPU time of a transaction, of `pgbench -S` or of a script.
fn cost(
    way: &Way,
    script: Option<PathBuf>,
    options: &str,
    window: Duration,
) -> Option<(Figure, f64)> {
    let load = Load {
        protocol: "prepared",
        clients: ACTIVE,
        script,
        options: options.to_owned(),
        window,
    };
    let mut figures = pgbench::run(way, &load).into_iter();
    figures.find(|(figure, _)| *figure == Figure::Cpu)
}

struct ManyScopes {
    way: Way,
    _postgres: Postgres,
    dir: TempDir,
    scopes: u32,
}

/// Measures a write in one scope of many. The store has a mark for each, and the policy file a table.
pub(crate) fn scopes(plan: &BenchPlan) -> Vec<Record> {
    let places: Vec<ManyScopes> = plan
        .scopes
        .iter()
        .map(|&scopes| ManyScopes::start(scopes))
        .collect();
    let mut records = Vec::new();
    for round in 1..=plan.rounds {
        eprintln!("scopes: round {round} of {}", plan.rounds);
        for place in in_turn(&places, round) {
            // The last scope, to reveal a search from the beginning.
            let options = format!("-c fencing.token=scope-{}={TOKEN}", place.scopes);
            let script = place.dir.path().join("script");
            let cell = Cell {
                measurement: Measurement::Scopes,
                variant: "prepared",
                number: place.scopes,
                round,
            };
            let cost = cost(&place.way, Some(script), &options, plan.window);
            records.extend(cell.records(ComparedTarget::Pgpalisade, cost));
        }
    }
    records
}

impl ManyScopes {
    fn start(scopes: u32) -> Self {
        eprintln!("scopes: a proxy that knows {scopes}");
        let postgres = server(4 * ACTIVE, &[FEW_BUFFERS]);
        postgres.sql(&format!("CREATE TABLE public.t{scopes} (id int)"));
        let dir = tempfile::tempdir().expect("a directory for store and policy");
        let file = |name: &str, text: String| {
            let path = dir.path().join(name);
            fs::write(&path, text).expect("write a file");
            path
        };
        file(
            "script",
            format!("DELETE FROM public.t{scopes} WHERE false;\n"),
        );
        let policy = file("policy.toml", policy(scopes));
        let store = dir.path().join("store");
        fill(&store, &postgres, scopes);
        let mut options = Options::new(&postgres).flag("--policy", &policy.display().to_string());
        options.store = Store::Url(format!("embedded:{}", store.display()));
        Self {
            way: Way::pgpalisade(options),
            _postgres: postgres,
            dir,
            scopes,
        }
    }
}

/// With a table of one schema for each scope.
fn policy(scopes: u32) -> String {
    (1..=scopes).fold(String::new(), |mut text, number| {
        let _ = writeln!(
            text,
            "[scope.scope-{number}]\ntables = [\"public.t{number}\"]"
        );
        text
    })
}

/// Writes a mark for each scope into the proxy's future store.
fn fill(store: &Path, postgres: &Postgres, scopes: u32) {
    let system = postgres.value("SELECT system_identifier FROM pg_control_system()");
    let timeline = postgres.value("SELECT timeline_id FROM pg_control_checkpoint()");
    let cluster = Cluster {
        system_identifier: system.parse().expect("a system identifier"),
        timeline: timeline.parse().expect("a timeline"),
        // Older than any server: the proxy records the real start.
        postmaster_us: 0,
    };
    let token = Token::new(TOKEN.parse().expect("a number")).expect("a token");
    let mark = |number| {
        let scope = Scope::new(&format!("scope-{number}")).expect("the name of a scope");
        (scope, Mark::new(token, now_us(), "bench".to_owned()))
    };
    let marks: Vec<_> = (1..=scopes).map(mark).collect();
    let store = Embedded::open(store).expect("open a store");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime");
    runtime
        .block_on(store.recover(None, cluster, &marks))
        .expect("fill the store");
}
