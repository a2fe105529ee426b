//! The barrier: a takeover counts only after old sessions were ended and seen to be gone.
//!
//! Each scope and rank has one barrier in this proxy. Other declarations of the same token wait for it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pgpalisade_authority::{
    Authority, Backend, Cluster, Drained, Rank, Registered, Scope, TakeoverEnd, TakeoverRecord,
    TakeoverWork,
};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_postgres::error::SqlState;

use super::control::Control;
use super::error::{ControlError, DeclareError};
use super::history::Notes;
use super::meters::{Meters, millis};
use super::sessions::Holdout;
use super::{in_time, sessions};

/// Pauses before the first looks, and the minimum before later ones.
const PAUSES: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(2)];
const LAST_PAUSE: Duration = Duration::from_millis(5);
/// A server process takes about a millisecond to end, and looking takes the processor from those that end. So the
/// pause grows with the number of sessions left, up to a limit.
const PAUSE_PER_SESSION: Duration = Duration::from_micros(250);
const PAUSE_MAX: Duration = Duration::from_millis(25);
/// After this time it is found out what the old sessions do.
const LOOK_CLOSER: Duration = Duration::from_millis(200);
/// After this time the old sessions are told to end again.
const TELL_AGAIN: Duration = Duration::from_secs(1);
/// Pause after an error of the control connection.
const RETRY: Duration = Duration::from_millis(20);
/// Limit of the time between a barrier's deadline and its end. Its declaration waits so long, and so has the reason
/// that the log has.
const LAST_WORD: Duration = Duration::from_millis(250);

/// The running barriers of this proxy.
pub(super) struct Barriers {
    control: Control,
    authority: Arc<dyn Authority>,
    meters: Meters,
    notes: Notes,
    running: Mutex<HashMap<Barrier, watch::Receiver<Progress>>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Barrier {
    pub(super) scope: Scope,
    pub(super) rank: Rank,
    /// Cluster on which the old sessions are ended.
    pub(super) cluster: Cluster,
}

#[derive(Debug, Clone)]
enum Progress {
    Running {
        left: Vec<Backend>,
        why: String,
        /// Some of the sessions left, after they have taken long.
        holdouts: Vec<Holdout>,
    },
    Done(Result<(), DeclareError>),
}

/// The barrier that a declaration waits for.
enum Wait {
    Own(watch::Receiver<Progress>),
    Other(watch::Receiver<Progress>),
}

/// A running barrier.
struct Running {
    barrier: Barrier,
    deadline: Instant,
    progress: watch::Sender<Progress>,
}

impl Barriers {
    pub(super) fn new(
        control: &Control,
        authority: &Arc<dyn Authority>,
        meters: &Meters,
        notes: Notes,
    ) -> Arc<Self> {
        Arc::new(Self {
            control: control.clone(),
            authority: Arc::clone(authority),
            meters: meters.clone(),
            notes,
            running: Mutex::default(),
        })
    }

    pub(super) const fn notes(&self) -> &Notes {
        &self.notes
    }

    /// Returns after every session of `lower` is gone and the authority knows it. Keeps the record, with the work
    /// done.
    pub(super) async fn pass(
        self: &Arc<Self>,
        barrier: &Barrier,
        lower: &[Registered],
        record: TakeoverRecord,
        deadline: Instant,
    ) -> Result<(), DeclareError> {
        if lower.is_empty() {
            self.notes.push(&barrier.scope, record);
            return Ok(());
        }
        loop {
            let wait = self.join(barrier, lower, &record, deadline);
            let (is_own, mut progress) = match wait {
                Wait::Own(progress) => (true, progress),
                Wait::Other(progress) => (false, progress),
            };
            let done = progress.wait_for(|p| matches!(p, Progress::Done(_)));
            let until = if is_own {
                deadline + LAST_WORD
            } else {
                deadline
            };
            let ended = timeout_at(until, done)
                .await
                .map(|seen| seen.map(|p| p.clone()));
            let result = match ended {
                Ok(Ok(Progress::Done(result))) => result,
                // Out of time, or the barrier's task has died.
                Ok(_) | Err(_) => Err(incomplete(barrier, &progress.borrow())),
            };
            // The barrier of another declaration may have had less time than this one has.
            if result.is_ok() || is_own || Instant::now() + RETRY >= deadline {
                return result;
            }
            sleep(RETRY).await;
        }
    }

    fn join(
        self: &Arc<Self>,
        barrier: &Barrier,
        lower: &[Registered],
        record: &TakeoverRecord,
        deadline: Instant,
    ) -> Wait {
        let mut running = self.running.lock();
        if let Some(progress) = running.get(barrier)
            && progress.has_changed().is_ok()
        {
            return Wait::Other(progress.clone());
        }
        let left: Vec<Backend> = lower.iter().map(|r| r.backend).collect();
        let why = "the control connection has not answered yet".to_owned();
        let (sender, progress) = watch::channel(Progress::Running {
            left: left.clone(),
            why,
            holdouts: Vec::new(),
        });
        running.insert(barrier.clone(), progress.clone());
        drop(running);
        let running = Running {
            barrier: barrier.clone(),
            deadline,
            progress: sender,
        };
        let (barriers, record) = (Arc::clone(self), record.clone());
        tokio::spawn(async move {
            let (told, began) = (left.len(), Instant::now());
            let mut work = TakeoverWork::default();
            let result = barriers.drain(&running, left, &mut work).await;
            work.took_us = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
            if let Err(error) = &result {
                barriers.meters.incomplete.inc();
                running.log(error);
                let left = running.progress.borrow().left();
                work.sessions = work.sessions.max(told.saturating_sub(left) as u64);
            }
            barriers.running.lock().remove(&running.barrier);
            let end = result
                .as_ref()
                .map_or_else(incompletely, |()| TakeoverEnd::Complete);
            let record = record.ended(end, work);
            barriers.notes.push(&running.barrier.scope, record);
            running.progress.send_replace(Progress::Done(result));
        });
        Wait::Own(progress)
    }

    /// Ends the sessions and tells the authority, until it knows of no lower session.
    async fn drain(
        &self,
        running: &Running,
        old: Vec<Backend>,
        work: &mut TakeoverWork,
    ) -> Result<(), DeclareError> {
        let Barrier { scope, rank, .. } = &running.barrier;
        let deadline = running.deadline;
        let began = Instant::now();
        let mut left = old;
        loop {
            let mut open = 0;
            let ended = self.end(running, &left, &mut open).await;
            work.transactions += open;
            ended?;
            work.sessions += left.len() as u64;
            let told = self.authority.drained(scope, *rank, &left);
            match in_time(told, deadline).await? {
                Drained::Complete => {
                    let (token, took) = (rank.token.get(), began.elapsed());
                    self.meters.completed.observe(took.as_secs_f64());
                    let (ended, transactions) = (work.sessions, work.transactions);
                    self.meters.sessions_ended.inc_by(ended);
                    let took_ms = millis(took);
                    tracing::info!(%scope, token, ended, transactions, took_ms, "the takeover is complete");
                    return Ok(());
                }
                Drained::Left(more) => left = more.iter().map(|r| r.backend).collect(),
            }
            // These sessions have registered since. If they did so on another server, this one says nothing about
            // them.
            let (ours, recorded) = (running.barrier.cluster, self.authority.cluster());
            if let Some(recorded) = in_time(recorded, deadline).await?
                && recorded != ours
            {
                return Err(DeclareError::WrongCluster { ours, recorded });
            }
            running.note(&left, "the authority knows more old sessions");
            sleep(RETRY).await;
        }
    }

    /// Returns after none of the sessions is left, or with what stood in the way.
    async fn end(
        &self,
        running: &Running,
        old: &[Backend],
        open: &mut u64,
    ) -> Result<(), DeclareError> {
        loop {
            let error = match self.try_end(running, old, open).await {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            let refused = is_refused(&error);
            let moved = matches!(error, ControlError::Moved { .. });
            let hint = if refused {
                " (only a superuser control role can end an old session of a superuser)"
            } else {
                ""
            };
            // A query that the deadline cut short says nothing about what stood in the way until then.
            let is_cut =
                matches!(error, ControlError::Timeout) && Instant::now() >= running.deadline;
            if !is_cut || running.progress.borrow().holdouts().is_empty() {
                running.why(format!("{error}{hint}"));
            }
            if refused || moved || Instant::now() + RETRY >= running.deadline {
                let progress = running.progress.borrow();
                return Err(incomplete(&running.barrier, &progress));
            }
            sleep(RETRY).await;
        }
    }

    /// Makes one attempt. Notes how many transactions were open when the sessions were told to end.
    async fn try_end(
        &self,
        running: &Running,
        old: &[Backend],
        open: &mut u64,
    ) -> Result<(), ControlError> {
        let mut pauses = PAUSES.into_iter();
        let mut left = old.to_vec();
        loop {
            let found = sessions::terminate(&self.control, &left, running.deadline).await?;
            *open = found.max(*open);
            let told = Instant::now();
            let mut look_closer = Some(LOOK_CLOSER);
            while told.elapsed() < TELL_AGAIN {
                let many = PAUSE_PER_SESSION
                    .saturating_mul(u32::try_from(left.len()).unwrap_or(u32::MAX))
                    .min(PAUSE_MAX);
                sleep(pauses.next().unwrap_or(LAST_PAUSE).max(many)).await;
                let looked = sessions::alive(&self.control, old, running.deadline).await?;
                let (alive, now) = looked;
                let ours = running.barrier.cluster;
                if now != ours {
                    return Err(ControlError::Moved { ours, now });
                }
                left = alive.into_iter().collect();
                if left.is_empty() {
                    return Ok(());
                }
                running.note(&left, "told to end, but still there");
                if look_closer.is_some_and(|after| told.elapsed() >= after) {
                    look_closer = None;
                    let seen = sessions::holdouts(&self.control, &left, running.deadline).await?;
                    running.name(seen);
                }
            }
        }
    }
}

impl Running {
    fn note(&self, left: &[Backend], why: &str) {
        self.progress.send_modify(|progress| {
            if let Progress::Running {
                left: l, why: w, ..
            } = progress
            {
                *l = left.to_vec();
                *w = why.to_owned();
            }
        });
    }

    fn name(&self, seen: Vec<Holdout>) {
        self.progress.send_modify(|progress| {
            if let Progress::Running { holdouts, .. } = progress {
                *holdouts = seen;
            }
        });
    }

    fn log(&self, error: &DeclareError) {
        let Barrier { scope, rank, .. } = &self.barrier;
        tracing::warn!(%scope, token = rank.token.get(), %error, "the takeover is not complete");
        for holdout in self.progress.borrow().holdouts() {
            holdout.log(scope, rank.token);
        }
    }

    fn why(&self, text: String) {
        self.progress.send_modify(|progress| {
            if let Progress::Running { why, .. } = progress {
                *why = text;
            }
        });
    }
}

impl Progress {
    /// Number of sessions left.
    fn left(&self) -> usize {
        match self {
            Self::Running { left, .. } => left.len(),
            Self::Done(_) => 0,
        }
    }

    /// Examined sessions that are still left.
    fn holdouts(&self) -> Vec<&Holdout> {
        match self {
            Self::Running { left, holdouts, .. } => {
                let still = |holdout: &&Holdout| left.contains(&holdout.backend);
                holdouts.iter().filter(still).collect()
            }
            Self::Done(_) => Vec::new(),
        }
    }
}

/// The end of a takeover that was given up, for its record.
fn incompletely(error: &DeclareError) -> TakeoverEnd {
    TakeoverEnd::Incomplete(match error {
        DeclareError::Incomplete { why, .. } => why.clone(),
        error => error.to_string(),
    })
}

fn incomplete(barrier: &Barrier, progress: &Progress) -> DeclareError {
    let (left, mut why) = match progress {
        Progress::Running { left, why, .. } => (left.clone(), why.clone()),
        Progress::Done(_) => (Vec::new(), "the answer came too late".to_owned()),
    };
    let mut before = ": ";
    for holdout in progress.holdouts() {
        why.push_str(&format!("{before}{holdout}"));
        before = ", ";
    }
    DeclareError::Incomplete {
        scope: barrier.scope.clone(),
        token: barrier.rank.token,
        left,
        why,
    }
}

/// Whether the server says that the control role may not end one of the sessions.
fn is_refused(error: &ControlError) -> bool {
    match error {
        ControlError::Server(error) => error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE),
        _ => false,
    }
}
