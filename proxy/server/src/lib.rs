//! The server: from a client's first byte to the end of its session.
//!
//! [`accept`] hands connections from the [`listener`]s to the threads of `worker_thread`. `login` makes sessions of
//! them, `relay` drives a session over [`transport`], and `upstream` alone writes to PostgreSQL and spends permits.
//! `ARCHITECTURE.md` describes the modules.
//!
//! Configuration comes in as values: this crate does not know the configuration file.

pub mod accept;
pub mod accounts;
mod aside;
mod backends;
pub mod certificates;
mod classification;
pub mod client_table;
mod collected;
mod end_watch;
mod forced_end;
pub mod history;
pub mod hosts;
pub mod leadership;
pub mod listener;
mod login;
pub mod message_socket;
pub mod metrics;
mod open_error;
mod passthrough;
pub mod pause;
mod pending_logins;
pub mod pooling;
mod relay;
mod server;
pub mod timers;
pub mod transport;
mod upstream;
pub mod worker;
mod worker_thread;

pub use server::{SETTLE_WITHIN, Server, ServerOptions};

use pgpalisade_fence as fence;
use pgpalisade_fence::rejection;
use pgpalisade_rejection_log as rejection_log;
use pgpalisade_session as session;
use pgpalisade_takeover as takeover;
use pgpalisade_wire as wire;
