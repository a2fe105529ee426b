//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use pgpalisade_bench::targets::{Kind, Link};

use crate::plan::{Plan, Protocol, Workload};

/// Measure what the proxy costs, beside its peers and PostgreSQL reached directly
///
/// Starts a PostgreSQL of its own and runs pgbench against it directly, through pgpalisade (a session with a current
/// token, one without a token, and observe mode), pgbouncer, haproxy and a bare relay, which take turns in short
/// rounds. The table has medians: throughput, latency, CPU time of the proxy's process per transaction, and its memory.
/// CPU time decides: throughput moves with whatever else the machine does.
#[derive(Debug, Parser)]
#[command(
    name = "overhead",
    args_conflicts_with_subcommands = true,
    after_help = "Environment:\n  PGPALISADE_BIN  the proxy to measure [default: pgpalisade beside this program]\n  \
                  PG_BIN          directory of PostgreSQL's programs, pgbench among them"
)]
pub(crate) struct Flags {
    #[command(subcommand)]
    pub(crate) what: Option<What>,
    /// A look, in three to four minutes: 1 and 16 clients, simple and prepared, reads only, three rounds
    #[arg(long)]
    quick: bool,
    /// Scripts, one after the other
    #[arg(
        long,
        value_name = "NAME,NAME",
        value_delimiter = ',',
        default_value = "select,tpcb",
        default_value_if("quick", "true", "select")
    )]
    workloads: Vec<Workload>,
    /// Numbers of clients, one after the other (1 to 1000)
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "1,16,64,256",
          default_value_if("quick", "true", "1,16"), value_parser = clap::value_parser!(u16).range(1..=1000))]
    clients: Vec<u16>,
    /// Protocols, one after the other
    #[arg(
        long,
        value_name = "NAME,NAME",
        value_delimiter = ',',
        default_value = "simple,extended,prepared",
        default_value_if("quick", "true", "simple,prepared")
    )]
    protocols: Vec<Protocol>,
    /// What to compare: direct, pgpalisade, pgpalisade-no-token, pgpalisade-observe, pgbouncer, haproxy, relay
    /// [default: all]
    #[arg(long, value_name = "NAME,NAME", value_delimiter = ',', value_parser = kind)]
    targets: Vec<Kind>,
    /// How PostgreSQL is reached: tcp, unix [default: both, unix for reads only]
    #[arg(long, value_name = "NAME,NAME", value_delimiter = ',', value_parser = link)]
    links: Vec<Link>,
    /// Length of what is measured of a round (0.1 to 60)
    #[arg(long, value_name = "S", default_value_t = 0.8, value_parser = seconds)]
    seconds: f64,
    /// Rounds of each target; the median counts
    #[arg(long, value_name = "N", default_value_t = 5, default_value_if("quick", "true", "3"),
          value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: u16,
    /// pgbench's scale for `select`: 100,000 accounts each
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) scale: u16,
    /// pgbench's scale for `tpcb`: clients that share a branch wait for each other
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) scale_writes: u16,
    /// Write every round into this file, as it comes
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// What else than measuring.
#[derive(Debug, Subcommand)]
pub(crate) enum What {
    /// Make the page and the plot again, from a file of an earlier run
    Page {
        /// The file that `--csv` wrote
        #[arg(long, value_name = "FILE")]
        from: PathBuf,
        #[command(flatten)]
        output: Output,
    },
}

/// What is made of the results.
#[derive(Debug, Args)]
pub(crate) struct Output {
    /// Draw the CPU time per transaction into this file
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    /// Write a page in Markdown into this file. With --svg it shows the plot
    #[arg(long, value_name = "FILE")]
    pub(crate) page: Option<PathBuf>,
}

impl Flags {
    /// What is to be measured.
    pub(crate) fn plan(&self) -> Plan {
        Plan {
            workloads: each_once(&self.workloads),
            clients: each_once(&self.clients),
            protocols: each_once(&self.protocols),
            kinds: all_or(&self.targets, &Kind::ALL),
            links: all_or(&self.links, &Link::ALL),
            rounds: self.rounds,
            seconds: self.seconds,
        }
    }
}

fn each_once<T: Copy + Ord>(given: &[T]) -> Vec<T> {
    let mut once = given.to_vec();
    once.sort_unstable();
    once.dedup();
    once
}

fn all_or<T: Copy + Ord>(given: &[T], all: &[T]) -> Vec<T> {
    each_once(if given.is_empty() { all } else { given })
}

fn kind(text: &str) -> Result<Kind, String> {
    let names = Kind::ALL.map(Kind::name).join(", ");
    Kind::named(text).ok_or_else(|| format!("write one of {names}"))
}

fn link(text: &str) -> Result<Link, String> {
    Link::named(text).ok_or_else(|| "write tcp or unix".to_owned())
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds: Option<f64> = text.parse().ok();
    let in_range = seconds.filter(|seconds| (0.1..=60.0).contains(seconds));
    in_range.ok_or_else(|| "write a number from 0.1 to 60".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(arguments: &[&str]) -> Plan {
        let all = ["overhead"].iter().chain(arguments);
        Flags::try_parse_from(all).unwrap().plan()
    }

    #[test]
    fn defaults_and_quick() {
        let whole = plan(&[]);
        assert_eq!(whole.clients, [1, 16, 64, 256]);
        assert_eq!(whole.workloads, Workload::ALL);
        assert_eq!((whole.rounds, whole.kinds.len()), (5, Kind::ALL.len()));
        let quick = plan(&["--quick", "--clients", "64,2,64"]);
        assert_eq!(quick.clients, [2, 64]);
        assert_eq!(quick.workloads, [Workload::Select]);
        assert_eq!(quick.protocols, [Protocol::Simple, Protocol::Prepared]);
        assert_eq!(quick.rounds, 3);
    }

    #[test]
    fn parts() {
        let part = plan(&["--targets", "relay,direct", "--links", "unix"]);
        assert_eq!(part.kinds, [Kind::Direct, Kind::Relay]);
        assert_eq!(part.links, [Link::Unix]);
        for wrong in [
            ["--targets", "proxy"],
            ["--links", "udp"],
            ["--seconds", "0"],
            ["--seconds", "NaN"],
            ["--clients", "0"],
        ] {
            let all = ["overhead"].iter().chain(&wrong);
            assert!(Flags::try_parse_from(all).is_err(), "{wrong:?}");
        }
    }
}
