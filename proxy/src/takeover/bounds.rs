//! How far a token may go: the guard against a poison token, which would lock out everybody who counts as usual.

use std::fmt;

use pgpalisade_authority::Mark;
use pgpalisade_policies::TokenBounds;

use super::Declare;
use super::error::DeclareError;
use crate::fence::scope_cell::ScopeCell;

/// What a token went beyond.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bound {
    /// The highest token that is accepted.
    MaxToken(u64),
    /// How far one declaration may raise a mark.
    MaxStep(u64),
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MaxToken(most) => write!(f, "max_token is {most}"),
            Self::MaxStep(most) => write!(f, "max_step is {most}"),
        }
    }
}

/// Refuses a token above the highest, whatever the mark. The step is judged by the authority, in the same atomic step
/// that would raise the mark: so no raise, and no repair that lowers the mark, can come between the look and the
/// write. A cached mark would not do, for before this proxy has heard of a repair, the poison token itself is no step
/// at all.
pub(super) fn check_token(declare: &Declare, cell: &ScopeCell) -> Result<(), DeclareError> {
    match declare.bounds.max_token {
        Some(most) if declare.token.get() > most => Err(DeclareError::OutOfBounds {
            mark: cell.mark_detail(),
            bound: Bound::MaxToken(most),
        }),
        _ => Ok(()),
    }
}

/// The authority has refused the step from this mark.
pub(super) fn too_far(mark: Mark, bounds: TokenBounds) -> DeclareError {
    DeclareError::OutOfBounds {
        mark: Some(mark),
        // The authority judges by nothing else.
        bound: Bound::MaxStep(bounds.max_step.unwrap_or_default()),
    }
}
