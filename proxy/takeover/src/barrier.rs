//! The barrier: a takeover counts only after old sessions were ended and seen to be gone.

use std::collections::BTreeSet;
use std::time::Duration;

use pgpalisade_authority::{
    Backend, Cluster, Drained, Rank, Registered, Scope, TakeoverEnd, TakeoverRecord, TakeoverWork,
};

use super::control_error::ControlError;
use super::error::DeclareError;
use super::machine::{Event, Request, Step};
use super::sessions::Holdout;

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
pub(super) const RETRY: Duration = Duration::from_millis(20);

/// Identity of a barrier.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Barrier {
    pub(super) scope: Scope,
    pub(super) rank: Rank,
    /// Cluster on which the old sessions are ended.
    pub(super) cluster: Cluster,
}

/// Machine that ends the old sessions of a barrier and tells the authority, until that knows of no lower session.
/// Its times count from its begin.
#[derive(Debug)]
pub(super) struct Drain {
    pub(super) barrier: Barrier,
    within: Duration,
    old: Vec<Backend>,
    /// The old sessions that the last look has found.
    left: Vec<Backend>,
    why: String,
    /// Some of the sessions left, after they have taken long.
    holdouts: Vec<Holdout>,
    told_at: Duration,
    /// Looks since the last attempt began.
    looks: usize,
    examination: Examination,
    /// Transactions that were open in the old sessions.
    open: u64,
    work: TakeoverWork,
}

/// Whether it is found out what the sessions that are left do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Examination {
    Due,
    Done,
    /// Only for their names: the takeover has failed.
    Last,
}

impl Drain {
    pub(super) fn new(barrier: &Barrier, lower: &[Registered], within: Duration) -> Self {
        let old: Vec<Backend> = lower.iter().map(|r| r.backend).collect();
        Self {
            barrier: barrier.clone(),
            within,
            left: old.clone(),
            old,
            why: "the control connection has not answered yet".to_owned(),
            holdouts: Vec::new(),
            told_at: Duration::ZERO,
            looks: 0,
            examination: Examination::Due,
            open: 0,
            work: TakeoverWork::default(),
        }
    }

    pub(super) fn handle(&mut self, now: Duration, event: Event) -> Step {
        match event {
            Event::Begin if self.old.is_empty() => self.tell_authority(),
            Event::Begin => self.terminate(Duration::ZERO),
            Event::Terminated(open) => {
                self.work.transactions += open.saturating_sub(self.open);
                self.open = self.open.max(open);
                self.told_at = now;
                self.examination = Examination::Due;
                self.look()
            }
            Event::Alive(alive, cluster) => self.on_alive(now, alive, cluster),
            Event::Holdouts(holdouts) => {
                self.holdouts = holdouts;
                match self.examination {
                    Examination::Last => Step::End(Err(self.incomplete())),
                    Examination::Due | Examination::Done => self.look_again(now),
                }
            }
            Event::Drained(Drained::Left(more)) => {
                self.start_over(more);
                Step::ask(Request::Recorded)
            }
            Event::Recorded(recorded) => self.on_recorded(recorded),
            Event::Failed(DeclareError::Control(error)) => self.on_error(now, &error),
            Event::Drained(Drained::Complete) => Step::End(Ok(())),
            other => Step::End(Err(other.into_error())),
        }
    }

    fn on_alive(&mut self, now: Duration, alive: BTreeSet<Backend>, cluster: Cluster) -> Step {
        let ours = self.barrier.cluster;
        if cluster != ours {
            // Another server says nothing about these sessions.
            return self.on_error(now, &ControlError::Moved { ours, now: cluster });
        }
        self.left = alive.into_iter().collect();
        if self.left.is_empty() {
            return self.tell_authority();
        }
        self.why = "told to end, but still there".to_owned();
        if self.examination == Examination::Due && now >= self.told_at + LOOK_CLOSER {
            self.examination = Examination::Done;
            return Step::ask(Request::Holdouts(self.left.clone()));
        }
        self.look_again(now)
    }

    fn tell_authority(&mut self) -> Step {
        self.work.sessions += self.old.len() as u64;
        self.why = "the authority has not yet recorded that they are gone".to_owned();
        let Barrier { scope, rank, .. } = self.barrier.clone();
        let gone = std::mem::take(&mut self.old);
        Step::ask(Request::Drained(scope, rank, gone))
    }

    /// Sessions that have registered since. If they did so on another server, this one says nothing about them.
    fn start_over(&mut self, more: Vec<Registered>) {
        self.old = more.into_iter().map(|r| r.backend).collect();
        self.left = self.old.clone();
        self.open = 0;
        self.why = "the authority knows more old sessions".to_owned();
    }

    fn on_recorded(&mut self, recorded: Option<Cluster>) -> Step {
        let ours = self.barrier.cluster;
        match recorded {
            Some(recorded) if recorded != ours => {
                Step::End(Err(DeclareError::WrongCluster { ours, recorded }))
            }
            _ => self.terminate(RETRY),
        }
    }

    fn on_error(&mut self, now: Duration, error: &ControlError) -> Step {
        if self.examination == Examination::Last {
            return Step::End(Err(self.incomplete()));
        }
        // A query that the deadline cut short says nothing about what stood in the way until then.
        let is_cut = matches!(error, ControlError::Timeout) && now >= self.within;
        if !is_cut || self.holdouts().next().is_none() {
            self.why = error.to_string();
        }
        if error.is_not_permitted() {
            self.why += " (only a superuser control role can end an old session of a superuser)";
            self.examination = Examination::Last;
            return Step::ask(Request::Holdouts(self.left.clone()));
        }
        if matches!(error, ControlError::Moved { .. }) || now + RETRY >= self.within {
            return Step::End(Err(self.incomplete()));
        }
        self.terminate(RETRY)
    }

    fn terminate(&mut self, after: Duration) -> Step {
        self.looks = 0;
        Step::Ask(after, Request::Terminate(self.left.clone()))
    }

    fn look(&mut self) -> Step {
        let many = u32::try_from(self.left.len()).unwrap_or(u32::MAX);
        let many = PAUSE_PER_SESSION.saturating_mul(many).min(PAUSE_MAX);
        let pause = PAUSES.get(self.looks).copied().unwrap_or(LAST_PAUSE);
        self.looks += 1;
        Step::Ask(pause.max(many), Request::Alive(self.old.clone()))
    }

    fn look_again(&mut self, now: Duration) -> Step {
        if now < self.told_at + TELL_AGAIN {
            return self.look();
        }
        Step::ask(Request::Terminate(self.left.clone()))
    }

    /// Examined sessions that are still left.
    pub(super) fn holdouts(&self) -> impl Iterator<Item = &Holdout> {
        let is_left = |holdout: &&Holdout| self.left.contains(&holdout.backend);
        self.holdouts.iter().filter(is_left)
    }

    /// The error if no more time is left.
    pub(super) fn incomplete(&self) -> DeclareError {
        let mut why = self.why.clone();
        let mut before = ": ";
        for holdout in self.holdouts() {
            why.push_str(&format!("{before}{holdout}"));
            before = ", ";
        }
        DeclareError::Incomplete {
            scope: self.barrier.scope.clone(),
            token: self.barrier.rank.token,
            left: self.left.clone(),
            why,
        }
    }

    /// Work after this time.
    pub(super) fn work(&self, took: Duration) -> TakeoverWork {
        TakeoverWork {
            sessions: self.work.sessions + self.old.len().saturating_sub(self.left.len()) as u64,
            took_us: u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
            ..self.work
        }
    }
}

/// The record of a takeover that has ended so.
pub(super) fn ended(
    record: TakeoverRecord,
    result: &Result<(), DeclareError>,
    work: TakeoverWork,
) -> TakeoverRecord {
    let end = match result {
        Ok(()) => TakeoverEnd::Complete,
        Err(DeclareError::Incomplete { why, .. }) => TakeoverEnd::Incomplete(why.clone()),
        Err(error) => TakeoverEnd::Incomplete(error.to_string()),
    };
    record.ended(end, work)
}

#[cfg(test)]
mod tests {
    use pgpalisade_authority::{AuthorityError, Incarnation};
    use tokio_postgres::error::SqlState;

    use super::super::control_error::ServerError;
    use super::super::machine::tests::{LATER, OURS, backends, registered, token};
    use super::*;

    const WITHIN: u64 = 5000;

    fn drain(pids: &[i32]) -> Drain {
        let barrier = Barrier {
            scope: Scope::default(),
            rank: Rank {
                incarnation: Incarnation::FIRST,
                token: token(2),
            },
            cluster: OURS,
        };
        Drain::new(
            &barrier,
            &registered(backends(pids)),
            Duration::from_millis(WITHIN),
        )
    }

    fn alive(pids: &[i32]) -> Event {
        Event::Alive(backends(pids).into_iter().collect(), OURS)
    }

    fn failed(error: ControlError) -> Event {
        Event::Failed(error.into())
    }

    fn down() -> Event {
        failed(ControlError::Down("no route".into()))
    }

    fn holdouts(pids: &[i32]) -> Event {
        let named = |backend| Holdout {
            backend,
            user: "u".to_owned(),
            state: "active".to_owned(),
            since: "noon".to_owned(),
            waits_for: String::new(),
            query: Vec::new(),
        };
        Event::Holdouts(backends(pids).into_iter().map(named).collect())
    }

    /// A step in short: `20 ms, end 7 8`.
    fn told(step: Step) -> String {
        let (pause, request) = match step {
            Step::End(Ok(())) => return "complete".to_owned(),
            Step::End(Err(error)) => return error.to_string(),
            Step::Ask(pause, request) => (pause.as_millis(), request),
        };
        let (verb, backends) = match request {
            Request::Terminate(left) => ("end", left),
            Request::Alive(old) => ("look", old),
            Request::Holdouts(left) => ("examine", left),
            Request::Drained(_, _, gone) => ("gone", gone),
            Request::Recorded => ("recorded", Vec::new()),
            other => panic!("{other:?}"),
        };
        let pids = backends.iter().map(|b| format!(" {}", b.pid));
        let pause = if pause == 0 {
            String::new()
        } else {
            format!("{pause} ms, ")
        };
        format!("{pause}{verb}{}", pids.collect::<String>())
    }

    /// Feeds events at these times, in ms, and compares each step.
    fn run(old: &[i32], script: Vec<(u64, Event, &str)>) -> Drain {
        let mut drain = drain(old);
        let mut before = String::new();
        for (at, event, expect) in script {
            before += &format!("{at}: {event:?}\n");
            let step = drain.handle(Duration::from_millis(at), event);
            assert_eq!(told(step), expect, "after\n{before}");
        }
        drain
    }

    #[test]
    fn counts_once_every_session_is_seen_gone_and_recorded() {
        let drained = run(
            &[7, 8],
            vec![
                (0, Event::Begin, "end 7 8"),
                (1, Event::Terminated(1), "1 ms, look 7 8"),
                (3, alive(&[7, 8]), "2 ms, look 7 8"),
                (6, alive(&[8]), "5 ms, look 7 8"),
                (12, alive(&[]), "gone 7 8"),
                (14, Event::Drained(Drained::Complete), "complete"),
            ],
        );
        let work = drained.work(Duration::from_micros(14_500));
        let TakeoverWork {
            sessions,
            transactions,
            took_us,
        } = work;
        assert_eq!((sessions, transactions, took_us), (2, 1, 14_500));
    }

    #[test]
    fn looks_are_rarer_while_many_sessions_are_left() {
        let old: Vec<i32> = (1..=200).collect();
        let mut drain = drain(&old);
        for (left, pause) in [(200, 25), (100, 25), (60, 15), (20, 5), (1, 5)] {
            let step = drain.handle(Duration::ZERO, alive(&old[..left]));
            assert!(told(step).starts_with(&format!("{pause} ms, look 1 2 ")));
        }
    }

    #[test]
    fn sessions_that_stay_are_examined_once_and_told_again() {
        run(
            &[7, 8],
            vec![
                (0, Event::Begin, "end 7 8"),
                (10, Event::Terminated(0), "1 ms, look 7 8"),
                (209, alive(&[8]), "2 ms, look 7 8"),
                (210, alive(&[8]), "examine 8"),
                (211, holdouts(&[8]), "5 ms, look 7 8"),
                (500, alive(&[8]), "5 ms, look 7 8"),
                (1010, alive(&[8]), "end 8"),
                (1020, Event::Terminated(1), "5 ms, look 7 8"),
                (1219, alive(&[8]), "5 ms, look 7 8"),
                (1220, alive(&[8]), "examine 8"),
                (2100, holdouts(&[8]), "end 8"),
            ],
        );
    }

    #[test]
    fn sessions_registered_since_are_ended_too() {
        let left = || Event::Drained(Drained::Left(registered(backends(&[9]))));
        let to_left = || {
            vec![
                (0, Event::Begin, "end 7"),
                (1, Event::Terminated(1), "1 ms, look 7"),
                (2, alive(&[]), "gone 7"),
                (3, left(), "recorded"),
            ]
        };
        for recorded in [Some(OURS), None] {
            let mut script = to_left();
            script.extend([
                (4, Event::Recorded(recorded), "20 ms, end 9"),
                (5, Event::Terminated(1), "1 ms, look 9"),
                (6, alive(&[]), "gone 9"),
                (7, Event::Drained(Drained::Complete), "complete"),
            ]);
            let work = run(&[7], script).work(Duration::ZERO);
            assert_eq!((work.sessions, work.transactions), (2, 2));
        }
        // They may be on that other server, which the control connection does not see.
        let mut drain = run(&[7], to_left());
        let step = drain.handle(Duration::ZERO, Event::Recorded(Some(LATER)));
        assert!(matches!(
            step,
            Step::End(Err(DeclareError::WrongCluster { .. }))
        ));
    }

    #[test]
    fn errors_are_retried_as_long_as_there_is_time() {
        let text = |left, why| {
            format!(
                "the takeover of scope default with token 2 is not complete, {left} old sessions remain: {why}"
            )
        };
        let down_text = text(2, "the control connection is down: no route");
        let mut drain = run(
            &[7, 8],
            vec![
                (0, Event::Begin, "end 7 8"),
                (1, down(), "20 ms, end 7 8"),
                (30, Event::Terminated(1), "1 ms, look 7 8"),
                (40, down(), "20 ms, end 7 8"),
                // The same transaction, and the short pauses once more.
                (60, Event::Terminated(1), "1 ms, look 7 8"),
                (WITHIN - 21, down(), "20 ms, end 7 8"),
                (WITHIN - 20, down(), &down_text),
            ],
        );
        let work = drain.work(Duration::ZERO);
        assert_eq!((work.sessions, work.transactions), (0, 1));
        // Only a connection to the barrier's own server says anything.
        let moved = Event::Alive(BTreeSet::new(), LATER);
        let step = told(drain.handle(Duration::ZERO, moved));
        assert!(
            step.contains("the control connection now leads to"),
            "{step}"
        );
        let error = ServerError {
            text: "must be a member".into(),
            code: Some(SqlState::INSUFFICIENT_PRIVILEGE),
            may_pass: false,
        };
        let denied = || failed(ControlError::Server(error.clone()));
        for (answer, ends) in [
            (
                holdouts(&[8]),
                "of a superuser): server process 8 (user u, active since noon)",
            ),
            // It may not look, either.
            (
                denied(),
                "must be a member (only a superuser control role can end an old session of a superuser)",
            ),
        ] {
            let mut drain = run(&[7, 8], vec![(0, Event::Begin, "end 7 8")]);
            assert_eq!(told(drain.handle(Duration::ZERO, denied())), "examine 7 8");
            let step = told(drain.handle(Duration::ZERO, answer));
            assert!(step.ends_with(ends), "{step}");
        }
    }

    #[test]
    fn the_reason_names_the_sessions_that_are_left() {
        let named = "the takeover of scope default with token 2 is not complete, 1 old session remains: \
            told to end, but still there: server process 8 (user u, active since noon)";
        let late = || failed(ControlError::Timeout);
        let examined = || {
            vec![
                (0, Event::Begin, "end 7 8"),
                (1, Event::Terminated(0), "1 ms, look 7 8"),
                (300, alive(&[7, 8]), "examine 7 8"),
                (301, holdouts(&[7, 8]), "2 ms, look 7 8"),
                (302, alive(&[8]), "5 ms, look 7 8"),
            ]
        };
        let mut script = examined();
        script.push((WITHIN, late(), named));
        assert_eq!(run(&[7, 8], script).work(Duration::ZERO).sessions, 1);
        // An earlier timeout says more than that.
        let mut script = examined();
        script.push((WITHIN - 100, late(), "20 ms, end 8"));
        let why = run(&[7, 8], script).incomplete().to_string();
        assert!(
            why.contains("did not answer in time: server process 8"),
            "{why}"
        );
    }

    #[test]
    fn what_cannot_be_understood_is_not_passed() {
        let unavailable = || AuthorityError::Unavailable("gone".to_owned());
        for (event, expect) in [
            (Event::Done, "unexpected answer: Done"),
            (Event::Failed(unavailable().into()), "gone"),
        ] {
            let mut drain = drain(&[7]);
            let step = drain.handle(Duration::ZERO, event);
            assert!(matches!(step, Step::End(Err(_))), "{step:?}");
            assert!(told(step).contains(expect));
        }
    }
}
