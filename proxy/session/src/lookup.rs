//! What a name stands for where a message arrives that is sent now.

use super::ledger::{Ledger, Sent, Settled};
use super::names::Names;
use crate::fence::{Meaning, Name, PreparedNames};

/// A name that replies in flight may still give another meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Unclear;

/// What a name stands for where a message arrives that is sent now; `None` where it stands for nothing of the protocol
/// or of PREPARE.
///
/// That is what the server has confirmed, or what was sent since the last Sync: should that fail, the server skips the
/// message as well.
///
/// # Errors
///
/// [`Unclear`] where a request in flight that does not decide about this message may change it.
#[inline]
pub(super) fn find<'a>(
    names: &'a Names,
    ledger: &'a Ledger,
    name: Name<'_>,
) -> Result<Option<&'a Meaning>, Unclear> {
    match ledger.sent(name) {
        Sent::Nothing => Ok(names.get(name)),
        Sent::Change(meaning) => Ok(meaning),
        Sent::Unclear => Err(Unclear),
    }
}

/// The names of a session where a text arrives, all of whose replies in flight belong to its own request cycle.
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
    fn find(&self, name: Name<'_>) -> Option<&Meaning> {
        find(self.names, self.ledger, name).unwrap_or(Some(&Meaning::MaySteer))
    }
}
