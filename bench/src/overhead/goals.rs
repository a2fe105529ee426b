//! What must be reached, cell by cell, and whether it was.

use pgpalisade_bench::statistics::median;
use pgpalisade_bench::targets::Kind;

use crate::plan::{Cell, Lane, Workload};
use crate::results::Results;

/// The most CPU per transaction, as a multiple of the bare relay's.
const RELAY_FACTOR: f64 = 1.15;

/// The most CPU per transaction over a unix socket, as a part of that over TCP.
const UNIX_PART: f64 = 0.9;

/// The numbers of clients that the goals are about.
const CLIENTS: [u16; 3] = [1, 16, 64];

/// A goal in one cell.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Outcome {
    /// What was compared: a ratio, of which less is better for CPU, and more for throughput.
    pub(crate) ratio: f64,
    pub(crate) is_reached: bool,
}

/// All goals in one cell. `None` where one side was not measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Outcomes {
    pub(crate) cell: Cell,
    /// CPU of the bound session, as a multiple of each peer's.
    pub(crate) cpu: [(Kind, Option<Outcome>); 3],
    /// Throughput of the bound session, as a multiple of each peer's.
    pub(crate) throughput: [(Kind, Option<Outcome>); 2],
    /// CPU of the bound session over a unix socket, as a part of that over TCP.
    pub(crate) unix: Option<Outcome>,
}

impl Outcomes {
    /// All that are known.
    pub(crate) fn known(&self) -> impl Iterator<Item = Outcome> {
        let cpu = self.cpu.into_iter();
        let throughput = self.throughput.into_iter();
        let both = cpu.chain(throughput).filter_map(|(_, outcome)| outcome);
        both.chain(self.unix)
    }
}

/// In all cells that the goals are about and that were measured.
pub(crate) fn outcomes(results: &Results) -> Vec<Outcomes> {
    let cells = results.cells().into_iter();
    let is_meant =
        |cell: &Cell| cell.workload == Workload::Select && CLIENTS.contains(&cell.clients);
    cells
        .filter(is_meant)
        .map(|cell| Outcomes {
            cell,
            cpu: [
                (Kind::Pgbouncer, 1.0),
                (Kind::Haproxy, 1.0),
                (Kind::Relay, RELAY_FACTOR),
            ]
            .map(|(kind, limit)| (kind, cpu(results, cell, Lane::tcp(kind), limit))),
            throughput: [Kind::Pgbouncer, Kind::Haproxy]
                .map(|kind| (kind, throughput(results, cell, kind))),
            unix: unix(results, cell),
        })
        .collect()
}

fn cpu(results: &Results, cell: Cell, peer: Lane, limit: f64) -> Option<Outcome> {
    let ours = results.summary(cell, Lane::tcp(Kind::Bound))?.micros?;
    let ratio = ours / results.summary(cell, peer)?.micros?;
    Some(Outcome {
        ratio,
        is_reached: ratio <= limit,
    })
}

fn unix(results: &Results, cell: Cell) -> Option<Outcome> {
    let over = |lane| results.summary(cell, lane)?.micros;
    let ratio = over(Lane::unix(Kind::Bound))? / over(Lane::tcp(Kind::Bound))?;
    Some(Outcome {
        ratio,
        is_reached: ratio <= UNIX_PART,
    })
}

/// Round against round, since two turns of one round are near each other in time. It is below beyond noise where it is
/// below in every round: of two that are equal, that is one chance in two for each round.
fn throughput(results: &Results, cell: Cell, peer: Kind) -> Option<Outcome> {
    let peers = results.rounds(cell, Lane::tcp(peer));
    let ours = results.rounds(cell, Lane::tcp(Kind::Bound));
    let ratios: Vec<f64> = ours
        .iter()
        .filter_map(|sample| {
            let round = sample.turn.round;
            let peer = peers.iter().find(|peer| peer.turn.round == round)?;
            Some(sample.tps() / peer.tps())
        })
        .collect();
    Some(Outcome {
        ratio: median(&ratios)?,
        is_reached: ratios.iter().any(|ratio| *ratio >= 1.0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Cores, Protocol};
    use crate::results::tests::{CELL, sample};

    /// Rounds of (tps, microseconds of CPU).
    fn results(rounds: &[(Lane, &[(u64, u64)])]) -> Results {
        let mut all = Results::default();
        for (lane, figures) in rounds {
            for (round, (tps, micros)) in (1..).zip(*figures) {
                all.samples.push(sample(CELL, *lane, round, *tps, *micros));
            }
        }
        all
    }

    const BOUND: Lane = Lane::tcp(Kind::Bound);

    #[test]
    fn limits_of_cpu() {
        for (micros, relay, peer, expect) in [
            (115, 100, 115, (true, true)),
            (116, 100, 115, (false, false)),
            (110, 100, 109, (true, false)),
        ] {
            let results = results(&[
                (BOUND, &[(1000, micros)]),
                (Lane::tcp(Kind::Relay), &[(1000, relay)]),
                (Lane::tcp(Kind::Haproxy), &[(1000, peer)]),
            ]);
            let outcomes = outcomes(&results);
            let [only] = outcomes.as_slice() else {
                panic!("{outcomes:?}");
            };
            let [pgbouncer, haproxy, relay] = only.cpu.map(|(_, outcome)| outcome);
            assert_eq!(pgbouncer, None);
            let reached = (relay.unwrap().is_reached, haproxy.unwrap().is_reached);
            assert_eq!(reached, expect, "{micros}");
            assert_eq!(only.unix, None);
        }
    }

    #[test]
    fn less_over_a_unix_socket() {
        for (micros, expect) in [(90, true), (91, false)] {
            let results = results(&[
                (BOUND, &[(1000, 100)]),
                (Lane::unix(Kind::Bound), &[(1000, micros)]),
            ]);
            let unix = outcomes(&results)[0].unix.unwrap();
            assert_eq!(unix.is_reached, expect, "{micros}");
        }
    }

    #[test]
    fn throughput_is_below_where_it_is_in_every_round() {
        let peer: &[(u64, u64)] = &[(1000, 1), (1200, 1), (800, 1)];
        for (ours, expect) in [
            ([(900, 1), (1100, 1), (800, 1)], true),
            ([(900, 1), (1100, 1), (799, 1)], false),
        ] {
            let results = results(&[(BOUND, &ours), (Lane::tcp(Kind::Pgbouncer), peer)]);
            let [(_, outcome), _] = outcomes(&results)[0].throughput;
            let outcome = outcome.unwrap();
            assert_eq!(outcome.is_reached, expect);
            assert!((outcome.ratio - 1100.0 / 1200.0).abs() < 1e-9);
        }
    }

    #[test]
    fn goals_are_about_some_cells() {
        let cell = |workload, clients| Cell {
            workload,
            clients,
            cores: Cores::All,
            protocol: Protocol::Simple,
        };
        let mut results = Results::default();
        for cell in [cell(Workload::Select, 256), cell(Workload::Tpcb, 16)] {
            results.samples.push(sample(cell, BOUND, 1, 1000, 10));
        }
        assert_eq!(outcomes(&results), []);
    }
}
