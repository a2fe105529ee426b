//! What is measured: cells, and in each of them the lanes that take turns.

use std::fmt;

use clap::ValueEnum;
use pgpalisade_bench::targets::{Kind, Link};

/// Which script.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Workload {
    /// `pgbench -S`: one SELECT by primary key.
    Select,
    /// pgbench's own script that is like TPC-B: seven statements, of which four write.
    Tpcb,
}

impl Workload {
    /// Both.
    pub(crate) const ALL: [Self; 2] = [Self::Select, Self::Tpcb];

    /// As tables and files say it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Select => "select",
            Self::Tpcb => "tpcb",
        }
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// pgbench's `--protocol`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Protocol {
    /// A text.
    Simple,
    /// Parse, Bind and Execute each time.
    Extended,
    /// Parse once, then Bind and Execute.
    Prepared,
}

impl Protocol {
    /// All three.
    pub(crate) const ALL: [Self; 3] = [Self::Simple, Self::Extended, Self::Prepared];

    /// As pgbench, tables and files say it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Simple => "simple",
            Self::Extended => "extended",
            Self::Prepared => "prepared",
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Which processors pgbench, the proxy and PostgreSQL may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Cores {
    /// All that there are.
    All,
    /// One, which they share. With one client they take turns anyway. What is left out is the price of waking another
    /// processor, which is the host's and can be several times that of everything else.
    One,
}

impl Cores {
    /// As files say it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::One => "one",
        }
    }
}

/// What is compared inside of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Cell {
    pub(crate) workload: Workload,
    pub(crate) clients: u16,
    pub(crate) cores: Cores,
    pub(crate) protocol: Protocol,
}

impl Cell {
    /// `1 client on one core`.
    pub(crate) fn crowd(self) -> String {
        let unit = if self.clients == 1 {
            "client"
        } else {
            "clients"
        };
        let cores = match self.cores {
            Cores::All => "",
            Cores::One => " on one core",
        };
        format!("{} {unit}{cores}", self.clients)
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let crowd = self.crowd();
        write!(f, "{}, {crowd}, {}", self.workload, self.protocol)
    }
}

/// A way from pgbench to PostgreSQL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Lane {
    pub(crate) kind: Kind,
    pub(crate) link: Link,
}

impl Lane {
    pub(crate) const fn tcp(kind: Kind) -> Self {
        Self {
            kind,
            link: Link::Tcp,
        }
    }

    pub(crate) const fn unix(kind: Kind) -> Self {
        Self {
            kind,
            link: Link::Unix,
        }
    }
}

impl fmt::Display for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&match self.link {
            Link::Tcp => self.kind.name().to_owned(),
            Link::Unix => format!("{}, unix", self.kind),
        })
    }
}

/// One round of one lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Turn {
    pub(crate) cell: Cell,
    pub(crate) lane: Lane,
    /// From 1.
    pub(crate) round: u16,
}

/// What is compared over a unix socket: the fence of a bound session costs the same on either link as the others.
const OVER_UNIX: [Kind; 5] = [
    Kind::Direct,
    Kind::Bound,
    Kind::Pgbouncer,
    Kind::Haproxy,
    Kind::Relay,
];

/// One client is measured on all processors and on one.
fn cores(workload: Workload, clients: u16) -> &'static [Cores] {
    match (workload, clients) {
        (Workload::Select, 1) => &[Cores::All, Cores::One],
        _ => &[Cores::All],
    }
}

/// What is measured, and how much.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) workloads: Vec<Workload>,
    pub(crate) clients: Vec<u16>,
    pub(crate) protocols: Vec<Protocol>,
    pub(crate) kinds: Vec<Kind>,
    pub(crate) links: Vec<Link>,
    pub(crate) rounds: u16,
    /// Length of what is measured of a round.
    pub(crate) seconds: f64,
}

impl Plan {
    /// All cells, in the order of the table.
    pub(crate) fn cells(&self) -> Vec<Cell> {
        let mut cells = Vec::new();
        for &workload in &self.workloads {
            for &clients in &self.clients {
                for &cores in cores(workload, clients) {
                    cells.extend(self.protocols.iter().map(|&protocol| Cell {
                        workload,
                        clients,
                        cores,
                        protocol,
                    }));
                }
            }
        }
        cells
    }

    /// The lanes of a workload. Writes are not compared over unix sockets: it is the same saving for each statement.
    /// Without a token nothing can be written.
    pub(crate) fn lanes(&self, workload: Workload) -> Vec<Lane> {
        let takes_part = |lane: &Lane| match workload {
            Workload::Select => lane.link == Link::Tcp || OVER_UNIX.contains(&lane.kind),
            Workload::Tpcb => lane.link == Link::Tcp && lane.kind != Kind::NoToken,
        };
        let lanes = self.links.iter().flat_map(|&link| {
            let kinds = self.kinds.iter();
            kinds.map(move |&kind| Lane { kind, link })
        });
        lanes.filter(takes_part).collect()
    }

    /// How many rounds there are in all.
    pub(crate) fn rounds_in_all(&self) -> usize {
        let cells = self.cells();
        let lanes = cells.iter().map(|cell| self.lanes(cell.workload).len());
        lanes.sum::<usize>() * usize::from(self.rounds)
    }

    /// The most clients of any cell.
    pub(crate) fn clients_max(&self) -> u16 {
        self.clients.iter().copied().max().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Plan {
        Plan {
            workloads: Workload::ALL.to_vec(),
            clients: vec![1, 64],
            protocols: Protocol::ALL.to_vec(),
            kinds: Kind::ALL.to_vec(),
            links: Link::ALL.to_vec(),
            rounds: 5,
            seconds: 1.0,
        }
    }

    #[test]
    fn everything() {
        let plan = plan();
        assert_eq!(plan.cells().len(), 15);
        assert_eq!(plan.lanes(Workload::Select).len(), 12);
        let writing: Vec<String> = plan
            .lanes(Workload::Tpcb)
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(
            writing,
            [
                "direct",
                "pgpalisade",
                "pgpalisade-observe",
                "pgbouncer",
                "haproxy",
                "relay"
            ]
        );
        // One client reads on all cores and on one.
        assert_eq!(plan.rounds_in_all(), (9 * 12 + 6 * 6) * 5);
        let crowds: Vec<String> = plan.cells().iter().map(|cell| cell.crowd()).collect();
        let expect = ["1 client", "1 client on one core", "64 clients"];
        assert_eq!([0, 3, 6].map(|at| crowds[at].as_str()), expect);
        assert_eq!(
            [9, 12].map(|at| crowds[at].as_str()),
            ["1 client", "64 clients"]
        );
        assert_eq!(plan.clients_max(), 64);
    }

    #[test]
    fn a_part() {
        let mut plan = plan();
        plan.kinds = vec![Kind::Direct, Kind::NoToken];
        plan.links = vec![Link::Unix];
        assert_eq!(plan.lanes(Workload::Select), [Lane::unix(Kind::Direct)]);
        assert_eq!(plan.lanes(Workload::Tpcb), []);
    }
}
