//! Opening the store: its identity.

use std::time::Duration;

use etcd_client::{Compare, CompareOp, Txn, TxnOp};
use tokio::time::timeout;

use super::connect::client_options;
use super::fault::{EtcdFault, FaultKind, MAKE_ROOM};
use super::history::History;
use super::keys::{self, FORMAT, Keys, NotOurs};
use super::lease::Abandoned;
use super::marks::Marks;
use super::members::Members;
use super::options::Options;
use super::store::{EtcdStore, found};
use crate::watchers::Watchers;
use crate::{AuthorityId, OpenError};

/// Limit for connecting.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Missing {
    Make,
    Leave,
}

/// Connects, and returns the store and its revision. `None`: the store is missing, and was not to be created.
pub(super) async fn open(
    options: Options,
    missing: Missing,
) -> Result<Option<(EtcdStore, i64)>, OpenError> {
    // Each connection reads the files again; an operator learns of their errors here.
    client_options(&options).map_err(OpenError::Unusable)?;
    let mut store = EtcdStore {
        keys: Keys::new(&options.prefix),
        members: Members::new(&options),
        identity: AuthorityId::random(),
        history: History::default(),
        marks: Marks::default(),
        watchers: Watchers::default(),
        abandoned: Abandoned::default(),
    };
    let identifying = store.identify(missing, &options.prefix);
    let revision = timeout(CONNECT_TIMEOUT, identifying).await;
    let revision = revision.unwrap_or_else(|_| {
        let why = format!("no answer within {} s", CONNECT_TIMEOUT.as_secs());
        Err(EtcdFault::unavailable(why).explain(&options.prefix))
    });
    Ok(revision?.map(|revision| (store, revision)))
}

impl EtcdFault {
    /// For an operator. `prefix` is that of the keys in use.
    pub(super) fn explain(self, prefix: &str) -> OpenError {
        let why = self.text;
        OpenError::Unusable(match self.kind {
            FaultKind::Unavailable | FaultKind::Compacted => format!(
                "etcd does not answer: {why}; check that it runs, the addresses, and http:// or https://"
            ),
            FaultKind::Denied => format!(
                "etcd refuses: {why}; check user and password, and that the user may read and write all keys from \
                 {prefix}"
            ),
            FaultKind::Foreign => {
                format!("this is not etcd 3.4 or later, or it refuses our requests: {why}")
            }
            // The marks are there: another prefix would forget them.
            FaultKind::Full => format!("etcd refuses: {why}; {MAKE_ROOM}"),
            FaultKind::Damaged => format!(
                "the store at {prefix}: {why}; choose another prefix, or restore it from a snapshot"
            ),
        })
    }
}

impl EtcdStore {
    /// Reads the identity of the store, or stores its own if missing and allowed. Returns the revision. One step, so
    /// that two proxies that come first at the same time get the same identity.
    async fn identify(&mut self, missing: Missing, prefix: &str) -> Result<Option<i64>, OpenError> {
        let damaged = |why: String| EtcdFault::damaged(why).explain(prefix);
        let key = self.keys.identity();
        let absent = Compare::version(key.clone(), CompareOp::Equal, 0);
        let own = keys::write_identity(self.identity);
        let make = match missing {
            Missing::Make => vec![TxnOp::put(key.clone(), own, None)],
            Missing::Leave => Vec::new(),
        };
        let txn = Txn::new()
            .when(vec![absent])
            .and_then(make)
            .or_else(vec![TxnOp::get(key, None)]);
        let answer = self.members.txn(&txn).await;
        let answer = answer.map_err(|fault| fault.explain(prefix))?;
        let revision = self.history.check(answer.header(), 0);
        let revision = revision.map_err(|error| damaged(error.to_string()))?;
        if answer.succeeded() {
            return Ok((missing == Missing::Make).then_some(revision));
        }
        let answers = answer.op_responses();
        let Some(kv) = found(answers.first()) else {
            return Err(damaged("it has no identity".to_owned()));
        };
        self.identity = keys::read_identity(kv.value()).map_err(|error| match error {
            NotOurs::OtherFormat(found) => OpenError::Unusable(format!(
                "the store at {prefix} has format {found}, and this version uses {FORMAT}; use the version of \
                 pgpalisade that wrote it"
            )),
            NotOurs::Damaged(why) => damaged(why),
        })?;
        Ok(Some(revision))
    }
}
