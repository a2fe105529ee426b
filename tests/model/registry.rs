//! The authority: the mark, the register of sessions, and its steps. Each is atomic, as in
//! `token-authority/src/embedded/tables.rs`, which has the same names.

use crate::guards::Guard;
use crate::world::Fence;

/// A fencing token. 0 stands for none.
pub(crate) type Token = u8;
/// The number of a session, and of its backend: a session has one backend in its life. It is also what
/// `backend_start` is in the real thing, for no two backends share it.
pub(crate) type Id = usize;
/// A process id. It comes back once its process is gone.
pub(crate) type Pid = u8;

/// Sessions in every scene.
pub(crate) const SESSIONS: usize = 3;

/// A set of sessions.
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

/// The answer to a declaration. As `Declared`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Answer {
    /// The mark is above the token. It has not changed.
    Stale { mark: Token },
    /// Another postmaster is on record. Nothing has changed.
    OtherPostmaster,
    /// On the register. These have to be gone first.
    Accepted { lower: Set },
}

/// Whether a lower session may be left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Drained {
    Yes,
    No,
}

/// What a declaration is for. As `Purpose`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Purpose {
    Admit,
    Observe,
}

/// The number of a postmaster, in the order in which they began.
pub(crate) type Postmaster = u8;
/// The one of the cluster.
pub(crate) const ORIGINAL: Postmaster = 1;
/// That of a copy of its storage, which is made of what it has written, or that of its successor.
pub(crate) const LATER: Postmaster = 2;

/// A declaration as it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Declaration {
    pub(crate) token: Token,
    pub(crate) id: Id,
    pub(crate) purpose: Purpose,
    /// That of the session's backend.
    pub(crate) postmaster: Postmaster,
    /// Where it is a take: which of the session's, for the mark in front of the token.
    pub(crate) take: Option<u8>,
}

/// What is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Registry {
    pub(crate) mark: Token,
    /// The take that raised it.
    pub(crate) taken: Option<(Id, u8)>,
    pub(crate) drained: Drained,
    /// The token of each registered session, 0 where it has no record.
    pub(crate) records: [Token; SESSIONS],
    /// The postmaster on record.
    pub(crate) postmaster: Postmaster,
    /// Counts up now and then, and the cluster's witness with it.
    pub(crate) epoch: u8,
}

impl Registry {
    pub(crate) const EMPTY: Self = Self {
        mark: 0,
        taken: None,
        drained: Drained::No,
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

    /// `Tables::declare`. `known` is what the decision is taken on: what is stored, unless a guard is out.
    pub(crate) fn declare(
        &mut self,
        fence: &Fence,
        known: &Self,
        declaration: Declaration,
        pids: &[Pid; SESSIONS],
    ) -> Answer {
        let Declaration {
            token,
            id,
            purpose,
            postmaster,
            take,
        } = declaration;
        if known.postmaster != postmaster && fence.keeps(Guard::PostmasterOnRecord) {
            return Answer::OtherPostmaster;
        }
        if !known.lets_take(fence, declaration) {
            return Answer::Stale { mark: known.mark };
        }
        if known.mark > token {
            if purpose == Purpose::Observe && fence.keeps(Guard::ObservedRegister) {
                self.register(fence, token, id, pids);
                if fence.keeps(Guard::ObservedUndrain) {
                    self.drained = Drained::No;
                }
            }
            return Answer::Stale { mark: known.mark };
        }
        if self.mark < token {
            self.mark = token;
            self.taken = take.map(|number| (id, number));
            self.drained = Drained::No;
        }
        if fence.keeps(Guard::RegisterFirst) {
            self.register(fence, token, id, pids);
        }
        let lower = match known.drained {
            Drained::Yes if known.mark == token => Set::default(),
            Drained::Yes | Drained::No => known.lower(token),
        };
        let lower = Set::of(|other| lower.has(other) && other != id);
        if lower.is_empty() && self.lower(token).is_empty() {
            self.drained = Drained::Yes;
        }
        Answer::Accepted { lower }
    }

    /// `MarkRow::judge`, of a take: the mark is the one in front of the token, or this very take has raised it.
    fn lets_take(&self, fence: &Fence, declaration: Declaration) -> bool {
        let Some(number) = declaration.take else {
            return true;
        };
        let is_own = self.taken == Some((declaration.id, number)) && self.mark == declaration.token;
        let follows = self.mark + 1 == declaration.token || !fence.keeps(Guard::TakeCompares);
        follows || (is_own && fence.keeps(Guard::TakeIsRecognised))
    }

    /// `Tables::enrol`. Says whether the postmaster is on record now.
    pub(crate) fn enrol(&mut self, fence: &Fence, postmaster: Postmaster) -> bool {
        if self.postmaster > postmaster && fence.keeps(Guard::PostmasterOnlyRises) {
            return false;
        }
        self.postmaster = postmaster;
        true
    }

    /// Never down: a record that is as high stays as it is.
    pub(crate) fn register(&mut self, fence: &Fence, token: Token, id: Id, pids: &[Pid; SESSIONS]) {
        if !fence.keeps(Guard::RecordsByStart) {
            self.forget(fence, Set::of(|other| other == id), pids);
        }
        self.records[id] = self.records[id].max(token);
    }

    /// `Tables::drained`: removes what is gone and lower. The answer is what is left.
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
            self.drained = Drained::Yes;
        }
        Set::default()
    }

    /// `Tables::forget`.
    pub(crate) fn forget(&mut self, fence: &Fence, gone: Set, pids: &[Pid; SESSIONS]) {
        let by_pid = |id: Id| (0..SESSIONS).any(|g| gone.has(g) && pids[g] == pids[id]);
        for id in 0..SESSIONS {
            let matches = match fence.keeps(Guard::RecordsByStart) {
                true => gone.has(id),
                false => gone.has(id) || by_pid(id),
            };
            if matches {
                self.records[id] = 0;
            }
        }
    }
}
