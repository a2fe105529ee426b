//! What the proxies do: the shipped machines, and a driver for them with the clock of the run.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use pgpalisade_authority::{
    AuthorityError, Backend, Cluster, Declaration, DeclareOutcome, Declared, Drained, Mark,
    Registered, Scope,
};
use pgpalisade_fence::{Purpose, Terms};

use super::barrier::{Barrier, Drain, RETRY};
use super::epoch::Raise;
use super::error::DeclareError;
use super::guards::Guard;
use super::machine::{Event, Request, Step};
use super::plan::{self, Task};
use super::promises::OBSERVED_ENDED;
use super::reaper::Round;
use super::requests::Target;
use super::weather::Stage;
use super::world::{Delivery, World};

/// Time for a declaration, and for each step in the background.
pub(super) const WITHIN: Duration = Duration::from_secs(2);
/// Pause before a release is repeated.
const RELEASE_AGAIN: Duration = Duration::from_millis(500);

pub(super) struct Call {
    pub(super) proxy: usize,
    began: Duration,
    pub(super) deadline: Duration,
    /// The request whose answer it waits for.
    pub(super) asked: Option<(u64, Target)>,
    pub(super) has_told: bool,
    /// What it would have seen before its first request. Only without a guard.
    early: Option<(BTreeSet<Backend>, Option<Cluster>)>,
    pub(super) work: Work,
}

pub(super) enum Work {
    Reap(Round),
    Raise(Raise<'static>),
    Declare(Box<Declaring>),
    Drain(Box<Drain>, For),
    Release(Backend),
    Witness(Scope, Mark),
    /// `Confirmer`: looks up a scope in which the cache has refused a token.
    Confirm(Scope),
}

/// Beneficiaries of a barrier.
pub(super) enum For {
    /// These calls.
    Calls(Vec<u64>),
    /// A repair, under the policy of this number.
    Repair(Mark, u64),
}

pub(super) struct Declaring {
    pub(super) session: u64,
    pub(super) at: usize,
    pub(super) declaration: Declaration,
    pub(super) terms: Terms,
    /// Number of the policy.
    pub(super) policy: u64,
    pub(super) tasks: VecDeque<Task>,
    pub(super) answer: Option<Result<Mark, DeclareError>>,
    /// The barrier that it passes, and the call that does it.
    pub(super) barrier: Option<(Barrier, Vec<Registered>, u64)>,
}

impl World {
    pub(super) fn call(&mut self, proxy: usize, work: Work) {
        self.call_until(self.now + WITHIN, proxy, work);
    }

    fn call_until(&mut self, deadline: Duration, proxy: usize, work: Work) -> u64 {
        let id = self.number();
        let early = self.proxies[proxy].control.map(|server| {
            let alive = self.servers.on(server).map(|(backend, _)| *backend);
            (alive.collect(), self.authority.now.cluster)
        });
        let is_early = [Guard::RecordsThenLook, Guard::PostmasterAfterRecords];
        let is_early = self.out.is_some_and(|out| is_early.contains(&out));
        let call = Call {
            proxy,
            began: self.now,
            deadline,
            asked: None,
            has_told: false,
            early: early.filter(|_| is_early),
            work,
        };
        self.calls.insert(id, call);
        self.later(deadline.saturating_sub(self.now), Delivery::Deadline(id));
        self.feed(id, Event::Begin);
        id
    }

    pub(super) fn feed(&mut self, id: u64, event: Event) {
        let Some(mut call) = self.calls.remove(&id) else {
            return;
        };
        let event = self.without_guard(&call, event);
        let since = self.now - call.began;
        let step = match &mut call.work {
            Work::Reap(round) => round.handle(event),
            Work::Raise(raise) => raise.handle(event),
            Work::Drain(drain, _) => drain.handle(since, event),
            Work::Release(backend) => match event {
                Event::Begin => Step::ask(Request::Forget(vec![*backend])),
                Event::Done => Step::End(Ok(())),
                other => Step::End(Err(other.into_error())),
            },
            Work::Witness(scope, mark) => match event {
                Event::Begin => Step::ask(Request::Witness(scope.clone(), mark.clone())),
                _ => Step::End(Ok(())),
            },
            Work::Confirm(scope) => match event {
                Event::Begin => Step::ask(Request::Mark(scope.clone())),
                Event::Mark(Some(mark)) => {
                    self.proxies[call.proxy].marks.note(scope, &mark);
                    Step::End(Ok(()))
                }
                _ => Step::End(Ok(())),
            },
            Work::Declare(declaring) => match event {
                Event::Begin => Step::ask(Request::Declare(declaring.declaration.clone())),
                Event::Declared(declared) => {
                    self.plan(declaring, declared);
                    return self.go_on(id, call);
                }
                Event::Done => return self.go_on(id, call),
                other => Step::End(Err(other.into_error())),
            },
        };
        match step {
            Step::Ask(pause, request) => {
                // The driver ends a pause at the deadline.
                let pause = pause.min(call.deadline.saturating_sub(self.now));
                self.calls.insert(id, call);
                self.later(pause, Delivery::Send(id, request));
            }
            Step::End(end) => self.ended(call, end),
        }
    }

    /// The event as it would be without a guard of the machine.
    fn without_guard(&self, call: &Call, event: Event) -> Event {
        let Some(out) = self.out else { return event };
        match (out, &call.work, event) {
            (Guard::WaitUntilGone, Work::Drain(..), Event::Alive(_, cluster)) => {
                Event::Alive(BTreeSet::new(), cluster)
            }
            (Guard::BarrierStays, Work::Drain(drain, _), Event::Alive(alive, _)) => {
                Event::Alive(alive, drain.barrier.cluster)
            }
            (Guard::EndsMore, _, Event::Drained(_)) => Event::Drained(Drained::Complete),
            (Guard::ReaperAsksForPostmaster, Work::Reap(_), Event::Recorded(_)) => {
                Event::Recorded(None)
            }
            (Guard::RecordsThenLook, Work::Reap(_), Event::Alive(now, cluster)) => {
                let early = call.early.as_ref().map(|(alive, _)| alive.clone());
                Event::Alive(early.unwrap_or(now), cluster)
            }
            (Guard::PostmasterAfterRecords, Work::Reap(_), Event::Recorded(now)) => {
                let early = call.early.as_ref().map(|(_, recorded)| *recorded);
                Event::Recorded(early.unwrap_or(now))
            }
            (
                Guard::JoinersWait,
                _,
                Event::Declared(Declared::Accepted {
                    mark,
                    outcome: outcome @ DeclareOutcome::Current,
                    ..
                }),
            ) => {
                let lower = Vec::new();
                Event::Declared(Declared::Accepted {
                    mark,
                    outcome,
                    lower,
                })
            }
            (_, _, event) => event,
        }
    }

    fn plan(&self, declaring: &mut Declaring, declared: Declared) {
        let mut terms = declaring.terms.clone();
        if self.out == Some(Guard::ObserveEndsNobody) {
            terms.purpose = Purpose::Admit;
        }
        let plan = plan::after(declared, &declaring.declaration, &terms, None);
        declaring.tasks = plan.tasks.into();
        declaring.answer = Some(plan.answer);
    }

    /// Carries out the tasks of a declaration, until one takes time.
    fn go_on(&mut self, id: u64, mut call: Call) {
        let Work::Declare(declaring) = &mut call.work else {
            return;
        };
        let (proxy, scope) = (call.proxy, declaring.declaration.scope.clone());
        while let Some(task) = declaring.tasks.pop_front() {
            let marks = &self.proxies[proxy].marks;
            match task {
                Task::Note(_) if self.out == Some(Guard::CacheRisesFirst) => {}
                Task::Note(mark) => marks.note(&scope, &mark),
                Task::NoteCluster(recorded) => self.on_cluster(proxy, recorded),
                Task::Pass(..) if declaring.terms.purpose != Purpose::Admit => {
                    return self.breaks(OBSERVED_ENDED);
                }
                Task::Pass(barrier, lower, _) => return self.pass(id, call, barrier, lower),
                Task::Witness(mark) if self.keeps(Guard::WitnessFirst) => {
                    self.calls.insert(id, call);
                    let write = Request::Witness(scope, mark);
                    return self.later(Duration::ZERO, Delivery::Send(id, write));
                }
                Task::Witness(mark) => self.truth.witness(&scope, mark.rank()),
                Task::WitnessFound(mark) | Task::WitnessLater(mark) => {
                    self.call(proxy, Work::Witness(scope.clone(), mark));
                }
                Task::CheckIncarnation(mark) if self.keeps(Guard::IncarnationChecked) => {
                    let newest = marks.mark(&scope).mark_detail();
                    if let Err(error) = plan::check_incarnation(&mark, newest) {
                        return self.ended(call, Err(error));
                    }
                }
                _ => {}
            }
        }
        self.ended(call, Ok(()));
    }

    /// Waits for the barrier that runs, or begins one.
    fn pass(&mut self, id: u64, mut call: Call, barrier: Barrier, lower: Vec<Registered>) {
        let Work::Declare(declaring) = &mut call.work else {
            return;
        };
        let (proxy, within) = (call.proxy, call.deadline.saturating_sub(self.now));
        let running = self.proxies[proxy].barriers.get(&barrier).copied();
        let running = running.and_then(|drain| Some((drain, self.calls.get_mut(&drain)?)));
        if let Some((
            drain,
            Call {
                work: Work::Drain(_, For::Calls(waiting)),
                ..
            },
        )) = running
        {
            waiting.push(id);
            declaring.barrier = Some((barrier, lower, drain));
            self.calls.insert(id, call);
            return;
        }
        let drain = Box::new(Drain::new(&barrier, &lower, within));
        let deadline = call.deadline;
        self.calls.insert(id, call);
        let work = Work::Drain(drain, For::Calls(vec![id]));
        let drain = self.call_until(deadline, proxy, work);
        self.proxies[proxy].barriers.insert(barrier.clone(), drain);
        if let Some(Call {
            work: Work::Declare(declaring),
            ..
        }) = self.calls.get_mut(&id)
        {
            declaring.barrier = Some((barrier, lower, drain));
        }
    }

    /// A barrier of another declaration has ended.
    fn passed(&mut self, id: u64, end: Result<(), DeclareError>) {
        let Some(mut call) = self.calls.remove(&id) else {
            return;
        };
        let Work::Declare(declaring) = &mut call.work else {
            return;
        };
        let passed = declaring.barrier.take();
        match (end, passed) {
            (Ok(()), _) => self.go_on(id, call),
            // It may have had less time than this one has.
            (Err(_), Some((barrier, lower, _))) if self.now + RETRY < call.deadline => {
                self.pass(id, call, barrier, lower);
            }
            (Err(error), _) => self.ended(call, Err(error)),
        }
    }

    pub(super) fn ended(&mut self, call: Call, end: Result<(), DeclareError>) {
        let (proxy, is_ok) = (call.proxy, end.is_ok());
        match &call.work {
            Work::Declare(declaring) => {
                let answer = declaring.answer.clone();
                let mark = end.and_then(|()| {
                    answer.unwrap_or_else(|| {
                        Err(AuthorityError::Unavailable("no answer".to_owned()).into())
                    })
                });
                self.declared(&call, declaring, mark);
            }
            Work::Drain(drain, beneficiary) => {
                self.proxies[proxy].barriers.remove(&drain.barrier);
                match beneficiary {
                    For::Calls(waiting) => {
                        for id in waiting.clone() {
                            self.passed(id, end.clone());
                        }
                    }
                    For::Repair(mark, policy) if is_ok => {
                        let Barrier { scope, cluster, .. } = &drain.barrier;
                        self.servers.raise_witness(*cluster, scope, mark);
                        if self.policy.is_enforced() && self.policy.0 == *policy {
                            self.truth.repair(scope, cluster.postmaster_us, mark.rank());
                            self.check_in_flight(*cluster);
                        }
                    }
                    For::Repair(..) => {}
                }
            }
            Work::Raise(_) => {
                self.proxies[proxy].is_due |= !is_ok;
                if is_ok {
                    self.raised_at = self.raised_at.max(call.began);
                }
                if is_ok || self.proxies[proxy].stage == Stage::Serving {
                    self.call(proxy, Work::Reap(Round::default()));
                } else {
                    self.start_again(proxy);
                }
            }
            Work::Reap(_) if self.proxies[proxy].stage == Stage::Starting => {
                if is_ok {
                    self.proxies[proxy].stage = Stage::Serving;
                } else {
                    self.start_again(proxy);
                }
            }
            Work::Release(backend) if !is_ok => {
                let life = self.proxies[proxy].life;
                self.later(RELEASE_AGAIN, Delivery::Release(proxy, life, *backend));
            }
            Work::Reap(_) | Work::Release(_) | Work::Witness(..) | Work::Confirm(_) => {}
        }
    }

    /// A repair of a scope ends every session from before.
    pub(super) fn end_for_repair(
        &mut self,
        cluster: Cluster,
        scope: &Scope,
        mark: Mark,
        lower: &[Registered],
    ) {
        let barrier = Barrier {
            scope: scope.clone(),
            rank: mark.rank(),
            cluster,
        };
        let drain = Drain::new(&barrier, lower, WITHIN);
        let operator = self.limits.proxies;
        self.call(
            operator,
            Work::Drain(Box::new(drain), For::Repair(mark, self.policy.0)),
        );
    }

    /// Repeated until the authority has answered.
    pub(super) fn release(&mut self, proxy: usize, life: u64, backend: Backend) {
        if self.proxies[proxy].life == life {
            self.call(proxy, Work::Release(backend));
        }
    }
}
