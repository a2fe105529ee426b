//! Cost of a write with hand-built fences, and through the proxy, including PostgreSQL's.

use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use pgpalisade_fence::readable::counted;
use pgpalisade_test_servers::machine::wait_for;
use pgpalisade_test_servers::postgres::Postgres;

use crate::pgbench::{self, Load};
use crate::plan::{BenchPlan, Cell, in_turn};
use crate::process;
use crate::record::{ComparedTarget, Figure, Measurement, Record};
use crate::ways::{Way, server};

const SETUP: &str = "CREATE TABLE ledger (amount int);
CREATE TABLE guarded (amount int);
CREATE TABLE epoch (number bigint);
INSERT INTO epoch VALUES (34);
CREATE FUNCTION check_epoch() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    PERFORM FROM epoch WHERE number = 34 FOR SHARE;
    IF NOT FOUND THEN RAISE 'deposed'; END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER check_epoch BEFORE INSERT ON guarded EXECUTE FUNCTION check_epoch();";

/// Fence that lets only the leader write, and its transaction. A connection with an advisory lock writes as in the
/// first entry.
const FENCES: [(&str, ComparedTarget, &str); 4] = [
    (
        "plain",
        ComparedTarget::Direct,
        "INSERT INTO ledger VALUES (1);",
    ),
    (
        "plain",
        ComparedTarget::Pgpalisade,
        "INSERT INTO ledger VALUES (1);",
    ),
    (
        "epoch row",
        ComparedTarget::Direct,
        "SELECT FROM epoch WHERE number = 34 FOR SHARE;\nINSERT INTO ledger VALUES (1);",
    ),
    (
        "trigger",
        ComparedTarget::Direct,
        "INSERT INTO guarded VALUES (1);",
    ),
];

/// Time for PostgreSQL to reap the process of an ended session.
const REAPED: Duration = Duration::from_millis(100);

/// Of one INSERT.
pub(crate) fn fences(plan: &BenchPlan) -> Vec<Record> {
    let clients_max = plan.clients.iter().copied().max().unwrap_or_default();
    // Avoids whole pages in the log after each checkpoint, for every target alike.
    let postgres = server(2 * clients_max, &["full_page_writes=off"]);
    postgres.sql(SETUP);
    let direct = Way::open(ComparedTarget::Direct, &postgres, clients_max);
    let proxied = Way::open(ComparedTarget::Pgpalisade, &postgres, clients_max);
    let dir = tempfile::tempdir().expect("a scratch directory");
    let mut records = Vec::new();
    for round in 1..=plan.rounds {
        // More clients only divide the cores.
        for &clients in plan.clients.iter().take(2) {
            eprintln!(
                "fences: round {round} of {}, {}",
                plan.rounds,
                counted(clients, "client")
            );
            for &(variant, target, statements) in in_turn(&FENCES, round) {
                let way = match target {
                    ComparedTarget::Pgpalisade => &proxied,
                    _ => &direct,
                };
                let cell = Cell {
                    measurement: Measurement::Fences,
                    variant,
                    number: clients,
                    round,
                };
                let load = Load {
                    protocol: "prepared",
                    clients,
                    script: Some(script(dir.path(), statements)),
                    options: way.options(),
                    window: plan.window,
                };
                records.extend(cell.records(target, run(&postgres, way, &load)));
            }
        }
    }
    records
}

fn script(dir: &Path, statements: &str) -> std::path::PathBuf {
    let script = dir.join("script");
    fs::write(&script, format!("BEGIN;\n{statements}\nCOMMIT;\n")).expect("write a script");
    script
}

/// Throughput, latency, and use of PostgreSQL and the proxy for each write, including logins.
fn run(postgres: &Postgres, way: &Way, load: &Load) -> Vec<(Figure, f64)> {
    postgres.sql("TRUNCATE ledger, guarded");
    let before = Used::so_far(postgres, way);
    let mut figures = pgbench::run(way, load);
    figures.retain(|(figure, _)| [Figure::Rate, Figure::Median].contains(figure));
    wait_for("the sessions to end", || {
        let sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgbench'";
        (postgres.value(sessions) == "0").then(|| sleep(REAPED))
    });
    let after = Used::so_far(postgres, way);
    let writes = "SELECT (SELECT count(*) FROM ledger) + (SELECT count(*) FROM guarded)";
    let writes = number(postgres, writes);
    let cpu = (after.cpu - before.cpu).as_secs_f64() * 1e6;
    figures.extend([
        (Figure::ServersCpu, cpu / writes),
        (Figure::Wal, (after.wal - before.wal) / writes),
        (
            Figure::Multixacts,
            (after.multixacts - before.multixacts) / writes,
        ),
    ]);
    figures
}

struct Used {
    cpu: Duration,
    wal: f64,
    multixacts: f64,
}

impl Used {
    fn so_far(postgres: &Postgres, way: &Way) -> Self {
        let proxy = way.pid().map(process::cpu_time).unwrap_or_default();
        let wal = "SELECT pg_current_wal_insert_lsn() - '0/0'";
        let wal = number(postgres, wal);
        postgres.sql("CHECKPOINT");
        let multixacts = "SELECT next_multixact_id FROM pg_control_checkpoint()";
        Self {
            cpu: process::cpu_time_with_children(postgres.pid()) + proxy,
            wal,
            multixacts: number(postgres, multixacts),
        }
    }
}

fn number(postgres: &Postgres, sql: &str) -> f64 {
    postgres.value(sql).parse().expect("a number")
}
