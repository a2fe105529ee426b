//! Frontend message as far as it has arrived, and how much of it to wait for.

use pgpalisade_policies::{MAX_PARSED, MAX_PARSED_INLINE, Opaque};

use crate::wire::header::{HEADER_LEN, Header};

/// Size up to which a message with a text is collected: its text can be classified at once. The slack is for names
/// and parameter types.
pub(super) const LOOKED_AT_MAX: usize = MAX_PARSED_INLINE + NAMES_MAX;

/// Size up to which it is collected if the session may not just send it. Longer texts are not parsed anyway.
pub(super) const COLLECTED_MAX: usize = MAX_PARSED + NAMES_MAX;

/// Bytes of a message within which the names of statements and portals must end.
pub(super) const NAMES_MAX: usize = 16 * 1024;

/// Frontend message as far as it has arrived.
#[derive(Debug, Clone, Copy)]
pub struct Frame<'a> {
    pub(super) header: Header,
    pub(super) body: &'a [u8],
    /// Whether its rest is waited for.
    has_room: bool,
}

impl<'a> Frame<'a> {
    /// The message at the front of `bytes`, which begin with its header.
    #[inline]
    #[must_use]
    pub fn new(header: Header, bytes: &'a [u8]) -> Self {
        let body = bytes.get(HEADER_LEN..bytes.len().min(header.frame_len()));
        Self {
            header,
            body: body.unwrap_or_default(),
            has_room: true,
        }
    }

    /// The same message, whose rest is not waited for.
    #[must_use]
    pub const fn without_room(self) -> Self {
        Self {
            has_room: false,
            ..self
        }
    }

    #[inline]
    pub(super) const fn is_whole(&self) -> bool {
        self.body.len() == self.header.body_len
    }

    pub(super) fn has_room(&self) -> bool {
        self.has_room
    }

    /// Why its text was not collected. `start` is the start of its only statement, and empty if it may have several.
    pub(super) const fn uncollected(&self, start: &'a [u8]) -> Uncollected<'a> {
        let why = if self.header.body_len <= COLLECTED_MAX {
            Opaque::NoRoom
        } else {
            Opaque::TooLong
        };
        Uncollected { why, start }
    }
}

/// A text that is not there as a whole, or contains a NUL byte.
#[derive(Debug, Clone, Copy)]
pub(super) struct Uncollected<'a> {
    pub(super) why: Opaque,
    /// Start of its only statement. Empty if it may have several.
    pub(super) start: &'a [u8],
}
