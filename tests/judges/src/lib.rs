//! Judges of the guarantee under random load. They run in short as tests, and for hours by make.

#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a harness that cannot go on fails the test"
)]

pub mod handover;
pub mod mediation;
pub mod proof;
pub mod sharing;
