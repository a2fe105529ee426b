//! Limits on tokens: the guard against a poison token, which would lock out every leader that counts as usual.

use std::sync::Arc;

use pgpalisade_authority::{Claim, Declaration, Mark};
use pgpalisade_policies::{Numbers, TokenBounds};

use tokio::time::Instant;

use super::error::DeclareError;
use super::pace::{Pace, WINDOW};
use pgpalisade_fence::mark_cache::{CachedMark, MarkCache};
use pgpalisade_fence::rejection::Bound;

/// Refuses the proxies' own scope, and a token above the maximum, whatever the mark. The authority judges the step,
/// in the same atomic step that would raise the mark. So no raise, and no repair that lowers the mark, can come
/// between check and write. A cached mark would not do: before this proxy knows of a repair, the poison token itself
/// is no step at all.
pub(super) fn check_token(
    declaration: &Declaration,
    bounds: &TokenBounds,
    cached: Option<&CachedMark>,
) -> Result<(), DeclareError> {
    check_claim(declaration.claim, bounds)?;
    match bounds.max_token {
        _ if declaration.scope.is_epoch() => Err(DeclareError::OutOfBounds {
            mark: None,
            bound: Bound::Reserved,
        }),
        Some(most) if declaration.claim.token().is_some_and(|t| t.get() > most) => {
            Err(DeclareError::OutOfBounds {
                mark: cached.and_then(CachedMark::mark_detail),
                bound: Bound::MaxToken(most),
            })
        }
        // The authority judges the token that a take yields.
        _ => Ok(()),
    }
}

/// Refuses to take a token that is the number of an election.
pub(super) fn check_claim(claim: Claim, bounds: &TokenBounds) -> Result<(), DeclareError> {
    match bounds.election() {
        Some(election) if claim.is_take() => Err(DeclareError::NotTaken {
            election: Arc::clone(election),
        }),
        _ => Ok(()),
    }
}

/// Whether the session may declare this token only if it was issued.
pub(super) fn has_to_be_issued(claim: Claim, bounds: &TokenBounds) -> bool {
    bounds.numbers == Some(Numbers::Issued) && !claim.is_take()
}

/// Refuses a new scope if there are enough, and a mark that rises too far in a short time, as far as this proxy
/// knows.
pub(super) fn check_growth(
    declaration: &Declaration,
    bounds: &TokenBounds,
    marks: &MarkCache,
    pace: &Pace,
) -> Result<(), DeclareError> {
    let cached = marks.find(&declaration.scope);
    let mark = cached.and_then(|cached| cached.mark_detail());
    let bound = match &mark {
        // No token was issued, or this proxy does not know of it yet and will soon.
        None if has_to_be_issued(declaration.claim, bounds) => Some(Bound::Issued),
        None => {
            let count = marks.count() as u64;
            let most = bounds.max_scopes.filter(|most| count >= *most);
            most.map(Bound::MaxScopes)
        }
        Some(mark) => {
            let token = declaration.claim.token().or_else(|| mark.token.next());
            let token = token.unwrap_or(mark.token);
            let too_fast =
                |most: &u64| !pace.allows(Instant::now(), &declaration.scope, token, mark, *most);
            bounds.max_step.filter(too_fast).map(|most| {
                let in_one_step = mark.token.get().saturating_add(most) < token.get();
                if in_one_step {
                    Bound::MaxStep(most)
                } else {
                    Bound::Pace(most, WINDOW)
                }
            })
        }
    };
    match bound {
        Some(bound) => Err(DeclareError::OutOfBounds { mark, bound }),
        None => Ok(()),
    }
}

/// The error for a step from this mark that the authority has refused.
pub(super) fn too_far(mark: Mark, claim: Claim, bounds: &TokenBounds) -> DeclareError {
    let bound = match bounds.max_token {
        _ if claim.is_take() && mark.token.next().is_none() => Bound::Last,
        Some(most) if claim.is_take() && mark.token.get() >= most => Bound::MaxToken(most),
        // Says that the token was accepted before.
        _ if bounds.max_step == Some(0) => Bound::MaxStep(0),
        _ if has_to_be_issued(claim, bounds) => Bound::Issued,
        // The authority judges by nothing else.
        _ => Bound::MaxStep(bounds.max_step.unwrap_or_default()),
    };
    DeclareError::OutOfBounds {
        mark: Some(mark),
        bound,
    }
}
