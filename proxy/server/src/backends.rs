//! Server connections before a session has them: connecting to PostgreSQL, and logging in there for a user.

mod connect;
mod error;
mod server_leg;

pub(crate) use connect::{UpstreamConnection, connect, forward_cancel};
pub(crate) use error::{OpenError, SEE_LOG};
pub(crate) use server_leg::{ServerLeg, channel_leg, next_message, readers};
