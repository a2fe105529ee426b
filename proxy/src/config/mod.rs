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
mod tls;

pub(crate) use address::UpstreamAddr;
pub(crate) use authority::AuthorityLocation;
pub(crate) use control::{address as address_of, parse as parse_dsn};
pub(crate) use duration::{parse as parse_time, show as show_time};
pub(crate) use key::{KEYS, Key, KeySpec, Shape};
pub(crate) use raw::{Environment, Flags, RawConfig};
pub(crate) use ready::{Barrier, Batching, Config, LogFilter, LogFormat};
pub(crate) use secret::Secret;
pub(crate) use tls::{Certificates as ClientCertificates, ClientTls, Plain};
