//! PostgreSQL is the oracle. Whatever it refuses in a READ ONLY transaction must be a write for the classifier, and
//! whatever both accept must change nothing.
//!
//! In reading order:
//! - [`corpus`]: the texts, in `corpus/*.sql`; [`kinds`]: every node kind of the grammar.
//! - [`world`]: the database, its fingerprint, and one case on the server and through the proxy.
//! - [`statements`]: every kind of statement. [`hidden`]: writes that the text does not show.
//! - [`past`]: changes that PostgreSQL allows in a read-only session.
//! - [`combined`]: generated combinations. [`ordinary`]: texts of applications that only read.
//! - [`functions`]: every volatile function, reviewed.
//! - [`read_only_guard`]: every way out of read-only mode. [`defaults`]: read-only mode that was set elsewhere.
//! - [`preparing`]: code that PostgreSQL runs before an Execute.
//! - [`model`]: the model of PostgreSQL in the session's own tests, compared with the real one.
//! - [`table`]: the table of `docs/policies.md`, generated from real replies.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

mod combined;
mod corpus;
mod defaults;
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
