//! A declaration, from the step of the authority to a session that may write.

use pgpalisade_authority::{
    AuthorityError, Backend, Cluster, Declaration, DeclareOutcome, Declared, IfStale, Mark,
    Registered, Scope, TakeoverEnd, TakeoverRecord, Token,
};
use pgpalisade_fence::{Purpose, Terms};
use pgpalisade_policies::TokenBounds;
use tokio::time::Instant;

use super::barrier::Barrier;
use super::error::DeclareError;
use super::{Inner, bounds, in_time, prepared};

/// A stale session that is only observed continues, and a takeover that is enforced must be able to find it.
const fn if_stale(purpose: Purpose) -> IfStale {
    match purpose {
        Purpose::Observe => IfStale::Register,
        Purpose::Admit | Purpose::ObserveUnregistered => IfStale::Refuse,
    }
}

/// Placeholder on the register for sessions that takeovers never end. No server process has this id, so a search
/// finds it gone.
pub(super) const NOBODY: Backend = Backend {
    pid: 0,
    started_us: 0,
};

/// A declaration that the authority has accepted.
struct Accepted {
    scope: Scope,
    cluster: Cluster,
    /// The mark known before.
    before: Option<Token>,
    mark: Mark,
    outcome: DeclareOutcome,
    lower: Vec<Registered>,
}

impl Inner {
    pub(super) async fn declare(
        &self,
        declaration: Declaration,
        terms: Terms,
        deadline: Instant,
    ) -> Result<Mark, DeclareError> {
        let declaration = self.on_terms(declaration, &terms);
        let Terms { purpose, bounds } = terms;
        self.epoch.note_joining();
        // Read before the answer: the watch may report the raise sooner.
        let before = self.marks.find(&declaration.scope);
        let before = before.and_then(|cached| cached.mark());
        let declared = in_time(self.authority.declare(&declaration), deadline).await?;
        let claim = declaration.claim;
        let Declaration {
            scope,
            cluster,
            election,
            ..
        } = declaration;
        match declared {
            Declared::Stale { mark } => {
                self.marks.note(&scope, &mark);
                Err(DeclareError::Stale { mark })
            }
            Declared::TooFar { mark } => {
                self.marks.note(&scope, &mark);
                Err(bounds::too_far(mark, claim, &bounds))
            }
            Declared::MarkIsLower { mark } => {
                if let Some(mark) = &mark {
                    self.marks.note(&scope, mark);
                }
                Err(DeclareError::MarkIsLower { mark })
            }
            Declared::NotElected { leader, mark } => {
                if let Some(mark) = &mark {
                    self.marks.note(&scope, mark);
                }
                Err(DeclareError::NotElected {
                    election: election.unwrap_or_default(),
                    leader,
                    mark,
                })
            }
            Declared::OtherCluster { recorded } => Err(self.on_other_cluster(cluster, recorded)),
            Declared::Accepted {
                mark,
                outcome,
                lower,
            } => {
                let accepted = Accepted {
                    scope,
                    cluster,
                    before,
                    mark,
                    outcome,
                    lower,
                };
                self.accepted(accepted, purpose, &bounds, deadline).await
            }
        }
    }

    /// Ends the lower sessions of an accepted declaration, if that is its purpose.
    async fn accepted(
        &self,
        accepted: Accepted,
        purpose: Purpose,
        bounds: &TokenBounds,
        deadline: Instant,
    ) -> Result<Mark, DeclareError> {
        let Accepted {
            scope,
            cluster,
            before,
            mark,
            outcome,
            lower,
        } = accepted;
        let from = before.filter(|_| outcome == DeclareOutcome::Raised);
        if outcome == DeclareOutcome::Raised {
            self.tell_raise(&scope, from, &mark, lower.len());
        }
        // From here on this proxy refuses its old sessions; the barrier ends all of them.
        self.marks.note(&scope, &mark);
        if purpose != Purpose::Admit {
            if outcome == DeclareOutcome::Raised {
                let record = TakeoverRecord::new(from, &mark, TakeoverEnd::Observed);
                self.barriers.notes().push(&scope, record);
            }
            self.witness.record_later(scope, mark.clone(), deadline);
            return Ok(mark);
        }
        let record = TakeoverRecord::new(from, &mark, TakeoverEnd::Complete);
        if outcome == DeclareOutcome::Current && lower.is_empty() {
            self.barriers.notes().push_found_complete(&scope, record);
            self.meet_prepared(bounds, &scope, &mark, deadline).await?;
            // The takeover was completed before, so its token is valid without the control connection.
            self.witness.record_later(scope, mark.clone(), deadline);
            return Ok(mark);
        }
        let barrier = Barrier {
            scope,
            rank: mark.rank(),
            cluster,
        };
        let passed = self.barriers.pass(&barrier, &lower, record, deadline);
        passed.await?;
        self.meet_prepared(bounds, &barrier.scope, &mark, deadline)
            .await?;
        self.report_prepared();
        self.witness.record(&barrier.scope, &mark, deadline).await?;
        self.check_incarnation(&barrier.scope, mark)
    }

    /// The declaration as the authority must judge it.
    fn on_terms(&self, mut declaration: Declaration, terms: &Terms) -> Declaration {
        if terms.purpose == Purpose::ObserveUnregistered {
            declaration.backend = NOBODY;
        }
        declaration.by = format!("{} via {}", declaration.by, self.declared_by);
        declaration.max_step = if bounds::has_to_be_issued(declaration.claim, &terms.bounds) {
            Some(0)
        } else {
            terms.bounds.max_step
        };
        declaration.max_token = terms.bounds.max_token;
        declaration.if_stale = if_stale(terms.purpose);
        declaration.election = terms.bounds.election().cloned();
        declaration
    }

    fn tell_raise(&self, scope: &Scope, from: Option<Token>, mark: &Mark, sessions: usize) {
        self.meters.marks_raised.inc();
        let (from, to) = (from.map(Token::get), mark.token.get());
        let raised_by = &mark.raised_by;
        tracing::info!(%scope, from, to, raised_by, sessions, "the mark is raised");
    }

    /// Applies the policy about prepared transactions that are older than the mark.
    async fn meet_prepared(
        &self,
        bounds: &TokenBounds,
        scope: &Scope,
        mark: &Mark,
        deadline: Instant,
    ) -> Result<(), DeclareError> {
        let policy = bounds.prepared.unwrap_or_default();
        prepared::meet(&self.control, policy, (scope, mark), deadline).await
    }

    /// Logs the prepared transactions that a takeover leaves. Does not wait.
    fn report_prepared(&self) {
        let control = self.control.clone();
        let deadline = Instant::now() + self.timeout;
        tokio::spawn(async move { prepared::report(&control, deadline).await });
    }

    /// While the barrier ran, the scope may have been repaired. The repair ends the session, which must not be told
    /// that it may write.
    fn check_incarnation(&self, scope: &Scope, mark: Mark) -> Result<Mark, DeclareError> {
        match self.marks.mark(scope).mark_detail() {
            Some(now) if now.incarnation > mark.incarnation => {
                Err(DeclareError::Stale { mark: now })
            }
            _ => Ok(mark),
        }
    }

    /// The authority had accepted the session's cluster before. So the cluster is deposed, or the authority has
    /// forgotten it.
    fn on_other_cluster(&self, ours: Cluster, recorded: Option<Cluster>) -> DeclareError {
        match recorded {
            Some(recorded) if recorded.follows(&ours) || !same_system(recorded, ours) => {
                self.marks.cluster().note(ours, recorded);
                self.control.note_record(recorded);
                self.control.renew();
                DeclareError::WrongCluster { ours, recorded }
            }
            _ => DeclareError::Authority(AuthorityError::WentBack(
                "it does not know the cluster on record; stop all proxies of this cluster and run \
                 \"pgpalisade recover\""
                    .to_owned(),
            )),
        }
    }
}

fn same_system(a: Cluster, b: Cluster) -> bool {
    a.system_identifier == b.system_identifier
}
