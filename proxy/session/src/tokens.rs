//! The tokens of a session: what is to be accepted for it, what was, and what has had no answer.

use std::sync::Arc;

use pgpalisade_authority::{Scope, Token};
use pgpalisade_policies::Mode;

use super::endings::Ending;
use super::{Binds, Identity, Session, injected};
use crate::fence::{
    Fence, GrantMode, HeldToken, HeldTokens, Identified, Purpose, SessionFence, Terms, TokenValue,
};
use crate::rejection::Rejection;
use crate::rejection::{Enforcement, RejectionKind};
use crate::wire::encode::Severity;

/// A session keeps this many values of `fencing.token` that were accepted for it.
const ACCEPTED_MAX: usize = 256;

/// Tokens that are to be accepted for a session, and what for.
#[derive(Debug, Clone)]
pub struct Wanted {
    value: TokenValue,
    /// For each of the tokens.
    terms: Box<[Terms]>,
}

/// What has come of a declaration: the refusals that were only observed, or the one that counts.
pub type Declared = Result<Vec<Rejection>, Box<Rejection>>;

/// Why a declaration was not accepted.
#[derive(Debug)]
pub enum Denied {
    /// The message that it was for is refused.
    Refused(Box<Rejection>),
    /// The session must not go on.
    Ends(Ending),
}

impl Wanted {
    /// What a session wants that states this value.
    #[must_use]
    pub fn new(fence: &SessionFence, value: TokenValue) -> Self {
        let tokens = value.tokens().iter();
        let terms = tokens.map(|(scope, _)| Terms {
            purpose: purpose(fence, scope),
            bounds: fence.rules().policy().bounds(scope.as_str()),
        });
        Self {
            terms: terms.collect(),
            value,
        }
    }

    /// The value.
    #[must_use]
    pub const fn value(&self) -> &TokenValue {
        &self.value
    }

    /// The tokens one by one.
    pub fn tokens(&self) -> impl Iterator<Item = (&Scope, Token, Terms)> {
        let tokens = self.value.tokens().iter().zip(&self.terms);
        tokens.map(|((scope, token), terms)| (scope, *token, *terms))
    }

    /// Whether no refusal of any of its tokens would be carried out.
    #[must_use]
    pub fn is_only_observed(&self) -> bool {
        let mut terms = self.terms.iter();
        terms.all(|terms| terms.purpose != Purpose::Admit)
    }

    /// What the session holds once all are accepted. `session` is `None` where it was not found, which only observing
    /// forgives.
    fn holding(&self, fence: &Fence, session: Option<Identified>) -> Arc<HeldTokens> {
        let bindings = self.tokens().map(|(scope, token, terms)| HeldToken {
            cell: fence.cell(scope),
            token,
            timeline: session.map_or(u32::MAX, |session| session.cluster.timeline),
            footing: match terms.purpose {
                Purpose::Admit => GrantMode::Enforced,
                Purpose::Observe | Purpose::ObserveUnregistered => GrantMode::Observed,
            },
        });
        Arc::new(HeldTokens::new(bindings.collect()))
    }
}

/// What a declaration of the session in this scope is for.
fn purpose(fence: &SessionFence, scope: &Scope) -> Purpose {
    match fence.mode(Some(scope)) {
        Mode::Enforce => Purpose::Admit,
        Mode::Observe if fence.rules().observes_session() => Purpose::ObserveUnregistered,
        Mode::Observe => Purpose::Observe,
    }
}

/// What the register has, or may have, of a server session.
#[derive(Debug, Default)]
pub(super) struct Granted {
    accepted: Vec<Arc<HeldTokens>>,
    /// The tokens that were declared without an answer, the highest of each scope. The register may get the session
    /// there at any time from then on, so it must not declare a lower one: a takeover would spare it.
    unanswered: Vec<(Scope, Token)>,
}

/// Too many to remember.
struct TooMany;

impl Granted {
    /// The tokens that were accepted, whether in force or not.
    #[inline]
    pub(super) fn accepted(&self) -> &[Arc<HeldTokens>] {
        &self.accepted
    }

    fn add(&mut self, holding: Arc<HeldTokens>, value: &TokenValue) {
        self.accepted
            .retain(|holding| holding.stale().is_none() && !holding.is_for(value));
        if self.accepted.len() >= ACCEPTED_MAX {
            self.accepted.remove(0);
        }
        self.accepted.push(holding);
    }

    /// The first scope in which a value is lower than what has had no answer.
    fn forbid(&self, value: &TokenValue) -> Option<&Scope> {
        let lower = |(scope, higher): &&(Scope, Token)| {
            let mut tokens = value.tokens().iter();
            tokens.any(|(other, token)| scope == other && token < higher)
        };
        self.unanswered.iter().find(lower).map(|(scope, _)| scope)
    }

    fn note_unanswered(&mut self, value: &TokenValue) -> Result<(), TooMany> {
        for (scope, token) in value.tokens() {
            let known = self.unanswered.iter_mut().find(|(known, _)| known == scope);
            if let Some((_, highest)) = known {
                *highest = (*highest).max(*token);
            } else if self.unanswered.len() < ACCEPTED_MAX {
                self.unanswered.push((scope.clone(), *token));
            } else {
                return Err(TooMany);
            }
        }
        Ok(())
    }
}

impl Session {
    /// Whether a declaration may be made at all.
    ///
    /// # Errors
    ///
    /// Where a higher token has had no answer, the session ends.
    pub fn may_declare(&mut self, wanted: &Wanted) -> Result<(), Ending> {
        let Some(scope) = self.server.granted.forbid(&wanted.value) else {
            return Ok(());
        };
        let why = "An earlier declaration of a higher token has had no answer";
        let rejection = Rejection::authority_unavailable(Some(scope), &why);
        Err(self.end_unanswered(rejection))
    }

    /// Sends a request behind the search for the server process: the id may be another session's by now, and once this
    /// is answered, ours was there at the time.
    pub fn probe(&mut self) {
        let (out, ledger) = (&mut self.output.to_server, &mut self.server.ledger);
        injected::probe(out, ledger, self.client.pipeline);
    }

    /// The server process was found, and has answered since.
    pub const fn on_identified(&mut self, session: Identified) {
        self.server.identity = Identity::Known(session);
    }

    /// The server process was not found.
    ///
    /// # Errors
    ///
    /// [`Denied`], where the declaration is not only observed.
    pub fn on_not_identified(
        &mut self,
        wanted: &Wanted,
        rejection: Box<Rejection>,
    ) -> Result<(), Denied> {
        if !wanted.is_only_observed() {
            return Err(Denied::Refused(rejection));
        }
        self.record(&rejection, Enforcement::Observed, None);
        self.accept(wanted, None);
        Ok(())
    }

    /// The authority and the barrier have answered, or have not.
    ///
    /// # Errors
    ///
    /// [`Denied`].
    pub fn on_declared(
        &mut self,
        wanted: &Wanted,
        session: Identified,
        declared: Declared,
    ) -> Result<(), Denied> {
        match declared {
            Ok(observed) => {
                for rejection in observed {
                    self.record(&rejection, Enforcement::Observed, None);
                }
                self.accept(wanted, Some(session));
                Ok(())
            }
            Err(rejection) if rejection.kind == RejectionKind::AuthorityUnavailable => {
                let noted = self.server.granted.note_unanswered(&wanted.value);
                match noted.is_err() || self.may_be_replaced(&wanted.value) {
                    true => Err(Denied::Ends(self.end_unanswered(*rejection))),
                    false => Err(Denied::Refused(rejection)),
                }
            }
            Err(rejection) => Err(Denied::Refused(rejection)),
        }
    }

    /// The tokens of the startup packet are in force, and what a RESET returns to.
    pub fn start_with(&mut self, wanted: &Wanted) {
        let accepted = self.server.granted.accepted().iter();
        if let Some(holding) = accepted.rev().find(|held| held.is_for(&wanted.value)) {
            self.client.variables.start_with(Arc::clone(holding));
        }
        self.prepared = None;
    }

    /// The tokens are accepted, and the message that they are for is looked at again.
    fn accept(&mut self, wanted: &Wanted, session: Option<Identified>) {
        let holding = wanted.holding(self.client.fence.fence(), session);
        // What it held so far may only have been observed.
        self.client.observed_end = holding.stale().map(|(_, mark)| mark);
        let variables = &mut self.client.variables;
        variables.replace(|held| held.is_for(&wanted.value), &holding);
        let in_force = variables
            .token()
            .is_some_and(|held| Arc::ptr_eq(held, &holding));
        if !in_force && self.client.fence.may_write(Some(&holding)) {
            // From here on the session is made ready for the new token; the old one, which the
            // declaration may have made stale, must not put read-only mode up in between. A token that lets it write
            // nothing makes it ready for nothing.
            self.prepared().binds = Binds::Yes;
        }
        self.server.granted.add(holding, &wanted.value);
    }

    /// Whether the session could go on under a lower token than one of these.
    fn may_be_replaced(&self, value: &TokenValue) -> bool {
        let variables = &self.client.variables;
        let accepted = self.server.granted.accepted();
        let in_force = variables.token().into_iter();
        let mut held = in_force.chain(variables.startup_token()).chain(accepted);
        let lower = |holding: &Arc<HeldTokens>| {
            let declared = value.tokens().iter();
            holding.bindings().iter().any(|held| {
                declared
                    .clone()
                    .any(|(scope, token)| held.cell.scope() == scope && held.token < *token)
            })
        };
        // Of so many values some were forgotten.
        accepted.len() >= ACCEPTED_MAX || held.any(lower)
    }

    /// A declaration has had no answer, so the register may have the session at the declared token, or get it there
    /// later. A takeover with that token would spare the session: it must not go on under a lower one.
    fn end_unanswered(&mut self, rejection: Rejection) -> Ending {
        let rejection = rejection.ending_the_session();
        self.record(&rejection, Enforcement::Refused, None);
        rejection.encode(Severity::Fatal, &mut self.output.to_client);
        Ending::Unanswered
    }

    /// A takeover has made a token stale that is only observed: were it enforced, the session would have ended.
    pub(super) fn record_observed_end(&mut self) {
        let held = self.client.variables.token();
        let Some((binding, mark)) = held.and_then(|held| held.stale()) else {
            return;
        };
        let (scope, token) = (binding.cell.scope().clone(), binding.token);
        let observed = self.client.fence.mode(Some(&scope)) == Mode::Observe;
        let last = &mut self.client.observed_end;
        if observed && last.replace(mark.clone()).as_ref() != Some(&mark) {
            let rejection = Rejection::session_ended(&scope, token, mark);
            self.record(&rejection, Enforcement::Observed, None);
        }
    }
}
