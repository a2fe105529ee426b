//! Messages decided without reading what they do: by their type, or by what the session holds.

use std::sync::Arc;

use pgpalisade_policies::scan::needs_parse;

use super::needs::Unmet;
use super::permit::{Basis, Grounds, Permit};
use crate::prepared::PreparedText;
use crate::rejection::Rejection;
use crate::wire::frontend::{self, FrontendTag};
use crate::wire::header::Header;
use crate::{HeldTokens, SessionFence};

impl SessionFence {
    /// Basis of a permit if the session holds every current token that a text can need. It does not cover a text that
    /// changes the session. With `None`, the text must be looked at.
    #[inline]
    fn holds_all_basis(&self, held: Option<&Arc<HeldTokens>>) -> Option<Basis> {
        let needed = self.rules().unlooked()?;
        let Some(held) = held else {
            return needed.is_empty().then_some(Basis::Exempt);
        };
        let all_count = held.tokens().iter().all(|one| self.counts(one));
        (all_count && self.holds_each(needed, held)).then_some(Basis::Token)
    }

    /// Whether the session holds every current token that a text can need.
    #[inline]
    #[must_use]
    pub fn holds_all(&self, held: Option<&Arc<HeldTokens>>) -> bool {
        self.holds_all_basis(held).is_some()
    }

    /// Permit for a Query if the session holds every token that its text can need, and the text does not change the
    /// session.
    #[inline]
    #[must_use]
    pub fn admit_text(
        &self,
        message: Header,
        text: &[u8],
        held: Option<&Arc<HeldTokens>>,
    ) -> Option<Permit> {
        // Checked first, because the scan costs more.
        let basis = self.holds_all_basis(held)?;
        (!needs_parse(text)).then(|| Permit::new(message, basis))
    }

    /// Permit for an Execute on the same conditions.
    #[inline]
    #[must_use]
    pub fn admit_execute(
        &self,
        message: Header,
        meaning: &PreparedText,
        held: Option<&Arc<HeldTokens>>,
    ) -> Option<Permit> {
        let basis = self.holds_all_basis(held)?;
        meaning.is_plain().then(|| Permit::new(message, basis))
    }

    /// Permit for a message that by its type cannot change data.
    #[inline]
    #[must_use]
    pub fn admit_harmless(&self, message: Header) -> Option<Permit> {
        match FrontendTag::from_byte(message.tag) {
            Ok(
                FrontendTag::Parse
                | FrontendTag::Bind
                | FrontendTag::Describe
                | FrontendTag::Close
                | FrontendTag::Flush
                | FrontendTag::Sync
                | FrontendTag::CopyFail
                | FrontendTag::Terminate,
            ) => Some(Permit::new(message, Basis::NotRequired)),
            Ok(
                FrontendTag::Query
                | FrontendTag::Execute
                | FrontendTag::FunctionCall
                | FrontendTag::CopyData
                | FrontendTag::CopyDone
                | FrontendTag::Password,
            )
            | Err(_) => None,
        }
    }

    /// Permit for a message that PostgreSQL rejects for its layout.
    #[must_use]
    pub fn admit_malformed(&self, message: Header, body: &[u8]) -> Option<Permit> {
        let is_whole = body.len() == message.body_len;
        let is_malformed = match FrontendTag::from_byte(message.tag) {
            Ok(FrontendTag::Query) => is_whole && frontend::query(body).is_err(),
            Ok(FrontendTag::Execute) => is_whole && frontend::execute(body).is_err(),
            _ => return self.admit_harmless(message),
        };
        is_malformed.then(|| Permit::new(message, Basis::NotRequired))
    }

    /// Permit for the data of a running COPY, or their end.
    ///
    /// # Errors
    ///
    /// The rejection if the token has become stale since the COPY began.
    pub fn admit_copy_data(
        &self,
        message: Header,
        held: Option<&Arc<HeldTokens>>,
    ) -> Result<Permit, Box<Rejection>> {
        // An observed refusal is on record with its statement, or will be with its COMMIT.
        let mut grounds = Grounds::none();
        let basis = match self.check_goes_on(&mut grounds, held) {
            Ok(()) => grounds.basis,
            Err(Unmet::Refuse(rejection)) => return Err(rejection),
            // The tokens are declared before its COMMIT.
            Err(Unmet::Declare(_)) => Basis::Exempt,
        };
        Ok(Permit::new(message, basis))
    }
}
