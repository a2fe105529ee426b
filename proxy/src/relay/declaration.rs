//! Declaring the tokens of a value for one session: what is wanted, how it is done, and what comes of it.

use std::sync::Arc;

use pgpalisade_authority::{Scope, Token};
use pgpalisade_policies::{Mode, TokenBounds};
use tokio::time::Instant;

use super::{Front, Gate, Process, Relay};
use crate::fence::{Binding, Fence, Footing, Holding, SessionFence, TokenValue};
use crate::rejection::Rejection;
use crate::rejection_log::{Enforcement, RejectionKind, SessionLabel, readable};
use crate::takeover::{Declare, DeclareError, Identified, Purpose, Takeover};
use crate::upstream::own;
use crate::wire::encode::Severity;

/// A session keeps this many values of `fencing.token` that were accepted for it.
const ACCEPTED_MAX: usize = 256;

/// Tokens that are to be accepted for a session, and what for.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    value: TokenValue,
    /// For each of the tokens.
    terms: Box<[Terms]>,
}

/// How one token is to be accepted.
#[derive(Debug, Clone, Copy)]
struct Terms {
    purpose: Purpose,
    bounds: TokenBounds,
}

/// The tokens that a session has declared without an answer, the highest of each scope. The register may get the
/// session there at any time from then on, so it must not declare a lower one: a takeover would spare it.
#[derive(Debug, Default)]
pub(super) struct Unanswered(Vec<(Scope, Token)>);

/// Too many to remember.
struct TooMany;

impl Unanswered {
    /// The first scope in which a value is lower.
    fn forbid(&self, value: &TokenValue) -> Option<&Scope> {
        let mut tokens = value.tokens().iter();
        let lower = |(scope, token): &&(Scope, Token)| {
            let mut known = self.0.iter();
            known.any(|(other, higher)| scope == other && token < higher)
        };
        let (forbidden, _) = tokens.find(lower)?;
        self.0
            .iter()
            .map(|(scope, _)| scope)
            .find(|scope| *scope == forbidden)
    }

    fn note(&mut self, value: &TokenValue) -> Result<(), TooMany> {
        for (scope, token) in value.tokens() {
            if let Some((_, highest)) = self.0.iter_mut().find(|(known, _)| known == scope) {
                *highest = (*highest).max(*token);
            } else if self.0.len() < ACCEPTED_MAX {
                self.0.push((scope.clone(), *token));
            } else {
                return Err(TooMany);
            }
        }
        Ok(())
    }
}

/// What has come of a declaration: the refusals that were only observed, or the one that counts.
pub(crate) type Declared = Result<Vec<Rejection>, Box<Rejection>>;

impl Wanted {
    /// What a session wants that states this value.
    pub(crate) fn new(fence: &SessionFence, value: TokenValue) -> Self {
        let tokens = value.tokens().iter();
        let terms = tokens.map(|(scope, _)| Terms {
            purpose: fence.purpose(scope),
            bounds: fence.rules().policy().bounds(scope.as_str()),
        });
        Self {
            terms: terms.collect(),
            value,
        }
    }

    /// The value.
    pub(crate) const fn value(&self) -> &TokenValue {
        &self.value
    }

    /// Whether no refusal of any of its tokens would be carried out.
    pub(crate) fn is_only_observed(&self) -> bool {
        let mut terms = self.terms.iter();
        terms.all(|terms| terms.purpose != Purpose::Admit)
    }

    /// The holding, once all are accepted. `session` is `None` where it was not found, which only observing forgives.
    pub(crate) fn holding(&self, fence: &Fence, session: Option<Identified>) -> Arc<Holding> {
        let tokens = self.value.tokens().iter().zip(&self.terms);
        let bindings = tokens.map(|((scope, token), terms)| Binding {
            cell: fence.cell(scope),
            token: *token,
            timeline: session.map_or(u32::MAX, |session| session.cluster.timeline),
            footing: match terms.purpose {
                Purpose::Admit => Footing::Registered,
                Purpose::Observe | Purpose::ObserveUnregistered => Footing::Noted,
            },
        });
        Arc::new(Holding::new(bindings.collect()))
    }
}

impl SessionFence {
    /// What a declaration of the session in this scope is for.
    fn purpose(&self, scope: &Scope) -> Purpose {
        match self.mode(Some(scope)) {
            Mode::Enforce => Purpose::Admit,
            Mode::Observe if self.rules().observes_session() => Purpose::ObserveUnregistered,
            Mode::Observe => Purpose::Observe,
        }
    }
}

impl Relay {
    /// Takes the next step towards the acceptance of a value. The message is looked at again after each.
    pub(super) fn declare(&mut self, value: TokenValue) {
        if let Some(scope) = self.unanswered.forbid(&value) {
            let why = "An earlier declaration of a higher token has had no answer";
            return self.end_unanswered(Rejection::authority_unavailable(Some(scope), &why));
        }
        let takeover = self.worker.takeover.clone();
        let wanted = Wanted::new(&self.fence, value);
        // One deadline for the search of the process and for the declaration.
        let (identified, deadline) = match self.process {
            Process::Unknown => {
                let deadline = takeover.deadline();
                let identifying = Box::pin(identify(takeover, self.backend_pid, deadline));
                self.gate = Gate::Identification(wanted, deadline, identifying);
                return;
            }
            Process::Found(identified, deadline) if deadline > Instant::now() => {
                (identified, deadline)
            }
            Process::Found(identified, _) | Process::Known(identified) => {
                (identified, takeover.deadline())
            }
        };
        self.process = Process::Known(identified);
        let by = describe_session(&self.label);
        let declaring = Box::pin(declare(takeover, wanted.clone(), identified, by, deadline));
        self.gate = Gate::Declaration(wanted, identified, declaring);
    }

    /// Says whether the gate opens.
    pub(super) fn on_identified(&mut self, answer: Result<Identified, Box<Rejection>>) -> bool {
        let Gate::Identification(wanted, deadline, _) =
            std::mem::replace(&mut self.gate, Gate::Open)
        else {
            return false;
        };
        match answer {
            Ok(identified) => {
                self.process = Process::Found(identified, deadline);
                let out = self.upstream.own_messages();
                own::probe(out, &mut self.ledger, self.position.pipeline);
                self.gate = Gate::Replies;
                false
            }
            Err(rejection) if wanted.is_only_observed() => {
                self.record(&rejection, Enforcement::Observed);
                self.accept(&wanted, None);
                true
            }
            Err(rejection) => {
                self.refusal_on_hold = Some(rejection);
                true
            }
        }
    }

    /// Says whether the gate opens.
    pub(super) fn on_declared(&mut self, answer: Declared) -> bool {
        let Gate::Declaration(wanted, identified, _) =
            std::mem::replace(&mut self.gate, Gate::Open)
        else {
            return false;
        };
        match answer {
            Ok(observed) => {
                for rejection in observed {
                    self.record(&rejection, Enforcement::Observed);
                }
                self.accept(&wanted, Some(identified));
            }
            Err(rejection) if rejection.kind == RejectionKind::AuthorityUnavailable => {
                let noted = self.unanswered.note(wanted.value());
                if noted.is_err() || self.may_be_replaced(wanted.value()) {
                    self.end_unanswered(*rejection);
                    return false;
                }
                self.refusal_on_hold = Some(rejection);
            }
            Err(rejection) => self.refusal_on_hold = Some(rejection),
        }
        true
    }

    /// A takeover has made a token stale that is only observed: were it enforced, the session would have ended.
    pub(super) fn record_observed_end(&mut self) {
        let Some((binding, mark)) = self.settings.token().and_then(|held| held.stale()) else {
            return;
        };
        let (scope, token) = (binding.cell.scope().clone(), binding.token);
        let observed = self.fence.mode(Some(&scope)) == Mode::Observe;
        if observed && self.observed_end.replace(mark.clone()).as_ref() != Some(&mark) {
            let rejection = Rejection::session_ended(&scope, token, mark);
            self.record(&rejection, Enforcement::Observed);
        }
    }

    /// The tokens are accepted, and the message that they are for is looked at again.
    fn accept(&mut self, wanted: &Wanted, session: Option<Identified>) {
        let value = wanted.value();
        self.accepted
            .retain(|holding| holding.stale().is_none() && !holding.is_for(value));
        if self.accepted.len() >= ACCEPTED_MAX {
            self.accepted.remove(0);
        }
        let holding = wanted.holding(self.fence.fence(), session);
        // What it held so far may only have been observed.
        self.observed_end = holding.stale().map(|(_, mark)| mark);
        self.settings.replace(|held| held.is_for(value), &holding);
        let in_force = self
            .settings
            .token()
            .is_some_and(|held| Arc::ptr_eq(held, &holding));
        if !in_force {
            // From here on the session is made ready for the new token; the old one, which the
            // declaration may have made stale, must not put the backstop up in between.
            self.front = Front::Binds;
        }
        self.accepted.push(holding);
    }

    /// Whether the session could go on under a lower token than one of these.
    fn may_be_replaced(&self, value: &TokenValue) -> bool {
        let in_force = self.settings.token().into_iter();
        let at_reset = self.settings.startup_token();
        let mut held = in_force.chain(at_reset).chain(&self.accepted);
        let lower = |holding: &Arc<Holding>| {
            let declared = value.tokens().iter();
            holding.bindings().iter().any(|held| {
                declared
                    .clone()
                    .any(|(scope, token)| held.cell.scope() == scope && held.token < *token)
            })
        };
        // Of so many values some were forgotten.
        self.accepted.len() >= ACCEPTED_MAX || held.any(lower)
    }

    /// A declaration has had no answer, so the register may have the session at the declared token, or get it there
    /// later. A takeover with that token would spare the session: it must not go on under a lower one.
    fn end_unanswered(&mut self, rejection: Rejection) {
        let rejection = rejection.ending_the_session();
        self.record(&rejection, Enforcement::Refused);
        rejection.encode(Severity::Fatal, self.client_outbox.tail());
        self.gate = Gate::Closing("a declaration has had no answer");
    }
}

/// Finds the server process that has the id which the server told at login.
///
/// # Errors
///
/// What the client is told.
pub(crate) async fn identify(
    takeover: Takeover,
    pid: i32,
    deadline: Instant,
) -> Result<Identified, Box<Rejection>> {
    let found = takeover.identify(pid, deadline).await;
    found.map_err(|error| Box::new(rejection(None, None, error)))
}

/// Has all tokens of a value accepted for a session.
///
/// # Errors
///
/// What the client is told.
pub(crate) async fn declare(
    takeover: Takeover,
    wanted: Wanted,
    session: Identified,
    by: String,
    deadline: Instant,
) -> Declared {
    let mut observed = Vec::new();
    for ((scope, token), terms) in wanted.value.tokens().iter().zip(&wanted.terms) {
        let declare = Declare {
            scope: scope.clone(),
            token: *token,
            session,
            purpose: terms.purpose,
            bounds: terms.bounds,
            by: by.clone(),
            deadline,
        };
        if let Err(error) = takeover.declare(declare).await {
            let rejection = rejection(Some(scope), Some(*token), error);
            let is_away = rejection.kind == RejectionKind::AuthorityUnavailable;
            match terms.purpose {
                Purpose::Admit => return Err(Box::new(rejection)),
                Purpose::Observe | Purpose::ObserveUnregistered => observed.push(rejection),
            }
            // The next scope would have no answer either. Where it is enforced, that is its refusal.
            if is_away && wanted.is_only_observed() {
                break;
            }
        }
    }
    Ok(observed)
}

fn rejection(scope: Option<&Scope>, token: Option<Token>, error: DeclareError) -> Rejection {
    match (error, scope, token) {
        (DeclareError::Stale { mark }, Some(scope), Some(token)) => {
            Rejection::stale(scope, token, mark)
        }
        (DeclareError::OutOfBounds { mark, bound }, Some(scope), Some(token)) => {
            Rejection::out_of_bounds(scope, token, mark, bound)
        }
        (error @ DeclareError::Authority(_), scope, _) => {
            Rejection::authority_unavailable(scope, &error)
        }
        (error @ DeclareError::WrongCluster { .. }, scope, _) => {
            Rejection::wrong_cluster(scope, &error)
        }
        (error @ DeclareError::Prepared { .. }, Some(scope), _) => {
            Rejection::prepared_transactions_left(scope, &error)
        }
        (error @ DeclareError::Backend { .. }, _, _) => Rejection::backend_unknown(&error),
        (error @ DeclareError::Witness { .. }, scope, _) => {
            Rejection::mark_not_copied(scope, &error)
        }
        (error, scope, _) => Rejection::takeover_incomplete(scope, &error),
    }
}

/// A session in words, for the record of who raised a mark.
pub(crate) fn describe_session(label: &SessionLabel) -> String {
    let SessionLabel {
        user,
        database,
        application_name,
        client_addr,
        ..
    } = label;
    // Other clients and terminals are shown it.
    let (user, database) = (readable(user), readable(database));
    match application_name.as_deref().map(readable) {
        Some(name) => format!("{user}@{client_addr} ({name}, database {database})"),
        None => format!("{user}@{client_addr} (database {database})"),
    }
}
