//! The clients and what their proxies do for them: they declare, write, and leave. The rules are those of
//! `proxy/session`, whose own tests show that it keeps them.

use std::sync::Arc;

use pgpalisade_authority::{
    AuthorityError, Backend, Claim, Cluster, Declaration, Mark, Rank, Scope, TakeId, Token,
};
use pgpalisade_fence::mark_cache::CachedMark;
use pgpalisade_fence::{Purpose, Terms};
use pgpalisade_policies::TokenBounds;

use super::calls::{Call, Declaring};
use super::error::DeclareError;
use super::guards::Guard;
use super::plan;
use super::promises::{
    BELOW_REGISTRATION, LATE_COMMIT, NOT_IN_TIME, REPAIRED_ADMITTED, SELF_FENCED,
    STRANGER_REGISTERED, TOKEN_SHARED,
};
use super::servers::{Process, Work, Write};
use super::world::{Delivery, World};

/// A token in force, or one that was accepted before.
#[derive(Clone)]
pub(super) struct Bound {
    cached: Arc<CachedMark>,
    rank: Rank,
    purpose: Purpose,
    /// Number of the policy that it was declared under.
    policy: u64,
}

impl Bound {
    const fn new(cached: Arc<CachedMark>, rank: Rank, purpose: Purpose, policy: u64) -> Self {
        Self {
            cached,
            rank,
            purpose,
            policy,
        }
    }
}

/// What a session has of a scope.
#[derive(Default)]
pub(super) struct Hold {
    bound: Option<Bound>,
    /// What a ROLLBACK brings back.
    earlier: Option<Bound>,
    /// Declaring one of these again needs no step of the authority.
    accepted: Vec<Bound>,
    is_registered: bool,
    /// Highest token that was declared, 0 for none.
    declared: u64,
    /// The same without an answer.
    unanswered: u64,
    /// Mark that its client has read.
    read: Option<Option<Token>>,
}

pub(super) struct Session {
    pub(super) proxy: usize,
    pub(super) backend: Backend,
    identified: Option<(Backend, Cluster)>,
    holds: Vec<(Scope, Hold)>,
    /// Waits for an answer.
    pub(super) is_busy: bool,
    is_taker: bool,
    takes: u64,
}

impl Session {
    pub(super) fn bound(&self) -> impl Iterator<Item = (&Scope, Rank)> {
        let holds = self.holds.iter();
        holds.filter_map(|(scope, hold)| Some((scope, hold.bound.as_ref()?.rank)))
    }

    /// Index of each scope in which it has a token, and that.
    pub(super) fn keys(&self) -> impl Iterator<Item = (usize, u64)> {
        let holds = self.holds.iter().enumerate();
        holds.filter_map(|(at, (_, hold))| Some((at, hold.bound.as_ref()?.rank.token.get())))
    }

    /// Whether it may be registered at a token that it does not have.
    pub(super) fn is_in_doubt(&self) -> bool {
        let mut holds = self.holds.iter();
        holds.any(|(_, hold)| {
            let bound = hold
                .bound
                .as_ref()
                .map_or(0, |bound| bound.rank.token.get());
            hold.declared != bound
        })
    }

    /// Scopes in which it must be on the register.
    pub(super) fn registered(&self) -> impl Iterator<Item = &Scope> {
        let holds = self.holds.iter();
        holds.filter_map(|(scope, hold)| hold.is_registered.then_some(scope))
    }
}

impl World {
    pub(super) fn connect(&mut self) {
        let proxy = self.random.index(self.limits.proxies);
        let server = self.proxies[proxy].server();
        if let Some(server) = server {
            self.connect_to(proxy, server);
        }
    }

    pub(super) fn connect_to(&mut self, proxy: usize, server: Cluster) -> Option<u64> {
        let id = self.number();
        let backend = self.fork(server, id)?;
        let is_taker = self.random.percent(self.limits.takers);
        let holds = self.scopes.iter();
        let session = Session {
            proxy,
            backend,
            identified: None,
            holds: holds
                .map(|scope| (scope.clone(), Hold::default()))
                .collect(),
            is_busy: false,
            is_taker,
            takes: 0,
        };
        self.sessions.insert(id, session);
        self.soon(Delivery::Act(id));
        Some(id)
    }

    /// One step of a client.
    pub(super) fn act(&mut self, id: u64) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        let (at, step) = (
            self.random.index(session.holds.len()),
            self.random.below(100),
        );
        if session.is_busy {
            if step < 3 {
                self.leave(id);
            }
        } else {
            let hold = &mut session.holds[at].1;
            match step {
                0..45 => self.write(id, at),
                45..75 => self.declare_any(id, at),
                75..82 => {
                    (hold.bound, hold.earlier) = (None, None);
                    if self.out == Some(Guard::ReleaseEndedOnly) {
                        hold.accepted.clear();
                        hold.is_registered = false;
                        let released = (session.proxy, session.backend);
                        let life = self.proxies[released.0].life;
                        self.soon(Delivery::Release(released.0, life, released.1));
                    }
                }
                82..90 => {
                    let may_go_back =
                        self.policy.is_enforced() || self.out == Some(Guard::ObservedRises);
                    if let Some(earlier) = hold.earlier.take().filter(|_| may_go_back) {
                        hold.bound = Some(earlier);
                    }
                }
                90..96 => {
                    hold.read = Some(self.authority.now.rank(&self.scopes[at]).map(|r| r.token))
                }
                _ => self.leave(id),
            }
        }
        let after = self.random.delay(200);
        self.later(after, Delivery::Act(id));
    }

    pub(super) fn write(&mut self, id: u64, at: usize) {
        let session = &self.sessions[&id];
        let (scope, hold) = &session.holds[at];
        let Some(bound) = hold.bound.clone() else {
            return;
        };
        if self.policy.is_enforced() {
            if bound.purpose != Purpose::Admit {
                // Only observed so far.
                return self.declare(id, at, bound.rank.token.into());
            }
            let asks = self.out == Some(Guard::WritesDoNotAsk) && self.authority.is_away;
            if asks || !bound.cached.is_current(bound.rank.token) {
                return self.refused(&scope.clone(), bound.rank);
            }
        }
        let registered = self
            .authority
            .now
            .sessions
            .get(&(scope.clone(), session.backend));
        let is_below = registered.is_some_and(|registered| {
            let same = registered.incarnation == bound.rank.incarnation;
            same && self.policy.is_enforced() && registered.token > bound.rank.token
        });
        let write = Write {
            scope: scope.clone(),
            rank: bound.rank,
        };
        let backend = session.backend;
        if is_below {
            self.breaks(BELOW_REGISTRATION);
        }
        self.set_busy(id);
        self.soon(Delivery::Execute(backend, write));
    }

    fn set_busy(&mut self, id: u64) {
        if let Some(session) = self.sessions.get_mut(&id) {
            session.is_busy = true;
        }
    }

    /// By the cache of the proxy.
    fn refused(&mut self, scope: &Scope, rank: Rank) {
        if self.authority.now.rank(scope) == Some(rank) {
            self.breaks(SELF_FENCED);
        }
    }

    fn declare_any(&mut self, id: u64, at: usize) {
        let session = &self.sessions[&id];
        if session.is_taker {
            if let Some(read) = session.holds[at].1.read {
                self.declare(id, at, Claim::After(read));
            }
            return;
        }
        let mark = self.authority.now.rank(&self.scopes[at]);
        let mark = mark.map_or(1, |mark| mark.token.get());
        let value = if self.random.percent(self.limits.raises) {
            mark + 1
        } else {
            mark - u64::from(mark > 1 && self.random.percent(20))
        };
        self.declare(id, at, Token::new(value).unwrap().into());
    }

    pub(super) fn declare(&mut self, id: u64, at: usize, claim: Claim) {
        let (Some(session), Some(token)) = (self.sessions.get(&id), claim.token()) else {
            return;
        };
        let (scope, hold) = &session.holds[at];
        let (purpose, marks) = (self.policy.purpose(), &self.proxies[session.proxy].marks);
        if token.get() < hold.unanswered {
            return self.close(id);
        }
        let is_admitted = purpose == Purpose::Admit;
        if !is_admitted && token.get() < hold.declared && self.keeps(Guard::ObservedRises) {
            return;
        }
        if is_admitted && let Some(cached) = marks.find(scope) {
            let (incarnation, scope) = (cached.incarnation(), scope.clone());
            if cached.mark_above(token).is_some() {
                return self.refused(&scope, Rank { incarnation, token });
            }
        }
        if is_admitted && !claim.is_take() {
            let is_it =
                |bound: &&Bound| bound.rank.token == token && bound.cached.is_current(token);
            let known = hold.accepted.iter().find(is_it);
            if let Some(known) = known.cloned() {
                return self.bind(id, at, known);
            }
        }
        let cached = marks.mark(scope);
        let incarnation = cached.incarnation();
        let rank = Rank { incarnation, token };
        if self.out == Some(Guard::CacheOnlyRefuses) && cached.mark() == Some(token) {
            let bound = Bound::new(cached, rank, purpose, self.policy.0);
            return self.bind(id, at, bound);
        }
        if self.out == Some(Guard::CacheNotAhead) {
            cached.raise(&Mark {
                incarnation,
                ..Mark::new(token, 1, String::new())
            });
        }
        let identified = session.identified;
        self.set_busy(id);
        match identified {
            Some(found) => self.ask_authority(id, at, claim, found),
            None => self.soon(Delivery::Identify(id, at, claim)),
        }
    }

    /// The look of the control connection for the session's process.
    pub(super) fn identify(&mut self, id: u64, at: usize, claim: Claim) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        let server = self.proxies[session.proxy].control;
        let by_pid = self.out == Some(Guard::IdentityProven);
        let is_it = |(backend, process): &(&Backend, &Process)| {
            backend.pid == session.backend.pid && (by_pid || process.session == id)
        };
        let found = server.and_then(|server| {
            let (backend, _) = self.servers.on(server).find(is_it)?;
            Some((*backend, server))
        });
        session.identified = found;
        match found {
            Some(found) => self.ask_authority(id, at, claim, found),
            None => session.is_busy = false,
        }
    }

    fn ask_authority(&mut self, id: u64, at: usize, claim: Claim, found: (Backend, Cluster)) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        let (proxy, (backend, cluster)) = (session.proxy, found);
        let is_own = backend == session.backend;
        let declared = &mut session.holds[at].1.declared;
        *declared = claim.token().map_or(0, Token::get).max(*declared);
        if !is_own {
            return self.breaks(STRANGER_REGISTERED);
        }
        let number = match self.out {
            Some(Guard::TakeIsNumbered) => 0,
            _ => session.takes,
        };
        let declaration = Declaration {
            take: Some(TakeId::new(session.backend, number)),
            ..Declaration::new(&self.scopes[at], claim, backend, cluster, "")
        };
        let (purpose, bounds) = (self.policy.purpose(), TokenBounds::default());
        let terms = Terms { purpose, bounds };
        // `Upkeep::note_joining`
        self.proxies[proxy].is_due = true;
        let declaring = Declaring {
            session: id,
            at,
            declaration: plan::on_terms(declaration, &terms, ""),
            terms,
            policy: self.policy.0,
            tasks: Default::default(),
            answer: None,
            barrier: None,
        };
        self.call(proxy, super::calls::Work::Declare(Box::new(declaring)));
    }

    /// The answer of a declaration reaches the session.
    pub(super) fn declared(
        &mut self,
        call: &Call,
        declaring: &Declaring,
        end: Result<Mark, DeclareError>,
    ) {
        let (id, at) = (declaring.session, declaring.at);
        if self.now > call.deadline + super::barriers::LAST_WORD {
            return self.breaks(NOT_IN_TIME);
        }
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        session.is_busy = false;
        let purpose = declaring.terms.purpose;
        let claim = declaring.declaration.claim;
        let cached = self.proxies[session.proxy].marks.mark(&self.scopes[at]);
        let rank_of = |incarnation| claim.token().map(|token| Rank { incarnation, token });
        let is_registered = matches!(end, Ok(_) | Err(DeclareError::Stale { .. }));
        let rank = match (end, purpose) {
            (Ok(mark), _) => Some(mark.rank()),
            (Err(DeclareError::Authority(error)), Purpose::Admit) => {
                return self.unanswered(id, at, claim, &error);
            }
            (Err(_), Purpose::Admit) => return,
            // The refusal is only observed. A take has obtained nothing.
            (Err(_), _) if claim.is_take() => return,
            (Err(DeclareError::Stale { mark }), _) => rank_of(mark.incarnation),
            (Err(_), _) => rank_of(cached.incarnation()),
        };
        let Some(rank) = rank else { return };
        if purpose == Purpose::Admit && cached.incarnation() > rank.incarnation {
            return self.breaks(REPAIRED_ADMITTED);
        }
        session.holds[at].1.is_registered |= is_registered;
        let take = (id, session.takes);
        session.takes += 1;
        if claim.is_take() && self.truth.is_shared(&self.scopes[at], rank, take) {
            return self.breaks(TOKEN_SHARED);
        }
        let bound = Bound::new(cached, rank, purpose, declaring.policy);
        self.bind(id, at, bound);
    }

    /// The authority may have moved the session up, or may do so later.
    fn unanswered(&mut self, id: u64, at: usize, claim: Claim, _: &AuthorityError) {
        let ends = self.keeps(Guard::UnansweredEnds);
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        let hold = &mut session.holds[at].1;
        let token = claim.token().map_or(0, Token::get);
        let held = hold.bound.iter().chain(&hold.earlier).chain(&hold.accepted);
        let is_lower = held
            .map(|bound| bound.rank.token.get())
            .any(|held| held < token);
        if is_lower && ends {
            self.close(id);
        } else {
            hold.unanswered = hold.unanswered.max(token);
        }
    }

    /// The token is in force, and the client is told.
    fn bind(&mut self, id: u64, at: usize, bound: Bound) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        // The client's SET still goes to the server. A process that is gone gives no answer.
        let Some(process) = self.servers.processes.get(&session.backend) else {
            return;
        };
        let (server, rank) = (process.server, bound.rank);
        let (scope, hold) = &mut session.holds[at];
        hold.earlier = hold.bound.replace(bound.clone());
        if bound.purpose != Purpose::Admit {
            hold.earlier = None;
            return;
        }
        let is_it = |known: &Bound| known.rank == rank;
        if !hold.accepted.iter().any(is_it) {
            hold.accepted.push(bound.clone());
        }
        // What was accepted before the policy observed is not promised again.
        if self.policy.is_enforced() && bound.policy == self.policy.0 {
            let scope = scope.clone();
            self.granted(&scope, server, rank);
        }
    }

    /// From now on no lower rank commits on this server.
    fn granted(&mut self, scope: &Scope, server: Cluster, rank: Rank) {
        self.truth.granted += 1;
        self.truth.owe(scope, server.postmaster_us, rank);
        self.check_in_flight(server);
    }

    /// What is in flight may commit at any time.
    pub(super) fn check_in_flight(&mut self, server: Cluster) {
        let is_late = |(_, process): (&Backend, &Process)| match &process.work {
            Work::Running(write) | Work::Durable(write) => {
                let Write { scope, rank } = write;
                self.truth.is_late(scope, server.postmaster_us, *rank)
            }
            Work::Idle => false,
        };
        if self.servers.on(server).any(is_late) {
            self.breaks(LATE_COMMIT);
        }
    }

    /// The client leaves.
    pub(super) fn leave(&mut self, id: u64) {
        let Some(session) = self.sessions.get(&id) else {
            return;
        };
        let (proxy, backend, is_quiet) = (session.proxy, session.backend, !session.is_busy);
        let life = self.proxies[proxy].life;
        if is_quiet {
            if let Some(process) = self.servers.processes.get_mut(&backend) {
                process.parted = Some((proxy, life));
            }
        } else if self.out == Some(Guard::ReleaseQuietOnly) {
            self.soon(Delivery::Release(proxy, life, backend));
        }
        self.close(id);
    }

    /// The connections of a session are gone. Its process notices.
    pub(super) fn close(&mut self, id: u64) {
        if let Some(session) = self.sessions.remove(&id) {
            self.abandon(session.backend);
            self.lost(id, session.proxy);
        }
    }
}
