//! Socket operations that no library offers behind a safe interface. This crate has pgpalisade's only unsafe code, in
//! two places (`docs/decisions/0011`).

mod send_ring;
mod watched;

pub use send_ring::SendRing;
pub use watched::Watched;
