//! The known ways around, word by word, and conversations at random.
//!
//! What was found once is in a file of its own, by the name that it was given then (C1 to C7, H1, L2, L3, and N1 to N5
//! by the generator): [`names`], [`encodings`], [`portals`], [`read_only`], [`tokens`], [`malformed`].

mod encodings;
mod malformed;
mod names;
mod portals;
mod random;
mod read_only;
mod script;
mod tokens;
mod unread;
