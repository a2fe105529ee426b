//! Wait of the next leader after the old one's machine vanishes during a transaction.
//!
//! PostgreSQL notices by TCP keep-alives, which give up after [`GIVEN_UP_AFTER`] here. Linux's defaults take two
//! hours and eleven minutes.

use std::time::{Duration, Instant};

use pgpalisade_test_servers::proxy::{Options, Proxy};
use pgpalisade_test_servers::wire::Wire;

use crate::plan::{BenchPlan, Cell};
use crate::record::{ComparedTarget, Figure, Measurement, Record};
use crate::takeover::{USER, durable};

/// Idle time, and two probes.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(3);
const KEEP_ALIVES: [&str; 3] = [
    "tcp_keepalives_idle=1",
    "tcp_keepalives_interval=1",
    "tcp_keepalives_count=2",
];

/// A round takes as long as the keep-alives.
const ROUNDS: u32 = 3;

const SETUP: &str =
    "CREATE TABLE jobs (who int); CREATE TABLE epoch (number bigint); INSERT INTO epoch VALUES (1)";

/// Statements of the old leader before its machine vanishes, and the statement of the next one that waits.
const FENCES: [(&str, ComparedTarget, &str, &str); 3] = [
    (
        "advisory lock",
        ComparedTarget::Direct,
        "SELECT pg_advisory_lock(1); BEGIN; INSERT INTO jobs VALUES (1)",
        "SELECT pg_advisory_lock(1)",
    ),
    (
        "epoch row",
        ComparedTarget::Direct,
        "BEGIN; SELECT FROM epoch FOR SHARE; INSERT INTO jobs VALUES (1)",
        "UPDATE epoch SET number = number + 1",
    ),
    (
        "fencing token",
        ComparedTarget::Pgpalisade,
        "SET fencing.token = 'next'; BEGIN; INSERT INTO jobs VALUES (1)",
        "SET fencing.token = 'next'",
    ),
];

pub(crate) fn lost_machine(plan: &BenchPlan) -> Vec<Record> {
    let postgres = durable(2, &KEEP_ALIVES);
    postgres.sql(SETUP);
    let proxy = Proxy::start_with(Options::new(&postgres));
    let mut records = Vec::new();
    for round in 1..=plan.takeovers.min(ROUNDS) {
        for (variant, target, leads, follows) in FENCES {
            eprintln!("lost machine: {variant}, round {round}");
            let endpoint = match target {
                ComparedTarget::Direct => postgres.tcp(),
                _ => proxy.endpoint(),
            };
            let mut old = Wire::login(&endpoint, &USER);
            leads.split("; ").for_each(|sql| drop(old.ok(sql)));
            let mut next = Wire::login(&endpoint, &USER);
            old.vanish();
            let begin = Instant::now();
            next.ok(follows);
            let took = begin.elapsed();
            let cell = Cell {
                measurement: Measurement::LostMachine,
                variant,
                number: 1,
                round,
            };
            let millis = [(Figure::Takeover, took.as_secs_f64() * 1e3)];
            records.extend(cell.records(target, millis));
            assert!(
                target == ComparedTarget::Pgpalisade || took > GIVEN_UP_AFTER / 2,
                "{variant}: nobody waited for the machine that is gone"
            );
        }
    }
    records
}
