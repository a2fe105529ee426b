//! The state: authority, proxies, sessions with their backends, and what has been promised so far.

use crate::guards::Guard;
use crate::promises::Reaches;
use crate::registry::{
    Answer, Declaration, Id, LATER, ORIGINAL, Pid, Postmaster, Purpose, Registry, SESSIONS, Set,
    Token,
};

/// Proxies in every scene; some have no session.
pub(crate) const PROXIES: usize = 3;
/// Tokens are 1 to this.
pub(crate) const TOKEN_MAX: Token = 3;

/// The number of a proxy.
pub(crate) type ProxyId = usize;

/// One session of a scene.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    /// The proxy that its client connects to.
    pub(crate) proxy: ProxyId,
    /// What its client may declare.
    pub(crate) tokens: &'static [Token],
    pub(crate) role: Role,
}

/// What a client does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// All that there is: it declares, writes and leaves.
    Holder,
    /// It has a lock without a number: it reads the mark and takes the token after it, at any time later. What it
    /// writes then is as the writes of any holder.
    Taker,
    /// It only takes over. No token of the scene is above its own, so nothing is owed about its writes.
    Successor,
}

/// Who plays, and what may go wrong. Everything that is not in a scene is in all of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scene {
    pub(crate) name: &'static str,
    pub(crate) parts: [Part; SESSIONS],
    /// The proxy that may be killed.
    pub(crate) mortal: Option<ProxyId>,
    /// The proxy whose reaper runs.
    pub(crate) reaper: Option<ProxyId>,
    /// The proxy that serves a copy of the cluster's storage, with the same authority.
    pub(crate) copy: Option<ProxyId>,
    pub(crate) troubles: &'static [Trouble],
    /// What happens in some run of it.
    pub(crate) reaches: Reaches,
}

/// What a scene may have besides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// The authority is away and comes back; its answers get lost.
    Outages,
    /// Somebody else ends this session: an administrator, a timeout of PostgreSQL.
    Outsider(Id),
    /// Clients lay their token down, and declare it again.
    LayingDown,
    /// A declaration runs out of time.
    Timeouts,
    /// What was sent to the authority is kept in the network, and arrives once more: late, and after what was sent
    /// later.
    Strays,
    /// The policy begins with observing and is then enforced.
    Observing,
    /// The authority is restored from a backup.
    Restores,
    /// Another server takes over the cluster and its address. The one of before goes on for those who are connected.
    Replacement,
}

/// The model: a scene, played with all guards or without one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fence {
    pub(crate) scene: Scene,
    pub(crate) without: Option<Guard>,
    pub(crate) ended_movers: EndedMovers,
}

/// What is made of a session that a takeover ends although it has declared the new token meanwhile. The code does
/// not keep it from that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndedMovers {
    Tolerated,
    Counted,
}

impl Fence {
    pub(crate) fn keeps(&self, guard: Guard) -> bool {
        self.without != Some(guard)
    }

    pub(crate) fn has(&self, trouble: Trouble) -> bool {
        self.scene.troubles.contains(&trouble)
    }

    /// Whether there is more than one server.
    pub(crate) fn has_servers(&self) -> bool {
        self.scene.copy.is_some() || self.has(Trouble::Replacement)
    }

    pub(crate) fn sessions_of(&self, proxy: ProxyId) -> impl Iterator<Item = Id> + use<> {
        let parts = self.scene.parts;
        (0..SESSIONS).filter(move |id| parts[*id].proxy == proxy)
    }
}

/// The whole state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct World {
    pub(crate) authority: Authority,
    pub(crate) proxies: [Proxy; PROXIES],
    pub(crate) sessions: [Session; SESSIONS],
    /// A message to the authority that the network still has.
    pub(crate) stray: Option<Stray>,
    pub(crate) mode: Mode,
    pub(crate) backup: Backup,
    pub(crate) witness: Witness,
    /// Where connections lead that are made now.
    pub(crate) address: Postmaster,
    /// The highest token whose declaration was answered with success,
    pub(crate) answered: Token,
    /// and that on each server: from then on G1 and G2 are owed there.
    pub(crate) owed: [Token; LATER as usize + 1],
    /// The take that was answered with each token.
    pub(crate) given: [Option<(Id, u8)>; TOKEN_MAX as usize + 1],
    /// The first promise that was broken. The run does not go on from there.
    pub(crate) broken: Option<Broken>,
}

/// A message of which the authority has had another copy, or has it yet to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Stray {
    /// `Authority::declare`.
    Declare(Declaration),
    /// `Authority::forget`: these are gone.
    Forget(Set),
    /// `Authority::drained`.
    Drained { token: Token, gone: Set },
}

/// What the policy says of refusals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Mode {
    Enforce,
    Observe,
}

/// A backup of the authority. There is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Backup {
    None,
    Made(Registry),
    Restored,
}

/// What the cluster has seen of the authority. `takeover/witness.rs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Witness {
    pub(crate) mark: Token,
    pub(crate) epoch: u8,
    pub(crate) joined: Joined,
}

/// Whether a session has come on the register since the epoch was raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Joined {
    None,
    Some,
}

/// A promise that was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Broken {
    /// G1: a lower token committed after the answer.
    LateCommit,
    /// G2: a commit of a lower token, made before the answer or after, was not in a snapshot taken at the answer.
    LateSight,
    /// G5: a session, whose token is the mark, was refused.
    SelfFenced,
    /// G5: a takeover ended a session whose token is the mark.
    CurrentEnded,
    /// A takeover ended a session that it has nothing to do with.
    StrangerEnded,
    /// G6: a takeover waits for a session that it has nothing to do with.
    StrangerAwaited,
    /// Two takes were answered with one token.
    TokenShared,
    /// A take was refused because the mark is what it has made of it.
    RefusedByItself,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Authority {
    pub(crate) now: Registry,
    /// What a read finds where reads lag. Kept only while [`Guard::DecideByWriting`] is out.
    pub(crate) lagging: Option<Registry>,
    pub(crate) reach: Reach,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Reach {
    Up,
    Down,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Proxy {
    pub(crate) life: ProxyLife,
    /// The cached mark. `CachedMark::mark`.
    pub(crate) cache: Token,
    /// The running barrier of each token. `Barriers::running`.
    pub(crate) barriers: [Barrier; TOKEN_MAX as usize + 1],
    pub(crate) reaper: Reaper,
    pub(crate) enrolled: Enrolled,
    /// Where its control connection leads.
    pub(crate) control: Postmaster,
}

/// Whether the authority has accepted the cluster of a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Enrolled {
    No,
    Yes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ProxyLife {
    Running,
    Dead,
}

/// How far a barrier is. `Barriers::drain`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Barrier {
    None,
    Telling {
        old: Set,
    },
    Looking {
        old: Set,
    },
    /// All were seen to be gone; the authority is to be told.
    Gone {
        old: Set,
    },
    /// The authority knows; who waits does not yet.
    Complete,
}

/// How far a round of the reaper is. `Reaper::reap`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Reaper {
    Idle,
    Read {
        records: Set,
    },
    /// The postmaster on record is known. Only where there is more than one.
    Asked {
        records: Set,
        recorded: Postmaster,
    },
    /// Only without [`Guard::PostmasterAfterRecords`]: that was asked first.
    Trusting {
        recorded: Postmaster,
    },
    /// Only without [`Guard::RecordsThenLook`]: the look came first.
    Looked {
        living: Set,
    },
    /// On its way to the authority.
    Gone {
        records: Set,
    },
}

/// A client's session: what the proxy holds of it, and the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Session {
    pub(crate) link: Link,
    pub(crate) backend: Backend,
    /// The server that has it.
    pub(crate) server: Postmaster,
    pub(crate) pid: Pid,
    pub(crate) work: Work,
    /// The token in force, 0 for none.
    pub(crate) bound: Token,
    /// How the token in force was accepted. `GrantMode`.
    pub(crate) footing: Purpose,
    /// The token that a ROLLBACK or RESET would bring back, 0 for none.
    pub(crate) earlier: Token,
    /// The tokens that were accepted for it: declared again, they cost no step of the authority. `Relay::accepted`.
    pub(crate) accepted: Tokens,
    /// The highest token that it has declared without an answer, 0 for none. `Relay::unanswered`.
    pub(crate) unanswered: Token,
    /// The mark that its client has read, where it takes.
    pub(crate) read: Option<Token>,
    /// How many of its takes were accepted. `Granted::take_number`.
    pub(crate) takes: u8,
    /// What its last declaration was for.
    pub(crate) purpose: Purpose,
    pub(crate) declaring: Declaring,
    pub(crate) release: Release,
}

/// A set of tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Tokens(u8);

impl Tokens {
    pub(crate) const fn has(self, token: Token) -> bool {
        self.0 & (1 << token) != 0
    }

    pub(crate) const fn with(self, token: Token) -> Self {
        Self(self.0 | 1 << token)
    }
}

/// The proxy's two sockets of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Link {
    /// The client has not connected yet.
    Away,
    Open,
    /// The client has left with nothing in flight. Terminate was sent; the server's close is awaited.
    LeavingQuiet,
    /// The client has left in the middle of something.
    LeavingBusy,
    Closed,
}

/// The server process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Backend {
    NotYet,
    Alive,
    /// Told to end. Until it does it goes on.
    Signalled,
    Gone,
}

/// The write of a session. One at a time; when it is done, another may follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Work {
    Idle,
    /// It has its permit and waits in the proxy.
    Permitted,
    /// On the wire, or executing.
    InFlight,
    /// Its commit is durable, but no snapshot has it yet: synchronous replication, say.
    Durable,
}

/// A declaration on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Declaring {
    No,
    /// On its way to the authority.
    Asked(Token),
    /// On its way back.
    Answered(Token, Answer),
    /// Waits for the barrier of the token.
    Waiting(Token),
    /// Nothing stands in the way.
    Cleared(Token),
    /// Only without [`Guard::RegisterFirst`]: admitted, to be registered.
    Unregistered(Token),
}

/// `Releases`: whether the session's record is in line to be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Release {
    No,
    Pending,
}

impl World {
    pub(crate) fn new(fence: &Fence) -> Self {
        let proxy = Proxy {
            life: ProxyLife::Running,
            cache: 0,
            barriers: [Barrier::None; TOKEN_MAX as usize + 1],
            reaper: Reaper::Idle,
            enrolled: Enrolled::Yes,
            control: ORIGINAL,
        };
        let mut proxies = [proxy; PROXIES];
        if let Some(copy) = fence.scene.copy {
            (proxies[copy].enrolled, proxies[copy].control) = (Enrolled::No, LATER);
        }
        let session = Session {
            link: Link::Away,
            backend: Backend::NotYet,
            server: ORIGINAL,
            pid: 0,
            work: Work::Idle,
            bound: 0,
            footing: Purpose::Admit,
            earlier: 0,
            accepted: Tokens::default(),
            unanswered: 0,
            read: None,
            takes: 0,
            purpose: Purpose::Admit,
            declaring: Declaring::No,
            release: Release::No,
        };
        let lagging = (!fence.keeps(Guard::DecideByWriting)).then_some(Registry::EMPTY);
        Self {
            authority: Authority {
                now: Registry::EMPTY,
                lagging,
                reach: Reach::Up,
            },
            proxies,
            sessions: [session; SESSIONS],
            stray: None,
            mode: match fence.has(Trouble::Observing) {
                true => Mode::Observe,
                false => Mode::Enforce,
            },
            backup: Backup::None,
            witness: Witness {
                mark: 0,
                epoch: 0,
                joined: Joined::None,
            },
            address: ORIGINAL,
            answered: 0,
            owed: [0; LATER as usize + 1],
            given: [None; TOKEN_MAX as usize + 1],
            broken: None,
        }
    }

    pub(crate) fn pids(&self) -> [Pid; SESSIONS] {
        self.sessions.map(|session| session.pid)
    }

    pub(crate) fn living(&self) -> Set {
        Set::of(|id| self.sessions[id].is_living())
    }

    /// A look at `pg_stat_activity` over the control connection of a proxy.
    pub(crate) fn seen_by(&self, proxy: ProxyId) -> Set {
        let server = self.proxies[proxy].control;
        Set::of(|id| self.sessions[id].is_living() && self.sessions[id].server == server)
    }

    pub(crate) fn is_running(&self, proxy: ProxyId) -> bool {
        self.proxies[proxy].life == ProxyLife::Running
    }

    pub(crate) fn is_up(&self) -> bool {
        self.authority.reach == Reach::Up
    }

    /// Keeps the first.
    pub(crate) fn breaks(&mut self, broken: Broken) {
        self.broken.get_or_insert(broken);
    }
}

impl Session {
    pub(crate) fn is_living(&self) -> bool {
        matches!(self.backend, Backend::Alive | Backend::Signalled)
    }

    /// Whether the client can ask for the next thing.
    pub(crate) fn is_ready(&self) -> bool {
        self.link == Link::Open
            && self.work == Work::Idle
            && matches!(self.declaring, Declaring::No | Declaring::Unregistered(_))
    }

    /// Whether it holds a token below this one, or could take one up without asking.
    pub(crate) fn may_be_lower_than(&self, token: Token) -> bool {
        let holds = |held| held == self.bound || held == self.earlier || self.accepted.has(held);
        (1..token).any(holds)
    }

    /// What nobody can use any more is dropped, so that states that differ only in it are one.
    pub(crate) fn tidy(&mut self) {
        if self.link == Link::Closed && self.backend == Backend::Gone {
            (self.bound, self.earlier, self.work) = (0, 0, Work::Idle);
            (self.accepted, self.footing) = (Tokens::default(), Purpose::Admit);
        }
    }
}
