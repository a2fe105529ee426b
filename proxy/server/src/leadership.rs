//! Leadership of this proxy in a scope: the token that it gives to the sessions of a listener.
//!
//! The proxy campaigns for the lease of the scope, or follows an election in which the replica beside it stands. Each
//! time that it leads is a [`Term`] with a token of its own. A connection joins the term before it declares the token.
//! At the end of the term all its connections are closed, and only then is the lease given back.

pub(crate) mod campaign;
mod number_file;
mod on_loss;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::Mutex;
use pgpalisade_authority::{Election, Scope, Token};
use pgpalisade_fence::TokenValue;
use pgpalisade_fence::mark_cache::CachedMark;
use pgpalisade_policies::{Mode, PoolMode};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::forced_end::{Cause, ForcedEnd, Loss};

pub use number_file::NumberFile;

/// What a listener gives to each of its sessions.
#[derive(Debug)]
pub struct Grant {
    pub leadership: Arc<Leadership>,
    pub without: Without,
    /// Time for which they have a server connection, if it is not that of the proxy.
    pub pool: Option<PoolMode>,
}

/// Sessions of the listener while this proxy does not lead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Without {
    /// Admitted without a token.
    Read,
    /// Refused at login.
    Refuse,
}

/// What makes this proxy lead.
#[derive(Debug)]
pub enum Source {
    /// It holds the lease of the scope, for which it campaigns.
    Lease,
    /// The replica beside it leads an election.
    Election(Box<dyn Election>),
}

/// Leadership in one scope, whether this proxy leads now or not.
#[derive(Debug)]
pub struct Leadership {
    scope: Scope,
    source: Source,
    /// Program and arguments that are run when a term ends; empty: nothing is run.
    on_loss: Vec<String>,
    term: Mutex<Option<Arc<Term>>>,
    /// Connections without a token, by their ids in the client table.
    without: Mutex<HashMap<u64, Arc<ForcedEnd>>>,
}

impl Leadership {
    pub const fn scope(&self) -> &Scope {
        &self.scope
    }

    /// The term, while this proxy leads.
    pub fn term(&self) -> Option<Arc<Term>> {
        let term = self.term.lock().clone();
        term.filter(|term| term.is_current())
    }

    /// Adds a connection that gets no token. It is closed once this proxy leads, and the mode says so.
    pub(crate) fn add_without_token(&self, id: u64, connection: Arc<ForcedEnd>, mode: Mode) {
        self.without.lock().insert(id, Arc::clone(&connection));
        // A term may have begun since the connection has looked.
        if mode == Mode::Enforce && self.term().is_some() {
            connection.order(Cause::LeadGained);
        }
    }

    pub(crate) fn remove_without_token(&self, id: u64) {
        self.without.lock().remove(&id);
    }

    /// Closes the term, and keeps its connections among those without a token.
    fn keep_without_token(&self, term: &Term) {
        let mut without = self.without.lock();
        without.extend(term.close());
    }

    /// Closes the connections that have no token, because a pool would keep them for good.
    fn end_those_without_token(&self) {
        for connection in self.without.lock().values() {
            connection.order(Cause::LeadGained);
        }
    }
}

/// Time in which this proxy leads a scope with one token.
#[derive(Debug)]
pub struct Term {
    pub scope: Scope,
    pub token: Token,
    pub since: SystemTime,
    /// Mark that was raised to the token.
    mark: Arc<CachedMark>,
    members: Mutex<Members>,
    left: Notify,
}

#[derive(Debug, Default)]
struct Members {
    is_over: bool,
    /// By their ids in the client table.
    connections: HashMap<u64, Arc<ForcedEnd>>,
}

impl Term {
    fn new(mark: Arc<CachedMark>, token: Token) -> Arc<Self> {
        Arc::new(Self {
            scope: mark.scope().clone(),
            token,
            since: SystemTime::now(),
            mark,
            members: Mutex::default(),
            left: Notify::new(),
        })
    }

    /// Value that declares its token.
    pub(crate) fn value(&self) -> TokenValue {
        TokenValue::of(std::iter::once((self.scope.clone(), self.token)))
    }

    fn is_current(&self) -> bool {
        self.mark.is_current(self.token)
    }

    /// Adds a connection, unless the term is over. Returns whether it was added.
    pub(crate) fn add(&self, id: u64, connection: Arc<ForcedEnd>) -> bool {
        let mut members = self.members.lock();
        if !members.is_over {
            members.connections.insert(id, connection);
        }
        !members.is_over
    }

    /// Removes a connection whose sockets are closed.
    pub(crate) fn remove(&self, id: u64) {
        let mut members = self.members.lock();
        members.connections.remove(&id);
        if members.connections.is_empty() {
            self.left.notify_one();
        }
    }

    /// Lets no connection join any more, and returns those that have.
    fn close(&self) -> HashMap<u64, Arc<ForcedEnd>> {
        let mut members = self.members.lock();
        members.is_over = true;
        members.connections.clone()
    }

    fn is_empty(&self) -> bool {
        self.members.lock().connections.is_empty()
    }

    /// Ends the term: closes all its connections, and waits until none is left. One task may wait.
    async fn end(&self, loss: Loss) {
        for connection in self.close().values() {
            connection.order(Cause::TermEnded(loss));
        }
        while !self.is_empty() {
            self.left.notified().await;
        }
    }
}

/// All scopes that this proxy leads, or would lead.
#[derive(Debug, Clone, Default)]
pub struct Leaderships {
    all: Vec<Arc<Leadership>>,
    campaigns: TaskTracker,
    closing: CancellationToken,
    stop: CancellationToken,
}

impl Leaderships {
    /// The leadership in a scope that was added.
    pub fn find(&self, scope: &Scope) -> Option<&Arc<Leadership>> {
        self.all.iter().find(|known| known.scope == *scope)
    }

    /// Adds the leadership in a scope that has none yet.
    pub fn add(&mut self, scope: Scope, source: Source, on_loss: Vec<String>) -> Arc<Leadership> {
        let new = Arc::new(Leadership {
            scope,
            source,
            on_loss,
            term: Mutex::default(),
            without: Mutex::default(),
        });
        self.all.push(Arc::clone(&new));
        new
    }

    pub fn all(&self) -> &[Arc<Leadership>] {
        &self.all
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use pgpalisade_authority::Mark;
    use pgpalisade_fence::mark_cache::MarkCache;
    use pgpalisade_logins::ClientAddr;

    use super::*;
    use crate::client_table::ClientTable;

    fn token(value: u64) -> Token {
        Token::new(value).unwrap()
    }

    /// A leadership with a term of token 7, and the marks that decide it.
    fn leading() -> (Leadership, Arc<Term>, MarkCache) {
        let (marks, scope) = (MarkCache::default(), Scope::default());
        marks.note(&scope, &Mark::new(token(7), 1, "us".to_owned()));
        let term = Term::new(marks.mark(&scope), token(7));
        let leadership = Leadership {
            scope,
            source: Source::Lease,
            on_loss: Vec::new(),
            term: Mutex::new(Some(Arc::clone(&term))),
            without: Mutex::default(),
        };
        (leadership, term, marks)
    }

    /// The lease is given back after this wait, so it must not end before the last connection is closed.
    #[test]
    fn the_end_of_a_term_waits_for_its_connections() {
        let (leadership, term, _marks) = leading();
        let table = ClientTable::default();
        let clients = [ClientAddr::Local; 4].map(|addr| table.enter(addr, None));
        let [first, second, third, observed] = clients;
        assert!(first.entry().join(&leadership, Mode::Enforce).is_some());
        assert!(second.entry().join(&leadership, Mode::Enforce).is_some());
        let mut cx = Context::from_waker(Waker::noop());
        let mut ending = pin!(term.end(Loss::Lease));
        assert_eq!(ending.as_mut().poll(&mut cx), Poll::Pending);
        let ended = Some(Cause::TermEnded(Loss::Lease));
        assert_eq!(
            [first.entry().end.cause(), second.entry().end.cause()],
            [ended; 2]
        );
        // One that comes now gets no token, though the term is not yet taken away: it is to connect again.
        assert!(third.entry().join(&leadership, Mode::Enforce).is_none());
        assert_eq!(third.entry().end.cause(), Some(Cause::LeadGained));
        let joined = observed.entry().join(&leadership, Mode::Observe);
        assert!(joined.is_none() && observed.entry().end.cause().is_none());
        drop(first);
        assert_eq!(ending.as_mut().poll(&mut cx), Poll::Pending);
        drop(second);
        assert_eq!(ending.as_mut().poll(&mut cx), Poll::Ready(()));
    }

    #[test]
    fn a_token_below_the_mark_is_given_to_nobody() {
        let (leadership, term, marks) = leading();
        let listed = ClientTable::default().enter(ClientAddr::Local, None);
        marks.note(&term.scope, &Mark::new(token(8), 2, "them".to_owned()));
        assert!(
            leadership.term().is_none()
                && listed.entry().join(&leadership, Mode::Enforce).is_none()
        );
    }
}
