//! Repair for an operator: the mark of a scope was poisoned by a token that nobody will ever reach. The mark is set
//! again, in the next incarnation of the scope, and every earlier session is ended.
//!
//! If the store is shared, proxies may serve meanwhile. To them it is a takeover: the authority's step orders it with
//! their declarations, and the barrier waits until every earlier session is gone. A repair that is interrupted after
//! that step has already set the mark. Run again, it ends the sessions that are left.

use std::sync::Arc;
use std::time::Duration;

use pgpalisade_authority::{
    Authority, AuthorityError, Cluster, Mark, Registered, Repair, RepairRequest, Repaired, Scope,
    TakeoverEnd, TakeoverRecord, Token, now_us,
};
use tokio::time::{Instant, sleep};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::barrier::Barrier;
use super::barriers::Barriers;
use super::connection::ControlConfig;
use super::control::Control;
use super::driver::Driver;
use super::error::{DeclareError, StartError};
use super::history::Notes;
use super::options::TakeoverOptions;
use super::{WitnessMode, control_login, in_time};

/// Time for which the start waits for the cluster's lock.
const LOCK_WAIT: Duration = Duration::from_secs(1);
/// Pause between attempts to reach the authority.
const RETRY: Duration = Duration::from_millis(200);

/// Reason why a scope was not repaired.
#[derive(Debug, thiserror::Error)]
pub enum RepairError {
    /// The cluster or the authority cannot be used. Nothing was changed.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The authority did not answer.
    #[error("{0}; nothing is known to have changed; run it again")]
    Authority(AuthorityError),
    /// Nothing was changed. The text says why, and what to do.
    #[error("{0}")]
    NotDone(String),
    /// The mark is set, but the repair is not complete.
    #[error(
        "the mark of scope {} is set, but the repair is not complete: {why}. Earlier sessions cannot declare a token \
            below the new mark, but those that remain may still write. Remove the obstacle, and run the same command \
            again: it continues this repair", report.scope
    )]
    Incomplete {
        /// Work done so far.
        report: Box<RepairReport>,
        /// Error that stood in the way.
        why: DeclareError,
    },
}

/// Result of a repair.
#[derive(Debug, Clone)]
pub struct RepairReport {
    /// The scope.
    pub scope: Scope,
    /// Its mark, with the record of the repair.
    pub mark: Mark,
    /// Number of sessions to be ended.
    pub sessions: usize,
    /// Whether this run had to set the mark, or an earlier run had set it.
    pub work: Work,
}

/// Work that is left to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// Set the mark, and end the sessions.
    Repair,
    /// The last repair has set the mark: only end the sessions that are left.
    Finish,
}

/// A scope that was looked at, and what a repair would do. Holds the cluster's lock as a proxy does.
pub struct ScopeRepair {
    /// The scope.
    pub scope: Scope,
    /// Its mark now.
    pub mark: Mark,
    /// The mark to be set.
    pub to: Token,
    /// The cluster whose sessions are ended.
    pub cluster: Cluster,
    /// Sessions registered in the scope that are to be ended; some may be gone.
    pub sessions: Vec<Registered>,
    /// Work that is left to do.
    pub work: Work,
    driver: Driver,
    options: TakeoverOptions,
    /// Time limit of the look, and again of the repair.
    within: Duration,
    _tasks: DropGuard,
}

impl ScopeRepair {
    /// Connects as a proxy does, with the same checks, and looks. Does not touch the scope. Each look and repair may
    /// take `within`, and one step of it the timeout of a proxy.
    ///
    /// # Errors
    ///
    /// Errors that keep a proxy from serving, and a scope without a mark.
    pub async fn look(
        mut options: TakeoverOptions,
        within: Duration,
        authority: Arc<dyn Authority>,
        scope: Scope,
        to: Token,
    ) -> Result<Self, RepairError> {
        options.control = control_login(options.control);
        options.lock_wait = LOCK_WAIT;
        let tasks = CancellationToken::new();
        let guard = tasks.clone().drop_guard();
        let config = ControlConfig {
            options: options.clone(),
            authority: Arc::clone(&authority),
            marks: Arc::default(),
            primary_terms: Arc::default(),
        };
        let (control, cluster) = Control::start(config, tasks).await?;
        let deadline = Instant::now() + within;
        let mark = in_time(authority.mark(&scope), deadline).await;
        let Some(mark) = mark.map_err(asked)? else {
            return Err(RepairError::NotDone(format!(
                "scope {scope} has no mark, so there is nothing to repair; \"pgpalisade status\" lists the scopes"
            )));
        };
        let work = match &mark.repair {
            Some(last) if last.to == to && mark.token == to => Work::Finish,
            _ => Work::Repair,
        };
        let sessions = in_time(authority.sessions(), deadline).await;
        let is_old = |session: &Registered| match work {
            Work::Repair => true,
            Work::Finish => session.rank() < mark.rank(),
        };
        let sessions = sessions.map_err(asked)?.into_iter();
        let sessions = sessions.filter(|(s, session)| *s == scope && is_old(session));
        Ok(Self {
            sessions: sessions.map(|(_, session)| session).collect(),
            scope,
            mark,
            to,
            cluster,
            work,
            driver: Driver::new(&control, &authority),
            options,
            within,
            _tasks: guard,
        })
    }

    /// Sets the mark, if that is still to be done, and ends the sessions.
    ///
    /// # Errors
    ///
    /// [`RepairError::NotDone`] if the mark has changed. [`RepairError::Incomplete`] if it was set, but not all
    /// sessions could be confirmed gone.
    pub async fn perform(self, by: &str, reason: &str) -> Result<RepairReport, RepairError> {
        let deadline = Instant::now() + self.within;
        let (mark, lower) = match self.work {
            Work::Repair => self.set_the_mark(by, reason, deadline).await?,
            Work::Finish => (self.mark.clone(), self.sessions.clone()),
        };
        let report = RepairReport {
            scope: self.scope.clone(),
            mark,
            sessions: lower.len(),
            work: self.work,
        };
        let ended = self.end_sessions(&report.mark, lower, deadline).await;
        // Even if sessions are left: an authority that forgets the repair must be found out.
        let witness = &self.driver.witness;
        let witnessed = match self.options.witness {
            WitnessMode::Auto => witness.record(&self.scope, &report.mark, deadline).await,
            WitnessMode::Off => Ok(()),
        };
        match ended.and(witnessed) {
            Ok(()) => Ok(report),
            Err(why) => Err(RepairError::Incomplete {
                report: Box::new(report),
                why,
            }),
        }
    }

    async fn set_the_mark(
        &self,
        by: &str,
        reason: &str,
        deadline: Instant,
    ) -> Result<(Mark, Vec<Registered>), RepairError> {
        // One record for all attempts shows the authority that they are one repair.
        let repair = Repair::new(now_us(), by, reason, self.mark.token, self.to);
        let request = RepairRequest {
            scope: self.scope.clone(),
            expected: self.mark.rank(),
            cluster: self.cluster,
            repair,
        };
        loop {
            match in_time(self.driver.authority.repair(&request), deadline).await {
                Ok(Repaired::Done { mark, lower }) => return Ok((mark, lower)),
                Ok(Repaired::Changed { mark }) => {
                    let now = mark.map(|mark| format!("{}, by {}", mark.rank(), mark.raised_by));
                    return Err(RepairError::NotDone(format!(
                        "the mark of scope {} has changed since it was read: it is {}; nothing was changed; run it \
                         again to see what it would do now",
                        self.scope,
                        now.as_deref().unwrap_or("none")
                    )));
                }
                Ok(Repaired::OtherCluster { .. }) => {
                    let why = "another cluster was put on record; nothing was changed; run it again on the primary";
                    return Err(RepairError::NotDone(why.to_owned()));
                }
                Err(DeclareError::Authority(AuthorityError::Unavailable(_)))
                    if Instant::now() + RETRY < deadline =>
                {
                    sleep(RETRY).await;
                }
                Err(error) => return Err(asked(error)),
            }
        }
    }

    async fn end_sessions(
        &self,
        mark: &Mark,
        lower: Vec<Registered>,
        deadline: Instant,
    ) -> Result<(), DeclareError> {
        let notes = Notes::to(&self.driver.authority, self.options.timeout);
        let barriers = Barriers::new(&self.driver, &self.options.meters, notes.clone());
        let barrier = Barrier {
            scope: self.scope.clone(),
            rank: mark.rank(),
            cluster: self.cluster,
        };
        let before = mark.repair.as_ref().map(|repair| repair.from);
        let record = TakeoverRecord::new(before, mark, TakeoverEnd::Complete);
        let passed = barriers.pass(&barrier, &lower, record, deadline).await;
        notes.flush().await;
        passed
    }
}

/// Error of a question to the authority that was not answered.
fn asked(error: DeclareError) -> RepairError {
    match error {
        DeclareError::Authority(error) => RepairError::Authority(error),
        other => RepairError::Authority(AuthorityError::Unavailable(other.to_string())),
    }
}
