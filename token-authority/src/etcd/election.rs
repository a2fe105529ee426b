//! Candidate in an election of etcd, compatible with `etcdctl elect` and Go's `concurrency` package. So candidates of
//! any kind may take part.
//!
//! A candidate is a key below the election's, with a lease. The oldest key leads. Its creation revision is the
//! fencing token: etcd counts revisions up for the whole cluster.
//! <https://etcd.io/docs/v3.5/dev-guide/api_concurrency_reference_v3/>

use std::time::Duration;

use async_trait::async_trait;
use etcd_client::{
    Compare, CompareOp, GetOptions, PutOptions, SortOrder, SortTarget, Txn, TxnOp, TxnOpResponse,
};
use tokio::time::Instant;

use super::connect::client_options;
use super::fault::EtcdFault;
use super::lease;
use super::members::Members;
use super::options::Options;
use super::reported::CandidateStatus;
use super::store::found;
use crate::{Election, Leased, Mandate, OpenError, Standing, Token};

/// Time between two looks at a followed election.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Time for which an answer about a followed election counts. The key of a leader lives on while the leader renews its
/// lease, also if this proxy cannot read it.
const SURE_FOR: Duration = Duration::from_secs(10);

/// Lease, and its key in the queue of an election. Every call is limited in time, and tries one member after another.
#[derive(Debug)]
pub struct ElectionCandidate {
    members: Members,
    election: String,
    lease: i64,
}

impl ElectionCandidate {
    /// Acquires a lease, but does not join the queue yet. Must be called in the runtime that will run the
    /// connections.
    ///
    /// # Errors
    ///
    /// Unreadable files; endpoints that do not answer, or refuse.
    pub async fn register(
        options: &Options,
        election: &str,
        ttl: Duration,
    ) -> Result<Self, OpenError> {
        client_options(options).map_err(OpenError::Unusable)?;
        let members = Members::new(options);
        let granted = lease::grant(&members, ttl).await;
        let lease = granted.map_err(|fault| fault.explain(election))?;
        Ok(Self {
            members,
            election: election.to_owned(),
            lease,
        })
    }

    /// Joins the queue; `about` is shown to people. Returns the token of the term in which the candidate will lead.
    ///
    /// # Errors
    ///
    /// etcd does not answer, refuses, or has ended the lease.
    pub async fn join(&self, about: &str) -> Result<Token, OpenError> {
        let absent = Compare::version(self.key(), CompareOp::Equal, 0);
        let joined = self.put(about, absent).await?;
        joined.ok_or_else(|| self.explain(EtcdFault::damaged("its key is gone")))
    }

    /// Joins the queue if it is empty, in one step. `None`: it is not.
    ///
    /// # Errors
    ///
    /// Those of [`Self::join`].
    pub async fn join_alone(&self, about: &str) -> Result<Option<Token>, OpenError> {
        // Compared with every key of the queue: true if there is none.
        let line = Compare::create_revision(format!("{}/", self.election), CompareOp::Equal, 0);
        self.put(about, line.with_prefix()).await
    }

    /// Puts the key on this condition. `None`: the key is missing.
    async fn put(&self, about: &str, condition: Compare) -> Result<Option<Token>, OpenError> {
        let key = self.key();
        let options = PutOptions::new().with_lease(self.lease);
        let txn = Txn::new()
            .when(vec![condition])
            .and_then(vec![TxnOp::put(key.clone(), about, Some(options))])
            .or_else(vec![TxnOp::get(key, None)]);
        let answer = self.members.txn(&txn).await;
        let answer = answer.map_err(|fault| self.explain(fault))?;
        let made = if answer.succeeded() {
            answer.header().map(|header| header.revision())
        } else if let Some(key) = found(answer.op_responses().first()) {
            // The answer was lost, and the request repeated.
            Some(key.create_revision())
        } else {
            return Ok(None);
        };
        let token = made.and_then(number);
        let token =
            token.ok_or_else(|| self.explain(EtcdFault::damaged("its key has no revision")));
        token.map(Some)
    }

    /// Reads the candidate's status.
    ///
    /// # Errors
    ///
    /// etcd does not answer, or refuses.
    pub async fn status(&self) -> Result<CandidateStatus, OpenError> {
        let own = GetOptions::new().with_keys_only();
        let looks = vec![TxnOp::get(self.key(), Some(own)), first_of(&self.election)];
        let txn = Txn::new().and_then(looks);
        let answer = self.members.txn(&txn).await;
        let answer = answer.map_err(|fault| self.explain(fault))?;
        let looked = answer.op_responses();
        Ok(match (found(looked.first()), found(looked.get(1))) {
            (None, _) => CandidateStatus::Gone,
            (Some(own), Some(first)) if own.key() == first.key() => CandidateStatus::Leads,
            (Some(_), _) => CandidateStatus::Waits,
        })
    }

    /// Renews the lease.
    ///
    /// # Errors
    ///
    /// etcd does not answer, or refuses. Then the lease may or may not be alive.
    pub async fn renew(&self) -> Result<Leased, OpenError> {
        let renewed = lease::keep_alive(&self.members, self.lease).await;
        renewed.map_err(|fault| self.explain(fault))
    }

    /// Leaves the queue: the key ends with its lease.
    ///
    /// # Errors
    ///
    /// etcd does not answer, or refuses. Then the lease expires.
    pub async fn resign(&self) -> Result<(), OpenError> {
        let revoked = lease::revoke(&self.members, self.lease).await;
        revoked.map_err(|fault| self.explain(fault))
    }

    /// Key in the format of Go's `concurrency` package.
    fn key(&self) -> String {
        format!("{}/{:x}", self.election, self.lease)
    }

    fn explain(&self, fault: EtcdFault) -> OpenError {
        fault.explain(&self.election)
    }
}

/// An election as one replica follows it: it leads while the leader's key has the replica's identity as its value.
/// Must be called in the runtime that will run the connections.
///
/// # Errors
///
/// Unreadable files.
pub fn follow_election(
    options: &Options,
    election: &str,
    identity: &str,
) -> Result<Box<dyn Election>, OpenError> {
    client_options(options).map_err(OpenError::Unusable)?;
    Ok(Box::new(FollowedElection {
        members: Members::new(options),
        election: election.to_owned(),
        identity: identity.to_owned(),
    }))
}

#[derive(Debug)]
struct FollowedElection {
    members: Members,
    election: String,
    identity: String,
}

#[async_trait]
impl Election for FollowedElection {
    fn look_every(&self) -> Duration {
        LOOK_EVERY
    }

    async fn read(&self) -> Result<Standing, String> {
        let sure_until = Instant::now() + SURE_FOR;
        let oldest = TxnOp::get(format!("{}/", self.election), Some(oldest(2)));
        let answer = self.members.txn(&Txn::new().and_then(vec![oldest])).await;
        let answer = answer.map_err(|fault| fault.explain(&self.election).to_string())?;
        let looked = answer.op_responses();
        let (leader, next) = match looked.first() {
            Some(TxnOpResponse::Get(keys)) => (keys.kvs().first(), keys.kvs().get(1)),
            _ => (None, None),
        };
        let waits = |why: &str| Ok(Standing::Waits(why.to_owned()));
        let Some(leader) = leader else {
            return waits("nobody leads");
        };
        let name = String::from_utf8_lossy(leader.value());
        if *name != *self.identity {
            return waits(&format!("{name:?} leads"));
        }
        // A number is one leader's: the revision in which its key was made.
        if leader.version() != 1 {
            return waits(
                "the leader's key was written again, so its number may have been another's",
            );
        }
        if next.is_some_and(|next| next.create_revision() == leader.create_revision()) {
            return waits("another key was made in the same transaction, and has the same number");
        }
        let made = leader.create_revision();
        let mandate = Mandate {
            id: format!("{name} ({made})"),
            number: Some(number(made).ok_or("its key has no revision")?),
        };
        Ok(Standing::Leads {
            mandate,
            sure_until,
        })
    }
}

/// Token of the leader whose key was created at this revision.
pub(super) fn number(made: i64) -> Option<Token> {
    Token::new(u64::try_from(made).ok()?).ok()
}

/// Selects the keys that were made first, of which the very first is the leader's.
fn oldest(keys: i64) -> GetOptions {
    GetOptions::new()
        .with_prefix()
        .with_sort(SortTarget::Create, SortOrder::Ascend)
        .with_limit(keys)
}

pub(super) fn first_of(election: &str) -> TxnOp {
    TxnOp::get(format!("{election}/"), Some(oldest(1).with_keys_only()))
}
