//! The promises of the pool, and a ledger of what the driver has really done.

use std::collections::BTreeMap;
use std::time::Duration;

use super::random::Draw;
use crate::{Access, BackendId, ClientId};

/// A promise that a run has broken.
pub(super) type Broken = &'static str;

pub(super) const TWO_OWNERS: Broken = "a backend is lent while it is not idle";
pub(super) const OTHER_LOGIN: Broken = "a backend of another login is lent";
pub(super) const OTHER_ACCESS: Broken = "a backend of another access is lent";
pub(super) const USED: Broken = "a backend that is not new is lent for a login";
pub(super) const UNCLEAR: Broken = "a backend is lent whose registration ended unclear";
pub(super) const LEAK: Broken = "what a client has left is seen by another";
pub(super) const LINGERS: Broken = "what a client has left outlives it";
pub(super) const DEAD: Broken = "a backend is lent that is known to be dead";
pub(super) const NOT_WAITING: Broken = "a client that does not wait is served";
pub(super) const OUT_OF_TURN: Broken = "a client is served before one of its key that waits longer";
pub(super) const OVER_BUDGET: Broken = "more places than there are";
pub(super) const OVER_LOGIN: Broken = "more backends of a login than its limit";
pub(super) const OVER_PINNED: Broken = "more pinned backends than the limit";
pub(super) const HAMMERS: Broken = "openings of a login without pause, or too many at a time";
pub(super) const RESERVE: Broken = "a client without a token gets the reserve";
pub(super) const UNSERVED: Broken = "a client waits beside a backend for it";
pub(super) const TOO_EARLY: Broken = "a wait ends before its time";
pub(super) const ENDLESS: Broken = "a wait does not end";
pub(super) const STARVED: Broken = "a client starves";
pub(super) const NOT_DRAINED: Broken = "the pool does not empty";

pub(super) const LOGINS: usize = 3;
const ACCESSES: usize = 4;

/// Index of an access in a table.
pub(super) fn column(access: &Access<u8>) -> usize {
    match access {
        Access::ReadOnly => 0,
        Access::Tokens(token) => 1 + usize::from(*token),
        Access::New => 3,
    }
}

const TOKENS: [usize; 2] = [1, 2];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Doing {
    Opening,
    Idle,
    /// Lent to a client that wanted this access.
    Lent(ClientId, usize),
    Resetting,
    Closing,
}

/// A server process, as it is.
pub(super) struct Server {
    pub(super) login: u8,
    pub(super) access: Access<u8>,
    pub(super) doing: Doing,
    /// Client whose settings and locks it has.
    pub(super) residue: Option<ClientId>,
    pub(super) is_new: bool,
    pub(super) is_unclear: bool,
    pub(super) is_pinned: bool,
    pub(super) is_dead: bool,
    pub(super) is_known_dead: bool,
}

/// Numbers of one login, by access.
#[derive(Clone, Copy, Default)]
pub(super) struct Counts {
    pub(super) waiting: [usize; ACCESSES],
    idle: [usize; ACCESSES],
    resetting: [usize; ACCESSES],
    lent: [usize; ACCESSES],
    opening: usize,
    places: usize,
}

#[derive(Default)]
pub(super) struct Truth {
    pub(super) servers: BTreeMap<BackendId, Server>,
    pub(super) counts: [Counts; LOGINS],
    pub(super) pinned: usize,
}

impl Truth {
    pub(super) fn add(&mut self, id: BackendId, server: Server) {
        let counts = &mut self.counts[usize::from(server.login)];
        counts.places += 1;
        counts.opening += 1;
        self.servers.insert(id, server);
    }

    fn count(&mut self, login: u8, access: &Access<u8>, doing: Doing) -> Option<&mut usize> {
        let (counts, column) = (&mut self.counts[usize::from(login)], column(access));
        Some(match doing {
            Doing::Opening => &mut counts.opening,
            Doing::Idle => &mut counts.idle[column],
            Doing::Lent(_, wanted) => &mut counts.lent[wanted],
            Doing::Resetting => &mut counts.resetting[column],
            Doing::Closing => return None,
        })
    }

    pub(super) fn does(&mut self, id: BackendId, doing: Doing) {
        let Some(server) = self.servers.get_mut(&id) else {
            return;
        };
        let before = std::mem::replace(&mut server.doing, doing);
        let (login, access) = (server.login, server.access.clone());
        if let Some(count) = self.count(login, &access, before) {
            *count -= 1;
        }
        if let Some(count) = self.count(login, &access, doing) {
            *count += 1;
        }
        self.pin(id, false);
    }

    pub(super) fn pin(&mut self, id: BackendId, is_pinned: bool) {
        if let Some(server) = self.servers.get_mut(&id) {
            self.pinned -= usize::from(server.is_pinned);
            self.pinned += usize::from(is_pinned);
            server.is_pinned = is_pinned;
        }
    }

    pub(super) fn remove(&mut self, id: BackendId) -> Option<Server> {
        let doing = self.servers.get(&id)?.doing;
        self.does(id, Doing::Closing);
        let mut server = self.servers.remove(&id)?;
        server.doing = doing;
        self.counts[usize::from(server.login)].places -= 1;
        Some(server)
    }

    /// Clients without tokens that have a backend.
    pub(super) fn readers(&self) -> usize {
        self.counts.iter().map(|counts| counts.lent[0]).sum()
    }

    /// Promise that is broken once all orders are carried out.
    pub(super) fn at_rest(&self, draw: &Draw) -> Option<Broken> {
        let limits = &draw.limits;
        let may_read = self.readers() < draw.reads;
        for counts in &self.counts {
            if counts.places > limits.login {
                return Some(OVER_LOGIN);
            }
            if counts.opening > 4 {
                return Some(HAMMERS);
            }
            if counts.waiting == [0; ACCESSES] {
                continue;
            }
            let own = |at: usize| counts.waiting[at].saturating_sub(counts.resetting[at]);
            let is_beside_own = |at: usize| own(at) > 0 && counts.idle[at] > 0;
            let leaders: usize = TOKENS.into_iter().map(own).sum();
            let readers = if may_read { counts.waiting[0] } else { 0 };
            let all = (readers + leaders).saturating_sub(counts.resetting[0]);
            let is_beside = all > 0 && counts.idle[0] > 0;
            if is_beside || (1..ACCESSES).any(is_beside_own) {
                return Some(UNSERVED);
            }
        }
        None
    }

    pub(super) fn is_empty(&self) -> bool {
        self.servers.is_empty()
    }
}

/// A client, and its backend.
pub(super) struct Client {
    pub(super) login: u8,
    pub(super) access: Access<u8>,
    /// Rank and begin of its wait.
    pub(super) waits: Option<(u64, Duration)>,
    pub(super) has: Option<BackendId>,
}
