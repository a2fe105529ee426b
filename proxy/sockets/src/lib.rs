//! What the proxy wants of its sockets and no library offers behind an interface that cannot be misused: the only
//! unsafe code of pgpalisade, in two places (`docs/decisions/0011`).

mod send_ring;
mod watched;

pub use send_ring::SendRing;
pub use watched::Watched;
