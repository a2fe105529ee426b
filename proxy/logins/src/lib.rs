//! Who a client is, and logins that end at the proxy. It authenticates a client as PostgreSQL would, and logs in to
//! PostgreSQL for it.
//!
//! Pure: message bodies go in and come out, and random bytes are passed in. It knows no other crate of the proxy.
//! Passwords and keys never appear in errors or `Debug` output.

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
pub use users_file::{UsersFile, UsersFileError};
pub use verifier::{Account, Mocks, Shapes, Verifier, VerifierError};

/// Kinds of authentication messages:
/// <https://www.postgresql.org/docs/current/protocol-message-formats.html>.
pub mod kind {
    /// AuthenticationOk.
    pub const OK: i32 = 0;
    /// AuthenticationCleartextPassword.
    pub const CLEARTEXT_PASSWORD: i32 = 3;
    /// AuthenticationMD5Password.
    pub const MD5_PASSWORD: i32 = 5;
    /// AuthenticationSASL.
    pub const SASL: i32 = 10;
    /// AuthenticationSASLContinue.
    pub const SASL_CONTINUE: i32 = 11;
    /// AuthenticationSASLFinal.
    pub const SASL_FINAL: i32 = 12;
}
