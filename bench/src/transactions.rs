//! `pgbench -S` and COPY over all ways in turn, and refused writes.

use std::fs;
use std::process::Command;
use std::time::Instant;

use pgpalisade_fence::readable::counted;
use pgpalisade_test_servers::machine;
use pgpalisade_test_servers::postgres::Postgres;
use pgpalisade_test_servers::programs::{program, stdout};
use pgpalisade_test_servers::wire::{Batch, Wire, pretty};
use strum::VariantArray as _;

use crate::flatness::open_idle;
use crate::pgbench::{self, Load};
use crate::plan::{BenchPlan, Cell, in_turn};
use crate::process;
use crate::record::{ComparedTarget, Figure, Measurement, Record};
use crate::ways::{Way, server};

const SCALE: u32 = 10;

/// Server connections that idle clients share.
const SHARED_BY_IDLE: u32 = 20;

/// Bytes of a COPY row, with its line feed.
const ROW: usize = 100;

const CROWDS: [u32; 2] = [1, 16];

/// Every way to a server, and the server.
struct Ways {
    ways: Vec<Way>,
    postgres: Postgres,
}

impl Ways {
    fn open(sessions_max: u32) -> Self {
        // pgbouncer keeps its sessions.
        let postgres = server(2 * sessions_max, &["shared_buffers=256MB"]);
        let open = |target: &ComparedTarget| Way::open(*target, &postgres, sessions_max);
        let ways = ComparedTarget::VARIANTS.iter().map(open).collect();
        Self { ways, postgres }
    }
}

pub(crate) fn transactions(plan: &BenchPlan) -> Vec<Record> {
    let Ways { ways, postgres } =
        Ways::open(plan.clients.iter().copied().max().unwrap_or_default());
    pgbench::initialise(&postgres, SCALE);
    let of = Reads {
        measurement: Measurement::Transactions,
        clients: plan.clients,
        protocols: &[
            ("simple", "simple"),
            ("extended", "extended"),
            ("prepared", "prepared"),
        ],
    };
    of.records(plan, &ways)
}

/// Clients without a token that share server connections.
pub(crate) fn pooling(plan: &BenchPlan) -> Vec<Record> {
    let backends = plan.sharers.iter().map(|(_, backends)| backends);
    // PostgreSQL may not have ended yet those of the ways before.
    let sessions_max = 4 * backends.max().unwrap_or(&0);
    let postgres = &server(sessions_max, &["shared_buffers=256MB"]);
    pgbench::initialise(postgres, SCALE);
    let measure = |reset, protocols| {
        plan.sharers.iter().flat_map(move |(clients, backends)| {
            let clients_max = clients.iter().copied().max().unwrap_or_default();
            let ways = Way::sharing(postgres, clients_max, *backends, reset);
            let of = Reads {
                measurement: Measurement::Pooling,
                clients,
                protocols,
            };
            of.records(plan, &ways)
        })
    };
    let mut known = vec![("simple", "simple"), ("extended", "extended")];
    if pgbouncer_prepares() {
        known.push(("prepared", "prepared"));
    }
    let mut records: Vec<Record> = measure("auto", &known).collect();
    records.extend(measure("always", &[("simple, reset always", "simple")]));
    records.extend(idle_sharers(plan, postgres));
    records
}

/// pgbouncer knows prepared statements of shared connections from 1.21 on, which Debian 12 does not have.
fn pgbouncer_prepares() -> bool {
    let said = Command::new("pgbouncer")
        .arg("-V")
        .output()
        .expect("run pgbouncer")
        .stdout;
    let said = String::from_utf8_lossy(&said);
    let minor = said
        .strip_prefix("PgBouncer 1.")
        .and_then(|rest| rest.split('.').next());
    minor
        .and_then(|minor| minor.parse().ok())
        .is_some_and(|minor: u32| minor >= 21)
}

/// Memory for each client, once all have run a query.
fn idle_sharers(plan: &BenchPlan, postgres: &Postgres) -> Vec<Record> {
    let number = plan.idle_sharers;
    let cell = Cell {
        measurement: Measurement::Pooling,
        variant: "idle",
        number,
        round: 1,
    };
    let ways = Way::sharing(postgres, number, SHARED_BY_IDLE, "always");
    let records = ways.iter().flat_map(|way| {
        eprintln!(
            "Pooling: {} idle, {}",
            counted(number, "client"),
            way.target
        );
        let session = [("user", "postgres"), ("database", "postgres")];
        let login = || Wire::login(way.endpoint(), &session);
        let (_idle, memory) = open_idle(way.pid().unwrap_or_default(), number, login);
        cell.records(way.target, [(Figure::Memory, memory)])
    });
    records.collect()
}

/// `pgbench -S` by so many clients, in each protocol.
pub(crate) struct Reads<'a> {
    pub(crate) measurement: Measurement,
    pub(crate) clients: &'a [u32],
    /// What the table calls it | `pgbench -M`.
    pub(crate) protocols: &'a [(&'a str, &'static str)],
}

impl Reads<'_> {
    pub(crate) fn records(&self, plan: &BenchPlan, ways: &[Way]) -> Vec<Record> {
        let mut records = Vec::new();
        for round in 1..=plan.rounds {
            for &clients in self.clients {
                let (rounds, of) = (plan.rounds, counted(clients, "client"));
                eprintln!("{:?}: round {round} of {rounds}, {of}", self.measurement);
                for (variant, protocol) in self.protocols.iter().copied() {
                    let cell = Cell {
                        measurement: self.measurement,
                        variant,
                        number: clients,
                        round,
                    };
                    for way in in_turn(ways, round) {
                        let options = match self.measurement {
                            Measurement::Pooling => String::new(),
                            _ => way.options(),
                        };
                        let load = Load {
                            protocol,
                            clients,
                            script: None,
                            options,
                            window: plan.window,
                        };
                        records.extend(cell.records(way.target, pgbench::run(way, &load)));
                    }
                }
            }
        }
        records
    }
}

/// COPY out of and into PostgreSQL, with psql as the client.
pub(crate) fn copy(plan: &BenchPlan) -> Vec<Record> {
    let ways = Ways::open(16);
    let rows = plan.megabytes as usize * 1_000_000 / ROW;
    let line = "x".repeat(ROW - 1);
    let dir = tempfile::tempdir_in(machine::profile_dir()).expect("a directory for the rows");
    let file = dir.path().join("rows");
    fs::write(&file, format!("{line}\n").repeat(rows)).expect("write the rows");
    ways.postgres
        .sql("CREATE UNLOGGED TABLE landing (line text)");
    let made_up = format!("(SELECT '{line}' FROM generate_series(1, {rows}))");
    let mut records = Vec::new();
    for round in 1..=plan.rounds {
        eprintln!("copy: round {round} of {}", plan.rounds);
        for (direction, command) in [
            ("out", format!("\\copy {made_up} TO '/dev/null'")),
            ("in", format!("\\copy landing FROM '{}'", file.display())),
        ] {
            let cell = Cell {
                measurement: Measurement::Copy,
                variant: direction,
                number: plan.megabytes,
                round,
            };
            for way in in_turn(&ways.ways, round) {
                ways.postgres.sql("TRUNCATE landing");
                let (seconds, cpu) = timed(way, || drop(psql(way, &command)));
                let megabytes = f64::from(plan.megabytes);
                let cpu = cpu.map(|micros| (Figure::Cpu, micros / megabytes));
                let figures = [(Figure::Megabytes, megabytes / seconds)];
                records.extend(cell.records(way.target, figures.into_iter().chain(cpu)));
            }
        }
    }
    records
}

pub(crate) fn psql(way: &Way, command: &str) -> String {
    let mut psql = program("psql", way.endpoint());
    psql.args(["-X", "-q", "-A", "-t", "-c", command])
        .env("PGOPTIONS", way.options())
        .env("PGSSLMODE", way.sslmode);
    stdout(&psql.output().expect("start psql"))
}

/// Writes of sessions without a token. PostgreSQL never sees them.
pub(crate) fn refusals(plan: &BenchPlan) -> Vec<Record> {
    let postgres = server(32, &[]);
    postgres.sql("CREATE TABLE ledger (id int)");
    let way = Way::open(ComparedTarget::Pgpalisade, &postgres, 32);
    let write = Batch::new().query("INSERT INTO ledger (id) VALUES (34)");
    let mut records = Vec::new();
    for round in 1..=plan.rounds {
        eprintln!("refusals: round {round} of {}", plan.rounds);
        for sessions in in_turn(&CROWDS, round).copied() {
            let user = [("user", "postgres"), ("database", "postgres")];
            let mut clients: Vec<Wire> = (0..sessions)
                .map(|_| Wire::login(way.endpoint(), &user))
                .collect();
            let (seconds, cpu) = timed(&way, || {
                for _ in 0..plan.refusals / sessions {
                    clients.iter_mut().for_each(|client| client.send(&write));
                    clients.iter_mut().for_each(refused);
                }
            });
            let count = f64::from(plan.refusals / sessions * sessions);
            let cell = Cell {
                measurement: Measurement::Refusals,
                variant: "simple",
                number: sessions,
                round,
            };
            let cpu = cpu.map(|micros| (Figure::Cpu, micros / count));
            let figures = [(Figure::Rate, count / seconds)];
            records.extend(cell.records(way.target, figures.into_iter().chain(cpu)));
        }
    }
    assert_eq!(postgres.value("SELECT count(*) FROM ledger"), "0");
    records
}

fn refused(client: &mut Wire) {
    let answer = client.until_ready();
    let is_refusal = answer
        .first()
        .is_some_and(|first| first.sqlstate() == "PF002");
    assert!(is_refusal, "a write without a token:\n{}", pretty(&answer));
}

/// Seconds of the work, and the target's CPU time for it in microseconds.
fn timed(way: &Way, work: impl FnOnce()) -> (f64, Option<f64>) {
    let cpu = || way.pid().map(process::cpu_time);
    let (before, begin) = (cpu(), Instant::now());
    work();
    let seconds = begin.elapsed().as_secs_f64();
    let used = cpu()
        .zip(before)
        .map(|(now, before)| (now - before).as_secs_f64() * 1e6);
    (seconds, used)
}
