//! The steps of barriers and of the reaper, and of failures of proxies and the authority.

use crate::guards::Guard;
use crate::registry::{LATER, Postmaster, Set, Token};
use crate::step::{Barrier as BarrierStep, Reaper as ReaperStep};
use crate::world::{
    Backend, Barrier, Broken, Declaring, EndedMovers, Fence, Link, Mode, ProxyId, ProxyLife, Reach,
    Reaper, Stray, Work, World,
};

pub(crate) fn barrier(
    fence: &Fence,
    world: &mut World,
    proxy: ProxyId,
    token: Token,
    step: BarrierStep,
) -> Option<()> {
    let at = usize::from(token);
    let now = world.proxies[proxy].barriers[at];
    let next = match (step, now) {
        (BarrierStep::Tell, Barrier::Telling { old }) => {
            tell(fence, world, proxy, old);
            if fence.keeps(Guard::WaitUntilGone) {
                Barrier::Looking { old }
            } else {
                Barrier::Gone { old }
            }
        }
        (BarrierStep::Look, Barrier::Looking { old }) => {
            look(fence, world, (proxy, token), old)?;
            Barrier::Gone { old }
        }
        (BarrierStep::Report, Barrier::Gone { old }) if world.is_up() => {
            match world.authority.now.drained(fence, token, old) {
                left if left.is_empty() => Barrier::Complete,
                old => Barrier::Telling { old },
            }
        }
        (BarrierStep::Finish, Barrier::Complete) => {
            wake(fence, world, proxy, token, Declaring::Cleared(token));
            Barrier::None
        }
        (BarrierStep::GiveUp, running) => {
            if matches!(running, Barrier::None | Barrier::Complete) {
                return None;
            }
            wake(fence, world, proxy, token, Declaring::No);
            Barrier::None
        }
        _ => return None,
    };
    world.proxies[proxy].barriers[at] = next;
    Some(())
}

fn wake(fence: &Fence, world: &mut World, proxy: ProxyId, token: Token, to: Declaring) {
    for id in fence.sessions_of(proxy) {
        if world.sessions[id].declaring == Declaring::Waiting(token) {
            world.sessions[id].declaring = to;
        }
    }
}

/// Only sends the signal, to each living session that matches one of `old`.
fn tell(fence: &Fence, world: &mut World, proxy: ProxyId, old: Set) {
    let seen = world.seen_by(proxy);
    let mark = world.authority.now.mark;
    let pids = world.pids();
    for (id, session) in world.sessions.iter_mut().enumerate() {
        let same_pid = (0..pids.len()).any(|other| old.has(other) && pids[other] == session.pid);
        let matches = if fence.keeps(Guard::TerminateByStart) {
            old.has(id)
        } else {
            same_pid
        };
        if !matches || !seen.has(id) || session.backend != Backend::Alive {
            continue;
        }
        session.backend = Backend::Signalled;
        if !old.has(id) {
            world.broken.get_or_insert(Broken::StrangerEnded);
        } else if session.bound == mark && fence.ended_movers == EndedMovers::Counted {
            world.broken.get_or_insert(Broken::CurrentEnded);
        }
    }
}

/// Passes if no living session matches one of `old`; otherwise the next look is another step.
fn look(
    fence: &Fence,
    world: &mut World,
    (proxy, token): (ProxyId, Token),
    old: Set,
) -> Option<()> {
    let living = world.seen_by(proxy);
    let waiting = fence.sessions_of(proxy).find(|id| {
        let session = &world.sessions[*id];
        session.declaring == Declaring::Waiting(token)
    });
    // The takeover's session must be on the server that is looked at.
    let moved = |id: usize| world.sessions[id].server != world.proxies[proxy].control;
    if waiting.is_some_and(moved) && fence.keeps(Guard::BarrierStays) {
        return None;
    }
    let pids = world.pids();
    let left = (0..pids.len()).any(|id| old.has(id) && living.has(id));
    let same_pid = |id: usize| (0..pids.len()).any(|o| old.has(o) && pids[o] == pids[id]);
    if left {
        return None;
    }
    if !fence.keeps(Guard::LookByStart) && (0..pids.len()).any(|id| living.has(id) && same_pid(id))
    {
        world.breaks(Broken::StrangerAwaited);
    }
    Some(())
}

pub(crate) fn reaper(
    fence: &Fence,
    world: &mut World,
    proxy: ProxyId,
    step: ReaperStep,
) -> Option<()> {
    let now = world.proxies[proxy].reaper;
    let runs = world.is_running(proxy);
    let runs = runs && world.proxies[proxy].is_enrolled;
    let living = world.seen_by(proxy);
    let (control, recorded) = (world.proxies[proxy].control, world.authority.now.postmaster);
    let asks = fence.has_servers();
    let records = world.authority.now.sessions();
    let gone = |records: Set, living: Set| match Set::of(|id| records.has(id) && !living.has(id)) {
        none if none.is_empty() => Reaper::Idle,
        records => Reaper::Gone { records },
    };
    let next = match (step, now) {
        // Disabled guard: the look comes first.
        (ReaperStep::Look, Reaper::Idle) if runs && !fence.keeps(Guard::RecordsThenLook) => {
            Reaper::Looked { living }
        }
        (ReaperStep::Read, Reaper::Looked { living }) if runs && world.is_up() => {
            gone(records, living)
        }
        (ReaperStep::Read, Reaper::Idle)
            if runs && world.is_up() && fence.keeps(Guard::RecordsThenLook) =>
        {
            if records.is_empty() {
                return None;
            }
            Reaper::Read { records }
        }
        (ReaperStep::Look, Reaper::Read { records }) if runs && !asks => gone(records, living),
        (ReaperStep::Ask, Reaper::Read { records }) if runs && world.is_up() && asks => {
            Reaper::Asked { records, recorded }
        }
        // Disabled guard: the postmaster comes first.
        (ReaperStep::Ask, Reaper::Idle)
            if runs && asks && !fence.keeps(Guard::PostmasterAfterRecords) =>
        {
            Reaper::Trusting { recorded }
        }
        (ReaperStep::Read, Reaper::Trusting { recorded }) if runs => {
            Reaper::Asked { records, recorded }
        }
        (ReaperStep::Look, Reaper::Asked { recorded, .. })
            if runs && recorded != control && fence.keeps(Guard::ReaperAsksForPostmaster) =>
        {
            Reaper::Idle
        }
        (ReaperStep::Look, Reaper::Asked { records, .. }) if runs => gone(records, living),
        // Needs no proxy: a request sent before its death is still done.
        (ReaperStep::Forget, Reaper::Gone { records }) if world.is_up() => {
            let pids = world.pids();
            world.authority.now.forget(fence, records, &pids);
            Reaper::Idle
        }
        _ => return None,
    };
    world.proxies[proxy].reaper = next;
    Some(())
}

/// The sockets close, and bytes waiting in the proxy are lost. Bytes in flight stay in flight. Requests to the
/// authority happen or not, and the register does not change.
pub(crate) fn die(fence: &Fence, world: &mut World, proxy: ProxyId) -> Option<()> {
    if !world.is_running(proxy) {
        return None;
    }
    let sent = match world.proxies[proxy].reaper {
        sent @ Reaper::Gone { .. } => sent,
        Reaper::Idle
        | Reaper::Read { .. }
        | Reaper::Asked { .. }
        | Reaper::Trusting { .. }
        | Reaper::Looked { .. } => Reaper::Idle,
    };
    world.proxies[proxy] = World::new(fence).proxies[proxy];
    world.proxies[proxy].life = ProxyLife::Dead;
    world.proxies[proxy].reaper = sent;
    for id in fence.sessions_of(proxy) {
        let session = &mut world.sessions[id];
        if session.work == Work::Permitted {
            session.work = Work::Idle;
        }
        if session.link != Link::Away {
            session.link = Link::Closed;
        }
        if !matches!(session.declaring, Declaring::Asked(_)) {
            session.declaring = Declaring::No;
        }
        session.tidy();
    }
    Some(())
}

pub(crate) fn go_down(world: &mut World) -> Option<()> {
    if !world.is_up() {
        return None;
    }
    world.authority.reach = Reach::Down;
    Some(())
}

pub(crate) fn come_back(world: &mut World) -> Option<()> {
    if world.is_up() {
        return None;
    }
    world.authority.reach = Reach::Up;
    Some(())
}

/// Duplicates a request of this token's barrier, or of the reaper, to the authority.
pub(crate) fn stray(world: &mut World, proxy: ProxyId, token: Token) -> Option<()> {
    if world.stray.is_some() {
        return None;
    }
    let Barrier::Gone { old } = world.proxies[proxy].barriers[usize::from(token)] else {
        return None;
    };
    world.stray = Some(Stray::Drained { token, gone: old });
    Some(())
}

pub(crate) fn reload(world: &mut World) -> Option<()> {
    if world.mode == Mode::Enforce {
        return None;
    }
    world.mode = Mode::Enforce;
    Some(())
}

/// The copy's proxy may try at any time, and so may the others after a broken connection.
pub(crate) fn enrol(fence: &Fence, world: &mut World, proxy: ProxyId) -> Option<()> {
    let postmaster = if fence.scene.copy == Some(proxy) {
        LATER
    } else {
        world.address
    };
    if !world.authority.now.enrol(fence, postmaster) {
        return None;
    }
    world.proxies[proxy].is_enrolled = true;
    world.proxies[proxy].control = postmaster;
    Some(())
}

/// Existing connections stay on the old server.
pub(crate) fn replace(world: &mut World) -> Option<()> {
    const NEXT: Postmaster = LATER;
    if world.address == NEXT {
        return None;
    }
    world.address = NEXT;
    Some(())
}

pub(crate) fn catch_up(world: &mut World) -> Option<()> {
    let now = world.authority.now;
    let lagging = world.authority.lagging.as_mut()?;
    if *lagging == now {
        return None;
    }
    *lagging = now;
    Some(())
}
