//! Requests on their way, and what authority and servers do with them.

use pgpalisade_authority::rule::Records;
use pgpalisade_authority::{AuthorityError, Backend, Claim, Declaration, Declared, IfStale, Token};
use pgpalisade_fence::Purpose;

use super::super::plan::NOBODY;
use super::calls::{Call, Work};
use super::control_error::ControlError;
use super::error::DeclareError;
use super::guards::Guard;
use super::machine::{Event, Request};
use super::promises::{NOT_REGISTERED, REFUSED_BY_ITSELF};
use super::servers::Process;
use super::world::{Delivery, World};

/// Delay of a repeated request, in delays of the network.
const LATE: u64 = 100;

/// Destination of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Authority,
    Server,
}

impl Target {
    pub(super) const fn of(request: &Request) -> Self {
        match request {
            Request::Mark(_)
            | Request::Declare(_)
            | Request::Sessions
            | Request::Recorded
            | Request::Drained(..)
            | Request::Forget(_) => Self::Authority,
            Request::Terminate(_)
            | Request::Alive(_)
            | Request::Holdouts(_)
            | Request::HasWitness
            | Request::Witness(..) => Self::Server,
        }
    }

    fn timeout(self) -> DeclareError {
        match self {
            Self::Authority => AuthorityError::Unavailable("no answer".to_owned()).into(),
            Self::Server => ControlError::Timeout.into(),
        }
    }
}

impl World {
    pub(super) fn send(&mut self, id: u64, request: Request) {
        let asked = self.number();
        let is_again = self.out == Some(Guard::TellsAgain);
        let Some(call) = self.calls.get_mut(&id) else {
            return;
        };
        let (proxy, target) = (call.proxy, Target::of(&request));
        if self.now >= call.deadline {
            return self.feed(id, Event::Failed(target.timeout()));
        }
        call.asked = Some((asked, target));
        let request = match request {
            Request::Terminate(_) if std::mem::replace(&mut call.has_told, true) && is_again => {
                Request::Terminate(Vec::new())
            }
            other => other,
        };
        let lost = match &call.work {
            Work::Declare(d)
                if d.terms.purpose != Purpose::Admit
                    && self.out != Some(Guard::ObservedAnswered) =>
            {
                0
            }
            _ => self.limits.lost,
        };
        if self.random.percent(self.limits.repeated)
            && let Some(request) = copy(&request)
        {
            let after = self.random.delay(LATE * self.limits.delay);
            self.later(after, Delivery::Arrive(proxy, request, None));
        }
        if self.random.percent(lost) {
            if target == Target::Server {
                // The connection breaks, and that is noticed at once.
                let lost = Event::Failed(ControlError::Lost.into());
                self.soon(Delivery::Answer(id, asked, lost));
            }
        } else {
            self.soon(Delivery::Arrive(proxy, request, Some((id, asked, lost))));
        }
    }

    pub(super) fn arrive(&mut self, proxy: usize, request: Request, from: Option<(u64, u64, u64)>) {
        if Target::of(&request) == Target::Authority && self.authority.is_away {
            return;
        }
        let event = self.carry_out(proxy, request);
        if let Some((id, asked, lost)) = from
            && !self.random.percent(lost)
        {
            self.soon(Delivery::Answer(id, asked, event));
        }
    }

    pub(super) fn answer(&mut self, id: u64, number: u64, event: Event) {
        if let Some(call) = self.calls.get_mut(&id)
            && call.asked.is_some_and(|(asked, _)| asked == number)
        {
            call.asked = None;
            self.feed(id, event);
        }
    }

    /// No more time is left.
    pub(super) fn deadline(&mut self, id: u64) {
        let now = self.now;
        let Some(call) = self.calls.get_mut(&id).filter(|call| now >= call.deadline) else {
            return;
        };
        if let Some((_, target)) = call.asked.take() {
            return self.feed(id, Event::Failed(target.timeout()));
        }
        if let Work::Declare(declaring) = &call.work
            && let Some((_, _, drain)) = declaring.barrier
            && let Some(Call {
                work: Work::Drain(drain, _),
                ..
            }) = self.calls.get(&drain)
        {
            let error = drain.incomplete();
            if let Some(call) = self.calls.remove(&id) {
                self.ended(call, Err(error));
            }
        }
    }

    fn carry_out(&mut self, proxy: usize, request: Request) -> Event {
        if Target::of(&request) == Target::Authority {
            return self.step(request);
        }
        let Some(server) = self.proxies[proxy].control else {
            return Event::Failed(ControlError::Down("no route".into()).into());
        };
        match request {
            Request::Terminate(old) => {
                self.terminate(server, &old);
                Event::Terminated(0)
            }
            Request::Alive(old) => Event::Alive(self.alive(server, &old), server),
            Request::Holdouts(_) => Event::Holdouts(Vec::new()),
            Request::HasWitness => Event::HasWitness(true, server),
            Request::Witness(scope, mark) => {
                if !scope.is_epoch() || self.keeps(Guard::EpochWitnessed) {
                    self.servers.raise_witness(server, &scope, &mark);
                }
                if !scope.is_epoch() {
                    self.truth.witness(&scope, mark.rank());
                }
                Event::Done
            }
            other => unreachable!("{other:?}"),
        }
    }

    /// A step of the authority.
    fn step(&mut self, request: Request) -> Event {
        let store = &mut self.authority.now;
        match request {
            Request::Mark(scope) => {
                Event::Mark(store.marks.get(&scope).map(|row| row.mark.clone()))
            }
            Request::Sessions => {
                let all = store.sessions.iter();
                Event::Sessions(all.map(|((scope, _), s)| (scope.clone(), *s)).collect())
            }
            Request::Recorded => Event::Recorded(store.cluster),
            Request::Declare(declaration) => Event::Declared(self.decide(declaration)),
            Request::Drained(scope, rank, gone) => {
                let drained = match self.out {
                    Some(Guard::DrainedLooks) => self.authority.drained_unseen(&scope, rank, &gone),
                    Some(Guard::DrainedForTheMark) => {
                        self.authority.drained_for_any(&scope, rank, &gone)
                    }
                    _ => store.drained(&scope, rank, &gone).unwrap(),
                };
                self.check_register();
                Event::Drained(drained)
            }
            Request::Forget(gone) => {
                match self.out {
                    Some(Guard::RecordsByStart) => self.authority.forget_by_pid(&gone),
                    _ => store.forget(&gone).unwrap(),
                }
                self.check_register();
                Event::Done
            }
            other => unreachable!("{other:?}"),
        }
    }

    fn decide(&mut self, mut asked: Declaration) -> Declared {
        let store = &mut self.authority.now;
        let (scope, before) = (asked.scope.clone(), store.marks.get(&asked.scope).cloned());
        match self.out {
            Some(Guard::PostmasterOnRecord) => {
                asked.cluster = store.cluster.unwrap_or(asked.cluster);
            }
            Some(Guard::TakeCompares) if asked.claim.is_take() => {
                asked.claim = asked.claim.token().map_or(asked.claim, Claim::Token);
            }
            Some(Guard::ObservedRegister) => {
                asked.if_stale = IfStale::Refuse;
            }
            Some(Guard::TakeIsRecognised) => {
                if let Some(row) = store.marks.get_mut(&scope) {
                    row.taken = None;
                }
            }
            Some(Guard::EpochRises) if scope.is_epoch() => {
                asked.claim = before
                    .as_ref()
                    .map_or(Token::MIN, |row| row.mark.token)
                    .into();
            }
            _ => {}
        }
        let declared = match self.out {
            Some(Guard::DecideByWriting) => self.authority.declare_by_reading(&asked),
            Some(Guard::RegisterFirst) => self.authority.declare_unregistered(&asked),
            _ => store.declare(&asked, 1).unwrap(),
        };
        let store = &mut self.authority.now;
        let session = (scope.clone(), asked.backend);
        self.authority.is_joined |=
            asked.backend != NOBODY && store.sessions.contains_key(&session);
        match (&declared, before) {
            (Declared::Stale { mark }, Some(row)) => {
                let is_own = asked.claim.is_take() && row.taken == asked.take;
                if is_own && asked.claim.token() == Some(mark.token) {
                    self.breaks(REFUSED_BY_ITSELF);
                } else if self.out == Some(Guard::ObservedUndrain) {
                    store.marks.insert(scope, row);
                }
            }
            (Declared::Accepted { mark, .. }, before)
                if before
                    .as_ref()
                    .is_none_or(|row| row.mark.rank() < mark.rank()) =>
            {
                self.tell_all(&scope, mark);
            }
            _ => {}
        }
        declared
    }

    /// A session that may write stays on the register of its server.
    fn check_register(&mut self) {
        let store = &self.authority.now;
        let Some(cluster) = store.cluster else { return };
        let is_missing = |(backend, process): (&Backend, &Process)| {
            let session = self.sessions.get(&process.session);
            session.is_some_and(|session| {
                let mut scopes = session.registered();
                scopes.any(|scope| !store.sessions.contains_key(&(scope.clone(), *backend)))
            })
        };
        if self.servers.on(cluster).any(is_missing) {
            self.breaks(NOT_REGISTERED);
        }
    }
}

/// A request that the network repeats.
fn copy(request: &Request) -> Option<Request> {
    Some(match request {
        Request::Declare(declaration) => Request::Declare(declaration.clone()),
        Request::Drained(scope, rank, gone) => Request::Drained(scope.clone(), *rank, gone.clone()),
        Request::Forget(gone) => Request::Forget(gone.clone()),
        Request::Terminate(old) => Request::Terminate(old.clone()),
        _ => return None,
    })
}
