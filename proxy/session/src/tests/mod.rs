//! Tests of the session alone: no server, no socket, no clock.
//!
//! - [`requests`] and [`replies`]: tables, a message in each state and its outcome.
//! - [`lending`], [`parse_again`], [`left_statements`]: a client between two server connections.
//! - [`growth`]: the time of a longer text.
//! - [`properties`]: random conversations, with [`postgres`] as the judge and [`driver`] in place of the relay.

mod conversation;
mod driver;
mod frames;
mod growth;
mod held_back;
mod left_statements;
mod lending;
mod lost_server;
mod parse_again;
mod postgres;
mod properties;
mod replies;
mod requests;
mod sql;
mod subject;
mod unserved;
