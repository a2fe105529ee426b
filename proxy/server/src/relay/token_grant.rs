//! Declaring the tokens of a value for one session, at login and at SET alike.

use std::sync::Arc;
use std::time::Duration;

use pgpalisade_authority::{Claim, Declaration, LeaseTime, Leased, Mark, Scope, TakeId};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use super::{ClientSide, End, Relay};
use crate::fence::readable::readable;
use crate::fence::{HeldTokens, Identified, Purpose, Terms};
use crate::forced_end::{Cause, ForcedEnd};
use crate::rejection::{Bound, Rejection, RejectionKind};
use crate::rejection_log::SessionLabel;
use crate::session::read_only::AccessChange;
use crate::session::token_request::{Declared, Obtained, TokenRequest};
use crate::session::{Identity, Met};
use crate::takeover::{Acquired, DeclareError, Lease, SessionProbe, Takeover};

/// Longest wait for a lease, unless too many wait in the pool.
const WAITS_MAX: Duration = Duration::from_secs(15);

impl Relay {
    /// Declares tokens for the session, after everything sent before has been answered:
    ///
    /// 1. Makes the open transaction read-write, if that is due.
    /// 2. Finds the session's server process, by the pid that the server told at login. It must show a trace.
    /// 3. Declares each token, which ends the sessions of lower ones.
    pub(super) async fn obtain(
        &mut self,
        wanted: &TokenRequest,
        read_write: Option<AccessChange>,
    ) -> Result<Met, End> {
        let allowed = self.session.may_declare(wanted);
        allowed.map_err(|ending| self.ended(ending))?;
        let takeover = self.client.worker.shared.takeover.clone();
        // One deadline for the server's answers and for the declaration.
        let deadline = takeover.deadline();
        if let Some(read_write) = read_write {
            self.session.begin_set_access(read_write);
            self.await_server(wanted, deadline).await?;
            let met = self.session.end_set_access(read_write);
            let met = met.map_err(|ending| self.ended(ending))?;
            if met != Met::Yes {
                return Ok(met);
            }
        }
        let session = match self.session.identity() {
            Identity::Known(session) => session,
            Identity::Pid(pid) => {
                let trace = SessionProbe::random();
                self.session.leave_trace(trace.text());
                self.await_server(wanted, deadline).await?;
                let finding = takeover.identify(pid, trace, deadline);
                let session = match self.meanwhile(finding).await? {
                    Ok(session) => session,
                    Err(error) => {
                        let rejection = Box::new(rejection(None, error));
                        let met = self.session.on_not_identified(wanted, rejection);
                        self.put_output();
                        return Ok(met);
                    }
                };
                self.session.on_identified(session);
                session
            }
        };
        let by = describe_session(&self.client.label);
        let (patience, _place) = self.patience(wanted);
        let take = TakeId::new(session.backend, self.session.take_number());
        let mut declarant = Declarant {
            takeover,
            session,
            take,
            by,
            patience,
            end: Arc::clone(&self.client.shown.entry().end),
            leases: std::mem::take(&mut self.client.leases),
            acquired: Vec::new(),
        };
        let declaring = declarant.declare(wanted, deadline);
        self.server.awaits_declaration = true;
        let declared = if wanted.waits() {
            self.while_the_client_stays(declaring).await
        } else {
            self.meanwhile(declaring).await
        };
        self.server.awaits_declaration = false;
        self.client.leases = declarant.leases;
        let met = self.session.on_declared(wanted, session, declared?);
        self.put_output();
        met.map_err(|ending| self.ended(ending))
    }

    /// Longest wait for a lease, and in a lent connection the place for it.
    fn patience(&self, wanted: &TokenRequest) -> (Duration, Option<OwnedSemaphorePermit>) {
        if self.lent.is_none() || !wanted.waits() {
            return (WAITS_MAX, None);
        }
        let places = Arc::clone(&self.client.worker.shared.pooling.lease_waits);
        match places.try_acquire_owned() {
            Ok(place) => (WAITS_MAX, Some(place)),
            Err(_) => (Duration::ZERO, None),
        }
    }

    /// Waits for the server. One that does not answer, such as a machine that is failing over, must not hold up an
    /// enforced declaration.
    async fn await_server(&mut self, wanted: &TokenRequest, deadline: Instant) -> Result<(), End> {
        if wanted.is_only_observed() {
            return self.await_replies().await;
        }
        let (timers, left) = (
            self.client.worker.shared.timers.clone(),
            deadline - Instant::now(),
        );
        let answered = timers.timeout(left, self.await_replies()).await;
        match answered {
            Ok(answered) => answered,
            Err(_) => {
                let ending = self.session.end_unidentified();
                Err(self.ended(ending))
            }
        }
    }
}

impl ClientSide {
    /// Gives back the leases whose tokens are no longer in force.
    pub(super) fn give_back_leases(&mut self, in_force: Option<&Arc<HeldTokens>>) {
        let is_over = |lease: &mut Lease| {
            let held = in_force.and_then(|tokens| tokens.token_of(lease.scope()));
            held.is_none_or(|held| held.token != lease.mark().token)
        };
        let over = self.leases.extract_if(.., is_over);
        over.for_each(Lease::give_back);
    }
}

/// A session that declares tokens.
struct Declarant {
    takeover: Takeover,
    session: Identified,
    take: TakeId,
    /// Description of the session for people.
    by: String,
    /// Longest wait for a lease.
    patience: Duration,
    end: Arc<ForcedEnd>,
    /// Leases of tokens that the session holds.
    leases: Vec<Lease>,
    /// Leases under which it is about to take tokens.
    acquired: Vec<Acquired>,
}

impl Declarant {
    /// Declares all tokens of a value.
    async fn declare(&mut self, wanted: &TokenRequest, mut deadline: Instant) -> Declared {
        let mut obtained = Obtained::default();
        if wanted.waits() {
            self.lease_all(wanted, &mut obtained).await?;
            deadline = self.takeover.deadline();
        }
        // One that cannot be accepted must not depose the leaders of the scopes before it.
        for (scope, claim, terms) in wanted.claims() {
            let is_certain = terms.purpose == Purpose::Admit && !matches!(claim, Claim::Lease(_));
            let checked = || self.takeover.check(&self.declaration(scope, claim), terms);
            if let Err(error) = if is_certain { checked() } else { Ok(()) } {
                return Err(Box::new(rejection(Some((scope, claim)), error)));
            }
        }
        for (scope, claim, terms) in wanted.claims() {
            let declaration = self.declaration(scope, claim);
            let declared = match claim {
                Claim::Lease(time) => {
                    let terms = terms.clone();
                    match self
                        .declare_leased(declaration, time, terms, deadline)
                        .await
                    {
                        Some(declared) => declared,
                        // The failed lease was only observed.
                        None => continue,
                    }
                }
                _ => {
                    let terms = terms.clone();
                    self.takeover.declare(declaration, terms, deadline).await
                }
            };
            let error = match declared {
                Ok(mark) if claim.is_take() => {
                    obtained.taken.push((scope.clone(), mark.token));
                    continue;
                }
                Ok(_) => continue,
                Err(error) => error,
            };
            let rejection = rejection(Some((scope, claim)), error);
            let is_away = rejection.kind == RejectionKind::AuthorityUnavailable;
            observed(terms.purpose, rejection, &mut obtained)?;
            // The next scope would get no answer either. If it is enforced, it is asked and refused.
            if is_away && wanted.is_only_observed() {
                break;
            }
        }
        Ok(obtained)
    }

    fn declaration(&self, scope: &Scope, claim: Claim) -> Declaration {
        let Identified { backend, cluster } = self.session;
        Declaration {
            take: Some(self.take),
            ..Declaration::new(scope, claim, backend, cluster, &self.by)
        }
    }

    /// Acquires all leases of a value before any token is declared, so that a failure changes nothing. All sessions
    /// acquire in one order, which prevents deadlocks.
    async fn lease_all(
        &mut self,
        wanted: &TokenRequest,
        obtained: &mut Obtained,
    ) -> Result<(), Box<Rejection>> {
        let leased = |(scope, claim, terms)| match claim {
            Claim::Lease(time) => Some((scope, time, terms)),
            _ => None,
        };
        let mut leases: Vec<(&Scope, LeaseTime, &Terms)> =
            wanted.claims().filter_map(leased).collect();
        leases.sort_by_key(|(scope, ..)| *scope);
        let waits = leases.iter().map(|(_, time, _)| time.patience()).min();
        let until = Instant::now() + waits.unwrap_or_default().min(self.patience);
        for (scope, time, terms) in leases {
            if let Err(error) = self.lease(scope, time, terms, until).await {
                let rejection = rejection(Some((scope, Claim::Lease(time))), error);
                observed(terms.purpose, rejection, obtained)?;
            }
        }
        Ok(())
    }

    /// Renews the scope's lease if the session has one, or acquires it.
    async fn lease(
        &mut self,
        scope: &Scope,
        time: LeaseTime,
        terms: &Terms,
        until: Instant,
    ) -> Result<(), DeclareError> {
        self.takeover.check_claim(Claim::Lease(time), terms)?;
        if let Some(at) = self.leases.iter().position(|lease| lease.scope() == scope) {
            let lease = self.leases.swap_remove(at);
            let renewed = self.takeover.renew_lease(&lease, time).await;
            if !matches!(renewed, Ok(Leased::NotHeld)) {
                self.leases.push(lease);
                return renewed.map(drop);
            }
            // The session is here: it has not vanished, and must not wait for the lock delay of its own lease.
            lease.give_back();
        }
        let (end, purpose) = (Arc::clone(&self.end), terms.purpose);
        let lost = move || match purpose {
            Purpose::Admit => end.order(Cause::LeaseLost),
            // A session is not ended for an observed scope.
            Purpose::Observe | Purpose::ObserveUnregistered => {}
        };
        let acquiring = self.takeover.acquire_lease(scope, terms, until, lost);
        self.acquired.push(acquiring.await?);
        Ok(())
    }

    /// Takes the next token under an acquired lease, or declares that of a lease that the session has: it may be new
    /// to this server process, or a repair may have deposed it. `None`: the session has no lease.
    async fn declare_leased(
        &mut self,
        declaration: Declaration,
        time: LeaseTime,
        mut terms: Terms,
        deadline: Instant,
    ) -> Option<Result<Mark, DeclareError>> {
        let scope = &declaration.scope;
        if let Some(lease) = self.leases.iter().find(|lease| lease.scope() == scope) {
            let claim = Claim::Token(lease.mark().token);
            terms.bounds.max_step = Some(0);
            let again = Declaration {
                claim,
                ..declaration
            };
            return Some(self.takeover.declare(again, terms, deadline).await);
        }
        let mut acquired = self.acquired.iter();
        let at = acquired.position(|acquired| acquired.scope() == scope)?;
        let acquired = self.acquired.swap_remove(at);
        let taking = self
            .takeover
            .take_under(acquired, &declaration, time, terms);
        Some(taking.await.map(|lease| {
            let mark = lease.mark().clone();
            self.leases.push(lease);
            mark
        }))
    }
}

/// Returns the rejection as an error, or only records it if it is observed.
fn observed(
    purpose: Purpose,
    rejection: Rejection,
    obtained: &mut Obtained,
) -> Result<(), Box<Rejection>> {
    match purpose {
        Purpose::Admit => return Err(Box::new(rejection)),
        Purpose::Observe | Purpose::ObserveUnregistered => obtained.observed.push(rejection),
    }
    Ok(())
}

fn rejection(claimed: Option<(&Scope, Claim)>, error: DeclareError) -> Rejection {
    let scope = claimed.map(|(scope, _)| scope);
    match (error, claimed) {
        (DeclareError::Stale { mark }, Some((scope, claim))) => {
            Rejection::behind(scope, claim, mark)
        }
        (DeclareError::MarkIsLower { mark }, Some((scope, claim))) => {
            Rejection::nothing_to_follow(scope, claim, mark)
        }
        (DeclareError::LeaseHeld { unanswered }, Some((scope, claim))) => {
            Rejection::lease_held(scope, claim, unanswered.as_deref())
        }
        // No policy says so: the token was accepted before a repair.
        (
            DeclareError::OutOfBounds {
                mark: Some(mark),
                bound: Bound::MaxStep(0),
            },
            Some((scope, claim)),
        ) => Rejection::behind(scope, claim, mark),
        (DeclareError::OutOfBounds { mark, bound }, Some((scope, claim))) => {
            Rejection::out_of_bounds(scope, claim, mark, bound)
        }
        (DeclareError::NotTaken { election }, Some((scope, claim))) => {
            Rejection::not_taken(scope, claim, &election)
        }
        (
            DeclareError::NotElected {
                election,
                leader,
                mark,
            },
            Some((scope, claim)),
        ) => Rejection::not_elected(scope, claim, &election, leader, mark),
        (error @ DeclareError::Authority(_), _) => Rejection::authority_unavailable(scope, &error),
        (error @ DeclareError::WrongCluster { .. }, _) => Rejection::wrong_cluster(scope, &error),
        (error @ DeclareError::Prepared { .. }, Some((scope, _))) => {
            Rejection::prepared_transactions_left(scope, &error)
        }
        (error @ DeclareError::Backend { .. }, _) => Rejection::backend_unknown(&error),
        (error @ DeclareError::Witness { .. }, _) => Rejection::mark_not_copied(scope, &error),
        (error, _) => Rejection::takeover_incomplete(scope, &error),
    }
}

/// A session in words, for the record of who raised a mark.
fn describe_session(label: &SessionLabel) -> String {
    let SessionLabel {
        user,
        database,
        application_name,
        client_addr,
        ..
    } = label;
    // Other clients and terminals see it.
    let (user, database) = (readable(user), readable(database));
    match application_name.as_deref().map(readable) {
        Some(name) => format!("{user}@{client_addr} ({name}, database {database})"),
        None => format!("{user}@{client_addr} (database {database})"),
    }
}
