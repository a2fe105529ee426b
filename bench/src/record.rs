//! Measured values: one value of one round.

use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) measurement: Measurement,
    /// What is between the client and PostgreSQL.
    pub(crate) target: ComparedTarget,
    /// The protocol, the direction of a COPY, or the store. May be empty.
    pub(crate) variant: String,
    /// Of clients, megabytes, idle sessions, scopes, or old sessions.
    pub(crate) number: u32,
    /// From 1. Values of one round were measured within seconds of each other.
    pub(crate) round: u32,
    pub(crate) figure: Figure,
    pub(crate) value: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Measurement {
    /// `pgbench -S` in three protocols
    Transactions,
    /// `pgbench -S` over ten server connections that all clients share
    Pooling,
    /// COPY out of and into PostgreSQL
    Copy,
    /// Writes of sessions without a token, all refused
    Refusals,
    /// Memory of idle sessions, and what a transaction of others costs meanwhile
    Sessions,
    /// What a transaction costs with many scopes
    Scopes,
    /// A newer token, over old sessions with open transactions
    Takeover,
    /// The lease of a leader that ends, to the first write of the next one
    Handover,
    /// SELECTs with TLS on no leg, on the client's, and on both
    Tls,
    /// Writes without a fence, with one that is built by hand, and through the proxy
    Fences,
    /// The next leader's wait for an old one whose machine is gone
    LostMachine,
}

#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, strum::Display, strum::VariantArray,
)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub(crate) enum ComparedTarget {
    Direct,
    /// `pgpalisade serve` with default settings; sessions hold the current token, unless noted.
    Pgpalisade,
    /// In session mode, unless noted, without logging.
    Pgbouncer,
    /// In `mode tcp`, without logging.
    Haproxy,
}

/// With its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Figure {
    /// User and system time of the target's process, for each transaction, refusal or megabyte.
    #[serde(rename = "CPU us")]
    Cpu,
    /// Transactions per second.
    #[serde(rename = "per second")]
    Rate,
    /// Per second.
    #[serde(rename = "MB/s")]
    Megabytes,
    #[serde(rename = "p50 us")]
    Median,
    /// The 99th percentile of the latency.
    #[serde(rename = "p99 us")]
    Tail,
    /// Resident memory of the target's process, for each idle session.
    #[serde(rename = "KiB")]
    Memory,
    /// Time from SET to its answer; for the direct target, from PostgreSQL's order to end sessions until they are
    /// gone. For handovers, from the end of a leader to the first write of the next, or to its leadership.
    #[serde(rename = "ms")]
    Takeover,
    /// User and system time of PostgreSQL and the target, for each write.
    #[serde(rename = "servers' CPU us")]
    ServersCpu,
    /// Bytes in PostgreSQL's log, for each write.
    #[serde(rename = "WAL bytes")]
    Wal,
    /// Rows locked by several transactions at once, for each write; PostgreSQL stores each.
    #[serde(rename = "multixacts")]
    Multixacts,
}

/// As in the CSV file.
impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

pub(crate) fn write(path: &Path, records: &[Record]) -> csv::Result<()> {
    let mut writer = csv::Writer::from_path(path)?;
    records
        .iter()
        .try_for_each(|record| writer.serialize(record))?;
    Ok(writer.flush()?)
}
