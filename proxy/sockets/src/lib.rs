//! Socket operations that no library offers behind a safe interface: pgpalisade's only unsafe code
//! (`docs/decisions/0011`).

mod send_ring;
mod watched;

pub use send_ring::SendRing;
pub use watched::Watched;
