//! Cost of each part of the data path, call by call: `make bench-micro`.
//!
//! Each benchmark does what the proxy does for one message.

#![expect(
    clippy::expect_used,
    reason = "a part of the proxy that does not do what is measured has no figure"
)]

mod admission;
mod classification;
mod framing;
mod policy;

use pgpalisade_policies::TextEncoding;

/// 100 bytes, as an application sends them.
const INSERT: &str = "INSERT INTO job_result (job_id, worker, finished_at, result) \
    VALUES ($1, $2, now(), $3) RETURNING id";

const POINT_SELECT: &str = "SELECT abalance FROM pgbench_accounts WHERE aid = $1";

const SAFE: TextEncoding = TextEncoding::Utf8;

fn main() {
    divan::main();
}
