//! Lookup of a name for a message that is sent now.

use super::ledger::{Ledger, Sent, Settled};
use super::names::Names;
use crate::fence::{Name, PreparedNames, PreparedText};

/// Error for a name that requests in flight may still change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Unclear;

/// Finds what a name stands for in a message that is sent now; `None` if neither the protocol nor PREPARE has defined
/// it.
///
/// The server has confirmed it, or it was sent since the last Sync: if that fails, the server skips this message too.
///
/// # Errors
///
/// [`Unclear`] if a request in flight may change it without deciding whether this message runs.
#[inline]
pub(super) fn find<'a>(
    names: &'a Names,
    ledger: &'a Ledger,
    name: Name<'_>,
) -> Result<Option<&'a PreparedText>, Unclear> {
    match ledger.sent(name) {
        Sent::Nothing => Ok(names.get(name)),
        Sent::Change(meaning) => Ok(meaning),
        Sent::Unclear => Err(Unclear),
    }
}

/// Names for a text that is sent while only its own request cycle is in flight.
pub(super) struct NamesHere<'a> {
    names: &'a Names,
    ledger: &'a Ledger,
}

impl<'a> NamesHere<'a> {
    pub(super) const fn new(_settled: Settled<'a>, names: &'a Names, ledger: &'a Ledger) -> Self {
        Self { names, ledger }
    }
}

impl PreparedNames for NamesHere<'_> {
    fn find(&self, name: Name<'_>) -> Option<&PreparedText> {
        find(self.names, self.ledger, name).unwrap_or(Some(&PreparedText::MaySteer))
    }
}
