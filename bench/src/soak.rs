//! Minutes under load with monitoring: whether memory stays constant, and what monitoring costs the working sessions.
//!
//! The sessions stay for the whole run. Phases alternate, so that other load of the machine affects all of them: with
//! and without a deposed client that retries as fast as it can, with and without monitoring.

use std::fmt::Write as _;
use std::fs::{self, Permissions};
use std::io::{BufRead as _, BufReader, ErrorKind, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{ScopedJoinHandle, scope, sleep};
use std::time::{Duration, Instant};

use pgpalisade_load::median;
use pgpalisade_test_servers::http::Http;
use pgpalisade_test_servers::wire::{Batch, Wire};
use rustix::process::setpriority_process;

use crate::flatness::FEW_BUFFERS;
use crate::pgbench::{self, Load, Moment, Pgbench};
use crate::plan::Soak;
use crate::process;
use crate::record::Figure;
use crate::transactions::refused;
use crate::ways::{Way, server};

const SCRAPE_EVERY: Duration = Duration::from_secs(1);
/// Time for monitors and retries to begin, and interval for checking the end.
const TICK: Duration = Duration::from_millis(100);
/// Nice value of the lowest priority.
const LOWEST: i32 = 19;
const TOKEN: &str = "a-token-of-the-benchmark";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Phase {
    name: &'static str,
    /// Deposed clients that retry.
    storms: usize,
    scrapers: usize,
    dashboards: usize,
}

const fn phase(name: &'static str, storms: usize, scrapers: usize, dashboards: usize) -> Phase {
    Phase {
        name,
        storms,
        scrapers,
        dashboards,
    }
}

const PHASES: [Phase; 4] = [
    phase("quiet", 0, 0, 0),
    phase("watched", 0, 1, 10),
    phase("storm", 1, 0, 0),
    phase("storm, watched", 1, 1, 10),
];

#[derive(Debug)]
struct Done {
    name: &'static str,
    from: Moment,
    to: Moment,
    kib: u64,
    /// Refusals, scrapes and pictures.
    counts: [u64; 3],
}

pub(crate) fn soak(plan: &Soak) -> String {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let postgres = server(plan.idle + plan.active, &[FEW_BUFFERS]);
    postgres.sql("CREATE TABLE ledger (id int)");
    pgbench::initialise(&postgres, 1);
    let http = Http::free();
    let connections = plan.idle + plan.active + 2;
    let options = http
        .options(&postgres)
        .flag("--http-token-file", &token_file(dir.path()))
        .flag("--console", &dir.path().display().to_string())
        .flag("--connections-max", &connections.to_string());
    let way = Way::pgpalisade(options);
    eprintln!("soak: {} idle sessions", plan.idle);
    let login = || {
        let mut session = way.login();
        session.ok("SELECT 1");
        session
    };
    let idle: Vec<Wire> = (0..plan.idle).map(|_| login()).collect();
    let load = Load {
        protocol: "prepared",
        clients: plan.active,
        script: None,
        options: way.options(),
        rate: Some(plan.rate),
        window: plan.phase,
    };
    let pgbench = Pgbench::start(&way, &load);
    let mut all = Vec::new();
    for cycle in 1..=plan.cycles {
        for phase in PHASES {
            all.push(run(phase, &way, http, plan.phase));
        }
        eprintln!("soak: cycle {cycle} of {}", plan.cycles);
    }
    drop(idle);
    assert_eq!(postgres.value("SELECT count(*) FROM ledger"), "0");
    table(plan, &all, &pgbench.end())
}

fn token_file(dir: &Path) -> String {
    let file = dir.join("token");
    fs::write(&file, TOKEN).expect("write a file");
    fs::set_permissions(&file, Permissions::from_mode(0o600)).expect("close it");
    file.display().to_string()
}

fn run(phase: Phase, way: &Way, http: Http, window: Duration) -> Done {
    let end = AtomicBool::new(false);
    let work: [(usize, Work); 3] = [
        (phase.storms, storm),
        (phase.scrapers, scrape),
        (phase.dashboards, watch),
    ];
    scope(|threads| {
        let end = &end;
        let begin = |(count, work): (usize, Work)| {
            let one = |_| threads.spawn(move || work(way, http, end));
            (0..count).map(one).collect::<Vec<_>>()
        };
        let running = work.map(begin);
        sleep(TICK);
        let from = Moment::now(way);
        sleep(window);
        let to = Moment::now(way);
        let kib = process::resident_kib(way.pid().unwrap_or_default());
        end.store(true, Ordering::Relaxed);
        let sum = |clients: Vec<ScopedJoinHandle<'_, u64>>| {
            let counts = clients.into_iter().map(ScopedJoinHandle::join);
            counts.map(|count| count.expect("a client")).sum()
        };
        Done {
            name: phase.name,
            from,
            to,
            kib,
            counts: running.map(sum),
        }
    })
}

/// Runs a client until told to end, and returns its count.
type Work = fn(&Way, Http, &AtomicBool) -> u64;

/// Retries a write as fast as it is refused.
fn storm(way: &Way, _: Http, end: &AtomicBool) -> u64 {
    let mut client = Wire::login(
        way.endpoint(),
        &[("user", "postgres"), ("database", "postgres")],
    );
    let write = Batch::new().query("INSERT INTO ledger (id) VALUES (34)");
    let mut count = 0;
    while !end.load(Ordering::Relaxed) {
        client.send(&write);
        refused(&mut client);
        count += 1;
    }
    count
}

fn scrape(_: &Way, http: Http, end: &AtomicBool) -> u64 {
    be_elsewhere();
    let (mut count, mut next) = (0, Instant::now());
    while !end.load(Ordering::Relaxed) {
        if Instant::now() < next {
            sleep(TICK);
            continue;
        }
        let answer = http.ask(
            "GET",
            "/metrics",
            &format!("Authorization: Bearer {TOKEN}\r\n"),
        );
        assert_eq!(answer.status, 200, "{answer:?}");
        (count, next) = (count + 1, next + SCRAPE_EVERY);
    }
    count
}

fn watch(_: &Way, http: Http, end: &AtomicBool) -> u64 {
    be_elsewhere();
    let mut stream = http.connect().expect("a connection");
    stream.set_read_timeout(Some(TICK)).expect("a timeout");
    let head = format!("Host: localhost\r\nAuthorization: Bearer {TOKEN}\r\n");
    write!(stream, "GET /api/v1/events HTTP/1.1\r\n{head}\r\n").expect("send");
    let (mut lines, mut line, mut count) = (BufReader::new(stream), Vec::new(), 0);
    while !end.load(Ordering::Relaxed) {
        match lines.read_until(b'\n', &mut line) {
            Ok(0) => panic!("the dashboard was closed"),
            Ok(_) => {
                count += u64::from(line.starts_with(b"data: "));
                line.clear();
            }
            // The received part of a line is kept.
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => panic!("a dashboard: {error}"),
        }
    }
    count
}

/// Runs this thread after all others: monitors on other machines would take no time of this one.
fn be_elsewhere() {
    setpriority_process(None, LOWEST).expect("set the priority");
}

/// A row for each phase, then the median of each kind with least and most.
fn table(plan: &Soak, all: &[Done], log: &str) -> String {
    let seconds = plan.phase.as_secs_f64();
    let mut text = format!(
        "{} idle sessions, {} active ones with {} transactions per second.\n\n\
         | minute | phase | p50 us | p99 us | per second | CPU s | MiB | refusals | scrapes | pictures |\n\
         | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n",
        plan.idle, plan.active, plan.rate,
    );
    let mut rows: Vec<(&str, [f64; 5])> = Vec::new();
    for (number, done) in all.iter().enumerate() {
        let figures = pgbench::figures(log, &done.from, &done.to);
        let of = |wanted| {
            let found = figures.iter().find(|(figure, _)| *figure == wanted);
            found.map_or(f64::NAN, |(_, value)| *value)
        };
        let cpu = of(Figure::Cpu) * of(Figure::Rate) * seconds / 1e6;
        let mib = done.kib as f64 / 1024.0;
        let (p50, p99, rate) = (of(Figure::Median), of(Figure::Tail), of(Figure::Rate));
        let (minute, name) = ((number + 1) as f64 * seconds / 60.0, done.name);
        let [refusals, scrapes, pictures] = done.counts;
        let _ = writeln!(
            text,
            "| {minute:.1} | {name} | {p50:.0} | {p99:.0} | {rate:.0} | {cpu:.2} | {mib:.1} | {refusals} | {scrapes} \
             | {pictures} |"
        );
        rows.push((name, [p50, p99, rate, cpu, mib]));
    }
    text.push_str(
        "\n| median (least to most) | p50 us | p99 us | per second | CPU s | MiB |\n\
         | --- | ---: | ---: | ---: | ---: | ---: |\n",
    );
    for Phase { name, .. } in PHASES {
        let of_phase = rows.iter().filter(|(of, _)| *of == name);
        let columns = [0, 0, 0, 2, 1].into_iter().enumerate();
        let cells = columns.map(|(column, places)| {
            let values = of_phase.clone().filter_map(|(_, row)| row.get(column));
            let mut values: Vec<f64> = values.copied().collect();
            values.sort_by(f64::total_cmp);
            let [least, middle, most] = [
                values.first().copied(),
                median(&values),
                values.last().copied(),
            ]
            .map(|value| value.unwrap_or(f64::NAN));
            format!(" {middle:.places$} ({least:.places$} to {most:.places$}) |")
        });
        let _ = writeln!(text, "| {name} |{}", cells.collect::<String>());
    }
    text
}
