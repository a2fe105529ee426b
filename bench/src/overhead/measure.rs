//! Rounds in turn, and what they come to.

use std::fmt;

use tokio_util::sync::CancellationToken;

use crate::cpu::{TickRate, Ticks};
use crate::error::Error;
use crate::pgbench::{Declares, Pgbench, Protocol, Run, Target, Workload};
use crate::proxy::Proxy;

/// The way from pgbench to PostgreSQL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Path {
    Direct,
    /// Through the proxy, with a current token.
    Bound,
    /// Through the proxy, without a token: it may read only.
    NoToken,
}

impl Path {
    fn of(workload: Workload) -> &'static [Self] {
        match workload {
            Workload::Select => &[Self::Direct, Self::Bound, Self::NoToken],
            Workload::TpcB => &[Self::Direct, Self::Bound],
        }
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Direct => "direct",
            Self::Bound => "proxy, token",
            Self::NoToken => "proxy, no token",
        })
    }
}

/// What is compared inside of itself: one workload, protocol and number of clients.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Case {
    pub(crate) workload: Workload,
    pub(crate) protocol: Protocol,
    pub(crate) clients: u16,
}

/// All cases, in the order of the table.
pub(crate) fn cases(workloads: &[Workload], clients: &[u16]) -> Vec<Case> {
    let mut cases = Vec::new();
    for &workload in workloads {
        for &clients in clients {
            cases.extend(Protocol::ALL.map(|protocol| Case {
                workload,
                protocol,
                clients,
            }));
        }
    }
    cases
}

/// The rounds of one path.
#[derive(Debug, Clone)]
pub(crate) struct Samples {
    pub(crate) path: Path,
    /// Transactions per second, one figure for each round.
    pub(crate) tps: Vec<f64>,
    /// CPU of the proxy per transaction in microseconds, one for each round; empty for direct.
    pub(crate) micros: Vec<f64>,
}

/// How much is measured.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Effort {
    pub(crate) seconds: u16,
    pub(crate) rounds: u16,
}

impl Effort {
    /// Seconds that all rounds take, at least.
    pub(crate) fn total(self, cases: &[Case]) -> usize {
        let paths: usize = cases.iter().map(|case| Path::of(case.workload).len()).sum();
        paths * usize::from(self.seconds) * usize::from(self.rounds)
    }
}

/// What the rounds run on.
#[derive(Debug)]
pub(crate) struct Stage<'a> {
    pub(crate) pgbench: Pgbench<'a>,
    /// Port of PostgreSQL.
    pub(crate) direct: u16,
    pub(crate) proxy: &'a Proxy,
    pub(crate) rate: TickRate,
    pub(crate) stop: &'a CancellationToken,
}

impl Stage<'_> {
    fn target(&self, path: Path) -> Target {
        let (port, declares) = match path {
            Path::Direct => (self.direct, Declares::Nothing),
            Path::Bound => (self.proxy.port(), Declares::Token),
            Path::NoToken => (self.proxy.port(), Declares::Nothing),
        };
        Target { port, declares }
    }

    /// Makes the tables, and looks that the fence works: with a token a write passes, without one it does not.
    pub(crate) fn prepare(&self) -> Result<(), Error> {
        self.pgbench.initialise(self.target(Path::Direct))?;
        self.pgbench.write_once(self.target(Path::Bound))?;
        match self.pgbench.write_once(self.target(Path::NoToken)) {
            // PF002, "no token".
            Err(Error::Pgbench { output, .. }) if output.contains("token") => Ok(()),
            Err(other) => Err(other),
            Ok(_) => Err(Error::NotFenced),
        }
    }

    /// All rounds of a case. The paths take turns, so that what else the machine does meets all of them, and
    /// each round begins with another.
    pub(crate) fn measure(&self, case: Case, effort: Effort) -> Result<Vec<Samples>, Error> {
        let mut all: Vec<Samples> = Path::of(case.workload)
            .iter()
            .map(|&path| Samples {
                path,
                tps: Vec::new(),
                micros: Vec::new(),
            })
            .collect();
        let paths = all.len();
        for round in 0..usize::from(effort.rounds) {
            for turn in 0..paths {
                if let Some(samples) = all.get_mut((round + turn) % paths) {
                    self.round(case, effort.seconds, samples)?;
                }
            }
        }
        Ok(all)
    }

    fn round(&self, case: Case, seconds: u16, samples: &mut Samples) -> Result<(), Error> {
        if self.stop.is_cancelled() {
            return Err(Error::Interrupted);
        }
        let run = Run {
            workload: case.workload,
            protocol: case.protocol,
            clients: case.clients,
            seconds,
        };
        let before = Ticks::of(self.proxy.pid())?;
        let report = self.pgbench.run(self.target(samples.path), run)?;
        let after = Ticks::of(self.proxy.pid())?;
        samples.tps.push(report.tps);
        if samples.path != Path::Direct {
            let micros = self.rate.micros(before, after);
            samples.micros.push(micros / report.transactions as f64);
        }
        Ok(())
    }
}
