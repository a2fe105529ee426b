//! The figures of a run, and the CSV file that they are kept in.

use std::str::FromStr;
use std::time::Duration;

use clap::ValueEnum;
use pgpalisade_bench::csv::Table;
use pgpalisade_bench::statistics::{median, range};
use pgpalisade_bench::targets::{Kind, Link};
use pgpalisade_bench::{Error, cpu};

use crate::plan::{Cell, Cores, Lane, Protocol, Turn, Workload};

/// The columns of the file. What has no process has none of the last five.
pub(crate) const COLUMNS: [&str; 17] = [
    "workload",
    "clients",
    "cores",
    "protocol",
    "target",
    "link",
    "round",
    "transactions",
    "seconds",
    "tps",
    "latency_avg_ms",
    "latency_p50_ms",
    "latency_p99_ms",
    "cpu_us",
    "cpu_ticks_us",
    "rss_kib",
    "threads",
];

/// More than this between the two counters of CPU time is not explained by how they count.
const CLOCKS_APART_MAX: f64 = 0.02;

/// Of the coarse counter, on most machines.
const TICK: Duration = Duration::from_millis(10);

/// What one round came to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Sample {
    pub(crate) turn: Turn,
    pub(crate) transactions: u64,
    /// The time in which they were done.
    pub(crate) seconds: f64,
    pub(crate) latency_ms: f64,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    /// Of the proxy's process. `None` for direct.
    pub(crate) counters: Option<Counters>,
}

/// What the kernel has counted of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counters {
    /// User and system time in the window.
    pub(crate) cpu: Duration,
    /// The same by the coarse counter.
    pub(crate) ticks: Duration,
    /// At the end of the window, with all sessions open.
    pub(crate) resident_kib: u64,
    pub(crate) threads: u64,
}

impl Sample {
    /// Transactions per second.
    pub(crate) fn tps(&self) -> f64 {
        self.transactions as f64 / self.seconds
    }

    /// Microseconds of CPU per transaction.
    pub(crate) fn micros(&self) -> Option<f64> {
        self.counters
            .map(|counters| cpu::micros_each(counters.cpu, self.transactions))
    }

    /// As it is read from the file again, so that what is made of a run and of its file is the same.
    pub(crate) fn as_written(self) -> Self {
        Self::parse(&self.row()).unwrap_or(self)
    }

    /// As a row of the file.
    pub(crate) fn row(&self) -> Vec<String> {
        let Turn { cell, lane, round } = self.turn;
        let of = |read: fn(Counters) -> u128| {
            let value = self.counters.map(|counters| read(counters).to_string());
            value.unwrap_or_default()
        };
        vec![
            cell.workload.to_string(),
            cell.clients.to_string(),
            cell.cores.name().to_owned(),
            cell.protocol.to_string(),
            lane.kind.to_string(),
            lane.link.to_string(),
            round.to_string(),
            self.transactions.to_string(),
            format!("{:.6}", self.seconds),
            format!("{:.1}", self.tps()),
            format!("{:.4}", self.latency_ms),
            format!("{:.3}", self.p50_ms),
            format!("{:.3}", self.p99_ms),
            of(|counters| counters.cpu.as_micros()),
            of(|counters| counters.ticks.as_micros()),
            of(|counters| counters.resident_kib.into()),
            of(|counters| counters.threads.into()),
        ]
    }

    fn parse(row: &[String]) -> Option<Self> {
        let [
            workload,
            clients,
            cores,
            protocol,
            kind,
            link,
            round,
            transactions,
            seconds,
            _,
            latency,
            p50,
            p99,
            cpu,
            ticks,
            resident,
            threads,
        ] = row
        else {
            return None;
        };
        let cell = Cell {
            workload: Workload::from_str(workload, false).ok()?,
            clients: clients.parse().ok()?,
            cores: Cores::from_str(cores, false).ok()?,
            protocol: Protocol::from_str(protocol, false).ok()?,
        };
        let lane = Lane {
            kind: Kind::named(kind)?,
            link: Link::named(link)?,
        };
        let counters = match cpu.is_empty() {
            true => None,
            false => Some(Counters {
                cpu: Duration::from_micros(cpu.parse().ok()?),
                ticks: Duration::from_micros(ticks.parse().ok()?),
                resident_kib: resident.parse().ok()?,
                threads: threads.parse().ok()?,
            }),
        };
        Some(Self {
            turn: Turn {
                cell,
                lane,
                round: round.parse().ok()?,
            },
            transactions: transactions
                .parse::<u64>()
                .ok()
                .filter(|count| *count > 0)?,
            seconds: positive(seconds)?,
            latency_ms: f64::from_str(latency).ok()?,
            p50_ms: f64::from_str(p50).ok()?,
            p99_ms: f64::from_str(p99).ok()?,
            counters,
        })
    }
}

fn positive(text: &str) -> Option<f64> {
    let number: f64 = text.parse().ok()?;
    (number.is_finite() && number > 0.0).then_some(number)
}

/// The medians of the rounds of a lane in a cell.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Summary {
    pub(crate) lane: Lane,
    pub(crate) tps: f64,
    pub(crate) tps_range: (f64, f64),
    pub(crate) latency_ms: f64,
    pub(crate) p99_ms: f64,
    /// Microseconds of CPU per transaction, with the least and the most.
    pub(crate) micros: Option<f64>,
    pub(crate) micros_range: Option<(f64, f64)>,
    pub(crate) resident_kib: Option<f64>,
}

/// All figures of a run, and what they are of.
#[derive(Debug, Clone, Default)]
pub(crate) struct Results {
    /// Machine, date, versions.
    pub(crate) notes: Vec<(String, String)>,
    pub(crate) samples: Vec<Sample>,
}

impl Results {
    /// From a file.
    pub(crate) fn parse(text: &str) -> Result<Self, Error> {
        let table = Table::parse(text)?;
        let wrong = |what: &str, row: &[String]| Error::NotUnderstood {
            what: format!("the CSV file, {what}"),
            text: row.join(","),
        };
        let mut rows = table.rows.iter();
        let columns = rows.next().map(Vec::as_slice).unwrap_or_default();
        if columns != COLUMNS {
            return Err(wrong("its columns are of another version", columns));
        }
        let parse = |row: &Vec<String>| Sample::parse(row).ok_or_else(|| wrong("a row", row));
        Ok(Self {
            samples: rows.map(parse).collect::<Result<_, _>>()?,
            notes: table.notes,
        })
    }

    /// The value of a note.
    pub(crate) fn note(&self, name: &str) -> Option<&str> {
        let note = self.notes.iter().find(|(known, _)| known == name);
        note.map(|(_, value)| value.as_str())
    }

    /// The cells that there are figures of, in the order of the tables.
    pub(crate) fn cells(&self) -> Vec<Cell> {
        let mut cells: Vec<Cell> = self.samples.iter().map(|sample| sample.turn.cell).collect();
        cells.sort_unstable();
        cells.dedup();
        cells
    }

    /// The rounds of a lane in a cell, in turn.
    pub(crate) fn rounds(&self, cell: Cell, lane: Lane) -> Vec<&Sample> {
        let mut rounds: Vec<&Sample> = self
            .samples
            .iter()
            .filter(|sample| sample.turn.cell == cell && sample.turn.lane == lane)
            .collect();
        rounds.sort_by_key(|sample| sample.turn.round);
        rounds
    }

    /// What the rounds come to. `None` where there are none.
    pub(crate) fn summary(&self, cell: Cell, lane: Lane) -> Option<Summary> {
        let rounds = self.rounds(cell, lane);
        let all = |read: fn(&Sample) -> f64| -> Vec<f64> {
            rounds.iter().map(|sample| read(sample)).collect()
        };
        let some = |read: fn(&Sample) -> Option<f64>| -> Vec<f64> {
            rounds.iter().filter_map(|sample| read(sample)).collect()
        };
        let tps = all(Sample::tps);
        let micros = some(Sample::micros);
        let resident = some(|sample| Some(sample.counters?.resident_kib as f64));
        Some(Summary {
            lane,
            tps: median(&tps)?,
            tps_range: range(&tps)?,
            latency_ms: median(&all(|sample| sample.latency_ms))?,
            p99_ms: median(&all(|sample| sample.p99_ms))?,
            micros: median(&micros),
            micros_range: range(&micros),
            resident_kib: median(&resident),
        })
    }

    /// The summaries of a cell, those over TCP first.
    pub(crate) fn summaries(&self, cell: Cell) -> Vec<Summary> {
        let lanes = Link::ALL
            .into_iter()
            .flat_map(|link| Kind::ALL.map(|kind| Lane { kind, link }));
        lanes.filter_map(|lane| self.summary(cell, lane)).collect()
    }

    /// Whether the two counters of CPU time are further apart than ticks explain: each round may be off by one, and
    /// some are above and some below.
    pub(crate) fn clocks_disagree(&self) -> bool {
        let counters = || self.samples.iter().filter_map(|sample| sample.counters);
        let cpu: Duration = counters().map(|counters| counters.cpu).sum();
        let ticks: Duration = counters().map(|counters| counters.ticks).sum();
        let by_ticks = TICK.as_secs_f64() * (counters().count() as f64).sqrt();
        let allowed = CLOCKS_APART_MAX * cpu.as_secs_f64() + by_ticks;
        (ticks.as_secs_f64() - cpu.as_secs_f64()).abs() > allowed
    }

    /// How far they are apart over all rounds: 0.01 is one percent.
    pub(crate) fn clocks_apart(&self) -> Option<f64> {
        let counters = || self.samples.iter().filter_map(|sample| sample.counters);
        let cpu: Duration = counters().map(|counters| counters.cpu).sum();
        let ticks: Duration = counters().map(|counters| counters.ticks).sum();
        let apart = ticks.as_secs_f64() / cpu.as_secs_f64() - 1.0;
        apart.is_finite().then_some(apart)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use pgpalisade_bench::csv;

    use super::*;

    /// A round of one second.
    pub(crate) fn sample(cell: Cell, lane: Lane, round: u16, tps: u64, micros: u64) -> Sample {
        let counters = Counters {
            cpu: Duration::from_micros(tps * micros),
            ticks: Duration::from_micros(tps * micros),
            resident_kib: 4096,
            threads: 3,
        };
        Sample {
            turn: Turn { cell, lane, round },
            transactions: tps,
            seconds: 1.0,
            latency_ms: 0.25,
            p50_ms: 0.25,
            p99_ms: 0.5,
            counters: (lane.kind != Kind::Direct).then_some(counters),
        }
    }

    pub(crate) const CELL: Cell = Cell {
        workload: Workload::Select,
        clients: 16,
        cores: Cores::All,
        protocol: Protocol::Simple,
    };

    #[test]
    fn what_is_written_is_read_again() {
        let samples = [
            sample(CELL, Lane::tcp(Kind::Direct), 1, 30_000, 0),
            sample(CELL, Lane::unix(Kind::Bound), 2, 20_000, 14),
        ];
        let mut text = csv::note("machine", "two cores") + &csv::row(&COLUMNS);
        for sample in &samples {
            text += &csv::row(&sample.row());
        }
        let results = Results::parse(&text).unwrap();
        assert_eq!(results.samples, samples);
        assert_eq!(results.note("machine"), Some("two cores"));
        for (from, to) in [
            ("transactions", "txns"),
            ("20000,", "0,"),
            ("select", "insert"),
            ("pgpalisade", "pgfence"),
            ("1.000000", "NaN"),
            (",all,", ",two,"),
        ] {
            assert!(Results::parse(&text.replace(from, to)).is_err(), "{from}");
        }
    }

    #[test]
    fn medians_of_the_rounds() {
        let lane = Lane::tcp(Kind::Bound);
        let rounds = [(1, 900, 15), (2, 2000, 14), (3, 1000, 19)];
        let results = Results {
            notes: Vec::new(),
            samples: rounds
                .map(|(round, tps, micros)| sample(CELL, lane, round, tps, micros))
                .to_vec(),
        };
        let summary = results.summary(CELL, lane).unwrap();
        assert_eq!((summary.tps, summary.micros), (1000.0, Some(15.0)));
        assert_eq!(summary.micros_range, Some((14.0, 19.0)));
        assert_eq!(summary.tps_range, (900.0, 2000.0));
        assert_eq!(results.summary(CELL, Lane::tcp(Kind::Relay)), None);
        assert_eq!(results.summaries(CELL), [summary]);
        assert_eq!(results.clocks_apart(), Some(0.0));
    }

    #[test]
    fn clocks_that_disagree() {
        // Two rounds of 0.5 s of CPU time: 20 ms and two ticks' worth of chance are allowed, 34 ms.
        for (more_ms, expect) in [(16, false), (18, true)] {
            let mut results = Results::default();
            for round in 1..=2 {
                let mut sample = sample(CELL, Lane::tcp(Kind::Relay), round, 50_000, 10);
                if let Some(counters) = &mut sample.counters {
                    counters.ticks += Duration::from_millis(more_ms);
                }
                results.samples.push(sample);
            }
            assert_eq!(results.clocks_disagree(), expect, "{more_ms}");
        }
    }

    #[test]
    fn a_sample_is_what_its_row_says() {
        let mut sample = sample(CELL, Lane::tcp(Kind::Bound), 1, 900, 15);
        sample.latency_ms = 1.0 / 3.0;
        sample.seconds = 0.123_456_789;
        let written = sample.as_written();
        assert_eq!((written.latency_ms, written.seconds), (0.3333, 0.123_457));
        assert_eq!(written.as_written(), written);
    }
}
