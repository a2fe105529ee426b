//! Known bypasses, word for word, and random conversations.
//!
//! Each bypass has a name from when it was found (C1 to C7, H1, L2, L3, and N1 to N18). Core conversations are the
//! session's own random tests with a model of PostgreSQL. By kind: [`names`], [`encodings`], [`portals`],
//! [`read_only`], [`tokens`], [`malformed`].

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

mod due_timeout;
mod encodings;
mod malformed;
mod names;
mod portals;
mod random;
mod read_only;
mod script;
mod sharing;
mod tokens;
mod unread;
