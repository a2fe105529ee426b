//! Configuration in two stages: [`RawConfig`] is what was written and where, [`Config`] is ready for use.
//!
//! Sources in rising order: built-in defaults, the TOML file, `PGPALISADE_*` variables, flags. Every value of
//! every source is checked, also one that a higher source replaces, and all errors come back together, each with
//! its place.

mod address;
mod authority;
mod control;
mod duration;
mod error;
mod file;
mod key;
mod raw;
mod ready;
mod secret;
#[cfg(test)]
mod tests;

pub use address::UpstreamAddr;
pub use authority::AuthorityLocation;
pub(crate) use control::{address as address_of, parse as parse_dsn};
pub(crate) use duration::{parse as parse_time, show as show_time};
pub use error::{ConfigError, ConfigErrors, Source};
pub use key::{KEYS, Key, KeySpec, Shape};
pub use raw::{Environment, Flags, Item, RawConfig, RawValue};
pub use ready::{Barrier, Batching, Config, Literals, LogFilter, LogFormat, WitnessMode};
pub use secret::Secret;
