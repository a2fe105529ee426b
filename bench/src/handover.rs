//! Time without a leader when a scope's lease changes hands: from the end of one leader to the first write of the
//! next, which already waits.

use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

use pgpalisade_fence::readable::counted;
use pgpalisade_test_servers::wire::{Endpoint, Wire};
use strum::VariantArray as _;

use crate::plan::{BenchPlan, Cell};
use crate::record::{ComparedTarget, Figure, Measurement, Record};
use crate::takeover::{Stage, StoreKind, USER};

/// For the next leader to ask for the lease and wait.
const IN_LINE: Duration = Duration::from_millis(300);

/// A paused leader costs its lease's whole time.
const PAUSED_ROUNDS: u32 = 3;

#[derive(Clone, Copy, Debug, strum::Display, strum::VariantArray)]
enum End {
    #[strum(to_string = "released")]
    Released,
    #[strum(to_string = "killed")]
    Killed,
    /// The leader does not renew its lease of 3 s.
    #[strum(to_string = "paused, 3 s")]
    Paused,
}

impl End {
    const fn lease(self) -> &'static str {
        match self {
            Self::Released | Self::Killed => "SET fencing.token = 'lease'",
            Self::Paused => "SET fencing.token = 'lease:3s'",
        }
    }
}

pub(crate) fn handover(plan: &BenchPlan) -> Vec<Record> {
    let mut records = Vec::new();
    for &kind in StoreKind::VARIANTS {
        let stage = Stage::start(kind, 2);
        for &end in End::VARIANTS {
            let rounds = match end {
                End::Released | End::Killed => plan.takeovers,
                End::Paused => plan.takeovers.min(PAUSED_ROUNDS),
            };
            eprintln!("handover: {kind}, {end}, {}", counted(rounds, "round"));
            for round in 1..=rounds {
                let cell = Cell {
                    measurement: Measurement::Handover,
                    variant: &format!("{kind}, {end}"),
                    number: 1,
                    round,
                };
                let took = round_of(&stage.endpoint(), end);
                let millis = [(Figure::Takeover, took.as_secs_f64() * 1e3)];
                records.extend(cell.records(ComparedTarget::Pgpalisade, millis));
                stage.forget_rows();
            }
        }
    }
    records
}

fn round_of(endpoint: &Endpoint, end: End) -> Duration {
    let mut leader = Wire::login(endpoint, &USER);
    let mut next = Wire::login(endpoint, &USER);
    leader.ok(end.lease());
    let mut begin = Instant::now();
    let writing = spawn(move || {
        next.ok(End::Released.lease());
        next.ok("INSERT INTO jobs (who) VALUES (3)");
        Instant::now()
    });
    match end {
        End::Released => {
            sleep(IN_LINE);
            begin = Instant::now();
            leader.ok("RESET fencing.token");
        }
        End::Killed => {
            sleep(IN_LINE);
            begin = Instant::now();
            drop(leader);
        }
        End::Paused => {}
    }
    let written = writing.join().expect("the next leader writes");
    written.saturating_duration_since(begin)
}
