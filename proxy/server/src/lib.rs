//! The server: from a client's first byte to the end of its session.
//!
//! [`Server`] is all of it. In the order in which a message passes:
//!
//! - [`accept`] takes connections from the [`listener`]s and hands them to the threads of `worker_thread`; `login`
//!   brings a client through PostgreSQL's authentication or the proxy's own, and `arrivals` says who gives way
//!   meanwhile.
//! - [`transport`]: sockets, and the bytes that wait on either side of them.
//! - `relay`: the one loop that drives a session (`pgpalisade_session`), which decides each message. `passthrough` is
//!   that of a connection which the fence has exempted as a whole.
//! - `upstream`: the only writer to PostgreSQL, and the only spender of permits.
//!
//! Beside the way: [`worker`] has what the connections of a thread share. [`certificates`] and [`accounts`] are what
//! logins need, [`hosts`] where PostgreSQL is, [`timers`] what measures time on threads without timers;
//! `aside` does what takes long, `classification` and `collected` bound what long texts may take, `overflow` tells who
//! finds no room. [`metrics`], [`client_table`] and [`history`] are for those who look, [`pause`] and [`link`] for
//! operators.
//!
//! What is configured comes in as values: nothing here knows the configuration, or who asks.

pub mod accept;
pub mod accounts;
mod arrivals;
mod aside;
pub mod certificates;
mod classification;
pub mod client_table;
mod collected;
pub mod history;
pub mod hosts;
pub mod link;
pub mod listener;
mod login;
pub mod metrics;
mod overflow;
mod passthrough;
pub mod pause;
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
