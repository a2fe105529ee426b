//! PostgreSQL is the oracle: what it refuses in a READ ONLY transaction must be a write for the classifier, and what
//! neither of them sees as a write must change nothing.
//!
//! In reading order:
//! - [`corpus`]: the texts, in `corpus/*.sql`; [`kinds`]: every kind of node of the grammar.
//! - [`world`]: the database behind them, what it looks like as a whole, and one case on the server and by the proxy.
//! - [`statements`]: every kind of statement. [`hidden`]: writes that the text does not show.
//! - [`past`]: what PostgreSQL lets a read-only session do although it changes something.
//! - [`combined`]: generated combinations. [`ordinary`]: what applications send that only read.
//! - [`functions`]: every volatile function, reviewed.
//! - [`backstop`]: every way out of read-only mode. [`defaults`]: read-only mode that was set elsewhere.
//! - [`preparing`]: what PostgreSQL runs before an Execute.
//! - [`model`]: the PostgreSQL that the session's own tests run against, beside the real one.
//! - [`table`]: the table of `docs/policies.md`, made from what happens.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

mod backstop;
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
mod statements;
mod table;
mod world;

use pgpalisade_wire as wire;
