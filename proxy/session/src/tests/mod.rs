//! The session on its own: no server, no socket, no clock.
//!
//! - [`requests`] and [`replies`]: tables, a message in each state and what becomes of it.
//! - [`growth`]: how much longer a longer text takes.
//! - [`properties`]: conversations at random, with [`postgres`] as the judge and [`driver`] in the place of the relay.

mod conversation;
mod driver;
mod frames;
mod growth;
mod postgres;
mod properties;
mod replies;
mod requests;
mod sql;
mod subject;
