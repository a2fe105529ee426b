//! Configuration in two stages: [`RawConfig`] holds values as written, with their sources; [`Config`] is ready for
//! use.
//!
//! Sources in rising order: built-in defaults, the TOML file, `PGPALISADE_*` variables, flags. Every value of every
//! source is checked, and all errors come back together.

mod address;
mod auth;
mod authority;
mod backends;
mod console;
mod control;
mod duration;
mod error;
mod example;
mod file;
mod http;
mod key;
mod listen;
mod listener;
mod pgbouncer;
mod raw;
mod ready;
mod shown;
#[cfg(test)]
mod tests;
mod tls;
mod values;

pub(crate) use authority::AuthorityLocation;
pub(crate) use control::{first_address as address_of, parse_for_client as parse_dsn};
pub(crate) use duration::{parse as parse_time, show as show_time};
pub(crate) use example::example;
pub(crate) use http::HttpAddr;
pub(crate) use key::{KEYS, Key, KeySpec, TomlType};
pub(crate) use listener::TokenSource;
pub(crate) use pgbouncer::from_pgbouncer;
pub(crate) use raw::{Environment, Flags, RawConfig};
pub(crate) use ready::{Config, Log};
