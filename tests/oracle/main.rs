//! PostgreSQL is the oracle. Whatever it refuses in a READ ONLY transaction must be a write for the classifier, and
//! whatever both accept must change nothing.
//!
//! [`corpus`] has the texts, [`world`] the database and one case on the server and through the proxy. [`kinds`] and
//! [`functions`] fail if PostgreSQL has a new node or function. [`model`] compares the model of the session's own
//! tests with PostgreSQL, and [`table`] generates a table of `docs/policies.md` from real replies.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

mod combined;
mod corpus;
mod defaults;
mod encodings;
mod functions;
mod hidden;
mod kinds;
mod model;
mod ordinary;
mod past;
mod preparing;
mod read_only_guard;
mod statements;
mod table;
mod world;

use pgpalisade_wire as wire;
