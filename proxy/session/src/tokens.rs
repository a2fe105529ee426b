//! Tokens of a session: those accepted, and those whose declaration was not answered.

use std::sync::Arc;

use pgpalisade_authority::{Scope, Token};
use pgpalisade_policies::Mode;

use super::action::JudgedText;
use super::endings::Ending;
use super::token_request::{Declared, Obtained, TokenRequest};
use super::{Identity, Met, Session, injected};
use crate::fence::{HeldToken, HeldTokens, Identified, ServerText, TokenValue};
use crate::rejection::Rejection;
use crate::rejection::{Enforcement, RejectionKind};
use crate::wire::encode::Severity;

/// Accepted values of `fencing.token` that a session keeps.
const ACCEPTED_MAX: usize = 256;

/// Tokens that the register has, or may have, for a session.
#[derive(Debug, Default)]
pub(super) struct Registration {
    accepted: Vec<Arc<HeldTokens>>,
    /// Highest token of each scope whose declaration was not answered. The register may still record the session at
    /// it. A lower one must not be declared, because a takeover would spare the session.
    unanswered: Vec<(Scope, Token)>,
    /// Last declared token of each scope, whatever the result: the register may have the session at it.
    pub(super) declared: Vec<(Scope, Token)>,
    /// Whether the register may have the session at more than the tokens accepted last: earlier ones are of another
    /// scope, or a declaration has failed, which the authority may have accepted before the barrier failed.
    pub(super) exceeds_last: bool,
    /// Accepted declarations, which number the takes. A take repeated before the next one counts as the same, because
    /// its answer may have been lost.
    takes: u64,
}

/// Error: too many tokens to note, or an unknown one.
struct NotNoted;

impl Registration {
    /// Accepted tokens, whether in force or not.
    #[inline]
    pub(super) fn accepted(&self) -> &[Arc<HeldTokens>] {
        &self.accepted
    }

    fn note_declared(&mut self, value: &TokenValue) {
        for (scope, claim) in value.claims() {
            self.declared.retain(|(other, _)| other != scope);
            if let Some(token) = claim.token()
                && self.declared.len() < ACCEPTED_MAX
            {
                self.declared.push((scope.clone(), token));
            }
        }
    }

    fn add(&mut self, held: Arc<HeldTokens>, value: &TokenValue) {
        let is_left = |earlier: &HeldToken| held.token_of(earlier.mark.scope()).is_none();
        let mut earlier = self.accepted.iter().flat_map(|earlier| earlier.tokens());
        self.exceeds_last |= earlier.any(is_left);
        self.accepted
            .retain(|held| held.stale().is_none() && !held.is_for(value));
        if self.accepted.len() >= ACCEPTED_MAX {
            self.accepted.remove(0);
        }
        self.accepted.push(held);
    }

    /// First scope in which a value is lower than an unanswered declaration, or may be.
    fn forbid(&self, value: &TokenValue) -> Option<&Scope> {
        let lower = |(scope, higher): &&(Scope, Token)| {
            let mut claims = value.claims().iter();
            claims.any(|(other, claim)| scope == other && claim.token() < Some(*higher))
        };
        self.unanswered.iter().find(lower).map(|(scope, _)| scope)
    }

    fn note_unanswered(&mut self, value: &TokenValue) -> Result<(), NotNoted> {
        for (scope, claim) in value.claims() {
            let token = claim.token().ok_or(NotNoted)?;
            let known = self.unanswered.iter_mut().find(|(known, _)| known == scope);
            if let Some((_, highest)) = known {
                *highest = (*highest).max(token);
            } else if self.unanswered.len() < ACCEPTED_MAX {
                self.unanswered.push((scope.clone(), token));
            } else {
                return Err(NotNoted);
            }
        }
        Ok(())
    }
}

impl Session {
    /// Checks that a declaration may be made, and notes it.
    ///
    /// # Errors
    ///
    /// Ends the session if a declaration of a higher token was not answered.
    pub fn may_declare(&mut self, wanted: &TokenRequest) -> Result<(), Ending> {
        let Some(scope) = self.server.registration.forbid(wanted.value()) else {
            self.server.registration.note_declared(wanted.value());
            return Ok(());
        };
        let why = "An earlier declaration of a higher token was not answered";
        let rejection = Rejection::authority_unavailable(Some(scope), &why);
        Err(self.end_unanswered(rejection))
    }

    /// Makes the server show a SQL comment as the last query of the session. After the reply the session can be found
    /// by it.
    pub fn leave_trace(&mut self, comment: &str) {
        let (out, ledger) = (&mut self.output.to_server, &mut self.server.ledger);
        injected::leave_trace(out, ledger, self.client.pipeline, comment);
    }

    /// Ends the session because the server did not answer in time: its state is unknown.
    pub fn end_unidentified(&mut self) -> Ending {
        self.end_unanswered(Rejection::backend_unknown(&"It does not answer"))
    }

    /// Notes which server process serves the session.
    pub const fn on_identified(&mut self, session: Identified) {
        self.server.identity = Identity::Known(session);
    }

    /// Handles a failed search for the server process.
    pub fn on_not_identified(&mut self, wanted: &TokenRequest, rejection: Box<Rejection>) -> Met {
        if !wanted.is_only_observed() {
            // It may lead to another server than the control connection does.
            self.server.registration.exceeds_last = true;
            return Met::Refused(rejection);
        }
        let statement = self.waiting_statement();
        self.record(&rejection, Enforcement::Observed, statement);
        self.accept(wanted, &Obtained::default(), None);
        Met::Yes
    }

    /// Statement whose tokens are being declared.
    fn waiting_statement(&self) -> Option<JudgedText> {
        let waiting = self.prepared.as_ref()?.waiting.as_ref();
        waiting?.statement.clone()
    }

    /// Number of a take that is made now.
    #[must_use]
    pub const fn take_number(&self) -> u64 {
        self.server.registration.takes
    }

    /// Applies the answer of authority and barrier, or the lack of one.
    ///
    /// # Errors
    ///
    /// Ends the session if it could go on under a lower token, or if the server has ended it.
    pub fn on_declared(
        &mut self,
        wanted: &TokenRequest,
        session: Identified,
        declared: Declared,
    ) -> Result<Met, Ending> {
        let refused = match declared {
            Ok(obtained) => {
                for rejection in &obtained.observed {
                    let statement = self.waiting_statement();
                    self.record(rejection, Enforcement::Observed, statement);
                }
                self.accept(wanted, &obtained, Some(session));
                None
            }
            Err(rejection) => {
                // Nobody has registered it if another one holds its only lease.
                let is_alone = wanted.value().claims().len() == 1;
                let is_held = rejection.kind == RejectionKind::LeaseHeld;
                self.server.registration.exceeds_last |= !(is_alone && is_held);
                if rejection.kind == RejectionKind::AuthorityUnavailable {
                    let noted = self.server.registration.note_unanswered(wanted.value());
                    if noted.is_err() || self.may_be_replaced(wanted.value()) {
                        return Err(self.end_unanswered(*rejection));
                    }
                }
                // The client is told now.
                let _ = self.client.state.keep_stale();
                Some(rejection)
            }
        };
        match self.end_if_terminated(refused.as_deref()) {
            Some(ending) => Err(ending),
            None => Ok(refused.map_or(Met::Yes, Met::Refused)),
        }
    }

    /// Tokens of a request that were accepted for the server connection, and still count.
    fn accepted(&self, wanted: &TokenRequest) -> Option<&Arc<HeldTokens>> {
        let fence = &self.client.fence;
        let counts = |held: &HeldTokens| {
            let mut tokens = held.tokens().iter();
            held.stale().is_none() && tokens.all(|one| fence.is_accepted(one))
        };
        let mut accepted = self.server.registration.accepted().iter();
        accepted.find(|held| held.is_for(wanted.value()) && counts(held))
    }

    /// Puts the tokens of the startup packet, or of the listener, in force, and makes RESET return to them. Returns
    /// whether they could be: they have just been accepted for the server connection, or were before, and still count.
    pub fn start_with(&mut self, wanted: &TokenRequest) -> bool {
        let held = match (self.prepared.take(), self.accepted(wanted)) {
            (Some(done), _) => done.obtained.flatten(),
            (None, Some(held)) => Some(Arc::clone(held)),
            (None, None) => return false,
        };
        // The startup packet of a lent server connection has told it of none.
        let text = if self.client.fence.is_given_tokens() || self.is_lent() {
            ServerText::Other
        } else {
            ServerText::of(wanted.value())
        };
        self.client.state.start_with(held, text);
        true
    }

    /// Accepts tokens. The message that they are for is then decided again.
    fn accept(&mut self, wanted: &TokenRequest, obtained: &Obtained, session: Option<Identified>) {
        self.server.registration.takes += 1;
        let held = wanted.tokens(self.client.fence.fence(), obtained, session);
        self.prepared().obtained = Some(held.clone());
        let Some(held) = held else {
            return;
        };
        let value = held.value();
        // Earlier tokens may only have been observed.
        self.client.observed_end = held.stale().map(|(_, mark)| mark);
        let state = &mut self.client.state;
        state.replace(&value, &held);
        let in_force = state.token().is_some_and(|now| Arc::ptr_eq(now, &held));
        if !in_force && self.client.fence.may_write(Some(&held)) {
            // The session is now made ready for the new token. The old one may be stale since this declaration, and
            // must not set the guard in between. A token that permits no write makes it ready for nothing.
            self.prepared().is_binding = true;
        }
        self.server.registration.add(held, &value);
        self.close_others();
    }

    /// Whether the session could go on under a lower token than one of these.
    fn may_be_replaced(&self, value: &TokenValue) -> bool {
        let state = &self.client.state;
        let accepted = self.server.registration.accepted();
        let in_force = state.token().into_iter();
        let mut held = in_force.chain(state.startup_token()).chain(accepted);
        let lower = |each: &Arc<HeldTokens>| {
            let declared = value.claims().iter();
            each.tokens().iter().any(|held| {
                declared.clone().any(|(scope, claim)| {
                    let token = claim.token();
                    held.mark.scope() == scope && token.is_none_or(|token| held.token < token)
                })
            })
        };
        // With so many values, some were forgotten.
        accepted.len() >= ACCEPTED_MAX || held.any(lower)
    }

    /// Ends the session after a declaration without an answer. The register may record the session at the declared
    /// token, now or later. A takeover with that token would spare the session, so it must not go on under a lower
    /// one.
    fn end_unanswered(&mut self, rejection: Rejection) -> Ending {
        let rejection = rejection.ending_the_session();
        self.record(&rejection, Enforcement::Refused, None);
        rejection.encode(Severity::Fatal, &mut self.output.to_client);
        Ending::Unanswered
    }

    /// Records that a takeover would have ended the session in enforce mode.
    pub(super) fn record_observed_end(&mut self) {
        // The session itself may just have raised the mark.
        let prepared = self.prepared.as_ref();
        if prepared.is_some_and(|done| done.obtained.is_some()) {
            return;
        }
        let held = self.client.state.token();
        let Some((stale, mark)) = held.and_then(|held| held.stale()) else {
            return;
        };
        let (scope, token) = (stale.mark.scope().clone(), stale.token);
        let observed = self.client.fence.mode(Some(&scope)) == Mode::Observe;
        let last = &mut self.client.observed_end;
        if observed && last.replace(mark.clone()).as_ref() != Some(&mark) {
            let rejection = Rejection::session_would_end(&scope, token, mark);
            self.record(&rejection, Enforcement::Observed, None);
        }
    }
}
