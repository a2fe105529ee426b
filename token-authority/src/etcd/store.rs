//! Steps on etcd, and reads at one revision, for all parts of the store.

use std::fmt::Display;
use std::time::Duration;

use etcd_client::{Compare, CompareOp, GetOptions, KeyValue, Txn, TxnOp, TxnOpResponse};

use super::fault::{Ended, EtcdFault, FaultKind};
use super::history::History;
use super::keys::{self, Keys, NotOurs, Range};
use super::lease::Abandoned;
use super::marks::{Known, Marks};
use super::members::Members;
use crate::watchers::Watchers;
use crate::{Answer, AuthorityError, AuthorityId, Mark, Scope};

/// Records in one answer: some hundred bytes each, and tonic accepts answers of up to 4 MiB.
pub(super) const PAGE: i64 = 2000;
/// Operations of a step. etcd's default limit is 128, including conditions and the two of [`EtcdStore::step`].
pub(super) const OPERATIONS_MAX: usize = 120;
/// Attempts to read while the revision keeps being compacted.
const COMPACTIONS_MAX: u32 = 3;

/// State shared by all handles and the watch.
#[derive(Debug)]
pub(super) struct EtcdStore {
    pub(super) keys: Keys,
    pub(super) members: Members,
    pub(super) identity: AuthorityId,
    pub(super) history: History,
    pub(super) marks: Marks,
    pub(super) watchers: Watchers,
    pub(super) abandoned: Abandoned,
}

#[derive(Debug)]
pub(super) struct Stepped {
    /// Revision of the store right after the step.
    pub(super) revision: i64,
    /// The conditions held, so `then` was executed; else `otherwise`.
    pub(super) taken: bool,
    /// Answers to the executed operations.
    pub(super) answers: Vec<TxnOpResponse>,
}

impl EtcdStore {
    /// Takes one step, if the identity of the store is still the known one. If an answer is lost, the step may be
    /// taken twice.
    ///
    /// At least one operation of `then` must write, so that the step goes through etcd's log.
    pub(super) async fn step(
        &self,
        mut when: Vec<Compare>,
        then: Vec<TxnOp>,
        mut otherwise: Vec<TxnOp>,
    ) -> Answer<Stepped> {
        self.history.intact()?;
        let ours = keys::write_identity(self.identity);
        when.push(Compare::value(self.keys.identity(), CompareOp::Equal, ours));
        otherwise.push(TxnOp::get(self.keys.identity(), None));
        let txn = Txn::new().when(when).and_then(then).or_else(otherwise);
        let floor = self.history.floor();
        let answer = self.members.txn(&txn).await?;
        let revision = self.history.check(answer.header(), floor)?;
        let mut answers = answer.op_responses();
        let taken = answer.succeeded();
        if !taken {
            let identity = answers.pop();
            self.same_identity(found(identity.as_ref()))?;
        }
        Ok(Stepped {
            revision,
            taken,
            answers,
        })
    }

    pub(super) fn same_identity(&self, found: Option<&KeyValue>) -> Answer<()> {
        let Some(found) = found else {
            return Err(self.history.went_back("its identity is gone".to_owned()));
        };
        match keys::read_identity(found.value()) {
            Ok(identity) if identity == self.identity => Ok(()),
            Ok(other) => Err(self.history.went_back(format!(
                "its identity is {other}, but was {}",
                self.identity
            ))),
            Err(NotOurs::OtherFormat(format)) => {
                let why =
                    format!("another version has changed its format to {format}; use that version");
                Err(self.history.breaks(AuthorityError::Damaged(why)))
            }
            Err(NotOurs::Damaged(why)) => Err(AuthorityError::Damaged(why)),
        }
    }

    pub(super) fn learn(
        &self,
        scope: &Scope,
        revision: i64,
        found: Option<&KeyValue>,
    ) -> Answer<Option<Known>> {
        self.marks
            .learn(scope, revision, found)
            .map_err(|error| match error {
                AuthorityError::WentBack(what) => self.history.went_back(what),
                damaged => damaged,
            })
    }

    /// Condition that the mark of a scope is the known one, or missing.
    pub(super) fn mark_is(&self, scope: &Scope, known: Option<&Known>) -> Compare {
        let revision = known.map_or(0, |known| known.mod_revision);
        Compare::mod_revision(self.keys.mark(scope), CompareOp::Equal, revision)
    }

    pub(super) async fn mark(&self, scope: &Scope) -> Answer<Option<Mark>> {
        let read = vec![TxnOp::get(self.keys.mark(scope), None)];
        let stepped = self.sync(read).await?;
        let found = found(stepped.answers.last());
        let known = self.learn(scope, stepped.revision, found)?;
        Ok(known.map(|known| known.row.mark))
    }

    /// A step that changes only a key that nothing reads. Its revision is that of the newest state.
    pub(super) async fn sync(&self, then: Vec<TxnOp>) -> Answer<Stepped> {
        let mut all = vec![touch(&self.keys)];
        all.extend(then);
        let stepped = self.step(Vec::new(), all, Vec::new()).await?;
        if !stepped.taken {
            let why = "it refused a step without conditions".to_owned();
            return Err(AuthorityError::Damaged(why));
        }
        Ok(stepped)
    }

    /// All current keys of a range, read in pages, and their revision. If reading restarts, `read` is called again
    /// for every key.
    pub(super) async fn read_all<T>(
        &self,
        range: &Range,
        read: impl Fn(&KeyValue) -> Answer<T>,
    ) -> Answer<(i64, Vec<T>)> {
        let mut compactions = 0;
        loop {
            let revision = self.sync(Vec::new()).await?.revision;
            let mut all = Vec::new();
            match self.pages(range, revision, &read, &mut all).await {
                Ok(()) => return Ok((revision, all)),
                Err(Ended::Broken(fault))
                    if fault.kind == FaultKind::Compacted && compactions < COMPACTIONS_MAX =>
                {
                    compactions += 1;
                }
                Err(ended) => return Err(ended.into()),
            }
        }
    }

    /// Reads a range at the revision of a step. Any member may answer: one that lags refuses, and data of a past
    /// revision is final.
    pub(super) async fn pages<T>(
        &self,
        range: &Range,
        revision: i64,
        read: &impl Fn(&KeyValue) -> Answer<T>,
        all: &mut Vec<T>,
    ) -> Result<(), Ended> {
        let mut from = range.from.clone();
        loop {
            let options = GetOptions::new()
                .with_range(range.to.clone())
                .with_revision(revision)
                .with_limit(PAGE)
                .with_serializable();
            let page = self.members.get(&from, &options).await?;
            self.history.check(page.header(), 0)?;
            for kv in page.kvs() {
                all.push(read(kv)?);
            }
            match page.kvs().last() {
                Some(last) if page.more() => from = next_key(last.key()),
                _ => return Ok(()),
            }
        }
    }
}

/// Attempts of a step while the state it depends on keeps changing.
const CONFLICTS_MAX: u32 = 64;

#[derive(Default)]
pub(super) struct Conflicts(u32);

impl Conflicts {
    /// Counts a failed attempt. The first ones are normal races. After many the next one waits a moment, and finally
    /// the step gives up.
    pub(super) async fn again(&mut self, what: impl Display) -> Answer<()> {
        if self.0 > 2 {
            let most = 1_u64 << self.0.min(6);
            let pause = rand::random_range(0..=most);
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
        self.0 += 1;
        if self.0 >= CONFLICTS_MAX {
            return Err(AuthorityError::Unavailable(format!(
                "{what} was changed by another client {CONFLICTS_MAX} times in a row; try again"
            )));
        }
        Ok(())
    }
}

pub(super) fn next_key(key: &[u8]) -> Vec<u8> {
    let mut next = key.to_vec();
    next.push(0);
    next
}

/// Write for a step without any other write.
pub(super) fn touch(keys: &Keys) -> TxnOp {
    TxnOp::put(keys.sync(), Vec::new(), None)
}

/// Reads one page of a range in a step.
pub(super) fn page_of(range: &Range) -> TxnOp {
    let options = GetOptions::new()
        .with_range(range.to.clone())
        .with_limit(PAGE);
    TxnOp::get(range.from.clone(), Some(options))
}

pub(super) fn found(answer: Option<&TxnOpResponse>) -> Option<&KeyValue> {
    match answer? {
        TxnOpResponse::Get(get) => get.kvs().first(),
        _ => None,
    }
}

pub(super) fn unexpected() -> AuthorityError {
    EtcdFault::damaged("an answer of etcd does not fit the request").into()
}
