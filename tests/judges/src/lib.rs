//! Judges of the guarantee under random load. They run in short as tests, and for hours by make.
//!
//! - [`mediation`]: random conversations, judged by the database: `make mediation`.
//! - [`proof`]: leaders, random faults, and a checker of the history: `make proof`. `make outage` measures failovers
//!   with the same client.

#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a harness that cannot go on fails the test"
)]

pub mod mediation;
pub mod proof;
