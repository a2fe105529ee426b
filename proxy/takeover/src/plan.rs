//! What follows the authority's answer to a declaration, up to a session that may write.

use pgpalisade_authority::{
    AuthorityError, Backend, Cluster, Declaration, DeclareOutcome, Declared, IfStale, Mark,
    Registered, TakeoverEnd, TakeoverRecord, Token,
};
use pgpalisade_fence::{Purpose, Terms};

use super::barrier::Barrier;
use super::bounds;
use super::error::DeclareError;

/// Placeholder on the register for sessions that takeovers never end. No server process has this id, so a search
/// finds it gone.
pub(super) const NOBODY: Backend = Backend {
    pid: 0,
    started_us: 0,
};

/// One thing to do. If it fails, the rest is left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Task {
    /// Raised from a mark that was known before, with this number of sessions to end.
    TellRaise(Option<Token>, Mark, usize),
    /// From here on this proxy refuses its sessions below the mark.
    Note(Mark),
    NoteCluster(Cluster),
    Keep(TakeoverRecord),
    /// Unless this proxy has kept it before.
    KeepFound(TakeoverRecord),
    Pass(Barrier, Vec<Registered>, TakeoverRecord),
    /// Apply the policy about prepared transactions older than the mark.
    MeetPrepared(Mark),
    /// Log the prepared transactions that the takeover leaves.
    ReportPrepared,
    Witness(Mark),
    WitnessLater(Mark),
    CheckIncarnation(Mark),
}

/// Tasks in their order, and the answer after them.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) tasks: Vec<Task>,
    pub(super) answer: Result<Mark, DeclareError>,
}

/// The declaration as the authority must judge it.
pub(super) fn on_terms(
    mut declaration: Declaration,
    terms: &Terms,
    declared_by: &str,
) -> Declaration {
    let bounds = &terms.bounds;
    if terms.purpose == Purpose::ObserveUnregistered {
        declaration.backend = NOBODY;
    }
    declaration.by = format!("{} via {declared_by}", declaration.by);
    declaration.max_step = if bounds::has_to_be_issued(declaration.claim, bounds) {
        Some(0)
    } else {
        bounds.max_step
    };
    declaration.max_token = bounds.max_token;
    // A stale session that is only observed continues, and a takeover that is enforced must be able to find it.
    declaration.if_stale = match terms.purpose {
        Purpose::Observe => IfStale::Register,
        Purpose::Admit | Purpose::ObserveUnregistered => IfStale::Refuse,
    };
    declaration.election = bounds.election().cloned();
    declaration
}

/// Plan after an answer. `before` is the mark known when the authority was asked.
pub(super) fn after(
    declared: Declared,
    declaration: &Declaration,
    terms: &Terms,
    before: Option<Token>,
) -> Plan {
    let (mark, error) = match declared {
        Declared::Accepted {
            mark,
            outcome,
            lower,
        } => {
            let from = before.filter(|_| outcome == DeclareOutcome::Raised);
            let tasks = on_accepted(declaration, terms.purpose, (from, &mark, outcome), lower);
            let answer = Ok(mark);
            return Plan { tasks, answer };
        }
        Declared::OtherCluster { recorded } => {
            return on_other_cluster(declaration.cluster, recorded);
        }
        Declared::Stale { mark } => (Some(mark.clone()), DeclareError::Stale { mark }),
        Declared::TooFar { mark } => {
            let error = bounds::too_far(mark.clone(), declaration.claim, &terms.bounds);
            (Some(mark), error)
        }
        Declared::MarkIsLower { mark } => (mark.clone(), DeclareError::MarkIsLower { mark }),
        Declared::NotElected { leader, mark } => {
            let (known, election) = (mark.clone(), declaration.election.clone());
            let error = DeclareError::NotElected {
                election: election.unwrap_or_default(),
                leader,
                mark,
            };
            (known, error)
        }
    };
    Plan {
        tasks: mark.map(Task::Note).into_iter().collect(),
        answer: Err(error),
    }
}

/// Ends the lower sessions, if that is the purpose.
fn on_accepted(
    declaration: &Declaration,
    purpose: Purpose,
    (from, mark, outcome): (Option<Token>, &Mark, DeclareOutcome),
    lower: Vec<Registered>,
) -> Vec<Task> {
    let is_raised = outcome == DeclareOutcome::Raised;
    let record = |end| TakeoverRecord::new(from, mark, end);
    let mark = || mark.clone();
    let mut tasks = Vec::new();
    if is_raised {
        tasks.push(Task::TellRaise(from, mark(), lower.len()));
    }
    tasks.push(Task::Note(mark()));
    if purpose != Purpose::Admit {
        tasks.extend(is_raised.then(|| Task::Keep(record(TakeoverEnd::Observed))));
        tasks.push(Task::WitnessLater(mark()));
        return tasks;
    }
    let record = record(TakeoverEnd::Complete);
    if is_raised || !lower.is_empty() {
        let barrier = Barrier {
            scope: declaration.scope.clone(),
            rank: mark().rank(),
            cluster: declaration.cluster,
        };
        tasks.push(if lower.is_empty() {
            Task::Keep(record)
        } else {
            Task::Pass(barrier, lower, record)
        });
        tasks.push(Task::MeetPrepared(mark()));
        tasks.push(Task::ReportPrepared);
        tasks.push(Task::Witness(mark()));
        tasks.push(Task::CheckIncarnation(mark()));
    } else {
        tasks.push(Task::KeepFound(record));
        tasks.push(Task::MeetPrepared(mark()));
        // The takeover was completed before, so its token is valid without the control connection.
        tasks.push(Task::WitnessLater(mark()));
    }
    tasks
}

/// The authority had accepted the session's cluster before. So the cluster is deposed, or the authority has forgotten
/// it.
fn on_other_cluster(ours: Cluster, recorded: Option<Cluster>) -> Plan {
    let is_same = |other: Cluster| other.system_identifier == ours.system_identifier;
    match recorded {
        Some(recorded) if recorded.follows(&ours) || !is_same(recorded) => Plan {
            tasks: vec![Task::NoteCluster(recorded)],
            answer: Err(DeclareError::WrongCluster { ours, recorded }),
        },
        _ => {
            let why = "it does not know the cluster on record; stop all proxies of this cluster and run \
                \"pgpalisade recover\"";
            Plan {
                tasks: Vec::new(),
                answer: Err(AuthorityError::WentBack(why.to_owned()).into()),
            }
        }
    }
}

/// While the barrier ran, the scope may have been repaired. The repair ends the session, which must not be told that
/// it may write.
pub(super) fn check_incarnation(mark: &Mark, newest: Option<Mark>) -> Result<(), DeclareError> {
    match newest {
        Some(now) if now.incarnation > mark.incarnation => Err(DeclareError::Stale { mark: now }),
        _ => Ok(()),
    }
}
