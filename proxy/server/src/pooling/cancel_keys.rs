//! Cancel keys of clients that share server connections. A key leads to the connection that serves its client, if
//! one does.
//!
//! A cancel request may hit whatever runs when it arrives, so a connection that one is for serves no other client.
//!
//! The keys are known to this process only: after an upgrade in place, the old process's clients cannot cancel.
//!
//! Source: <https://www.postgresql.org/docs/current/protocol-flow.html#PROTOCOL-FLOW-CANCELING-REQUESTS>

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use pgpalisade_takeover::PrimaryTerm;
use pgpalisade_wire::backend::tag;
use pgpalisade_wire::{encode, startup};

/// All keys of this process.
#[derive(Debug, Clone, Default)]
pub(crate) struct CancelKeys(Arc<Mutex<HashMap<Pid, Arc<Slot>>>>);

/// Stands for a process id, in bytes of the protocol.
type Pid = [u8; 4];

/// Makes it a number that no process has: Linux has at most 2^22 of them.
const NO_PROCESS: i32 = 1 << 30;

#[derive(Debug)]
struct Slot {
    secret: Vec<u8>,
    /// The connection that serves the client now.
    serving: Mutex<Option<Arc<Cancellable>>>,
}

/// Whom a cancel request is for.
#[derive(Debug)]
pub(crate) enum Addressee {
    /// The key is not ours.
    Server,
    /// No connection serves the client.
    Nobody,
    /// The packet for the connection that serves the client.
    Backend(Bytes),
}

/// A client's key, valid until it is dropped.
#[derive(Debug)]
pub(crate) struct CancelKey {
    keys: CancelKeys,
    pid: Pid,
    slot: Arc<Slot>,
}

impl CancelKeys {
    /// The length of its secret depends on the client's protocol.
    pub(crate) fn issue(&self, secret_len: usize) -> CancelKey {
        let slot = Arc::new(Slot {
            secret: rand::random_iter().take(secret_len).collect(),
            serving: Mutex::default(),
        });
        let mut slots = self.0.lock();
        let pid = loop {
            let pid = (rand::random::<i32>() & i32::MAX | NO_PROCESS).to_be_bytes();
            if !slots.contains_key(&pid) {
                break pid;
            }
        };
        slots.insert(pid, Arc::clone(&slot));
        CancelKey {
            keys: self.clone(),
            pid,
            slot,
        }
    }

    /// Looks up the key of a CancelRequest.
    pub(crate) fn find(&self, packet: &[u8]) -> Addressee {
        let key = startup::cancel_key(packet).and_then(<[u8]>::split_first_chunk::<4>);
        let slot = key.and_then(|(pid, secret)| {
            let slot = self.0.lock().get(pid).cloned();
            slot.filter(|slot| slot.secret == *secret)
        });
        let Some(slot) = slot else {
            return Addressee::Server;
        };
        // Locked until the request is noted: whoever releases the connection then finds it.
        let serving = slot.serving.lock();
        match &*serving {
            Some(backend) if !backend.is_deposed() => {
                backend.is_cancelled.store(true, Ordering::Release);
                Addressee::Backend(backend.packet.clone())
            }
            _ => Addressee::Nobody,
        }
    }
}

impl CancelKey {
    pub(crate) const fn pid(&self) -> i32 {
        i32::from_be_bytes(self.pid)
    }

    /// Appends BackendKeyData.
    pub(crate) fn put(&self, out: &mut BytesMut) {
        let key = [&self.pid, &*self.slot.secret].concat();
        encode::put_raw(out, tag::BACKEND_KEY_DATA, &key);
    }

    /// From now on requests with this key go to `backend`.
    pub(crate) fn lend(&self, backend: &Arc<Cancellable>) {
        *self.slot.serving.lock() = Some(Arc::clone(backend));
    }

    /// From now on requests with this key go nowhere. [`Cancellable::is_cancelled`] says whether one was before.
    pub(crate) fn release(&self) {
        *self.slot.serving.lock() = None;
    }
}

impl Drop for CancelKey {
    fn drop(&mut self) {
        self.release();
        self.keys.0.lock().remove(&self.pid);
    }
}

/// A server connection, as far as cancel requests matter.
#[derive(Debug)]
pub(crate) struct Cancellable {
    /// CancelRequest with the server's own key.
    packet: Bytes,
    term: Option<PrimaryTerm>,
    /// Whether a request was found to be for it. It may arrive at any time.
    is_cancelled: AtomicBool,
}

impl Cancellable {
    /// A connection with this BackendKeyData body.
    pub(crate) fn new(key: &[u8], term: Option<PrimaryTerm>) -> Arc<Self> {
        Arc::new(Self {
            packet: startup::cancel_request(key).freeze(),
            term,
            is_cancelled: AtomicBool::new(false),
        })
    }

    fn is_deposed(&self) -> bool {
        self.term.as_ref().is_some_and(PrimaryTerm::is_over)
    }

    /// CancelRequest with the server's own key.
    pub(crate) const fn packet(&self) -> &Bytes {
        &self.packet
    }

    /// Whether it must serve no other client. Read after [`CancelKey::release`].
    pub(crate) fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(key: &CancelKey) -> Bytes {
        let mut out = BytesMut::new();
        key.put(&mut out);
        assert_eq!(out[0], b'K');
        startup::cancel_request(&out[5..]).freeze()
    }

    fn backend() -> Arc<Cancellable> {
        Cancellable::new(b"pid.key.of.the.server", None)
    }

    #[test]
    fn a_key_leads_to_the_backend_that_serves_its_client() {
        let keys = CancelKeys::default();
        let (one, other, server) = (keys.issue(4), keys.issue(32), backend());
        let ours = packet(&one);
        assert!(matches!(keys.find(&ours), Addressee::Nobody));
        one.lend(&server);
        assert!(!server.is_cancelled());
        match keys.find(&ours) {
            Addressee::Backend(sent) => assert_eq!(sent, server.packet),
            other => unreachable!("{other:?}"),
        }
        assert!(server.is_cancelled());
        assert!(matches!(keys.find(&packet(&other)), Addressee::Nobody));
        one.release();
        assert!(matches!(keys.find(&ours), Addressee::Nobody));
        drop(one);
        assert!(matches!(keys.find(&ours), Addressee::Server));
    }

    #[test]
    fn other_keys_are_the_servers() {
        let keys = CancelKeys::default();
        let key = keys.issue(4);
        key.lend(&backend());
        let ours = packet(&key);
        for (at, xor) in [(8, 1), (11, 1), (12, 1), (15, 128)] {
            let mut other = ours.to_vec();
            other[at] ^= xor;
            assert!(matches!(keys.find(&other), Addressee::Server), "{at}");
        }
        let longer = startup::cancel_request(&[&ours[8..], b"more"].concat());
        assert!(matches!(keys.find(&longer), Addressee::Server));
        assert!(matches!(keys.find(&ours[..12]), Addressee::Server));
        assert!(matches!(keys.find(b""), Addressee::Server));
    }

    #[test]
    fn living_keys_differ() {
        let keys = CancelKeys::default();
        let living: Vec<_> = (0..2000).map(|_| keys.issue(4)).collect();
        assert_eq!(keys.0.lock().len(), living.len());
        assert!(living.iter().all(|key| i32::from_be_bytes(key.pid) > 0));
        drop(living);
        assert!(keys.0.lock().is_empty());
    }
}
