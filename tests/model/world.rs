//! The state: authority, proxies, sessions with their backends, and the promises owed so far.

use crate::guards::Guard;
use crate::promises::Reaches;
use crate::registry::{
    Answer, Declaration, Id, LATER, ORIGINAL, Pid, Postmaster, Purpose, Registry, SESSIONS, Set,
    Token,
};

/// Number of proxies in every scene; some have no session.
pub(crate) const PROXIES: usize = 3;
/// Tokens are 1 to this.
pub(crate) const TOKEN_MAX: Token = 3;

pub(crate) type ProxyId = usize;

/// A session of a scene.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    /// Proxy of its client.
    pub(crate) proxy: ProxyId,
    /// Tokens that its client may declare.
    pub(crate) tokens: &'static [Token],
    pub(crate) role: Role,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Declares, writes and leaves.
    Holder,
    /// Has a numberless lock: it reads the mark and takes the token after it, at any time later. Its writes are like
    /// those of any holder.
    Taker,
    /// Only takes over. No token of the scene is above its own, so its writes need no check.
    Successor,
}

/// Participants, and possible faults. Everything not listed in a scene is possible in all of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scene {
    pub(crate) name: &'static str,
    pub(crate) parts: [Part; SESSIONS],
    /// Proxy that may be killed.
    pub(crate) mortal: Option<ProxyId>,
    /// Proxy whose reaper runs.
    pub(crate) reaper: Option<ProxyId>,
    /// Proxy that serves a copy of the cluster's storage, with the same authority.
    pub(crate) copy: Option<ProxyId>,
    pub(crate) troubles: &'static [Trouble],
    /// Situations that some run of the scene reaches.
    pub(crate) reaches: Reaches,
}

/// Additional faults of a scene.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// The authority goes down and comes back; its answers get lost.
    Outages,
    /// An outsider ends this session: an administrator, or a timeout of PostgreSQL.
    Outsider(Id),
    /// Clients clear their token, and declare it again.
    LayingDown,
    /// A declaration times out.
    Timeouts,
    /// The network duplicates requests to the authority. The copy arrives late, after later requests.
    Strays,
    /// The policy observes at first and is then enforced.
    Observing,
    /// The authority is restored from a backup.
    Restores,
    /// Another server takes over the cluster and its address. The old one goes on for its existing connections.
    Replacement,
}

/// The model: a scene, with all guards or without one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fence {
    pub(crate) scene: Scene,
    pub(crate) without: Option<Guard>,
    pub(crate) ended_movers: EndedMovers,
}

/// Whether a takeover may end a session that has declared the new token meanwhile. The code does not prevent that.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct World {
    pub(crate) authority: Authority,
    pub(crate) proxies: [Proxy; PROXIES],
    pub(crate) sessions: [Session; SESSIONS],
    /// A request to the authority that the network still holds.
    pub(crate) stray: Option<Stray>,
    pub(crate) mode: Mode,
    pub(crate) backup: Backup,
    pub(crate) witness: Witness,
    /// Server of new connections.
    pub(crate) address: Postmaster,
    /// Highest token whose declaration was answered with success.
    pub(crate) answered: Token,
    /// The same for each server: G1 and G2 are owed there from then on.
    pub(crate) owed: [Token; LATER as usize + 1],
    /// The take that was answered with each token.
    pub(crate) given: [Option<(Id, u8)>; TOKEN_MAX as usize + 1],
    /// First broken promise. The run ends there.
    pub(crate) broken: Option<Broken>,
}

/// A duplicate of a request to the authority.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Stray {
    /// `Authority::declare`.
    Declare(Declaration),
    /// `Authority::forget`: these are gone.
    Forget(Set),
    /// `Authority::drained`.
    Drained { token: Token, gone: Set },
}

/// Mode of the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Mode {
    Enforce,
    Observe,
}

/// A backup of the authority. There is at most one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Backup {
    None,
    Made(Registry),
    Restored,
}

/// The cluster's knowledge of the authority. `takeover/witness.rs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Witness {
    pub(crate) mark: Token,
    pub(crate) epoch: u8,
    pub(crate) joined: Joined,
}

/// Whether a session has registered since the epoch was raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Joined {
    None,
    Some,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Broken {
    /// G1: a lower token committed after the answer.
    LateCommit,
    /// G2: a snapshot taken at the answer missed a commit of a lower token, made before the answer or after.
    LateSight,
    /// G5: a session whose token is the mark was refused.
    SelfFenced,
    /// G5: a takeover ended a session whose token is the mark.
    CurrentEnded,
    /// A takeover ended an unrelated session.
    StrangerEnded,
    /// G6: a takeover waits for an unrelated session.
    StrangerAwaited,
    /// Two takes were answered with the same token.
    TokenShared,
    /// A take was refused because of the mark that it had set itself.
    RefusedByItself,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Authority {
    pub(crate) now: Registry,
    /// State seen by lagging reads. Kept only while [`Guard::DecideByWriting`] is disabled.
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
    /// Running barrier of each token. `Barriers::running`.
    pub(crate) barriers: [Barrier; TOKEN_MAX as usize + 1],
    pub(crate) reaper: Reaper,
    /// Whether the authority has accepted the proxy's cluster.
    pub(crate) is_enrolled: bool,
    /// Server of its control connection.
    pub(crate) control: Postmaster,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ProxyLife {
    Running,
    Dead,
}

/// Progress of a barrier. `barrier::Drain`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Barrier {
    None,
    Telling {
        old: Set,
    },
    Looking {
        old: Set,
    },
    /// All were seen to be gone; the authority is told next.
    Gone {
        old: Set,
    },
    /// The authority knows; the waiting sessions do not yet.
    Complete,
}

/// Progress of the reaper's round. `reaper::Round`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Reaper {
    Idle,
    Read {
        records: Set,
    },
    /// The postmaster on record is known. Only with more than one server.
    Asked {
        records: Set,
        recorded: Postmaster,
    },
    /// Only without [`Guard::PostmasterAfterRecords`]: the postmaster was read first.
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

/// A client's session: the proxy's state and the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Session {
    pub(crate) link: Link,
    pub(crate) backend: Backend,
    /// Server of the session.
    pub(crate) server: Postmaster,
    pub(crate) pid: Pid,
    pub(crate) work: Work,
    /// Token in force, 0 for none.
    pub(crate) bound: Token,
    /// How the token in force was accepted. `GrantMode`.
    pub(crate) grant: Purpose,
    /// Token that a ROLLBACK or RESET would bring back, 0 for none.
    pub(crate) earlier: Token,
    /// Tokens accepted for the session: declaring one again needs no step of the authority. `accepted` in
    /// `session/src/tokens.rs`.
    pub(crate) accepted: Tokens,
    /// Highest token declared without an answer, 0 for none. `unanswered` in `session/src/tokens.rs`.
    pub(crate) unanswered: Token,
    /// Mark read by the client, if it takes.
    pub(crate) read: Option<Token>,
    /// Number of its accepted takes. `Session::take_number`.
    pub(crate) takes: u8,
    /// Purpose of its last declaration.
    pub(crate) purpose: Purpose,
    pub(crate) declaring: Declaring,
    pub(crate) release: Release,
}

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
    /// The client has left with work in flight.
    LeavingBusy,
    Closed,
}

/// The server process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Backend {
    NotYet,
    Alive,
    /// Told to end. Goes on until it does.
    Signalled,
    Gone,
}

/// The write of a session. One at a time; afterwards another may follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Work {
    Idle,
    /// Has its permit and waits in the proxy.
    Permitted,
    /// On the wire, or executing.
    InFlight,
    /// The commit is durable but not yet visible to snapshots, for example because of synchronous replication.
    Durable,
}

/// Progress of a declaration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Declaring {
    No,
    /// On its way to the authority.
    Asked(Token),
    /// On its way back.
    Answered(Token, Answer),
    /// Waits for the barrier of the token.
    Waiting(Token),
    /// Nothing left to wait for.
    Cleared(Token),
    /// Only without [`Guard::RegisterFirst`]: admitted, to be registered.
    Unregistered(Token),
}

/// `Releases`: whether the session's record is queued for removal.
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
            is_enrolled: true,
            control: ORIGINAL,
        };
        let mut proxies = [proxy; PROXIES];
        if let Some(copy) = fence.scene.copy {
            (proxies[copy].is_enrolled, proxies[copy].control) = (false, LATER);
        }
        let session = Session {
            link: Link::Away,
            backend: Backend::NotYet,
            server: ORIGINAL,
            pid: 0,
            work: Work::Idle,
            bound: 0,
            grant: Purpose::Admit,
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
            mode: if fence.has(Trouble::Observing) {
                Mode::Observe
            } else {
                Mode::Enforce
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

    /// Whether the client can send its next request.
    pub(crate) fn is_ready(&self) -> bool {
        self.link == Link::Open
            && self.work == Work::Idle
            && matches!(self.declaring, Declaring::No | Declaring::Unregistered(_))
    }

    /// Whether it holds a lower token, or could set one again without asking.
    pub(crate) fn may_be_lower_than(&self, token: Token) -> bool {
        let holds = |held| held == self.bound || held == self.earlier || self.accepted.has(held);
        (1..token).any(holds)
    }

    /// Drops data that nobody can use any more, so that states that differ only in it become equal.
    pub(crate) fn tidy(&mut self) {
        if self.link == Link::Closed && self.backend == Backend::Gone {
            (self.bound, self.earlier, self.work) = (0, 0, Work::Idle);
            (self.accepted, self.grant) = (Tokens::default(), Purpose::Admit);
        }
    }
}
