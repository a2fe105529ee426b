//! The proxy's data path.
pub mod fence;
pub mod takeover;
