//! Known bypasses, word for word, and random conversations.
//!
//! Each bypass found earlier is in the file of its kind, under the name that it got then (C1 to C7, H1, L2, L3, and
//! N1 to N5 by the generator): [`names`], [`encodings`], [`portals`], [`read_only`], [`tokens`], [`malformed`].

mod encodings;
mod malformed;
mod names;
mod portals;
mod random;
mod read_only;
mod script;
mod tokens;
mod unread;
