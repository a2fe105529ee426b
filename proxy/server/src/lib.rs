//! The server: from a client's first byte to the end of its session.
//!
//! [`Server`] ties it together. A message passes in this order:
//!
//! - [`accept`] takes connections from the [`listener`]s and hands them to the threads of `worker_thread`.
//! - `login` runs PostgreSQL's authentication or the proxy's own. `pending_logins` limits connections that have not
//!   logged in.
//! - [`transport`]: sockets, and the bytes that wait on either side of them.
//! - `relay`: the loop that drives a session (`pgpalisade_session`), which decides each message. `passthrough` is the
//!   loop of a connection that is exempt as a whole.
//! - `upstream`: the only writer to PostgreSQL, and the only spender of permits.
//!
//! Beside that path:
//!
//! - [`worker`]: state that the connections of a thread share.
//! - [`certificates`] and [`accounts`]: used by logins. [`hosts`]: the addresses of PostgreSQL.
//! - [`timers`]: timers for threads that have none. `aside`: slow work.
//! - `classification` and `collected`: limits for long texts. `turned_away`: clients that find no room.
//! - [`metrics`], [`client_table`], [`history`]: for observers. [`pause`], [`message_socket`]: for operators.
//!
//! Configuration comes in as values: this crate does not know the configuration file.

pub mod accept;
pub mod accounts;
mod aside;
pub mod certificates;
mod classification;
pub mod client_table;
mod collected;
pub mod history;
pub mod hosts;
pub mod listener;
mod login;
pub mod message_socket;
pub mod metrics;
mod passthrough;
pub mod pause;
mod pending_logins;
mod relay;
mod server;
pub mod timers;
pub mod transport;
mod turned_away;
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
