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
    /// Waits for the witness only if this proxy has failed to write the mark.
    WitnessFound(Mark),
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
    } else {
        tasks.push(Task::KeepFound(record));
        tasks.push(Task::MeetPrepared(mark()));
        // The takeover was completed before, so its token is valid without the control connection.
        tasks.push(Task::WitnessFound(mark()));
    }
    tasks.push(Task::CheckIncarnation(mark()));
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

/// Since the authority's answer, the scope may have been repaired. The repair ends the session, which must not be told
/// that it may write.
pub(super) fn check_incarnation(mark: &Mark, newest: Option<Mark>) -> Result<(), DeclareError> {
    match newest {
        Some(now) if now.incarnation > mark.incarnation => Err(DeclareError::Stale { mark: now }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use pgpalisade_authority::{Incarnation, Scope};
    use pgpalisade_policies::{Numbers, TokenBounds};

    use super::super::machine::tests::{LATER, OURS, backends, mark, registered, token};
    use super::*;

    fn declaration() -> Declaration {
        let [backend] = backends(&[9])[..] else {
            unreachable!("one")
        };
        Declaration::new(&Scope::default(), token(5), backend, OURS, "a test")
    }

    fn terms(purpose: Purpose) -> Terms {
        let bounds = TokenBounds::default();
        Terms { purpose, bounds }
    }

    fn plan(declared: Declared, purpose: Purpose) -> Plan {
        after(declared, &declaration(), &terms(purpose), Some(token(4)))
    }

    /// Tasks in short.
    fn told(tasks: &[Task]) -> String {
        let word = |task: &Task| match task {
            Task::TellRaise(from, mark, sessions) => {
                assert_eq!((*from, mark.token), (Some(token(4)), token(5)));
                format!("raise-over-{sessions}")
            }
            Task::Note(_) => "note".to_owned(),
            Task::NoteCluster(cluster) => format!("cluster-{}", cluster.postmaster_us),
            Task::Keep(record) => format!("keep-{:?}", record.end),
            Task::KeepFound(record) => format!("found-{:?}", record.from),
            Task::Pass(barrier, lower, record) => {
                assert_eq!((barrier.rank, barrier.cluster), (mark(5).rank(), OURS));
                format!("pass-{}-{:?}", lower.len(), record.end)
            }
            Task::MeetPrepared(_) => "prepared".to_owned(),
            Task::ReportPrepared => "report".to_owned(),
            Task::Witness(_) => "witness".to_owned(),
            Task::WitnessFound(_) => "found".to_owned(),
            Task::WitnessLater(_) => "later".to_owned(),
            Task::CheckIncarnation(_) => "check".to_owned(),
        };
        tasks.iter().map(word).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_session_is_admitted_after_what_its_purpose_asks_for() {
        use DeclareOutcome::{Current, Raised};
        use Purpose::{Admit, Observe, ObserveUnregistered};
        let after_it = "prepared report witness check";
        // Purpose; outcome; lower sessions; tasks.
        for (purpose, outcome, lower, expect) in [
            (
                Admit,
                Raised,
                2,
                format!("raise-over-2 note pass-2-Complete {after_it}"),
            ),
            (
                Admit,
                Raised,
                0,
                format!("raise-over-0 note keep-Complete {after_it}"),
            ),
            (
                Admit,
                Current,
                1,
                format!("note pass-1-Complete {after_it}"),
            ),
            (
                Admit,
                Current,
                0,
                "note found-None prepared found check".to_owned(),
            ),
            (
                Observe,
                Raised,
                2,
                "raise-over-2 note keep-Observed later".to_owned(),
            ),
            (Observe, Current, 2, "note later".to_owned()),
            (
                ObserveUnregistered,
                Raised,
                2,
                "raise-over-2 note keep-Observed later".to_owned(),
            ),
        ] {
            let pids: Vec<i32> = (1..=lower).collect();
            let declared = Declared::Accepted {
                mark: mark(5),
                outcome,
                lower: registered(backends(&pids)),
            };
            let plan = plan(declared, purpose);
            assert_eq!(told(&plan.tasks), expect, "{purpose:?} {outcome:?} {lower}");
            assert_eq!(plan.answer.unwrap(), mark(5));
        }
    }

    #[test]
    fn a_refusal_tells_the_cache_and_admits_nobody() {
        let deposed = Cluster {
            timeline: 1,
            ..OURS
        };
        let foreign = Cluster {
            system_identifier: 9,
            ..OURS
        };
        let higher = || Some(mark(6));
        let mark_is_lower = |mark| Declared::MarkIsLower { mark };
        let elected = |mark| Declared::NotElected { leader: None, mark };
        let on_record = |recorded| Declared::OtherCluster { recorded };
        for (declared, tasks, error) in [
            (
                Declared::Stale { mark: mark(6) },
                "note",
                "the token is stale",
            ),
            (Declared::TooFar { mark: mark(1) }, "note", "out of bounds"),
            (mark_is_lower(higher()), "note", "below the one"),
            (mark_is_lower(None), "", "below the one"),
            (elected(higher()), "note", "not the number of the leader"),
            (elected(None), "", "not the number of the leader"),
            (on_record(Some(LATER)), "cluster-2", "is on cluster"),
            (on_record(Some(foreign)), "cluster-1", "is on cluster"),
            // It has accepted ours before.
            (on_record(Some(deposed)), "", "does not know the cluster"),
            (on_record(None), "", "does not know the cluster"),
        ] {
            let plan = plan(declared, Purpose::Admit);
            assert_eq!(told(&plan.tasks), tasks);
            let text = plan.answer.unwrap_err().to_string();
            assert!(text.contains(error), "{text}");
        }
    }

    #[test]
    fn the_authority_judges_by_the_terms() {
        use Purpose::{Admit, Observe, ObserveUnregistered};
        let own = declaration().backend;
        for (purpose, backend, if_stale) in [
            (Admit, own, IfStale::Refuse),
            (Observe, own, IfStale::Register),
            (ObserveUnregistered, NOBODY, IfStale::Refuse),
        ] {
            let asked = on_terms(declaration(), &terms(purpose), "us");
            assert_eq!((asked.backend, asked.if_stale), (backend, if_stale));
            assert_eq!(asked.by, "a test via us");
        }
        let numbers = |numbers| TokenBounds {
            max_step: Some(7),
            max_token: Some(8),
            numbers,
            ..TokenBounds::default()
        };
        for (bounds, max_step, election) in [
            (numbers(None), 7, None),
            // Only an issued number is at the mark already.
            (numbers(Some(Numbers::Issued)), 0, None),
            (numbers(Some(Numbers::Election("e".into()))), 7, Some("e")),
        ] {
            let purpose = Admit;
            let asked = on_terms(declaration(), &Terms { purpose, bounds }, "us");
            assert_eq!((asked.max_step, asked.max_token), (Some(max_step), Some(8)));
            assert_eq!(asked.election.as_deref(), election);
        }
    }

    #[test]
    fn a_scope_repaired_meanwhile_admits_nobody() {
        let repaired = Mark {
            incarnation: Incarnation::new(1),
            ..mark(1)
        };
        assert!(check_incarnation(&mark(5), Some(mark(6))).is_ok());
        assert!(check_incarnation(&mark(5), None).is_ok());
        assert!(check_incarnation(&repaired, Some(repaired.clone())).is_ok());
        let refused = check_incarnation(&mark(5), Some(repaired)).unwrap_err();
        assert!(matches!(refused, DeclareError::Stale { .. }), "{refused}");
    }
}
