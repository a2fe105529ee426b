//! Server connections before a session has them: connecting to PostgreSQL, and logging in there for a user.

mod cancel;
mod connect;
mod keeping;
pub(crate) mod lending;
mod open;
pub(crate) mod reset;
mod server_leg;
pub(crate) mod try_login;

pub(crate) use crate::open_error::{OpenError, SEE_LOG};
pub(crate) use cancel::cancel;
pub(crate) use connect::{UpstreamConnection, connect};
pub(crate) use server_leg::{ServerLeg, channel_leg, next_message, readers};
