//! The steps of a session. Each returns `None` if it is not possible.

use crate::guards::Guard;
use crate::registry::{Answer, Declaration, Id, Purpose, Registry, Set, Token};
use crate::step::Session as Step;
use crate::world::{
    Backend, Backup, Barrier, Broken, Declaring, Fence, Joined, Link, Mode, Release, Role, Session,
    Stray, Tokens, Trouble, Work, World,
};

pub(crate) fn take(fence: &Fence, world: &mut World, id: Id, step: Step) -> Option<()> {
    match step {
        Step::Connect => connect(fence, world, id),
        Step::Ask(token) => ask(fence, world, id, token),
        Step::Read => read(fence, world, id),
        Step::Take => take_next(fence, world, id),
        Step::Decide => decide(fence, world, id),
        Step::DecideUnheard => decide_unheard(fence, world, id),
        Step::Unreachable => unreachable(fence, world, id),
        Step::Hear => hear(fence, world, id),
        Step::Bind => bind(fence, world, id),
        Step::Check => check(fence, world, id),
        Step::Forward => forward(fence, world, id),
        Step::Commit => commit(world, id),
        Step::Show => show(world, id),
        Step::LayDown => lay_down(fence, world, id),
        Step::FallBack => fall_back(fence, world, id),
        Step::Leave => leave(fence, world, id),
        Step::Close => close(fence, world, id),
        Step::Notice => notice(fence, world, id),
        Step::Exit => exit(world, id),
        Step::OutsiderEnds => outsider_ends(world, id),
        Step::Release => release(fence, world, id, Release::No),
        Step::ReleaseUnheard => release(fence, world, id, Release::Pending),
        Step::Stray => stray(fence, world, id),
        Step::RegisterLate => register_late(fence, world, id),
        Step::Expire => expire(world, id),
    }
}

const fn when(holds: bool) -> Option<()> {
    if holds { Some(()) } else { None }
}

/// A step by the session's proxy, which must be running.
fn by_proxy(fence: &Fence, world: &World, id: Id) -> Option<()> {
    when(world.is_running(fence.scene.parts[id].proxy))
}

/// Takes the lowest free pid, so that reuse comes as early as possible.
fn connect(fence: &Fence, world: &mut World, id: Id) -> Option<()> {
    by_proxy(fence, world, id)?;
    when(world.sessions[id].link == Link::Away && !fence.scene.parts[id].tokens.is_empty())?;
    serves(fence, world)?;
    let server = world.address;
    let here = |s: &&Session| s.is_living() && s.server == server;
    let taken = |pid| world.sessions.iter().filter(here).any(|s| s.pid == pid);
    let pid = (1..).find(|pid| !taken(*pid))?;
    let session = &mut world.sessions[id];
    (session.pid, session.server) = (pid, server);
    session.link = Link::Open;
    session.backend = Backend::Alive;
    Some(())
}

/// A proxy whose authority is behind the witness at its start does not serve. After a restore every proxy must start
/// again: a running one has seen more than the authority contains.
fn serves(fence: &Fence, world: &World) -> Option<()> {
    let Registry { mark, epoch, .. } = world.authority.now;
    let behind = epoch < world.witness.epoch && fence.keeps(Guard::EpochCompared);
    when(world.backup != Backup::Restored || (mark >= world.witness.mark && !behind))
}

/// The mark was true when read; a client may use it at any time later. The same applies to a cached value.
fn read(fence: &Fence, world: &mut World, id: Id) -> Option<()> {
    by_proxy(fence, world, id)?;
    let mark = world.authority.now.mark;
    let session = &mut world.sessions[id];
    when(session.is_ready() && session.read != Some(mark))?;
    session.read = Some(mark);
    Some(())
}

/// Also for a mark from which the session has taken before: a pooler has lent it to another client.
fn take_next(fence: &Fence, world: &mut World, id: Id) -> Option<()> {
    let token = world.sessions[id].read? + 1;
    when(fence.scene.parts[id].tokens.contains(&token))?;
    ask(fence, world, id, token)
}

fn ask(fence: &Fence, world: &mut World, id: Id, token: Token) -> Option<()> {
    by_proxy(fence, world, id)?;
    let takes = fence.scene.parts[id].role == Role::Taker;
    let proxy = &mut world.proxies[fence.scene.parts[id].proxy];
    let session = &mut world.sessions[id];
    let counts = session.grant == Purpose::Admit || world.mode == Mode::Observe;
    when(session.is_ready() && session.declaring == Declaring::No)?;
    when(session.bound != token || !counts || takes)?;
    // The backend is looked up on the server of the control connection. `Takeover::identify`.
    when(session.server == proxy.control)?;
    if token < session.unanswered {
        session.link = Link::Closed;
        session.tidy();
        return Some(());
    }
    session.purpose = match world.mode {
        Mode::Enforce => Purpose::Admit,
        Mode::Observe => Purpose::Observe,
    };
    if token < proxy.cache && world.mode == Mode::Enforce {
        // Refused immediately. The cache may do no more than that.
        when(token >= world.authority.now.mark)?;
        world.breaks(Broken::SelfFenced);
        return Some(());
    }
    session.declaring = Declaring::Asked(token);
    // Accepted for this session before, and on the register ever since.
    if session.accepted.has(token) && session.purpose == Purpose::Admit && !takes {
        session.declaring = Declaring::Cleared(token);
        return Some(());
    }
    if token == proxy.cache && !fence.keeps(Guard::CacheOnlyRefuses) {
        session.declaring = Declaring::Cleared(token);
    }
    if !fence.keeps(Guard::CacheNotAhead) {
        proxy.cache = proxy.cache.max(token);
    }
    Some(())
}

/// Backend of the declaration. `Takeover::identify` looks up the session of the pid.
fn identify(fence: &Fence, world: &World, id: Id) -> Option<Id> {
    let session = &world.sessions[id];
    if fence.keeps(Guard::IdentityProven) || session.is_living() {
        return Some(id);
    }
    (0..world.sessions.len()).find(|other| {
        let other = &world.sessions[*other];
        other.is_living() && other.pid == session.pid
    })
}

/// Needs no proxy: a request sent before its death is still decided.
fn decide(fence: &Fence, world: &mut World, id: Id) -> Option<()> {
    let Declaring::Asked(token) = world.sessions[id].declaring else {
        return None;
    };
    when(world.is_up())?;
    let released = world.sessions[id].release == Release::No;
    when(released || fence.keeps(Guard::ReleaseEndedOnly))?;
    let Some(backend) = identify(fence, world, id) else {
        world.sessions[id].declaring = Declaring::No;
        return Some(());
    };
    let declaration = declaration(fence, world, token, id, backend);
    let answer = declare(fence, world, declaration);
    let own = declaration.take.map(|number| (backend, number));
    let refused = matches!(answer, Answer::Stale { .. });
    if refused && own.is_some() && own == world.authority.now.taken {
        world.breaks(Broken::RefusedByItself);
    }
    world.sessions[id].declaring = Declaring::Answered(token, answer);
    if by_proxy(fence, world, id).is_none() {
        world.sessions[id].declaring = Declaring::No;
    }
    Some(())
}

fn declaration(fence: &Fence, world: &World, token: Token, by: Id, id: Id) -> Declaration {
    let number = if fence.keeps(Guard::TakeIsNumbered) {
        world.sessions[by].takes
    } else {
        0
    };
    let takes = fence.scene.parts[by].role == Role::Taker;
    Declaration {
        take: takes.then_some(number),
        token,
        id,
        purpose: world.sessions[by].purpose,
        postmaster: world.sessions[by].server,
    }
}

fn declare(fence: &Fence, world: &mut World, declaration: Declaration) -> Answer {
    let pids = world.pids();
    let authority = &mut world.authority;
    let known = authority.lagging.unwrap_or(authority.now);
    let before = authority.now.records;
    let answer = authority.now.declare(fence, &known, declaration, &pids);
    if authority.now.records != before && fence.has(Trouble::Restores) {
        world.witness.joined = Joined::Some;
    }
    answer
}

/// Duplicates a request to the authority for this session.
fn stray(fence: &Fence, world: &mut World, id: Id) -> Option<()> {
    when(world.stray.is_none())?;
    let session = &world.sessions[id];
    let message = match (session.declaring, session.release) {
        (Declaring::Asked(token), _) => Stray::Declare(declaration(fence, world, token, id, id)),
        (_, Release::Pending) => Stray::Forget(Set::of(|other| other == id)),
        _ => return None,
    };
    world.stray = Some(message);
    Some(())
}

/// A stray reaches the authority. Nobody receives the answer.
pub(crate) fn arrive(fence: &Fence, world: &mut World) -> Option<()> {
    when(world.is_up())?;
    match world.stray.take()? {
        Stray::Declare(declaration) => _ = declare(fence, world, declaration),
        Stray::Forget(gone) => {
            let pids = world.pids();
            world.authority.now.forget(fence, gone, &pids);
        }
        Stray::Drained { token, gone } => _ = world.authority.now.drained(fence, token, gone),
    }
    Some(())
}

fn decide_unheard(fence: &Fence, world: &mut World, id: Id) -> Option<()> {
    by_proxy(fence, world, id)?;
    decide(fence, world, id)?;
    unanswered(fence, world, id);
    Some(())
}

fn unreachable(fence: &Fence, world: &mut World, id: Id) -> Option<()> {
    by_proxy(fence, world, id)?;
    let asked = matches!(world.sessions[id].declaring, Declaring::Asked(_));
    when(asked && !world.is_up())?;
    unanswered(fence, world, id);
    Some(())
}

/// The proxy cannot know whether the authority has moved the session up.
fn unanswered(fence: &Fence, world: &mut World, id: Id) {
    let session = &mut world.sessions[id];
    let (Declaring::Asked(token) | Declaring::Answered(token, _)) = session.declaring else {
        return;
    };
    session.declaring = Declaring::No;
    if session.purpose == Purpose::Observe {
        session.declaring = Declaring::Cleared(token);
    } else if session.may_be_lower_than(token) && fence.keeps(Guard::UnansweredEnds) {
        session.link = Link::Closed;
        session.tidy();
    } else if fence.keeps(Guard::UnansweredIsNoted) {
        session.unanswered = session.unanswered.max(token);
    }
}

fn hear(fence: &Fence, world: &mut World, id: Id) -> Option<()> {
    by_proxy(fence, world, id)?;
    let Declaring::Answered(token, answer) = world.sessions[id].declaring else {
        return None;
    };
    let proxy = &mut world.proxies[fence.scene.parts[id].proxy];
    let session = &mut world.sessions[id];
    match answer {
        Answer::OtherPostmaster => session.declaring = Declaring::No,
        Answer::Stale { mark } => {
            proxy.cache = proxy.cache.max(mark);
            session.declaring = match session.purpose {
                Purpose::Admit => Declaring::No,
                Purpose::Observe => Declaring::Cleared(token),
            };
        }
        Answer::Accepted { .. } if session.purpose == Purpose::Observe => {
            proxy.cache = proxy.cache.max(token);
            session.declaring = Declaring::Cleared(token);
        }
        Answer::Accepted { lower } => {
            if fence.keeps(Guard::CacheRisesFirst) {
                proxy.cache = proxy.cache.max(token);
            }
            session.declaring = Declaring::Cleared(token);
            if !lower.is_empty() {
                session.declaring = Declaring::Waiting(token);
                // Later declarations of the same token join the running barrier.
                let barrier = &mut proxy.barriers[usize::from(token)];
                if *barrier == Barrier::None {
                    *barrier = Barrier::Telling { old: lower };
                }
            }
        }
    }
    Some(())
}

/// Binds and answers in one step, so that G1 and G2 hold from the earliest moment.
fn bind(fence: &Fence, world: &mut World, id: Id) -> Option<()> {
    by_proxy(fence, world, id)?;
    let session = &mut world.sessions[id];
    let Declaring::Cleared(token) = session.declaring else {
        return None;
    };
    session.declaring = Declaring::No;
    // The client's SET still goes to the server. A backend that is gone gives no answer.
    if session.link == Link::Open && session.is_living() {
        session.earlier = session.bound;
        session.bound = token;
        session.grant = session.purpose;
        if session.purpose == Purpose::Observe {
            session.earlier = 0;
            return Some(());
        }
        session.accepted = session.accepted.with(token);
        let take = Some((id, session.takes));
        let given = world.given[usize::from(token)];
        let shares = given.is_some() && given != take;
        if fence.scene.parts[id].role == Role::Taker {
            session.takes += 1;
            world.given[usize::from(token)] = take;
            if shares {
                world.broken.get_or_insert(Broken::TokenShared);
            }
        }
        if !fence.keeps(Guard::RegisterFirst) {
            session.declaring = Declaring::Unregistered(token);
        }
        world.answered = world.answered.max(token);
        let owed = &mut world.owed[usize::from(session.server)];
        *owed = token.max(*owed);
        if fence.has(Trouble::Restores) {
            world.witness.mark = world.witness.mark.max(token);
        }
    }
    Some(())
}

fn check(fence: &Fence, world: &mut World, id: Id) -> Option<()> {
    by_proxy(fence, world, id)?;
    let cache = world.proxies[fence.scene.parts[id].proxy].cache;
    let session = &world.sessions[id];
    when(session.is_ready() && session.bound > 0)?;
    if world.mode == Mode::Observe {
        world.sessions[id].work = Work::Permitted;
        return Some(());
    }
    // An only observed token is declared again first. `GrantMode::Observed`.
    when(session.grant == Purpose::Admit)?;
    let no_answer = !fence.keeps(Guard::WritesDoNotAsk) && !world.is_up();
    if session.bound < cache || no_answer {
        when(session.bound >= world.authority.now.mark)?;
        world.breaks(Broken::SelfFenced);
    } else {
        world.sessions[id].work = Work::Permitted;
    }
    Some(())
}

fn forward(fence: &Fence, world: &mut World, id: Id) -> Option<()> {
    by_proxy(fence, world, id)?;
    let session = &mut world.sessions[id];
    when(session.work == Work::Permitted && session.is_living())?;
    session.work = Work::InFlight;
    Some(())
}

/// The backend commits by itself. Only its end prevents that.
fn commit(world: &mut World, id: Id) -> Option<()> {
    let session = &mut world.sessions[id];
    when(session.work == Work::InFlight && session.is_living())?;
    session.work = Work::Durable;
    if session.bound < world.owed[usize::from(session.server)] {
        world.breaks(Broken::LateCommit);
    }
    Some(())
}

fn show(world: &mut World, id: Id) -> Option<()> {
    let session = &mut world.sessions[id];
    when(session.work == Work::Durable)?;
    session.work = Work::Idle;
    if session.bound < world.owed[usize::from(session.server)] {
        world.breaks(Broken::LateSight);
    }
    Some(())
}

fn lay_down(fence: &Fence, world: &mut World, id: Id) -> Option<()> {
    by_proxy(fence, world, id)?;
    let session = &mut world.sessions[id];
    when(session.is_ready() && session.bound > 0)?;
    (session.bound, session.earlier) = (0, 0);
    if !fence.keeps(Guard::ReleaseEndedOnly) {
        session.accepted = Tokens::default();
        session.release = Release::Pending;
    }
    Some(())
}

fn fall_back(fence: &Fence, world: &mut World, id: Id) -> Option<()> {
    by_proxy(fence, world, id)?;
    let session = &mut world.sessions[id];
    when(session.is_ready() && session.earlier > 0)?;
    (session.bound, session.earlier) = (session.earlier, 0);
    Some(())
}

/// While a declaration runs the client is not read, so its leaving goes unseen.
fn leave(fence: &Fence, world: &mut World, id: Id) -> Option<()> {
    by_proxy(fence, world, id)?;
    let session = &mut world.sessions[id];
    when(session.link == Link::Open && session.declaring == Declaring::No)?;
    session.link = match session.work {
        Work::Idle => Link::LeavingQuiet,
        Work::Permitted | Work::InFlight | Work::Durable => Link::LeavingBusy,
    };
    if session.work == Work::Permitted {
        // Waiting bytes are flushed before the Terminate.
        session.work = if session.is_living() {
            Work::InFlight
        } else {
            Work::Idle
        };
    }
    Some(())
}

fn close(fence: &Fence, world: &mut World, id: Id) -> Option<()> {
    by_proxy(fence, world, id)?;
    let session = &mut world.sessions[id];
    match session.link {
        Link::LeavingQuiet => session.release = Release::Pending,
        Link::LeavingBusy if fence.keeps(Guard::ReleaseQuietOnly) => {}
        Link::LeavingBusy => session.release = Release::Pending,
        Link::Away | Link::Open | Link::Closed => return None,
    }
    session.link = Link::Closed;
    session.tidy();
    Some(())
}

/// No release: the record stays for a barrier or the reaper.
fn notice(fence: &Fence, world: &mut World, id: Id) -> Option<()> {
    by_proxy(fence, world, id)?;
    let session = &mut world.sessions[id];
    when(session.link == Link::Open && session.backend == Backend::Gone)?;
    session.link = Link::Closed;
    session.tidy();
    Some(())
}

/// A backend ends when terminated, or when it notices that its client has left. Uncommitted work is rolled back. A
/// durable commit becomes visible first: `pg_stat_activity` lists the backend until its transaction has ended.
fn exit(world: &mut World, id: Id) -> Option<()> {
    let session = &mut world.sessions[id];
    when(session.is_living() && session.work != Work::Durable)?;
    when(session.backend == Backend::Signalled || session.link != Link::Open)?;
    session.backend = Backend::Gone;
    if session.work == Work::InFlight {
        session.work = Work::Idle;
    }
    session.tidy();
    Some(())
}

fn outsider_ends(world: &mut World, id: Id) -> Option<()> {
    when(world.sessions[id].backend == Backend::Alive)?;
    world.sessions[id].backend = Backend::Signalled;
    Some(())
}

/// Needs no proxy: a release sent before its death is still done.
fn release(fence: &Fence, world: &mut World, id: Id, then: Release) -> Option<()> {
    when(world.is_up() && world.sessions[id].release == Release::Pending)?;
    let pids = world.pids();
    let only = Set::of(|other| other == id);
    world.authority.now.forget(fence, only, &pids);
    world.sessions[id].release = then;
    Some(())
}

fn register_late(fence: &Fence, world: &mut World, id: Id) -> Option<()> {
    by_proxy(fence, world, id)?;
    let Declaring::Unregistered(token) = world.sessions[id].declaring else {
        return None;
    };
    when(world.is_up())?;
    let pids = world.pids();
    world.authority.now.register(fence, token, id, &pids);
    world.sessions[id].declaring = Declaring::No;
    Some(())
}

fn expire(world: &mut World, id: Id) -> Option<()> {
    when(world.authority.now.records[id] > 0)?;
    world.authority.now.records[id] = 0;
    Some(())
}
