//! The client connections that the console shows.
//!
//! A session stores one byte whenever it has decided all that came, and its server process when it is lent one. The
//! rest changes at login and with the tokens, under a lock.

use std::sync::atomic::{AtomicI32, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use dashmap::DashMap;
use parking_lot::Mutex;
use pgpalisade_fence::HeldTokens;
use pgpalisade_logins::{ClientAddr, SessionLabel};
use pgpalisade_policies::{Leftover, Mode, PoolMode};
use pgpalisade_session::Activity;
use strum::{FromRepr, IntoStaticStr, VariantArray};

use crate::forced_end::{Cause, ForcedEnd};
use crate::leadership::{Grant, Leadership, Term};

/// Activity of a client, in the words of `pg_stat_activity` if it has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromRepr, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "lowercase")]
#[repr(u8)]
pub enum ClientState {
    #[strum(serialize = "login")]
    LoggingIn,
    Streaming,
    Idle,
    Active,
    #[strum(serialize = "idle in transaction")]
    InTransaction,
    #[strum(serialize = "idle in transaction (aborted)")]
    InFailedTransaction,
}

impl From<Activity> for ClientState {
    fn from(activity: Activity) -> Self {
        match activity {
            Activity::Idle => Self::Idle,
            Activity::Active => Self::Active,
            Activity::InTransaction => Self::InTransaction,
            Activity::InFailedTransaction => Self::InFailedTransaction,
        }
    }
}

impl ClientState {
    /// Whether a transaction is open or a statement in progress.
    pub const fn is_busy(self) -> bool {
        match self {
            Self::LoggingIn | Self::Streaming | Self::Idle => false,
            Self::Active | Self::InTransaction | Self::InFailedTransaction => true,
        }
    }

    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encryption {
    None,
    Tls,
}

#[derive(Debug, Clone, Default)]
pub struct ClientTable {
    entries: Arc<DashMap<u64, Arc<ClientEntry>>>,
    last: Arc<AtomicU64>,
}

impl ClientTable {
    pub(crate) fn enter(&self, client_addr: ClientAddr, grant: Option<Arc<Grant>>) -> Listed {
        let id = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let entry = Arc::new(ClientEntry {
            id,
            since: SystemTime::now(),
            state: AtomicU8::new(ClientState::LoggingIn as u8),
            server_pid: AtomicI32::new(0),
            left: AtomicU8::new(0),
            end: Arc::default(),
            grant,
            term: OnceLock::new(),
            facts: Mutex::new(Facts {
                client_addr,
                label: None,
                encryption: Encryption::None,
                pool_mode: PoolMode::Session,
                tokens: None,
            }),
        });
        self.entries.insert(id, Arc::clone(&entry));
        Listed {
            table: self.clone(),
            entry,
        }
    }

    pub fn all(&self) -> Vec<Arc<ClientEntry>> {
        let mut all: Vec<_> = self
            .entries
            .iter()
            .map(|entry| Arc::clone(&entry))
            .collect();
        all.sort_unstable_by_key(|entry| entry.id);
        all
    }

    pub fn count(&self) -> usize {
        self.entries.len()
    }

    /// Ends all connections.
    pub(crate) fn end_all(&self, cause: Cause) {
        for entry in self.all() {
            entry.end.order(cause);
        }
    }

    /// Ends a connection. Returns whether it exists.
    pub fn kill(&self, id: u64) -> bool {
        // A separate look-up, to release its lock at once.
        let entry = self.entries.get(&id).map(|entry| Arc::clone(&entry));
        entry.is_some_and(|entry| {
            entry.end.order(Cause::Killed);
            true
        })
    }
}

#[derive(Debug)]
pub(crate) struct Listed {
    table: ClientTable,
    entry: Arc<ClientEntry>,
}

impl Listed {
    pub(crate) const fn entry(&self) -> &Arc<ClientEntry> {
        &self.entry
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.table.entries.remove(&self.entry.id);
        self.entry.leave_term();
        if let Some(grant) = &self.entry.grant {
            grant.leadership.remove_without_token(self.entry.id);
        }
    }
}

#[derive(Debug)]
pub struct ClientEntry {
    pub id: u64,
    pub since: SystemTime,
    state: AtomicU8,
    /// 0 without a server connection.
    server_pid: AtomicI32,
    /// Place in [`Leftover::ALL`] from 1 on; 0 for none.
    left: AtomicU8,
    pub(crate) end: Arc<ForcedEnd>,
    /// Token that the listener gives.
    grant: Option<Arc<Grant>>,
    term: OnceLock<Arc<Term>>,
    facts: Mutex<Facts>,
}

#[derive(Debug, Clone)]
pub struct Facts {
    pub client_addr: ClientAddr,
    /// Identity from the startup packet; authenticated if it has a server process id.
    pub label: Option<Arc<SessionLabel>>,
    pub encryption: Encryption,
    pub pool_mode: PoolMode,
    pub tokens: Option<Arc<HeldTokens>>,
}

impl ClientEntry {
    /// Publishes the state with one relaxed store.
    #[inline]
    pub(crate) fn set_state(&self, state: ClientState) {
        self.state.store(state as u8, Ordering::Relaxed);
    }

    pub fn state(&self) -> ClientState {
        let state = ClientState::from_repr(self.state.load(Ordering::Relaxed));
        state.unwrap_or(ClientState::LoggingIn)
    }

    pub(crate) fn set_label(&self, label: &Arc<SessionLabel>, encryption: Encryption) {
        let mut facts = self.facts.lock();
        facts.client_addr = label.client_addr;
        facts.label = Some(Arc::clone(label));
        facts.encryption = encryption;
    }

    /// Shows a client that PostgreSQL has admitted.
    pub(crate) fn admit(&self, label: &Arc<SessionLabel>, encryption: Encryption, mode: PoolMode) {
        self.set_label(label, encryption);
        self.facts.lock().pool_mode = mode;
        if mode == PoolMode::Session {
            self.set_server_pid(label.backend_pid);
        }
    }

    /// Publishes the server process that serves the client, with one relaxed store.
    pub(crate) fn set_server_pid(&self, pid: Option<i32>) {
        let pid = pid.unwrap_or_default();
        self.server_pid.store(pid, Ordering::Relaxed);
    }

    pub fn server_pid(&self) -> Option<i32> {
        let pid = self.server_pid.load(Ordering::Relaxed);
        (pid != 0).then_some(pid)
    }

    /// Thing for which the client keeps a lent server connection.
    pub fn leftover(&self) -> Option<Leftover> {
        let place = usize::from(self.left.load(Ordering::Relaxed)).checked_sub(1)?;
        Leftover::ALL.get(place).copied()
    }

    pub(crate) fn set_tokens(&self, tokens: Option<Arc<HeldTokens>>) {
        self.facts.lock().tokens = tokens;
    }

    pub fn tokens(&self) -> Option<Arc<HeldTokens>> {
        self.facts.lock().tokens.clone()
    }

    pub fn facts(&self) -> Facts {
        self.facts.lock().clone()
    }

    pub(crate) const fn grant(&self) -> Option<&Arc<Grant>> {
        self.grant.as_ref()
    }

    /// Notes that the connection's sockets are closed, if it is part of a term.
    pub(crate) fn leave_term(&self) {
        if let Some(term) = self.term.get() {
            term.remove(self.id);
        }
    }

    /// Makes the connection part of the term, until its sockets are closed. `None`: this proxy does not lead, and the
    /// connection is closed once it does.
    pub(crate) fn join(&self, leadership: &Leadership, mode: Mode) -> Option<Arc<Term>> {
        let joined = leadership.term().filter(|term| {
            let is_first = self.term.set(Arc::clone(term)).is_ok();
            is_first && term.add(self.id, Arc::clone(&self.end))
        });
        if joined.is_none() {
            leadership.add_without_token(self.id, Arc::clone(&self.end), mode);
        }
        joined
    }
}

/// A session's view of its entry, which publishes only changes.
#[derive(Debug)]
pub(crate) struct Publisher {
    entry: Arc<ClientEntry>,
    tokens: Option<Arc<HeldTokens>>,
    left: Option<Leftover>,
}

impl Publisher {
    pub(crate) const fn new(entry: Arc<ClientEntry>) -> Self {
        Self {
            entry,
            tokens: None,
            left: None,
        }
    }

    /// Publishes for what the client keeps a lent server connection. Returns whether it has kept none before.
    pub(crate) fn keeps(&mut self, left: Option<Leftover>) -> bool {
        if self.left == left {
            return false;
        }
        let place = left.map_or(0, |left| left as u8 + 1);
        self.entry.left.store(place, Ordering::Relaxed);
        std::mem::replace(&mut self.left, left).is_none()
    }

    #[inline]
    pub(crate) const fn entry(&self) -> &Arc<ClientEntry> {
        &self.entry
    }

    #[inline]
    pub(crate) fn publish(&mut self, activity: Activity, tokens: Option<&Arc<HeldTokens>>) {
        self.entry.set_state(activity.into());
        let is_shown = match (&self.tokens, tokens) {
            (None, None) => true,
            (Some(shown), Some(tokens)) => Arc::ptr_eq(shown, tokens),
            _ => false,
        };
        if !is_shown {
            self.tokens = tokens.cloned();
            self.entry.set_tokens(self.tokens.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_leaves_is_gone_and_no_number_comes_twice() {
        let table = ClientTable::default();
        let [first, second] = [ClientAddr::Local; 2].map(|addr| table.enter(addr, None));
        let ids = |table: &ClientTable| -> Vec<u64> {
            table.all().iter().map(|entry| entry.id).collect()
        };
        assert_eq!(ids(&table), [1, 2]);
        drop(first);
        let third = table.enter(ClientAddr::Local, None);
        assert_eq!(ids(&table), [2, 3]);
        assert!(!table.kill(1));
        assert!(
            table.kill(3)
                && third.entry().end.cause().is_some()
                && second.entry().end.cause().is_none()
        );
    }

    #[tokio::test]
    async fn a_kill_is_seen_before_and_after_it_is_waited_for() {
        let table = ClientTable::default();
        let listed = table.enter(ClientAddr::Local, None);
        let entry = Arc::clone(listed.entry());
        let waiting = tokio::spawn(async move { entry.end.ordered().await });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        assert!(table.kill(listed.entry().id));
        waiting.await.unwrap();
        listed.entry().end.ordered().await;
    }

    #[test]
    fn what_is_left_has_a_place() {
        let listed = ClientTable::default().enter(ClientAddr::Local, None);
        let mut shown = Publisher::new(Arc::clone(listed.entry()));
        assert!(!shown.keeps(None));
        for &left in Leftover::ALL {
            assert!(shown.keeps(Some(left)));
            assert_eq!(listed.entry().leftover(), Some(left));
            assert!(!shown.keeps(Some(left)) && !shown.keeps(None));
            assert_eq!(listed.entry().leftover(), None);
        }
    }

    #[test]
    fn states_have_numbers() {
        for &state in ClientState::VARIANTS {
            let listed = ClientTable::default().enter(ClientAddr::Local, None);
            assert_eq!(listed.entry().state(), ClientState::LoggingIn);
            listed.entry().set_state(state);
            assert_eq!(listed.entry().state(), state);
        }
    }
}
