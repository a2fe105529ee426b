//! Leases: a key of the scope, tied to a lease of etcd, which counts its time by a monotonic clock.
//! <https://etcd.io/docs/v3.5/learning/api/#lease-api>

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Compare, CompareOp, Error, GetOptions, KeyValue, PutOptions, TxnOp};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use super::fault::{EtcdFault, FaultKind};
use super::members::Members;
use super::store::{EtcdStore, found};
use crate::{Answer, LeaseId, LeaseStep, Leased, Scope};

/// Pause between two attempts to revoke a lease that nobody holds.
const RETRY: Duration = Duration::from_millis(500);

impl EtcdStore {
    pub(super) async fn lease(
        self: &Arc<Self>,
        scope: &Scope,
        holder: LeaseId,
        step: LeaseStep,
    ) -> Answer<Leased> {
        self.history.intact()?;
        let key = self.keys.lease(scope);
        // This read may be old. Even then no missing lease is renewed and no held lease acquired.
        let read = self.members.get(&key, &GetOptions::new()).await?;
        let own = |kv: &KeyValue| kv.value() == holder.to_string().as_bytes();
        match (read.kvs().first(), step) {
            (Some(kv), LeaseStep::Release) if own(kv) => {
                revoke(&self.members, kv.lease()).await?;
                Ok(Leased::NotHeld)
            }
            // The caller has given up the step, and asks again. Renewed, it would soon be revoked all the same.
            (Some(kv), LeaseStep::Acquire(time)) if own(kv) && self.abandoned.has(kv.lease()) => {
                let _revoked_already = revoke(&self.members, kv.lease()).await;
                self.acquire(key, 0, holder, time).await
            }
            (Some(kv), _) if own(kv) => Ok(keep_alive(&self.members, kv.lease()).await?),
            // A key without a lease is not ours.
            (found, LeaseStep::Acquire(time)) if found.is_none_or(|kv| kv.lease() == 0) => {
                let revision = found.map_or(0, KeyValue::mod_revision);
                self.acquire(key, revision, holder, time).await
            }
            _ => Ok(Leased::NotHeld),
        }
    }

    async fn acquire(
        self: &Arc<Self>,
        key: Vec<u8>,
        revision: i64,
        holder: LeaseId,
        time: Duration,
    ) -> Answer<Leased> {
        let lease = grant(&self.members, time).await?;
        let unclaimed = Unclaimed {
            store: self,
            lease,
            time,
        };
        let unchanged = Compare::mod_revision(key.clone(), CompareOp::Equal, revision);
        let held = PutOptions::new().with_lease(lease);
        let put = TxnOp::put(key.clone(), holder.to_string(), Some(held));
        let stepped = self.step(vec![unchanged], vec![put], vec![TxnOp::get(key, None)]);
        let stepped = stepped.await?;
        // An answer may have been lost, and the step taken twice.
        let is_own = |kv: &KeyValue| kv.lease() == lease;
        if stepped.taken || found(stepped.answers.first()).is_some_and(is_own) {
            unclaimed.keep();
            return Ok(Leased::Held);
        }
        Ok(Leased::NotHeld)
    }
}

/// A lease that nobody holds yet. Unless somebody does, it is revoked, also if the caller gives up: the step that ties
/// the key to it may be taken later.
struct Unclaimed<'a> {
    store: &'a Arc<EtcdStore>,
    lease: i64,
    time: Duration,
}

impl Unclaimed<'_> {
    fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Unclaimed<'_> {
    fn drop(&mut self) {
        let (store, lease) = (Arc::clone(self.store), self.lease);
        let ends = Instant::now() + self.time;
        store.abandoned.0.lock().insert(lease);
        self.store.members.spawn(async move {
            while let Err(fault) = revoke(&store.members, lease).await
                && fault.kind == FaultKind::Unavailable
                && Instant::now() < ends
            {
                sleep(RETRY).await;
            }
            store.abandoned.0.lock().remove(&lease);
        });
    }
}

/// Leases that are being revoked.
#[derive(Debug, Default)]
pub(super) struct Abandoned(Mutex<BTreeSet<i64>>);

impl Abandoned {
    fn has(&self, lease: i64) -> bool {
        self.0.lock().contains(&lease)
    }
}

/// Grants a lease, in whole seconds. Must be called in the runtime of the connections.
pub(super) async fn grant(members: &Members, time: Duration) -> Result<i64, EtcdFault> {
    let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    let granted =
        members.call(|client| async move { client.lease_client().grant(seconds, None).await });
    Ok(granted.await?.id())
}

/// Renews a lease for its whole time, from the call on.
pub(super) async fn keep_alive(members: &Members, lease: i64) -> Result<Leased, EtcdFault> {
    let renewed = members.call(|client| async move {
        match client.lease_client().keep_alive(lease).await {
            // The answer to the first request on the stream has arrived.
            Ok(_stream) => Ok(Leased::Held),
            Err(Error::LeaseKeepAliveError(_)) => Ok(Leased::NotHeld),
            Err(error) => Err(error),
        }
    });
    renewed.await
}

/// Ends a lease, and removes the keys tied to it.
pub(super) async fn revoke(members: &Members, lease: i64) -> Result<(), EtcdFault> {
    let revoked = members.call(|client| async move { client.lease_client().revoke(lease).await });
    revoked.await.map(drop)
}
