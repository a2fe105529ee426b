//! The known ways around, word by word. `make mediation` has conversations that nobody would write by hand.
//!
//! What was found once is in a file of its own, by the names C1 to C7, H1, L2 and L3 that it was given then: [`names`],
//! [`encodings`], [`portals`], [`read_only`], [`tokens`], [`malformed`].

mod encodings;
mod malformed;
mod names;
mod portals;
mod read_only;
mod script;
mod tokens;
