//! Who a client is, and logins that end at the proxy. It authenticates a client as PostgreSQL would, and logs in to
//! PostgreSQL for it.
//!
//! Pure: message bodies go in and come out, and random bytes are passed in. Passwords and keys never appear in errors
//! or `Debug` output.

mod client;
pub mod end_point;
mod password;
pub mod scram;
mod to_server;
mod users_file;
mod verifier;

pub use client::{ClientAddr, SessionLabel};
pub use password::{Password, PasswordError};
pub use to_server::{Channel, Credentials, Readers, ServerLogin, ServerLoginError, Step};
pub use users_file::UsersFile;
pub use verifier::{Account, Mocks, Shapes, Verifier};

/// Kinds of authentication messages:
/// <https://www.postgresql.org/docs/current/protocol-message-formats.html>.
pub mod kind {
    pub const OK: i32 = 0;
    pub const CLEARTEXT_PASSWORD: i32 = 3;
    pub const MD5_PASSWORD: i32 = 5;
    pub const SASL: i32 = 10;
    pub const SASL_CONTINUE: i32 = 11;
    pub const SASL_FINAL: i32 = 12;
}
