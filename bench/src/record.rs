//! What was measured: one value of one round.

use std::path::Path;

use serde::{Deserialize, Serialize};

/// A line of the CSV file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// Which measurement.
    pub(crate) measurement: Measurement,
    /// What stood between the client and PostgreSQL.
    pub(crate) target: Target,
    /// The protocol, the direction of a COPY, or the store. May be empty.
    pub(crate) variant: String,
    /// How many: clients, megabytes, idle sessions, scopes, or old sessions.
    pub(crate) number: u32,
    /// From 1. What has the same round was measured within seconds of each other.
    pub(crate) round: u32,
    /// Which of the measurement's values.
    pub(crate) figure: Figure,
    /// The value, in the unit of the figure.
    pub(crate) value: f64,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Measurement {
    /// `pgbench -S` in three protocols
    Transactions,
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

/// A way to PostgreSQL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Target {
    /// PostgreSQL itself.
    Direct,
    /// `pgpalisade serve` with its default settings; sessions hold the current token, unless said otherwise.
    Pgpalisade,
    /// In session mode, nothing logged.
    Pgbouncer,
    /// In `mode tcp`, nothing logged.
    Haproxy,
    /// `bare-relay` of this package.
    Relay,
}

impl Target {
    /// All of them, in the order of the table.
    pub(crate) const ALL: [Self; 5] = [
        Self::Direct,
        Self::Pgpalisade,
        Self::Pgbouncer,
        Self::Haproxy,
        Self::Relay,
    ];

    /// Its name in tables and charts.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Pgpalisade => "pgpalisade",
            Self::Pgbouncer => "pgbouncer",
            Self::Haproxy => "haproxy",
            Self::Relay => "bare relay",
        }
    }
}

/// A kind of value, with its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Figure {
    /// User and system time of the target's process, for each transaction, refusal or megabyte.
    #[serde(rename = "CPU us")]
    Cpu,
    /// Transactions in a second.
    #[serde(rename = "per second")]
    Rate,
    /// Megabytes in a second.
    #[serde(rename = "MB/s")]
    Megabytes,
    /// Half of the transactions took at most so long.
    #[serde(rename = "p50 us")]
    Median,
    /// All but one in a hundred took at most so long.
    #[serde(rename = "p99 us")]
    Tail,
    /// Resident memory of the target's process, for each idle session.
    #[serde(rename = "KiB")]
    Memory,
    /// From sending SET to its answer; directly, from telling PostgreSQL to end sessions until they are gone. From the
    /// end of a leader to the first write of the next, or to its leadership.
    #[serde(rename = "ms")]
    Takeover,
    /// User and system time of PostgreSQL and of the target, for each write.
    #[serde(rename = "servers' CPU us")]
    ServersCpu,
    /// Bytes in PostgreSQL's log, for each write.
    #[serde(rename = "WAL bytes")]
    Wal,
    /// Rows locked by several transactions at once, for each write: each is written down.
    #[serde(rename = "multixacts")]
    Multixacts,
}

impl Figure {
    /// Its name, as in the CSV file.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Cpu => "CPU us",
            Self::Rate => "per second",
            Self::Megabytes => "MB/s",
            Self::Median => "p50 us",
            Self::Tail => "p99 us",
            Self::Memory => "KiB",
            Self::Takeover => "ms",
            Self::ServersCpu => "servers' CPU us",
            Self::Wal => "WAL bytes",
            Self::Multixacts => "multixacts",
        }
    }
}

/// Writes all of them, with a head line.
pub(crate) fn write(path: &Path, records: &[Record]) -> csv::Result<()> {
    let mut writer = csv::Writer::from_path(path)?;
    records
        .iter()
        .try_for_each(|record| writer.serialize(record))?;
    Ok(writer.flush()?)
}

/// A number with its noun.
pub(crate) fn counted(number: u32, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {what}{plural}")
}

/// The median. `None` of nothing.
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().checked_sub(1)?;
    Some(f64::midpoint(
        *sorted.get(last / 2)?,
        *sorted.get(last.div_ceil(2))?,
    ))
}
