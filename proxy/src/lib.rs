//! pgpalisade: a proxy for PostgreSQL that refuses the writes of a leader that has been deposed.
//!
//! # Layout, in the order in which a message passes
//!
//! - [`server`] accepts connections and hands them to [`worker`] threads; [`login`] brings a client through
//!   PostgreSQL's own authentication, and [`arrivals`] says who gives way meanwhile.
//! - [`transport`]: sockets, and the bytes that wait on either side of them.
//! - [`wire`]: bytes to messages and back, without I/O.
//! - [`session`]: what one connection is doing: replies due, the token as PostgreSQL keeps it, names.
//! - [`fence`]: the decision, and the only maker of a permit.
//! - [`upstream`]: the only writer to PostgreSQL, and the only spender of permits.
//! - [`relay`]: the one loop that drives a connection through all of these. `passthrough` is that of a connection
//!   which the fence has exempted as a whole.
//!
//! Beside the path: [`takeover`] (a crate of its own) registers tokens, raises marks and ends the sessions of lower
//! tokens, with the [`store`] that the configuration names; [`rejection`] and [`rejection_log`] say why something was
//! refused; `inspect` looks at all of it for `check` and `status`; `bench` measures it as a client does; [`config`],
//! [`cli`], [`logging`] and [`demo`] are the program around it. `ARCHITECTURE.md` has the map and the invariants.

mod accept;
mod accounts;
mod arrivals;
mod bench;
mod certificates;
mod classification;
pub mod cli;
mod client_table;
mod collected;
mod config;
mod console;
pub mod demo;
mod elect;
mod elections;
mod handover;
mod history;
mod hosts;
mod http;
mod inspect;
mod link;
mod listener;
mod logging;
mod login;
mod metrics;
mod overflow;
mod passthrough;
mod pause;
mod policy_file;
mod process;
mod relay;
mod secret;
mod server;
mod service_manager;
mod signals;
mod store;
mod timers;
mod transport;
mod upstream;
mod worker;
mod worker_thread;

use pgpalisade_fence as fence;
use pgpalisade_fence::rejection;
use pgpalisade_rejection_log as rejection_log;
use pgpalisade_session as session;
use pgpalisade_takeover as takeover;
use pgpalisade_wire as wire;
