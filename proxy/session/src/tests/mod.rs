//! The session on its own: no server, no socket, no clock.
//!
//! - [`requests`] and [`replies`]: tables, a message in each state and what becomes of it.

mod frames;
mod replies;
mod requests;
mod subject;
