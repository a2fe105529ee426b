//! Possible steps. Every step is atomic. Between two steps anything else may happen, which models a paused proxy, a
//! slow network and a busy server.

use crate::guards::Guard;
use crate::registry::{Id, Token};
use crate::world::{Fence, PROXIES, ProxyId, Role, Trouble, World};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A step of a session's client, of its proxy for it, or of its backend.
    Session(Id, Session),
    /// A step of the barrier of a token in a proxy.
    Barrier(ProxyId, Token, Barrier),
    Reaper(ProxyId, Reaper),
    Die(ProxyId),
    /// The authority goes away, or comes back.
    GoDown,
    ComeBack,
    /// Stale reads of the authority catch up.
    CatchUp,
    /// A message delayed by the network reaches the authority.
    Arrive,
    /// A message from a barrier or a reaper to the authority is duplicated.
    Stray(ProxyId, Token),
    /// The policy changes from observing to enforcing. `Worker::fence_for`.
    Reload,
    /// A proxy opens or reopens its control connection. `prepare::enrol`.
    Enrol(ProxyId),
    /// Another server takes over the cluster and its address.
    Replace,
    /// A proxy raises the epoch of the authority, then that of the witness. `epoch::Raise`.
    RaiseEpoch,
    /// The authority is backed up, restored, and then recovered.
    Restoring(Restoring),
}

/// An operator's steps. `takeover/recover.rs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Restoring {
    Backup,
    /// Only after some proxy has raised the epoch since the last session registered. The epoch cannot reveal an
    /// earlier restore, so the operator's manual requires a recovery after every restore.
    Restore,
    EndAll,
    Recover,
}

/// Steps of a session, in the order of its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Session {
    /// The client logs in and PostgreSQL forks a backend. `login`.
    Connect,
    /// The client declares; the proxy asks the cache, then sends to the authority. `Takeover::declare`.
    Ask(Token),
    /// The client reads the mark, to take after it. `SHOW fencing.mark`.
    Read,
    /// The client takes the token after the mark that it has read. `SET fencing.token = 'after:<mark>'`.
    Take,
    /// The authority decides. `Authority::declare`.
    Decide,
    /// As `Decide`, but the answer is lost.
    DecideUnheard,
    /// The authority cannot be reached.
    Unreachable,
    /// The proxy receives the answer. `Inner::declare`.
    Hear,
    /// The token is in force and the client is told. `Session::on_declared`.
    Bind,
    /// The proxy checks a write, such as the COMMIT of a transaction. `SessionFence::decide`, `HeldTokens::stale`.
    Check,
    /// Its bytes leave the proxy. `Upstream::forward`.
    Forward,
    /// The commit record is on disk.
    Commit,
    /// The commit becomes visible to snapshots, and the client gets its answer.
    Show,
    /// RESET: the session has no token any more, but stays on the register.
    LayDown,
    /// ROLLBACK of the SET: the earlier token returns. `SessionState`.
    FallBack,
    /// The client leaves. `Relay::run`.
    Leave,
    /// The proxy sees that the server closed, or that the connection broke: it cannot tell which.
    /// `Upstream::say_goodbye`.
    Close,
    /// The proxy sees that the backend of a connected client has gone. `Relay::on_server_closed`.
    Notice,
    /// The backend ends.
    Exit,
    /// An outsider terminates the backend.
    OutsiderEnds,
    /// The record is removed. `Releases::run`.
    Release,
    /// As `Release`, but the proxy does not hear of it and repeats it.
    ReleaseUnheard,
    /// A request to the authority is duplicated.
    Stray,
    /// Without a guard: the session is registered after it was admitted.
    RegisterLate,
    /// Without a guard: the record has expired.
    Expire,
}

/// Steps of a barrier. `takeover/barrier.rs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Barrier {
    /// `sessions::terminate`, one statement for all.
    Tell,
    /// `sessions::alive`, one snapshot.
    Look,
    /// `Authority::drained`.
    Report,
    /// Waiting sessions are told.
    Finish,
    /// The barrier times out, or its control connection is refused.
    GiveUp,
}

/// Steps of the reaper. `takeover/reaper.rs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reaper {
    Read,
    /// Which postmaster is on record.
    Ask,
    Look,
    Forget,
}

impl Session {
    const DECLARES: [Self; 7] = [
        Self::Connect,
        Self::Decide,
        Self::Unreachable,
        Self::Hear,
        Self::Bind,
        Self::Notice,
        Self::Exit,
    ];
    const WRITES: [Self; 8] = [
        Self::Check,
        Self::Forward,
        Self::Commit,
        Self::Show,
        Self::FallBack,
        Self::Leave,
        Self::Close,
        Self::Release,
    ];

    /// Steps of a session in this scene and with these guards.
    fn all(fence: &Fence, id: Id) -> Vec<Self> {
        let tokens = fence.scene.parts[id].tokens;
        if tokens.is_empty() {
            return Vec::new();
        }
        let asks = tokens.iter().map(|token| Self::Ask(*token));
        let mut steps = Vec::from(Self::DECLARES);
        match fence.scene.parts[id].role {
            Role::Holder => steps.extend(asks.chain(Self::WRITES)),
            Role::Taker => steps.extend([Self::Read, Self::Take]),
            Role::Successor => steps.extend(asks),
        }
        for trouble in fence.scene.troubles {
            match trouble {
                Trouble::Outages => steps.extend([Self::DecideUnheard, Self::ReleaseUnheard]),
                Trouble::Outsider(whose) if *whose == id => steps.push(Self::OutsiderEnds),
                Trouble::LayingDown => steps.push(Self::LayDown),
                Trouble::Strays => steps.push(Self::Stray),
                Trouble::Outsider(_)
                | Trouble::Timeouts
                | Trouble::Observing
                | Trouble::Restores
                | Trouble::Replacement => {}
            }
        }
        match fence.without {
            Some(Guard::RegisterFirst) => steps.push(Self::RegisterLate),
            Some(Guard::NoExpiry) => steps.push(Self::Expire),
            _ => {}
        }
        steps
    }
}

impl Barrier {
    fn all(fence: &Fence) -> Vec<Self> {
        let mut steps = vec![Self::Tell, Self::Look, Self::Report, Self::Finish];
        if fence.has(Trouble::Timeouts) {
            steps.push(Self::GiveUp);
        }
        steps
    }
}

impl Step {
    /// Every step of the scene, possible now or not.
    pub(crate) fn all(fence: &Fence) -> Vec<Self> {
        let mut steps = Vec::new();
        for (id, part) in fence.scene.parts.iter().enumerate() {
            let own = Session::all(fence, id);
            steps.extend(own.into_iter().map(|step| Self::Session(id, step)));
            // A proxy runs a barrier for a token that its clients declare. The lowest token has nothing to wait for.
            for token in part.tokens.iter().filter(|token| **token > 1) {
                let own = Barrier::all(fence).into_iter();
                let own = own.map(|step| Self::Barrier(part.proxy, *token, step));
                steps.extend(own.filter(|step| !steps.contains(step)).collect::<Vec<_>>());
            }
        }
        if let Some(proxy) = fence.scene.reaper {
            let round = [Reaper::Read, Reaper::Ask, Reaper::Look, Reaper::Forget];
            steps.extend(round.map(|step| Self::Reaper(proxy, step)));
        }
        steps.extend(fence.scene.mortal.map(Self::Die));
        if fence.has(Trouble::Outages) {
            steps.extend([Self::GoDown, Self::ComeBack]);
        }
        if fence.has(Trouble::Strays) {
            steps.push(Self::Arrive);
            for part in &fence.scene.parts {
                let strays = part
                    .tokens
                    .iter()
                    .map(|token| Self::Stray(part.proxy, *token));
                steps.extend(strays);
            }
        }
        if fence.has(Trouble::Observing) {
            steps.push(Self::Reload);
        }
        if fence.has(Trouble::Restores) {
            let all = [
                Restoring::Backup,
                Restoring::Restore,
                Restoring::EndAll,
                Restoring::Recover,
            ];
            steps.extend(all.map(Self::Restoring));
            steps.push(Self::RaiseEpoch);
        }
        if fence.has(Trouble::Replacement) {
            steps.push(Self::Replace);
        }
        if fence.has_servers() {
            steps.extend((0..PROXIES).map(Self::Enrol));
        }
        if fence.without == Some(Guard::DecideByWriting) {
            steps.push(Self::CatchUp);
        }
        steps
    }

    /// The state after the step, or `None` if it is not possible.
    pub(crate) fn take(self, fence: &Fence, world: &World) -> Option<World> {
        let mut next = *world;
        match self {
            Self::Session(id, step) => crate::session::take(fence, &mut next, id, step)?,
            Self::Barrier(proxy, token, step) => {
                crate::takeover::barrier(fence, &mut next, proxy, token, step)?;
            }
            Self::Reaper(proxy, step) => crate::takeover::reaper(fence, &mut next, proxy, step)?,
            Self::Die(proxy) => crate::takeover::die(fence, &mut next, proxy)?,
            Self::GoDown => crate::takeover::go_down(&mut next)?,
            Self::ComeBack => crate::takeover::come_back(&mut next)?,
            Self::CatchUp => crate::takeover::catch_up(&mut next)?,
            Self::Arrive => crate::session::arrive(fence, &mut next)?,
            Self::Stray(proxy, token) => crate::takeover::stray(&mut next, proxy, token)?,
            Self::Reload => crate::takeover::reload(&mut next)?,
            Self::Enrol(proxy) => crate::takeover::enrol(fence, &mut next, proxy)?,
            Self::Replace => crate::takeover::replace(&mut next)?,
            Self::RaiseEpoch => crate::restore::raise_epoch(&mut next)?,
            Self::Restoring(step) => crate::restore::take(fence, &mut next, step)?,
        }
        Some(next)
    }
}
