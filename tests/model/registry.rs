//! The authority: the mark, the register of sessions, and its steps. Each step is atomic. Declarations are decided by
//! the rule of the stores; a disabled guard changes what the rule gets, or what is done of its ruling.

use pgpalisade_authority::rule::{self, MarkRow};
use pgpalisade_authority::{Backend, Claim, Cluster, Declared, IfStale, Mark, Scope, TakeId};

use crate::guards::Guard;
use crate::world::Fence;

/// A fencing token; 0 is none.
pub(crate) type Token = u8;
/// Number of a session and of its only backend. It also models `backend_start`, since no two backends share it.
pub(crate) type Id = usize;
/// A process id, reused once its process is gone.
pub(crate) type Pid = u8;

/// Number of sessions in every scene.
pub(crate) const SESSIONS: usize = 3;

#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) struct Set(u8);

impl Set {
    pub(crate) fn of(wanted: impl Fn(Id) -> bool) -> Self {
        let members = (0..SESSIONS).filter(|id| wanted(*id));
        Self(members.fold(0, |set, id| set | 1 << id))
    }

    pub(crate) const fn has(self, id: Id) -> bool {
        self.0 & (1 << id) != 0
    }

    pub(crate) const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl std::fmt::Debug for Set {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set()
            .entries((0..SESSIONS).filter(|id| self.has(*id)))
            .finish()
    }
}

/// Answer to a declaration. As `Declared`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Answer {
    /// The mark is above the token. Nothing has changed.
    Stale { mark: Token },
    /// Another postmaster is on record. Nothing has changed.
    OtherPostmaster,
    /// Registered. The lower sessions must be gone first.
    Accepted { lower: Set },
}

/// Purpose of a declaration. As `Purpose`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Purpose {
    Admit,
    Observe,
}

/// Number of a postmaster, in order of start.
pub(crate) type Postmaster = u8;
/// Postmaster of the cluster.
pub(crate) const ORIGINAL: Postmaster = 1;
/// Postmaster of a copy of its storage, with all of its writes, or of its successor.
pub(crate) const LATER: Postmaster = 2;

/// A declaration as sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Declaration {
    pub(crate) token: Token,
    pub(crate) id: Id,
    pub(crate) purpose: Purpose,
    /// Postmaster of the session's backend.
    pub(crate) postmaster: Postmaster,
    /// For a take: which one of the session's, for the mark before the token.
    pub(crate) take: Option<u8>,
}

impl Declaration {
    /// The same for the shipped rule.
    fn asked(&self, fence: &Fence) -> pgpalisade_authority::Declaration {
        let compares = self.take.is_some() && fence.keeps(Guard::TakeCompares);
        let claim = match stored(self.token) {
            Some(token) if !compares => Claim::Token(token),
            _ => Claim::After(stored(self.token - 1)),
        };
        let take = self
            .take
            .map(|number| TakeId::new(backend(self.id), number.into()));
        let (scope, cluster) = (Scope::default(), cluster(self.postmaster));
        let registers = self.purpose == Purpose::Observe && fence.keeps(Guard::ObservedRegister);
        pgpalisade_authority::Declaration {
            take,
            if_stale: if registers {
                IfStale::Register
            } else {
                IfStale::Refuse
            },
            ..pgpalisade_authority::Declaration::new(&scope, claim, backend(self.id), cluster, "")
        }
    }
}

/// A token as a store keeps it, `None` for 0.
fn stored(token: Token) -> Option<pgpalisade_authority::Token> {
    pgpalisade_authority::Token::new(token.into()).ok()
}

fn modelled(token: pgpalisade_authority::Token) -> Token {
    Token::try_from(token.get()).unwrap_or(Token::MAX)
}

/// A backend that no other session shares.
fn backend(id: Id) -> Backend {
    Backend {
        pid: 1,
        started_us: i64::try_from(id).unwrap_or(i64::MAX),
    }
}

fn cluster(postmaster: Postmaster) -> Cluster {
    Cluster {
        system_identifier: 1,
        timeline: 1,
        postmaster_us: postmaster.into(),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Registry {
    pub(crate) mark: Token,
    /// The take that raised it.
    pub(crate) taken: Option<(Id, u8)>,
    /// Whether no lower session is left.
    pub(crate) is_drained: bool,
    /// Token of each registered session, 0 without a record.
    pub(crate) records: [Token; SESSIONS],
    /// Postmaster on record.
    pub(crate) postmaster: Postmaster,
    /// Rises from time to time, together with the cluster's witness.
    pub(crate) epoch: u8,
}

impl Registry {
    pub(crate) const EMPTY: Self = Self {
        mark: 0,
        taken: None,
        is_drained: false,
        records: [0; SESSIONS],
        postmaster: ORIGINAL,
        epoch: 0,
    };

    pub(crate) fn sessions(&self) -> Set {
        Set::of(|id| self.records[id] > 0)
    }

    fn lower(&self, token: Token) -> Set {
        Set::of(|id| (1..token).contains(&self.records[id]))
    }

    /// The mark as a store keeps it.
    fn row(&self, fence: &Fence) -> Option<MarkRow> {
        let taken = self.taken.filter(|_| fence.keeps(Guard::TakeIsRecognised));
        let mark = Mark::new(stored(self.mark)?, 0, String::new());
        Some(MarkRow {
            mark,
            drained: self.is_drained,
            taken: taken.map(|(id, number)| TakeId::new(backend(id), number.into())),
        })
    }

    /// [`rule::declare`]. It decides by `known`, which is the stored state unless a guard is disabled.
    pub(crate) fn declare(
        &mut self,
        fence: &Fence,
        known: &Self,
        declaration: Declaration,
        pids: &[Pid; SESSIONS],
    ) -> Answer {
        let Declaration { id, take, .. } = declaration;
        let mut asked = declaration.asked(fence);
        if !fence.keeps(Guard::PostmasterOnRecord) {
            asked.cluster = cluster(known.postmaster);
        }
        let recorded = Some(cluster(known.postmaster));
        let ruling = rule::declare(recorded, known.row(fence), &asked, 0);
        if let Some(row) = &ruling.writes {
            let token = modelled(row.mark.token);
            if self.mark < token {
                (self.mark, self.is_drained) = (token, false);
                self.taken = take.map(|number| (id, number));
            } else if fence.keeps(Guard::ObservedUndrain) {
                self.is_drained = false;
            }
        }
        if let Some(session) = ruling.registers
            && fence.keeps(Guard::RegisterFirst)
        {
            self.register(fence, modelled(session.token), id, pids);
        }
        match ruling.answer {
            Declared::Accepted { mark, .. } => {
                let token = modelled(mark.token);
                let lower = match ruling.lists {
                    Some(_) => known.lower(token),
                    None => Set::default(),
                };
                let lower = Set::of(|other| lower.has(other) && other != id);
                self.is_drained |= lower.is_empty() && self.lower(token).is_empty();
                Answer::Accepted { lower }
            }
            Declared::OtherCluster { .. } => Answer::OtherPostmaster,
            _ => Answer::Stale { mark: known.mark },
        }
    }

    /// [`Cluster::follows`]. Returns whether the postmaster is on record now.
    pub(crate) fn enrol(&mut self, fence: &Fence, postmaster: Postmaster) -> bool {
        let follows = cluster(postmaster).follows(&cluster(self.postmaster));
        if !follows && fence.keeps(Guard::PostmasterOnlyRises) {
            return false;
        }
        self.postmaster = postmaster;
        true
    }

    /// Never lowers a record.
    pub(crate) fn register(&mut self, fence: &Fence, token: Token, id: Id, pids: &[Pid; SESSIONS]) {
        if !fence.keeps(Guard::RecordsByStart) {
            self.forget(fence, Set::of(|other| other == id), pids);
        }
        self.records[id] = self.records[id].max(token);
    }

    /// `Records::drained`: removes lower sessions that are gone, and returns the rest.
    pub(crate) fn drained(&mut self, fence: &Fence, token: Token, gone: Set) -> Set {
        let lower = self.lower(token);
        for id in (0..SESSIONS).filter(|id| gone.has(*id) && lower.has(*id)) {
            self.records[id] = 0;
        }
        let left = self.lower(token);
        if !left.is_empty() && fence.keeps(Guard::DrainedLooks) {
            return left;
        }
        if self.mark == token || !fence.keeps(Guard::DrainedForTheMark) {
            self.is_drained = true;
        }
        Set::default()
    }

    /// `Records::forget`.
    pub(crate) fn forget(&mut self, fence: &Fence, gone: Set, pids: &[Pid; SESSIONS]) {
        let by_pid = |id: Id| (0..SESSIONS).any(|g| gone.has(g) && pids[g] == pids[id]);
        for id in 0..SESSIONS {
            let matches = if fence.keeps(Guard::RecordsByStart) {
                gone.has(id)
            } else {
                gone.has(id) || by_pid(id)
            };
            if matches {
                self.records[id] = 0;
            }
        }
    }
}
