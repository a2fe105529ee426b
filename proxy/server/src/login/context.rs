//! A login as the fence sees it.

use std::sync::Arc;

use pgpalisade_authority::Scope;
use pgpalisade_fence::rejection::{Enforcement, Rejection};
use pgpalisade_fence::{ReplicationPermit, SessionFence, TokenValue};
use pgpalisade_logins::SessionLabel;
use pgpalisade_policies::{Lifetime, Mode, PoolMode};
use pgpalisade_rejection_log::RecordedStatement;
use pgpalisade_session::token_request::TokenRequest;
use tokio::sync::OwnedSemaphorePermit;

use super::error::LoginError;
use super::startup::StartupRequest;
use crate::client_table::ClientEntry;
use crate::leadership::{Grant, Without};
use crate::worker::Worker;

pub(super) struct LoginContext<'a> {
    worker: &'a Worker,
    pub(super) label: SessionLabel,
    pub(super) listed: &'a Arc<ClientEntry>,
    pub(super) fence: SessionFence,
    observed: Vec<Rejection>,
}

impl<'a> LoginContext<'a> {
    pub(super) fn new(
        worker: &'a Worker,
        label: SessionLabel,
        listed: &'a Arc<ClientEntry>,
    ) -> Self {
        let fence = worker.fence_for(&label);
        Self {
            fence: match listed.grant() {
                Some(_) => fence.with_given_tokens(),
                None => fence,
            },
            worker,
            label,
            listed,
            observed: Vec::new(),
        }
    }

    pub(super) fn on_authenticated(&mut self, backend_pid: i32) {
        self.label.backend_pid = Some(backend_pid);
        for rejection in std::mem::take(&mut self.observed) {
            self.record(&rejection, Enforcement::Observed);
        }
    }

    fn record(&self, rejection: &Rejection, enforcement: Enforcement) {
        let statement = RecordedStatement::default();
        self.worker
            .record(rejection, &self.label, statement, enforcement);
    }

    /// Records a refusal and carries it out, or lets it pass if it is only observed; then it is recorded after
    /// authentication.
    pub(super) fn unless_observed<T>(
        &mut self,
        answer: Result<T, Box<Rejection>>,
    ) -> Result<Option<T>, LoginError> {
        let rejection = match answer {
            Ok(value) => return Ok(Some(value)),
            Err(rejection) => rejection,
        };
        match self.fence.mode_of(&rejection) {
            Mode::Observe => {
                self.observed.push(*rejection);
                Ok(None)
            }
            Mode::Enforce => Err(self.refused(rejection)),
        }
    }

    /// Scope and tokens of the startup packet.
    pub(super) fn declared(
        &mut self,
        request: &StartupRequest,
    ) -> Result<(Option<Scope>, Option<TokenRequest>), LoginError> {
        self.unless_observed(request.check_names())?;
        let scope = self.unless_observed(request.scope())?;
        let wanted = match (self.listed.grant(), &scope) {
            (Some(grant), _) => self.given_tokens(request, grant)?,
            (None, Some(scope)) => self.wanted_tokens(request, scope.as_ref())?,
            // After an observed refusal of the scope, the token does not count.
            (None, None) => None,
        };
        Ok((scope.flatten(), wanted))
    }

    /// The token of the listener, while this proxy leads. The connection then ends with the term.
    fn given_tokens(
        &mut self,
        request: &StartupRequest,
        grant: &Grant,
    ) -> Result<Option<TokenRequest>, LoginError> {
        if !matches!(request.token_text(), Ok(None)) {
            self.unless_observed::<()>(Err(Box::new(Rejection::tokens_are_given())))?;
        }
        let scope = grant.leadership.scope();
        let mode = self.fence.mode(Some(scope));
        let Some(term) = self.listed.join(&grant.leadership, mode) else {
            return match (grant.without, mode) {
                (Without::Refuse, Mode::Enforce) => Err(LoginError::NotLeading(scope.clone())),
                _ => Ok(None),
            };
        };
        let value = term.value();
        let allowed = self.fence.may_declare_all(&value, Lifetime::Session);
        let allowed = self.unless_observed(allowed)?;
        Ok(allowed.map(|()| TokenRequest::of_term(&self.fence, value)))
    }

    fn wanted_tokens(
        &mut self,
        request: &StartupRequest,
        scope: Option<&Scope>,
    ) -> Result<Option<TokenRequest>, LoginError> {
        let read = || {
            let Some(text) = request.token_text()? else {
                return Ok(None);
            };
            let scope = scope.unwrap_or_else(|| self.fence.default_scope());
            let value = TokenValue::parse(&text, scope).map_err(|error| {
                Box::new(Rejection::invalid_value("fencing.token", &text, error))
            })?;
            if let Some(value) = &value {
                self.fence.may_declare_all(value, Lifetime::Session)?;
            }
            Ok(value)
        };
        let value = self.unless_observed(read())?.flatten();
        Ok(value.map(|value| TokenRequest::new(&self.fence, value)))
    }

    /// Takes a place beside the pool, if the policy or the listener gives the session a server connection of its own.
    pub(super) fn own_place(
        &self,
        replication: Option<&ReplicationPermit>,
    ) -> Result<Option<OwnedSemaphorePermit>, LoginError> {
        let of_listener = || self.listed.grant()?.pool;
        let mode = self.fence.rules().pool_mode().or_else(of_listener);
        let is_asked = mode == Some(PoolMode::Session);
        if replication.is_some() || self.worker.backends.is_none() || !is_asked {
            return Ok(None);
        }
        let own = Arc::clone(&self.worker.shared.pooling.own);
        let place = own.try_acquire_owned();
        place.map(Some).map_err(|_| LoginError::NoOwnPlace)
    }

    /// Decides a replication connection. It is exempt as a whole or refused.
    pub(super) fn permit(
        &mut self,
        request: &StartupRequest,
        wanted: Option<&TokenRequest>,
    ) -> Result<Option<ReplicationPermit>, LoginError> {
        if !request.is_replication {
            return Ok(None);
        }
        let admitted = self
            .fence
            .admit_replication(wanted.map(TokenRequest::value));
        let (permit, observed) = admitted.map_err(|rejection| self.refused(rejection))?;
        self.observed.extend(observed.map(|rejection| *rejection));
        Ok(Some(permit))
    }

    /// Refuses a client whose token is known to be stale, before anybody is asked. It may try again and again.
    pub(super) fn check_marks(&self, wanted: Option<&TokenRequest>) -> Result<(), LoginError> {
        let checked = wanted.map_or(Ok(()), |wanted| self.fence.check_marks(wanted.value()));
        checked.map_err(|rejection| self.refused(rejection))
    }

    pub(super) fn refused(&self, rejection: Box<Rejection>) -> LoginError {
        self.record(&rejection, Enforcement::Refused);
        LoginError::Refused(rejection)
    }
}
