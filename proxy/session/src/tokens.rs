//! The tokens of a session: what is to be accepted for it, what was, and what has had no answer.

use std::sync::Arc;

use pgpalisade_authority::{Claim, Scope, Token};
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

/// What has come of a declaration: the tokens that the session is to hold, or the refusal that counts.
pub type Declared = Result<Obtained, Box<Rejection>>;

/// The tokens that a declaration has come to.
#[derive(Debug, Clone)]
pub struct Obtained {
    /// In the order of the value. A take that was refused, where that is only observed, has none.
    tokens: Vec<(Scope, Option<Token>, Purpose)>,
    /// The refusals that were only observed.
    observed: Vec<Rejection>,
}

impl Obtained {
    /// The take of a scope has come to this token.
    pub fn take(&mut self, scope: &Scope, token: Token) {
        let mut tokens = self.tokens.iter_mut();
        if let Some((_, taken, _)) = tokens.find(|(known, ..)| known == scope) {
            *taken = Some(token);
        }
    }

    /// A refusal that is only observed.
    pub fn observe(&mut self, rejection: Rejection) {
        self.observed.push(rejection);
    }

    /// What the session holds. `session` is `None` where it was not found, which only observing forgives; holding
    /// nothing is `None`.
    fn holding(&self, fence: &Fence, session: Option<Identified>) -> Option<Arc<HeldTokens>> {
        let tokens = self.tokens.iter();
        let bindings = tokens.filter_map(|(scope, token, purpose)| {
            Some(HeldToken {
                cell: fence.cell(scope),
                token: (*token)?,
                timeline: session.map_or(u32::MAX, |session| session.cluster.timeline),
                footing: match purpose {
                    Purpose::Admit => GrantMode::Enforced,
                    Purpose::Observe | Purpose::ObserveUnregistered => GrantMode::Observed,
                },
            })
        });
        let bindings: Box<[_]> = bindings.collect();
        (!bindings.is_empty()).then(|| Arc::new(HeldTokens::new(bindings)))
    }
}

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
        let claims = value.claims().iter();
        let terms = claims.map(|(scope, _)| Terms {
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

    /// What it claims, one by one.
    pub fn claims(&self) -> impl Iterator<Item = (&Scope, Claim, &Terms)> {
        let claims = self.value.claims().iter().zip(&self.terms);
        claims.map(|((scope, claim), terms)| (scope, *claim, terms))
    }

    /// The tokens that it brings itself. What it takes is yet to be known.
    #[must_use]
    pub fn brought(&self) -> Obtained {
        let tokens = self.claims().map(|(scope, claim, terms)| {
            let brought = match claim {
                Claim::Token(token) => Some(token),
                Claim::After(_) | Claim::Next | Claim::Lease(_) => None,
            };
            (scope.clone(), brought, terms.purpose)
        });
        Obtained {
            tokens: tokens.collect(),
            observed: Vec::new(),
        }
    }

    /// Whether it is for a lease, which may be another's.
    #[must_use]
    pub fn waits(&self) -> bool {
        let mut claims = self.value.claims().iter();
        claims.any(|(_, claim)| matches!(claim, Claim::Lease(_)))
    }

    /// Whether no refusal of any of its tokens would be carried out.
    #[must_use]
    pub fn is_only_observed(&self) -> bool {
        let mut terms = self.terms.iter();
        terms.all(|terms| terms.purpose != Purpose::Admit)
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
    declared: Vec<(Scope, Token)>,
    /// How many declarations were accepted. A take that is made after that is another one; until then it is the same
    /// one, made again, for its answer may have been lost.
    takes: u64,
}

/// Too many to remember, or nobody knows which token it was.
struct NotNoted;

impl Granted {
    /// The tokens that were accepted, whether in force or not.
    #[inline]
    pub(super) fn accepted(&self) -> &[Arc<HeldTokens>] {
        &self.accepted
    }

    /// What was declared, the last of each scope, whatever has come of it: the register may have the session there.
    pub(super) fn declared(&self) -> &[(Scope, Token)] {
        &self.declared
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

    /// It was stale, and is not registered.
    pub(super) fn forget_declared(&mut self) {
        self.declared.clear();
    }

    fn add(&mut self, holding: Arc<HeldTokens>, value: &TokenValue) {
        self.accepted
            .retain(|holding| holding.stale().is_none() && !holding.is_for(value));
        if self.accepted.len() >= ACCEPTED_MAX {
            self.accepted.remove(0);
        }
        self.accepted.push(holding);
    }

    /// The first scope in which a value is lower than what has had no answer, or may be.
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
    /// Whether a declaration may be made at all.
    ///
    /// # Errors
    ///
    /// Where a higher token has had no answer, the session ends.
    pub fn may_declare(&mut self, wanted: &Wanted) -> Result<(), Ending> {
        let Some(scope) = self.server.granted.forbid(&wanted.value) else {
            self.server.granted.note_declared(&wanted.value);
            return Ok(());
        };
        let why = "An earlier declaration of a higher token was not answered";
        let rejection = Rejection::authority_unavailable(Some(scope), &why);
        Err(self.end_unanswered(rejection))
    }

    /// Has the server show a text, a comment in SQL, as the last query of the session: once it has answered, the
    /// session can be found by it.
    pub fn leave_trace(&mut self, comment: &str) {
        let (out, ledger) = (&mut self.output.to_server, &mut self.server.ledger);
        injected::leave_trace(out, ledger, self.client.pipeline, comment);
    }

    /// The server did not answer in time, so nobody knows what it is doing.
    pub fn end_unidentified(&mut self) -> Ending {
        self.end_unanswered(Rejection::backend_unknown(&"It does not answer"))
    }

    /// The server process was found.
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
        self.accept(&wanted.brought(), None);
        Ok(())
    }

    /// The number of a take that is made now.
    #[must_use]
    pub const fn take_number(&self) -> u64 {
        self.server.granted.takes
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
            Ok(obtained) => {
                for rejection in &obtained.observed {
                    self.record(rejection, Enforcement::Observed, None);
                }
                self.accept(&obtained, Some(session));
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
        let tokens = self.prepared.take().and_then(|done| done.tokens);
        if tokens.is_some_and(|tokens| !tokens.is_empty())
            && let Some(holding) = self.server.granted.accepted().last()
        {
            self.client.variables.start_with(Arc::clone(holding));
        }
        self.server.token_text.on_startup(&wanted.value);
    }

    /// The tokens are accepted, and the message that they are for is looked at again.
    fn accept(&mut self, obtained: &Obtained, session: Option<Identified>) {
        self.server.granted.takes += 1;
        let holding = obtained.holding(self.client.fence.fence(), session);
        let text = self.text_of(holding.as_deref());
        self.prepared().tokens = Some(text);
        let Some(holding) = holding else {
            return;
        };
        let value = holding.value();
        // What it held so far may only have been observed.
        self.client.observed_end = holding.stale().map(|(_, mark)| mark);
        let variables = &mut self.client.variables;
        variables.replace(|held| held.is_for(&value), &holding);
        let in_force = variables
            .token()
            .is_some_and(|held| Arc::ptr_eq(held, &holding));
        if !in_force && self.client.fence.may_write(Some(&holding)) {
            // From here on the session is made ready for the new token; the old one, which the
            // declaration may have made stale, must not put read-only mode up in between. A token that lets it write
            // nothing makes it ready for nothing.
            self.prepared().binds = Binds::Yes;
        }
        self.server.granted.add(holding, &value);
    }

    /// Whether the session could go on under a lower token than one of these.
    fn may_be_replaced(&self, value: &TokenValue) -> bool {
        let variables = &self.client.variables;
        let accepted = self.server.granted.accepted();
        let in_force = variables.token().into_iter();
        let mut held = in_force.chain(variables.startup_token()).chain(accepted);
        let lower = |holding: &Arc<HeldTokens>| {
            let declared = value.claims().iter();
            holding.bindings().iter().any(|held| {
                declared.clone().any(|(scope, claim)| {
                    let token = claim.token();
                    held.cell.scope() == scope && token.is_none_or(|token| held.token < token)
                })
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
            let rejection = Rejection::session_would_end(&scope, token, mark);
            self.record(&rejection, Enforcement::Observed, None);
        }
    }
}
